package pyread

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const unslothScript = `# fine-tuning on one machine
from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig as Settings
import torch.utils.data as data
import transformers
max_seq_length = 2048  # RoPE scaling inside
dtype = None
load_in_4bit: bool = True

model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/some-model",
    max_seq_length = max_seq_length,
    dtype = dtype,
    load_in_4bit = load_in_4bit, # (halves it)
)
model = FastLanguageModel.get_peft_model(model, r = 16, target_modules = ["q_proj", "k_proj"],
    lora_alpha = 2*16, use_gradient_checkpointing = "unsloth")

shared = dict(per_device_train_batch_size=8, learning_rate=2e-4)
common = {"gradient_accumulation_steps": 4, 'packing': False, "seed": SEED}

trainer = SFTTrainer(
    model = model,
    args = Settings(
        max_length=max_seq_length // 2, output_dir=f"out-{max_seq_length}", **shared, **common,
        warmup_ratio = -.05, report_to = 'no' 'ne',
    ),
)
loader = data.DataLoader(ds, batch_size=0x10, num_workers = args.workers)
q = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
"""
SFTConfig(max_length=1)
"""
# SFTConfig(max_length=2)
s = "SFTConfig(max_length=3)"
`

func line(c Constant) string {
	v := c.Value
	switch {
	case !c.Literal:
		v = "?"
	case c.Text:
		v = "'" + v + "'"
	}
	s := fmt.Sprintf("%d %s.%s=%s", c.Line, c.Call, c.Keyword, v)
	if c.Name != "" {
		s += " " + c.Name
	}
	if c.Literal && c.ValueLine != c.Line {
		s += fmt.Sprintf(" @%d", c.ValueLine)
	}
	return s
}

func lines(text string) []string {
	var out []string
	for _, c := range Constants(text) {
		out = append(out, line(c))
	}
	return out
}

func TestScript(t *testing.T) {
	t.Parallel()
	want := []string{
		"11 FastLanguageModel.from_pretrained.model_name='unsloth/some-model'",
		"12 FastLanguageModel.from_pretrained.max_seq_length=2048 max_seq_length @6",
		"13 FastLanguageModel.from_pretrained.dtype=None dtype @7",
		"14 FastLanguageModel.from_pretrained.load_in_4bit=True load_in_4bit @8",
		"16 FastLanguageModel.get_peft_model.0=? model",
		"16 FastLanguageModel.get_peft_model.r=16",
		"16 FastLanguageModel.get_peft_model.target_modules=?",
		"17 FastLanguageModel.get_peft_model.lora_alpha=32",
		"17 FastLanguageModel.get_peft_model.use_gradient_checkpointing='unsloth'",
		"19 dict.per_device_train_batch_size=8",
		"19 SFTConfig.per_device_train_batch_size=8",
		"19 dict.learning_rate=0.0002",
		"19 SFTConfig.learning_rate=0.0002",
		"20 SFTConfig.gradient_accumulation_steps=4",
		"20 SFTConfig.packing=False",
		"20 SFTConfig.seed=? SEED",
		"23 SFTTrainer.model=? model",
		"24 SFTTrainer.args=?",
		"25 SFTConfig.max_length=1024",
		"25 SFTConfig.output_dir=?",
		"26 SFTConfig.warmup_ratio=-0.05",
		"26 SFTConfig.report_to='none'",
		"29 torch.utils.data.DataLoader.0=? ds",
		"29 torch.utils.data.DataLoader.batch_size=16",
		"29 torch.utils.data.DataLoader.num_workers=? args.workers",
		"30 transformers.BitsAndBytesConfig.load_in_4bit=True",
		"30 transformers.BitsAndBytesConfig.bnb_4bit_compute_dtype=? torch.bfloat16",
	}
	if diff := cmp.Diff(want, lines(unslothScript)); diff != "" {
		t.Errorf("constants (-want +got):\n%s", diff)
	}
	for _, c := range Constants(unslothScript) {
		if c.Keyword == "batch_size" && (!c.Is("DataLoader") || !c.Is("data.DataLoader") || c.Is("Loader") || c.Is("")) {
			t.Error("DataLoader is not found by the end of its name")
		}
	}
}

