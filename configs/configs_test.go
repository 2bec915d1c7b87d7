package configs

import (
	"io/fs"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestErrorsNameFileAndLine(t *testing.T) {
	t.Parallel()
	type table struct {
		Name string `yaml:"name"`
		N    int    `yaml:"n"`
	}
	for text, want := range map[string]string{
		"":                        "f.yaml: the file is empty",
		"name: x\nnonsense: 1\n":  "f.yaml:2: field nonsense not found",
		"name: x\nn: many\n":      "f.yaml:2: cannot unmarshal",
		"name: [\n":               "f.yaml:",
		"name: a\n---\nname: b\n": "f.yaml: more than one YAML document",
	} {
		err := Decode("f.yaml", []byte(text), &table{})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if err := Decode("f.yaml", []byte("name: x\nn: 3\n"), &table{}); err != nil {
		t.Error(err)
	}
}

// TestEveryTableIsYAML: what is embedded parses; what it means is tested where it
// is used.
func TestEveryTableIsYAML(t *testing.T) {
	t.Parallel()
	n := 0
	err := fs.WalkDir(FS, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		n++
		b, err := FS.ReadFile(path)
		if err != nil {
			return err
		}
		var node yaml.Node
		if err := yaml.Unmarshal(b, &node); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		return nil
	})
	if err != nil || n < 7 {
		t.Errorf("%d tables, %v", n, err)
	}
}
