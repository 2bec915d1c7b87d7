package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/deadmount"
)

// TestPreflightDeadMount: whatever lies on a mount whose server is gone costs its time and
// a sentence; neither a preflight nor a run hangs.
func TestPreflightDeadMount(t *testing.T) {
	t.Parallel()
	dead := deadmount.New(t)
	dir := t.TempDir()
	train := writeScript(t, dir, "train.py", "print('trained')\n")
	inside := []string{"docker", "run", "--rm", "-v", dead + ":/models", "-v", dir + ":/w", "-w", "/w", "no-such-image:1", "python", "train.py", "--model_name_or_path", "/models/x"}
	for _, c := range []struct {
		name   string
		args   []string
		env    []string
		limit  time.Duration
		status []int
		says   string
	}{
		{"model", []string{"preflight", "--no-report", "--", "python3", train, "--model_name_or_path", filepath.Join(dead, "m")}, nil, 5 * time.Second, []int{0, 1, 2}, ""},
		{"model of a container", append([]string{"preflight", "--no-report", "--"}, inside...), nil, 5 * time.Second, []int{0, 1, 2}, ""},
		{"output folder", []string{"preflight", "--no-report", "--", "python3", train, "--output_dir", filepath.Join(dead, "o")}, nil, 5 * time.Second, []int{0, 1, 2}, ""},
		{"caches", []string{"preflight", "--no-report", "--", "python3", train}, []string{"HF_HOME=" + dead, "XDG_CACHE_HOME=" + dead, "TRITON_CACHE_DIR=" + dead}, 5 * time.Second, []int{0, 1, 2}, ""},
		{"script", []string{"preflight", "--no-report", "--", "python3", filepath.Join(dead, "train.py")}, nil, 9 * time.Second, []int{125}, "gave no answer within 5 s"},
		{"interpreter", []string{"preflight", "--no-report", "--torch", "--", filepath.Join(dead, "python3"), train}, nil, 9 * time.Second, []int{125}, "gave no answer within 5 s"},
		{"report", []string{"preflight", "--report", filepath.Join(dead, "r.json")}, nil, 9 * time.Second, []int{125}, "gave no answer within 5 s"},
		{"recorded tree", []string{"preflight", "--root", dead}, nil, 9 * time.Second, []int{125}, "gave no answer within 5 s"},
		{"model of a run", []string{"--quiet", "--force", "--", "python3", train, "--model_name_or_path", filepath.Join(dead, "m")}, nil, 8 * time.Second, []int{0}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := startEnv(t, t.TempDir(), c.env, c.args...)
			// The limit is that of a machine at rest; here others are tested beside it.
			got := p.wait(c.limit + 20*time.Second)
			if !strings.Contains(fmt.Sprint(c.status), strconv.Itoa(got)) || !strings.Contains(p.err.String(), c.says) {
				t.Errorf("status %d, want one of %v and %q:\n%s%s", got, c.status, c.says, p.out, p.err)
			}
		})
	}
}

// TestPreflightSignals: the first signal ends a preflight within a second, whatever it
// waits for.
func TestPreflightSignals(t *testing.T) {
	t.Parallel()
	dead := deadmount.New(t)
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			p := start(t, t.TempDir(), "preflight", "--no-report", "--", "python3", filepath.Join(dead, "train.py"))
			until(t, "it waits for the mount", func() bool { return hangs(p.cmd.Process.Pid) })
			start := time.Now()
			_ = p.cmd.Process.Signal(sig)
			if got := p.wait(10 * time.Second); got != 128+int(sig) || !strings.Contains(p.err.String(), "interrupted") {
				t.Errorf("status %d: %s", got, p.err)
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// hangs tells whether a thread of a process waits for the mount that never answers: a page
// of the program that is still being read from a disk looks the same in its state.
func hangs(pid int) bool {
	stacks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", pid))
	for _, path := range stacks {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), "fuse_") {
			return true
		}
	}
	return false
}

