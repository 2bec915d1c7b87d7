package supervisor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sparkrun/internal/proctree"
	"sparkrun/preflight"
)

// repairs is a report that offers commands, each of a finding of its own.
func repairs(commands ...string) preflight.Report {
	var rep preflight.Report
	for i, c := range commands {
		rep.Host = append(rep.Host, preflight.Finding{
			ID: "H" + string(rune('1'+i)), Title: "subject", Status: preflight.Warn,
			Repairs: []preflight.Repair{{Command: c, Effect: "effect; undo: nothing"}},
		})
	}
	return rep
}

// typed is a terminal on which somebody types.
func typed(t *testing.T, text string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	return r
}

func TestFix(t *testing.T) {
	t.Parallel()
	isTerminal := func(f *os.File) bool { return f != nil }
	for name, c := range map[string]struct {
		commands []string
		o        FixOptions
		typed    string
		ran      []string // files that must be there, all others must not
		status   int
		says     []string
	}{
		"nothing to do":       {nil, FixOptions{}, "", nil, 0, []string{"nothing that sparkrun can repair"}},
		"no terminal":         {[]string{"touch a"}, FixOptions{}, "", nil, 1, []string{"1. H1 subject", "$ touch a", "effect; undo", "no terminal"}},
		"--yes":               {[]string{"touch a", "touch b"}, FixOptions{Yes: true}, "", []string{"a", "b"}, 0, []string{"done: H1 (touch a), H2 (touch b)"}},
		"yes":                 {[]string{"touch a", "touch b"}, FixOptions{}, "y\n", []string{"a", "b"}, 0, []string{"run all 2? [y/N"}},
		"no":                  {[]string{"touch a"}, FixOptions{}, "n\n", nil, 1, []string{"run it? [y/N", "nothing was run"}},
		"return":              {[]string{"touch a"}, FixOptions{}, "\n", nil, 1, []string{"nothing was run"}},
		"end of input":        {[]string{"touch a"}, FixOptions{}, "y", nil, 1, []string{"no answer was given"}},
		"some":                {[]string{"touch a", "touch b", "touch c"}, FixOptions{}, "3, 1\n", []string{"a", "c"}, 1, []string{"done: H1 (touch a), H3 (touch c)"}},
		"a number too high":   {[]string{"touch a"}, FixOptions{}, "1,2\n", nil, 1, []string{"a number from 1 to 1"}},
		"a word":              {[]string{"touch a"}, FixOptions{}, "yep\n", nil, 1, []string{"neither y nor n"}},
		"stops at a failure":  {[]string{"touch a", "exit 3", "touch c"}, FixOptions{Yes: true}, "", []string{"a"}, 1, []string{"H2 failed: exit status 3", "done: H1 (touch a)", "not done: H2 (exit 3), H3 (touch c)"}},
		"output is shown":     {[]string{"echo out; echo err >&2"}, FixOptions{Yes: true}, "", nil, 0, []string{"\nout\n", "err\n"}},
		"a helper stays back": {[]string{"sleep 5 & touch a"}, FixOptions{Yes: true, patience: 50 * time.Millisecond}, "", []string{"a"}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			o := c.o
			o.Dir, o.Env, o.Stdout, o.Stderr = t.TempDir(), os.Environ(), &out, &out
			if c.typed != "" {
				o.Stdin, o.terminal = typed(t, c.typed), isTerminal
			}
			res, err := Fix(t.Context(), repairs(c.commands...), o)
			if err != nil || res.Status != c.status || len(res.Listed) != len(c.commands) {
				t.Errorf("%+v, %v", res, err)
			}
			entries, err := os.ReadDir(o.Dir)
			if err != nil {
				t.Fatal(err)
			}
			var ran []string
			for _, e := range entries {
				ran = append(ran, e.Name())
			}
			if !slices.Equal(ran, c.ran) {
				t.Errorf("ran %v, want %v", ran, c.ran)
			}
			for _, words := range c.says {
				if !strings.Contains(out.String(), words) {
					t.Errorf("%q is not in:\n%s", words, out.String())
				}
			}
			if i, j := strings.Index(out.String(), "what --fix would do"), strings.Index(out.String(), "\n$ "); j >= 0 && (i < 0 || i > j) {
				t.Errorf("something was run before it was listed:\n%s", out.String())
			}
		})
	}
}

// After the commands the checks are made once more, and what they find again is told.
func TestFixChecksAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		again  preflight.Report
		err    error
		status int
		says   string
	}{
		"repaired":     {preflight.Report{Verdict: preflight.Ready}, nil, 0, "checked again: ready"},
		"found again":  {func() preflight.Report { r := repairs("true"); r.Verdict = preflight.Ready; return r }(), nil, 1, "found again although its command ended well"},
		"cannot check": {preflight.Report{}, errors.New("no sensors"), 1, "could not be made again: no sensors"},
	} {
		var out bytes.Buffer
		calls := 0
		res, err := Fix(t.Context(), repairs("true"), FixOptions{
			Yes: true, Stdout: &out, Stderr: &out,
			Again: func(context.Context) (preflight.Report, error) { calls++; return c.again, c.err },
		})
		if err != nil || res.Status != c.status || calls != 1 || (res.After == nil) != (c.err != nil) || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: %+v, %v, %d calls:\n%s", name, res, err, calls, out.String())
		}
	}
	res, err := Fix(t.Context(), repairs("true"), FixOptions{Stdout: io.Discard, Stderr: io.Discard, Again: func(context.Context) (preflight.Report, error) {
		t.Error("checked again although nothing was run")
		return preflight.Report{}, nil
	}})
	if err != nil || res.After != nil {
		t.Errorf("%+v, %v", res, err)
	}
}

