package edit

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type setCase struct{ text, path, value, kind, want string }

// checkSets runs changes and compares the whole text.
func checkSets(t *testing.T, name string, cases []setCase) {
	t.Helper()
	for _, c := range cases {
		d, err := Parse(name, []byte(c.text))
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		after, err := d.Set(c.path, c.value, c.kind)
		if err != nil {
			t.Errorf("%q: %s: %v", c.text, c.path, err)
			continue
		}
		if diff := cmp.Diff(c.want, string(after.Bytes())); diff != "" {
			t.Errorf("%q: %s=%s (-want +got):\n%s", c.text, c.path, c.value, diff)
		}
		if string(d.Bytes()) != c.text {
			t.Errorf("%q: the document itself became %q", c.text, d.Bytes())
		}
	}
}

type refusal struct{ text, path, value, kind, why string }

func checkRefusals(t *testing.T, name string, cases []refusal) {
	t.Helper()
	for _, c := range cases {
		d, err := Parse(name, []byte(c.text))
		var after *Doc
		if err == nil {
			if c.kind == "remove" {
				after, err = d.Remove(c.path)
			} else {
				after, err = d.Set(c.path, c.value, c.kind)
			}
		}
		if err == nil {
			t.Errorf("%q: %s=%s became %q, want an error with %q", c.text, c.path, c.value, after.Bytes(), c.why)
		} else if !strings.Contains(err.Error(), c.why) {
			t.Errorf("%q: %s: %v, want an error with %q", c.text, c.path, err, c.why)
		}
	}
}

