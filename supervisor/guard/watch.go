package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/alarm"
	"sparkrun/internal/clock"
	"sparkrun/internal/cores"
)

const (
	// lateBy is how much later than planned a poll must come to count as late.
	lateBy = 20 * time.Millisecond
	// room is how many events may wait before notes are dropped, so that there
	// is always place for an Action.
	room = 48
	// plentyFor is how long there must have been plenty until the guard may wait for
	// others of its process again.
	plentyFor = 10 * time.Second
)

// boottime is CLOCK_BOOTTIME.
func boottime() time.Duration {
	var ts unix.Timespec
	// The call cannot fail with a valid clock.
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}

// main is the guard's thread.
func (g *Guard) main() {
	defer close(g.done)
	// A thread of its own has a priority of its own, and the kernel wakes it
	// without asking the runtime's scheduler.
	runtime.LockOSThread()
	go g.endContainers()
	if err := g.open(); err != nil {
		g.failed = err
		g.tell(Note{Kind: NoteSource, Text: "the memory guard cannot work: " + err.Error()})
		return
	}
	defer g.close()
	if !g.cfg.Unprotected {
		g.protected.Nice = raisePriority()
	}
	// The first reading comes before everything that takes time: a command that
	// takes memory as fast as it can is faster than the preparations.
	wait := g.poll(boottime())
	var helpers sync.WaitGroup
	defer helpers.Wait()
	helpers.Go(g.lookAround)
	helpers.Go(g.shield)
	helpers.Go(g.alertCores)
	go g.dropCaches()
	g.calm = alarm.New()
	defer g.calm.Stop()
	for g.sleep(wait) {
		wait = g.poll(boottime())
	}
}

// alertCores gives the guard's thread a processor of its own while there is not plenty. It
// is a goroutine of its own, since the runtime first ends a collection.
func (g *Guard) alertCores() {
	defer cores.Alert(false)
	for {
		select {
		case <-g.quit:
			return
		case <-g.scarce:
			cores.Alert(true)
		case <-g.enough:
			cores.Alert(false)
		}
	}
}

// sleep waits for the next look, and is false when there is to be none. With plenty left
// the runtime wakes the guard: it may come late by what a busy scheduler takes, and costs a
// fraction of a thread that sleeps in the kernel, for which the runtime itself wakes dozens
// of times to see whether its processor is needed. Where less is left the kernel wakes this
// thread, and nobody is asked.
func (g *Guard) sleep(wait time.Duration) bool {
	if wait < maxPoll {
		fds := []unix.PollFd{{Fd: int32(g.wake), Events: unix.POLLIN}}
		// Negative descriptors are passed over, and the time still counts.
		_, _ = unix.Poll(fds, int(wait/time.Millisecond))
		return !g.stop.Load()
	}
	g.calm.Reset(clock.Beat(wait))
	select {
	case <-g.quit:
		return false
	case <-g.calm.C:
		return true
	}
}

// shield makes this process hard to stop, and goes the way of a kill once
// without ending anything, so that its code is in memory and locked there.
func (g *Guard) shield() {
	g.kill.signal(0)
	if g.cfg.Unprotected {
		return
	}
	nice := g.protected.Nice
	g.protected = protect()
	g.protected.Nice = nice
	if !g.protected.Locked {
		g.tell(Note{Kind: NoteMlock, Text: "the guard's memory is not locked: " + g.protected.LockError})
	}
}

// open opens all that a poll reads and a kill writes.
func (g *Guard) open() error {
	var err error
	var notes []string
	if g.ring, err = newRing(); err != nil {
		return err
	}
	if g.src, notes, err = openSources(g.cfg.Root, g.cfg.Child); err != nil {
		g.ring.free()
		return err
	}
	for _, n := range notes {
		g.tell(Note{Kind: NoteSource, Text: n})
	}
	proc, err := openProcfs(filepath.Clean(g.cfg.Root))
	if err != nil {
		g.src.close()
		g.ring.free()
		return fmt.Errorf("opening /proc: %w", err)
	}
	var paths []string
	for _, l := range g.src.limits {
		paths = append(paths, l.path)
	}
	g.scout = newScout(proc, os.Getpid(), g.cfg.Child, paths)
	g.kill = newKiller(g.cfg.CgroupKill, &g.scout.set, g.killContainer)
	return nil
}

