package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A death is what must be on disk after a run that died: how sparkrun ended, and
// what it says of each attempt.
type death struct {
	status   int
	state    string
	endedBy  string
	attempts []judged
}

// judged is what verdict.json and run.json must say of one attempt. Empty fields
// are not looked at, but kind and reason are where the verdict is one of ours.
type judged struct {
	end        string // end_kind
	verdict    string
	kind       string // of oom, and of unsure where there is one
	reason     string // of not-oom and unsure
	confidence string
	phase      string
	// source is where a piece of evidence that decides comes from, text what it
	// says; none decides an unsure verdict, where any piece will do.
	source, text string
}

// workload returns the path of a program of the folder deaths.
func workload(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("deaths", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// compile builds a C or C++ workload and returns the program.
func compile(t *testing.T, name string) string {
	t.Helper()
	compiler := "gcc"
	if filepath.Ext(name) == ".cpp" {
		compiler = "g++"
	}
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skipf("%s has to be compiled: %v", name, err)
	}
	program := filepath.Join(t.TempDir(), strings.TrimSuffix(name, filepath.Ext(name)))
	if out, err := exec.Command(compiler, "-O1", "-o", program, workload(t, name)).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return program
}

// starts is how often the workload was started, by its own account.
func (p *proc) starts() int {
	b, err := os.ReadFile(filepath.Join(p.dir, "starts"))
	if err != nil {
		return 0
	}
	return strings.Count(string(b), "\n")
}

// touch makes a file that a workload waits for.
func (p *proc) touch(name string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), nil, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// has says whether a workload has made a file.
func (p *proc) has(name string) func() bool {
	return func() bool { _, err := os.Stat(filepath.Join(p.dir, name)); return err == nil }
}

// sampled waits until telemetry.csv has n rows more: one is written a second, and a
// verdict on a bare SIGKILL needs to know how much memory there was.
func (p *proc) sampled(n int) {
	p.t.Helper()
	rows := len(rowsWith(p, ","))
	until(p.t, "telemetry", func() bool { return len(rowsWith(p, ",")) >= rows+n })
}

// pid is the process of a workload that has written it.
func (p *proc) pid() int {
	p.t.Helper()
	until(p.t, "pid of the workload", p.has("pid"))
	b, err := os.ReadFile(filepath.Join(p.dir, "pid"))
	if err != nil {
		p.t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		p.t.Fatal(err)
	}
	return pid
}

// died waits for the end and demands that all on disk says the same of it.
func (p *proc) died(want death) {
	t := p.t
	t.Helper()
	status := p.wait(30 * time.Second)
	defer func() {
		if t.Failed() {
			t.Logf("stdout %s\nstderr %s", p.out, p.err)
		}
	}()
	if status != want.status {
		t.Errorf("status %d, want %d", status, want.status)
	}
	m := readJSON(t, p.file("run.json"))
	if m["state"] != want.state || m["result"] != want.state {
		t.Errorf("state %v, result %v, want %s", m["state"], m["result"], want.state)
	}
	if m["ended_by"] != want.endedBy {
		t.Errorf("ended_by %v, want %s", m["ended_by"], want.endedBy)
	}
	if m["exit_status"] != float64(status) {
		t.Errorf("exit_status %v in run.json, %d in truth", m["exit_status"], status)
	}
	if n := p.starts(); n != len(want.attempts) {
		t.Errorf("the command was started %d times, want %d", n, len(want.attempts))
	}
	attempts, _ := m["attempts"].([]any)
	if len(attempts) != len(want.attempts) {
		t.Errorf("%d attempts in run.json, want %d", len(attempts), len(want.attempts))
	}
	for i := range min(len(attempts), len(want.attempts)) {
		a, _ := attempts[i].(map[string]any)
		if end := want.attempts[i].end; a["end_kind"] != end {
			t.Errorf("attempt %d: end_kind %v, want %s", i+1, a["end_kind"], end)
		}
		p.judged(i+1, want.attempts[i])
	}
	p.complete(len(attempts))
	if left := processesOf(p.id()); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// judged demands what verdict.json says of attempt n.
func (p *proc) judged(n int, want judged) {
	t := p.t
	t.Helper()
	v := p.verdict(n)
	for _, f := range []struct{ key, want string }{
		{"verdict", want.verdict}, {"kind", want.kind}, {"reason", want.reason}, {"confidence", want.confidence}, {"phase", want.phase},
	} {
		if got, _ := v[f.key].(string); f.want != "" && got != f.want {
			t.Errorf("attempt %d: %s %q, want %q", n, f.key, got, f.want)
		}
	}
	if want.verdict == "not-oom" && v["kind"] != nil {
		t.Errorf("attempt %d: a kind of out-of-memory, %v, where there was none", n, v["kind"])
	}
	if want.source != "" && !slices.ContainsFunc(evidence(v), func(e item) bool {
		return e.source == want.source && strings.Contains(e.text, want.text) && (e.weight == "decides" || want.verdict == "unsure")
	}) {
		t.Errorf("attempt %d: no evidence from %s that decides and says %q", n, want.source, want.text)
	}
	if t.Failed() {
		t.Logf("verdict of attempt %d: %v (%v%v), %v, phase %v, cause %v, lever %v\nadvice %q\nunreadable %q", n,
			v["verdict"], v["kind"], v["reason"], v["confidence"], v["phase"], v["cause"], v["lever"], v["advice"], v["unreadable"])
		for _, e := range evidence(v) {
			t.Logf("  %-8s %-8s %s", e.weight, e.source, e.text)
		}
	}
}

func (p *proc) verdict(n int) map[string]any {
	p.t.Helper()
	return readJSON(p.t, p.file(filepath.Join("attempts", strconv.Itoa(n), "verdict.json")))
}

// item is a piece of evidence in verdict.json.
type item struct{ source, weight, text string }

func evidence(v map[string]any) []item {
	var out []item
	list, _ := v["evidence"].([]any)
	for _, one := range list {
		e, _ := one.(map[string]any)
		var i item
		i.source, _ = e["source"].(string)
		i.weight, _ = e["weight"].(string)
		i.text, _ = e["text"].(string)
		out = append(out, i)
	}
	return out
}

// advises demands that the advice on attempt n names each text.
func (p *proc) advises(n int, texts ...string) {
	p.t.Helper()
	advice, _ := p.verdict(n)["advice"].([]any)
	for _, text := range texts {
		if !slices.ContainsFunc(advice, func(one any) bool { s, _ := one.(string); return strings.Contains(s, text) }) {
			p.t.Errorf("no advice on attempt %d names %q: %q", n, text, advice)
		}
	}
}

// noRung demands that no rung was taken on the way.
func (p *proc) noRung() {
	p.t.Helper()
	list, _ := readJSON(p.t, p.file("run.json"))["attempts"].([]any)
	for i, one := range list {
		a, _ := one.(map[string]any)
		if a["rungs"] != nil || a["changes"] != nil {
			p.t.Errorf("attempt %d has rungs %v and changes %v", i+1, a["rungs"], a["changes"])
		}
	}
}

// TestDeathByKernel: the kernel kills in a memory cgroup, the command itself or a
// worker of it. Its record decides, whatever the command makes of it.
func TestDeathByKernel(t *testing.T) {
	const limit = 150 << 20
	const record = "Killed process"
	python := func(args ...string) []string {
		return append([]string{"python3", workload(t, "greedy.py")}, args...)
	}
	tests := []struct {
		name string
		argv []string
		want death
	}{
		{
			"the command", python(),
			death{75, "exhausted", "child", []judged{{end: "signaled", verdict: "oom", kind: "cgroup-oom", confidence: "high", source: "kernel", text: record}}},
		},
		{
			// The pool itself does not say of what its process died.
			"a worker, and the parent with it", python("pool"),
			death{75, "exhausted", "child", []judged{{end: "exited", verdict: "oom", kind: "cgroup-oom", confidence: "high", source: "kernel", text: record}}},
		},
		{
			"a worker that is not missed", python("worker-lost"),
			death{0, "succeeded", "child", []judged{{end: "exited", verdict: "not-oom", reason: "success"}}},
		},
		{
			"the training behind a shell that tells",
			[]string{"sh", "-c", "python3 " + workload(t, "greedy.py") + "; exit $?"},
			death{75, "exhausted", "child", []judged{{end: "exited", verdict: "oom", kind: "cgroup-oom", confidence: "high", source: "kernel", text: record}}},
		},
		{
			// Its status says that all is well. It is tried once more.
			"the training behind a shell that does not",
			[]string{"sh", "-c", "python3 " + workload(t, "greedy.py") + "; true"},
			death{0, "failed", "child", []judged{
				{end: "exited", verdict: "unsure", reason: "swallowed", source: "kernel", text: record},
				{end: "exited", verdict: "unsure", reason: "swallowed", source: "kernel", text: record},
			}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cg := memoryCgroup(t, limit)
			p := start(t, t.TempDir(), append([]string{"--no-preflight", "--no-guard", "--shim", "never", "--cgroup", cg, "--"}, tt.argv...)...)
			p.died(tt.want)
			p.noRung()
			if tt.want.state == "succeeded" && !strings.Contains(p.out.String(), "saved") {
				t.Error("the command did not come to its end")
			}
		})
	}
}

// TestDeathByAddressLimit: a MemoryError of Python's under RLIMIT_AS, in each phase
// of a training; the machine has plenty of memory left, which the advice says. The
// limit is there before sparkrun, set by a program in front of Python, or set late.
func TestDeathByAddressLimit(t *testing.T) {
	t.Parallel()
	const limit = "--as=6000000000" // sparkrun itself has some gigabytes mapped
	for _, phase := range []string{"load", "train", "eval", "save"} {
		for _, where := range []string{"inherited", "set on the way"} {
			t.Run(phase+"/"+where, func(t *testing.T) {
				t.Parallel()
				before, command := []string{"prlimit", limit}, []string{"python3", workload(t, "limited.py"), phase}
				if where == "set on the way" {
					before, command = nil, slices.Concat(before, command)
				}
				p := startUnder(t, before, slices.Concat([]string{"--no-preflight", "--"}, command)...)
				p.died(death{75, "exhausted", "child", []judged{{
					end: "exited", verdict: "oom", kind: "host-alloc", confidence: "high", phase: phase, source: "output", text: "MemoryError",
				}}})
				p.noRung()
				p.advises(1, "its own limit")
			})
		}
	}
	t.Run("train/set late", func(t *testing.T) {
		t.Parallel()
		// As a start script does that has an environment to load first.
		script := `while [ ! -e go ]; do sleep 0.02; done; exec prlimit "$@"`
		p := start(t, t.TempDir(), "--no-preflight", "--shim", "never", "--", "sh", "-c", script, "sh", limit, "python3", workload(t, "limited.py"), "train")
		until(t, "state running", fileHas(p.file("run.json"), `"state": "running"`))
		p.sampled(2)
		p.touch("go")
		p.died(death{75, "exhausted", "child", []judged{{end: "exited", verdict: "oom", kind: "host-alloc", confidence: "high", phase: "train"}}})
		p.advises(1, "its own limit")
	})
	t.Run("survived", func(t *testing.T) {
		t.Parallel()
		p := start(t, t.TempDir(), "--no-preflight", "--", "prlimit", limit, "python3", workload(t, "limited.py"), "handled")
		p.died(death{1, "failed", "child", []judged{{end: "exited", verdict: "not-oom", reason: "exception", confidence: "high", source: "output", text: "KeyError: 'no such key'"}}})
	})
}

// TestDeathByBadAlloc: operator new throws in a C++ program.
func TestDeathByBadAlloc(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir(), "--no-preflight", "--", "prlimit", "--as=400000000", "--core=0", compile(t, "bad_alloc.cpp"))
	p.died(death{75, "exhausted", "child", []judged{{
		end: "signaled", verdict: "oom", kind: "host-alloc", confidence: "high", source: "output", text: "std::bad_alloc",
	}}})
	p.noRung()
	p.advises(1, "its own limit")
}

// TestDeathByFault: broken programs are no matter of memory, and not tried again.
func TestDeathByFault(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		how    string
		status int
		reason string
	}{{"segfault", 139, "segfault"}, {"abort", 134, "abort"}} {
		t.Run(tt.how, func(t *testing.T) {
			t.Parallel()
			p := start(t, t.TempDir(), "--no-preflight", "--", "prlimit", "--core=0", compile(t, "fault.c"), tt.how)
			p.died(death{tt.status, "failed", "child", []judged{{end: "signaled", verdict: "not-oom", reason: tt.reason}}})
		})
	}
}

