package proctree

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// script runs a shell script that talks over its pipes.
type script struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startScript(t *testing.T, text string) *script {
	t.Helper()
	cmd := exec.Command("sh", "-c", text)
	cmd.Dir = t.TempDir()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &script{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
}

// says waits for a line.
func (s *script) says(want string) {
	s.t.Helper()
	got, err := s.out.ReadString('\n')
	if err != nil || strings.TrimSpace(got) != want {
		s.t.Fatalf("the script said %q (%v), not %q", got, err, want)
	}
}

func (s *script) goOn() {
	s.t.Helper()
	if _, err := io.WriteString(s.in, "\n"); err != nil {
		s.t.Fatal(err)
	}
}

func (s *script) tree() []int {
	pids := []int{s.cmd.Process.Pid}
	for _, p := range Descendants(s.cmd.Process.Pid) {
		pids = append(pids, p.PID)
	}
	return pids
}

func TestWhatAnEndedChildDidIsCountedOnce(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	s := startScript(t, fmt.Sprintf(
		`( head -c %d /dev/zero > file; echo wrote; read x ); echo waited; read x; head -c %d /dev/zero > again; echo wrote again; read x`, size, size))
	var a Account
	defer a.Close()
	s.says("wrote")
	first := a.Read(s.tree())
	if !first.IOKnown || first.WriteB < size || first.WriteB > size+size/2 {
		t.Errorf("after %d bytes: %+v", size, first)
	}
	if first.Procs < 2 || first.RSSKiB == 0 {
		t.Errorf("tree: %+v", first)
	}
	s.goOn()
	s.says("waited")
	for i := range 3 {
		// The child's bytes are now in its parent's figures.
		if next := a.Read(s.tree()); next.WriteB < first.WriteB || next.WriteB > size+size/2 {
			t.Errorf("reading %d after its end: %d bytes written, was %d", i, next.WriteB, first.WriteB)
		}
	}
	s.goOn()
	s.says("wrote again")
	// This child was never seen: what its parent got of it counts.
	if last := a.Read(s.tree()); last.WriteB < 2*size || last.WriteB > 2*size+size/2 || last.ReadB < 2*size {
		t.Errorf("after a child that came and went: %+v, want %d bytes", last, 2*size)
	}
	if a.files != 2*len(a.procs) {
		t.Errorf("%d files for %d processes", a.files, len(a.procs))
	}
}

func TestAnEndedTreeKeepsItsFigures(t *testing.T) {
	t.Parallel()
	s := startScript(t, `i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; echo worked; read x`)
	var a Account
	defer a.Close()
	s.says("worked")
	pids := s.tree()
	before := a.Read(pids)
	if before.CPU < 10*time.Millisecond {
		t.Errorf("a loop took %v", before.CPU)
	}
	s.goOn()
	if err := s.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	after := a.Read(pids)
	if after.CPU < before.CPU || after.ReadB < before.ReadB || after.Procs != 0 || after.RSSKiB != 0 {
		t.Errorf("%+v after %+v", after, before)
	}
	if a.files != 0 || len(a.procs) != 0 {
		t.Errorf("%d files, %d processes are kept", a.files, len(a.procs))
	}
}

func TestManyProcessesDoNotTakeAllFiles(t *testing.T) {
	t.Parallel()
	const n = keptFiles/2 + 10
	s := startScript(t, fmt.Sprintf(`i=0; while [ $i -lt %d ]; do sleep 60 & i=$((i+1)); done; echo there; read x; kill $(jobs -p)`, n))
	var a Account
	s.says("there")
	got := a.Read(s.tree())
	if got.Procs != n+1 || !got.IOKnown {
		t.Errorf("%+v, want %d processes", got, n+1)
	}
	if again := a.Read(s.tree()); again.Procs != n+1 || again.WriteB < got.WriteB {
		t.Errorf("%+v, then %+v", got, again)
	}
	if a.files > keptFiles {
		t.Errorf("%d files are open", a.files)
	}
	s.goOn()
	a.Close()
	if a.files != 0 {
		t.Errorf("%d files are left", a.files)
	}
}

func TestOneOfAnotherUserHidesItsBytes(t *testing.T) {
	t.Parallel()
	hidden := true
	a := Account{figures: func(p *accounted) bool {
		p.hidden = hidden && p.pid == 2
		p.now.readChars += 100
		return true
	}}
	if got := a.Read([]int{1, 2}); got.Procs != 2 || got.IOKnown {
		t.Errorf("%+v", got)
	}
	hidden = false
	if got := a.Read([]int{1, 2}); !got.IOKnown || got.ReadB != 400 {
		t.Errorf("once it shows: %+v", got)
	}
}

// model is a kernel in miniature, for one counter of each sort.
type model struct {
	procs map[int]*modelled
	next  int
}

type modelled struct {
	parent int
	now    counters
}

func (m *model) figures(p *accounted) bool {
	q := m.procs[p.pid]
	if q == nil {
		return false
	}
	p.ppid, p.now = q.parent, q.now
	return true
}

// end ends a process as the kernel does: its children go to the root, its figures to its
// parent if that waits for it.
func (m *model) end(pid int, waited bool) {
	p := m.procs[pid]
	delete(m.procs, pid)
	for _, q := range m.procs {
		if q.parent == pid {
			q.parent = 1
		}
	}
	up := m.procs[p.parent]
	if up == nil || !waited {
		return
	}
	up.now.children += p.now.own + p.now.children
	up.now.readChars += p.now.readChars
}

func TestTotalsNeverFallAndCountNothingTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &model{procs: map[int]*modelled{1: {}}, next: 2}
		a := Account{figures: m.figures}
		did := uint64(0)
		var last Totals
		everWaited := true
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			pids := make([]int, 0, len(m.procs))
			for pid := range m.next {
				if m.procs[pid] != nil {
					pids = append(pids, pid)
				}
			}
			pid := rapid.SampledFrom(pids).Draw(t, "pid")
			switch rapid.SampledFrom([]string{"work", "fork", "end", "read"}).Draw(t, "what") {
			case "work":
				d := rapid.Uint64Range(1, 1000).Draw(t, "d")
				m.procs[pid].now.own += d
				m.procs[pid].now.readChars += d
				did += d
			case "fork":
				m.procs[m.next] = &modelled{parent: pid}
				m.next++
			case "end":
				if pid != 1 {
					waited := rapid.Bool().Draw(t, "waited")
					everWaited = everWaited && waited
					m.end(pid, waited)
				}
			case "read":
				got := a.Read(pids)
				ticks := uint64(got.CPU / (10 * time.Millisecond))
				if got.CPU < last.CPU || got.ReadB < last.ReadB {
					t.Fatalf("%+v after %+v", got, last)
				}
				if ticks > did || got.ReadB > did {
					t.Fatalf("%d ticks and %d bytes of %d", ticks, got.ReadB, did)
				}
				last = got
			}
		}
		// All of it, once everybody has waited and two readings are over.
		var pids []int
		for pid := range m.procs {
			pids = append(pids, pid)
		}
		a.Read(pids)
		if got := a.Read(pids); everWaited && (got.ReadB != did || got.CPU != time.Duration(did)*10*time.Millisecond) {
			t.Fatalf("%+v of %d", got, did)
		}
	})
}