func TestYAMLSet(t *testing.T) {
	t.Parallel()
	n := func(text, want string) setCase { return setCase{text, "cutoff_len", "2048", "int", want} }
	checkSets(t, "c.yaml", []setCase{
		n("a: 1\ncutoff_len: 4096   # tokens\nb: 2", "a: 1\ncutoff_len: 2048   # tokens\nb: 2"),
		n("# c\r\ncutoff_len:\t4096\r\nb: 2\r\n", "# c\r\ncutoff_len:\t2048\r\nb: 2\r\n"),
		n("cutoff_len: '4096'\n", "cutoff_len: '2048'\n"),
		n("cutoff_len: \"4096\" # x\n", "cutoff_len: \"2048\" # x\n"),
		n("cutoff_len: 'auto'\n", "cutoff_len: 2048\n"),
		n("cutoff_len: 4_096\n", "cutoff_len: 2048\n"),
		n("cutoff_len: ${LEN} # from the environment\n", "cutoff_len: 2048 # from the environment\n"),
		n("{a: 4096, cutoff_len: 4096, b: 4096}\n", "{a: 4096, cutoff_len: 2048, b: 4096}\n"),
		n("é: ü\n\"cutoff_len\" : 4096\n", "é: ü\n\"cutoff_len\" : 2048\n"),
		n("'cutoff_len': 4096\n", "'cutoff_len': 2048\n"),
		n("{ü: 1, cutoff_len: 4096}\n", "{ü: 1, cutoff_len: 2048}\n"),
		n("\ufeffcutoff_len: 4096\n", "\ufeffcutoff_len: 2048\n"),
		n("cutoff_len:\n  4096\nb: 1\n", "cutoff_len:\n  2048\nb: 1\n"),
		n("n: &n 4096\ncutoff_len: *n\n", "n: &n 4096\ncutoff_len: 2048\n"),
		n("cutoff_len: &n 4096 # alone\n", "cutoff_len: &n 2048 # alone\n"),
		n("--- # head\ncutoff_len: 1\ncutoff_len_2: 1\n...\n", "--- # head\ncutoff_len: 2048\ncutoff_len_2: 1\n...\n"),
		n("cutoff_len:\nb: 1\n", "cutoff_len: 2048\nb: 1\n"),
		n("cutoff_len: # none\n", "cutoff_len: 2048 # none\n"),
		n("cutoff_len: ~\n", "cutoff_len: 2048\n"),
		n("cutoff_len: null # none", "cutoff_len: 2048 # none"),
		n("text: |\n  cutoff_len: 4096\ncutoff_len: 4096\n", "text: |\n  cutoff_len: 4096\ncutoff_len: 2048\n"),
		n("text: \"a\\\n  b\"\ncutoff_len: 4096\n", "text: \"a\\\n  b\"\ncutoff_len: 2048\n"),
		// Added keys.
		n("a: 1\n", "a: 1\ncutoff_len: 2048\n"),
		n("a: 1", "a: 1\ncutoff_len: 2048"),
		n("a: 1\r\n", "a: 1\r\ncutoff_len: 2048\r\n"),
		n("  a: 1\n  b:\n    - 2\n# end\n", "  a: 1\n  b:\n    - 2\n# end\n  cutoff_len: 2048\n"),
		n("base: &b {cutoff_len: 1}\n<<: *b\n", "base: &b {cutoff_len: 1}\n<<: *b\ncutoff_len: 2048\n"),
		n("", "cutoff_len: 2048\n"),
		n("# nothing yet\n", "# nothing yet\ncutoff_len: 2048\n"),
		n("{}\n", "{cutoff_len: 2048}\n"),
		n("{a: 1}\n", "{a: 1, cutoff_len: 2048}\n"),
		n("{a: 1,\n b: [1, 2] # c\n}\n", "{a: 1,\n b: [1, 2], cutoff_len: 2048 # c\n}\n"),
		n("{\n  \"a\": 1,\n  \"b\": 2\n}\n", "{\n  \"a\": 1,\n  \"b\": 2,\n  \"cutoff_len\": 2048\n}\n"),
		n("{\n  a: 1,\n  b: 2,\n}\n", "{\n  a: 1,\n  b: 2,\n  cutoff_len: 2048,\n}\n"),
		n("a: 1\n...\n", "a: 1\ncutoff_len: 2048\n...\n"),
		n("a: |\n  text", "cutoff_len: 2048\na: |\n  text"),
		// Nested.
		{
			"config:\n  process:\n    - type: x\n      train:\n        batch_size: 4 # images\n        steps: 10\n", "config.process[0].train.batch_size", "2", "int",
			"config:\n  process:\n    - type: x\n      train:\n        batch_size: 2 # images\n        steps: 10\n",
		},
		{
			"config:\n  process:\n    - type: x\n      train:\n        steps: 10\n        # more\n    - y: 1\nz: 1\n", "config.process[0].train.batch_size", "2", "int",
			"config:\n  process:\n    - type: x\n      train:\n        steps: 10\n        batch_size: 2\n        # more\n    - y: 1\nz: 1\n",
		},
		{"process:\n- a: 1\n- b: 2\n", "process[0].c", "3", "int", "process:\n- a: 1\n  c: 3\n- b: 2\n"},
		{"process:\n- a: 1\n-\n  b: 2\n", "process[0].c", "3", "int", "process:\n- a: 1\n  c: 3\n-\n  b: 2\n"},
		{
			"model:\n    name: x\nstep: 1\n", "packed_sequence.packed_sequence_size", "4096", "int",
			"model:\n    name: x\nstep: 1\npacked_sequence:\n    packed_sequence_size: 4096\n",
		},
		{"packed_sequence:\nstep: 1\n", "packed_sequence.packed_sequence_size", "4096", "int", "packed_sequence: {packed_sequence_size: 4096}\nstep: 1\n"},
		{"packed_sequence: null # off\n", "packed_sequence.a.b", "1", "int", "packed_sequence: {a: {b: 1}} # off\n"},
		{"packed_sequence: {}\n", "packed_sequence.size", "1", "int", "packed_sequence: {size: 1}\n"},
		{"a:\n  text: |\n    x\n\n    # not a comment\nb: 1\n", "a.num", "1", "int", "a:\n  text: |\n    x\n\n    # not a comment\n  num: 1\nb: 1\n"},
		{"a:\n  text: |+\n    x\n\nb: 1\n", "a.num", "1", "int", "a:\n  text: |+\n    x\n\n  num: 1\nb: 1\n"},
		{"a:\n  q: \"x\n    y\"\nb: 1\n", "a.num", "1", "int", "a:\n  q: \"x\n    y\"\n  num: 1\nb: 1\n"},
		{"a:\n  b: 1", "a.num", "1", "int", "a:\n  b: 1\n  num: 1"},
		{"base: &b\n  lr: 1\ntrain:\n  <<: *b\n  n: 2\n", "train.lr", "2", "int", "base: &b\n  lr: 1\ntrain:\n  <<: *b\n  n: 2\n  lr: 2\n"},
		// A whole key goes before a dotted path, and a flat file stays flat.
		{"a.b: 1\na:\n  b: 2\n", "a.b", "3", "int", "a.b: 3\na:\n  b: 2\n"},
		{"train.lr: 1\n", "train.batch", "3", "int", "train.lr: 1\ntrain.batch: 3\n"},
		// Kinds.
		{"lr: 2e-5\n", "lr", "1e-5", "float", "lr: 1.0e-5\n"},
		{"lr: 0.001\n", "lr", "1E3", "float", "lr: 1.0e+3\n"},
		{"lr: 0.001\n", "lr", ".5", "float", "lr: 0.5\n"},
		{"lr: 3\n", "lr", "4", "float", "lr: 4\n"},
		{"lr: 0.5\n", "lr", "4", "float", "lr: 4.0\n"},
		{"n: 1\n", "n", "1_000", "int", "n: 1000\n"},
		{"p: True\n", "p", "false", "bool", "p: False\n"},
		{"p: yes\n", "p", "no", "bool", "p: false\n"},
		{"p: 'yes'\n", "p", "false", "bool", "p: 'false'\n"},
		{"p: true # x\n", "p", "null", "bool", "p: null # x\n"},
		{"s: a\n", "s", "bfloat16", "str", "s: bfloat16\n"},
		{"s: a\n", "s", "no", "str", "s: \"no\"\n"},
		{"s: a\n", "s", "1e-5", "str", "s: \"1e-5\"\n"},
		{"s: a\n", "s", "12:30", "str", "s: \"12:30\"\n"},
		{"s: a\n", "s", "2026-01-01", "str", "s: \"2026-01-01\"\n"},
		{"s: a\n", "s", "y", "str", "s: \"y\"\n"},
		{"s: a\n", "s", "a: b # c", "str", "s: \"a: b # c\"\n"},
		{"s: 'a'\n", "s", "it's", "str", "s: 'it''s'\n"},
		{"s: \"a\"\n", "s", "b\n\x07", "str", "s: \"b\\n\\u0007\"\n"},
		{"s: a\n", "s", "./out-a2", "str", "s: \"./out-a2\"\n"},
		{"s: a\n", "s", "/data/out-a2", "str", "s: /data/out-a2\n"},
		{"s: a\n", "s", "", "str", "s: \"\"\n"},
		{"s: a\n", "s", "ü😀", "str", "s: \"ü😀\"\n"},
	})
}

