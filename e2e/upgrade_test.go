package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"sparkrun/internal/newprog"
)

// TestUpgradedWhileItRuns: the file of the program is taken away or is another one's before
// the second attempt, which starts all the same, with the program that runs.
func TestUpgradedWhileItRuns(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"removed":          `os.remove(os.environ["PROGRAM"])`,
		"another version":  `os.rename(os.environ["OTHER"], os.environ["PROGRAM"])`,
		"its folder moved": `os.rename(os.path.dirname(os.environ["PROGRAM"]), os.path.dirname(os.environ["PROGRAM"]) + "-old")`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folders := t.TempDir()
			program, other := filepath.Join(folders, "bin", "sparkrun"), filepath.Join(folders, "other")
			if err := os.Mkdir(filepath.Dir(program), 0o755); err != nil {
				t.Fatal(err)
			}
			// Not written by ourselves: a process that another test starts meanwhile would
			// have the file open for writing, and then it cannot be executed.
			if out, err := exec.Command("cp", filepath.Join(bin, "sparkrun"), program).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if err := newprog.Write(other, []byte("#!/bin/sh\nexit 9\n")); err != nil {
				t.Fatal(err)
			}
			script := "import os\nif os.environ[\"SPARKRUN_ATTEMPT\"] == \"1\":\n    " + change + "\n" + constantsScript
			dir := withLibraries(t, folder(t, map[string]string{"train.py": script}))
			env := append([]string{"LIMIT=200", "PROGRAM=" + program, "OTHER=" + other}, quietPython...)
			p := launch(t, dir, []string{"sh", "-c", `shift; exec "$0" "$@"`, program}, env, nil, "--no-preflight", "--", "python3", "train.py")
			p.wait(60 * time.Second)
			p.is(0).says("succeeded in ", "but not as asked")
			if n := len(p.begun()); n < 2 {
				t.Errorf("%d attempts were begun", n)
			}
		})
	}
}
