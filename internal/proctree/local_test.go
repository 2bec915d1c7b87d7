package proctree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/newprog"
)

// blocked starts a process that waits in its end of a socket pair, and returns the other.
func blocked(t *testing.T) (Proc, int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	end := os.NewFile(uintptr(pair[1]), "end")
	cmd := exec.Command(os.Args[0], "-test.run=^TestBlockedProcess$")
	cmd.Env = append(os.Environ(), "PROCTREE_BLOCKED=1")
	cmd.ExtraFiles = []*os.File{end}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		unix.Close(pair[0])
	})
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", cmd.Process.Pid))
		for _, n := range names {
			if b, _ := os.ReadFile(n); strings.HasPrefix(string(b), "unix_") {
				p, _ := Read(cmd.Process.Pid)
				return p, pair[0]
			}
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("it does not come to wait in its socket")
	return Proc{}, 0
}

// TestBlockedProcess is the process of the tests below and no test of its own.
func TestBlockedProcess(t *testing.T) {
	if os.Getenv("PROCTREE_BLOCKED") == "" {
		return // not the process
	}
	b := make([]byte, 100)
	for {
		if n, err := unix.Read(3, b); n == 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// TestLocalSockets: with whom a tree talks over unix sockets.
func TestLocalSockets(t *testing.T) {
	t.Parallel()
	p, _ := blocked(t)
	self, _ := Read(os.Getpid())
	for name, c := range map[string]struct {
		procs, beside []Proc
		want          Local
	}{
		"with somebody outside":         {[]Proc{p}, nil, LocalOut},
		"with one that reports":         {[]Proc{p}, []Proc{self}, LocalNone},
		"it reports itself":             {nil, []Proc{p}, LocalNone},
		"nobody who has a socket":       {nil, nil, LocalNone},
		"with another one of the tree ": {[]Proc{p, self}, nil, LocalInner},
	} {
		var s SocketAccount
		got, err := s.Read(c.procs, c.beside)
		s.Close()
		// The test's own process may have sockets of other tests.
		if err != nil || got.Local != c.want && (name != "with another one of the tree " || got.Local != LocalOut) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if want := c.want != LocalNone; got.Talkers[p.PID] != want {
			t.Errorf("%s: who talks: %v", name, got.Talkers)
		}
	}
}

// TestLocalUDP: what may come over loopback has a socket there or anywhere.
func TestLocalUDP(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"127.0.0.1": true, "127.9.9.9": true, "0.0.0.0": true, "::1": true, "::": true, "192.0.2.1": false, "2001:db8::1": false} {
		ip := net.ParseIP(text)
		var end [18]byte
		binary.BigEndian.PutUint16(end[:], 53)
		if v4 := ip.To4(); v4 != nil && !strings.Contains(text, ":") {
			copy(end[2:], v4)
		} else {
			copy(end[2:], ip.To16())
		}
		if got := onMachine(end); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// TestWakes: a thread that waits in a socket is woken when something comes, and by nothing
// else.
func TestWakes(t *testing.T) {
	t.Parallel()
	p, fd := blocked(t)
	var w WakeAccount
	none := func(string) bool { return false }
	read := func() uint64 {
		t.Helper()
		got, ok := w.Read([]Proc{p}, none)
		if !ok {
			t.Fatal("not known")
		}
		return got.Received
	}
	if first, again := read(), read(); first != 0 || again != 0 {
		t.Errorf("nothing came: %d, then %d", first, again)
	}
	// One look may come while it is awake, and cannot tell then.
	deadline := time.Now().Add(20 * time.Second)
	for woken := uint64(0); woken == 0; woken = read() {
		if time.Now().After(deadline) {
			t.Fatal("bytes come and wake nobody")
		}
		if _, err := unix.Write(fd, []byte("x")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // for it to wait again
	}
	var left WakeAccount
	left.Read([]Proc{p}, func(string) bool { return true })
	if len(left.threads) != 0 {
		t.Errorf("%d threads that are to be left out", len(left.threads))
	}
}

func TestWaitOf(t *testing.T) {
	t.Parallel()
	for wchan, want := range map[string]waitKind{
		"unix_stream_read_generic": waitsSocket, "unix_stream_data_wait": waitsSocket, "__skb_wait_for_more_packets": waitsSocket,
		"do_sys_poll": waitsPoll, "poll_schedule_timeout.constprop.0": waitsPoll, "do_epoll_wait": waitsPoll, "do_select": waitsPoll, "0": waitsPoll, "": waitsPoll,
		"hrtimer_nanosleep": waitsPoll, "futex_wait_queue": waitsElsewhere, "wait_woken": waitsElsewhere, "pipe_read": waitsElsewhere,
	} {
		if got := waitOf(wchan); got != want {
			t.Errorf("%q: %d", wchan, got)
		}
	}
}

// TestZombies: a process that has ended hides nothing, whoever looks; one whose first
// thread alone has ended does.
func TestZombies(t *testing.T) {
	t.Parallel()
	line := func(state string, threads int) []byte {
		return fmt.Appendf(nil, "42 (a b) %s 7 8 9 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 %d 0 98765 100 200 18446744073709551615", state, threads)
	}
	for _, c := range []struct {
		state   string
		threads int
		over    bool
	}{{"Z", 1, true}, {"Z", 0, true}, {"X", 0, true}, {"Z", 2, false}, {"S", 1, false}, {"D", 1, false}} {
		p := &accounted{}
		if !p.parseStat(line(c.state, c.threads)) || p.over() != c.over || p.ppid != 7 || p.start != 98765 {
			t.Errorf("%+v: %+v", c, p)
		}
	}
	// A real one, by a process that must not look into what is root's.
	s := startScript(t, `true & exec sleep 60`)
	deadline := time.Now().Add(20 * time.Second)
	var zombie Proc
	for zombie.PID == 0 {
		for _, p := range Descendants(s.cmd.Process.Pid) {
			if p.State == 'Z' {
				zombie = p
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("no child has ended")
		}
		time.Sleep(time.Millisecond)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestZombieReader$", "-test.v")
	cmd.Env = append(os.Environ(), fmt.Sprintf("PROCTREE_ZOMBIE=%d", zombie.PID))
	if os.Getuid() == 0 {
		// Of another user, who has a copy of the program that they can reach.
		dir, err := os.MkdirTemp("", "proctree-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		b, err := os.ReadFile(os.Args[0])
		if err == nil {
			err = errors.Join(os.Chmod(dir, 0o755), newprog.Write(filepath.Join(dir, "test"), b))
		}
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path, cmd.Dir = filepath.Join(dir, "test"), dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "the zombie hides nothing") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestZombieReader is the process of the test above and no test of its own.
func TestZombieReader(t *testing.T) {
	var pid int
	if _, err := fmt.Sscan(os.Getenv("PROCTREE_ZOMBIE"), &pid); err != nil {
		return // not the process
	}
	var a Account
	defer a.Close()
	if got := a.Read([]int{pid}); !got.IOKnown || got.Procs != 1 {
		t.Errorf("%+v", got)
	}
	t.Log("the zombie hides nothing")
}
