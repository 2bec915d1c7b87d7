package sampler

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// streaming runs Stream until the test is done with it.
type streaming struct {
	t       *testing.T
	answers chan Answer
	ended   chan error
	cancel  context.CancelFunc
}

func startStream(t *testing.T, exe string) *streaming {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &streaming{t: t, answers: make(chan Answer), ended: make(chan error, 1), cancel: cancel}
	go func() {
		s.ended <- Stream(ctx, exe, 20*time.Millisecond, func(a Answer) {
			select {
			case s.answers <- a:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(cancel)
	return s
}

// until takes answers until one is as wanted.
func (s *streaming) until(what string, ok func(Answer) bool) Answer {
	s.t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case a := <-s.answers:
			if ok(a) {
				return a
			}
		case err := <-s.ended:
			s.t.Fatalf("ended before %s: %v", what, err)
		case <-limit:
			s.t.Fatalf("never happened: %s", what)
		}
	}
}

func (s *streaming) end() error {
	s.t.Helper()
	select {
	case err := <-s.ended:
		return err
	case <-time.After(20 * time.Second):
		s.t.Fatal("it does not end")
	}
	return nil
}

func TestStream(t *testing.T) {
	t.Parallel()
	s := startStream(t, machine{scenario: []string{"at 0s temp 71 power 92 sm 2240 util 97"}}.exe(t))
	first := s.until("a reading", func(a Answer) bool { return a.GPU.TempC.V == 71 && a.GPU.PowerW.V == 92 })
	if first.Pending || first.Device.Name == "" {
		t.Errorf("the device is missing: %+v", first)
	}
	next := s.until("the next reading", func(Answer) bool { return true })
	if next.GPU.T <= first.GPU.T || next.Device.Name != first.Device.Name {
		t.Errorf("after %+v came %+v", first.GPU, next.GPU)
	}
	s.cancel()
	if err := s.end(); err != nil {
		t.Errorf("ended by its context: %v", err)
	}
}

// A driver that hangs costs readings and is told; what was known of the device stays.
func TestStreamOfADriverThatHangs(t *testing.T) {
	t.Parallel()
	s := startStream(t, machine{scenario: []string{"at 0s temp 71", "at 0.3s block 60s"}, flags: []string{"-deadline", "50ms"}}.exe(t))
	s.until("a reading", func(a Answer) bool { return a.GPU.TempC.OK })
	a := s.until("silence", func(a Answer) bool { return a.GPU.Failed["nvml"] != "" })
	if a.GPU.TempC.OK || a.Device.Name == "" {
		t.Errorf("silence is told as %+v", a)
	}
	s.cancel()
	if err := s.end(); err != nil {
		t.Errorf("ended by its context: %v", err)
	}
}

func TestStreamWithoutDriver(t *testing.T) {
	t.Parallel()
	s := startStream(t, machine{lib: "/nonexistent/libnvidia-ml.so.1"}.exe(t))
	if a := s.until("an answer", func(a Answer) bool { return !a.Pending }); a.Device.Source != "none" || a.Device.ErrKind == "" {
		t.Errorf("got %+v", a.Device)
	}
}

// A sensors process that ends, or writes something else, is an error that says so.
func TestStreamOfAProcessThatFails(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"echo the library is torn >&2; exit 3":   "the library is torn",
		"echo nonsense; exec sleep 60":           "which is no record",
		`echo '{"gpu":{}}'; echo gone >&2; exit`: "ended by itself",
	} {
		path := filepath.Join(t.TempDir(), "sensors")
		writeFile(t, path, "#!/bin/sh\n"+script+"\n")
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := Stream(ctx, path, 20*time.Millisecond, func(Answer) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", script, err)
		}
		cancel()
	}
	if err := startStream(t, "/nonexistent/sparkrun").end(); err == nil || !strings.Contains(err.Error(), "cannot be started") {
		t.Errorf("no program: %v", err)
	}
}
