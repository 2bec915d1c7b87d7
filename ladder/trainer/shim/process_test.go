package shim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sparkrun/internal/job"
	"sparkrun/internal/newprog"
)

// look is a script without any library: what it can see of its own process.
const look = `
import sys
print(sorted(m for m in sys.modules if "shim" in m), "sitecustomize" in sys.modules)
print(sys.path)
print(sys.excepthook is sys.__excepthook__, sys.flags, sys.dont_write_bytecode)
1/0
`

func TestAScriptWithoutLibrariesRunsAsBefore(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, shorter())
	file := a.script(look)
	without, with := a.run(false, file), a.run(true, file)
	with.stdout = strings.Replace(with.stdout, "['sparkrun_shim', 'sparkrun_shim.hook']", "[]", 1)
	if diff := same(without, with); diff != "" {
		t.Error(diff)
	}
	rec := a.record()
	if !rec.Loaded || rec.Unreached() != "" || len(rec.Processes) != 0 || rec.Exception != nil {
		t.Errorf("record %+v", rec)
	}
	entries, err := os.ReadDir(filepath.Join(a.dir, RecordDir))
	if err != nil || len(entries) != 1 {
		t.Errorf("%v %v in the record folder, want one small file", entries, err)
	}
}

// ourFrame is the line of a traceback in which the shim imports the next one; Python
// prints tracebacks there only with PYTHONVERBOSE, or if the process is to end.
var ourFrame = regexp.MustCompile(`(?m)^  File ".*/shim/sitecustomize\.py", line .*\n    import sitecustomize.*\n(    \^+\n)?`)

func TestGivesWayToTheNextSitecustomize(t *testing.T) {
	t.Parallel()
	module := func(name, text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name string
		make func(*testing.T, string)
	}{
		{"none", func(*testing.T, string) {}},
		{"a module", module("sitecustomize.py", "import sys\nprint('next', __name__, __file__, sys.path)")},
		{"a package", module("sitecustomize/__init__.py", "from . import part\nprint('next', __name__, part)")},
		{"a namespace", module("sitecustomize/x.py", "")},
		{"compiled only", func(t *testing.T, dir string) {
			module("src.py", "print('compiled')")(t, dir)
			out, err := exec.CommandContext(t.Context(), "python3", "-c",
				"import py_compile,sys; py_compile.compile(sys.argv[1], sys.argv[2])",
				filepath.Join(dir, "src.py"), filepath.Join(dir, "sitecustomize.pyc")).CombinedOutput()
			if err != nil {
				t.Fatalf("%v %s", err, out)
			}
		}},
		{"one that raises", module("sitecustomize.py", "raise ValueError('mine')")},
		{"one that imports what is not there", module("sitecustomize.py", "import not_there_at_all")},
		{"one that is broken", module("sitecustomize.py", "def (")},
		{"one that leaves", module("sitecustomize.py", "raise SystemExit(7)")},
		{"one that takes itself away", module("sitecustomize.py", "import sys; del sys.modules['sitecustomize']")},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, shorter())
			dir := t.TempDir()
			a.libs = append(a.libs, dir)
			c.make(t, dir)
			args := []string{"-c", "import sys; m = sys.modules.get('sitecustomize'); print(getattr(m, '__file__', m and 'none'), getattr(m, '__path__', 'none'), sys.path)"}
			without, with := a.run(false, args...), a.run(true, args...)
			with.stderr = ourFrame.ReplaceAllString(with.stderr, "")
			if diff := same(without, with); diff != "" {
				t.Error(diff)
			}
			if !a.record().Loaded {
				t.Error("the shim was not loaded")
			}
		})
	}
}

func TestOneShimBehindAnother(t *testing.T) {
	t.Parallel()
	outer := newAttempt(t, halve(0))
	inner := newAttempt(t, halve(0), "base", "trl-1")
	inner.libs = append([]string{filepath.Join(outer.dir, CodeDir)}, inner.libs...)
	inner.prints("2048 2048 (4, 2) 4", today)
}

