package guard

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/alarm"
)

// Config is what a guard needs to know about its attempt.
type Config struct {
	// Root is "/" ("" too); tests give a tree of files.
	Root string
	// Child is the command's pid. It must exist already.
	Child int
	// CgroupKill is the cgroup.kill file of a cgroup that is the job's own, ""
	// for none.
	CgroupKill string
	Options    Options
	// Unprotected leaves memory locking, the OOM score and priorities alone,
	// for a guard inside a process that is not a holder.
	Unprotected bool
}

// What an Event is about.
const (
	// EventNote carries something worth telling.
	EventNote = "note"
	// EventWarn carries an Action that ended nothing.
	EventWarn = "warn"
	// EventTerm asks for SIGTERM to the whole tree and for its end.
	EventTerm = "term"
	// EventKill says that the known tree has been sent SIGKILL, and asks for
	// the rest of it to be looked up and ended.
	EventKill = "kill"
)

// Event is something a guard did or found, for its holder.
type Event struct {
	Kind string
	// Action is set with EventWarn, EventTerm and EventKill. Its T is empty: the
	// way to the signal writes no text.
	Action *Action
	// Note is set with EventNote.
	Note *Note
	raw  raw
}

// gpuStep is a change of others' GPU memory, in KiB, that is worth a look.
const gpuStep = 1 << 20

// Guard watches one attempt.
type Guard struct {
	cfg    Config
	events chan Event
	wake   int // eventfd that ends the wait between two polls
	done   chan struct{}
	ended  chan struct{} // the container engine has been told what it was to be
	stop   atomic.Bool
	quit   chan struct{}
	// scarce and enough say that there is no longer plenty, and that there is again.
	scarce, enough chan struct{}
	kick           chan struct{} // a look at the process table is wanted
	drop           chan struct{} // a drop of the page cache is wanted
	// killContainer wakes the goroutine that talks to the container engine.
	killContainer chan struct{}

	opts      atomic.Pointer[Options]
	run       atomic.Bool
	gpu       atomic.Pointer[Floors]
	gpuFresh  atomic.Bool
	avail     atomic.Uint64
	plenty    atomic.Bool  // nothing can happen before the longest wait is over
	rest      atomic.Int64 // unaccounted memory in KiB, -1 for unknown
	protected Protection
	container struct {
		sync.Mutex
		id     string
		killer ContainerKiller
	}

	// Of the guard's thread, and of Report once it has ended.
	src      *sources
	ring     *ring
	kill     *killer
	scout    *scout
	state    State
	reading  Reading
	row      Sample
	action   [4]Action
	actions  int
	polls    int64
	late     int64
	slowest  time.Duration
	low      [maxSources]Level
	lowAt    [maxSources]time.Duration
	blind    bool
	kickedAt time.Duration
	kicked   uint64 // MemAvailable then
	deepest  uint64 // the least of it within about a minute
	lastPoll time.Duration
	planned  time.Duration
	scarceAt time.Duration // when there was last less than plenty, 0 for long ago
	calm     *alarm.Timer  // wakes the thread while there is plenty
	failed   error
}

// Start begins to watch. It never fails: what is missing is told as a note, and
// in the end by Report.
func Start(cfg Config) *Guard {
	g := newGuard(cfg)
	go g.main()
	return g
}

func newGuard(cfg Config) *Guard {
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	g := &Guard{
		cfg: cfg, events: make(chan Event, 64), done: make(chan struct{}), ended: make(chan struct{}),
		quit: make(chan struct{}), kick: make(chan struct{}, 1), drop: make(chan struct{}, 1),
		scarce: make(chan struct{}, 1), enough: make(chan struct{}, 1),
		killContainer: make(chan struct{}, 1), wake: -1, deepest: unknown,
	}
	g.opts.Store(&cfg.Options)
	g.rest.Store(-1)
	if fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		g.wake = fd
	}
	return g
}

// Events are what the guard did and found. They are never closed.
func (g *Guard) Events() <-chan Event { return g.events }

// SetFloors takes what the supervisor knows.
func (g *Guard) SetFloors(f Floors) error {
	switch f.Phase {
	case PhaseRun:
		g.run.Store(true)
	case PhaseLoad:
		g.run.Store(false)
	case "":
	default:
		return fmt.Errorf("the guard knows no phase %q: give load or run", f.Phase)
	}
	if f.Options != nil {
		if err := f.Options.Check(); err != nil {
			return err
		}
		o := *f.Options
		g.opts.Store(&o)
	}
	// A message about the phase alone has two zeros here.
	if f.GPUTreeKiB != 0 || f.GPUOtherKiB != 0 || f.GPUOtherName != "" {
		old := g.gpu.Swap(&f)
		g.gpuFresh.Store(true)
		// Who takes memory on the GPU is seen nowhere else.
		if old == nil || max(old.GPUOtherKiB, f.GPUOtherKiB)-min(old.GPUOtherKiB, f.GPUOtherKiB) > gpuStep {
			poke(g.kick)
		}
	}
	return nil
}

// SetContainer makes a container part of the tree: its processes count as ours,
// and every kill ends it too. id is the container's, or "pid/PID/START" for a
// process in one and all below it; any other word ("exec/ID") names no
// processes. The guard closes k in the end.
func (g *Guard) SetContainer(id string, k ContainerKiller) {
	g.container.Lock()
	old := g.container.killer
	g.container.id, g.container.killer = id, k
	g.container.Unlock()
	if old != nil {
		old.Close()
	}
}

// KillContainer ends the container, if there is one. It never waits.
func (g *Guard) KillContainer() {
	select {
	case g.killContainer <- struct{}{}:
	default:
	}
}

// Stop ends the watch. After it has returned true, Report and Minute may be
// called; false means that the guard's thread is stuck in the kernel. A container
// that is being ended is waited for within limit: the engine would not hear of it
// from a process that is gone.
func (g *Guard) Stop(limit time.Duration) bool {
	if !g.stop.Swap(true) {
		close(g.quit)
		if g.wake >= 0 {
			_, _ = unix.Write(g.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-g.done:
	case <-late.C:
		return false
	}
	select {
	case <-g.ended:
	case <-late.C:
	}
	return true
}