func TestYAMLRefuses(t *testing.T) {
	t.Parallel()
	n := func(text, why string) refusal { return refusal{text, "cutoff_len", "2048", "int", why} }
	checkRefusals(t, "c.yml", []refusal{
		n("cutoff_len: &n 4096\nb: *n\n", "b would change with it"),
		n("cutoff_len: [1]\n", "is a list"),
		n("cutoff_len: {a: 1}\n", "is a mapping"),
		n("cutoff_len: |\n  4096\n", "block of lines"),
		n("cutoff_len: !!int \"4096\"\n", "tag !!int"),
		n("cutoff_len: a\n  b\n", "several lines"),
		n("cutoff_len: 1\na: 2\ncutoff_len: 3\n", "stands on line 1 too"),
		n("? cutoff_len\n: 4096\na: [\n", "not YAML"),
		n("- a\n", "not a mapping"),
		n("just text\n", "not a mapping"),
		n("a: 1\n---\nb: 1\n", "line 2: there is more than one"),
		n("a: [\n", "line 2: not YAML"),
		n("a: 1\n\tb: 2\n", "not YAML"),
		n("a: *x\n", "unknown anchor"),
		n("a: &a [*a]\n", "contains itself"),
		n("[1]: 2\n", "key is a list"),
		n("a: \x00\n", "zero byte"),
		n("a: \xff\n", "line 1: not UTF-8"),
		{"a: 1\n", "a", "4k", "int", `"4k" is not a whole number`},
		{"a: 1\n", "a", "08", "int", "not a whole number"},
		{"a: 1\n", "a", "inf", "float", "finite"},
		{"a: 1\n", "a", "maybe", "bool", "neither true nor false"},
		{"a: 1\n", "a", "1", "size", "not a kind"},
		{"a: 1\n", "a.b", "1", "int", "a has a value"},
		{"a: [1]\n", "a[1]", "1", "int", "without that item"},
		{"a: [1]\n", "b[0]", "1", "int", "list would have to be added"},
		{"a: 1\n", "", "1", "int", "path is empty"},
		{"a: 1\n", "b..c", "1", "int", "empty key"},
		{"base: &b\n  lr: 1\ntrain:\n  <<: *b\n", "base.lr", "2", "int", "train.lr would change with it"},
		{"t: &t\n  lr: 1\ntrain: *t\n", "train.lr", "2", "int", "alias"},
		{"b: &b\n  x: {lr: 1}\n<<: *b\n", "x.lr", "2", "int", "merge key"},
		{"t: &t\n  lr: 1\ntrain: *t\n", "t.n", "2", "int", "train.n would change with it"},
		{"b: &b {lr: 1}\nt:\n  <<: *b\n  lr: 2\n", "t.lr", "", "remove", "read as the value"},
		{"b: &b {lr: 1}\nt:\n  <<: *b\n", "t.lr", "", "remove", "merge key"},
		{"a: [1, 2]\n", "a[0]", "", "remove", "only a key"},
		{"a: 1\n", "b", "", "remove", "not in the file"},
		{"p:\n- a: 1\n", "p[0].a", "", "remove", "only key of an item"},
	})
}