func TestNotLoaded(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"-I", "-E", "-S", "-IS"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, shorter())
			if got := a.run(true, flag, "-c", "print(1)"); got.status != 0 || got.stderr != "" {
				t.Errorf("%+v", got)
			}
			rec := a.record()
			if rec.Loaded || !strings.Contains(rec.Unreached(), "-I") {
				t.Errorf("loaded with %s: %+v", flag, rec)
			}
			if missing := Applied(a.plan, rec); len(missing) != len(a.plan.Clamps) {
				t.Errorf("missing %v", missing)
			}
		})
	}
	t.Run("no plan", func(t *testing.T) {
		t.Parallel()
		for _, plan := range []string{"", "/nowhere/plan.json", "relative/plan.json"} {
			a := newAttempt(t, shorter(), "base", "trl-1")
			a.env = []string{PlanVar + "=" + plan}
			got := a.run(true, a.script(today))
			if strings.TrimSpace(got.stdout) != "4096 4096 (8, 1) 8" || got.stderr != "" || a.record().Loaded {
				t.Errorf("plan %q: %+v", plan, got)
			}
		}
	})
	t.Run("a broken plan", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{"", "{", "[]", `{"clamps": 5}`, `{"clamps": [{}]}`, "\xff\xfe", `{"clamps":[{"knob":"seq_len","to":{}}]}`} {
			a := newAttempt(t, shorter(), "base", "trl-1")
			if err := os.WriteFile(filepath.Join(a.dir, CodeDir, planFile), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			got := a.run(true, a.script(today))
			if strings.TrimSpace(got.stdout) != "4096 4096 (8, 1) 8" || got.stderr != "" {
				t.Errorf("plan %q: %+v", text, got)
			}
		}
	})
}

func TestAnOldPythonIsLeftAlone(t *testing.T) {
	t.Parallel()
	tried := false
	for _, version := range []string{"2.7", "3.6", "3.7"} {
		found, _ := filepath.Glob(filepath.Join(os.Getenv("HOME"), ".pyenv/versions", version+".*", "bin/python"))
		for _, python := range found {
			tried = true
			a := newAttempt(t, shorter())
			a.python = python
			args := []string{"-c", "import sys; print(sys.path, 'sitecustomize' in sys.modules)"}
			without, with := a.run(false, args...), a.run(true, args...)
			if diff := same(without, with); diff != "" {
				t.Errorf("%s: %s", python, diff)
			}
		}
	}
	if !tried {
		t.Skip("no Python older than 3.8 that pyenv has")
	}
}

func TestEveryWayToStartPython(t *testing.T) {
	t.Parallel()
	text := strings.TrimSpace(today)
	for _, c := range []struct {
		name string
		args func(*attempt) []string
	}{
		{"-c", func(*attempt) []string { return []string{"-c", text} }},
		{"-m", func(a *attempt) []string { a.script(text); return []string{"-m", "train"} }},
		{"-m of a library", func(*attempt) []string {
			return []string{"-m", "trl.trainer.sft_config"}
		}},
		{"-v -W -X", func(a *attempt) []string { return []string{"-W", "default", "-X", "utf8", "-u", a.script(text)} }},
		{"a child", func(a *attempt) []string {
			return []string{"-c", fmt.Sprintf("import subprocess, sys; subprocess.check_call([sys.executable, %q])", a.script(text))}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, shorter(), "base", "trl-1")
			want := "2048 2048 (4, 2) 4"
			args := c.args(a)
			if c.name == "-m of a library" {
				want = ""
			}
			got := a.run(true, args...)
			if got.status != 0 || strings.TrimSpace(got.stdout) != want || len(a.record().Trouble) > 0 {
				t.Errorf("%+v, trouble %q", got, a.record().Trouble)
			}
		})
	}
}

func TestEveryPython(t *testing.T) {
	t.Parallel()
	tried := 0
	for minor := 8; minor <= 15; minor++ {
		python := fmt.Sprintf("python3.%d", minor)
		if exec.CommandContext(t.Context(), python, "-c", "").Run() != nil {
			// A version manager may have it without offering it.
			found, _ := filepath.Glob(filepath.Join(os.Getenv("HOME"), ".pyenv/versions", fmt.Sprintf("3.%d.*", minor), "bin/python3"))
			if len(found) == 0 {
				continue
			}
			python = found[0]
		}
		tried++
		t.Run(fmt.Sprint(minor), func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, shorter(), "base", "trl-1")
			a.python = python
			a.prints("2048 2048 (4, 2) 4", today)
			b := newAttempt(t, shorter())
			b.python = python
			file := b.script(look)
			without, with := b.run(false, file), b.run(true, file)
			with.stdout = strings.Replace(with.stdout, "['sparkrun_shim', 'sparkrun_shim.hook']", "[]", 1)
			if diff := same(without, with); diff != "" {
				t.Error(diff)
			}
		})
	}
	if tried == 0 {
		t.Skip("no Python from 3.8 on")
	}
}

