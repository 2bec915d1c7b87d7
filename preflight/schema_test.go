package preflight

import (
	"bytes"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"sparkrun/configs"
)

// published compiles the schema that `preflight --schema` prints.
func published(t *testing.T) *jsonschema.Schema {
	t.Helper()
	b, err := configs.Schema("env-report")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	shut(doc)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("env-report.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("env-report.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shut lets every object have the keys that are described and no others: what is written
// must be in the schema.
func shut(schema any) {
	switch s := schema.(type) {
	case map[string]any:
		if _, has := s["properties"]; has {
			s["additionalProperties"] = false
		}
		for _, v := range s {
			shut(v)
		}
	case []any:
		for _, v := range s {
			shut(v)
		}
	}
}

func followsSchema(t *testing.T, s *jsonschema.Schema, report []byte) {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(report))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(doc); err != nil {
		t.Errorf("the report does not follow its own schema: %v", err)
	}
}

// The report of a preflight that was not made follows the schema as well, and one that
// lacks a gotcha does not.
func TestSchemaHoldsForSkippedAndRefusesLess(t *testing.T) {
	t.Parallel()
	s := published(t)
	r := Skipped("testdata/spark", "--no-preflight")
	b, err := r.JSON(time.Date(2026, 7, 14, 22, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	followsSchema(t, s, b)
	for _, without := range []string{`"G7"`, `"verdict"`, `"findings"`} {
		torn := bytes.ReplaceAll(b, []byte(without), []byte(`"other"`))
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(torn))
		if err != nil {
			t.Fatal(err)
		}
		if s.Validate(doc) == nil {
			t.Errorf("a report without %s passes", without)
		}
	}
}
