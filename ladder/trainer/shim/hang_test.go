package shim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/job"
)

// stuck makes every write of the shim wait for ever once the script says so, as a disk
// does that no longer answers. The script sees what the shim opens, nothing else.
const stuck = `
import os, threading
real, hung, ever = os.open, [], threading.Event()
def stuck(path, *a, **k):
    if "shim-out" in str(path):
        hung.append(threading.current_thread())
        ever.wait()
    return real(path, *a, **k)
def hang(): os.open = stuck
`

// A training goes on, and ends, although the run folder hangs: with its own exit status,
// its own traceback, and in no more time than the shim may take.
func TestADiskThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, tail string
		status     int
		most       time.Duration // of the script's own steps, and then of its end
		end        time.Duration
	}{
		{"from the first", "hang()\nsteps()", 0, time.Second, 3 * time.Second},
		{"in the middle", "steps(5)\nhang()\nsteps()", 0, time.Second, 3 * time.Second},
		{"and an exception", "steps(5)\nhang()\nsteps()\nlast()\nraise MemoryError('no more')", 1, time.Second, 3 * time.Second},
		{"and a hook that tells nobody", "import sys\nsys.excepthook = lambda *a: None\nhang()\nsteps()\nlast()\nraise MemoryError", 1, time.Second, 3 * time.Second},
		{"and threads that end", `
hang()
ts = [threading.Thread(target=steps, args=(10, n)) for n in range(8)]
for t in ts: t.start()
for t in ts: t.join()
`, 0, time.Second, 3 * time.Second},
		{"and a frozen clock", "time.monotonic = lambda: 5.0\nhang()\nsteps()", 0, time.Second, 3 * time.Second},
		{"and children", `
hang()
steps(3)
import warnings
warnings.simplefilter("ignore") # a newer Python warns of the fork, as a thread hangs
for n in range(20):
    pid = os.fork()
    if pid == 0:
        steps(20, 100 + n)
        os._exit(len(os.listdir("/proc/self/task")) - 1)
    assert os.waitpid(pid, 0)[1] == 0
`, 0, time.Second, 3 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, shorter(), "base", "trl-1")
			began := "from time import perf_counter as clock\nimport time"
			got := a.run(true, a.script(began+stuck+`
from trl import SFTConfig
def steps(n=300, of=0):
    for i in range(n):
        a = SFTConfig(output_dir="o%d-%d" % (of, i), max_length=4096)
        assert (a.max_length, a.per_device_train_batch_size, a.gradient_accumulation_steps) == (2048, 4, 2), vars(a)
def last():
    global said
    said = True
    print("done", clock() - start, end=" ", flush=True)
said, start = False, clock()
`+c.tail+`
if not said: last()
assert len(hung) <= 1, hung
`))
			word, took, _ := strings.Cut(strings.TrimSpace(got.stdout), " ")
			seconds, err := time.ParseDuration(took + "s")
			if got.status != c.status || word != "done" || err != nil {
				t.Fatalf("%+v", got)
			}
			if seconds > c.most*slack {
				t.Errorf("the training waited %v for the shim", seconds)
			}
			if c.status == 0 && got.stderr != "" || strings.Contains(got.stderr, "shim") {
				t.Errorf("stderr %q", got.stderr)
			}
			if got.took > seconds+c.end*slack {
				t.Errorf("it took %v, of which the training %v", got.took, seconds)
			}
		})
	}
}

// slack is for machines that do other things too.
const slack = 2

func TestADiskThatAnswersAgain(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, shorter(), "base", "trl-1")
	rec := a.prints("True", stuck+`
from trl import SFTConfig
SFTConfig(output_dir="one")
hang()
for n in range(20): SFTConfig(output_dir="other%d" % n)
os.open = real
print(len(hung) == 1, flush=True)
ever.set()
`)
	for _, want := range []string{"one", "other0", "other19"} {
		saw(t, rec, Seen{Knob: job.OutputDir, Where: "SFTConfig.output_dir", Before: want, After: want})
	}
}

