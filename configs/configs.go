// Package configs holds every table of sparkrun as data: crash signatures, the
// ladder, trainer profiles, thermal thresholds. Adding a trainer or a signature
// is an edit here and a test case, not code. The Python that is put into a training
// (package ladder/trainer/shim) lies here too.
package configs

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// FS holds the built-in tables.
//
//go:embed *.yaml trainers/*.yaml schemas/*.json shim/*.py shim/sparkrun_shim/*.py
var FS embed.FS

// Decode reads one YAML document into v, refusing keys that v does not have.
// Its errors name the file and line: "NAME:LINE: what is wrong".
func Decode(name string, data []byte, v any) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	err := dec.Decode(v)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: the file is empty", name)
	}
	if err == nil {
		var extra yaml.Node
		if err := dec.Decode(&extra); !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: more than one YAML document in the file", name)
		}
		return nil
	}
	return located(name, err)
}

// BuiltIn decodes the built-in table of that name, such as "ladder.yaml".
func BuiltIn(name string, v any) error {
	data, err := FS.ReadFile(name)
	if err != nil {
		return fmt.Errorf("no built-in table %s: %w", name, err)
	}
	return Decode("configs/"+name, data, v)
}

// Schema returns the published JSON Schema of that name, such as "env-report".
func Schema(name string) ([]byte, error) {
	data, err := FS.ReadFile("schemas/" + name + ".schema.json")
	if err != nil {
		return nil, fmt.Errorf("no schema is called %q: %w", name, err)
	}
	return data, nil
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)

// located turns yaml's "line N: text" into "NAME:N: text".
func located(name string, err error) error {
	text := err.Error()
	var te *yaml.TypeError
	if errors.As(err, &te) && len(te.Errors) > 0 {
		text = te.Errors[0]
	}
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s:%s: %s", name, m[1], m[2])
	}
	return fmt.Errorf("%s: %s", name, text)
}
