package postmortem

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
	"sparkrun/ladder/trainer"
	"sparkrun/supervisor/runlog"
)

const (
	// lookFor is how long the search for runs without an end may take. After a boot,
	// which is what it is for, nothing is in the page cache yet; nobody waits for it,
	// since it goes on beside the command. Where there is nothing it ends by itself.
	lookFor = 10 * time.Second
	// workFor is how long what was found may take.
	workFor = 5 * time.Second
	// lookAt is how many runs of each place are looked at, newest first.
	lookAt = 256
	// recoverMost is how many are worked on at one start; the others come next.
	recoverMost = 8
	// outputMost is how much of the end of an output is read for the verdict.
	outputMost = 32 << 20
	// manifestMost is the largest run.json that is looked into.
	manifestMost = 8 << 20
)

// What happened to a run without an end.
const (
	// PowerLoss: the machine went down without a shutdown, and memory was not low:
	// power, a reset, or a freeze for another reason.
	PowerLoss = "power-loss"
	// FreezeLowMemory: the same, and memory had run out.
	FreezeLowMemory = "freeze-low-memory"
	// Reboot: the machine was shut down in order.
	Reboot = "reboot"
	// Killed: the machine stayed up; sparkrun was ended, and its holder with it.
	Killed = "killed"
)

// statusLost is the exit status of a run that was lost (CONTRACTS section 5).
const statusLost = 125

// RecoverOptions say where to look.
type RecoverOptions struct {
	Places runlog.Places
	// Skip is the ID of the run that is just starting.
	Skip string
	// Table gives the crash signatures; nil reads the built-in ones. It is called
	// only where there is something to judge.
	Table func() *oom.Table

	// look, if set, is how long the search may take.
	look time.Duration
}

// Recovered is a run without an end, and what became of it.
type Recovered struct {
	ID, Dir string
	// Attempt is the last one, 0 where the command was never started.
	Attempt int
	// What is PowerLoss, FreezeLowMemory, Reboot or Killed.
	What    string
	Verdict oom.Verdict
	// Text is one sentence for the terminal and run.log.
	Text string
	// LastRow is the time of the last telemetry row, LastAvailKiB its
	// MemAvailable; zero and unknown where there is none.
	LastRow      time.Time
	LastAvailKiB sample.Num
}

// Recover looks for runs of this machine that have no end although nobody has them
// any more, says what happened to each and writes that into the run: verdict.json
// of its last attempt, state lost in run.json, events. Each is found once. It
// touches no run of another host and none whose supervisor, holder or command
// lives; where it cannot tell, it leaves the run alone.
//
// Where there is nothing to do it costs some milliseconds; with cold caches or a disk
// that hangs it takes up to 15 seconds, so it is to be called beside the command and
// not before it. Trouble with one run leaves that run as it is.
func Recover(ctx context.Context, o RecoverOptions) []Recovered {
	return recoverOn(ctx, o, thisMachine())
}

func recoverOn(ctx context.Context, o RecoverOptions, m machine) []Recovered {
	if m.host == "" || m.boot == "" || ctx.Err() != nil {
		return nil
	}
	s := &search{o: o, m: m, done: make(chan struct{})}
	// On a goroutine of its own: a disk that hangs must not hold up the caller for ever.
	go s.run()
	look := o.look
	if look <= 0 {
		look = lookFor
	}
	select {
	case <-s.done:
	case <-time.After(look):
	case <-ctx.Done():
	}
	dirs := s.take()
	if len(dirs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, workFor)
	defer cancel()
	result := make(chan Recovered, len(dirs))
	go func() {
		defer close(result)
		for _, dir := range dirs {
			if ctx.Err() != nil {
				return
			}
			if r, ok := recoverOne(ctx, o, m, dir); ok {
				result <- r
			}
		}
	}()
	var out []Recovered
	for {
		select {
		case r, open := <-result:
			if !open {
				return out
			}
			out = append(out, r)
		case <-ctx.Done():
			return out
		}
	}
}

// recoverOne judges one run and writes it down.
func recoverOne(ctx context.Context, o RecoverOptions, m machine, dir string) (Recovered, bool) {
	d, err := runlog.Open(o.Places, dir)
	if err != nil {
		return Recovered{}, false
	}
	// Asked before the lock is ours: it would be taken for a supervisor's.
	man := openRun(dir)
	if man == nil || lifeOf(o.Places, man, dir, m, &processes{}) != dead {
		return Recovered{}, false
	}
	release, err := d.Lock()
	switch {
	case errors.Is(err, runlog.ErrLocked):
		return Recovered{}, false // another start is at it
	case err == nil:
		defer release()
	}
	if man = openRun(dir); man == nil {
		return Recovered{}, false // another start was quicker
	}
	r := Recovered{ID: man.ID, Dir: dir, Attempt: lastAttempt(man, dir)}
	end, g, err := judgeLost(ctx, o, m, man, &r)
	if err != nil || ctx.Err() != nil {
		return r, false // next time
	}
	if err := writeDown(d, man, r, end, g); err != nil {
		r.Text += "; that could not be written into the run: " + err.Error()
	}
	return r, true
}

