package sampler

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/ownexe"
)

const (
	// The sensors process is started again after restartMin, doubling up to
	// restartMax; one that lived longer than restartMax begins anew.
	restartMin = time.Second
	restartMax = time.Minute
	// silence is how long the sensors process may say nothing beyond two ticks:
	// it speaks even while a driver hangs.
	silence = 10 * time.Second
)

// quietLimit is how long a sensors process that reads every tick may say nothing.
func quietLimit(tick time.Duration) time.Duration { return silence + 2*tick }

// keepSensors runs the sensors process until ctx ends. base is an instant of
// the telemetry schedule (CLOCK_BOOTTIME).
func (s *Sampler) keepSensors(ctx context.Context, base time.Duration) {
	all := newSensorsFile(s, base)
	defer all.close()
	backoff := restartMin
	for {
		start := time.Now()
		err := s.runSensors(ctx, base, all)
		if ctx.Err() != nil {
			return
		}
		s.noteFailed(sensorsSource, err.Error(), s.opts.Clock.Now())
		if time.Since(start) > restartMax {
			backoff = restartMin
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, restartMax)
	}
}

// runSensors runs the sensors process once and returns why it ended.
func (s *Sampler) runSensors(ctx context.Context, base time.Duration, all *sensorsFile) error {
	cmd := exec.Command(ownexe.Path(s.opts.Exe), SensorsArg,
		"-interval", s.sensorStep().String(), "-base", (base - s.ahead()).String(), "-root", s.opts.Root)
	// In a session of its own: Ctrl-C and the end of the terminal are none of
	// its business.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	last := &tail{max: 2048}
	cmd.Stderr = last
	cmd.WaitDelay = time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("the sensors process cannot be started: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("the sensors process cannot be started: %w", err)
	}
	s.setPID(cmd.Process.Pid)
	defer s.setPID(0)

	silent := fmt.Errorf("the sensors process said nothing for %v and was ended", s.silence())
	quiet := time.AfterFunc(s.silence(), func() {
		_ = cmd.Process.Kill()
		// Said now: a process that hangs in the driver ends who knows when.
		s.noteFailed(sensorsSource, silent.Error(), s.opts.Clock.Now())
	})
	defer quiet.Stop()
	defer context.AfterFunc(ctx, func() {
		_ = cmd.Process.Kill()
		time.AfterFunc(time.Second, func() { stdout.Close() })
	})()
	bad := s.listen(stdout, quiet, all)
	spoke := quiet.Stop()
	if bad != nil {
		_ = cmd.Process.Kill()
	}
	// A process that hangs in the driver does not even die. It is waited for
	// as long as the run lasts, since a second one would hang as well.
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		select {
		case err = <-ended:
		case <-time.After(time.Second):
			return ctx.Err()
		}
	}
	switch {
	case !spoke:
		err = silent
	case bad != nil:
		err = bad
	case err == nil:
		err = errors.New("the sensors process ended by itself")
	default:
		err = fmt.Errorf("the sensors process ended: %w", err)
	}
	if said := last.String(); said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// ahead is how long before its row a reading is taken.
func (s *Sampler) ahead() time.Duration { return min(lead, s.sensorStep()/4) }

// silence is how long the sensors process may say nothing when it is asked seldom.
func (s *Sampler) silence() time.Duration { return quietLimit(s.sensorStep()) }

func (s *Sampler) setPID(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid = pid
}

// listen reads records until the pipe ends, which is no error, or a line is no
// record.
func (s *Sampler) listen(r io.Reader, quiet *time.Timer, all *sensorsFile) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), 1<<20)
	for lines.Scan() {
		var rec record
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return fmt.Errorf("the sensors process wrote %.80q, which is no record: %w", lines.Bytes(), err)
		}
		quiet.Reset(s.silence())
		s.hear(&rec)
		if rec.GPU != nil {
			all.take(rec.GPU)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading from the sensors process: %w", err)
	}
	return nil
}

// hear files one record.
func (s *Sampler) hear(rec *record) {
	if d := rec.Device; d != nil {
		s.mu.Lock()
		// A driver that has not answered yet says nothing new about a device
		// that was known before the sensors process was started again.
		if !rec.Pending || s.device == nil {
			s.device = d
		}
		if !rec.Pending {
			closeOnce(s.known)
		}
		s.mu.Unlock()
		if !rec.Pending {
			s.noteDevice(d)
		}
	}
	if g := rec.GPU; g != nil {
		// The child's stamp is of the same clock; one from the future would
		// stay fresh for ever.
		g.T = min(g.T, clock.Boottime())
		s.mu.Lock()
		s.gpu, s.unread = *g, true
		s.writeThermal()
		closeOnce(s.reading)
		s.mu.Unlock()
		s.noteReading(g)
	}
}

// closeOnce closes c unless it is closed. Call with the lock held.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// tail keeps the end of what was written to it.
type tail struct {
	max int
	mu  sync.Mutex
	b   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if n := len(t.b) - t.max; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(p), nil
}

// String returns the last lines as one.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ReplaceAll(string(bytes.TrimSpace(t.b)), "\n", "; ")
}
