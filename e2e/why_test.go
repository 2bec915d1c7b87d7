package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// whyDeath is how the logs of these tests end.
const whyDeath = `Traceback (most recent call last):
  File "/home/u/train.py", line 88, in <module>
    trainer.train()
  File "/home/u/trainer.py", line 2345, in training_step
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 119.60 GiB of which 1.20 GiB is free.
`

// answer is what sparkrun why --json says, and what it took.
type answer struct {
	Verdict, Kind, Reason, Confidence string
	Evidence                          []struct {
		Text string
		Line int
	}
	took time.Duration
	peak int64
}

// why runs sparkrun why --json.
func why(t *testing.T, stdin io.Reader, args ...string) answer {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(filepath.Join(bin, "sparkrun"), append([]string{"why", "--json"}, args...)...)
	cmd.Env, cmd.Dir, cmd.Stdin = testEnv(dir), dir, stdin
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var a answer
	ended := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		// Not the maxrss of its resource usage, which begins with that of the test
		// that started it.
		for {
			if kib, ok := readProcNumber(cmd.Process.Pid, "status", "VmHWM:"); ok {
				a.peak = max(a.peak, kib<<10)
			}
			select {
			case <-ended:
				return
			case <-time.After(3 * time.Millisecond):
			}
		}
	}()
	err := cmd.Wait()
	a.took = time.Since(began)
	close(ended)
	<-watched
	if err != nil {
		t.Fatalf("sparkrun why: %v\n%s", err, stderr.Bytes())
	}
	if err := json.Unmarshal(stdout.Bytes(), &a); err != nil {
		t.Fatalf("%v\n%s", err, stdout.Bytes())
	}
	if a.peak > whyPeak() {
		t.Errorf("it took %d MiB at its peak, more than %d", a.peak>>20, whyPeak()>>20)
	}
	return a
}

// underRace says that the binary is built with the race detector, which takes some
// ten times the memory and the time.
func underRace() bool { return strings.HasSuffix(os.Getenv("SPARKRUN_BIN"), "-race") }

// whyPeak is the most memory that sparkrun why may take, whatever it reads.
func whyPeak() int64 {
	if underRace() {
		return 640 << 20
	}
	return 64 << 20
}

// writeLog writes a log of about n bytes as a training night makes them, with
// whyDeath at its end, and returns the line of the exception.
func writeLog(t *testing.T, path string, n int64) (line int) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	size, count := int64(0), 0
	put := func(format string, args ...any) {
		k, err := fmt.Fprintf(w, format, args...)
		if err != nil {
			t.Fatal(err)
		}
		size += int64(k)
	}
	for step := 1; size < n; step++ {
		put("{'loss': %.4f, 'grad_norm': %.6f, 'learning_rate': 1.0000e-04, 'epoch': %.2f}\n", 2/float64(step), 1/float64(step), float64(step)/1000)
		for i := range 10 {
			put("\r %3d%%|%-10s| %d/9000000 [00:%02d<3:12:33,  1.21it/s]", step/90000, "###", step*10+i, i)
		}
		put("\n")
		for i := range 6 {
			put("2026-07-14 10:%02d:00,123 - INFO - worker %d - processed batch %d of shard data-%05d.parquet, 4096 tokens, queue depth %d\n", i, i, step, step%99999, i)
		}
		count += 8
	}
	put("%s", whyDeath)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return count + strings.Count(whyDeath, "\n")
}

// demandDeath demands that whyDeath was found on that line; 0 is any.
func demandDeath(t *testing.T, a answer, line int) {
	t.Helper()
	if a.Verdict != "oom" || a.Kind != "cuda-allocator" || a.Confidence != "high" {
		t.Fatalf("%s (%s%s), %s", a.Verdict, a.Kind, a.Reason, a.Confidence)
	}
	if got := a.Evidence[0]; line > 0 && got.Line != line || !strings.Contains(got.Text, "Tried to allocate 2.50 GiB") {
		t.Errorf("line %d, want %d: %s", got.Line, line, got.Text)
	}
}

// TestWhyLargeLog reads 200 MB, from a file and from a pipe, and with
// SPARKRUN_TEST_LARGE=1 the 2 GB that are asked for.
func TestWhyLargeLog(t *testing.T) {
	size, limit := int64(200e6), 30*time.Second
	if underRace() {
		size, limit = 20e6, 10*time.Minute
	}
	if os.Getenv("SPARKRUN_TEST_LARGE") != "" {
		size, limit = 2e9, 20*time.Second
	}
	path := filepath.Join(t.TempDir(), "train.log")
	line := writeLog(t, path, size)
	a := why(t, nil, path, "--exit", "1")
	demandDeath(t, a, line)
	t.Logf("%.1f GB in %.1f s, peak %d MiB", float64(size)/1e9, a.took.Seconds(), a.peak>>20)
	if a.took > limit {
		t.Errorf("it took %s, more than %s", a.took, limit)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		_, _ = io.Copy(w, f) // a short log would be seen below
		_ = w.Close()
	}()
	demandDeath(t, why(t, r, "-", "--exit", "1"), line)
}

// repeated is a text many times over, as a reader.
type repeated struct {
	text []byte
	left int
	rest []byte
}

