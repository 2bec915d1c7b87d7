package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/sampler/smi"
	"sparkrun/supervisor/acting"
)

const (
	// smiLimit is how long nvidia-smi may take to set a clock (it has been seen to hang
	// for minutes), smiEndLimit the same at the end of a run.
	smiLimit    = 20 * time.Second
	smiEndLimit = 7 * time.Second
	// undoLimit is for all that sets the clock free: the call, one that cannot even be
	// killed, and a disk that does not answer.
	undoLimit = smiEndLimit + 2500*time.Millisecond
	// undoTold is from when on a person is told what is waited for.
	undoTold = time.Second
	// deviceLimit is how long it is waited for how many GPUs there are.
	deviceLimit = 5 * time.Second
)

// newCapClocks makes the actor of --cap-clocks. What can be told now (no root, no
// nvidia-smi) is told now and not in the night.
func (r *run) newCapClocks(life context.Context) actor {
	mhz := r.o.Heat.CapClocksMHz
	if mhz == 0 {
		return nil
	}
	exe, why := canCapClocks(mhz, os.Geteuid())
	if why != "" {
		r.clockEvent(event.Warn, "--cap-clocks will not be done in this run: "+why, nil)
		return nil
	}
	c := &capClocks{r: r, mhz: mhz, exe: exe, folder: r.clockFolder(), limit: undoLimit}
	c.device = c.askDevice
	c.life, c.giveUp = context.WithCancel(life)
	return c
}

// clocksDir is the folder of the leases in the state folder.
const clocksDir = "clocks"

// canCapClocks finds nvidia-smi, or says why the clocks cannot be capped.
func canCapClocks(mhz, euid int) (exe, why string) {
	if err := acting.CheckCap(mhz); err != nil {
		return "", err.Error()
	}
	if euid != 0 {
		return "", "locking the GPU's clock needs root"
	}
	exe, err := smi.Find()
	if err != nil {
		return "", err.Error()
	}
	return exe, ""
}

func (r *run) clockEvent(level event.Level, msg string, data map[string]any) {
	e := event.Event{Kind: event.Hygiene, Level: level, Msg: msg, Label: "clock cap", Data: data}
	if a := r.live.Load(); a != nil {
		e.Attempt = a.n
	}
	r.log.Event(e)
}

// capClocks locks the GPU's clock to a lower one when thermal throttling persists, and
// sets it free at the end.
type capClocks struct {
	r      *run
	life   context.Context //nolint:containedctx // it lives as long as the run
	giveUp context.CancelFunc
	mhz    int
	exe    string
	folder clockFolder
	device func() (sample.Device, error)
	limit  time.Duration // of stop

	clocks acting.Clocks
	tried  bool // only by sampled

	// doing is held while nvidia-smi is at work; lease is the locked file, nil while
	// nothing was set; over is set by stop.
	doing sync.Mutex
	lease *os.File
	over  bool
	// claimed is set while the clock may be capped by us, and nothing was said of how that
	// ended.
	claimed atomic.Bool
}

func (c *capClocks) sampled(s *sample.Sample, events []event.Event) {
	if c.tried {
		return
	}
	c.clocks.Take(s, events)
	why := c.clocks.Why()
	if why == "" {
		return
	}
	c.tried = true
	if no := c.clocks.Refuse(c.mhz); no != "" {
		c.r.clockEvent(event.Warn, fmt.Sprintf("%s, but the clock is not capped at %d MHz: %s", why, c.mhz, no), nil)
		return
	}
	at := c.clocks.Plateau()
	go c.set(why, at.V)
}

// set locks the clock.
func (c *capClocks) set(why string, plateau float64) {
	c.doing.Lock()
	defer c.doing.Unlock()
	if c.over {
		return
	}
	data := map[string]any{"cap_mhz": c.mhz, "plateau_mhz": plateau}
	said, err := c.lock()
	if c.lease != nil {
		c.r.lookCaps() // where it hung, it may be set all the same
	}
	if err != nil {
		c.r.clockEvent(event.Warn, fmt.Sprintf("%s, but the clock could not be capped at %d MHz: %v", why, c.mhz, err), data)
		return
	}
	msg := fmt.Sprintf("%s: the GPU's clock is capped at %d MHz (it worked at %.0f) until the end of the run", why, c.mhz, plateau)
	if said != "" {
		msg += "; nvidia-smi: " + said
	}
	c.r.clockEvent(event.Warn, msg, data)
}

