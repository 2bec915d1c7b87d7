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
func guardSeesSomebodyElse(t *testing.T) {
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
			t.Errorf("%s: %+v", on, g)
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
}

// limited makes a memory cgroup, v1 or v2.
func limited(t *testing.T, mib int) string {
	t.Helper()
	name := fmt.Sprintf("guardtest-%d-%s", os.Getpid(), strings.ToLower(filepath.Base(t.Name())))
	dir, file := filepath.Join("/sys/fs/cgroup", name), "memory.max"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		dir, file = filepath.Join("/sys/fs/cgroup/memory", name), "memory.limit_in_bytes"
	} else if b, _ := os.ReadFile("/sys/fs/cgroup/cgroup.subtree_control"); !strings.Contains(string(b), "memory") {
		t.Skip("no memory cgroup can be made here")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("a memory cgroup needs root: %v", err)
	}
	t.Cleanup(func() {
		until(t, "the cgroup can be removed", func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(mib<<20)), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAMemoryLimitIsJudgedByItself: three percent of 1 GiB, not of the machine.
func TestAMemoryLimitIsJudgedByItself(t *testing.T) {
	t.Parallel()
	dir := limited(t, 1024)
	usage := filepath.Join(dir, "memory.current")
	if _, err := os.Stat(usage); err != nil {
		usage = filepath.Join(dir, "memory.usage_in_bytes")
	}
	var a *attempt
	unhurried(t, func() string {
		spec := fillSpec(t, guard.Options{}, "deaf", "until:"+usage+":990", "60@2.5")
		spec.Cgroup = dir
		spec.Waits.Term = time.Hour // what ends it is the guard
		a = start(t, spec, nil)
		e := a.end()
		g := e.Guard
		if g == nil || g.Source != dir || g.TotalKiB != 1<<20 || g.FloorKiB != 1<<20*3/100 {
			t.Fatalf("guard %+v signal %s output %q", g, e.Signal, a.log())
		}
		// Slow enough for a SIGTERM; it is not obeyed, and half the floor is the end.
		if g.First != "SIGTERM" || stopsOf(e) != "SIGTERM>tree SIGKILL>tree" {
			return fmt.Sprintf("first %s stops %q: %+v", g.First, stopsOf(e), g)
		}
		return ""
	})
	rows := readBlackbox(t, a.dir)
	if used := column(t, rows[len(rows)-1], "cgroup_current_kib"); used > 1<<20 {
		t.Errorf("%v KiB used of 1 GiB", used)
	}
}

// TestGrowingPeaksInAMemoryLimit: each step takes more than any before, and gives
// it back.
func TestGrowingPeaksInAMemoryLimit(t *testing.T) {
	t.Parallel()
	dir := limited(t, 1000)
	spec := fillSpec(t, guard.Options{SoftPct: 30}, "700", "burst:80", "burst:100", "burst:100", "burst:150", "burst:150", "burst:180", "burst:200", "burst:230")
	spec.Cgroup = dir
	a := start(t, spec, nil)
	c := a.dial(RoleSupervisor)
	if err := c.Floors(Floors{Phase: guard.PhaseRun}); err != nil {
		t.Fatal(err)
	}
	a.says("full")
	if err := c.Stop("KILL", 0); err != nil {
		t.Fatal(err)
	}
	e := a.end()
	if r := readGuard(t, a.dir); e.Guard != nil || r.Action != nil || r.Phase != guard.PhaseRun {
		t.Errorf("guard %+v, phase %s", r.Action, r.Phase)
	}
}

// TestStepsInAMemoryLimitGetASIGTERM: 37 MiB/s in steps, six seconds from half the
// floor.
func TestStepsInAMemoryLimitGetASIGTERM(t *testing.T) {
	t.Parallel()
	dir := limited(t, 1024)
	// Well above the floor at first, also with what the race detector takes: the fill
	// itself is no slow step.
	args := []string{"350"}
	for range 30 {
		args = append(args, "step:15:400")
	}
	unhurried(t, func() string {
		spec := fillSpec(t, guard.Options{HardPct: 45, SoftPct: 50}, args...)
		spec.Cgroup = dir
		e := start(t, spec, nil).end()
		if e.Guard == nil || e.Guard.Host() {
			t.Fatalf("guard %+v signal %s", e.Guard, e.Signal)
		}
		if e.Guard.First != "SIGTERM" || stopsOf(e) != "SIGTERM>tree" || e.Signal != "SIGTERM" {
			return fmt.Sprintf("guard %+v stops %q signal %s", e.Guard, stopsOf(e), e.Signal)
		}
		return ""
	})
}

// unhurried gives what rests on the speed of a fill three tries: on a machine with more
// to do than it can, the steps of a slow fill come in one go, and that is no slow fill.
func unhurried(t *testing.T, try func() (wrong string)) {
	t.Helper()
	for n := 1; ; n++ {
		wrong := try()
		if wrong == "" {
			return
		}
		if n == 3 {
			t.Error(wrong)
			return
		}
		t.Logf("once more: %s", wrong)
	}
}

func TestPageCacheInAMemoryLimitIsNoDanger(t *testing.T) {
	t.Parallel()
	dir := limited(t, 64)
	data := t.TempDir()
	// Twice: what is read again becomes active, and is still only cache.
	spec := baseSpec(shortDir(t), "sh", "-c", fmt.Sprintf("dd if=/dev/zero of=%s/f bs=1M count=150 2>/dev/null; sync; cat %[1]s/f %[1]s/f %[1]s/f >/dev/null; echo done", data))
	spec.Cgroup = dir
	a := start(t, spec, nil)
	e := a.end()
	if e.Guard != nil || e.Status() != 0 {
		t.Errorf("guard %+v status %d", e.Guard, e.Status())
	}
	if _, err := os.Stat(filepath.Join(a.dir, blackboxName)); !notExist(err) {
		t.Error("a success has a black box")
	}
	if r := readGuard(t, a.dir); len(r.Sources) < 2 || r.Sources[1].Name != dir {
		t.Errorf("the limit was not watched: %+v", r.Sources)
	}
}

func TestEveryDeathHasABlackBox(t *testing.T) {
	t.Parallel()
	for script, black := range map[string]bool{"exit 0": false, "exit 3": true, "kill -SEGV $$": true} {
		a, e := runSh(t, script, func(s *Spec) { s.Guard.Off = true })
		_, err := os.Stat(filepath.Join(a.dir, blackboxName))
		if black != (err == nil) || e.Guard != nil {
			t.Errorf("%s: %v", script, err)
		}
		if left, _ := filepath.Glob(filepath.Join(a.dir, "*.tmp")); len(left) > 0 {
			t.Errorf("%s left %v", script, left)
		}
	}
}

func TestAPlaceThatRefusesIsLeftClean(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "is-file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if saveBeside(filepath.Join(dir, "is-file"), "x", []byte("y")) == nil || saveBeside(dir, "a/b", []byte("y")) == nil {
		t.Error("no error")
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
}

// What cannot be kept is told in exit.json.
func TestLostFilesOfTheGuardAreTold(t *testing.T) {
	t.Parallel()
	for name, in := range map[string][]string{"none": nil, "one": {guardName}, "both": {guardName, blackboxName}} {
		a, e := runSh(t, "exit 3", func(s *Spec) {
			for _, n := range in {
				// In their place is what no file can be moved to.
				if err := os.MkdirAll(filepath.Join(s.Dir, n, "x"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
		})
		if len(e.Notes) != len(in) {
			t.Errorf("%s: notes %q", name, e.Notes)
			continue
		}
		for i, n := range in {
			if !strings.HasPrefix(e.Notes[i], n) || !strings.Contains(e.Notes[i], "could not be written") {
				t.Errorf("%s: notes %q", name, e.Notes)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(a.dir, "*.tmp")); len(left) > 0 {
			t.Errorf("%s left %v", name, left)
		}
	}
	var e Exit
	for range 100 {
		e.lost("%s", strings.Repeat("\u00e4", 1000))
	}
	if len(e.Notes) != maxNoted || len(e.Notes[0]) > maxNote {
		t.Errorf("%d notes of %d bytes", len(e.Notes), len(e.Notes[0]))
	}
}

// fillDisk leaves nothing free.
func fillDisk(t *testing.T, disk string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(disk, "ballast"), make([]byte, 16<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling: %v", err)
	}
}

// On a full disk the reserve is given up for what the guard knows, and room is
// left for what comes after it.
func TestAFullDiskKeepsWhatTheGuardKnows(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "4m")
	spec := baseSpec(disk, "sh", "-c", "echo up; exit 3")
	spec.PTY, spec.Stdin, spec.Reserve, spec.MinFree = false, StdinNull, filepath.Join(disk, "reserve"), 0
	if err := os.WriteFile(spec.Reserve, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	fillDisk(t, disk)
	a := start(t, spec, nil)
	e := a.end()
	readBlackbox(t, a.dir)
	if r := readGuard(t, a.dir); r.Polls == 0 || len(e.Notes) > 0 || string(a.log()) != "up\n" {
		t.Errorf("%d looks, notes %q, output %q", r.Polls, e.Notes, a.log())
	}
}

func TestABlackBoxIsShortenedToWhatFits(t *testing.T) {
	t.Parallel()
	minute := make([]guard.Sample, 20000) // 1 MiB and more
	for i := range minute {
		minute[i].At, minute[i].AvailKiB = time.Duration(i)*time.Millisecond, uint64(1e9+i)
	}
	for name, c := range map[string]struct {
		reserve bool
		free    int // bytes
		rows    bool
		all     bool
	}{
		"the disk is full":           {false, 0, false, false},
		"only the last room is left": {false, 500 << 10, false, false},
		"some room":                  {false, 700 << 10, true, false},
		"the reserve":                {true, 0, true, false},
		"plenty":                     {true, 7 << 20, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := smallDisk(t, "8m")
			spec := baseSpec(disk, "true")
			if c.reserve {
				spec.Reserve = filepath.Join(disk, "reserve")
				if err := os.WriteFile(spec.Reserve, make([]byte, 1<<20), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			fillDisk(t, disk)
			st, err := os.Stat(filepath.Join(disk, "ballast"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(filepath.Join(disk, "ballast"), max(st.Size()-int64(c.free), 0)); err != nil {
				t.Fatal(err)
			}
			before := roomFor(disk)
			note := saveMinute(spec, minute)
			if (note == "") != c.all || c.rows && !c.all && !strings.Contains(note, "holds only the newest") || !c.rows && !strings.Contains(note, "could not be written") {
				t.Errorf("note %q", note)
			}
			if left, _ := filepath.Glob(filepath.Join(disk, "*.tmp")); len(left) > 0 {
				t.Errorf("left %v", left)
			}
			if !c.rows {
				if _, err := os.Stat(filepath.Join(disk, blackboxName)); !notExist(err) {
					t.Errorf("%v, with room for %d", err, before)
				}
				return
			}
			rows := readBlackbox(t, disk)
			if last := column(t, rows[len(rows)-1], "mem_available_kib"); last != 1e9+19999 {
				t.Errorf("the newest row is %v", last)
			}
			if first := column(t, rows[0], "mem_available_kib"); first != 1e9+20000-float64(len(rows)) || (len(rows) == 20000) != c.all {
				t.Errorf("%d rows from %v", len(rows), first)
			}
			var fs unix.Statfs_t
			if err := unix.Statfs(disk, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < lastRoom {
				t.Errorf("%d KiB left, %v", fs.Bavail*uint64(fs.Bsize)>>10, err)
			}
		})
	}
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
