package supervisor

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"sparkrun/configs"
	"sparkrun/internal/job"
)

// schemaDoc reads a published schema.
func schemaDoc(t *testing.T, name string) map[string]any {
	t.Helper()
	b, err := configs.Schema(name)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return doc.(map[string]any)
}

// shut lets every object have the keys that are described and no others.
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

// planDir is a folder with a command of LLaMA-Factory that trains a model of which only
// the name is known.
func planDir(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	const config = "model_name_or_path: some/Thing-8B\nstage: sft\nfinetuning_type: full\npure_bf16: true\ncutoff_len: 8192\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 8\noutput_dir: out\n"
	if err := os.WriteFile(filepath.Join(dir, "sft.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return Options{
		Argv: []string{"llamafactory-cli", "train", "sft.yaml"}, Dir: dir, Env: []string{"HOME=" + dir, "PATH=/usr/bin:/bin"},
		Prog: "sparkrun", Ladder: "spark", MaxAttempts: 8, DropCaches: "never",
	}
}

// Whatever is planned follows the schema that `sparkrun plan --schema` prints, and has no
// key that it does not describe.
func TestPlanFollowsItsSchema(t *testing.T) {
	t.Parallel()
	doc := schemaDoc(t, "plan")
	shut(doc)
	c := jsonschema.NewCompiler()
	if err := c.AddResource("plan.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("plan.json")
	if err != nil {
		t.Fatal(err)
	}
	none, command := Options{Prog: "sparkrun", Dir: t.TempDir()}, planDir(t)
	exact := command
	exact.Exact = true
	for _, c := range []struct {
		name string
		o    PlanOptions
		has  []string
	}{
		{"flags alone", PlanOptions{Options: none, Params: "8B", Budget: 115e9, Told: map[job.Knob]string{job.Method: "qlora"}}, nil},
		{"what fits", PlanOptions{Options: none, Params: "70B", Budget: 115e9, Fit: true}, []string{"fit", "start_from"}},
		{"nothing fits", PlanOptions{Options: none, Params: "70B", Budget: 2e9, Fit: true, Told: map[job.Knob]string{job.MicroBatch: "4"}}, []string{"start_from"}},
		{"a step of the ladder", PlanOptions{Options: command, Budget: 115e9}, []string{"start_from", "trainer", "far_above_anchor"}},
		{"no step is allowed", PlanOptions{Options: exact, Budget: 40e9}, []string{"start_from"}},
		{"a command that fits", PlanOptions{Options: command, Budget: 800e9}, []string{"trainer"}},
	} {
		p, err := Plan(t.Context(), c.o)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		got, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(got); err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, text)
		}
		for _, key := range c.has {
			if got.(map[string]any)[key] == nil {
				t.Errorf("%s: no %s in %s", c.name, key, text)
			}
		}
	}
	if schema.Validate(map[string]any{"schema": PlanSchema}) == nil {
		t.Error("a plan of nothing passes")
	}
}

// The same thing has the same name and form in a plan and in the report of a preflight.
func TestPlanAndReportAreDescribedAlike(t *testing.T) {
	t.Parallel()
	plan, report := schemaDoc(t, "plan"), schemaDoc(t, "env-report")
	ours, theirs := plan["$defs"].(map[string]any), report["$defs"].(map[string]any)
	for name, def := range ours {
		if diff := cmp.Diff(def, theirs[name]); diff != "" {
			t.Errorf("%s (-plan +report):\n%s", name, diff)
		}
	}
}
