package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
	"sparkrun/preflight"
	"sparkrun/preflight/headroom"
)

func TestFlagsOfAPlanGoBeforeTheCommand(t *testing.T) {
	t.Parallel()
	typed := job.Knobs{
		job.SeqLen:     {Value: "4096", Source: job.FromConfig, Where: "sft.yaml:4"},
		job.Method:     {Value: "qlora", Source: job.FromConfig, Where: "sft.yaml:3"},
		job.LoadIn4Bit: {Value: "true", Source: job.FromConfig, Where: "sft.yaml:9"},
	}
	told := map[job.Knob]string{job.SeqLen: "1024", job.Method: "lora", job.LoRARank: "64"}
	got := tell(typed, told)
	want := job.Knobs{
		job.SeqLen:     {Value: "1024", Source: job.FromConfig, Where: "sft.yaml:4"},
		job.Method:     {Value: "lora", Source: job.FromConfig, Where: "sft.yaml:3"},
		job.LoadIn4Bit: {Value: "false", Source: job.FromConfig, Where: "sft.yaml:9"},
		job.LoRARank:   {Value: "64", Source: job.FromDefault},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if typed[job.SeqLen].Value != "4096" {
		t.Error("the settings of the command were changed")
	}
	var shown []string
	for _, in := range inputs(typed, told) {
		shown = append(shown, in.Knob+" "+knobPlace(in.ExplainedKnob))
	}
	if diff := cmp.Diff([]string{"method --method", "seq_len --seq-len", "lora_rank --rank"}, shown); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
}

func TestPlanTextIsNoWiderThanTheTerminal(t *testing.T) {
	t.Parallel()
	free, cache, trainer := int64(40e9), int64(70e9), "trl"
	p := Planning{
		Command: []string{"trl", "sft"}, Trainer: &trainer, Method: "lora",
		Inputs:   []PlanInput{{"seq_len", ExplainedKnob{Value: int64(4096), Source: "argv", Where: "--max_length"}}},
		Model:    preflight.PlannedModel{Name: "Qwen/Qwen3-8B", Params: 8.2e9, From: "counted in the headers of its weights", DType: "BF16"},
		Estimate: headroom.Estimate{Terms: []headroom.Term{{Name: headroom.TermWeights, Bytes: 16.4e9, How: "8.2B x 2 bytes"}}, Peak: 120e9, Low: 100e9, High: 140e9, Load: 33e9},
		Budget:   preflight.Budget{Known: true, Bytes: 112e9, Available: 116e9, Reserve: 4e9, Total: 130e9, Free: &free, Cache: &cache},
		Outcome:  headroom.Outcome{Verdict: headroom.Over, Why: "about 120.0 GB against a budget of 112.0 GB"},
		Anchor:   &headroom.Anchor{Class: "27B", Method: headroom.LoRA, GB: sample.Num{}, Fits: "fits at 1024 tokens", Date: "2026-07-14"},
		Start:    &preflight.Step{Rung: "shorter-packing", Words: "length 4096 -> 2048", Peak: 80e9, Line: "sparkrun -- trl sft --max_length 2048", Changes: []string{"--max_length 4096 -> 2048"}},
		Fit: []headroom.Sized{
			{Method: headroom.LoRA, SeqLen: 2048, Batch: 3, AtBatch: 4, AtSeqLen: 4096, PeakSeqLen: 100e9, PeakBatch: 99e9, LimitSeqLen: "the budget"},
			{Method: headroom.Full, Why: "the optimizer alone takes 65 GB", AtBatch: 4, AtSeqLen: 4096},
		},
		Assumed: []string{"gradient checkpointing is on, as in most trainers; nothing tells"},
	}
	forged := p
	forged.Model.Name = "m\x1b[2J\nverdict fits"
	if text := forged.Text(200, false); strings.Contains(text, "\x1b") || strings.Contains(text, "\nverdict fits") {
		t.Errorf("a name of the command writes to the terminal:\n%q", text)
	}
	for _, width := range []int{0, 40, 60, 80, 200} {
		text := p.Text(width, false)
		for _, want := range []string{"Qwen/Qwen3-8B", "shorter-packing", "$ sparkrun -- trl sft --max_length 2048", "2026-07-14", "lora", "the optimizer alone"} {
			if !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
				t.Errorf("width %d: no %q in\n%s", width, want, text)
			}
		}
		if strings.Contains(text, "\x1b") {
			t.Errorf("width %d: colours although none were asked for", width)
		}
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\n")
			if width > 0 && utf8.RuneCountInString(line) > width && !strings.Contains(line, "$ ") {
				t.Errorf("width %d: %q", width, line)
			}
		}
	}
	if text := p.Text(80, true); !strings.Contains(text, "\x1b[1;31mover\x1b[0m: about 120.0 GB") {
		t.Errorf("the verdict has no colour:\n%s", text)
	}
}

// What is guessed, or not known, comes with the way to know it.
func TestPlanSaysWhatToFetch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		argv, want string
		err        bool
	}{
		{"trl sft --model_name_or_path some/Thing-8B --use_peft", "hf download some/Thing-8B config.json", false},
		{"trl sft --model_name_or_path some/thing --use_peft", "hf download some/thing config.json", true},
		{"axolotl train gone.yml", "gone.yml: file does not exist", true},
		{"axolotl train torn.yml", "torn.yml: line 2: not YAML", true},
		{"python3 gone.py", "gone.py: no such file", true},
		{"docker compose run train", "plan the training command that it starts", true},
	} {
		o := planDir(t)
		if err := os.WriteFile(filepath.Join(o.Dir, "torn.yml"), []byte("base_model: [unclosed\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		o.Argv = strings.Fields(c.argv)
		p, err := Plan(t.Context(), PlanOptions{Options: o, Budget: 115e9})
		said := strings.Join(p.Notes, "\n")
		if err != nil {
			said = err.Error()
		}
		if (err != nil) != c.err || !strings.Contains(said, c.want) {
			t.Errorf("%s: %q lacks %q", c.argv, said, c.want)
		}
	}
	for _, o := range []PlanOptions{
		{Told: map[job.Knob]string{job.Model: "./Thing-8B"}},
		{Params: "8B"},
		{Options: Options{Argv: strings.Fields("docker run img trl sft --model_name_or_path some/Thing-8B")}},
	} {
		dir := planDir(t)
		dir.Argv = o.Argv
		o.Options, o.Budget = dir, 115e9
		p, err := Plan(t.Context(), o)
		if err != nil || strings.Contains(strings.Join(p.Notes, "\n"), "hf download") {
			t.Errorf("%q %v: %q, %v", o.Argv, o.Told, p.Notes, err)
		}
	}
}
