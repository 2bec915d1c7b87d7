package sampler

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"sparkrun/internal/ownexe"
	"sparkrun/internal/sample"
)

// Probe asks a sensors process of its own for the device and one reading, for
// checks outside any run. exe is our own binary.
func Probe(ctx context.Context, exe string) (sample.Device, sample.GPU, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, ownexe.Path(exe), SensorsArg, "-interval", "100ms")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// With all it started: an nvidia-smi that hangs may be a script with a program behind it.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return sample.Device{}, sample.GPU{}, fmt.Errorf("starting the sensors process: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return sample.Device{}, sample.GPU{}, fmt.Errorf("starting the sensors process: %w", err)
	}
	// A process that hangs in the driver does not die of a signal either: its
	// end is waited for briefly, and its pipe is closed on this side.
	defer context.AfterFunc(ctx, func() { out.Close() })()
	defer func() {
		cancel()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = cmd.Wait() // killed by us: its status means nothing
		}()
		select {
		case <-ended:
		case <-time.After(time.Second):
		}
	}()
	var dev sample.Device
	found := false
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var rec record
		if err := json.Unmarshal(sc.Bytes(), &rec); err != nil {
			return dev, sample.GPU{}, fmt.Errorf("the sensors process said %q: %w", sc.Text(), err)
		}
		if rec.Device != nil && !rec.Pending {
			dev, found = *rec.Device, true
			if dev.Source == "none" {
				return dev, sample.GPU{}, nil
			}
		}
		if rec.GPU != nil && found {
			return dev, *rec.GPU, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return dev, sample.GPU{}, fmt.Errorf("the GPU driver did not answer: %w", err)
	}
	return dev, sample.GPU{}, fmt.Errorf("the sensors process ended without a reading")
}