func (g *Guard) close() {
	g.src.close()
	g.kill.close()
	if g.wake >= 0 {
		unix.Close(g.wake)
	}
}

// poll is one reading and what follows from it; it returns the time until the
// next. It does not allocate.
func (g *Guard) poll(at time.Duration) time.Duration {
	opts := g.opts.Load()
	if !g.src.read(at, &g.reading, &g.row) && !g.blind {
		g.blind = true
		g.tell(Note{Kind: NoteSource, Text: "the machine's memory figures can no longer be read: the guard is blind to it"})
	}
	g.reading.Run = g.run.Load()
	if growth := g.scout.growth.Load(); growth != nil {
		g.reading.Growth = *growth
	}
	var d Decision
	g.state, d = Policy{*opts}.Next(g.state, g.reading)
	if d.do != doNothing {
		g.act(&d, at)
	}
	g.record(at)
	for i, tell := range d.Tell {
		if tell != 0 {
			g.say(i, tell, opts, at)
		}
	}
	g.want(opts, &d, at)
	g.polls++
	g.slowest = max(g.slowest, boottime()-at)
	g.lastPoll, g.planned = at, d.Wait
	g.plenty.Store(d.Wait == maxPoll)
	switch {
	case d.Wait < maxPoll:
		if g.scarceAt == 0 {
			poke(g.scarce)
		}
		g.scarceAt = at
	case g.scarceAt != 0 && at-g.scarceAt >= plentyFor:
		g.scarceAt = 0
		poke(g.enough)
	}
	return d.Wait
}

// act does what was decided. Between the reading and the signal nothing is
// allocated and nobody waited for.
func (g *Guard) act(d *Decision, at time.Duration) {
	if d.do == doKill {
		g.kill.kill()
		if d.Again {
			return
		}
	}
	sent := boottime()
	if g.actions == len(g.action) {
		return
	}
	a := &g.action[g.actions]
	g.actions++
	growth := &g.reading.Growth
	*a = Action{
		Boot: at, Why: d.Why, Source: g.src.name(d.Source),
		AvailKiB: d.Avail, FloorKiB: d.Floor, TotalKiB: d.Total, SlopeKiBs: d.Slope, LeftS: d.Left,
		TreeGrewKiB: growth.TreeKiB, Outsider: growth.Name, OutsiderPID: growth.PID, OutsiderGrewKiB: growth.OutsiderKiB,
		CoTenant: d.CoTenant, ReactionUS: (sent - at).Microseconds(), SinceAboveUS: (sent - d.Since).Microseconds(),
	}
	e := Event{Action: a}
	switch d.do {
	case doWarn:
		a.Warned = true
		e.Kind = EventWarn
	case doTerm:
		a.First = "SIGTERM"
		e.Kind = EventTerm
	default:
		a.First = "SIGKILL"
		e.Kind = EventKill
	}
	select {
	case g.events <- e:
	default:
	}
}

// record adds the reading to the last minute.
func (g *Guard) record(at time.Duration) {
	if rss := g.scout.treeRSS.Swap(0); rss > 0 {
		g.row.TreeRSSKiB = rss - 1
	}
	if g.gpuFresh.Swap(false) {
		if gpu := g.gpu.Load(); gpu != nil {
			g.row.GPUTreeKiB, g.row.GPUOtherKiB = known(gpu.GPUTreeKiB), known(gpu.GPUOtherKiB)
		}
	}
	if late := at - g.lastPoll - g.planned; g.polls > 0 && late > lateBy {
		g.late++
		g.row.Missed = uint64(late / g.planned)
	}
	g.ring.add(&g.row)
	for i := range g.reading.Levels {
		if l := &g.reading.Levels[i]; l.OK && (!g.low[i].OK || l.AvailKiB < g.low[i].AvailKiB) {
			g.low[i], g.lowAt[i] = *l, at
		}
	}
	if host := &g.reading.Levels[0]; host.OK {
		g.avail.Store(host.AvailKiB)
	}
	if v, ok := g.src.fig.Unaccounted(); ok {
		g.rest.Store(int64(v))
	}
}

func known(kib int64) uint64 {
	if kib < 0 {
		return unknown
	}
	return uint64(kib)
}