// TestValue reads f(x=...) behind a few lines.
func TestValue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, expr, want string }{
		{"", "1_000", "1000"},
		{"", "0o17", "15"},
		{"", "1e-5", "1e-05"},
		{"", "1.", "1.0"},
		{"", "1e16", "1e+16"},
		{"", "0.0001", "0.0001"},
		{"", "123456789012345678901234567890", "123456789012345678901234567890"},
		{"", "2 ** 11", "2048"},
		{"", "-2 ** 2", "-4"},
		{"", "-7 // 2", "-4"},
		{"", "-7 % 4", "1"},
		{"", "7 / 2", "3.5"},
		{"", "(1 + 2) * 3", "9"},
		{"", "not True", "?"},
		{"", "1 if a else 2", "?"},
		{"", "1, 2", "1"}, // the comma ends the argument
		{"", "(1, 2)", "?"},
		{"", "[1]", "?"},
		{"", "1 // 0", "?"},
		{"", "1 / 0", "?"},
		{"", "2 ** 2 ** 100", "?"},
		{"", "3j", "?"},
		{"", "'a' + 'b'", "?"},
		{"", "-'a'", "?"},
		{"", `"a\tb\x41é"`, "'a\tbAé'"},
		{"", `r"a\t"`, `'a\t'`},
		{"", `b"a"`, "?"},
		{"", `f"a{b}"`, "?"},
		{"", `f"{d["k"]}" , y=1`, "?"},
		{"", `"\N{DASH}"`, "?"},
		{"", `"""a
b"""`, "'a\nb'"},
		{"n = 5", "n", "5"},
		{"n: int = 5", "n", "5"},
		{"m = n = 5", "n", "5"},
		{"n = (\n 5\n)", "n", "5"},
		{"n = 5; m = 6", "n", "5"},
		{"if a: n = 5", "n", "5"},
		{"if a:\n    n = 5", "n", "5"},
		{"def main():\n    n = 5", "n", "5"},
		{"a = 4\nn = a * 2", "n", "8"},
		{"n = 5\nn = 6", "n", "?"},
		{"n = 5\nn += 1", "n", "?"},
		{"n = 5\nif x:\n\tn = 6", "n", "?"},
		{"n = 5\ndef f(n=7): pass", "n", "?"},
		{"n = 5\ndef f(a, *, n): pass", "n", "?"},
		{"n = 5\nf = lambda n: n", "n", "?"},
		{"n = 5\nfor n in x: pass", "n", "?"},
		{"n = 5\ny = [n for a, n in x]", "n", "?"},
		{"n = 5\nn, m = 1, 2", "n", "?"},
		{"n = 5\nwith a as n: pass", "n", "?"},
		{"n = 5\nif (n := 3): pass", "n", "?"},
		{"n = 5\nfrom config import n", "n", "?"},
		{"n = 5\nfrom config import *", "n", "?"},
		{"from config import *\nn = 5", "n", "5"},
		{"n = 5\nexec(open('conf.py').read())", "n", "?"},
		{"n = 5\nglobals()['n'] = 3", "n", "?"},
		{"n = 5\ndel n", "n", "?"},
		{"n = 5\nelse: n = lambda: 3", "n", "?"},
		{"n = 5\nclass C: n = 6", "n", "?"},
		{"n = 5\nm(n=6)\nx.n = 7", "n", "5"},
		{"n = 5\nif n == 6: pass", "n", "5"},
		{"n = m\nm = n", "n", "?"},
		{"n = os.environ.get('N', 5)", "n", "?"},
		{"n = 5\r", "n", "5"},
		{"s = 'it''s' # \"\nn = 5", "n", "5"},
		{"s = 'open\nn = 5", "n", "5"},
		{"x = a \\\n  + b\nn = 5", "n", "5"},
	} {
		text := c.before + "\nf(x=" + c.expr + ")\n"
		got := ""
		for _, k := range Constants(text) {
			if k.Call == "f" && k.Keyword == "x" {
				got = line(k)
				got = got[strings.Index(got, "=")+1:]
				got, _, _ = strings.Cut(got, " n")
				got, _, _ = strings.Cut(got, " @")
			}
		}
		if got != c.want {
			t.Errorf("%q: %q: %s, want %s", c.before, c.expr, got, c.want)
		}
	}
}

func TestCalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"SFTConfig(max_length=1)\nSFTConfig(max_length=2)", "1 SFTConfig.max_length=1; 2 SFTConfig.max_length=2"},
		{"def f(a=1): pass\nclass C(b=2): pass", ""},
		{"if (a == 1): pass\nprint(x == 2)", "2 print.0=?"},
		{"import trl as t\nt.SFTConfig(max_length=1)", "2 trl.SFTConfig.max_length=1"},
		{"try:\n  from trl import SFTConfig as C\nexcept ImportError:\n  from trl import SFTConfig as C\nC(a=1)", "5 SFTConfig.a=1"},
		{"try:\n  from trl import SFTConfig as C\nexcept ImportError:\n  from x import TrainingArguments as C\nC(a=1)", "5 C.a=1"},
		{"from trl import (\n  SFTConfig as C, # c\n  SFTTrainer,\n)\nC(a=1)", "5 SFTConfig.a=1"},
		{"C = SFTConfig\nC(a=1)", "2 SFTConfig.a=1"},
		{"x = f(1).g(a=2)", "1 f.0=1; 1 g.a=2"},
		{"f(*a, 3, b=4)", "1 f.b=4"},
		{"f(x for x in y)", ""},
		{"f(g(a=1), b={'c': h(d=2)})", "1 f.0=?; 1 g.a=1; 1 f.b=?; 1 h.d=2"},
		{"kw = {'a': 1}\nkw['a'] = 2\nf(**kw)", ""},
		{"kw = {'a': 1}\nkw.update(b=2)\nf(**kw)", "2 kw.update.b=2"},
		{"kw = {'a': 1}\nkw |= x\nf(**kw)", ""},
		{"base = {'a': 1}\nkw = {**base, 'b': n}\nf(**kw)", "1 f.a=1; 2 f.b=? n"},
		{"f(**{'a': 1}, **dict(x, b=2))", "1 f.a=1; 1 dict.0=? x; 1 f.b=2; 1 dict.b=2"},
		{"f(**kw)", ""},
		{"f(**{'': 1, 'a b': 2, 'c': })", "1 f.c=?"},
		{"@retry(n=3)\ndef f(): pass", "1 retry.n=3"},
		{"await run(n=3)", "1 run.n=3"},
		{"x = y[0](a=1)", ""},
		{"f(a=1", ""},
		{"f(a=1]\ng(b=2)", "2 g.b=2"},
		{"f(\n  a\n  =\n  1,\n)", "2 f.a=1 @4"},
		{"", ""},
		{"ünï(ä=1)", "1 ünï.ä=1"},
	} {
		if got := strings.Join(lines(c.text), "; "); got != c.want {
			t.Errorf("%q: %s, want %s", c.text, got, c.want)
		}
	}
}

