package progress

import (
	"slices"
	"strings"
	"testing"
)

func TestSets(t *testing.T) {
	t.Parallel()
	got, err := Sets()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"ai-toolkit", "axolotl", "composer", "diffusers", "generic", "hf", "kohya", "lightning", "litgpt", "llama-factory", "megatron",
		"modded-nanogpt", "ms-swift", "nanochat", "nanogpt", "nemo-automodel", "nemo2", "openrlhf", "torchtitan", "torchtune", "trl", "unsloth", "verl",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if p := New(Options{Set: "no such"}); p.set != p.t.Sets["generic"] {
		t.Error("a set that is not there is not the generic one")
	}
}

func TestTableErrors(t *testing.T) {
	t.Parallel()
	const head = "schema: sparkrun.progress/1\ndivergence: {logged_steps: 3, causes: [{id: dtype, text: x}]}\nsets:\n  generic: {about: x}\n"
	if _, err := readTable("p.yaml", []byte(head)); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"schema: other\n": "p.yaml:1: schema",
		"schema: sparkrun.progress/1\nsets: {a: {about: x}}\n":       "p.yaml:1: there must be a set generic",
		"schema: sparkrun.progress/1\nsets: {generic: {about: x}}\n": "p.yaml:1: divergence",
		head + "nonsense: 1\n":                                                         "p.yaml:5: field nonsense not found",
		head + "  a: {about: x, lines: [{al: [abcd]}]}\n":                              "p.yaml:5: field al not found",
		head + "  a: {}\n":                                                             "p.yaml:5: a: about is missing",
		head + "  a:\n":                                                                "p.yaml:5: a: there is no such set",
		head + "  a: {about: x, like: b}\n":                                            "p.yaml:5: a: like b: there is no such set",
		head + "  a: {about: x, like: a}\n":                                            "p.yaml:5: a: like a: it is like itself",
		head + "  a: {about: x, lines: [{all: [ab]}]}\n":                               "p.yaml:5: a: line pattern 1: all needs a text of four",
		head + "  a: {about: x, lines: [{all: [step]}]}\n":                             "p.yaml:5: a: line pattern 1: step is missing",
		head + "  a: {about: x, lines: [{kind: what, all: [step]}]}\n":                 "p.yaml:5: a: line pattern 1: kind is",
		head + "  a: {about: x, lines: [{kind: total, all: [total steps]}]}\n":         "p.yaml:5: a: line pattern 1: say where",
		head + "  a: {about: x, lines: [{all: [Step], step: [step]}]}\n":               "p.yaml:5: a: line pattern 1: \"Step\" must be in lower case",
		head + "  a: {about: x, lines: [{all: [step], step: [step], loss: [\"\"]}]}\n": "p.yaml:5: a: line pattern 1: \"\" must be",
		head + "  a: {about: x, bars: {template: \"{epoch}|{lr}\"}}\n":                 "p.yaml:5: a: the template",
		head + "checkpoints: [To]\n":                                                   "p.yaml:1: checkpoints",
	} {
		if _, err := readTable("p.yaml", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q\ngot  %v\nwant %s", text, err, want)
		}
	}
}

// TestNumbers: how a number is read behind a key.
func TestNumbers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{
		"loss: 1.5": 1.5, "loss=1.5e-3,": 1.5e-3, "loss 1,234.5 ": 1234.5, "loss:1,23": 1, "loss -.5": -99, "loss: 7.968678e+00 |": 7.968678,
		"loss: 12. next": 12, "loss: 12ms": 12, "loss = +3": 3, "my_loss: 1": -99, "losses: 1": -99, "loss/val: 1": -99, "x loss: 1 loss: 2": 1,
		"loss of 3": -99, "loss": -99, "loss: ": -99, "loss:e5": -99, "'loss': 4": -99, "(loss 4)": 4, "loss: nothing": -99,
	} {
		v := find(text, []string{"loss"})
		if !v.ok {
			v.v = -99
		}
		if v.v != want {
			t.Errorf("%q is %g, want %g", text, v.v, want)
		}
	}
	if v := find("loss: inf", []string{"loss"}); !v.ok || finite(v.v) {
		t.Errorf("%+v", v)
	}
	if v := find("train/lr(1e-3):0.5", []string{"train/lr(1e-3)"}); v.v != 0.5e-3 {
		t.Errorf("%+v", v)
	}
	for text, want := range map[string]float64{"step 5/10": 10, "step 5 / 1,000": 1000, "step 5 of 7": 7, "step 5 of the": 0, "step 5/x": 0, "step 5": 0} {
		if v := find(text, []string{"step"}); !v.ok || v.v != 5 || v.over != want {
			t.Errorf("%q: %+v", text, v)
		}
	}
}

// TestUnprefix: what stands in front of a bar's description.
func TestUnprefix(t *testing.T) {
	t.Parallel()
	for head, want := range map[string]string{
		"Tokenizing train dataset:": "Tokenizing train dataset", "": "", "WARNING: something happened": "", "[rank0]:": "", "[rank0]: Map:": "Map",
		"[default12]:Epoch 3:": "Epoch 3", "(RayTrainWorker pid=77) Train:": "Train", "(pid=77):": "", "2026-03-04 10:00:00,123 - INFO - steps:": "steps",
		"job-3:": "job-3", "1|52|Loss: 2.3:": "1|52|Loss: 2.3", "ids[3]:": "ids[3]",
	} {
		if got := name(head + " "); got != want {
			t.Errorf("%q is %q, want %q", head, got, want)
		}
	}
}