// say passes a note on source i on in numbers. Its floor is the one that an
// Action would name.
func (g *Guard) say(i int, tell told, opts *Options, at time.Duration) {
	if opts.Off {
		// No floor means anything then; that memory is low still does.
		if tell &= tellNear; tell == 0 {
			return
		}
	}
	l := g.reading.Levels[i]
	hard, soft := opts.floors(i == 0, l.TotalKiB)
	if g.state.src[i].lowered {
		hard /= 2
	}
	g.send(Event{Kind: EventNote, raw: raw{
		told: tell, at: at, source: g.src.name(i), avail: l.AvailKiB, total: l.TotalKiB, hard: hard, soft: soft,
		off: opts.Off,
	}})
}

// tell passes on a note that has words already.
func (g *Guard) tell(n Note) {
	n.Boot = boottime()
	g.send(Event{Kind: EventNote, Note: &n})
}

func (g *Guard) send(e Event) {
	if len(g.events) >= room {
		return
	}
	select {
	case g.events <- e:
	default:
	}
}

// want wakes those who work beside the guard when a reading gives reason to.
func (g *Guard) want(opts *Options, d *Decision, at time.Duration) {
	host := g.reading.Levels[0]
	if !host.OK {
		return
	}
	// A fall into the unknown is looked at closely; a job that swings with
	// every step is not looked at every time.
	step := host.TotalKiB / 100
	if _, soft := opts.floors(true, host.TotalKiB); host.AvailKiB < soft {
		step /= 4
	}
	deeper := host.AvailKiB+step < g.deepest
	every := scanSlow
	if deeper {
		every = scanSoon
	}
	moved := max(host.AvailKiB, g.kicked)-min(host.AvailKiB, g.kicked) > step
	if since := at - g.kickedAt; d.Wait < maxPoll && moved && since >= every {
		if deeper || since > minute {
			g.deepest = host.AvailKiB
		}
		g.kickedAt, g.kicked = at, host.AvailKiB
		poke(g.kick)
	}
	if opts.LoadDropCaches && !g.reading.Run {
		if _, soft := opts.floors(true, host.TotalKiB); wanted(&g.src.fig, soft) {
			poke(g.drop)
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// lookAround looks at the process table now and then, and sooner when memory
// moves.
func (g *Guard) lookAround() {
	defer g.scout.close()
	container := ""
	timer := alarm.After(0)
	defer timer.Stop()
	for {
		everybody := false
		select {
		case <-g.quit:
			return
		case <-g.kick:
			everybody = true
		case <-timer.C:
		}
		g.container.Lock()
		id := g.container.id
		g.container.Unlock()
		if id != container {
			container, everybody = id, true
			g.scout.isContainer(id)
		}
		at := boottime()
		g.scout.look(at, everybody, g.avail.Load(), g.rest.Load(), g.gpu.Load())
		share := time.Duration(scanShare)
		if g.plenty.Load() {
			share = plentyShare
		}
		timer.Reset(min(max(share*(boottime()-at), scanEvery), scanMost))
	}
}

// dropCaches drops the page cache when it is wanted.
func (g *Guard) dropCaches() {
	d := newDropper(g.cfg.Root)
	for {
		select {
		case <-g.quit:
			return
		case <-g.drop:
		}
		if n, did := d.run(boottime(), g.scout.holds.Load()); did {
			g.tell(n)
		}
	}
}

// endContainers talks to the container engine, so that nobody else has to wait
// for it.
func (g *Guard) endContainers() {
	defer close(g.ended)
	defer func() {
		g.container.Lock()
		defer g.container.Unlock()
		if g.container.killer != nil {
			g.container.killer.Close()
			g.container.killer = nil
		}
	}()
	for {
		select {
		case <-g.killContainer:
			g.endContainer()
			continue
		case <-g.quit:
		}
		// The guard's thread may be sending its last kill, and one that was asked
		// for before the end is carried out whichever of both was seen first.
		select {
		case <-g.done:
		case <-time.After(time.Second):
		}
		select {
		case <-g.killContainer:
			g.endContainer()
		default:
		}
		return
	}
}

func (g *Guard) endContainer() {
	g.container.Lock()
	k := g.container.killer
	g.container.Unlock()
	if k == nil {
		return
	}
	if err := k.Kill(); err != nil {
		g.tell(Note{Kind: NoteSource, Text: "ending the container: " + err.Error()})
	}
}