func TestYAMLRemove(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, path, want string }{
		{"a: 1\nb: 2 # two\nc: 3\n", "b", "a: 1\nc: 3\n"},
		{"a: 1\nb: 2", "b", "a: 1"},
		{"a: 1\r\nb: 2\r\n", "b", "a: 1\r\n"},
		{"a: 1\n# about q\nq:\n  x: 1\n  y: |\n    t\n\n# about b\nb: 2\n", "q", "a: 1\n# about q\n\n# about b\nb: 2\n"},
		{"q:\n  x: 1\n  y: 2\n", "q.x", "q:\n  y: 2\n"},
		{"q:\n  x: 1\nb: 2\n", "q.x", "q: {}\nb: 2\n"},
		{"p:\n- a: 1 # one\n  b: 2\n", "p[0].a", "p:\n- b: 2\n"},
		{"{a: 1, b: [1, 2], c: 3}\n", "b", "{a: 1, c: 3}\n"},
		{"{a: 1, c: 3}\n", "c", "{a: 1}\n"},
		{"{a: 1}\n", "a", "{}\n"},
		{"a: 1\n", "a", ""},
		{"q: {load_in_4bit: true, x: 1}\nb: 1\n", "q", "b: 1\n"},
		{"text: \"a\n  b\"\nb: 1\n", "text", "b: 1\n"},
	} {
		d, err := Parse("c.yaml", []byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		after, err := d.Remove(c.path)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
		} else if diff := cmp.Diff(c.want, string(after.Bytes())); diff != "" {
			t.Errorf("%q without %s (-want +got):\n%s", c.text, c.path, diff)
		}
	}
}

func TestYAMLReads(t *testing.T) {
	t.Parallel()
	text := "base: &b\n  lr: 2e-5\nmodel: \"a b\"\ntrain:\n  <<: *b\n  n: &n 4\nm: *n\nempty:\nprocess:\n- x: yes\n  y: [1, ~]\nq.r: 1\nn: 1\nn: 2\n"
	d, err := Parse("c.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []Entry{
		{"base", "", 1, Map, true},
		{"base.lr", "2e-5", 2, Scalar, true},
		{"model", "a b", 3, Scalar, false},
		{"train", "", 5, Map, false},
		{"train.n", "4", 6, Scalar, true},
		{"train.lr", "2e-5", 2, Scalar, true},
		{"m", "4", 7, Scalar, true},
		{"empty", "", 8, Null, false},
		{"process", "", 10, List, false},
		{"process[0]", "", 10, Map, false},
		{"process[0].x", "yes", 10, Scalar, false},
		{"process[0].y", "", 11, List, false},
		{"process[0].y[0]", "1", 11, Scalar, false},
		{"process[0].y[1]", "", 11, Null, false},
		{"q.r", "1", 12, Scalar, false},
		{"n", "1", 13, Scalar, false},
		{"n", "2", 14, Scalar, false},
	}
	if diff := cmp.Diff(want, d.Entries()); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	for _, e := range want[:len(want)-2] {
		if got, ok := d.Get(e.Path); !ok || got != e {
			t.Errorf("Get(%s) = %v, %v, want %v", e.Path, got, ok, e)
		}
	}
	if e, _ := d.Get("n"); e.Value != "2" {
		t.Errorf("of two the last holds, got %v", e)
	}
	for _, path := range []string{"", "x", "base.x", "process[1]", "process[0]y.z", "process[-1]", "process[00]", "model.x", "process.x"} {
		if e, ok := d.Get(path); ok {
			t.Errorf("Get(%s) = %v", path, e)
		}
	}
}
