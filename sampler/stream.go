package sampler

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"sparkrun/internal/ownexe"
	"sparkrun/internal/sample"
)

// Answer is one record of Stream.
type Answer struct {
	// Device is what is known of the device; Pending tells that the driver has never
	// answered so far, so that it says nothing yet.
	Device  sample.Device
	Pending bool
	GPU     sample.GPU
}

// Stream reads the GPU every step in a sensors process of its own, outside any run, and
// passes each answer to hear, until ctx is done; then it returns nil at once and the
// process is gone, unless it hangs in the driver. exe is our own binary. A driver that does
// not answer costs readings (sample.GPU.Failed says so) and not the stream; an error means
// that the process ended or said nothing, and that it may be started again.
func Stream(ctx context.Context, exe string, step time.Duration, hear func(Answer)) error {
	cmd := exec.Command(ownexe.Path(exe), SensorsArg, "-interval", step.String())
	// In a session of its own: Ctrl-C ends the observation and not the readings.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	last := &tail{max: 2048}
	cmd.Stderr = last
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("the sensors process cannot be started: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("the sensors process cannot be started: %w", err)
	}
	limit := quietLimit(step)
	quiet := time.AfterFunc(limit, func() {
		_ = cmd.Process.Kill()
		// Nor is its pipe waited for: a process that hangs in the driver does not die.
		out.Close()
	})
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()

	ended := make(chan error, 1)
	answers := make(chan Answer)
	done := make(chan struct{})
	defer close(done)
	go func() {
		defer close(answers)
		ended <- streamed(out, func(a Answer) {
			quiet.Reset(limit)
			select {
			case answers <- a:
			case <-done:
			}
		})
	}()
	for {
		select {
		case <-ctx.Done():
			// Nobody waits for a process that hangs in the driver.
			go func() { _ = cmd.Wait() }()
			quiet.Stop()
			return nil
		case a, ok := <-answers:
			if ok {
				hear(a)
				continue
			}
		}
		break
	}
	silent := !quiet.Stop()
	_ = cmd.Process.Kill()
	bad := <-ended
	waited := make(chan error, 1)
	go func() { waited <- cmd.Wait() }()
	select {
	case err = <-waited:
	case <-ctx.Done():
		return nil
	case <-time.After(time.Second):
		err = errors.New("it hangs in the driver")
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case silent:
		err = fmt.Errorf("the sensors process said nothing for %v and was ended", limit)
	case bad != nil:
		err = bad
	case err == nil:
		err = errors.New("the sensors process ended by itself")
	default:
		err = fmt.Errorf("the sensors process ended by itself: %w", err)
	}
	if said := strings.TrimSpace(last.String()); said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// streamed reads records until the pipe ends, which is no error, or a line is no record.
func streamed(out io.Reader, hear func(Answer)) error {
	lines := bufio.NewScanner(out)
	lines.Buffer(make([]byte, 0, 4096), 1<<20)
	var a Answer
	for lines.Scan() {
		var rec record
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return fmt.Errorf("the sensors process wrote %.80q, which is no record: %w", lines.Bytes(), err)
		}
		// A driver that has not answered says nothing about a device that was known before.
		if rec.Device != nil && (!rec.Pending || a.Device.Source == "") {
			a.Device, a.Pending = *rec.Device, rec.Pending
		}
		if rec.GPU != nil {
			a.GPU = *rec.GPU
			hear(a)
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("reading from the sensors process: %w", err)
	}
	return nil
}
