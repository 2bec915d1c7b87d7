package supervisor

import (
	"slices"
	"testing"
)

func TestOverlayLeavesOneOfEachName(t *testing.T) {
	t.Parallel()
	got := overlay([]string{"PATH=/bin", "PYTHONPATH=/mine", "PYTHONPATHX=/other", "A=1"}, []string{"PYTHONPATH=/shim:/mine", "B=1", "B=2"})
	want := []string{"PATH=/bin", "PYTHONPATHX=/other", "A=1", "PYTHONPATH=/shim:/mine", "B=2"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
