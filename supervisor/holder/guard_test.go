package holder

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/meminfo"
	"sparkrun/internal/sample"
	"sparkrun/supervisor/guard"
)

// fakeFill takes real memory: each argument is "MiB" as fast as possible, or
// "MiB@MiB/s"; "until:FILE:MiB" takes some until the cgroup's usage is that much;
// "burst:MiB" takes some for 200 ms, "step:MiB:MS" takes some and waits; "deaf"
// ignores SIGTERM. It says so and holds all of it.
func fakeFill(args []string) int {
	for _, a := range args {
		if a == "deaf" {
			signal.Ignore(unix.SIGTERM)
			continue
		}
		if rest, ok := strings.CutPrefix(a, "until:"); ok {
			file, most, _ := strings.Cut(rest, ":")
			limit, err := strconv.Atoi(most)
			if err != nil {
				return 2
			}
			for usageMiB(file) < limit {
				if b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil || b == nil {
					return 3
				}
			}
			continue
		}
		if kind, rest, ok := strings.Cut(a, ":"); ok {
			size, wait, _ := strings.Cut(rest, ":")
			mib, err := strconv.Atoi(size)
			if err != nil {
				return 2
			}
			b, err := unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
			if err != nil {
				return 3
			}
			ms, _ := strconv.Atoi(wait)
			if kind == "burst" {
				time.Sleep(200 * time.Millisecond)
				if unix.Munmap(b) != nil {
					return 3
				}
				ms = 50
			}
			time.Sleep(time.Duration(ms) * time.Millisecond)
			continue
		}
		size, rate, paced := strings.Cut(a, "@")
		mib, err := strconv.Atoi(size)
		if err != nil {
			return 2
		}
		per, _ := strconv.ParseFloat(rate, 64)
		chunk := 4.0 // MiB
		if paced && per < 50 {
			chunk = 0.25
		}
		began := time.Now()
		for taken := 0.0; taken < float64(mib); taken += chunk {
			flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
			if chunk > 1 {
				flags |= unix.MAP_POPULATE
			}
			b, err := unix.Mmap(-1, 0, int(chunk*(1<<20)), unix.PROT_READ|unix.PROT_WRITE, flags)
			if err != nil {
				return 3
			}
			if chunk < 1 {
				_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) // else 2 MiB come at once
				for i := 0; i < len(b); i += 4096 {
					b[i] = 1
				}
			}
			switch each := time.Duration(chunk / per * float64(time.Second)); {
			case chunk < 1:
				time.Sleep(each) // never in bursts that make up for a late one
			case paced:
				time.Sleep(time.Until(began.Add(time.Duration((taken + chunk) / per * float64(time.Second)))))
			}
		}
	}
	fmt.Println("full")
	for {
		time.Sleep(time.Hour)
	}
}

func usageMiB(file string) int {
	b, err := os.ReadFile(file)
	if err != nil {
		return 1 << 30
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n >> 20
}

// fakeOwner starts the holder of a Spec, connects as its supervisor, says so and
// reads nothing more.
func fakeOwner(file string) int {
	b, err := os.ReadFile(file)
	if err != nil {
		return 1
	}
	var spec Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		return 1
	}
	_, st, err := Start(os.Args[0], spec, nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if _, err := Dial(spec.Socket, RoleSupervisor); err != nil {
		return 1
	}
	fmt.Println(st.HolderPID)
	for {
		time.Sleep(time.Hour)
	}
}

const (
	// roomMiB is how far the floor of a test lies below what is left now,
	// fillMiB what its child takes if nobody ends it.
	roomMiB = 200
	fillMiB = 4000
)

// nearFloor has the guard's floor a little below what is left now, so that a
// test takes a gigabyte and not the whole machine.
func nearFloor(t testing.TB) guard.Options {
	t.Helper()
	info, err := meminfo.Read("/")
	if err != nil {
		t.Fatal(err)
	}
	avail, _ := info.Available()
	if avail < 8<<20 {
		t.Skipf("filling memory for real needs 8 GiB free, there are %d MiB", avail>>10)
	}
	return guard.Options{HardKiB: avail - roomMiB<<10, SoftKiB: avail - roomMiB/4<<10}
}

func fillSpec(t testing.TB, o guard.Options, args ...string) Spec {
	t.Helper()
	spec := baseSpec(shortDir(t), append([]string{self(t), "fake-fill"}, args...)...)
	spec.Guard = o
	return spec
}

func readGuard(t testing.TB, dir string) guard.Report {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, guardName))
	if err != nil {
		t.Fatal(err)
	}
	var r guard.Report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// readBlackbox returns the rows and demands that they are telemetry.