// lock takes the lease and then locks the clock, so that one that dies in between is
// undone as well.
func (c *capClocks) lock() (said string, err error) {
	if err := c.oneGPU(); err != nil {
		return "", err
	}
	unlock, err := c.folder.lock(c.life, smiLimit)
	if err != nil {
		return "", err
	}
	defer unlock()
	others := c.folder.find()
	lease, err := c.folder.take(acting.Lease{
		Schema: acting.LeaseSchema, Run: c.r.dir.ID, PID: os.Getpid(), Boot: bootID(), MHz: c.mhz, T: clock.Machine(c.r.clk.Now()),
	})
	if err != nil {
		return "", fmt.Errorf("what has to be undone cannot be noted: %w", err)
	}
	c.claimed.Store(true)
	if lower := acting.LowestHeld(others); lower > 0 && lower <= c.mhz {
		c.lease = lease
		return fmt.Sprintf("nothing was called: another run has capped it at %d MHz", lower), nil
	}
	said, err = lockClocks(c.life, c.exe, smiLimit, c.mhz)
	if err != nil {
		// Whether it was done after all is not known where it hung.
		var refused *smiRefused
		if errors.As(err, &refused) {
			c.folder.drop(lease)
			c.claimed.Store(false)
			return "", err
		}
	} else {
		c.folder.remove(acting.Restore(others, bootID())) // what they had left is ours to undo now
	}
	c.lease = lease
	return said, err
}

// oneGPU says why nothing is called: it would be for all GPUs.
func (c *capClocks) oneGPU() error {
	d, err := c.device()
	switch {
	case err != nil:
		return fmt.Errorf("how many GPUs there are is not known, and the call would be for all of them: %w", err)
	case d.Source != "nvml" || d.Count < 1: // nvidia-smi is asked for one of them
		return errors.New("how many GPUs there are is not known, and the call would be for all of them: NVML does not answer")
	case d.Count > 1:
		return fmt.Errorf("there are %d GPUs, and which of them is meant is not known", d.Count)
	}
	return nil
}

func (c *capClocks) askDevice() (sample.Device, error) {
	if c.r.samp == nil {
		return sample.Device{}, errors.New("no sampling in this run")
	}
	now, cancel := context.WithTimeout(c.life, deviceLimit)
	defer cancel()
	return c.r.samp.Device(now)
}

// stop sets the clock free, or says that it is still capped: in the end a person must know.
func (c *capClocks) stop() {
	c.giveUp()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.undo()
	}()
	told := time.After(undoTold)
	for limit := time.After(c.limit); ; {
		select {
		case <-done:
			return
		case <-told:
			if c.claimed.Load() {
				c.r.clockEvent(event.Info, fmt.Sprintf("setting the GPU's clock free with nvidia-smi -rgc, which takes its time (it is waited for up to %s)", human(c.limit)), nil)
			}
		case <-limit:
			if c.claimed.Swap(false) {
				c.stillCapped(fmt.Errorf("setting it free was not done after %s", human(c.limit)))
			}
			return
		}
	}
}

func (c *capClocks) stillCapped(err error) {
	c.r.clockEvent(event.Error, fmt.Sprintf("the GPU's clock is still capped at %d MHz: %v; the next start of sparkrun as root tries again, or: sudo nvidia-smi -rgc", c.mhz, err), nil)
}

// undo sets the clock free, or leaves it to a run that lives.
func (c *capClocks) undo() {
	ctx, cancel := context.WithTimeout(context.Background(), smiEndLimit)
	defer cancel()
	c.doing.Lock()
	defer c.doing.Unlock()
	c.over = true
	if c.lease == nil {
		return
	}
	unlock, err := c.folder.lock(ctx, smiEndLimit/2)
	if err == nil {
		defer unlock()
	}
	others := c.folder.findBut(c.r.dir.ID)
	todo := acting.Restore(others, bootID())
	if len(todo.Held) > 0 {
		c.leaveTo(ctx, todo.Held[0], acting.LowestHeld(others))
		return
	}
	if err := freeClocks(ctx, c.exe, smiEndLimit); err != nil {
		// The lease stays, unlocked: the next start tries it again.
		c.lease.Close()
		c.lease = nil
		if c.claimed.Swap(false) {
			c.stillCapped(err)
		}
		return
	}
	c.folder.drop(c.lease)
	c.lease = nil
	c.folder.remove(todo) // what runs that died had left is undone with it
	if c.claimed.Swap(false) {
		c.r.clockEvent(event.Info, "the GPU's clock is free again (nvidia-smi -rgc)", nil)
	}
	c.r.lookCaps()
}