func TestRecordsTheExceptionThatEndsAProcess(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, tail, kind, message, frame string }{
		{"plain", "def step():\n    raise MemoryError('no more, token hf_abcdefghijklmnop1234')\nstep()", "MemoryError", "no more, token [redacted]", ":step"},
		{"a class of its own", "class Bad(Exception): pass\nraise Bad('x')", "Bad", "x", ":<module>"},
		{"a hook that tells nobody", "import sys\nsys.excepthook = lambda *a: print('mine')\nraise ValueError('kept')", "ValueError", "kept", ":<module>"},
		{"a hook that fails", "import sys\ndef hook(*a): raise KeyError(1)\nsys.excepthook = hook\nraise ValueError('kept')", "ValueError", "kept", ":<module>"},
		{"a message that cannot be printed", "class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E()", "E", "?", ":<module>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, Plan{}, "base")
			a.env = []string{"RANK=3"}
			file := a.script("import transformers\n" + c.tail)
			without, with := a.run(false, file), a.run(true, file)
			if diff := same(without, with); diff != "" {
				t.Error(diff)
			}
			rec := a.record()
			e := rec.Exception
			if e == nil || len(rec.Exceptions) != 1 {
				t.Fatalf("record %+v", rec)
			}
			if e.Type != c.kind || e.Message != c.message || len(e.Frames) == 0 || !strings.HasSuffix(e.Frames[len(e.Frames)-1], c.frame) {
				t.Errorf("exception %+v", e)
			}
			if e.Memory["mem_available"] < 1<<20 || e.Rank != "3" || e.Time.IsZero() || e.PID == 0 {
				t.Errorf("exception %+v", e)
			}
		})
	}
	t.Run("memory of the device", func(t *testing.T) {
		t.Parallel()
		a := newAttempt(t, Plan{}, "base")
		a.run(true, a.script(`
import torch, transformers
class cuda:
    is_initialized = staticmethod(lambda: True)
    memory_stats = staticmethod(lambda: {"allocated_bytes.all.current": 5 << 30, "reserved_bytes.all.peak": 7 << 30, "num_ooms": 1})
    @staticmethod
    def mem_get_info(): raise RuntimeError("sticky")
torch.cuda = cuda
raise MemoryError
`))
		e := a.record().Exception
		if e == nil || e.Memory["allocated"] != 5<<30 || e.Memory["max_reserved"] != 7<<30 || e.Memory["num_ooms"] != 1 {
			t.Errorf("exception %+v", e)
		}
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		for _, tail := range []string{"raise SystemExit(3)", "import sys; sys.exit('text')", "try: 1/0\nexcept Exception: pass"} {
			a := newAttempt(t, Plan{}, "base")
			file := a.script("import transformers\n" + tail)
			without, with := a.run(false, file), a.run(true, file)
			if diff := same(without, with); diff != "" {
				t.Error(diff)
			}
			if rec := a.record(); rec.Exception != nil || len(rec.Processes) != 0 || !rec.Loaded {
				t.Errorf("%s: record %+v", tail, rec)
			}
		}
	})
	t.Run("a thread", func(t *testing.T) {
		t.Parallel()
		a := newAttempt(t, Plan{}, "base")
		got := a.run(true, a.script(`
import threading, transformers
def work(): raise MemoryError("in the thread")
t = threading.Thread(target=work, name="loader")
t.start()
t.join()
raise ValueError("in the end")
`))
		rec := a.record()
		if len(rec.Exceptions) != 2 || rec.Exceptions[0].Thread != "loader" || rec.Exception == nil || rec.Exception.Type != "ValueError" {
			t.Errorf("record %+v; %+v", rec, got)
		}
	})
}

func TestForksAndThreads(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, shorter(), "base", "trl-1")
	a.prints("done", `
import os, threading
from trl import SFTConfig
def work(n):
    for i in range(30):
        a = SFTConfig(output_dir="o%d-%d" % (n, i), max_length=4096)
        assert (a.max_length, a.per_device_train_batch_size, a.gradient_accumulation_steps) == (2048, 4, 2), vars(a)
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for t in threads: t.start()
children = []
for n in range(4):
    pid = os.fork()
    if pid == 0:
        work(100 + n)
        os._exit(0)
    children.append(pid)
for t in threads: t.join()
assert all(os.waitpid(p, 0)[1] == 0 for p in children)
print("done")
`)
	if n := len(a.record().Processes); n != 5 {
		t.Errorf("%d processes in the record, want the parent and its 4 children", n)
	}
}

func TestWorkersThatTokeniseShareARecord(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, shorter(), "base")
	a.prints("100", `
import multiprocessing
from transformers import PreTrainedTokenizerBase
def work(n):
    assert len(PreTrainedTokenizerBase()("w " * 5000, truncation=True, max_length=4096)) == 2048
if __name__ == "__main__":
    done = 0
    for method, times in (("fork", 95), ("spawn", 3), ("forkserver", 2)):
        for n in range(times):
            p = multiprocessing.get_context(method).Process(target=work, args=(n,))
            p.start()
            p.join()
            done += p.exitcode == 0
    print(done)
`)
	rec := a.record()
	saw(t, rec, Seen{Knob: job.SeqLen, Where: "tokenizer(max_length=)", Before: "4096", After: "2048"})
	if len(rec.Processes) > 3 {
		t.Errorf("%d record files", len(rec.Processes))
	}
}