// What needs root is shown and run with sudo by everybody else, exactly as shown.
func TestFixRoot(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		command string
		root    bool
		shown   string
		argv    []string
	}{
		{"systemctl mask sleep.target", false, "sudo systemctl mask sleep.target", []string{"sudo", "/bin/sh", "-c", "systemctl mask sleep.target"}},
		{"systemctl mask sleep.target", true, "systemctl mask sleep.target", []string{"/bin/sh", "-c", "systemctl mask sleep.target"}},
		{"echo 'x' > /etc/f && true", false, `sudo sh -c 'echo '\''x'\'' > /etc/f && true'`, []string{"sudo", "/bin/sh", "-c", "echo 'x' > /etc/f && true"}},
		{"sudo true", false, "sudo true", []string{"/bin/sh", "-c", "sudo true"}},
	} {
		f := fixer{o: FixOptions{root: func() bool { return c.root }}}
		change := preflight.Change{Repair: preflight.Repair{Command: c.command, Root: true}}
		if got := f.command(change); got != c.shown {
			t.Errorf("%q is shown as %q", c.command, got)
		}
		if got := f.argv(change); !slices.Equal(got, c.argv) {
			t.Errorf("%q is run as %q", c.command, got)
		}
	}
}

// A list that nobody could read is not agreed to, not even by --yes.
func TestFixDoesNothingUnseen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	res, err := Fix(t.Context(), repairs("touch a"), FixOptions{Yes: true, Dir: dir, Env: os.Environ(), Stdout: broken{}, Stderr: io.Discard})
	if err == nil || res.Status != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a")); !errors.Is(err, os.ErrNotExist) {
		t.Error("it was run unseen")
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// Whoever interrupts gets a command that is asked to end, and no other is started.
func TestFixInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	out := &calling{words: "started", then: cancel}
	res, err := Fix(ctx, repairs("trap 'touch asked; exit 1' TERM; echo started; while :; do sleep 0.05; done", "touch b"), FixOptions{Yes: true, Dir: dir, Env: os.Environ(), Stdout: out, Stderr: out})
	if err != nil || res.Status != 1 || len(res.Done) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "asked")); err != nil {
		t.Errorf("it was not asked to end: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "b")); err == nil {
		t.Error("another one was started")
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	res, err = Fix(ctx, repairs("touch b"), FixOptions{Dir: dir, Stdin: r, Stdout: io.Discard, Stderr: io.Discard, terminal: func(*os.File) bool { return true }})
	if err != nil || res.Status != 1 || len(res.Done) != 0 {
		t.Errorf("interrupted at the question: %+v, %v", res, err)
	}
}

// calling calls then once it has seen the words on a line of their own.
type calling struct {
	buf   bytes.Buffer
	words string
	then  func()
}

func (u *calling) Write(p []byte) (int, error) {
	u.buf.Write(p)
	if strings.Contains(u.buf.String(), "\n"+u.words+"\n") {
		u.then()
	}
	return len(p), nil
}

// What a command has started is ended with it, also where the shell that started it is
// gone at once, and nothing is called "not done" that was begun.
func TestFixInterruptedEndsAllOfIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command string
		says    string
	}{
		"a program of the shell's":    {"echo started; sleep 300", "was interrupted, and has ended"},
		"behind a shell that is gone": {"(trap '' TERM HUP; echo $$ >pid; exec sleep 300) & echo started; wait", "was killed when it did not end"},
		"one that ends well":          {"trap 'exit 0' TERM; echo started; while :; do sleep 0.02; done", "done: H1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &calling{words: "started", then: cancel}
			start := time.Now()
			mark := "FIX_TEST=" + t.TempDir()
			_, err := Fix(ctx, repairs(c.command, "touch b"), FixOptions{
				Yes: true, Dir: t.TempDir(), Env: append(os.Environ(), mark), Stdout: out, Stderr: io.Discard, patience: 300 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
			text := out.buf.String()
			if !strings.Contains(text, c.says) || strings.Contains(text, "not done: H1") || !strings.Contains(text, "not done: H2") {
				t.Errorf("%s", text)
			}
			for _, p := range proctree.WithEnv(mark) {
				if p.State != 'Z' {
					t.Errorf("process %d (%s) is still running", p.PID, p.Comm)
				}
			}
		})
	}
}

// TestTheFamilyOfARepairHasNoStrangers: a repair may be killed minutes after its first
// process has ended, and then another one has that number.
func TestTheFamilyOfARepairHasNoStrangers(t *testing.T) {
	t.Parallel()
	stranger := exec.Command("sh", "-c", "sleep 300 & echo started; wait")
	out, err := stranger.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("started\n"))); err != nil {
		t.Fatal(err)
	}
	p, ok := proctree.Read(stranger.Process.Pid)
	if !ok {
		t.Fatal("the process is not in the table")
	}
	below := proctree.Descendants(p.PID)
	before := p
	before.Start--
	if got := (family{first: before, mark: fixMark + "=nobody's"}).signal(nil, syscall.SIGKILL); len(got) > 0 {
		t.Errorf("killed: %v", got)
	}
	for _, q := range append(below, p) {
		if !alive(q) {
			t.Errorf("%v did not outlive it", q)
		}
	}
	if got := (family{first: p, mark: fixMark + "=nobody's"}).signal(nil, syscall.SIGKILL); len(got) != 2 {
		t.Errorf("killed %v, want the process and its child", got)
	}
	_ = stranger.Wait()
}
