package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// constantsScript has every value in its code. LIMIT is address space in MiB on top of
// what is mapped when the training starts, so that the errors are the allocator's own: a
// step of 4096 x 8 takes 512 MiB.
const constantsScript = `
import os
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.trainer import limit
from trl import SFTConfig, SFTTrainer


class LoraConfig:
    pass


model = AutoModelForCausalLM.from_pretrained("tiny", quantization_config=BitsAndBytesConfig(load_in_4bit=True))
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(output_dir="out", max_length=4096, per_device_train_batch_size=8, max_steps=2, logging_steps=1),
    peft_config=LoraConfig(),
)
limit(int(os.environ["LIMIT"]) if model.quantised else 800)
trainer.train()
`

// quietPython keeps Python from writing beside the user's files.
var quietPython = []string{"PYTHONDONTWRITEBYTECODE=1"}

// constants is a folder with that script and the imitations of its libraries.
func constants(t *testing.T) string {
	t.Helper()
	return withLibraries(t, folder(t, map[string]string{"train.py": constantsScript}))
}

// TestShimWalksDown: a script with its values in the code goes down the ladder by the
// shim, and stays as it is.
func TestShimWalksDown(t *testing.T) {
	t.Parallel()
	dir := constants(t)
	// The user has a sitecustomize of his own, which is loaded as ever.
	put(t, dir, map[string]string{"site/sitecustomize.py": "import os\nopen(os.environ['SEEN'] + os.environ.get('SPARKRUN_ATTEMPT', ''), 'a').write('x')\n"})
	seen := filepath.Join(t.TempDir(), "seen-")
	before := contents(t, dir)
	p := sparkrun(t, dir, append(quietPython, "LIMIT=100", "SEEN="+seen, "PYTHONPATH="+filepath.Join(dir, "site")), "--runs-dir", t.TempDir(), "--", "python3", "train.py").is(0)
	if got, want := sizes(p.begun()), "4096x8x1 2048x8x1 1024x8x1 1024x4x2"; got != want {
		t.Errorf("it trained with\n  %s\nwant\n  %s\nstderr %s", got, want, p.err)
	}
	p.says("by the shim", "succeeded in 4 attempts, but not as asked: length 4096 -> 1024, micro-batch 8 -> 4, accumulation 1 -> 2")
	after := contents(t, dir)
	for _, name := range []string{"", "/starts.jsonl", "/home", "/state"} {
		delete(before, name)
		delete(after, name)
	}
	for name := range after {
		if strings.HasPrefix(name, "/state/") || strings.HasPrefix(name, "/home/") {
			delete(after, name)
		}
	}
	if diff := changed(before, after); len(diff) > 0 {
		t.Errorf("of the user's files: %v", diff)
	}
	for n := 1; n <= 4; n++ {
		if b, err := os.ReadFile(fmt.Sprint(seen, n)); err != nil || len(b) == 0 {
			t.Errorf("attempt %d has not loaded the user's own sitecustomize: %v", n, err)
		}
	}

	// Attempt 1 is the command as typed.
	if _, err := os.Stat(p.file("attempts/1/shim")); err == nil {
		t.Error("attempt 1 has a shim")
	}
	if env := p.command(1).EnvAdded; env["PYTHONPATH"] != "" || env["SPARKRUN_SHIM_PLAN"] != "" || env["SPARKRUN_RUNG"] != "none" {
		t.Errorf("attempt 1 was given %v", env)
	}
	last := p.command(4)
	if !strings.HasSuffix(last.EnvAdded["PYTHONPATH"], ":"+filepath.Join(dir, "site")) || last.EnvAdded["SPARKRUN_RUNG"] != "shorter-packing" {
		t.Errorf("attempt 4 was given %v", last.EnvAdded)
	}
	if got := strings.Join(last.Argv, " "); got != "python3 train.py" {
		t.Errorf("attempt 4 ran %s", got)
	}

	// What the shim has seen and changed, and what it saw of the death.
	s := p.shim(3)
	if s.Schema != "sparkrun.shim/1" || !s.Loaded || len(s.Trouble) > 0 {
		t.Errorf("shim.json: schema %q, loaded %v, trouble %v", s.Schema, s.Loaded, s.Trouble)
	}
	if x := s.Exception; x == nil || x.Type != "MemoryError" || x.Memory["mem_available"] < 1<<20 || len(x.Frames) == 0 || !strings.Contains(x.Frames[len(x.Frames)-1], "trainer.py:") {
		t.Errorf("the exception in shim.json: %+v", x)
	}
	s = p.shim(4)
	if s.Exception != nil {
		t.Errorf("attempt 4 has an exception: %+v", s.Exception)
	}
	for knob, want := range map[string][2]string{"seq_len": {"4096", "1024"}, "micro_batch": {"8", "4"}, "accumulation": {"1", "2"}} {
		if was, is := s.inForce(knob); was != want[0] || is != want[1] {
			t.Errorf("%s: %s -> %s, want %v", knob, was, is, want)
		}
	}
	m := p.manifest()
	if m.State != "succeeded-changed" || m.OtherExperiment || len(m.Attempts) != 4 {
		t.Fatalf("state %s, another experiment %v, %d attempts", m.State, m.OtherExperiment, len(m.Attempts))
	}
	for knob, want := range map[string]string{"seq_len": "1024", "micro_batch": "4", "accumulation": "2"} {
		if got := m.Attempts[3].Knobs[knob].Value; got != want {
			t.Errorf("run.json says %s was %s, want %s", knob, got, want)
		}
	}
}

