// Package smi reads one NVIDIA GPU through the nvidia-smi command, for a machine
// or a build where NVML itself cannot be loaded. It owns the processes that this
// takes: one that prints a row of --query-gpu at each interval for as long as it
// is wanted, and one that lists processes now and then. The table that
// nvidia-smi prints for people is never read: it changes from driver to driver.
//
// nvidia-smi has been seen to hang for minutes on a machine in trouble, and to
// print what went wrong where rows are expected. Neither costs more than
// readings.
package smi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
	"sparkrun/sampler/nvml"
)

// Command is what is looked up on the PATH.
const Command = "nvidia-smi"

const (
	// onceLimit is how long one question that is asked once may take.
	onceLimit = 20 * time.Second
	// silence is how long the running nvidia-smi may print nothing beyond its
	// interval before it is ended.
	silence = 10 * time.Second
	// slowest is the longest interval: a row must be new when it is used.
	slowest = time.Second
	// A process that ended is started again after againMin, doubling up to
	// againMax.
	againMin = time.Second
	againMax = time.Minute
	// appsEvery is how often the processes on the GPU are listed.
	appsEvery = 10 * time.Second
)

// Reader reads the first GPU that nvidia-smi shows. Open starts it, Read may be
// called from one goroutine.
type Reader struct {
	exe      string
	interval time.Duration
	device   sample.Device
	end      context.CancelFunc
	ended    sync.WaitGroup

	mu sync.Mutex
	// row is the newest row, nil once it was taken; came is signalled with it.
	row  *sample.GPU
	came chan struct{}
	// last is when the last row came, or when the reader was opened.
	last time.Time
	// bad is why there are no rows, empty while there are.
	bad string
	// missing holds the readings this GPU does not have.
	missing map[string]bool
	apps    []sample.GPUProcess
}

// Find returns the nvidia-smi of this machine.
func Find() (exe string, err error) {
	exe, err = exec.LookPath(Command)
	if err != nil {
		return "", fmt.Errorf("%s not found: %w", Command, err)
	}
	return exe, nil
}

// Open asks exe what GPU there is and starts it. Its errors are *nvml.Error. It
// takes up to 20 s when nvidia-smi hangs, and longer when it cannot even be ended.
func Open(exe string, interval time.Duration) (*Reader, error) {
	ctx, end := context.WithCancel(context.Background())
	r := &Reader{
		exe: exe, interval: max(min(interval, slowest), 20*time.Millisecond), end: end,
		came: make(chan struct{}, 1), missing: make(map[string]bool), last: time.Now(),
	}
	out, err := r.once(ctx, "--query-gpu="+deviceQuery)
	first, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	d, ok := parseDevice(first)
	if err != nil || !ok {
		end()
		if err != nil && strings.TrimSpace(out) == "" {
			return nil, &nvml.Error{Kind: nvml.Other, Text: err.Error()}
		}
		return nil, errorFor(out)
	}
	r.device = d
	r.ended.Go(func() { r.keep(ctx) })
	r.ended.Go(func() { r.list(ctx) })
	return r, nil
}

// Close ends the processes. One that hangs in the driver is not waited for.
func (r *Reader) Close() { r.end() }

// Device returns what does not change, and the readings this GPU does not have.
func (r *Reader) Device() sample.Device {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.device
	d.Absent = append(slices.Clone(d.Absent), energy)
	for name := range r.missing {
		d.Absent = append(d.Absent, name)
	}
	slices.Sort(d.Absent)
	return d
}

// Read fills the GPU readings of g with the newest row, each row once: it waits
// for the next one up to the given time. Without one everything stays unknown,
// and g.Failed has the single key "nvml" when that has lasted.
func (r *Reader) Read(g *sample.GPU, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		r.mu.Lock()
		row, bad, late := r.row, r.bad, time.Since(r.last)
		if row != nil {
			row.Processes, r.apps = r.apps, nil
			r.row = nil
		}
		r.mu.Unlock()
		switch {
		case row != nil:
			*g = *row
			return
		case bad != "":
			g.Failed = map[string]string{"nvml": bad}
			return
		}
		select {
		case <-r.came:
		case <-timer.C:
			if late > 2*r.interval+patience {
				g.Failed = map[string]string{"nvml": fmt.Sprintf("nvidia-smi has printed nothing for %.0f s", late.Seconds())}
			}
			return
		}
	}
}

// patience is how long a row may be late before that is said.
const patience = time.Second

// keep keeps an nvidia-smi running.
func (r *Reader) keep(ctx context.Context) {
	// A signal is sent to the process when the thread that started it ends:
	// this one does not before the process.
	runtime.LockOSThread()
	of := slices.Clone(fields)
	again := againMin
	for ctx.Err() == nil {
		start := time.Now()
		said, err := r.run(ctx, of)
		if ctx.Err() != nil {
			return
		}
		if left, ok := without(of, said); ok {
			r.lacks(of, left)
			of = left
			continue
		}
		r.fail(said, err)
		if time.Since(start) > againMax {
			again = againMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
		again = min(2*again, againMax)
	}
}

// lacks files the readings of the fields that this nvidia-smi does not know.
func (r *Reader) lacks(before, after []field) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range before {
		if !slices.ContainsFunc(after, func(g field) bool { return g.name == f.name }) {
			r.missing[f.name] = true
		}
	}
}

