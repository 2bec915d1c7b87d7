package preflight

import (
	"context"
	"strings"
	"testing"

	"sparkrun/internal/sample"
)

// A setting that names another library than there is, is said by all that ask the driver,
// whatever machine it is.
func TestLibraryThatIsMisnamed(t *testing.T) {
	t.Parallel()
	const named = "/opt/none/libnvidia-ml.so.1"
	device := func(context.Context) (sample.Device, sample.GPU, error) {
		return sample.Device{Source: "none", ErrKind: "no-library", Err: "cannot open shared object file"}, sample.GPU{}, nil
	}
	for _, tree := range []string{"spark", "spark-ngc", "laptop"} {
		for set, want := range map[string]bool{named: true, "": false} {
			r := Run(t.Context(), Input{Root: "testdata/" + tree, Getenv: env("SPARKRUN_NVML_LIBRARY", set), Device: device})
			for _, id := range []string{"G4", "H1"} {
				f := find(t, r, id)
				if got := strings.Contains(f.Detail, "SPARKRUN_NVML_LIBRARY names "+named); got != want {
					t.Errorf("%s on %s, set to %q: %s %q", id, tree, set, f.Status, f.Detail)
				}
				if want && f.Status == Warn && !strings.Contains(f.Fix, "unset SPARKRUN_NVML_LIBRARY") {
					t.Errorf("%s on %s: fix %q", id, tree, f.Fix)
				}
			}
		}
	}
}
