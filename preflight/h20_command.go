package preflight

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
)

// judgeCommand is H20: a command that is not there, or names a script that is not, is no
// fault of the machine, but a preflight in the afternoon that does not say so lets somebody
// find out in the evening. A run says the same by itself before it starts anything.
func judgeCommand(f facts) Finding {
	switch {
	case f.job == nil || len(f.job.Argv) == 0:
		return byDesign("no command named")
	case !rootOf(f.in.Root).live():
		return byDesign("what the command names is not looked for in a recorded tree")
	}
	name := cmp.Or(f.in.Program, f.job.Argv[0])
	var a advice
	if why := f.in.CannotStart; why != "" {
		fix := "check the spelling, or activate the environment that has it (source .venv/bin/activate)"
		if filepath.IsAbs(name) || strings.Contains(name, "/") {
			fix = "ls -l " + shellWord(name)
		}
		// The system's Python of Ubuntu has no name but python3.
		if name == "python" {
			fix = "python3 in its place is the system's own Python\n" + fix
		}
		a.warn(why, "the run ends at once and nothing is trained", fix)
	}
	if f.in.Slip != "" {
		a.warn(f.in.Slip, "the training ends at once", "correct the command; it is started in "+shellWord(f.job.Dir))
	}
	return a.finding(Pass, fmt.Sprintf("%s can be started", name))
}