// leaveTo leaves the cap to a run that lives, at what that one had asked for.
func (c *capClocks) leaveTo(ctx context.Context, run string, mhz int) {
	lease := c.lease
	c.lease = nil
	if mhz > c.mhz {
		if _, err := lockClocks(ctx, c.exe, smiEndLimit, mhz); err != nil {
			// The lease stays, unlocked: it says at which clock the GPU is.
			lease.Close()
			if c.claimed.Swap(false) {
				c.r.clockEvent(event.Warn, fmt.Sprintf("the clock stays capped at %d MHz, although run %s asks for %d: %v; that run sets it free at its end", c.mhz, run, mhz, err), nil)
			}
			return
		}
	}
	c.folder.drop(lease)
	if c.claimed.Swap(false) {
		c.r.clockEvent(event.Info, fmt.Sprintf("the clock stays capped for run %s, which sets it free at its end", run), nil)
	}
}

// lockClocks caps the clocks at so many MHz.
func lockClocks(ctx context.Context, exe string, limit time.Duration, mhz int) (said string, err error) {
	return nvidiaSMI(ctx, exe, limit, "-lgc", fmt.Sprintf("%d,%d", acting.ClockFloorMHz, mhz))
}

// freeClocks undoes a lock of the clocks.
func freeClocks(ctx context.Context, exe string, limit time.Duration) error {
	_, err := nvidiaSMI(ctx, exe, limit, "-rgc")
	return err
}

// restoreClocks undoes what a run that died has left capped in this boot. It is called
// at the start of every run: what was asked for was the cap for as long as that run
// lives.
func (r *run) restoreClocks(ctx context.Context) {
	folder := r.clockFolder()
	if !folder.any() {
		return // as a rule; nothing is made or locked for it
	}
	unlock, err := folder.lock(ctx, smiLimit)
	if err != nil {
		r.diag.Debug("leases of clock caps are not looked at", "err", err)
		return
	}
	defer unlock()
	todo := acting.Restore(folder.find(), bootID())
	for _, l := range todo.Gone {
		_ = os.Remove(l.Path) // of another boot, which the cap has not outlived; the next start removes it too
	}
	if !todo.Lift {
		return
	}
	l := todo.Of[0].Lease
	what := "the GPU's clock was left capped by a run that died"
	if l.Run != "" {
		what = fmt.Sprintf("run %s died and left the GPU's clock capped at %d MHz", l.Run, l.MHz)
	}
	data := map[string]any{"run": l.Run, "cap_mhz": l.MHz}
	exe, err := smi.Find()
	if err == nil && os.Geteuid() != 0 {
		err = errors.New("it needs root")
	}
	if err == nil {
		err = freeClocks(ctx, exe, smiLimit)
	}
	if err != nil {
		r.clockEvent(event.Warn, what+"; it could not be set free: "+err.Error()+"; do it by hand: sudo nvidia-smi -rgc", data)
		return
	}
	folder.remove(todo)
	r.clockEvent(event.Warn, what+"; it is free again (nvidia-smi -rgc)", data)
}

// clockFolder has a file for each run that has capped the clock, locked by that run for
// as long as it lives, and a lock for whoever changes clocks.
type clockFolder struct{ dir string }

const (
	leaseSuffix = ".json"
	clocksLock  = "lock"
)

// lock keeps others from changing clocks, and waits for it up to limit.
func (f clockFolder) lock(ctx context.Context, limit time.Duration) (unlock func(), err error) {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of clock caps: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(f.dir, clocksLock), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of clock caps: %w", err)
	}
	for deadline := time.Now().Add(limit); ; {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) || ctx.Err() != nil {
			file.Close()
			return nil, fmt.Errorf("another sparkrun is changing clocks: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// take writes a lease and holds it.
func (f clockFolder) take(l acting.Lease) (*os.File, error) {
	path := filepath.Join(f.dir, l.Run+leaseSuffix)
	b, err := json.Marshal(l)
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	file := lockNew(path)
	if file == nil {
		return nil, fmt.Errorf("%s cannot be written", path)
	}
	if _, err = file.Write(append(b, '\n')); err == nil {
		err = file.Sync()
	}
	if err != nil {
		f.drop(file)
		return nil, fmt.Errorf("writing %s: %w", path, err)
	}
	return file, nil
}

// drop removes a lease that we hold.
func (f clockFolder) drop(lease *os.File) {
	_ = os.Remove(lease.Name()) // one that stays is of a run that is gone, and is undone once more
	lease.Close()
}

// any says whether there is a lease at all.
func (f clockFolder) any() bool {
	entries, _ := os.ReadDir(f.dir) // that cannot be read is as good as none: nobody could write there either
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return filepath.Ext(e.Name()) == leaseSuffix })
}

