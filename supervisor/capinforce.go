package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/alarm"
	"sparkrun/internal/clock"
	"sparkrun/supervisor/acting"
)

// Caps of the clock that runs of sparkrun have set are looked for by every run, and not
// told to the one that sets it alone: a second run beside it, and one after a crash whose
// cap could not be lifted, see the same slow clocks.

// capsEvery is how often the leases are looked at: well within the minute that the wedge
// takes to be one. capsMost bounds a look before an end is decided.
const (
	capsEvery = 2 * time.Second
	capsMost  = 2 * time.Second
)

// capsInForce is what the leases said last.
type capsInForce struct {
	looking sync.Mutex // so that an older look never comes after a newer one
	mhz     atomic.Int64
}

// clockFolder is where this run's state has the leases of clock caps.
func (r *run) clockFolder() clockFolder {
	return clockFolder{filepath.Join(r.stateDir(), clocksDir)}
}

// followCaps looks at the leases for as long as the run lives.
func (r *run) followCaps(life context.Context) {
	tick := alarm.New()
	defer tick.Stop()
	for {
		r.lookCaps()
		tick.Reset(clock.Beat(capsEvery))
		select {
		case <-life.Done():
			return
		case <-tick.C:
		}
	}
}

// lookCaps tells the detector the cap that is in force: slow clocks are no wedge then. It
// reads the disk.
func (r *run) lookCaps() {
	r.caps.looking.Lock()
	defer r.caps.looking.Unlock()
	mhz := 0
	if found := r.clockFolder().written(); len(found) > 0 {
		mhz = acting.InForce(found, bootID())
	}
	r.caps.mhz.Store(int64(mhz))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.detector.SetClockCap(float64(mhz))
}

// written reads the leases without asking whether their runs live. It takes no lock, so
// that it comes in nobody's way.
func (f clockFolder) written() []acting.Left {
	var out []acting.Left
	f.each("", func(path string) {
		file, err := openLease(path)
		if err != nil {
			if !os.IsNotExist(err) {
				out = append(out, acting.Left{Path: path, Broken: true})
			}
			return
		}
		defer file.Close()
		l := acting.Left{Path: path}
		l.Lease, l.Broken = leaseText(file)
		out = append(out, l)
	})
	return out
}

// each calls do with every file that may be a lease, but that of a run.
func (f clockFolder) each(but string, do func(path string)) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Name() != but+leaseSuffix && filepath.Ext(e.Name()) == leaseSuffix && e.Type().IsRegular() {
			do(filepath.Join(f.dir, e.Name()))
		}
	}
}

func openLease(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}
