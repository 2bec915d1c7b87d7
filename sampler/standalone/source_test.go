package standalone

import (
	"errors"
	"strings"
	"testing"

	"sparkrun/internal/sample"
	"sparkrun/sampler"
	"sparkrun/sampler/nvml"
)

// The runbook's words stand where they are true: there is no nvidia-smi, and no library
// was asked for by name.
func TestNoSensorSaysWhy(t *testing.T) {
	none := sampler.Answer{Device: sample.Device{Source: "none", Err: "no library", ErrKind: string(nvml.NoLibrary)}}
	t.Setenv("PATH", t.TempDir())
	t.Setenv(nvml.LibraryEnv, "")
	if err := noSensor(&none, false); !errors.Is(err, ErrNoSensor) || !strings.Contains(err.Error(), "nvidia-smi not found, and no library") {
		t.Error(err)
	}
	t.Setenv(nvml.LibraryEnv, "/some/library")
	if err := noSensor(&none, false); strings.Contains(err.Error(), "nvidia-smi") {
		t.Error(err)
	}
	none.GPU.ZoneMaxC = sample.Known(40)
	if err := noSensor(&none, false); !strings.Contains(err.Error(), "--wide") {
		t.Error(err)
	}
	if err := noSensor(&none, true); strings.Contains(err.Error(), "--wide") {
		t.Error(err)
	}
}