// judgeLost finds out what happened; end is the run's last sign of life.
func judgeLost(ctx context.Context, o RecoverOptions, m machine, man *runlog.Manifest, r *Recovered) (end time.Time, g gathered, err error) {
	f := &attemptFiles{
		man: man, run: r.Dir, n: r.Attempt, outputMost: outputMost,
		dir: filepath.Join(r.Dir, runlog.AttemptsDir, strconv.Itoa(r.Attempt)),
	}
	if r.Attempt == 0 {
		f.samples(&g)
		r.Verdict = blank(oom.NotOOM, "not-started", oom.High)
	} else {
		table, err := signatures(o)
		if err != nil {
			return end, g, err
		}
		if g, err = f.gather(ctx, table); err != nil {
			return end, g, err
		}
		if m.rebooted(man) {
			g.ev.Lost = previousBoot(ctx, m, man, g.lastT)
		}
		if r.Verdict, err = readVerdict(f.dir); err != nil {
			r.Verdict = table.Decide(g.ev)
			g.unnumber(&r.Verdict)
		}
	}
	if n := len(g.ev.Samples); n > 0 {
		r.LastRow, r.LastAvailKiB = g.ev.Samples[n-1].T, g.ev.Samples[n-1].MemAvailableKiB
	}
	end = g.lastT
	if g.exit != nil && g.ev.End.After(end) {
		end = g.ev.End
	}
	if end.IsZero() {
		if end = lastWrite(r.Dir, man); end.After(m.now) {
			end = m.now
		}
	}
	g.over = end
	switch rec := f.record(); {
	case rec != nil && rec.End != nil:
		g.over = rec.End.T
	case g.exit != nil && g.exit.Boot > 0: // else it could not be waited for
		g.over = g.ev.End
	}
	g.sums = f.reckon(ctx, g.over)
	r.What = what(m, man, &g, r.Verdict)
	r.Text = sentence(man, r, &g, end)
	return end, g, nil
}

func signatures(o RecoverOptions) (*oom.Table, error) {
	if o.Table != nil {
		return o.Table(), nil
	}
	return oom.Load()
}

// what classifies a run without an end.
func what(m machine, man *runlog.Manifest, g *gathered, v oom.Verdict) string {
	switch {
	case !m.rebooted(man):
		return Killed
	case g.ev.Lost != nil && g.ev.Lost.CleanKnown && g.ev.Lost.Clean:
		return Reboot
	case v.Answer == oom.OOM && v.Reason == "freeze", lowAtEnd(g.ev.Samples):
		return FreezeLowMemory
	}
	return PowerLoss
}

// lowAtEnd says whether memory was low in the last rows, or fell so fast that it
// was gone before the next one.
func lowAtEnd(rows []sample.Sample) bool {
	n := len(rows)
	if n == 0 {
		return false
	}
	last := &rows[n-1]
	if !last.MemAvailableKiB.OK || !last.MemTotalKiB.OK {
		return false
	}
	avail := last.MemAvailableKiB.V
	if avail < lowShare*last.MemTotalKiB.V || last.PSIMemFull10.OK && last.PSIMemFull10.V > 20 {
		return true
	}
	if n == 1 || !rows[n-2].MemAvailableKiB.OK {
		return false
	}
	fell := rows[n-2].MemAvailableKiB.V - avail
	dt := last.T.Sub(rows[n-2].T).Seconds()
	return dt > 0 && fell > 0 && avail/(fell/dt) < 2
}

// sentence tells a person what happened.
func sentence(man *runlog.Manifest, r *Recovered, g *gathered, end time.Time) string {
	who := "run " + man.ID
	switch {
	case r.Attempt == 0:
		who += " (its command was not started yet)"
	case g.ev.StepsDone:
		who += fmt.Sprintf(" (attempt %d, step %d)", r.Attempt, g.ev.LastStep)
	default:
		who += fmt.Sprintf(" (attempt %d)", r.Attempt)
	}
	left := ""
	if r.LastAvailKiB.OK {
		left = fmt.Sprintf(", %.1f GiB of memory left", r.LastAvailKiB.V/(1<<20))
		if kib := man.Host.MemTotalKiB; kib > 0 {
			left = fmt.Sprintf(", %.1f of %.1f GiB of memory left", r.LastAvailKiB.V/(1<<20), float64(kib)/(1<<20))
		}
	}
	at := lostAt(end)
	switch r.What {
	case Reboot:
		return fmt.Sprintf("%s has no end: the machine was rebooted in order, last sign of life %s%s", who, at, left)
	case FreezeLowMemory:
		return fmt.Sprintf("%s has no end: the machine froze with low memory and was started anew, last sign of life %s%s", who, at, left)
	case PowerLoss:
		return fmt.Sprintf("%s has no end: the machine lost power, was reset or froze, last sign of life %s%s", who, at, left)
	}
	if g.exit != nil {
		how := fmt.Sprintf("exit %d", g.exit.Code)
		if g.exit.Signal != "" {
			how = g.exit.Signal
		}
		return fmt.Sprintf("%s has no end: sparkrun was killed; the command ended by itself (%s) at %s", who, how, at)
	}
	if engine := containerClient(man); engine != "" {
		return fmt.Sprintf("%s has no end: sparkrun and its %s client were killed, and the container may go on (see %s ps), last sign of life %s%s", who, engine, engine, at, left)
	}
	return fmt.Sprintf("%s has no end: sparkrun and what it had started were killed, last sign of life %s%s", who, at, left)
}

// containerClient is the engine whose client the command is, empty for every other
// command. What such a client has started is the engine's, and outlives it.
func containerClient(man *runlog.Manifest) string {
	likely := slices.ContainsFunc(man.Argv, func(w string) bool {
		return strings.Contains(w, "docker") || strings.Contains(w, "podman")
	})
	if !likely {
		return "" // most: the profiles need not be read
	}
	set, err := trainer.Load(nil)
	if err != nil {
		return ""
	}
	j, err := set.Understand(man.Argv, man.Cwd, nil, nil)
	if err != nil || j.Container == nil {
		return ""
	}
	return j.Container.Engine
}
