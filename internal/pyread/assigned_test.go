package pyread

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// given writes what is given outside of calls.
func given(text string) []string {
	var out []string
	for _, c := range Read(text).Constants {
		if c.Call != "" {
			continue
		}
		value := "?"
		switch {
		case c.Literal:
			value = c.Value
		case c.Items != nil:
			value = strings.Join(c.Items, "|")
		}
		out = append(out, fmt.Sprintf("%d %s=%s", c.Line, c.Keyword, value))
	}
	return out
}

func TestReadOutsideOfCalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{`attn = "sdpa"`, "1 attn=sdpa"},
		{"class A:\n    tp_size: int = 2\n    attn: Optional[str] = field(default=\"sdpa\", metadata={\"help\": \"x\"})", "2 tp_size=2, 3 attn=sdpa, 3 help=x"},
		{"config._attn_implementation = 'eager'", "1 _attn_implementation=eager"},
		{`os.environ["WORLD_SIZE"] = "2"`, "1 WORLD_SIZE=2"},
		{"kw = {\"attn_implementation\": \"sdpa\",\n  \"tp\": TP}\nTP = 2", "1 kw=?, 1 attn_implementation=sdpa, 2 tp=2, 3 TP=2"},
		{"if a: b = 1", "1 b=1"},
		{"a = b = 3", "1 a=3, 1 b=3"},
		{"a, b = 1, 2", ""},
		{"a += 1\na == 2\nf(x=1)", ""},
		{"a = input()", "1 a=?"},
		{"MODS = ['q_proj', 'v_proj']\nT = MODS", "1 MODS=q_proj|v_proj, 2 T=q_proj|v_proj"},
		{"# a = 1\n'''\nb = 2\n'''\nx = \"c = 3\"", `5 x=c = 3`},
		{"a = (\n  2\n)", "1 a=2"},
		{"f = lambda x=1: x", "1 f=?"},
		{"a = 1; b = 2", "1 a=1, 1 b=2"},
		{"= 1\n[ = 2\n} = {\nx[ = 3", ""},
		{"x['a'] = {'b': {'c': 1}}", "1 a=?, 1 b=?, 1 c=1"},
	} {
		got := strings.Join(given(c.text), ", ")
		if got != c.want {
			t.Errorf("%q:\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}

func TestListsOfStringsInCalls(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		`f(target_modules=["q_proj", 'v_' "proj"])`: {"q_proj", "v_proj"},
		`f(target_modules=("q", "k",))`:             {"q", "k"},
		"M = {'q'}\nf(target_modules=M)":            {"q"},
		`f(target_modules=["q", x])`:                nil,
		`f(target_modules=[1, 2])`:                  nil,
		`f(target_modules={"q": 1})`:                nil,
		`f(target_modules=["q"] + more)`:            nil,
		`f(target_modules=[])`:                      nil,
		"M = ['q']\nM.append('k')\nf(t=M)":          nil,
	} {
		got := Constants(text)
		c := got[len(got)-1]
		if !slices.Equal(c.Items, want) || c.Literal {
			t.Errorf("%q: %+v", text, c)
		}
	}
}

func TestImports(t *testing.T) {
	t.Parallel()
	text := "import os, unsloth.models as m\nfrom trl import SFTConfig\ntry: import a\nexcept: from . import b\n# import c\nx = 'import d'\nif y:\n    from unsloth import FastModel\n"
	if got := strings.Join(Read(text).Imports, " "); got != "os unsloth.models trl a unsloth" {
		t.Errorf("imports %s", got)
	}
}

// Whatever the text is, reading it ends, and lines are those of the text.
func TestReadOfAnyText(t *testing.T) {
	t.Parallel()
	words := []string{
		"a", "=", " ", "\n", "(", ")", "[", "]", "{", "}", ":", ",", "'x'", "\"", "if", "class", "def", "import", "from", ".",
		"field(", "default", "1", "*", "**", "lambda", ";", "#", "\\", "f(", "TRIPLE",
	}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 0, 40).Draw(t, "words"), "")
		text = strings.ReplaceAll(text, "TRIPLE", strings.Repeat("'", 3))
		last := strings.Count(text, "\n") + 1
		for _, c := range Read(text).Constants {
			if c.Line < 1 || c.Line > last || c.Keyword == "" {
				t.Fatalf("%q: %+v", text, c)
			}
		}
	})
}