// TestPreflightLeavesNobody: the user's Python, and what it has started, ends with the
// preflight that asked it something, also where that is killed.
func TestPreflightLeavesNobody(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--torch"} {
		for _, sig := range []syscall.Signal{unix.SIGKILL, unix.SIGHUP, unix.SIGQUIT, unix.SIGTERM, unix.SIGINT} {
			t.Run(flag+" "+sig.String(), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				python := writeScript(t, dir, "python3", "#!/bin/sh\ntrap '' HUP INT TERM QUIT\nsleep 1000 &\necho $! $$ >pids.new && mv pids.new pids\nwait\n")
				if err := os.Chmod(python, 0o755); err != nil {
					t.Fatal(err)
				}
				train := writeScript(t, dir, "train.py", "import torch\n")
				p := start(t, dir, "preflight", flag, "--no-report", "--", python, train)
				until(t, "the interpreter is asked", func() bool { _, err := os.Stat(filepath.Join(dir, "pids")); return err == nil })
				_ = p.cmd.Process.Signal(sig)
				p.wait(10 * time.Second)
				b, err := os.ReadFile(filepath.Join(dir, "pids"))
				if err != nil {
					t.Fatal(err)
				}
				for _, pid := range strings.Fields(string(b)) {
					until(t, "end of process "+pid, func() bool {
						stat, err := os.ReadFile("/proc/" + pid + "/stat")
						return err != nil || strings.Contains(string(stat), ") Z ")
					})
				}
				if sig == unix.SIGINT && !strings.Contains(p.err.String(), "interrupted: what torch says is not known (H19)") {
					t.Errorf("what was interrupted is not told:\n%s%s", p.out, p.err)
				}
			})
		}
	}
}

// TestPreflightEndsAnNvidiaSMIThatHangs: it is asked where NVML cannot be loaded, and may be
// a script with a program behind it.
func TestPreflightEndsAnNvidiaSMIThatHangs(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("nvidia-smi"); err == nil {
		t.Skip("this machine has a driver, whose NVML is asked instead")
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	pids := filepath.Join(dir, "pids")
	smi := writeScript(t, bin, "nvidia-smi", "#!/bin/sh\ntrap '' HUP INT TERM QUIT\nsleep 1000 &\necho $! $$ >"+pids+".new && mv "+pids+".new "+pids+"\nwait\n")
	if err := os.Chmod(smi, 0o755); err != nil {
		t.Fatal(err)
	}
	// On a busy machine the sensors process may not have come to ask within the limit.
	until(t, "nvidia-smi is asked", func() bool {
		p := startEnv(t, dir, []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "SPARKRUN_NVML_LIBRARY="}, "preflight", "--no-report")
		if status := p.wait(20 * time.Second); status != 0 && status != 1 {
			t.Fatalf("status %d\n%s", status, p.err)
		}
		_, err := os.Stat(pids)
		return err == nil
	})
	b, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range strings.Fields(string(b)) {
		t.Cleanup(func() {
			if n, err := strconv.Atoi(pid); err == nil && t.Failed() {
				_ = unix.Kill(n, unix.SIGKILL)
			}
		})
		until(t, "end of process "+pid, func() bool {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ")
		})
	}
}