func readBlackbox(t testing.TB, dir string) [][]string {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, blackboxName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) < 2 || !slices.Equal(rows[0], sample.Header) {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	return rows[1:]
}

func column(t testing.TB, row []string, name string) float64 {
	t.Helper()
	cell := row[slices.Index(sample.Header, name)]
	v, err := strconv.ParseFloat(cell, 64)
	if err != nil {
		t.Errorf("%s is %q", name, cell)
	}
	return v
}

// TestTheGuardOnRealMemory are the tests that take memory, one after the other,
// since the floors of one are what another uses up. None of them waits in a place
// that a test which needs no memory could have.
func TestTheGuardOnRealMemory(t *testing.T) {
	t.Parallel()
	t.Run("a fill", guardEndsAFill)
	t.Run("a tree that forks", guardEndsATreeThatForks)
	t.Run("deaf to SIGTERM", guardEndsTheDeaf)
	t.Run("no supervisor", guardNeedsNoSupervisor)
	t.Run("a load that fits", guardLeavesALoadThatFits)
	t.Run("somebody else", guardSeesSomebodyElse)
}

// guardEndsAFill fills real memory at several speeds.
func guardEndsAFill(t *testing.T) {
	for _, fill := range []string{"4000@300", "4000@800", "4000"} {
		t.Run(fill, func(t *testing.T) {
			o := nearFloor(t)
			spec := fillSpec(t, o, fill)
			spec.Clock = clock.Start()
			spec.Clock.Boot -= time.Hour
			a := start(t, spec, nil)
			pushes := collect(a.dial(RoleSupervisor))
			e := a.end()
			g := e.Guard
			if g == nil || g.Source != guard.SourceHost || g.First == "" || g.Warned {
				t.Fatalf("guard %+v, exit %+v, output %q", g, e, a.log())
			}
			if g.Why != guard.WhyHardFloor || g.FloorKiB != o.HardKiB || g.AvailKiB >= o.HardKiB || g.AvailKiB == 0 {
				t.Errorf("%+v", g)
			}
			// Giving back a gigabyte can take longer than the test's short wait for
			// a SIGTERM to work.
			if want := g.First + ">tree"; !strings.HasPrefix(stopsOf(e), want) || e.Stops[0].By != ByGuard || e.Signal == "" {
				t.Errorf("stops %q, signal %s, want %s", stopsOf(e), e.Signal, want)
			}
			if d := time.Duration(g.ReactionUS) * time.Microsecond; d <= 0 || d > 250*time.Millisecond {
				t.Errorf("reaction %s", d)
			}
			if g.TreeGrewKiB < 0 || g.TreeGrewKiB > fillMiB*2<<10 {
				t.Errorf("the tree grew %d KiB", g.TreeGrewKiB)
			}
			r := readGuard(t, a.dir)
			if r.Schema != guard.ReportSchema || r.RunID != spec.RunID || r.Action == nil || *r.Action != *g || r.Polls == 0 || r.Phase != guard.PhaseLoad {
				t.Errorf("%+v", r)
			}
			rows := readBlackbox(t, a.dir)
			last := rows[len(rows)-1]
			// The run is said to have begun an hour ago.
			if mono := column(t, last, "mono_s"); mono < 3600 || mono > 3700 || last[2] != "1" {
				t.Errorf("last row %v", last)
			}
			if v := column(t, last, "mem_available_kib"); v < 1 {
				t.Errorf("%v KiB in the last row", v)
			}
			<-pushes.end
			i := slices.IndexFunc(pushes.all, func(p Push) bool { return p.Guard != nil })
			if i < 0 || pushes.all[i].Kind != PushGuard || *pushes.all[i].Guard != *g {
				t.Errorf("pushed %+v", pushes.all)
			}
		})
	}
}

func guardEndsATreeThatForks(t *testing.T) {
	o := nearFloor(t)
	exe := self(t)
	spec := baseSpec(shortDir(t), "sh", "-c",
		fmt.Sprintf("for i in 1 2 3 4; do setsid %s fake-fill deaf 300@400 & done; (while :; do sleep 0.01 & done) & wait", exe))
	spec.Guard = o
	a := start(t, spec, nil)
	e := a.end()
	if e.Guard == nil || len(e.Survivors) > 0 || len(e.Ended) == 0 {
		t.Errorf("guard %+v survivors %v ended %d", e.Guard, e.Survivors, len(e.Ended))
	}
	for _, s := range e.Stops {
		if s.By != ByGuard || s.To != ToTree {
			t.Errorf("stop %+v", s)
		}
	}
}