// TestDeathByStatus: a program may give itself the status of a kill. With plenty of
// memory that is no out-of-memory.
func TestDeathByStatus(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir(), "--no-preflight", "--", "python3", workload(t, "waiting.py"), "137")
	p.pid()
	p.sampled(1)
	p.touch("go")
	p.died(death{137, "failed", "child", []judged{{end: "exited", verdict: "not-oom", reason: "killed"}}})
}

// TestDeathByStranger: somebody who is not sparkrun ends the command, with plenty of
// memory. That is not tried again.
func TestDeathByStranger(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		sig    unix.Signal
		reason string
	}{{unix.SIGKILL, "killed"}, {unix.SIGTERM, "terminated"}} {
		t.Run(unix.SignalName(tt.sig), func(t *testing.T) {
			t.Parallel()
			p := start(t, t.TempDir(), "--no-preflight", "--", "python3", workload(t, "waiting.py"), "0")
			pid := p.pid()
			p.sampled(1)
			if err := unix.Kill(pid, tt.sig); err != nil {
				t.Fatal(err)
			}
			p.died(death{128 + int(tt.sig), "failed", "child", []judged{{end: "signaled", verdict: "not-oom", reason: tt.reason}}})
		})
	}
}

// TestDeathByUser: the user ends sparkrun, and with it a command that has run out of
// memory and lives on: the user decided, whatever the output says.
func TestDeathByUser(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"silent", "stuck"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			p := start(t, t.TempDir(), "--no-preflight", "--", "python3", workload(t, "quiet.py"), how)
			last := map[string]string{"silent": "step 2/900", "stuck": "OutOfMemoryError"}[how]
			until(t, last, fileHas(p.file("attempts/1/output.log"), last))
			until(t, "state running", fileHas(p.file("run.json"), `"state": "running"`))
			if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			p.died(death{143, "stopped", "user", []judged{{
				end: "stopped", verdict: "not-oom", reason: "user", confidence: "high", source: "signal", text: "SIGTERM was sent by user",
			}}})
		})
	}
}

