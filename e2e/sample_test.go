package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/e2e/fakenvml"
	"sparkrun/internal/proctree"
)

const (
	sampleHead  = "timestamp,temperature.gpu,power.draw\n"
	samplePlain = "at 0s temp 61 power 80.5 sm 2300 util 90 reasons 0x0 pstate 0\n"
)

// sampleBox is a folder in which samplers run.
type sampleBox struct {
	t   *testing.T
	dir string
	env []string
}

func newSampleBox(t *testing.T, scenario string) *sampleBox {
	t.Helper()
	return sampleBoxIn(t, t.TempDir(), scenario)
}

func sampleBoxIn(t *testing.T, dir, scenario string) *sampleBox {
	t.Helper()
	b := &sampleBox{t: t, dir: dir}
	b.write("scenario", scenario)
	b.env = append(testEnv(b.dir), "SPARKRUN_NVML_LIBRARY="+fakenvml.Build(t), "FAKENVML_SCENARIO="+b.path("scenario"))
	t.Cleanup(func() {
		// The sensors processes end with their samplers.
		for _, pid := range b.samplers() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		until(t, "no sampler left", func() bool { return len(b.samplers()) == 0 })
	})
	return b
}

func (b *sampleBox) path(name string) string { return filepath.Join(b.dir, name) }

func (b *sampleBox) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(b.path(name), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *sampleBox) read(name string) string {
	b.t.Helper()
	data, err := os.ReadFile(b.path(name))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

func (b *sampleBox) exists(name string) bool {
	_, err := os.Lstat(b.path(name))
	return err == nil
}

// listing is every file of the folder with its content; what is no regular file is not
// opened.
func (b *sampleBox) listing() map[string]string {
	b.t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range entries {
		all[e.Name()] = e.Type().String()
		if e.Type().IsRegular() {
			all[e.Name()] = b.read(e.Name())
		}
	}
	return all
}

// samplers are the processes that sample into this folder: its path is in their
// command line, or they run in it.
func (b *sampleBox) samplers() []int {
	var out []int
	for _, p := range proctree.All() {
		cmd, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		// By its path, which may have any name: the command here is a link to it.
		_, args, _ := strings.Cut(string(cmd), "\x00")
		if err != nil || p.State == 'Z' || !strings.HasPrefix(args, "sample\x00") {
			continue
		}
		if cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.PID)); strings.Contains(string(cmd), b.dir+"/") || cwd == b.dir {
			out = append(out, p.PID)
		}
	}
	return out
}

func (b *sampleBox) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(bin, "sparkrun"), append([]string{"sample"}, args...)...)
	cmd.Dir, cmd.Env = b.dir, b.env
	return cmd
}

// run runs `sparkrun sample` to its end. Its output is a pipe, so that it would hang if the
// sampler kept that open.
func (b *sampleBox) run(args ...string) (status int, stdout, stderr string) {
	b.t.Helper()
	return b.finish(b.command(args...))
}