func (r *Reader) fail(said string, err error) {
	why := errorFor(said).Text
	if strings.TrimSpace(said) == "" {
		why = "nvidia-smi ended by itself"
		if err != nil {
			why = err.Error()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// A row that came before it is still one.
	r.bad = why
	r.signal()
}

// signal tells Read that there is news. Call with the lock held.
func (r *Reader) signal() {
	select {
	case r.came <- struct{}{}:
	default:
	}
}

// run runs nvidia-smi once and returns what it printed that was no row.
func (r *Reader) run(ctx context.Context, of []field) (said string, err error) {
	cmd := r.command("--query-gpu="+queries(of), "--loop-ms="+strconv.FormatInt(r.interval.Milliseconds(), 10))
	errs := &head{max: 2048}
	cmd.Stderr = errs
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", fmt.Errorf("%s cannot be started: %w", r.exe, err)
	}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("%s cannot be started: %w", r.exe, err)
	}
	limit := r.interval + silence
	quiet := time.AfterFunc(limit, func() {
		r.fail("", fmt.Errorf("nvidia-smi has printed nothing for %v and was ended", limit))
		kill(cmd)
		// Its death is not waited for: it may hang in the driver.
		out.Close()
	})
	stop := context.AfterFunc(ctx, func() { kill(cmd); out.Close() })
	said = r.listen(out, of, func() { quiet.Reset(limit) })
	hung := !quiet.Stop() && ctx.Err() == nil
	stop()
	// What prints lines that are no rows does not get better.
	kill(cmd)
	err = cmd.Wait()
	if hung {
		return "", fmt.Errorf("nvidia-smi printed nothing for %v and was ended", limit)
	}
	if err != nil {
		err = fmt.Errorf("nvidia-smi ended: %w", err)
	}
	return strings.TrimSpace(said + "\n" + errs.String()), err
}

// maxLine bounds a line, noRows what is read of lines that are no rows.
const (
	maxLine = 4096
	noRows  = 20
)

// listen takes rows until there are no more lines, or only others; it returns
// those.
func (r *Reader) listen(out io.Reader, of []field, alive func()) (said string) {
	lines := bufio.NewScanner(out)
	lines.Buffer(make([]byte, 0, 512), maxLine)
	bad := 0
	for bad < noRows && lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		g := sample.GPU{T: clock.Boottime(), Fallback: true}
		missing, ok := parseRow(line, of, &g)
		alive()
		if !ok {
			bad++
			if len(said) < maxLine {
				said += line + "\n"
			}
			if _, cured := without(of, line); !cured && !isHeader(line, of) {
				r.fail(line, nil)
			}
			continue
		}
		bad, said = 0, ""
		r.mu.Lock()
		for _, name := range missing {
			r.missing[name] = true
		}
		r.row, r.last, r.bad = &g, time.Now(), ""
		r.signal()
		r.mu.Unlock()
	}
	return said
}

// list asks for the processes on the GPU, at a slow pace.
func (r *Reader) list(ctx context.Context) {
	runtime.LockOSThread()
	for ctx.Err() == nil {
		out, err := r.once(ctx, "--query-compute-apps=pid,used_memory")
		apps := []sample.GPUProcess(nil)
		if err == nil {
			apps = parseApps(out)
		}
		r.mu.Lock()
		r.apps = apps
		r.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(appsEvery):
		}
	}
}

// once runs nvidia-smi to its end and returns what it printed.
func (r *Reader) once(ctx context.Context, args ...string) (string, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := r.command(args...)
	out := &head{max: 64 << 10}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("%s cannot be started: %w", r.exe, err)
	}
	limit, cancel := context.WithTimeout(ctx, onceLimit)
	defer cancel()
	defer context.AfterFunc(limit, func() { kill(cmd) })()
	err := cmd.Wait()
	if errors.Is(limit.Err(), context.DeadlineExceeded) {
		return "", fmt.Errorf("nvidia-smi did not end within %v", onceLimit)
	}
	if err != nil {
		err = fmt.Errorf("nvidia-smi ended: %w", err)
	}
	return out.String(), err
}

// command asks the first GPU for CSV. The process ends with this one.
func (r *Reader) command(args ...string) *exec.Cmd {
	cmd := exec.Command(r.exe, append(args, "--format=csv,noheader,nounits", "--id=0")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// kill ends the process, if it has not ended.
func kill(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

// head keeps the beginning of what was written to it.
type head struct {
	max int
	mu  sync.Mutex
	b   bytes.Buffer
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b.Write(p[:min(len(p), h.max-h.b.Len())])
	return len(p), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.String()
}