func (r *repeated) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		if len(r.rest) == 0 {
			if r.left == 0 {
				break
			}
			r.left--
			r.rest = r.text
		}
		k := copy(b[n:], r.rest)
		r.rest = r.rest[k:]
		n += k
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// TestWhyOddLogs: what would fill the memory of a program that reads lines does not
// fill ours, and the death behind it is found.
func TestWhyOddLogs(t *testing.T) {
	t.Parallel()
	bar := []byte("\r 40%|####      | 4/10 [00:04<00:06,  1.00s/it]")
	for name, c := range map[string]struct {
		text  []byte
		times int
	}{
		"a line of 150 MB":        {bytes.Repeat([]byte("x"), 1<<20), 150},
		"a line of 50 MB of text": {[]byte(`{"text": "an error is no out of memory", "loss": [1, 2, 3]}, `), 800000},
		"3 million redraws":       {bar, 3000000},
		"100 MB of NULs":          {make([]byte, 1<<20), 100},
		"100 MB of CRs":           {bytes.Repeat([]byte("\r"), 1<<20), 100},
		"50 MB of newlines":       {bytes.Repeat([]byte("\n"), 1<<20), 50},
		"50 MB that is no UTF-8":  {bytes.Repeat([]byte("\xff\xfe\xc3("), 1<<18), 50},
	} {
		t.Run(name, func(t *testing.T) {
			if underRace() {
				c.times /= 10
			}
			in := io.MultiReader(&repeated{text: c.text, left: c.times}, strings.NewReader("\n"+whyDeath))
			a := why(t, in, "-", "--exit", "1")
			demandDeath(t, a, 0)
			t.Logf("%.1f s, peak %d MiB", a.took.Seconds(), a.peak>>20)
		})
	}
}

// TestWhyEndless: an input without an end costs time, which is the user's to end,
// and no memory.
func TestWhyEndless(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/dev/zero", "/dev/urandom"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := exec.Command(filepath.Join(bin, "sparkrun"), "why", path)
			cmd.Env, cmd.Dir = testEnv(dir), dir
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// Until it has read more than it may keep.
			until(t, "200 MB read", func() bool { return procNumber(t, cmd.Process.Pid, "io", "rchar:") > 200e6 })
			if kib := procNumber(t, cmd.Process.Pid, "status", "VmHWM:"); kib<<10 > whyPeak() {
				t.Errorf("%d MiB", kib>>10)
			}
			if err := cmd.Process.Signal(unix.SIGINT); err != nil {
				t.Fatal(err)
			}
			var ee *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &ee) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// procNumber reads a number from a file of /proc/PID.
func procNumber(t *testing.T, pid int, file, name string) int64 {
	t.Helper()
	n, ok := readProcNumber(pid, file, name)
	if !ok {
		t.Fatalf("/proc/%d/%s has no %s", pid, file, name)
	}
	return n
}

// readProcNumber does the same for a process that may be gone.
func readProcNumber(pid int, file, name string) (int64, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// TestWhyOfARun: the verdict of every attempt, and one for a run whose sparkrun was
// killed.
func TestWhyOfARun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := filepath.Join(dir, "train.py")
	if err := os.WriteFile(script, []byte("print('step 7 loss 0.5')\nraise MemoryError\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := start(t, dir, "--no-preflight", "--no-retry", "--", "python3", script)
	p.wait(30 * time.Second)
	if a := why(t, nil, p.file(".")); a.Verdict != "oom" || a.Kind != "host-alloc" {
		t.Errorf("%s (%s%s)", a.Verdict, a.Kind, a.Reason)
	}
}

// TestWhyOfAKilledRun: a run that lost its sparkrun and its holder is judged from
// its files, and the next start says so and writes it down, once.
func TestWhyOfAKilledRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir, "--no-preflight", "--", "sh", "-c", "echo step 7 loss 0.5; exec sleep 1000")
	until(t, "output", fileHas(p.file("attempts/1/output.log"), "step 7"))
	until(t, "running", fileHas(p.file("run.json"), `"state": "running"`))
	id := p.id()
	out, err := whyText(dir, id)
	if err != nil || !strings.Contains(out, "still going") || !strings.Contains(out, "attempt 1: running") {
		t.Errorf("while it runs: %v\n%s", err, out)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.done
	holders, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range holders {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), "__hold\x00"+id+"\x00") {
			killChild(filepath.Base(filepath.Dir(f)) + " ")
		}
	}
	for _, line := range processesOf(id) {
		killChild(line)
	}
	until(t, "everything gone", func() bool { return len(processesOf(id)) == 0 && !hasHolder(id) })
	if out, err = whyText(dir, id); err != nil || strings.Contains(out, "still going") || !strings.Contains(out, "no verdict of its own") {
		t.Errorf("after the kill: %v\n%s", err, out)
	}
	// It is looked for beside the command, which therefore waits for what is told.
	for i, c := range []struct {
		command string
		tells   bool
	}{
		{`until grep -q "has no e[n]d" "$SPARKRUN_RUN_DIR/events.jsonl"; do sleep 0.05; done`, true},
		{"sleep 0.5", false},
	} {
		next := start(t, dir, "--no-preflight", "--", "sh", "-c", c.command)
		next.wait(30 * time.Second)
		if said := strings.Contains(next.err.String(), id+" (attempt 1"); said != c.tells {
			t.Errorf("start %d tells of the lost run: %v\n%s", i+1, said, next.err)
		}
	}
	m := readJSON(t, filepath.Join(dir, "sparkrun-runs", id, "run.json"))
	if m["state"] != "lost" || m["exit_status"] != 125.0 {
		t.Errorf("state %v, status %v", m["state"], m["exit_status"])
	}
	if out, err = whyText(dir, id); err != nil || !strings.Contains(out, "(lost)") {
		t.Errorf("afterwards: %v\n%s", err, out)
	}
}

func whyText(dir string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(bin, "sparkrun"), append([]string{"why"}, args...)...)
	cmd.Env, cmd.Dir = testEnv(dir), dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}