func (b *sampleBox) finish(cmd *exec.Cmd) (status int, stdout, stderr string) {
	b.t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	limit := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	err := cmd.Run()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		b.t.Error(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

var sampling = regexp.MustCompile(`(?m)^Sampling every (\S+)s into (\S+) \(pid (\d+)\)$`)

// begin starts a sampler in the background and returns its pid.
func (b *sampleBox) begin(args ...string) int {
	b.t.Helper()
	status, out, errs := b.run(args...)
	m := sampling.FindStringSubmatch(out)
	if status != 0 || m == nil {
		b.t.Fatalf("sample %q: status %d\n%s%s", args, status, out, errs)
	}
	pid, err := strconv.Atoi(m[3])
	if err != nil {
		b.t.Fatal(err)
	}
	return pid
}

// alive says whether a process runs.
func alive(pid int) bool {
	p, ok := proctree.Read(pid)
	return ok && p.State != 'Z'
}

var sampleRow = regexp.MustCompile(`^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}, (\d+|\[N/A\]), (\d+\.\d\d W|\[N/A\])$`)

// rows demands that a log is whole: the header once, then rows in time order.
func (b *sampleBox) rows(name string) []string {
	b.t.Helper()
	text := b.read(name)
	body, ok := strings.CutPrefix(text, sampleHead)
	if !ok || !strings.HasSuffix(body, "\n") {
		b.t.Fatalf("%s is %q", name, text)
	}
	rows := strings.Split(strings.TrimSuffix(body, "\n"), "\n")
	for i, r := range rows {
		if !sampleRow.MatchString(r) {
			b.t.Errorf("%s row %d: %q", name, i+1, r)
		}
		if i > 0 && r[:23] <= rows[i-1][:23] {
			b.t.Errorf("%s row %d is not after the one before: %s", name, i+1, r)
		}
	}
	return rows
}

// TestSampleAgain: the runbook's use. A second start stops the first and appends.
func TestSampleAgain(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	status, out, errs := b.run()
	m := sampling.FindStringSubmatch(out)
	if status != 0 || m == nil || m[1] != "30" || m[2] != "thermal.log" || errs != "" ||
		!strings.Contains(out, "\nA sustained ~100W reading is the platform cap, not a bug") {
		t.Fatalf("status %d\n%s%s", status, out, errs)
	}
	// The first row is there when the command is over, so what it has said is true.
	if rows := b.rows("thermal.log"); len(rows) != 1 || !strings.HasSuffix(rows[0], ", 61, 80.50 W") {
		t.Errorf("%q", rows)
	}
	if got := b.read("thermal.log.pid"); got != m[3]+"\n" {
		t.Errorf("pid file %q, printed %s", got, m[3])
	}
	first, _ := strconv.Atoi(m[3])
	if !alive(first) {
		t.Fatal("the sampler is not there")
	}
	status, out, _ = b.run("200ms")
	if status != 0 || !strings.HasPrefix(out, fmt.Sprintf("Stopping existing sampler (pid %d)\nSampling every 0.2s into thermal.log (pid ", first)) {
		t.Fatalf("status %d\n%s", status, out)
	}
	if alive(first) {
		t.Error("the first one was not waited for")
	}
	until(t, "five rows", func() bool { return strings.Count(b.read("thermal.log"), "\n") >= 6 })
	status, out, _ = b.run("--stop")
	if status != 0 || !strings.HasPrefix(out, "Stopping existing sampler (pid ") {
		t.Errorf("status %d\n%s", status, out)
	}
	if left := b.samplers(); len(left) > 0 || b.exists("thermal.log.pid") {
		t.Errorf("left: %v, pid file %v", left, b.exists("thermal.log.pid"))
	}
	if len(b.rows("thermal.log")) < 5 {
		t.Error("rows are lost")
	}
	status, out, _ = b.run("--stop")
	if status != 0 || out != "No sampler of thermal.log is running\n" {
		t.Errorf("status %d\n%s", status, out)
	}
}

// TestSampleStrangers: a pid file that names somebody else's process does it no harm.
func TestSampleStrangers(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	other := b.begin("1", "other.log")
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}()
	for name, pid := range map[string]int{"a program": sleep.Process.Pid, "another log's sampler": other, "this test": os.Getpid(), "init": 1} {
		b.write("thermal.log.pid", fmt.Sprintf("%d\n", pid))
		status, out, errs := b.run("1")
		if status != 0 || strings.Contains(out, "Stopping") || !strings.Contains(errs, fmt.Sprintf("named pid %d ", pid)) {
			t.Errorf("%s: status %d\n%s%s", name, status, out, errs)
		}
		if !alive(pid) {
			t.Errorf("%s was ended", name)
		}
		if status, out, errs := b.run("--stop"); status != 0 || errs != "" || !strings.HasPrefix(out, "Stopping existing sampler (pid ") {
			t.Errorf("%s: --stop: status %d\n%s%s", name, status, out, errs)
		}
		// And by itself.
		b.write("thermal.log.pid", fmt.Sprintf("%d\n", pid))
		if status, out, errs := b.run("--stop"); status != 0 || !strings.Contains(errs, "left alone") || out != "No sampler of thermal.log is running\n" || !alive(pid) {
			t.Errorf("%s: --stop of a stale file: status %d\n%s%s", name, status, out, errs)
		}
	}
	for name, text := range map[string]string{"nobody": "4194303\n", "empty": ""} {
		b.write("thermal.log.pid", text)
		if status, out, errs := b.run("1"); status != 0 || errs != "" || strings.Contains(out, "Stopping") {
			t.Errorf("%s: status %d\n%s%s", name, status, out, errs)
		}
		b.run("--stop")
	}
}

// TestSampleAfterKill: after kill -9 the stale pid file is no obstacle.
func TestSampleAfterKill(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	pid := b.begin("100ms")
	until(t, "rows", func() bool { return strings.Count(b.read("thermal.log"), "\n") > 3 })
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "its end", func() bool { return !alive(pid) })
	before := b.read("thermal.log")
	// And a torn last line, as after a power cut.
	b.write("thermal.log", before+"2026/07/14 10:00")
	status, out, errs := b.run("100ms")
	if status != 0 || strings.Contains(out, "Stopping") || errs != "" {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
	if got := b.read("thermal.log"); !strings.HasPrefix(got, before+"2026/07/14 10:00\n20") {
		t.Errorf("the log goes on with %q", got[len(before):])
	}
}

// TestSampleSignals: whatever asks it to end, it ends well and leaves no pid file.
func TestSampleSignals(t *testing.T) {
	t.Parallel()
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			t.Parallel()
			b := newSampleBox(t, samplePlain)
			pid := b.begin("200ms", "back.log")
			if err := unix.Kill(pid, sig); err != nil {
				t.Fatal(err)
			}
			until(t, "its end", func() bool { return !alive(pid) })
			if b.exists("back.log.pid") {
				t.Error("the pid file is left")
			}
			b.rows("back.log")

			cmd := b.command("--foreground", "200ms", "fore.log")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			said := make([]byte, 30)
			if _, err := io.ReadFull(out, said); err != nil || !strings.HasPrefix(string(said), "Sampling every 0.2s into fore") {
				t.Errorf("%q %v", said, err)
			}
			if got := b.read("fore.log.pid"); got != fmt.Sprintf("%d\n", cmd.Process.Pid) {
				t.Errorf("pid file %q", got)
			}
			_ = cmd.Process.Signal(sig)
			_, _ = io.Copy(io.Discard, out)
			if err := cmd.Wait(); err != nil {
				t.Errorf("a sampler that was asked to end: %v", err)
			}
			if b.exists("fore.log.pid") {
				t.Error("the pid file is left")
			}
			b.rows("fore.log")
		})
	}
}