// TestShimMethodRung: the last rung loads the model in 16 bit, with the numbers, and from
// there on it is another experiment, everywhere.
func TestShimMethodRung(t *testing.T) {
	t.Parallel()
	dir := constants(t)
	tinyModel(t, filepath.Join(dir, "tiny"))
	p := sparkrun(t, dir, append(quietPython, "LIMIT=1"), "--max-attempts", "9", "--", "python3", "train.py").is(0)
	if got, want := sizes(p.begun()), "4096x8x1 2048x8x1 1024x8x1 1024x4x2 1024x2x4 1024x1x8 1024x1x8"; got != want {
		t.Fatalf("it trained with\n  %s\nwant\n  %s\nstderr %s", got, want, p.err)
	}
	for i, s := range p.begun() {
		if s.Quantised == nil || *s.Quantised != (i < 6) {
			t.Errorf("start %d: quantised %v", i+1, s.Quantised)
		}
	}
	if last := p.begun()[6]; !strings.HasSuffix(last.Rung, "bf16-lora") || last.DType != "torch.bfloat16" {
		t.Errorf("the last start: %+v", last)
	}
	p.says(" by the estimate of a budget of ", "counted in the headers", "ANOTHER EXPERIMENT", "4-bit loading")
	m := p.manifest()
	if !m.OtherExperiment || m.State != "succeeded-changed" {
		t.Errorf("run.json: another experiment %v, state %s", m.OtherExperiment, m.State)
	}
	summary, err := os.ReadFile(p.file("summary.txt"))
	if err != nil || !strings.Contains(string(summary), "ANOTHER EXPERIMENT") {
		t.Errorf("summary.txt (%v): %s", err, summary)
	}
	e := explainJSON(t, dir, "--", "python3", "train.py")
	steps := e.allowed("4bit-to-16bit")
	if len(steps) != 1 || !steps[0].OtherExperiment || !steps[0].Shim {
		t.Errorf("explain: %+v", steps)
	}
	for _, r := range e.allowed("length") {
		if r.OtherExperiment {
			t.Errorf("explain calls %s another experiment", r.Reason)
		}
	}
}

// tinyModel writes a model of a thousand bfloat16 weights.
func tinyModel(t *testing.T, dir string) {
	t.Helper()
	header := `{"w":{"dtype":"BF16","shape":[1000],"data_offsets":[0,2000]}}`
	data := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	put(t, dir, map[string]string{"config.json": `{"model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16, "vocab_size": 20}`, "model.safetensors": string(data) + string(make([]byte, 2000))})
}

