package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/deadmount"
	"sparkrun/internal/proctree"
)

// TestSampleDriverHangs: a driver that hangs costs readings, a sensors process that dies
// as well, and neither the rows nor the process.
func TestSampleDriverHangs(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain+"at 1.5s block 4s\n")
	pid := b.begin("500ms")
	until(t, "rows without readings", func() bool { return strings.Count(b.read("thermal.log"), "[N/A], [N/A]") >= 3 })
	until(t, "rows with readings again", func() bool { return strings.HasSuffix(b.read("thermal.log"), ", 61, 80.50 W\n") })
	blanks := strings.Count(b.read("thermal.log"), "[N/A]")
	children := proctree.Descendants(pid)
	if len(children) != 1 {
		t.Fatalf("children: %v", children)
	}
	if err := unix.Kill(children[0].PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "another sensors process", func() bool {
		now := proctree.Descendants(pid)
		return len(now) == 1 && now[0].PID != children[0].PID
	})
	rows := len(b.rows("thermal.log"))
	until(t, "rows again", func() bool {
		text := b.read("thermal.log")
		return strings.Count(text, "\n") > rows+4 && strings.HasSuffix(text, ", 61, 80.50 W\n")
	})
	b.run("--stop")
	all := b.rows("thermal.log")
	// Half a second apart from the second row on, with nothing left out.
	for i := 2; i < len(all); i++ {
		if d := sampleTime(t, all[i]).Sub(sampleTime(t, all[i-1])); d > 950*time.Millisecond {
			t.Errorf("%v between %q and %q", d, all[i-1], all[i])
		}
	}
	if strings.Count(b.read("thermal.log"), "[N/A]") == blanks {
		t.Log("the sensors process came back before a row was due")
	}
}

func sampleTime(t *testing.T, row string) time.Time {
	t.Helper()
	at, err := time.ParseInLocation("2006/01/02 15:04:05.000", row[:23], time.Local)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestSampleDeadDriver: no answer at the start is no sensor: status 1 and no file. Nor is
// there one where no GPU is.
func TestSampleDeadDriver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scenario, driver, says string
	}{
		"no library":      {samplePlain, "/nonexistent/libnvidia-ml.so.1", "/nonexistent/libnvidia-ml.so.1"},
		"a driver hangs":  {samplePlain + "at 0s block 60s\n", "", "has not answered"},
		"no GPU":          {"at 0s count 0\n", "", "no sensor answers"},
		"a lost GPU":      {samplePlain + "at 0s fail all 15\n", "", "no sensor answers"},
		"nothing to tell": {"at 0s temp na power na\n", "", "neither temperature nor power"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newSampleBox(t, c.scenario)
			if c.driver != "" {
				b.env = append(b.env, "SPARKRUN_NVML_LIBRARY="+c.driver)
			}
			status, out, errs := b.run("1")
			if status != 1 || out != "" || !strings.Contains(errs, "no sensor answers") || !strings.Contains(errs, c.says) {
				t.Errorf("status %d\n%s%s", status, out, errs)
			}
			if b.exists("thermal.log") || b.exists("thermal.log.pid") || len(b.samplers()) > 0 {
				t.Error("something is left")
			}
		})
	}
}

// TestSampleWideWithoutGPU: the other sensors are worth a log; what the GPU would say is
// empty, never zero.
func TestSampleWideWithoutGPU(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	b.env = append(b.env, "SPARKRUN_NVML_LIBRARY=/nonexistent/libnvidia-ml.so.1")
	status, out, errs := b.run("--wide", "--foreground", "--for", "1s", "200ms")
	if status == 1 && strings.Contains(errs, "no sensor answers") {
		t.Skip("this machine has no sensor at all")
	}
	if status != 0 || errs != "" {
		t.Fatalf("status %d\n%s%s", status, out, errs)
	}
	lines := strings.Split(strings.TrimSuffix(b.read("thermal.log"), "\n"), "\n")
	if len(lines) != 7 {
		t.Errorf("%d rows in 1 s, want 6", len(lines)-1)
	}
	names := strings.Split(lines[0], ",")
	for _, line := range lines[1:] {
		cells := strings.Split(line, ",")
		for i, name := range names {
			gpu := strings.HasPrefix(name, "temp_gpu") || strings.HasPrefix(name, "power_gpu") || strings.HasPrefix(name, "clock_") || name == "util_gpu_pct"
			if gpu && cells[i] != "" || (name == "mem_available_kib" || name == "load1") && cells[i] == "" {
				t.Errorf("%s is %q in %s", name, cells[i], line)
			}
		}
	}
}

// TestSampleStarterDies: a start that was broken off leaves no sampler.
func TestSampleStarterDies(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain+"at 0s block 2s\n")
	cmd := b.command("1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "the sampler", func() bool { return len(b.samplers()) == 2 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	until(t, "its end", func() bool { return len(b.samplers()) == 0 })
	if b.exists("thermal.log.pid") {
		t.Error("the pid file is left")
	}
}

