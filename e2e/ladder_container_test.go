package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/supervisor/engine/enginetest"
)

// The ladder on trainers inside containers, with real engines. The image borrows the
// machine's /usr, and with it its Python.

func TestLadderInPodman(t *testing.T) {
	t.Parallel()
	containerLadder(t, enginetest.Podman(t, false))
}

func TestLadderInDocker(t *testing.T) {
	t.Parallel()
	containerLadder(t, enginetest.Docker(t))
}

// insidePython is the interpreter that containers of the tests have.
const insidePython = "/usr/bin/python3"

// boxedLadder runs sparkrun in front of an engine's client, in the folder that is
// mounted at /w.
func boxedLadder(t *testing.T, e *enginetest.Engine, dir string, flags []string, box []string, words ...string) *proc {
	t.Helper()
	argv := append(append([]string{}, flags...), "--")
	argv = append(argv, e.Run(append([]string{"--rm", "-v", dir + ":/w", "-w", "/w"}, box...), words...)...)
	p := startEnv(t, dir, e.Env, append([]string{"--no-preflight", "--runs-dir", filepath.Join(t.TempDir(), "runs")}, argv...)...)
	p.wait(90 * time.Second)
	return p
}

// noteScript dies for want of memory while its length is over 1024, and notes each start
// on the host's side of the mount.
const noteScript = `
# parser = HfArgumentParser((ModelArguments, TrainingArguments))
import json, os, sys, time
if sys.argv[1].endswith(".json"):
    with open(sys.argv[1]) as f:
        n = json.load(f)["block_size"]
else:
    n = int(sys.argv[2])
with open("noted", "a") as f:
    print(n, os.getcwd(), os.environ.get("SPARKRUN_ATTEMPT"), os.environ.get("SPARKRUN_RUNG"), sys.argv[1], file=f)
if n > 1024:
    time.sleep(2)  # a container that is gone before it was found is not known to be gone
    raise MemoryError
`

