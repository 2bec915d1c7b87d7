package guard

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/cores"
)

// opened is a guard that does not run: a test polls it.
func opened(t testing.TB, cfg Config) *Guard {
	t.Helper()
	g := newGuard(cfg)
	if err := g.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.scout.close()
		g.close()
		g.ring.free()
	})
	return g
}

// sleeper is a process to be ended.
func sleeper(t testing.TB) *os.Process {
	t.Helper()
	p := shell(t, "exec sleep 1000", nil)
	t.Cleanup(func() {
		_ = p.Kill()
		_, _ = p.Wait()
	})
	return p
}

func shell(t testing.TB, script string, files []*os.File) *os.Process {
	t.Helper()
	p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", script}, &os.ProcAttr{Files: files, Env: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// until polls for something that happens elsewhere.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// Not parallel: allocations of others would count.
func TestAPollAllocatesNothing(t *testing.T) {
	c := sleeper(t)
	g := opened(t, Config{Root: "/", Child: c.Pid})
	g.scout.look(boottime(), true, 0, -1, nil)
	at := boottime()
	for name, o := range map[string]Options{
		"plenty": {}, "low": {HardKiB: 1, SoftKiB: 1 << 60, LoadDropCaches: true},
		"tolerated, warned of": {HardKiB: 1 << 60, OnCotenant: CotenantWarn},
	} {
		g.opts.Store(&o)
		g.state = State{acted: doTerm} // SIGTERM is sent: only the time is judged
		if n := testing.AllocsPerRun(200, func() {
			// Faster than real time: every slow figure is read, every note due.
			at += 300 * time.Millisecond
			g.poll(at)
			for len(g.events) > 0 {
				<-g.events
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations in a poll", name, n)
		}
	}
}

func TestTheKillPathAllocatesNothing(t *testing.T) {
	c := sleeper(t)
	g := opened(t, Config{Root: "/", Child: c.Pid, Options: Options{HardKiB: 1 << 60, SoftKiB: 1 << 60}})
	g.scout.look(boottime(), true, 0, -1, nil)
	at := boottime()
	if n := testing.AllocsPerRun(100, func() {
		// From the start each time, so that each poll is the one that kills.
		g.state, g.actions = State{}, 0
		g.state.src[0].recent.add(at, 1<<50)
		at += 200 * time.Millisecond
		g.state.src[0].recent.add(at, 1<<50)
		at += 200 * time.Millisecond
		g.poll(at)
	}); n != 0 {
		t.Errorf("%v allocations in a poll that kills", n)
	}
	if ws, err := c.Wait(); err != nil || ws.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("%v %v", ws, err)
	}
	var kinds []string
	for len(g.events) > 0 {
		e := <-g.events
		kinds = append(kinds, e.Kind)
		if e.Kind == EventKill && (e.Action.Why != WhyHardFloor || e.Action.First != "SIGKILL" || e.Action.Source != SourceHost) {
			t.Errorf("%+v", e.Action)
		}
	}
	if !strings.Contains(strings.Join(kinds, " "), EventKill) {
		t.Errorf("events %v", kinds)
	}
}

func TestAGuardThatRuns(t *testing.T) {
	t.Parallel()
	c := sleeper(t)
	g := Start(Config{Child: c.Pid, Unprotected: true})
	until(t, "it knows the command", func() bool {
		return g.rest.Load() >= 0
	})
	if err := g.SetFloors(Floors{Phase: "sleep"}); err == nil {
		t.Error("it knows a phase that is none")
	}
	if err := g.SetFloors(Floors{Phase: PhaseRun, GPUTreeKiB: 3 << 20, GPUOtherKiB: -1}); err != nil {
		t.Fatal(err)
	}
	if err := g.SetFloors(Floors{Options: &Options{HardPct: 99}}); err == nil {
		t.Error("it took options that make no sense")
	}
	time.Sleep(600 * time.Millisecond) // a poll at the slowest rate
	if !g.Stop(5 * time.Second) {
		t.Fatal("it does not stop")
	}
	r := g.Report()
	if r.Polls < 2 || r.Phase != PhaseRun || len(r.Sources) == 0 || r.Sources[0].Name != SourceHost || r.Sources[0].LowestKiB == 0 || r.Error != "" {
		t.Errorf("%+v", r)
	}
	rows := g.Minute()
	if len(rows) != int(r.Polls) || rows[0].AvailKiB == Unknown || rows[0].At >= rows[len(rows)-1].At {
		t.Errorf("%d rows of %d polls", len(rows), r.Polls)
	}
	gpu := 0
	for _, s := range rows {
		if s.GPUTreeKiB == 3<<20 && s.GPUOtherKiB == Unknown {
			gpu++
		}
	}
	if gpu != 1 {
		t.Errorf("GPU figures stand in %d rows", gpu)
	}
	if unix.Kill(c.Pid, 0) != nil {
		t.Error("the command was ended")
	}
}

// Not parallel: the processors are those of the whole process.
func TestAGuardThatIsNeededHasAProcessorOfItsOwn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	cores.Rest(2)
	defer cores.Work()
	processors := func(n int) func() bool {
		return func() bool { return runtime.GOMAXPROCS(0) == n }
	}
	low, plenty := Options{HardKiB: 1, SoftKiB: 1 << 60}, Options{Off: true, HardKiB: 1, SoftKiB: 1}
	g := Start(Config{Child: sleeper(t).Pid, Unprotected: true, Options: plenty})
	time.Sleep(2 * maxPoll)
	if !processors(1)() {
		t.Error("a guard with plenty left keeps a second processor")
	}
	g.opts.Store(&low)
	until(t, "it has a processor while memory is low", processors(2))
	if !g.Stop(5 * time.Second) {
		t.Fatal("it does not stop")
	}
	if !processors(1)() {
		t.Error("the guard has ended, and the second processor is kept")
	}
}

func TestThePlentyThatFreesAProcessorLasts(t *testing.T) {
	t.Parallel()
	low, plenty := Options{HardKiB: 1, SoftKiB: 1 << 60}, Options{Off: true, HardKiB: 1, SoftKiB: 1}
	g := opened(t, Config{Root: "/", Child: sleeper(t).Pid, Options: plenty})
	at := time.Hour
	// said polls at once and says what that told.
	said := func(o *Options, later time.Duration) (s string) {
		g.opts.Store(o)
		at += later
		g.poll(at)
		select {
		case <-g.scarce:
			s += "scarce"
		default:
		}
		select {
		case <-g.enough:
			s += "enough"
		default:
		}
		return s
	}
	for i, step := range []struct {
		o     *Options
		later time.Duration
		want  string
	}{
		{&plenty, time.Second, ""},
		{&low, time.Second, "scarce"},
		{&low, time.Second, ""},
		{&plenty, 9 * time.Second, ""},
		{&low, time.Second, ""},
		{&plenty, 9 * time.Second, ""},
		{&plenty, time.Second, "enough"},
		{&plenty, time.Minute, ""},
		{&low, time.Second, "scarce"},
	} {
		if got := said(step.o, step.later); got != step.want {
			t.Errorf("step %d: it says %q, want %q", i, got, step.want)
		}
	}
}

func TestNoMemoryFiguresNoGuard(t *testing.T) {
	t.Parallel()
	g := Start(Config{Root: t.TempDir(), Child: 1, Unprotected: true})
	e := <-g.Events()
	if n := e.Text(); n == nil || n.Kind != NoteSource || !strings.Contains(n.Text, "cannot work") {
		t.Errorf("%+v", n)
	}
	if !g.Stop(time.Second) || g.Report().Error == "" || g.Minute() != nil {
		t.Error("a guard that read nothing has something to report")
	}
}

// slowEngine is a container engine that takes its time.
type slowEngine struct {
	mu     sync.Mutex
	kills  int
	closed int
	hold   chan struct{}
}

func (e *slowEngine) Kill() error {
	<-e.hold
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kills++
	return nil
}

func (e *slowEngine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed++
	return nil
}

func (e *slowEngine) count() (kills, closed int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.kills, e.closed
}

func TestAKillReachesTheContainerAndWaitsForNobody(t *testing.T) {
	t.Parallel()
	c := sleeper(t)
	// Everything this machine has is below the floor.
	e := &slowEngine{hold: make(chan struct{})}
	g := Start(Config{Child: c.Pid, Unprotected: true, Options: Options{Off: true}})
	old := &slowEngine{}
	g.SetContainer("old", old)
	g.SetContainer("0123456789abcdef", e)
	if _, closed := old.count(); closed != 1 {
		t.Error("the killer before it was not closed")
	}
	g.KillContainer()
	g.KillContainer()
	g.KillContainer() // nobody waits for an engine that hangs
	close(e.hold)
	until(t, "the engine was asked", func() bool { k, _ := e.count(); return k > 0 })
	if !g.Stop(5 * time.Second) {
		t.Fatal("it does not stop")
	}
	until(t, "the connection was closed", func() bool { _, c := e.count(); return c == 1 })
}

// TestAKillAskedForBeforeTheEndIsCarriedOut: the tree may be gone within
// milliseconds of the kill, and the holder with it.
func TestAKillAskedForBeforeTheEndIsCarriedOut(t *testing.T) {
	t.Parallel()
	c := sleeper(t)
	for i := range 30 { // a select between both chooses at random
		e := &slowEngine{hold: make(chan struct{})}
		close(e.hold)
		g := newGuard(Config{Child: c.Pid, Unprotected: true, Options: Options{Off: true}})
		g.SetContainer("0123456789abcdef", e)
		g.KillContainer()
		g.stop.Store(true)
		close(g.quit)
		_, _ = unix.Write(g.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		go g.main()
		if !g.Stop(10 * time.Second) {
			t.Fatal("it does not stop")
		}
		if kills, closed := e.count(); kills != 1 || closed != 1 {
			t.Fatalf("round %d: %d kills, closed %d times", i, kills, closed)
		}
	}
}

// TestAHangingEngineHoldsTheEndUpWithinItsLimit.
func TestAHangingEngineHoldsTheEndUpWithinItsLimit(t *testing.T) {
	t.Parallel()
	c := sleeper(t)
	e := &slowEngine{hold: make(chan struct{})}
	defer close(e.hold)
	g := Start(Config{Child: c.Pid, Unprotected: true, Options: Options{Off: true}})
	g.SetContainer("0123456789abcdef", e)
	g.KillContainer()
	if !g.Stop(2*time.Second) || g.Report().Polls == 0 {
		t.Error("the report of a guard is lost because of an engine")
	}
}

func TestTheTreeIsKnown(t *testing.T) {
	t.Parallel()
	// A shell that stays small, and a child of it that grows.
	in, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, say, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	g := opened(t, Config{Root: "/", Child: 1})
	g.scout.look(boottime(), true, 0, -1, nil)
	c := shell(t, `python3 -c 'import sys
b = b"x" * (80 << 20)
print("up", flush=True)
sys.stdin.read()'; :`, []*os.File{in, say, os.Stderr})
	say.Close()
	defer func() {
		hold.Close()
		_, _ = c.Wait()
	}()
	g.scout.child = c.Pid
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	g.scout.look(boottime(), true, 0, -1, nil)
	growth := g.scout.growth.Load()
	if growth.TreeKiB < 80*mib {
		t.Errorf("the tree grew %d KiB: %+v", growth.TreeKiB, growth)
	}
	// Other tests' processes are children of this one too while they are made.
	names := ""
	for _, f := range g.scout.procs {
		if f.tree && f.fd >= 0 {
			names += f.command() + " "
		}
	}
	if set := g.scout.set.Load(); set.n < 2 || !strings.Contains(names, "sh ") || !strings.Contains(names, "python3 ") {
		t.Errorf("%d processes can be ended: %s", set.n, names)
	}
	if rss := g.scout.treeRSS.Load(); rss < 80*mib {
		t.Errorf("the tree's resident memory is %d KiB", rss)
	}
	before := len(openFiles(t))
	for range 5 {
		g.scout.look(boottime(), true, 0, -1, nil)
	}
	if after := len(openFiles(t)); after > before+2 {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}

func openFiles(t *testing.T) []os.DirEntry {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestDropsEnd(t *testing.T) {
	t.Parallel()
	const total = 100 * gb
	const at = time.Hour
	for name, c := range map[string]struct {
		drops
		after time.Duration
		tree  uint64
		want  dropWhat
	}{
		"the first":                     {drops{}, 0, 0, dropNow},
		"too soon":                      {drops{n: 1, last: at, most: 1 * gb}, 29 * time.Second, 90 * gb, dropWait},
		"still loading":                 {drops{n: 1, last: at, most: 1 * gb}, 30 * time.Second, 2 * gb, dropNow},
		"not grown, not sure yet":       {drops{n: 1, last: at, most: 1 * gb}, 59 * time.Second, 2*gb - 1, dropWait},
		"not grown":                     {drops{n: 1, last: at, most: 1 * gb}, 60 * time.Second, 2*gb - 1, dropIdle},
		"smaller than it was":           {drops{n: 5, last: at, most: 60 * gb}, time.Hour, 20 * gb, dropIdle},
		"grows again after an hour":     {drops{n: 5, last: at, most: 60 * gb}, time.Hour, 61 * gb, dropNow},
		"unknown":                       {drops{n: 5, last: at, most: 60 * gb}, time.Hour, 0, dropNow},
		"the last one":                  {drops{n: 19, last: at, most: 60 * gb}, time.Hour, 90 * gb, dropNow},
		"enough":                        {drops{n: 20, last: at, most: 60 * gb}, time.Hour, 90 * gb, dropSpent},
		"enough, although unknown":      {drops{n: 20, last: at}, time.Hour, 0, dropSpent},
		"could not be done, tried anew": {drops{last: at}, time.Hour, 5 * gb, dropNow},
	} {
		if got := c.next(at+c.after, c.tree, total); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	// A job whose steps nobody recognises swings for a night.
	var d drops
	n := 0
	for sec := range 8 * 3600 {
		at, tree := time.Duration(sec+1)*time.Second, uint64(50*gb+sec%7*2*gb)
		if d.next(at, tree, total) == dropNow {
			d.last = at
			d.done(tree)
			n++
		}
	}
	if n < 1 || n > 10 {
		t.Errorf("%d drops in a night of training", n)
	}
}

func TestLoadDropCaches(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("proc/meminfo", "MemTotal: 127600512 kB\nMemFree: 4000000 kB\nMemAvailable: 90000000 kB\n")
	d := newDropper(root)
	n, did := d.run(time.Hour, 0)
	if !did || !strings.Contains(n.Text, "cannot be dropped") {
		t.Errorf("without the file: %v %+v", did, n)
	}
	if _, did := d.run(2*time.Hour, 0); did {
		t.Error("that it cannot is told twice")
	}
	put("proc/sys/vm/drop_caches", "0")
	put("proc/sys/vm/compact_memory", "")
	n, did = d.run(3*time.Hour, 20*gb)
	b, _ := os.ReadFile(filepath.Join(root, "proc/sys/vm/drop_caches"))
	c, _ := os.ReadFile(filepath.Join(root, "proc/sys/vm/compact_memory"))
	if !did || string(b) != "1" || string(c) != "1" || n.Data["compacted"] != true || n.Data["gained_kib"] != int64(0) {
		t.Errorf("%v %+v %q %q", did, n, b, c)
	}
	if _, did := d.run(3*time.Hour+29*time.Second, 40*gb); did {
		t.Error("dropped twice within half a minute")
	}
	if n, did := d.run(4*time.Hour, 20*gb); !did || !strings.Contains(n.Text, "has not grown") {
		t.Errorf("nothing is loaded: %v %+v", did, n)
	}
	if _, did := d.run(5*time.Hour, 20*gb); did {
		t.Error("that nothing is loaded is told twice")
	}
	d.n = maxDrops
	if n, did := d.run(6*time.Hour, 90*gb); !did || !strings.Contains(n.Text, "20 times") {
		t.Errorf("there were enough: %v %+v", did, n)
	}
	if _, did := d.run(7*time.Hour, 90*gb); did {
		t.Error("that there were enough is told twice")
	}

	g := opened(t, Config{Root: root, Child: 1, Options: Options{LoadDropCaches: true}})
	g.poll(time.Hour)
	select {
	case <-g.drop:
	default:
		t.Error("MemFree is low while the model loads, and no drop is wanted")
	}
	g.run.Store(true)
	g.poll(time.Hour + time.Second)
	select {
	case <-g.drop:
		t.Error("a drop after the first step")
	default:
	}
	put("proc/meminfo", "MemTotal: 127600512 kB\nMemFree: 4000000 kB\nMemAvailable: 5000000 kB\n")
	g.run.Store(false)
	g.poll(time.Hour + 2*time.Second)
	select {
	case <-g.drop:
		t.Error("a drop would give nothing here")
	default:
	}
}

func BenchmarkPoll(b *testing.B) {
	g := opened(b, Config{Root: "/", Child: os.Getpid(), Options: Options{Off: true}})
	g.scout.look(boottime(), true, 0, -1, nil)
	at := boottime()
	b.ReportAllocs()
	for b.Loop() {
		at += 20 * time.Millisecond
		g.poll(at)
	}
}

func BenchmarkLook(b *testing.B) {
	g := opened(b, Config{Root: "/", Child: os.Getpid(), Options: Options{Off: true}})
	g.scout.look(boottime(), true, 0, -1, nil)
	at := boottime()
	b.ReportAllocs()
	for b.Loop() {
		at += 5 * time.Second
		g.scout.look(at, false, 0, -1, nil)
	}
}