// TestShimModes: never means never, with the reason; always means in attempt 1 too, where
// it changes nothing; and where Python would not load it that is said beforehand.
func TestShimModes(t *testing.T) {
	t.Parallel()
	t.Run("never", func(t *testing.T) {
		t.Parallel()
		p := sparkrun(t, constants(t), append(quietPython, "LIMIT=100"), "--shim", "never", "--", "python3", "train.py").is(75)
		if got := sizes(p.begun()); got != "4096x8x1" {
			t.Errorf("it trained with %s", got)
		}
		p.says("--shim never")
		if len(p.events("rung.refused")) == 0 {
			t.Error("no rung was refused")
		}
		if left, _ := filepath.Glob(p.file("attempts/*/shim*")); len(left) > 0 {
			t.Errorf("there is a shim: %v", left)
		}
	})
	t.Run("always", func(t *testing.T) {
		t.Parallel()
		p := sparkrun(t, constants(t), append(quietPython, "LIMIT=800"), "--shim", "always", "--", "python3", "train.py").is(0)
		if got := sizes(p.begun()); got != "4096x8x1" {
			t.Errorf("it trained with %s", got)
		}
		s := p.shim(1)
		if was, is := s.inForce("seq_len"); !s.Loaded || was != "4096" || is != "4096" {
			t.Errorf("loaded %v, length %s -> %s", s.Loaded, was, is)
		}
		if m := p.manifest(); m.State != "succeeded" || len(p.events("rung.not-applied")) > 0 {
			t.Errorf("state %s, not applied: %v", m.State, p.events("rung.not-applied"))
		}
		p.says("exactly as asked")
	})
	t.Run("not loaded", func(t *testing.T) {
		t.Parallel()
		dir := constants(t)
		for _, argv := range [][]string{
			{"python3", "-I", "train.py"},
			{"python3", "-E", "train.py"},
			{"python3", "-S", "train.py"},
			{"python3", "-uIB", "train.py"},
			{"bash", "-c", "cd . && python3 -I train.py"},
			{"sudo", "python3", "train.py"},
		} {
			e := explainJSON(t, dir, append([]string{"--"}, argv...)...)
			if cuts := append(e.allowed("length"), e.allowed("micro-batch")...); len(cuts) > 0 {
				t.Errorf("%v: explain says it could be turned: %+v", argv, cuts)
			}
			if why := e.why("length"); !strings.Contains(why, "shim") {
				t.Errorf("%v: refused with %q", argv, why)
			}
		}
		p := sparkrun(t, dir, append(quietPython, "LIMIT=100"), "--", "python3", "-E", "train.py").is(75)
		if got := sizes(p.begun()); got != "4096x8x1" {
			t.Errorf("it trained with %s", got)
		}
		// Said at the start, before anything has died.
		first, _, _ := strings.Cut(p.err.String(), "verdict:")
		if !strings.Contains(first, "-E") {
			t.Errorf("not said at the start:\n%s", p.err)
		}
	})
}

// TestShimOpaque: what a shell script starts is not seen, so values are halved as the
// trainer takes them, and known from then on.
func TestShimOpaque(t *testing.T) {
	t.Parallel()
	dir := constants(t)
	put(t, dir, map[string]string{"train.sh": "set -e\nfor what in one; do\n  echo starting\n  python3 train.py\ndone\n"})
	e := explainJSON(t, dir, "--", "bash", "train.sh")
	if cuts := e.allowed("length"); len(cuts) == 0 || !cuts[0].Shim || e.Knobs["seq_len"].Value != nil {
		t.Errorf("explain: %+v, length %v", cuts, e.Knobs["seq_len"].Value)
	}
	p := sparkrun(t, dir, append(quietPython, "LIMIT=100"), "--", "bash", "train.sh").is(0)
	if got, want := sizes(p.begun()), "4096x8x1 2048x8x1 1024x8x1 1024x4x2"; got != want {
		t.Fatalf("it trained with\n  %s\nwant\n  %s\nstderr %s", got, want, p.err)
	}
	m := p.manifest()
	for i, want := range []string{"", "2048", "1024", "1024"} {
		if got := m.Attempts[i].Knobs["seq_len"].Value; got != want {
			t.Errorf("run.json has length %q for attempt %d, want %q", got, i+1, want)
		}
	}
	if was, is := p.shim(4).inForce("micro_batch"); was != "8" || is != "4" || m.Attempts[3].Knobs["micro_batch"].Value != "4" || m.Attempts[3].Knobs["accumulation"].Value != "2" {
		t.Errorf("micro-batch %s -> %s; run.json %+v", was, is, m.Attempts[3].Knobs)
	}
	// Once it is known what the values were, it is said what they become.
	p.says("length 2048 -> 1024", "micro-batch 8 -> 4 with accumulation 1 -> 2")
}

// TestShimNotApplied: where the shim changed nothing, the rung was not one. That is said,
// and the run ends.
func TestShimNotApplied(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, why string }{
		// The environment is wiped on the way, so that the shim is not loaded.
		"not loaded": {"env -i LIMIT=100 PATH=\"$PATH\" PYTHONDONTWRITEBYTECODE=1 python3 train.py\nexit $?\n", "not loaded"},
		// It is loaded, but there is no library that takes anything.
		"no library": {"python3 -c 'raise MemoryError'\nexit $?\n", "nothing took"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := constants(t)
			put(t, dir, map[string]string{"train.sh": c.script})
			p := sparkrun(t, dir, append(quietPython, "LIMIT=100"), "--", "bash", "train.sh").is(75)
			said := p.events("rung.not-applied")
			if len(said) == 0 || !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, c.why) }) {
				t.Errorf("rung.not-applied: %v\nstderr %s", said, p.err)
			}
			m := p.manifest()
			if n := len(m.Attempts); n != 2 {
				t.Errorf("%d attempts, want one that shows that the shim cannot help here", n)
			}
			for _, a := range m.Attempts {
				if v := a.Knobs["seq_len"].Value; v != "" {
					t.Errorf("run.json claims a length of %s", v)
				}
			}
		})
	}
}
