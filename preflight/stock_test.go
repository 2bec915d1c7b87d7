package preflight

import (
	"strings"
	"testing"
)

// A machine as it is delivered is ready and has nothing to act on: a hint that every
// machine gets at every start of a run is one that nobody reads. Nothing of it is left out
// for want of a file either.
func TestAStockSparkHasNoHints(t *testing.T) {
	t.Parallel()
	inside := pythonJob("/usr/bin/python3")
	inside.Dir, inside.TrainerDir = "/workspace", "/workspace"
	for name, in := range map[string]Input{
		"the machine":  recordedInput(t, copyTree(t, "spark", nil), nil),
		"a container":  recordedInput(t, copyTree(t, "spark-ngc", nil), inside),
		"podman's own": recordedInput(t, copyTree(t, "spark-podman", nil), inside),
	} {
		r := Run(t.Context(), in)
		if r.Verdict != Ready || len(r.Warnings())+len(r.Hints()) > 0 {
			t.Errorf("%s: %s\n%s", name, r.Verdict, r.Table(Look{Width: 100, All: true}))
		}
		if name != "the machine" {
			continue
		}
		for _, f := range r.Host {
			switch f.ID {
			case "H7", "H19", "H20": // of a command alone, and only asked for
			default:
				if f.Status == Skip {
					t.Errorf("%s of a stock machine was not looked at: %s", f.ID, f.Detail)
				}
			}
		}
		// What may be advised all the same is offered by --fix.
		var offered []string
		for _, c := range r.Changes() {
			offered = append(offered, c.ID)
		}
		if got := strings.Join(offered, " "); got != "H11 H12" {
			t.Errorf("--fix offers %s", got)
		}
	}
}