// TestSampleManyAtOnce: however many start at the same time, one is left, and no row is torn.
func TestSampleManyAtOnce(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if status, out, errs := b.run("100ms"); status != 0 || errs != "" {
				t.Errorf("status %d\n%s%s", status, out, errs)
			}
		})
	}
	all.Wait()
	left := b.samplers()
	if len(left) != 1 || b.read("thermal.log.pid") != fmt.Sprintf("%d\n", left[0]) {
		t.Errorf("samplers %v, pid file %q", left, b.read("thermal.log.pid"))
	}
	before := strings.Count(b.read("thermal.log"), "\n")
	until(t, "more rows", func() bool { return strings.Count(b.read("thermal.log"), "\n") > before+3 })
	b.run("--stop")
	body := strings.TrimPrefix(b.read("thermal.log"), sampleHead)
	for _, row := range strings.Split(strings.TrimSuffix(body, "\n"), "\n") {
		if !sampleRow.MatchString(row) {
			t.Errorf("%q", row)
		}
	}
}

// TestSampleOtherNames: the same log by a link, and a sampler whose pid file is gone: it is
// found all the same, so that two never write one log.
func TestSampleOtherNames(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	b.write("real.log", "")
	if err := os.Symlink("real.log", b.path("link.log")); err != nil {
		t.Fatal(err)
	}
	first := b.begin("1", "link.log")
	if info, err := os.Lstat(b.path("link.log")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v", err)
	}
	b.rows("real.log")
	status, out, errs := b.run("1", "real.log")
	if status != 0 || !strings.Contains(out, fmt.Sprintf("Stopping existing sampler (pid %d)", first)) || alive(first) || b.exists("link.log.pid") {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
	if err := os.Remove(b.path("real.log.pid")); err != nil {
		t.Fatal(err)
	}
	second := b.begin("1", "real.log")
	if left := b.samplers(); len(left) != 1 || left[0] != second {
		t.Errorf("%v sample", left)
	}
	if err := os.Remove(b.path("real.log.pid")); err != nil {
		t.Fatal(err)
	}
	if status, out, _ := b.run("--stop", "real.log"); status != 0 || !strings.HasPrefix(out, "Stopping") || alive(second) {
		t.Errorf("--stop: status %d\n%s", status, out)
	}
}

// TestSampleFrozen: one that does not react to SIGTERM is killed, and waited for.
func TestSampleFrozen(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	pid := b.begin("1")
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	status, out, errs := b.run("1")
	if status != 0 || !strings.Contains(out, fmt.Sprintf("Stopping existing sampler (pid %d)", pid)) || alive(pid) {
		t.Errorf("status %d, alive %v\n%s%s", status, alive(pid), out, errs)
	}
	b.rows("thermal.log")
}

// TestSampleRefuses: bad arguments and other people's files: status 125, a sentence, nothing
// said of sampling, nothing made, nothing changed, and a sampler that runs goes on.
func TestSampleRefuses(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	b.write("diary", "dear diary\n")
	b.write("held.log.pid", "my notes\n")
	b.write("linked", "")
	if err := errors.Join(os.Mkdir(b.path("folder"), 0o755), unix.Mkfifo(b.path("fifo"), 0o644),
		os.Symlink("/dev/null", b.path("null")), os.Symlink("linked", b.path("b.log.pid")),
		os.Symlink("nowhere/x.log", b.path("dangling"))); err != nil {
		t.Fatal(err)
	}
	running := b.begin("1", "run.log")
	before := b.listing()
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"a word":              {[]string{"abc"}, `"abc"`},
		"zero":                {[]string{"0"}, `"0"`},
		"a negative interval": {[]string{"--", "-5"}, `"-5"`},
		"below zero":          {[]string{"-1"}, `the interval "-1": seconds`},
		"below zero, a unit":  {[]string{"-5s", "x.log"}, `the interval "-5s": seconds`},
		"no such flag":        {[]string{"-x"}, "unknown shorthand flag: 'x'"},
		"two days":            {[]string{"48h"}, "a day"},
		"a nanosecond":        {[]string{"1ns"}, `"1ns"`},
		"the log first":       {[]string{"thermal.log"}, "the log comes second"},
		"three arguments":     {[]string{"1", "a", "b"}, "not 3"},
		"an empty name":       {[]string{"1", ""}, "no name"},
		"no time":             {[]string{"--for", "0s"}, "--for"},
		"stop and wide":       {[]string{"--stop", "--wide"}, "--stop"},
		"a missing folder":    {[]string{"1", "nowhere/x.log"}, "nowhere"},
		"below a file":        {[]string{"1", "diary/x.log"}, "diary"},
		"a dangling link":     {[]string{"1", "dangling"}, "dangling"},
		"procfs":              {[]string{"1", "/proc/thermal.log"}, "/proc"},
		"somebody's file":     {[]string{"1", "diary"}, "dear diary"},
		"a folder":            {[]string{"1", "folder"}, "folder"},
		"a FIFO":              {[]string{"1", "fifo"}, "no regular file"},
		"a device":            {[]string{"1", "/dev/null"}, "no regular file"},
		"a link to one":       {[]string{"1", "null"}, "no regular file"},
		"somebody's pid file": {[]string{"1", "held.log"}, "my notes"},
		"a linked pid file":   {[]string{"1", "b.log"}, "b.log.pid"},
		"other columns":       {[]string{"--wide", "1", "run.log"}, "begins with"},
		"stop of a diary":     {[]string{"--stop", "1", "held.log"}, "my notes"},
	} {
		status, out, errs := b.run(c.args...)
		if status != 125 || out != "" || !strings.Contains(errs, c.says) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: status %d\n%s%s", name, status, out, errs)
		}
	}
	after := b.listing()
	for path := range after {
		if _, was := before[path]; !was {
			t.Errorf("made: %s", path)
		}
	}
	for path, was := range before {
		if is := after[path]; is != was && path != "run.log" {
			t.Errorf("%s is %q, was %q", path, is, was)
		}
	}
	if !alive(running) {
		t.Error("the sampler that ran was stopped")
	}
}

