package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/supervisor/engine/enginetest"
)

// A container client in a shell's text, and compose's run: their containers are found and
// ended as those of a plain client, and so the ladder goes down.

func TestComposeAndShellsInPodman(t *testing.T) {
	t.Parallel()
	composeAndShells(t, enginetest.Podman(t, false))
}

func TestComposeAndShellsInDocker(t *testing.T) {
	t.Parallel()
	composeAndShells(t, enginetest.Docker(t))
}

func composeAndShells(t *testing.T, e *enginetest.Engine) {
	if out, err := e.Try(e.Run([]string{"--rm"}, insidePython, "-c", "print('python')")[1:]...); err != nil || !strings.Contains(out, "python") {
		t.Skipf("containers have no %s here: %s", insidePython, out)
	}
	ladder := func(t *testing.T, dir string, argv ...string) *proc {
		t.Helper()
		p := startEnv(t, dir, e.Env, append([]string{"--no-preflight", "--runs-dir", filepath.Join(t.TempDir(), "runs"), "--"}, argv...)...)
		p.wait(90 * time.Second)
		return p
	}

	t.Run("shell text", func(t *testing.T) {
		dir := folder(t, map[string]string{"sub/train.py": noteScript})
		inner := strings.Join(e.Run([]string{"--rm", "-v", dir + "/sub:/w", "-w", "/w"}, insidePython, "train.py", "--max_length", "2048"), " ")
		p := ladder(t, dir, "bash", "-c", "echo 'a  b' && cd sub && "+inner).is(0)
		if got := noted(t, filepath.Join(dir, "sub")); len(got) != 2 || !strings.HasPrefix(got[0], "2048 /w 1 ") || !strings.HasPrefix(got[1], "1024 /w 2 ") {
			t.Errorf("inside ran %q\nstderr %s", got, p.err)
		}
		text := p.command(2).Argv[2]
		mark := map[string]string{"docker": "--label=sparkrun.attempt=", "podman": "--cidfile="}[e.Name]
		if !strings.HasPrefix(text, "echo 'a  b' && cd sub && ") || !strings.Contains(text, " run "+mark) || !strings.HasSuffix(text, " 1024") {
			t.Errorf("attempt 2: %s", text)
		}
		if strings.Contains(p.err.String(), "cannot end this container") {
			t.Errorf("stderr %s", p.err)
		}
	})

	t.Run("compose run", func(t *testing.T) {
		dir := constants(t)
		compose := e.Compose(t, dir+":/w")
		argv := append(slices.Clone(compose), "run", "--rm", "-T", "-w", "/w", "-e", "LIMIT=200", "-e", "PYTHONPATH=/w/site", enginetest.ComposeService, insidePython, "train.py")
		p := ladder(t, dir, argv...).is(0)
		if got := sizes(p.begun()); got != "4096x8x1 2048x8x1 1024x8x1" {
			t.Fatalf("it trained with %s\nstderr %s", got, p.err)
		}
		third := p.command(3).Argv
		at := slices.Index(third, "run")
		if want := "--name=sparkrun-" + p.id() + "-3"; third[at+1] != want {
			t.Errorf("attempt 3 has not %s: %q", want, third)
		}
		if got := e.Do(t, "ps", "-aq"); got != "" {
			t.Errorf("containers are left: %s", got)
		}
		if strings.Contains(p.err.String(), "cannot end this container") {
			t.Errorf("stderr %s", p.err)
		}
	})

	// What compose decides is not followed, and that is said before anything starts.
	t.Run("no rungs where no attempt follows", func(t *testing.T) {
		dir := folder(t, map[string]string{"train.py": noteScript})
		for why, argv := range map[string][]string{
			"compose up starts containers of its own choice": append(e.Compose(t), "up"),
			"nerdctl is not an engine sparkrun can ask":      {"nerdctl", "run", "img", "python", "train.py", "--max_length", "4096"},
			"stays taken": e.Run([]string{"--name=mine"}, insidePython, "train.py", "--max_length", "4096"),
		} {
			x := explainJSON(t, dir, append([]string{"--"}, argv...)...)
			for _, rung := range x.Rungs {
				if rung.Allowed || !strings.Contains(rung.Reason, why) {
					t.Errorf("%q: rung %s, allowed %v, %s", argv, rung.Name, rung.Allowed, rung.Reason)
				}
			}
			if len(x.Rungs) == 0 {
				t.Errorf("%q: no rungs at all", argv)
			}
		}
	})
}