func TestNetOfANamespace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "dev")
	write := func(lines ...string) {
		t.Helper()
		text := "Inter-|   Receive  |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes\n" + strings.Join(lines, "\n") + "\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port := func(name string, rx, tx uint64) string {
		return fmt.Sprintf("%6s: %d 1 0 0 0 0 0 0 %d 1 0 0 0 0 0 0", name, rx, tx)
	}
	write(port("lo", 500, 500), port("eth0", 1000, 2000))
	fd, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := NetAccount{buf: make([]byte, netBuf)}
	s := &netspace{fd: fd}
	for i, c := range []struct {
		lines []string
		want  uint64
	}{
		{[]string{port("lo", 500, 500), port("eth0", 1000, 2000)}, 0},
		{[]string{port("lo", 9500, 9500), port("eth0", 1010, 2005)}, 15},
		// A driver that is loaded again begins at 0.
		{[]string{port("lo", 0, 0), port("eth0", 3, 4)}, 22},
		// One that comes later counts in full, one that goes has counted.
		{[]string{port("eth1", 100, 0)}, 122},
		{[]string{port("eth1", 100, 0), port("eth0", 4, 4)}, 123},
	} {
		write(c.lines...)
		if !n.count(s) || n.total != c.want {
			t.Errorf("reading %d: %d bytes, want %d", i, n.total, c.want)
		}
	}
}

func TestANamespaceOfItsOwnCountsAlone(t *testing.T) {
	t.Parallel()
	// Who is not root needs a user namespace for it.
	user := "-r"
	if os.Getuid() == 0 {
		user = ""
	}
	s := startScript(t, `exec unshare -n `+user+` sh -c 'echo apart; read x'`)
	if line, err := s.out.ReadString('\n'); err != nil || line != "apart\n" {
		t.Skipf("no namespace can be made here: %q, %v", line, err)
	}
	var n NetAccount
	defer n.Close()
	if total, ok := n.Read(s.tree()); !ok || total != 0 || len(n.spaces) != 1 {
		t.Errorf("%d %v, %d namespaces", total, ok, len(n.spaces))
	}
	for _, space := range n.spaces {
		if space.own {
			t.Error("a namespace apart is taken for our own")
		}
	}
	// With a process in ours beside it, still only the one apart is counted.
	_, _ = n.Read(append(s.tree(), os.Getpid()))
	if len(n.spaces) != 2 {
		t.Errorf("%d namespaces", len(n.spaces))
	}
	for id, space := range n.spaces {
		if space.own != (id == n.own) || space.begun == space.own {
			t.Errorf("namespace %d of ours %v: %+v", id, n.own, space)
		}
	}
	if _, ok := n.Read([]int{os.Getpid()}); !ok || len(n.spaces) != 1 {
		t.Errorf("our own alone: %v, %d namespaces", ok, len(n.spaces))
	}
}

func BenchmarkAccount(b *testing.B) {
	var a Account
	var n NetAccount
	defer a.Close()
	defer n.Close()
	pids := []int{os.Getpid(), os.Getppid()}
	b.ReportAllocs()
	for b.Loop() {
		a.Read(pids)
		n.Read(pids)
	}
}