func guardEndsTheDeaf(t *testing.T) {
	o := nearFloor(t)
	a := start(t, fillSpec(t, o, "deaf", "4000@800"), nil)
	e := a.end()
	if e.Guard == nil || e.Guard.First != "SIGTERM" || stopsOf(e) != "SIGTERM>tree SIGKILL>tree" || e.Signal != "SIGKILL" {
		t.Fatalf("guard %+v stops %q signal %s", e.Guard, stopsOf(e), e.Signal)
	}
	for _, s := range e.Stops {
		if s.By != ByGuard {
			t.Errorf("%+v", s)
		}
	}
	if r := readGuard(t, a.dir); r.Action == nil || r.Action.First != "SIGTERM" {
		t.Errorf("%+v", r.Action)
	}
}

// guardNeedsNoSupervisor: the supervisor is stopped, as by a shell's ^Z or a
// debugger, or it is gone.
func guardNeedsNoSupervisor(t *testing.T) {
	for _, what := range []syscall.Signal{unix.SIGSTOP, unix.SIGKILL} {
		t.Run(unix.SignalName(what), func(t *testing.T) {
			o := nearFloor(t)
			gate := filepath.Join(shortDir(t), "gate")
			spec := fillSpec(t, o)
			spec.Argv = []string{"sh", "-c", fmt.Sprintf("while [ ! -e %s ]; do sleep 0.01; done; exec %s fake-fill 4000@500", gate, self(t))}
			spec.Path = "/bin/sh"
			b, err := json.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(spec.Dir, "spec")
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
			owner := exec.Command(self(t), "fake-owner", file)
			out, err := owner.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := owner.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = owner.Process.Kill()
				_ = owner.Wait()
			}()
			var pid int
			if _, err := fmt.Fscanln(out, &pid); err != nil {
				t.Fatal(err)
			}
			if err := owner.Process.Signal(what); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			until(t, "there is an end", func() bool { _, err := ReadExit(spec.Dir); return err == nil })
			e, _ := ReadExit(spec.Dir)
			if e.Guard == nil {
				t.Errorf("exit %+v", e)
			}
			until(t, "the holder is gone", func() bool { return !alive(pid) })
		})
	}
}

// guardLeavesALoadThatFits: the child goes below the soft floor and stays above
// the hard one.
func guardLeavesALoadThatFits(t *testing.T) {
	o := nearFloor(t)
	// More than it takes: others take some meanwhile, TestAMemoryLimitIsJudgedByItself
	// a gigabyte.
	o.HardKiB -= 3500 << 10
	o.SoftKiB = o.HardKiB + 3000<<10
	a := start(t, fillSpec(t, o, "1500"), nil)
	a.says("full")
	if err := a.dial("test").Stop("KILL", 0); err != nil {
		t.Fatal(err)
	}
	e := a.end()
	if e.Guard != nil || e.Stops[0].By != "" {
		t.Errorf("%+v", e)
	}
	r := readGuard(t, a.dir)
	if r.Action != nil || r.Sources[0].LowestKiB < o.HardKiB {
		t.Errorf("%+v", r)
	}
	// Our own stop is a death too.
	if rows := readBlackbox(t, a.dir); column(t, rows[len(rows)-1], "mem_available_kib") == 0 {
		t.Error("the last row says that nothing was left")
	}
}

func TestAPausedJobIsGuarded(t *testing.T) {
	t.Parallel()
	spec := fillSpec(t, guard.Options{}, "8")
	a := start(t, spec, nil)
	a.says("full")
	c := a.dial(RoleSupervisor)
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	// Now everything that is left is below the floor.
	o := guard.Options{HardKiB: 1 << 40}
	if err := c.Floors(Floors{Phase: guard.PhaseRun, GPUTreeKiB: -1, GPUOtherKiB: -1, Options: &o}); err != nil {
		t.Fatal(err)
	}
	if e := a.end(); e.Guard == nil || e.Guard.Why != guard.WhyHardFloor {
		t.Errorf("guard %+v", e.Guard)
	}
}