// TestReportKeepsItsOwner: root replaces a user's report by one of the same user, and a
// file that only looks like one by nobody.
func TestReportKeepsItsOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "env-report.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const ours = `{"platform":"dgx-spark","checks":{"G1":"pass","G3":"warn: 14GB page cache"},"headroom_gb":61,"verdict":"ready"}`
	write(ours)
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	start(t, dir, "preflight", "--exit-zero").wait(20 * time.Second)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); string(b) == ours {
		t.Error("the runbook's report was not replaced")
	}
	if os.Geteuid() == 0 && (st.Uid != 65534 || st.Gid != 65534) {
		t.Errorf("owner %d:%d", st.Uid, st.Gid)
	}
	for _, text := range []string{
		"", `{"checks":{"lint":"pass"},"verdict":"ready"}`, `{"checks":{},"verdict":"x","platform":"p","headroom_gb":1}`,
		`{"checks":{"G1":"pass"},"verdict":"x","platform":"p","headroom_gb":1,"mine":2}`, `{"checks":{"G1":1},"verdict":"x","platform":"p","headroom_gb":1}`,
		`{"sparkrun":{"schema":"other/1"},"checks":{"G1":"pass"},"verdict":"x"}`, "notes",
	} {
		write(text)
		p := start(t, dir, "preflight", "--exit-zero")
		p.wait(20 * time.Second)
		if b, _ := os.ReadFile(path); string(b) != text || !strings.Contains(p.err.String(), "left as it is") {
			t.Errorf("%q was replaced, or nothing was said: %s", text, p.err)
		}
	}
	// One that is empty and named is the user's word that it may be written.
	write("")
	if got := start(t, dir, "preflight", "--exit-zero", "--report", "env-report.json").wait(20 * time.Second); got != 0 {
		t.Errorf("status %d", got)
	}
	if b, _ := os.ReadFile(path); len(b) == 0 {
		t.Error("the report that was named was not written")
	}
}

// TestNoSecretsInReports: what the environment keeps secret is in no report, and control
// characters of a command reach no terminal.
func TestNoSecretsInReports(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const secret = "q9XlongSecretValue77"
	out := filepath.Join(dir, secret)
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	train := writeScript(t, dir, "train.py", "print('trained')\n")
	command := []string{"--", "python3", train, "--output_dir", out}
	env := []string{"HF_TOKEN=" + secret}
	p := startEnv(t, dir, env, append([]string{"preflight", "--exit-zero", "--all"}, command...)...)
	p.wait(20 * time.Second)
	report, err := os.ReadFile(filepath.Join(dir, "env-report.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(report), "[redacted]") {
		t.Fatalf("the test shows nothing: the folder is not in the report:\n%s", report)
	}
	if all := string(report) + p.out.String() + p.err.String(); strings.Contains(all, secret) {
		t.Errorf("the secret is told:\n%s", all)
	}
	q := startEnv(t, dir, env, append([]string{"--force", "--quiet"}, command...)...)
	q.wait(20 * time.Second)
	if b, _ := os.ReadFile(q.file("env-report.json")); len(b) == 0 || strings.Contains(string(b), secret) {
		t.Errorf("the secret is in the run's report:\n%s", b)
	}
	config := writeScript(t, dir, "sft.yaml", "model_name_or_path: \"a\\e[31mb\\a\\r\"\nstage: sft\nfinetuning_type: lora\n")
	for _, words := range [][]string{{"explain"}, {"plan"}, {"preflight", "--no-report"}, {"preflight", "--no-report", "--format", "lines"}} {
		r := start(t, dir, append(words, "--", "llamafactory-cli", "train", config)...)
		r.wait(20 * time.Second)
		if all := r.out.String() + r.err.String(); strings.ContainsAny(all, "\x1b\a\r") || len(all) == 0 {
			t.Errorf("%v prints control characters: %q", words, all)
		}
	}
}

// A flag that is given and empty, as from a variable that is not set, is a mistake.
func TestPreflightEmptyFlags(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--root", ""}, {"--report", ""}, {"--root="}, {"-o", ""}} {
		p := start(t, t.TempDir(), append([]string{"preflight"}, args...)...)
		if got := p.wait(20 * time.Second); got != 125 || !strings.Contains(p.err.String(), "is empty") {
			t.Errorf("%q: status %d: %s", args, got, p.err)
		}
		if _, err := os.Stat(filepath.Join(p.dir, "env-report.json")); err == nil {
			t.Errorf("%q: a report was written", args)
		}
	}
}