func noted(t *testing.T, dir string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "noted"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

func containerLadder(t *testing.T, e *enginetest.Engine) {
	if out, err := e.Try(e.Run([]string{"--rm"}, insidePython, "-c", "print('python')")[1:]...); err != nil || !strings.Contains(out, "python") {
		t.Skipf("containers have no %s here: %s", insidePython, out)
	}

	t.Run("argv", func(t *testing.T) {
		dir := folder(t, map[string]string{"train.py": noteScript})
		p := boxedLadder(t, e, dir, nil, nil, insidePython, "train.py", "--max_length", "4096").is(0)
		got := noted(t, dir)
		want := []string{"4096 /w 1 none --max_length", "2048 /w 2 shorter-packing --max_length", "1024 /w 3 shorter-packing --max_length"}
		if !slices.Equal(got, want) {
			t.Errorf("inside ran\n%q\nwant\n%q\nstderr %s", got, want, p.err)
		}
		if argv := p.command(3).Argv; argv[len(argv)-1] != "1024" || argv[0] != e.Client || argv[1] != "run" {
			t.Errorf("attempt 3: %q", argv)
		}
		p.complete(3)
	})

	t.Run("shell string", func(t *testing.T) {
		dir := folder(t, map[string]string{"sub/train.py": noteScript})
		p := boxedLadder(t, e, dir, nil, nil, "bash", "-c", "echo 'a  b' && cd sub && "+insidePython+" train.py --max_length 2048").is(0)
		if got := noted(t, filepath.Join(dir, "sub")); len(got) != 2 || !strings.HasPrefix(got[1], "1024 /w/sub 2 ") {
			t.Errorf("inside ran %q\nstderr %s", got, p.err)
		}
		if argv := p.command(2).Argv; argv[len(argv)-1] != "echo 'a  b' && cd sub && "+insidePython+" train.py --max_length 1024" {
			t.Errorf("attempt 2: %q", argv[len(argv)-1])
		}
	})

	// A config in a mount is changed in a copy beside it on the host, which the
	// container sees; the user's own stays.
	for name, config := range map[string]string{"config": "c.json", "config by its place": "/w/conf/c.json"} {
		t.Run(name, func(t *testing.T) {
			const text = "{\"block_size\" : 2048,\t\"output_dir\": \"out\"}"
			dir := folder(t, map[string]string{"run_clm.py": noteScript, "c.json": text, "conf/c.json": text})
			before := contents(t, dir)
			p := boxedLadder(t, e, dir, nil, nil, insidePython, "run_clm.py", config).is(0)
			got := noted(t, dir)
			if len(got) != 2 || !strings.HasPrefix(got[1], "1024 /w 2 ") || !strings.Contains(got[1], ".sparkrun-"+p.id()+"-a2-c.json") {
				t.Errorf("inside ran %q\nstderr %s", got, p.err)
			}
			after := contents(t, dir)
			for _, file := range []string{"/run_clm.py", "/c.json", "/conf/c.json"} {
				if after[file] != before[file] {
					t.Errorf("%s was changed", file)
				}
			}
			if left := leftCopies(t, dir); len(left) > 0 {
				t.Errorf("copies are left: %v", left)
			}
		})
	}

	// A config that only the image has cannot be changed, and that is said.
	t.Run("config in the image", func(t *testing.T) {
		dir := folder(t, map[string]string{"run_clm.py": noteScript})
		x := explainJSON(t, dir, append([]string{"--"}, e.Run([]string{"--rm", "-v", dir + ":/w", "-w", "/w"}, insidePython, "run_clm.py", "/opt/c.json")...)...)
		if len(x.allowed("length")) > 0 || !strings.Contains(strings.Join(x.Notes, "; "), "/opt/c.json") {
			t.Errorf("rungs %+v, notes %v", x.allowed("length"), x.Notes)
		}
	})

	// Values in the code are turned by the shim, which comes in by a mount and by -e,
	// also where the container runs as somebody else.
	for name, box := range map[string][]string{"shim": nil, "shim of another user": {"--user", "65534:65534"}} {
		t.Run(name, func(t *testing.T) {
			dir := constants(t)
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			p := boxedLadder(t, e, dir, nil, append(box, "-e", "LIMIT=200", "-e", "PYTHONPATH=/w/site", "-e", "PYTHONDONTWRITEBYTECODE=1"), insidePython, "train.py").is(0)
			if got := sizes(p.begun()); got != "4096x8x1 2048x8x1 1024x8x1" {
				t.Fatalf("it trained with %s\nstderr %s", got, p.err)
			}
			s := p.shim(3)
			if was, is := s.inForce("seq_len"); !s.Loaded || was != "4096" || is != "1024" {
				t.Errorf("loaded %v, length %s -> %s", s.Loaded, was, is)
			}
			if x := p.shim(2).Exception; x == nil || x.Type != "MemoryError" {
				t.Errorf("exception %+v", x)
			}
			argv := strings.Join(p.command(3).Argv, " ")
			if !strings.Contains(argv, ":ro ") || !strings.Contains(argv, "SPARKRUN_SHIM_PLAN=") || strings.Index(argv, "SPARKRUN_SHIM_PLAN=") > strings.Index(argv, enginetest.Image) {
				t.Errorf("attempt 3: %s", argv)
			}
			if !strings.Contains(argv, ":/w/site ") {
				t.Errorf("the user's PYTHONPATH is lost: %s", argv)
			}
			if first := strings.Join(p.command(1).Argv, " "); strings.Contains(first, "SPARKRUN_SHIM_PLAN=") {
				t.Errorf("attempt 1 has the shim: %s", first)
			}
		})
	}

	// What the image itself puts on Python's path stays there.
	t.Run("shim beside an image's own path", func(t *testing.T) {
		const image = "sparkrun-test-path:1"
		e.Do(t, "create", "--name=for-the-path", enginetest.Image, "true")
		e.Do(t, "commit", "--change", "ENV PYTHONPATH=/w/site", "for-the-path", image)
		dir := constants(t)
		put(t, dir, map[string]string{"site/of_the_image.py": "", "train.py": "import of_the_image\n" + constantsScript})
		argv := e.Run([]string{"--rm", "-v", dir + ":/w", "-w", "/w", "-e", "LIMIT=200"}, insidePython, "train.py")
		argv[slices.Index(argv, enginetest.Image)] = image
		p := startEnv(t, dir, e.Env, append([]string{"--no-preflight", "--runs-dir", filepath.Join(t.TempDir(), "runs"), "--"}, argv...)...)
		if got := p.wait(90 * time.Second); got != 0 || sizes(p.begun()) != "4096x8x1 2048x8x1 1024x8x1" {
			t.Errorf("status %d, it trained with %s\nstdout %s\nstderr %s", got, sizes(p.begun()), p.out, p.err)
		}
	})

	// The checkpoint that the container saved is found on the host, and the container is
	// told its own name of it.
	t.Run("resume", func(t *testing.T) {
		dir := saving(t)
		p := boxedLadder(t, e, dir, nil, []string{"-e", "LIMIT=48"}, insidePython, "train.py", "--per_device_train_batch_size", "4").is(0)
		starts := p.begun()
		if got := sizes(starts); got != "1024x4x1 1024x2x2" {
			t.Fatalf("it trained with %s\nstderr %s", got, p.err)
		}
		if s := starts[1]; s.FromStep != 4 || !strings.HasPrefix(resumedFrom(s), "/w/") || !strings.HasSuffix(resumedFrom(s), "/checkpoint-4") || s.OutputDir != "out" {
			t.Errorf("the second start: %+v from %q\nstderr %s", s, resumedFrom(s), p.err)
		}
		if left := leftCopies(t, dir); len(left) > 0 {
			t.Errorf("copies are left: %v", left)
		}
		if starts[0].WandB == "" || starts[1].WandB != starts[0].WandB {
			t.Errorf("WANDB_RUN_ID inside: %q, then %q", starts[0].WandB, starts[1].WandB)
		}
	})

	// In a container that runs already, flags are turned; the shim cannot get in.
	t.Run("exec", func(t *testing.T) {
		// It dies once it is known which container it is in.
		dir := folder(t, map[string]string{"train.py": strings.Replace(noteScript, "    raise MemoryError",
			"    import time\n    while not os.path.exists('go'):\n        time.sleep(0.02)\n    raise MemoryError", 1)})
		name := fmt.Sprintf("ladder-%d", os.Getpid())
		e.Do(t, e.Run([]string{"-d", "--name=" + name, "-v", dir + ":/w"}, "sleep", unique())[1:]...)
		argv := []string{e.Client, "exec", "-w", "/w", name, insidePython, "train.py", "--max_length", "2048"}
		p := startEnv(t, dir, e.Env, append([]string{"--no-preflight", "--runs-dir", filepath.Join(t.TempDir(), "runs"), "--"}, argv...)...)
		until(t, "the container found", fileHas(p.file("events.jsonl"), "the container is "))
		put(t, dir, map[string]string{"go": ""})
		if got := p.wait(60 * time.Second); got != 0 || !slices.Equal(noted(t, dir), []string{"2048 /w 1 none --max_length", "1024 /w 2 shorter-packing --max_length"}) {
			t.Errorf("status %d, inside ran %q\nstderr %s", got, noted(t, dir), p.err)
		}
		x := explainJSON(t, dir, "--", e.Client, "exec", "-w", "/w", name, "bash", "train.sh")
		if len(x.allowed("length")) > 0 || !strings.Contains(x.why("length"), "a container that is running") {
			t.Errorf("the shim in a container that runs: %+v, refused with %q", x.allowed("length"), x.why("length"))
		}
	})
}
