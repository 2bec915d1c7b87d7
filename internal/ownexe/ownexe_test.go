package ownexe

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/internal/newprog"
)

// With this in its environment the test binary prints what it would start: first as it is,
// then after each line on its stdin, and at last what that program is.
const asChild = "OWNEXE_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(asChild) {
	case "start":
		exe := started
		for range 2 {
			os.Stdout.WriteString(Path(exe) + "\n")
			_, _ = os.Stdin.Read(make([]byte, 1)) // the end of it will do
		}
		cmd := exec.Command(Path(exe))
		cmd.Env = []string{asChild + "=started"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			out = append(out, err.Error()...)
		}
		os.Stdout.WriteString(string(out) + "\n")
	case "started":
		os.Stdout.WriteString("it runs")
	default:
		os.Exit(m.Run())
	}
}

func TestTheProgramThatRuns(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(path string) error{
		"nothing":  func(string) error { return nil },
		"removed":  os.Remove,
		"replaced": func(path string) error { return replace(path, "#!/bin/sh\nexit 9\n") },
		"the same text in another file": func(path string) error {
			if err := exec.Command("cp", path, path+"-new").Run(); err != nil {
				return err
			}
			return os.Rename(path+"-new", path)
		},
		"moved": func(path string) error { return os.Rename(path, path+"-old") },
		"a folder in its place": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o755)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "program")
			// Not written by ourselves: a process that another test starts meanwhile would
			// have the file open for writing, and then it cannot be executed.
			if out, err := exec.Command("cp", started, path).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			cmd := exec.Command(path)
			cmd.Env = []string{asChild + "=start"}
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			before := make([]byte, len(path)+1)
			if _, err := io.ReadFull(out, before); err != nil || string(before) != path+"\n" {
				t.Errorf("before: %q, %v", before, err)
			}
			if err := change(path); err != nil {
				t.Error(err)
			}
			in.Close()
			rest, err := io.ReadAll(out)
			if err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			want := running
			if name == "nothing" {
				want = path
			}
			if got := strings.TrimSpace(string(rest)); got != want+"\nit runs" {
				t.Errorf("it would start %q, want %q", got, want)
			}
		})
	}
	if got := Path("/bin/sh"); got != "/bin/sh" {
		t.Errorf("another program is %q", got)
	}
}

func replace(path, text string) error {
	if err := newprog.Write(path+"-new", []byte(text)); err != nil {
		return err
	}
	return os.Rename(path+"-new", path)
}