// find reads the leases that are there; the folder is locked.
func (f clockFolder) find() []acting.Left { return f.findBut("") }

// findBut leaves out that of a run.
func (f clockFolder) findBut(run string) []acting.Left {
	var out []acting.Left
	f.each(run, func(path string) {
		if l, ok := readLease(path); ok {
			out = append(out, l)
		}
	})
	return out
}

// remove takes away the leases of runs that are gone, which are undone.
func (f clockFolder) remove(todo acting.Restoring) {
	for _, l := range slices.Concat(todo.Of, todo.Gone) {
		_ = os.Remove(l.Path) // one that stays is undone once more at the next start
	}
}

// leaseMost bounds what is read of a lease.
const leaseMost = 4096

func readLease(path string) (acting.Left, bool) {
	file, err := openLease(path)
	if err != nil {
		return acting.Left{Path: path, Broken: true}, !errors.Is(err, fs.ErrNotExist)
	}
	defer file.Close()
	l := acting.Left{Path: path, Live: errors.Is(unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)}
	l.Lease, l.Broken = leaseText(file)
	if l.Live && l.Lease.Run == "" {
		l.Lease.Run = "without a name"
	}
	return l, true
}

func leaseText(file *os.File) (l acting.Lease, broken bool) {
	b := make([]byte, leaseMost)
	n, err := file.ReadAt(b, 0)
	if n == 0 && err != nil || json.Unmarshal(b[:n], &l) != nil || l.Schema != acting.LeaseSchema {
		return acting.Lease{}, true
	}
	return l, false
}

// smiRefused is a call of nvidia-smi that came to its end and said no.
type smiRefused struct{ said string }

func (e *smiRefused) Error() string { return e.said }

// nvidiaSMI calls nvidia-smi in a process group of its own, which is killed after limit
// and with us. One that hangs in the driver cannot even be killed; it is not waited for.
func nvidiaSMI(ctx context.Context, exe string, limit time.Duration, args ...string) (said string, err error) {
	type result struct {
		said string
		err  error
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	got := make(chan result, 1)
	go func() {
		defer cancel()
		// The signal at our death is sent when this thread ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		said, err := runSMI(ctx, exe, args)
		got <- result{said, err}
	}()
	select {
	case r := <-got:
		return r.said, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-got: // it took the signal
		return r.said, r.err
	case <-time.After(2 * time.Second):
		return "", fmt.Errorf("nvidia-smi hangs and cannot be ended (%s)", human(limit))
	}
}

func runSMI(ctx context.Context, exe string, args []string) (string, error) {
	cmd := exec.Command(exe, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out := &firstBytes{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return "", &smiRefused{fmt.Sprintf("%s cannot be started: %v", exe, err)}
	}
	stop := context.AfterFunc(ctx, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }) // gone already: nothing to kill
	err := cmd.Wait()
	if !stop() {
		return "", fmt.Errorf("nvidia-smi %s did not end in time and was killed", args[0])
	}
	said := acting.SMISaid(out.String())
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		if said == "" {
			said = "it says nothing"
		}
		return "", &smiRefused{"nvidia-smi refuses (" + exitWords(exit) + "): " + said}
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return "", fmt.Errorf("nvidia-smi: %w", err)
	}
	return said, nil
}

func exitWords(e *exec.ExitError) string {
	if ws, ok := e.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return unix.SignalName(ws.Signal())
	}
	return "status " + strconv.Itoa(e.ExitCode())
}

// firstBytes keeps the beginning of what is written to it.
type firstBytes struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (f *firstBytes) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if room := leaseMost - f.buf.Len(); room > 0 {
		f.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (f *firstBytes) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.buf.String()
}