func TestAProcessThatEndsAtOnceHasToldAll(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"os._exit(0)", "os.kill(os.getpid(), 9)", "os.execv('/bin/true', ['true'])", "os.abort()"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, shorter(), "base", "trl-1")
			a.run(true, a.script("import os\nfrom trl import SFTConfig\nSFTConfig(max_length=4096)\n"+end))
			if missing := Applied(a.plan, a.record()); missing != nil {
				t.Errorf("missing %v", missing)
			}
		})
	}
}

// A process that the shim has nothing to tell of has none of its threads, and one that has
// told has none left over.
func TestNoThreadIsLeft(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, shorter(), "base", "trl-1")
	count := `
import os, time
def threads():
    # The kernel counts a thread a moment longer than Python.
    for _ in range(200):
        n = len(os.listdir("/proc/self/task"))
        if n == 1: break
        time.sleep(0.01)
    return n
`
	a.prints("1 1 1", count+`
first = threads()
import transformers
second = threads()
from trl import SFTConfig
SFTConfig()
print(first, second, threads())
`)
	b := newAttempt(t, shorter(), "base", "trl-1")
	b.python = "python3"
	got := b.run(true, "-W", "error", b.script(`
import os, warnings
from trl import SFTConfig
for n in range(20):
    SFTConfig(output_dir=str(n))
    if os.fork() == 0: os._exit(0)
print("forked")
`))
	if got.stdout != "forked\n" || got.stderr != "" {
		t.Errorf("%+v", got)
	}
}

// A file system that is frozen by the kernel stops whoever writes to it, even from dying.
func TestAFrozenFileSystem(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("needs root, to freeze a file system of its own")
	}
	dir := t.TempDir()
	image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
	command := func(name string, args ...string) error {
		out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s %q: %w: %s", name, args, err, out)
		}
		return err
	}
	for _, args := range [][]string{{"truncate", "-s", "16M", image}, {"mkfs.ext4", "-q", image}, {"mkdir", mount}, {"mount", "-o", "loop", image, mount}} {
		if err := command(args[0], args[1:]...); err != nil {
			t.Skip("cannot make a file system of its own here: ", err)
		}
	}
	frozen := false
	thaw := func() {
		if frozen {
			frozen = false
			if err := exec.Command("fsfreeze", "-u", mount).Run(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(func() {
		thaw()
		if err := exec.Command("umount", mount).Run(); err != nil {
			t.Error(err)
		}
	})
	a := newAttempt(t, shorter(), "base", "trl-1")
	a.dir = filepath.Join(mount, "attempts", "2")
	install(t, a.plan, a.dir)
	ready, done := filepath.Join(a.work, "ready"), filepath.Join(a.work, "done")
	script := a.script(fmt.Sprintf(`
import os, time
from trl import SFTConfig
SFTConfig(output_dir="first")
open(%q, "w").close()
while not os.path.exists("frozen"): time.sleep(0.01)
for n in range(300): SFTConfig(output_dir="o%%d" %% n, max_length=4096)
open(%q, "w").close()
`, ready, done))
	ended := make(chan result, 1)
	go func() { ended <- a.run(true, script) }()
	wait := func(file string) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(file); err == nil {
				return
			}
			if time.Now().After(deadline) {
				thaw()
				t.Fatalf("no %s after 20 s", filepath.Base(file))
			}
		}
	}
	wait(ready)
	if err := command("fsfreeze", "-f", mount); err != nil {
		t.Fatal(err)
	}
	frozen = true
	if err := os.WriteFile(filepath.Join(a.work, "frozen"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	wait(done) // the training is through, and the file system frozen still
	thaw()
	if got := <-ended; got.status != 0 || got.stderr != "" {
		t.Errorf("%+v", got)
	}
	saw(t, a.record(), Seen{Knob: job.OutputDir, Where: "SFTConfig.output_dir", Before: "first", After: "first"})
}
