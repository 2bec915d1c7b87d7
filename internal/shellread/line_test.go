package shellread

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestLineIsReadBack: bash finds the same words in a line as were written into it.
func TestLineIsReadBack(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	if got := Line([]string{"x=1", "y=2"}); got != "'x=1' y=2" { // no assignment
		t.Errorf("in front: %s", got)
	}
	want := []string{"python", "a b", "", "it's", `"`, "$HOME", "a\nb", "{seq_len}", "*", "~", "x=1", "\\", "-c", "#", "!", "é", "a;b", "\x1b[0m", "\xff"}
	out, err := exec.CommandContext(t.Context(), bash, "-c", `printf '%s\0' `+Line(want)).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); !slices.Equal(got, want) {
		t.Errorf("%s is read as %q", Line(want), got)
	}
	if got := Line([]string{"python", "train.py", "--lr=2e-4", "/data/x:ro", "a,b", "50%"}); got != "python train.py --lr=2e-4 /data/x:ro a,b 50%" {
		t.Errorf("plain words in quotes: %s", got)
	}
}
