package trainer

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestYAMLSetKeepsEveryOtherByte(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"a: 1\ncutoff_len: 4096   # tokens\nb: 2", "a: 1\ncutoff_len: 2048   # tokens\nb: 2"},
		{"# c\r\ncutoff_len:\t4096\r\nb: 2\r\n", "# c\r\ncutoff_len:\t2048\r\nb: 2\r\n"},
		{"cutoff_len: '4096'\n", "cutoff_len: 2048\n"},
		{"cutoff_len: \"4096\" # x\n", "cutoff_len: 2048 # x\n"},
		{"{a: 4096, cutoff_len: 4096, b: 4096}\n", "{a: 4096, cutoff_len: 2048, b: 4096}\n"},
		{"é: ü\n\"cutoff_len\" : 4096\n", "é: ü\n\"cutoff_len\" : 2048\n"},
		{"{ü: 1, cutoff_len: 4096}\n", "{ü: 1, cutoff_len: 2048}\n"},
		{"\ufeffcutoff_len: 4096\n", "\ufeffcutoff_len: 2048\n"},
		{"cutoff_len:\n  4096\nb: 1\n", "cutoff_len:\n  2048\nb: 1\n"},
		{"n: &n 4096\ncutoff_len: *n\n", "n: &n 4096\ncutoff_len: 2048\n"},
		{"--- # head\ncutoff_len: 1\ncutoff_len_2: 1\n...\n", "--- # head\ncutoff_len: 2048\ncutoff_len_2: 1\n...\n"},
		{"a: 1\n", "a: 1\ncutoff_len: 2048\n"},
		{"a: 1", "a: 1\ncutoff_len: 2048\n"},
		{"a: 1\r\n", "a: 1\r\ncutoff_len: 2048\r\n"},
		{"  a: 1\n  b:\n    - 2\n# end\n", "  a: 1\n  b:\n    - 2\n# end\n  cutoff_len: 2048\n"},
		{"base: &b {cutoff_len: 1}\n<<: *b\n", "base: &b {cutoff_len: 1}\n<<: *b\ncutoff_len: 2048\n"},
		{"", "cutoff_len: 2048\n"},
	} {
		got, err := yamlSet([]byte(c.text), "cutoff_len", "2048")
		if err != nil || string(got) != c.want {
			t.Errorf("%q\n got %q, %v\nwant %q", c.text, got, err, c.want)
		}
	}
	for text, want := range map[string]string{
		"cutoff_len: &n 4096\nb: *n\n": "anchor",
		"cutoff_len: [1]\n":            "not a single word",
		"cutoff_len: |\n  4096\n":      "form",
		"cutoff_len: !!int \"4096\"\n": "found again",
		"cutoff_len: \"4\\x3096\"\n":   "found again",
		"cutoff_len:\n":                "empty",
		"{a: 1}\n":                     "braces",
		"- a\n":                        "not a mapping",
		"a: 1\n---\nb: 1\n":            "more than one",
		"a: 1\n...\n":                  "safely",
		"a: [\n":                       "not YAML",
	} {
		if got, err := yamlSet([]byte(text), "cutoff_len", "2048"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v, want an error with %q", text, got, err, want)
		}
	}
}

func TestJSONSetKeepsEveryOtherByte(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{`{"a":1,"n":4096}`, `{"a":1,"n":2048}`},
		{"{ \"n\" :\t4096 ,\r\n\"b\": [4096, {\"n\": 4096}]}\n", "{ \"n\" :\t2048 ,\r\n\"b\": [4096, {\"n\": 4096}]}\n"},
		{`{"n": "4096"}`, `{"n": 2048}`},
		{`{"n": {"x": [1]}}`, `{"n": 2048}`},
		{`{"n": 1, "n": 4096}`, `{"n": 1, "n": 2048}`},
		{`{}`, `{"n": 2048}`},
		{`{"a": 1}`, `{"a": 1, "n": 2048}`},
		{"{\n    \"a\": 1,\n    \"b\": \"é,}\"\n}\n", "{\n    \"a\": 1,\n    \"b\": \"é,}\",\n    \"n\": 2048\n}\n"},
		{"{\n\t\"a\": null\n}", "{\n\t\"a\": null,\n\t\"n\": 2048\n}"},
	} {
		got, err := jsonSet([]byte(c.text), "n", "2048")
		if err != nil || string(got) != c.want {
			t.Errorf("%q\n got %q, %v\nwant %q", c.text, got, err, c.want)
		}
	}
	for _, text := range []string{"", "[1]", `{"a": 1`, `{"a": NaN}`, `{"a": 1} {}`, `{"a" 1}`, "nul"} {
		if got, err := jsonSet([]byte(text), "n", "2048"); err == nil {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func FuzzYAMLSet(f *testing.F) {
	for _, seed := range []string{
		"a: 1\nn: 4096 # c\n", "{a: b, n: '1'}", "n: *x\n", "? n\n: 1\n", "n: 1\r\nb: |\r\n  x\r\n", "\"n\": \"1\"", "n: é\n", "a:\n  n: 1\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := yamlSet(data, "n", "2048")
		if err != nil {
			return
		}
		before, after := map[string]any{}, map[string]any{}
		if yaml.Unmarshal(out, &after) != nil {
			return // duplicate keys and the like, as in the original
		}
		if after["n"] != 2048 {
			t.Fatalf("%q became %q: n is %v", data, out, after["n"])
		}
		if yaml.Unmarshal(data, &before) != nil {
			return
		}
		checkRest(t, data, out, before, after)
	})
}

func FuzzJSONSet(f *testing.F) {
	for _, seed := range []string{`{"n": 1}`, `{"a": [1, {"n": 2}], "n": "x"}`, `{}`, `{"n":1,"n":2}`, "{\"a\":1\n}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := jsonSet(data, "n", "2048")
		if err != nil {
			return
		}
		before, after := map[string]any{}, map[string]any{}
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatalf("%q became %q: %v", data, out, err)
		}
		if after["n"] != 2048.0 {
			t.Fatalf("%q became %q: n is %v", data, out, after["n"])
		}
		if json.Unmarshal(data, &before) != nil {
			return
		}
		checkRest(t, data, out, before, after)
	})
}

// checkRest fails unless the two documents agree in all but n, and the texts
// in all but one stretch of bytes.
func checkRest(t *testing.T, data, out []byte, before, after map[string]any) {
	t.Helper()
	delete(before, "n")
	delete(after, "n")
	b, err1 := yaml.Marshal(before)
	a, err2 := yaml.Marshal(after)
	if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
		t.Fatalf("%q became %q: more than n has changed", data, out)
	}
	head := 0
	for head < len(data) && head < len(out) && data[head] == out[head] {
		head++
	}
	tail := 0
	for tail < len(data)-head && tail < len(out)-head && data[len(data)-1-tail] == out[len(out)-1-tail] {
		tail++
	}
	if changed := out[head : len(out)-tail]; len(changed) > len("\r\n\r\n, \"n\": 2048\r\n")+len(data) {
		t.Fatalf("%q became %q: %q is new", data, out, changed)
	}
}