// TestHostile gives the reader what takes long or recurses deep if it is not bounded.
func TestHostile(t *testing.T) {
	t.Parallel()
	rep := func(s string) string { return strings.Repeat(s, MaxSize/len(s)+1) }
	for _, text := range []string{
		rep("("), rep("f("), rep("f(") + rep(")"), strings.Repeat("f(a=", 50000) + strings.Repeat(")", 50000),
		rep("for "), rep("for a "), rep("lambda a, "), rep("as a "), rep("if a:"), rep("def f("), rep("-"), "f(a=" + rep("-") + ")",
		"f(a=" + strings.Repeat("(", 50000) + "1" + strings.Repeat(")", 50000) + ")", rep(`f"{`), rep(`f'{f"{`), rep("'''"), rep("\\"), rep("1**"),
		"d = {" + strings.Repeat("'a':1,", 15000) + "}\n" + strings.Repeat("f(**d)\n", 15000),
		"a=b" + strings.Repeat("+b", 9000) + "\nb=c" + strings.Repeat("+c", 9000) + "\nc=d" + strings.Repeat("+d", 9000) + "\nd=e" + strings.Repeat("+e", 9000) + "\ne=1\nf(x=a)",
		"f(a=" + strings.Repeat("9", 150000) + ")", "f(a=1" + strings.Repeat("*99999999", 20000) + ")", rep("\x00\xff"), rep("import a as "), rep("a=a=b,"),
	} {
		start := time.Now()
		Constants(text)
		// A second at most; a machine under load is slower.
		if took := time.Since(start); took > time.Minute {
			t.Errorf("%.20q... took %v", text, took)
		}
	}
}

// TestNeverTrustsTwo draws scripts and checks that a name that is bound twice has no
// value, and one that is bound once the value that it has.
func TestNeverTrustsTwo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		last := map[string]int{}
		count := map[string]int{}
		for range rapid.IntRange(0, 12).Draw(t, "statements") {
			v := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			n := rapid.IntRange(0, 99999).Draw(t, "n")
			form := rapid.SampledFrom([]string{
				"%s = %d\n", "%s=%d # x = 1\n", "if q:\n    %s = %d\n", "%s = %d; z = (\n'(')\n",
				"'''\na = 1\n'''\n%s: int = %d\n", "x = f'{y}' ; %s = %d\n", "g(a=1, b=[c])\n%s = \\\n  %d\r\n",
			}).Draw(t, "form")
			fmt.Fprintf(&b, form, v, n)
			last[v] = n
			count[v]++
		}
		b.WriteString("F(a=a, b=b, c=c)\n")
		for _, c := range Constants(b.String()) {
			if c.Call != "F" {
				continue
			}
			want := ""
			if count[c.Keyword] == 1 {
				want = fmt.Sprint(last[c.Keyword])
			}
			if c.Value != want || c.Literal != (want != "") || c.Name != c.Keyword {
				t.Fatalf("%s: %+v, want %q", b.String(), c, want)
			}
		}
	})
}

func FuzzConstants(f *testing.F) {
	f.Add(unslothScript)
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range Constants(text) {
			if c.Call == "" || c.Keyword == "" || c.Line < 1 || c.Literal != (c.ValueLine > 0) || !c.Literal && c.Value != "" {
				t.Fatalf("%q: %+v", text, c)
			}
		}
	})
}

// A call counts with and without arguments, whatever it is called on; a definition, a
// comment and a text do not.
func TestCalled(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"model.to()\n":                             1,
		"x = 1\nmodel.base.to(\n  device)\n":       2,
		"from m import to\nto(1)\n":                2,
		"# model.to()\n":                           0,
		"print('model.to()')\n":                    0,
		"def to():\n  pass\n":                      0,
		"model.today()\nmodel.to\n":                0,
		"import m as to\nto(1)\n":                  0,
		"get().to()\n":                             1,
		"class to(Base): pass\nx = {'to': (1, 2)}": 0,
	} {
		if line, ok := Called(text, "to"); line != want || ok != (want > 0) {
			t.Errorf("%q: line %d, %v", text, line, ok)
		}
	}
}