// TestDeathByFullDisk: the disk that the command writes to is full. The words for
// it are those of shared memory; it is not tried again, although a rung would fit.
func TestDeathByFullDisk(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "6m")
	p := start(t, t.TempDir(), "--no-preflight", "--", "python3", workload(t, "full_disk.py"), "--output_dir", filepath.Join(disk, "out"), "--max_length", "4096")
	p.died(death{1, "failed", "child", []judged{{
		end: "exited", verdict: "not-oom", reason: "disk", confidence: "high", source: "output", text: "No space left on device",
	}}})
	p.advises(1, "disk space")
}

// TestDeathByFullSharedMemory: /dev/shm is full, which is a bus error. No rung
// makes it larger; the advice says what does.
func TestDeathByFullSharedMemory(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"named", "unlinked"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			p := startUnder(t, smallSharedMemory(t),
				"--no-preflight", "--knob", "seq_len=4096", "--", "python3", workload(t, "shared_memory.py"), how, "{seq_len}")
			if how == "unlinked" {
				until(t, "nearly full", fileHas(p.file("attempts/1/output.log"), "nearly full"))
				p.sampled(2)
				p.touch("go")
			}
			p.died(death{135, "failed", "child", []judged{{
				end: "signaled", verdict: "oom", kind: "shm", source: "shm", text: "% full",
			}}})
			p.noRung()
			p.advises(1, "--shm-size", "workers")
			if lever := p.verdict(1)["lever"]; lever != "shm" {
				t.Errorf("lever %v", lever)
			}
		})
	}
}

