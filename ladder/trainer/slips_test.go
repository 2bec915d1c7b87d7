package trainer

import (
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/configs"
)

// A name that nothing would ever look for is told with its line: one with what stands
// in front of it on a command line, and a knob that is none.
func TestNamesThatAreNeverFound(t *testing.T) {
	t.Parallel()
	const head = "name: x\nrecognise: {programs: [x]}\nfamily: per-device\nparser: {style: argparse}\n"
	for name, c := range map[string]struct{ text, want string }{
		"dashes":                    {"knobs:\n  seq_len: {names: [--ctx], kind: int}\n", ":6: knobs.seq_len.names: write --ctx without the dashes in front: ctx"},
		"one dash":                  {"knobs:\n  seq_len: {names: [ok, -c], kind: int}\n", ":6: knobs.seq_len.names: write -c without"},
		"hydra's plus":              {"knobs:\n  seq_len: {names: [++data.len], kind: int}\n", ":6: knobs.seq_len.names: write ++data.len without"},
		"with its value":            {"knobs:\n  seq_len: {names: [ctx=], kind: int}\n", ":6: knobs.seq_len.names: \"ctx=\" is no name"},
		"an empty one":              {"knobs:\n  seq_len: {names: [''], kind: int}\n", ":6: knobs.seq_len.names: a name is empty"},
		"flag names":                {"knobs:\n  seq_len: {names: [a], flag_names: [--b], kind: int}\n", ":6: knobs.seq_len.flag_names: write --b"},
		"the flag of a config":      {"config:\n  - {form: flag, flag: --config, override: flags}\n", ":6: config[0]: write --config"},
		"other flags":               {"flags:\n  - --a\n", ":5: flags: write --a"},
		"processes":                 {"procs:\n  flags: [--gpus]\n", ":6: procs.flags: write --gpus"},
		"flags that are left alone": {"leave_alone:\n  - {flags: [--sweep], why: w}\n", ":6: leave_alone[0].flags: write --sweep"},
		"a slip in a knob":          {"knobs:\n  microbatch: {names: [bs], kind: int}\n", ":6: there is no knob microbatch, and no rule of this profile refers to it, so it would never be looked at: did you mean micro_batch?"},
		"one letter":                {"knobs:\n  sec_len: {names: [l], kind: int}\n", "did you mean seq_len?"},
		"nothing like any":          {"knobs:\n  zzz: {names: [l], kind: int}\n", "the known names are accumulation,"},
		"mins without a condition":  {"knobs:\n  micro_batch: {names: [b], kind: int, mins: [{min: 2, why: w}]}\n", ":6: knob micro_batch: mins needs"},
		"shared, and no number":     {"knobs:\n  dtype: {names: [b], kind: str, all_processes: true}\n", ":6: knob dtype: only a whole number"},
		"named by a void":           {"knobs:\n  seq_len: {names: [l], kind: int, void: [{when: {zzz: \"*\"}, why: w}]}\n  zzz: {names: [z], kind: str}\n", ""},
		"named by a default":        {"knobs:\n  seq_len: {names: [l], kind: int, defaults: [{when: {zzz: a}, value: \"1\"}]}\n  zzz: {names: [z], kind: str}\n", ""},
		"named by a formula":        {"knobs:\n  seq_len: {names: [l], kind: int, formula: {op: same, of: [zzz]}}\n  zzz: {names: [z], kind: int}\n", ""},
		"named by the method":       {"knobs:\n  zzz: {names: [z], kind: str}\nmethod: {lora_when: [{zzz: \"*\"}]}\n", ""},
		"named by a change":         {"knobs:\n  zzz: {names: [z], kind: str}\nmethod: {to_lora: {zzz: a}}\n", ""},
		"named by a folder":         {"knobs:\n  zzz: {names: [z], kind: str}\noutput: {folder: \"{zzz}/c\"}\n", ""},
		"named by a log":            {"knobs:\n  zzz: {names: [z], kind: str}\nlogs: [{path: \"{zzz}/c\"}]\n", ""},
		"named by the resume":       {"knobs:\n  zzz: {names: [z], kind: str}\nresume: {how: auto, also: {zzz: a}}\n", ""},
		"the subcommand":            {"knobs:\n  seq_len: {names: [l], kind: int, void: [{when: {command: a}, why: w}]}\n", ""},
	} {
		dir := folder(t, map[string]string{"x.yaml": head + c.text})
		file := filepath.Join(dir, "x.yaml")
		var got []string
		for _, err := range Check(file) {
			got = append(got, strings.TrimPrefix(err.Error(), file))
		}
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// The tables that several profiles share are read strictly.
func TestSharedTables(t *testing.T) {
	t.Parallel()
	var k struct {
		Knobs map[string]string `yaml:"knobs"`
	}
	if err := configs.BuiltIn("trainers/_knobs.yaml", &k); err != nil {
		t.Error(err)
	}
	for _, name := range named {
		if k.Knobs[string(name)] == "" {
			t.Errorf("_knobs.yaml does not have %s", name)
		}
	}
	var w scriptWords
	if err := configs.BuiltIn("trainers/_scripts.yaml", &w); err != nil {
		t.Error(err)
	}
	if len(w.SelfShrinks) == 0 || len(w.InBatch) == 0 || w.InBatchWhy == "" || len(inScripts().InBatch) != len(w.InBatch) {
		t.Errorf("%+v", w)
	}
}

// A script whose only sign is a class that a profile reads keywords of is recognised.
func TestEveryClassIsRecognised(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	for _, e := range s.profiles {
		p := e.profile()
		for name, k := range p.Knobs {
			for _, call := range k.Calls {
				callee, keyword := splitCall(call)
				if keyword == "0" || !strings.HasSuffix(strings.Split(callee, ".")[0], "Config") && !strings.HasSuffix(callee, "Arguments") || callee == "BitsAndBytesConfig" || callee == "LoraConfig" {
					continue // functions of libraries that others use as well
				}
				dir := folder(t, map[string]string{"t.py": "import x\na = " + callee + "(" + keyword + "=2)\n"})
				if j := understand(t, s, dir, "python t.py"); j.Profile == "" {
					t.Errorf("%s, %s: a script with %s(%s=2) has no profile", p.Name, name, callee, keyword)
				}
			}
		}
	}
}