func TestAStopUnderWayIsNotTheGuards(t *testing.T) {
	t.Parallel()
	spec := baseSpec(shortDir(t), self(t), "fake-deaf", "TERM")
	spec.Waits.Term = time.Hour
	a := start(t, spec, nil)
	a.says("deaf")
	c := a.dial(RoleSupervisor)
	pushes := collect(c)
	if err := c.Stop("TERM", 0); err != nil {
		t.Fatal(err)
	}
	until(t, "the tree was sent SIGTERM", func() bool { st, err := c.Status(); return err == nil && st.Stopping == "term" })
	if err := c.Floors(Floors{Options: &guard.Options{HardKiB: 1 << 40}}); err != nil {
		t.Fatal(err)
	}
	until(t, "the guard acts", func() bool {
		pushes.mu.Lock()
		defer pushes.mu.Unlock()
		return slices.ContainsFunc(pushes.all, func(p Push) bool { return p.Guard != nil })
	})
	if err := c.Stop("KILL", 0); err != nil {
		t.Fatal(err)
	}
	e := a.end()
	if e.Guard != nil || stopsOf(e) != "SIGTERM>child SIGTERM>tree SIGKILL>tree" {
		t.Errorf("guard %+v stops %q", e.Guard, stopsOf(e))
	}
	if r := readGuard(t, a.dir); r.Action == nil || r.Action.First != "" {
		t.Errorf("%+v", r.Action)
	}
}

func TestWhoObeysTheGuardHasDiedToo(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), "sh", "-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done"), nil)
	a.says("up")
	if err := a.dial(RoleSupervisor).Floors(Floors{Options: &guard.Options{HardKiB: 1 << 40}}); err != nil {
		t.Fatal(err)
	}
	e := a.end()
	if e.Status() != 0 || e.Guard == nil || e.Guard.First != "SIGTERM" {
		t.Errorf("status %d guard %+v", e.Status(), e.Guard)
	}
	readBlackbox(t, a.dir)
}

// guardSeesSomebodyElse: the commands are small, and a process that is none of
// theirs grows.
//
// The memory is the whole machine's, and other tests use it too: where one of them
// brought it to the floor, nobody grew enough to be blamed, and it is tried again.
func guardSeesSomebodyElse(t *testing.T) {
	for try := 1; ; try++ {
		why := seesSomebodyElse(t)
		if why == "" {
			return
		}
		if try == 3 {
			t.Fatal(why)
		}
		t.Logf("try %d: %s", try, why)
	}
}

// seesSomebodyElse says in what the guard was wrong, "" where it was right.
func seesSomebodyElse(t *testing.T) string {
	o := nearFloor(t)
	// Room enough to see who it is: the table is read four times a second.
	o.HardKiB -= 600 << 10
	o.SoftKiB = o.HardKiB + 700<<10
	type job struct {
		a      *attempt
		pushes *pushLog
	}
	jobs := map[string]job{}
	for _, on := range []string{guard.CotenantKill, guard.CotenantWarn} {
		o.OnCotenant = on
		a := start(t, fillSpec(t, o, "8"), nil)
		a.says("full")
		jobs[on] = job{a, collect(a.dial(RoleSupervisor))}
	}
	other := exec.Command(self(t), "fake-fill", "4000@600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	for on, j := range jobs {
		warn := on == guard.CotenantWarn
		var g *guard.Action
		until(t, "the guard acts: "+on, func() bool {
			j.pushes.mu.Lock()
			defer j.pushes.mu.Unlock()
			for _, p := range j.pushes.all {
				if p.Guard != nil {
					g = p.Guard
				}
			}
			return g != nil
		})
		if !g.CoTenant || g.OutsiderGrewKiB <= g.TreeGrewKiB || g.Outsider == "" || g.Warned != warn {
			for _, left := range jobs {
				_ = unix.Kill(left.a.st.ChildPID, unix.SIGKILL)
			}
			return fmt.Sprintf("%s: %+v", on, g)
		}
		if warn {
			if err := j.a.dial("test").Stop("KILL", 0); err != nil {
				t.Fatal(err)
			}
		}
		e := j.a.end()
		if (e.Guard == nil) != warn {
			t.Errorf("%s: guard %+v", on, e.Guard)
		}
		if r := readGuard(t, j.a.dir); r.Action == nil || r.Action.Warned != warn {
			t.Errorf("%s: %+v", on, r.Action)
		}
	}
	return ""
}

// TestAStopDoesNotCutTheGuardsGraceShort: the user's first ^C reaches a command
// that saves because of the guard's SIGTERM, and takes no time from it.
func TestAStopDoesNotCutTheGuardsGraceShort(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	done := filepath.Join(t.TempDir(), "done")
	spec := baseSpec(dir, "sh", "-c", `trap 's=1; echo saving' TERM; trap 'echo asked' INT; echo up
		while :; do sleep 0.02; [ "$s" ] && [ -e "$0" ] && exit 0; done`, done)
	spec.Waits.Term, spec.Waits.Short = time.Minute, time.Millisecond
	a := start(t, spec, nil)
	a.says("up")
	c := a.dial(RoleSupervisor)
	if err := c.Floors(Floors{Options: &guard.Options{HardKiB: 1 << 40}}); err != nil {
		t.Fatal(err)
	}
	a.says("saving")
	if err := c.Stop("INT", time.Second); err != nil {
		t.Fatal(err)
	}
	a.says("asked")
	// A hundred times the wait of a second request.
	time.Sleep(100 * time.Millisecond)
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e := a.end()
	if e.Status() != 0 || e.Guard == nil || stopsOf(e) != "SIGTERM>tree SIGINT>fg" || strings.Count(string(a.log()), "saving") != 1 {
		t.Errorf("status %d guard %+v stops %q output %q", e.Status(), e.Guard, stopsOf(e), a.log())
	}
}

func TestBadGuardOptionsAreRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	spec := baseSpec(shortDir(t), "true")
	spec.Guard.OnCotenant = "ask"
	_, _, err := Start(self(t), spec, nil)
	var se *StartError
	if !errors.As(err, &se) || se.Stage != StageSpec || !strings.Contains(err.Error(), "ask") {
		t.Errorf("%v", err)
	}
}

// TestReactionOfTheGuard measures floor crossed -> signal sent over many fills:
// GUARD_FILLS=100 for the full count. An observer of its own reads MemAvailable
// every millisecond, so that the guard is not the only witness.
func TestReactionOfTheGuard(t *testing.T) {
	// Not parallel: the floors of other tests would be in the way, and they in that
	// of the reaction.
	n := 4
	if v, err := strconv.Atoi(os.Getenv("GUARD_FILLS")); err == nil && v > 0 {
		n = v
	}
	speeds := []string{"4000", "4000@2000", "4000@1000", "4000@4000"}
	var own, bound, seen []time.Duration
	least := uint64(1) << 60
	for i := range n {
		o := nearFloor(t)
		spec := fillSpec(t, o, speeds[i%len(speeds)])
		spec.Socket = ""
		w := watchFloor(t, o.HardKiB)
		a := start(t, spec, nil)
		select {
		case <-a.h.Wait():
		case <-time.After(20 * time.Second):
			info, _ := meminfo.Read("/")
			if avail, _ := info.Available(); avail < o.HardKiB || !strings.Contains(string(a.log()), "full") {
				t.Fatalf("fill %d (%s): %d KiB left, the floor is %d, and it lives: %q", i, speeds[i%len(speeds)], avail, o.HardKiB, a.log())
			}
			// Somebody gave back more than this fill takes.
			_ = a.h.Signal(unix.SIGTERM)
			a.end()
			w()
			continue
		}
		e := a.end()
		crossed, low := w()
		if e.Guard == nil {
			t.Fatalf("fill %d: not ended: %+v %q", i, e, a.log())
		}
		if low == 0 {
			t.Errorf("fill %d: nothing was left", i)
		}
		least = min(least, low)
		sent := e.Guard.Boot + time.Duration(e.Guard.ReactionUS)*time.Microsecond
		own = append(own, time.Duration(e.Guard.ReactionUS)*time.Microsecond)
		bound = append(bound, time.Duration(e.Guard.SinceAboveUS)*time.Microsecond)
		if crossed > 0 {
			seen = append(seen, sent-crossed)
		}
	}
	p := func(d []time.Duration, q float64) time.Duration {
		if len(d) == 0 {
			return 0
		}
		slices.Sort(d)
		return d[min(int(q*float64(len(d))), len(d)-1)]
	}
	t.Logf("%d fills: reading -> signal p50 %s p99 %s; last reading above -> signal p50 %s p99 %s; an observer's crossing -> signal (%d seen) p50 %s p99 %s; least MemAvailable %d MiB",
		n, p(own, .5), p(own, .99), p(bound, .5), p(bound, .99), len(seen), p(seen, .5), p(seen, .99), least>>10)
	if d := p(seen, .99); d > 250*time.Millisecond {
		t.Errorf("p99 of the reaction is %s", d)
	}
}

// watchFloor returns a function that ends the watch and says when MemAvailable
// was first seen below the floor (CLOCK_BOOTTIME, 0 for never), and its least.
func watchFloor(t testing.TB, floor uint64) func() (time.Duration, uint64) {
	t.Helper()
	r, err := meminfo.OpenReader("/")
	if err != nil {
		t.Fatal(err)
	}
	var crossed atomic.Int64
	low := uint64(1) << 60
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer r.Close()
		var f meminfo.Figures
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if !r.Read(&f) {
				continue
			}
			low = min(low, f.Available)
			if f.Available < floor && crossed.Load() == 0 {
				crossed.Store(int64(clock.Boottime()))
			}
		}
	}()
	return func() (time.Duration, uint64) {
		close(stop)
		<-done
		return time.Duration(crossed.Load()), low
	}
}
