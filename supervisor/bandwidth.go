package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/configs"
	"sparkrun/internal/leash"
	"sparkrun/preflight"
)

// MeasureBandwidth runs the measurement that `sparkrun preflight --bandwidth` asks for: a
// tensor on the GPU is copied by the command's own torch, in a process of its own whose
// whole group is gone when it returns. in is what preflight.Run is given as well, Device
// in it may be called once more; env is the environment around the command. It never fails:
// Refused or Failed says why there is no figure.
func MeasureBandwidth(ctx context.Context, in preflight.Input, env []string) *preflight.Bandwidth {
	return measureBandwidth(ctx, preflight.PlanBandwidth(ctx, in), in.Job.Environ(env))
}

func measureBandwidth(ctx context.Context, p preflight.BandwidthPlan, env []string) *preflight.Bandwidth {
	if p.Refused != "" {
		return &preflight.Bandwidth{Refused: p.Refused, Interpreter: p.Interpreter}
	}
	ctx, cancel := context.WithTimeout(ctx, p.Limit)
	defer cancel()
	cmd := exec.Command(p.Interpreter, "-c", configs.BandwidthScript,
		strconv.FormatInt(p.Elements, 10), strconv.Itoa(p.Copies), strconv.FormatInt(p.Most, 10))
	cmd.Dir, cmd.Env = p.Dir, append([]string{}, env...)
	var errs textTail
	cmd.Stderr = &errs
	var out textTail
	cmd.Stdout = &out
	err := leash.Run(ctx, cmd)
	// The answer counts although something it started held on to the output.
	b, ok := readBandwidth(out.String())
	if !ok {
		b = &preflight.Bandwidth{}
		b.Refused, b.Failed = noAnswerOf(ctx, err, p.Interpreter, p.Limit, errs.String())
	}
	b.Interpreter = p.Interpreter
	return b
}

// noAnswerOf says why a Python that was asked something did not answer: refused where
// somebody stopped it, else what it died of.
func noAnswerOf(ctx context.Context, err error, interpreter string, limit time.Duration, stderr string) (refused, failed string) {
	var exit *exec.ExitError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "", fmt.Sprintf("%s gave no answer in time (%g s)", interpreter, limit.Seconds())
	case ctx.Err() != nil:
		return preflight.Interrupted, ""
	case errors.As(err, &exit):
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return "", fmt.Sprintf("%s was ended by %s%s", interpreter, unix.SignalName(ws.Signal()), lastWords(stderr))
		}
		return "", fmt.Sprintf("%s ended with status %d%s", interpreter, exit.ExitCode(), lastWords(stderr))
	case err != nil:
		return "", fmt.Sprintf("%s: %v%s", interpreter, err, lastWords(stderr))
	}
	return "", interpreter + " ended without an answer" + lastWords(stderr)
}

// bandwidthMarker keeps the answer apart from what a sitecustomize or a library prints.
const bandwidthMarker = "sparkrun-bandwidth:"

// readBandwidth reads the line of configs/bandwidth.py; ok is false where it is not there.
func readBandwidth(out string) (b *preflight.Bandwidth, ok bool) {
	i := strings.LastIndex(out, "\n"+bandwidthMarker)
	if i < 0 {
		return nil, false
	}
	line, _, whole := strings.Cut(out[i+1+len(bandwidthMarker):], "\n")
	var got struct {
		GBps   float64 `json:"gbps"`
		Device string  `json:"device"`
		Torch  string  `json:"torch"`
		Bytes  int64   `json:"bytes"`
		Peak   int64   `json:"peak"`
		Copies int     `json:"copies"`
		// Refused is why it was not tried, Error what went wrong.
		Refused string `json:"refused"`
		Error   string `json:"error"`
	}
	if !whole || json.Unmarshal([]byte(line), &got) != nil {
		return nil, false
	}
	b = &preflight.Bandwidth{
		GBps: got.GBps, Device: got.Device, Torch: got.Torch, Bytes: got.Bytes, PeakBytes: got.Peak, Copies: got.Copies,
		Refused: got.Refused, Failed: got.Error,
	}
	if b.Refused == "" && b.Failed == "" && !(b.GBps > 0) {
		b.Failed = "the measurement gave no figure"
	}
	return b, true
}

// textTail keeps the last words of an output.
type textTail struct{ buf bytes.Buffer }

const textTailMost = 64 << 10

func (t *textTail) Write(b []byte) (int, error) {
	n := len(b)
	if len(b) > textTailMost {
		b = b[len(b)-textTailMost:]
	}
	t.buf.Write(b)
	if over := t.buf.Len() - textTailMost; over > 0 {
		t.buf.Next(over)
	}
	return n, nil
}

func (t *textTail) String() string { return t.buf.String() }

// lastWords is the last line of an error output, for the end of a sentence.
func lastWords(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	last := []rune(strings.TrimSpace(lines[len(lines)-1]))
	if len(last) == 0 {
		return ""
	}
	if len(last) > 300 {
		last = append(last[:300], '…')
	}
	return ": " + string(last)
}
