package configs

import (
	"strings"
	"testing"
)

// A section is what stands below its key, on the lines that it has in the file.
func TestSections(t *testing.T) {
	t.Parallel()
	const doc = "# about\na: 1\nb:\n  - x\n# note\n  - y\nc: {d: 2,\n}\ne: |\n  c: no\n"
	for _, c := range []struct {
		keys []string
		want string
	}{
		{[]string{"b"}, "\n\nb:\n  - x\n# note\n  - y\n"},
		{[]string{"a", "c"}, "\na: 1\n\n\n\n\nc: {d: 2,\n}\n"},
		{[]string{"d"}, ""},
	} {
		if got := string(Sections([]byte(doc), c.keys...)); got != c.want {
			t.Errorf("%v: %q, want %q", c.keys, got, c.want)
		}
	}
	var v struct {
		Engines int `yaml:"engines"`
	}
	err := BuiltInKeys("trainers/_prefixes.yaml", &v, "engines")
	if err == nil || !strings.HasPrefix(err.Error(), "configs/trainers/_prefixes.yaml:") || strings.HasPrefix(err.Error(), "configs/trainers/_prefixes.yaml:1:") {
		t.Errorf("an error does not name its line in the whole file: %v", err)
	}
}
