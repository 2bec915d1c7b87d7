package preflight

import (
	"strings"
	"testing"

	"sparkrun/internal/job"
)

func TestH20(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		in     Input
		argv   []string
		status Status
		detail string
		fix    string
	}{
		{"no command", Input{}, nil, Skip, "no command named (by design)", ""},
		{"a tree", Input{Root: "testdata/spark", CannotStart: "x"}, []string{"python"}, Skip, "recorded tree (by design)", ""},
		{"all well", Input{}, []string{"python3", "train.py"}, Pass, "python3 can be started", ""},
		{"not there", Input{CannotStart: "command not found: trl is not on the PATH"}, []string{"trl"}, Warn, "command not found: trl is not on the PATH", "activate the environment"},
		{"python on Ubuntu", Input{CannotStart: "command not found: python is not on the PATH"}, []string{"python", "train.py"}, Warn, "python is not on the PATH", "python3 in its place"},
		{"a file", Input{CannotStart: "./run it cannot be executed"}, []string{"./run it"}, Warn, "cannot be executed", "ls -l './run it'"},
		{"a script that is not there", Input{Slip: "train.py: no such file"}, []string{"python3", "train.py"}, Warn, "train.py: no such file", "it is started in /home/ada"},
		{"what a script starts", Input{Program: "./run.sh", CannotStart: "./run.sh cannot be executed"}, []string{"trl", "sft"}, Warn, "cannot be executed", "ls -l ./run.sh"},
		{"a script that starts", Input{Program: "./run.sh"}, []string{"trl", "sft"}, Pass, "./run.sh can be started", ""},
		{"both", Input{CannotStart: "a", Slip: "b"}, []string{"uv", "run", "train.py"}, Warn, "a; b", "check the spelling"},
	} {
		f := facts{in: c.in}
		if c.argv != nil {
			f.job = &job.Job{Argv: c.argv, Dir: "/home/ada"}
		}
		got := finish(judgeCommand(f), "H20", "the command's own words")
		if got.Status != c.status || !strings.Contains(got.Detail, c.detail) || !strings.Contains(got.Fix, c.fix) || (got.Fix == "") != (c.fix == "") || (got.Cost == "") != (c.fix == "") {
			t.Errorf("%s: %s: %s\nfix: %s\ncost: %s", c.name, got.Status, got.Detail, got.Fix, got.Cost)
		}
	}
}