// TestSampleRefusesFilesOfARun: what lies in the directory of a run is the run's, by whatever
// name, while it goes on and later, and whether it is there or not. A folder that has some
// other program's run.json is one like another.
func TestSampleRefusesFilesOfARun(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	run := exec.Command(filepath.Join(bin, "sparkrun"), "run", "--no-preflight", "--interval", "1s", "--", "sleep", "60")
	run.Dir, run.Env = b.dir, b.env
	said := &syncBuffer{}
	run.Stdout, run.Stderr = said, said
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = run.Process.Signal(unix.SIGTERM)
			_ = run.Wait()
		}
	}
	defer end()
	const latest = "sparkrun-runs/latest/"
	defer func() {
		if t.Failed() {
			t.Log(said.String())
		}
	}()
	for _, name := range []string{"thermal.csv", "telemetry.csv"} {
		until(t, "rows of "+name, func() bool {
			text, err := os.ReadFile(b.path(latest + name))
			return err == nil && bytes.Count(text, []byte("\n")) > 1
		})
	}
	if err := errors.Join(
		os.Symlink(latest+"thermal.csv", b.path("link.log")), os.Symlink(latest+"new.log", b.path("dangling.log")),
		os.Symlink("sparkrun-runs/latest", b.path("folder")), os.MkdirAll(b.path("other/logs"), 0o755),
	); err != nil {
		t.Fatal(err)
	}
	b.write("other/run.json", `{"schema": "somebody.run/1", "lr": 1e-4}`)
	// made are the files of the runs that sample would have made.
	made := func() (names []string) {
		if err := filepath.WalkDir(b.path("sparkrun-runs"), func(path string, _ os.DirEntry, err error) error {
			if name := filepath.Base(path); strings.HasPrefix(name, "new.") || strings.HasSuffix(name, ".pid") {
				names = append(names, path)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return names
	}
	refused := func(when string) {
		for _, args := range [][]string{
			{"500ms", latest + "thermal.csv"},
			{"--wide", "500ms", latest + "telemetry.csv"},
			{"--foreground", "500ms", latest + "thermal.csv"},
			{"1", latest + "new.log"},
			{"1", latest + "attempts/1/new.log"},
			{"1", "link.log"},
			{"1", "dangling.log"},
			{"1", "folder/thermal.csv"},
			{"--wide", "1", b.path(latest + "new.csv")},
		} {
			status, out, errs := b.run(args...)
			if status != 125 || out != "" || !strings.Contains(errs, "the directory of a run of sparkrun") || strings.Count(errs, "\n") != 1 {
				t.Errorf("%s: %q: status %d\n%s%s", when, args, status, out, errs)
			}
		}
		if names := made(); len(names) > 0 {
			t.Errorf("%s: made: %q", when, names)
		}
		for _, name := range []string{"link.log", "dangling.log"} {
			if info, err := os.Lstat(b.path(name)); err != nil || info.Mode()&os.ModeSymlink == 0 || b.exists(name+".pid") {
				t.Errorf("%s: %s is no link any more (%v), or has a pid file", when, name, err)
			}
		}
		if left := b.samplers(); len(left) > 0 {
			t.Errorf("%s: %v sample", when, left)
		}
	}
	refused("during the run")
	end()
	thermal := b.read(latest + "thermal.csv")
	refused("after it")
	if now := b.read(latest + "thermal.csv"); now != thermal {
		t.Errorf("thermal.csv was\n%s\nand is\n%s", thermal, now)
	}
	b.begin("1", "other/thermal.log")
	b.begin("1", "other/logs/thermal.log")
	b.begin("1", "sparkrun-runs/thermal.log") // beside the runs, in none
}

// TestSampleStopOfANumber: a log may be called 5, and an argument that is read as something
// else than it was meant for is told of.
func TestSampleStopOfANumber(t *testing.T) {
	t.Parallel()
	b := newSampleBox(t, samplePlain)
	for _, name := range []string{"5", "500ms"} {
		pid := b.begin("1", name)
		status, out, errs := b.run("--stop", name)
		if status != 0 || out != "No sampler of thermal.log is running\n" || !alive(pid) ||
			!strings.Contains(errs, name+" was taken as the interval, and the log to stop as thermal.log; for a log called "+name+": sparkrun sample --stop ./"+name+"\n") {
			t.Errorf("%s: status %d, alive %v\n%s%s", name, status, alive(pid), out, errs)
		}
		// As it says.
		status, out, errs = b.run("--stop", "./"+name)
		if status != 0 || errs != "" || out != fmt.Sprintf("Stopping existing sampler (pid %d)\n", pid) || alive(pid) {
			t.Errorf("./%s: status %d\n%s%s", name, status, out, errs)
		}
		// Nothing to tell where both are named.
		pid = b.begin("1", name)
		if status, _, errs := b.run("--stop", "5", name); status != 0 || errs != "" || alive(pid) {
			t.Errorf("5 %s: status %d\n%s", name, status, errs)
		}
	}
	// The sampler that was not meant is stopped only after that is told.
	pid := b.begin("1")
	if status, _, errs := b.run("--stop", "5"); status != 0 || alive(pid) || !strings.Contains(errs, "was taken as the interval") {
		t.Errorf("status %d\n%s", status, errs)
	}
	for _, args := range [][]string{{"--stop"}, {"--stop", "thermal.log"}} {
		if status, _, errs := b.run(args...); status != 0 || errs != "" {
			t.Errorf("%q: status %d\n%s", args, status, errs)
		}
	}
}

// TestSampleFolderWithoutRights: as an ordinary user, in a folder that is not theirs.
func TestSampleFolderWithoutRights(t *testing.T) {
	t.Parallel()
	b := otherUsersBox(t)
	if err := os.Chmod(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := asNobody(b.command("1"))
	if status, out, errs := b.finish(cmd); status != 125 || out != "" || !strings.Contains(errs, "cannot be written: permission denied") {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
	if b.exists("thermal.log") || b.exists("thermal.log.pid") {
		t.Error("something was made")
	}
}

// TestSampleOfAnotherUser: not even root stops somebody else's.
func TestSampleOfAnotherUser(t *testing.T) {
	t.Parallel()
	b := otherUsersBox(t)
	if err := os.Chmod(b.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if status, out, errs := b.finish(asNobody(b.command("1"))); status != 0 {
		t.Fatalf("status %d\n%s%s", status, out, errs)
	}
	pid := strings.TrimSpace(b.read("thermal.log.pid"))
	for _, args := range [][]string{{"1"}, {"--stop"}} {
		status, out, errs := b.run(args...)
		if status != 125 || out != "" || !strings.Contains(errs, "pid "+pid) || !strings.Contains(errs, "uid 65534") {
			t.Errorf("%q: status %d\n%s%s", args, status, out, errs)
		}
	}
	n, _ := strconv.Atoi(pid)
	if !alive(n) || b.read("thermal.log.pid") != pid+"\n" {
		t.Error("it was stopped")
	}
}

// otherUsersBox is a folder that another user can reach, with a binary that they can run.
func otherUsersBox(t *testing.T) *sampleBox {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to be another user as well")
	}
	dir, err := os.MkdirTemp("", "sparkrun-sample-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := sampleBoxIn(t, dir, samplePlain)
	for name, from := range map[string]string{"sparkrun": filepath.Join(bin, "sparkrun"), "nvml.so": fakenvml.Build(t)} {
		copyProgram(t, from, b.path(name))
	}
	b.env = append(b.env, "SPARKRUN_NVML_LIBRARY="+b.path("nvml.so"))
	return b
}

func asNobody(cmd *exec.Cmd) *exec.Cmd {
	cmd.Path = filepath.Join(cmd.Dir, "sparkrun")
	cmd.Args[0] = cmd.Path
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return cmd
}