// smallSharedMemory is a command that gives the one behind it a /dev/shm of 8 MiB.
func smallSharedMemory(t *testing.T) []string {
	t.Helper()
	small := []string{"unshare", "-m", "sh", "-c", `mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"`, "sh"}
	if out, err := exec.Command(small[0], append(small[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("a small /dev/shm cannot be mounted here (root is needed): %v: %s", err, out)
	}
	return small
}

// outOfMemory is what must be said of an attempt that printed torch's error.
const outOfMemory = "CUDA out of memory. Tried to allocate 2.00 GiB"

// TestDeathByHang: after an out-of-memory line nothing moves any more. The command
// is ended, which counts as out of memory: the next rung fits.
func TestDeathByHang(t *testing.T) {
	t.Parallel()
	hang := judged{end: "hang", verdict: "oom", kind: "cuda-allocator", phase: "train", source: "output", text: outOfMemory}
	t.Run("the next rung fits", func(t *testing.T) {
		t.Parallel()
		p := start(t, t.TempDir(), "--no-preflight", "--hang-after", "2s", "--", "python3", workload(t, "quiet.py"), "stuck", "--max-length", "4096")
		p.died(death{0, "succeeded-changed", "child", []judged{hang, {end: "exited", verdict: "not-oom", reason: "success"}}})
		if !strings.Contains(p.out.String(), "fits") {
			t.Error("the second attempt did not come to its end")
		}
		if !fileHas(p.file("events.jsonl"), `"kind":"hang"`)() {
			t.Error("no event tells of the hang")
		}
	})
	t.Run("no retry", func(t *testing.T) {
		t.Parallel()
		p := start(t, t.TempDir(), "--no-preflight", "--no-retry", "--hang-after", "2s", "--", "python3", workload(t, "quiet.py"), "stuck")
		p.died(death{124, "failed", "limit", []judged{hang}})
	})
	t.Run("three steps at least", func(t *testing.T) {
		t.Parallel()
		p := start(t, t.TempDir(), "--no-preflight", "--no-retry", "--hang-after", "500ms", "--", "python3", workload(t, "quiet.py"), "paced")
		p.died(death{124, "failed", "limit", []judged{hang}})
		hangs := eventsOf(t, p, "hang")
		if len(hangs) != 1 {
			t.Fatalf("%d events tell of the hang", len(hangs))
		}
		data, _ := hangs[0]["data"].(map[string]any)
		step, _ := data["median_step_s"].(float64)
		since, _ := data["since_s"].(float64)
		if step < 0.7 || step > 2 || since < 3*step {
			t.Errorf("ended after %.2f s at %.2f s a step", since, step)
		}
	})
}

// TestNoHang: what looks like a hang and is none is left alone: output without
// steps, an error that was survived, a silence that no such line came before.
func TestNoHang(t *testing.T) {
	t.Parallel()
	const limit = "1s"
	beyond := 4 // rows of telemetry.csv, each a second
	run := func(t *testing.T, how string) *proc {
		return start(t, t.TempDir(), "--no-preflight", "--hang-after", limit, "--", "python3", workload(t, "quiet.py"), how)
	}
	success := death{0, "succeeded", "child", []judged{{end: "exited", verdict: "not-oom", reason: "success"}}}
	t.Run("output without steps", func(t *testing.T) {
		t.Parallel()
		p := run(t, "alive")
		until(t, "the error", fileHas(p.file("attempts/1/output.log"), outOfMemory))
		p.sampled(beyond)
		p.touch("go")
		p.died(success)
	})
	t.Run("steps, then silence", func(t *testing.T) {
		t.Parallel()
		p := run(t, "steps")
		until(t, "steps after the error", fileHas(p.file("attempts/1/output.log"), "step 12/900"))
		p.touch("go")
		until(t, "silence", p.has("quiet"))
		p.sampled(beyond)
		p.touch("end")
		p.died(success)
	})
	t.Run("silence alone", func(t *testing.T) {
		t.Parallel()
		p := run(t, "silent")
		until(t, "steps", fileHas(p.file("attempts/1/output.log"), "step 2/900"))
		p.sampled(beyond)
		p.touch("go")
		p.died(success)
	})
}

// TestSwallowedDeath: status 0, but the last words are an out-of-memory and no step
// was made. Nobody may take that for a success.
func TestSwallowedDeath(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir(), "--no-preflight", "--", "python3", workload(t, "quiet.py"), "exit")
	swallowed := judged{end: "exited", verdict: "unsure", kind: "cuda-allocator", reason: "swallowed", source: "output", text: outOfMemory}
	p.died(death{0, "failed", "child", []judged{swallowed, swallowed}})
	p.noRung()
	for _, e := range eventsOf(t, p, "verdict") {
		if e["level"] == "info" {
			t.Errorf("told as if nothing had happened: %v", e["msg"])
		}
	}
	if text := p.err.String(); !strings.Contains(text, "out of memory") || strings.Contains(text, "succeeded") {
		t.Errorf("stderr does not tell of it: %s", text)
	}
}

// eventsOf returns the events of a kind.
func eventsOf(t *testing.T, p *proc, kind string) []map[string]any {
	t.Helper()
	b, err := os.ReadFile(p.file("events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]any
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		e := map[string]any{}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("events.jsonl: %v: %s", err, line)
		}
		if e["kind"] == kind {
			out = append(out, e)
		}
	}
	return out
}