// TestSampleKeepsNothingOpen: what the shell had open is not kept, so that nobody waits for
// the sampler without knowing.
func TestSampleKeepsNothingOpen(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := b.command("1")
	cmd.ExtraFiles = []*os.File{nil, nil, w} // number 5
	status, out, errs := b.finish(cmd)
	w.Close()
	if status != 0 {
		t.Fatalf("status %d\n%s%s", status, out, errs)
	}
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the sampler keeps a pipe of ours: %v", err)
	}
}

// TestSampleTerminalCloses: the end of the terminal is not the end of the sampler.
func TestSampleTerminalCloses(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	p := newPane(t, b.dir)
	b.write("go.sh", fmt.Sprintf("export %s\nexport %s\nsparkrun sample 100ms\n", b.env[len(b.env)-2], b.env[len(b.env)-1]))
	p.command(". ./go.sh")
	p.shows("not a bug")
	pid, err := strconv.Atoi(strings.TrimSpace(b.read("thermal.log.pid")))
	if err != nil {
		t.Fatal(err)
	}
	p.keys("C-c")
	p.tmux("kill-server")
	before := strings.Count(b.read("thermal.log"), "\n")
	until(t, "rows after the end of the terminal", func() bool { return strings.Count(b.read("thermal.log"), "\n") > before+10 })
	if !alive(pid) {
		t.Error("it is gone")
	}
	b.run("--stop")
	b.rows("thermal.log")
}

// TestSampleFullDisk: what the disk refuses is tried again, told once, and neither torn nor
// lost. The log that another program replaces ends the sampler with a sentence.
func TestSampleFullDisk(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	cmd := b.command("--foreground", "100ms")
	errs := &syncBuffer{}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "rows", func() bool { return b.exists("thermal.log") && strings.Count(b.read("thermal.log"), "\n") > 3 })
	limit := func(n uint64) {
		t.Helper()
		if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: n, Max: unix.RLIM_INFINITY}, nil); err != nil {
			t.Fatal(err)
		}
	}
	limit(uint64(len(b.read("thermal.log")) + 50))
	until(t, "the trouble told", func() bool {
		return strings.Contains(errs.String(), "cannot be written, and is tried again: file too large")
	})
	limit(unix.RLIM_INFINITY)
	until(t, "its end told", func() bool { return strings.Contains(errs.String(), "is written again; rows lost: 0") })
	all := b.rows("thermal.log")
	for i := 2; i < len(all); i++ {
		if d := sampleTime(t, all[i]).Sub(sampleTime(t, all[i-1])); d > 190*time.Millisecond {
			t.Errorf("%v between %q and %q", d, all[i-1], all[i])
		}
	}
	if err := os.Rename(b.path("thermal.log"), b.path("old.log")); err != nil {
		t.Fatal(err)
	}
	b.write("new", "a log of another kind\n")
	if err := os.Rename(b.path("new"), b.path("thermal.log")); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if b.read("thermal.log") != "a log of another kind\n" {
		t.Error("another program's file was written")
	}
	if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(errs.String(), "a log of another kind") || b.exists("thermal.log.pid") {
		t.Errorf("%v\n%s", err, errs)
	}
	if n := strings.Count(errs.String(), "cannot be written"); n != 1 {
		t.Errorf("told %d times:\n%s", n, errs)
	}
}

// TestSampleDeadMount: where the disk does not answer, Ctrl-C ends it all the same.
func TestSampleDeadMount(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	cmd := b.command("--foreground", "1", filepath.Join(deadmount.New(t), "thermal.log"))
	errs := &syncBuffer{}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Until it hangs there, the signal would end it anyhow.
	until(t, "that it waits for the disk", func() bool {
		waits, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", cmd.Process.Pid))
		for _, w := range waits {
			if where, err := os.ReadFile(w); err == nil && (strings.Contains(string(where), "fuse") || string(where) == "request_wait_answer") {
				return true
			}
		}
		return len(waits) == 0
	})
	_ = cmd.Process.Signal(unix.SIGINT)
	began := time.Now()
	_ = cmd.Wait()
	if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(errs.String(), "a dead mount") || time.Since(began) > 20*time.Second {
		t.Errorf("%v after %v\n%s", cmd.ProcessState, time.Since(began), errs)
	}
}

// TestSampleFor: it ends by itself, with a row at the very end.
func TestSampleFor(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	if status, out, errs := b.run("--foreground", "--for", "2s", "500ms"); status != 0 || errs != "" {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
	if n := len(b.rows("thermal.log")); n != 5 {
		t.Errorf("%d rows in 2 s, want 5:\n%s", n, b.read("thermal.log"))
	}
	if b.exists("thermal.log.pid") {
		t.Error("the pid file is left")
	}
}