func TestRanksAreMerged(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, shorter(), "base", "trl-1")
	a.prints("", `
import os, subprocess, sys
code = "import os; from trl import SFTConfig; SFTConfig(max_length=4096); raise MemoryError(os.environ['RANK'])"
for r in range(3):
    subprocess.run([sys.executable, "-c", code], env=dict(os.environ, RANK=str(r)), stderr=subprocess.DEVNULL)
`)
	rec := a.record()
	if len(rec.Processes) != 3 || len(rec.Exceptions) != 3 || rec.Exception.Rank != "0" || rec.Exception.Message != "0" {
		t.Errorf("record %+v", rec)
	}
	n := 0
	for _, s := range rec.Seen {
		if s.Where == "SFTConfig.max_length" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d entries for one length of three ranks", n)
	}
}

func TestARecordThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(*testing.T, *attempt)
	}{
		{"a full disk", func(t *testing.T, a *attempt) {
			// Python ignores SIGXFSZ, so a write over the limit fails as one to a full
			// disk does; only the shim writes here.
			a.python = filepath.Join(t.TempDir(), "python")
			if err := newprog.Write(a.python, []byte("#!/bin/sh\nulimit -f 0\nexec python3 \"$@\"\n")); err != nil {
				t.Fatal(err)
			}
		}},
		{"a file in the place of the folder", func(t *testing.T, a *attempt) {
			dir := filepath.Join(a.dir, RecordDir)
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir, nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}},
		{"a folder that is gone", func(t *testing.T, a *attempt) {
			if err := os.Remove(filepath.Join(a.dir, RecordDir)); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/proc/1/nothing", filepath.Join(a.dir, RecordDir)); err != nil {
				t.Fatal(err)
			}
		}},
		{"read-only", func(t *testing.T, a *attempt) {
			if unix.Geteuid() == 0 {
				// Root writes anyway, unless the file system itself says no.
				if err := os.Remove(filepath.Join(a.dir, RecordDir)); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink("/sys/kernel", filepath.Join(a.dir, RecordDir)); err != nil {
					t.Fatal(err)
				}
				return
			}
			if err := os.Chmod(filepath.Join(a.dir, RecordDir), 0o555); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, shorter(), "base", "trl-1")
			c.spoil(t, a)
			got := a.run(true, a.script(today))
			if got.status != 0 || got.stderr != "" || strings.TrimSpace(got.stdout) != "2048 2048 (4, 2) 4" {
				t.Errorf("%+v", got)
			}
			rec, err := Read(a.dir)
			if missing := Applied(a.plan, rec); len(missing) != 3 {
				t.Errorf("%v of a training that could tell nothing (%v, %v)", missing, rec, err)
			}
			left, _ := filepath.Glob(filepath.Join(a.dir, RecordDir, "*.tmp"))
			if len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestTroubleInsideLeavesTheTrainingAlone(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, shorter(), "base", "trl-1")
	// Every function of ours that is called around a library's fails.
	path := filepath.Join(a.dir, CodeDir, "sparkrun_shim", "plan.py")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"def size(", "def batch(", "def origin("} {
		head, rest, ok := strings.Cut(string(text), method)
		if !ok {
			t.Fatalf("no %s in plan.py", method)
		}
		line, body, _ := strings.Cut(rest, "\n")
		text = []byte(head + method + line + "\n        raise RuntimeError('broken on purpose')\n" + body)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	got := a.run(true, a.script(today))
	if got.status != 0 || got.stderr != "" || strings.TrimSpace(got.stdout) != "4096 4096 (8, 1) 8" {
		t.Errorf("%+v", got)
	}
	if rec := a.record(); len(rec.Trouble) == 0 || !strings.Contains(rec.Trouble[0], "broken on purpose") || len(Applied(a.plan, rec)) != 3 {
		t.Errorf("record %+v", rec)
	}
}

func TestSecretsStayOutOfTheRecord(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, shorter(), "base", "trl-1")
	a.run(true, a.script("from trl import SFTConfig\nSFTConfig(output_dir='https://joe:pass1234@host/x')"),
		"--hub_token", "s3cretvalue1", "--api-key=s3cretvalue2", "WANDB_API_KEY=s3cretvalue3", "hf_s3cretvalue4s3cretvalue4")
	files, _ := filepath.Glob(filepath.Join(a.dir, RecordDir, "*.json"))
	if len(files) != 1 {
		t.Fatal(files)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "s3cret") || strings.Contains(string(text), "pass1234") || !strings.Contains(string(text), "[redacted]") {
		t.Errorf("%s", text)
	}
	if argv := a.record().Processes[0].Argv; !slices.Contains(argv, "--hub_token") {
		t.Errorf("argv %q", argv)
	}
}
