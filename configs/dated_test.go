package configs

import (
	"io/fs"
	"regexp"
	"testing"
)

var (
	asOf    = regexp.MustCompile(`(?m)^as_of: "?\d{4}-\d{2}-\d{2}"?$`)
	refresh = regexp.MustCompile(`(?m)^(refresh: .+|# When that has to be done again: .+)$`)
)

// Tables of figures that grow old carry the day on which they were looked at, and what is
// the occasion to do so again.
func TestTablesSayWhenTheyAreOld(t *testing.T) {
	t.Parallel()
	dated := 0
	names, err := fs.Glob(FS, "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(FS, name)
		if err != nil {
			t.Fatal(err)
		}
		if asOf.Match(text) {
			dated++
		}
		if asOf.Match(text) != refresh.Match(text) {
			t.Errorf("%s: a day %v, an occasion to look again %v", name, asOf.Match(text), refresh.Match(text))
		}
	}
	for _, name := range []string{"memory.yaml", "headroom.yaml", "bandwidth.yaml", "stack.yaml"} {
		if text, err := fs.ReadFile(FS, name); err != nil || !asOf.Match(text) {
			t.Errorf("%s has no day, %v", name, err)
		}
	}
	if dated < 8 {
		t.Errorf("%d tables are dated", dated)
	}
}
