package edit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestJSONSet(t *testing.T) {
	t.Parallel()
	n := func(text, want string) setCase { return setCase{text, "n", "2048", "int", want} }
	checkSets(t, "c.json", []setCase{
		n(`{"a":1,"n":4096}`, `{"a":1,"n":2048}`),
		n("{ \"n\" :\t4096 ,\r\n\"b\": [4096, {\"n\": 4096}]}\n", "{ \"n\" :\t2048 ,\r\n\"b\": [4096, {\"n\": 4096}]}\n"),
		n(`{"n": "4096"}`, `{"n": "2048"}`),
		n(`{"n": "auto", "b": "{\"n\": 1}"}`, `{"n": 2048, "b": "{\"n\": 1}"}`),
		n(`{"n": null}`, `{"n": 2048}`),
		n("\ufeff{\"n\": NaN}", "\ufeff{\"n\": 2048}"),
		n(`{}`, `{"n": 2048}`),
		n("{ }\n", "{\"n\": 2048 }\n"),
		n(`{"a": 1}`, `{"a": 1, "n": 2048}`),
		n(`{"a":1,"b":2}`, `{"a":1,"b":2,"n":2048}`),
		n("{\n    \"a\": 1,\n    \"b\": \"é,}\"\n}\n", "{\n    \"a\": 1,\n    \"b\": \"é,}\",\n    \"n\": 2048\n}\n"),
		n("{\n\t\"a\": null\n}", "{\n\t\"a\": null,\n\t\"n\": 2048\n}"),
		n("{\r\n  \"a\": 1,\r\n\r\n  \"b\": 2\r\n}\r\n", "{\r\n  \"a\": 1,\r\n\r\n  \"b\": 2,\r\n  \"n\": 2048\r\n}\r\n"),
		{`{"zero_optimization": {"stage": 2, "x": [1, {"y": 3}]}}`, "zero_optimization.x[1].y", "4", "int", `{"zero_optimization": {"stage": 2, "x": [1, {"y": 4}]}}`},
		{"{\n  \"a\": 1\n}", "b.c.d", "true", "bool", "{\n  \"a\": 1,\n  \"b\": {\n    \"c\": {\n      \"d\": true\n    }\n  }\n}"},
		{"{\n  \"a\": {}\n}", "a.c", "true", "bool", "{\n  \"a\": {\n    \"c\": true\n  }\n}"},
		{`{"a": null}`, "a.b", "x", "str", `{"a": {"b": "x"}}`},
		{`{"lr": 0.1}`, "lr", "1e-5", "float", `{"lr": 1.0e-5}`},
		{`{"s": "a"}`, "s", "<b>\"\n", "str", `{"s": "<b>\"\n"}`},
		{`{"a.b": 1, "a": {"b": 2}}`, "a.b", "3", "int", `{"a.b": 3, "a": {"b": 2}}`},
	})
	checkRefusals(t, "c.json", []refusal{
		{"", "n", "1", "int", "empty"},
		{"[1]", "n", "1", "int", "not an object"},
		{`{"a": 1`, "n", "1", "int", "not closed"},
		{"{\"a\": 1,\n}", "n", "1", "int", "line 2: not JSON: there is a comma before"},
		{"{\n// c\n\"a\": 1}", "n", "1", "int", "line 2: not JSON: comments"},
		{`{"a": 1 /* c */}`, "n", "1", "int", "comments"},
		{`{"a": 1} # c`, "n", "1", "int", "comments"},
		{`{"a": 1} {}`, "n", "1", "int", "behind the end"},
		{`{"a" 1}`, "n", "1", "int", "colon"},
		{`{"a": 1 "b": 2}`, "n", "1", "int", "comma is missing"},
		{`{a: 1}`, "n", "1", "int", "double quotes"},
		{`{"a": nul}`, "n", "1", "int", `"nul" is not a value`},
		{`{"a": 01}`, "n", "1", "int", "not a value"},
		{`{"a": 'b'}`, "n", "1", "int", "not a value"},
		{"{\"a\": \"b\n\"}", "n", "1", "int", "control character"},
		{`{"a": "\q"}`, "n", "1", "int", "escape"},
		{`{"n": 1, "a": {"n": 1}, "n": 4096}`, "n", "1", "int", "stands on line 1 too"},
		{`{"a": {"n": 1, "n": 2}}`, "a.n", "1", "int", "stands on line 1 too"},
		{`{"n": {"x": [1]}}`, "n", "1", "int", "is a mapping"},
		{`{"n": 1}`, "n", "auto", "int", "not a whole number"},
		{strings.Repeat(`{"a":`, 300), "n", "1", "int", "nested deeper"},
	})
	for _, c := range []struct{ text, path, want string }{
		{`{"a": 1, "b": 2}`, "a", `{"b": 2}`},
		{`{"a": 1, "b": 2}`, "b", `{"a": 1}`},
		{"{\n  \"a\": 1,\n  \"b\": {\"x\": 1},\n  \"c\": 3\n}", "b", "{\n  \"a\": 1,\n  \"c\": 3\n}"},
		{`{"q": {"x": 1}}`, "q.x", `{"q": {}}`},
	} {
		d, err := Parse("c.json", []byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		if after, err := d.Remove(c.path); err != nil || string(after.Bytes()) != c.want {
			t.Errorf("%q without %s: %v, %v, want %q", c.text, c.path, after, err, c.want)
		}
	}
}

const kohya = `# a dataset
[general]
caption_extension = '.txt'   # beside the image
batch_size = 4

[[datasets]]
resolution = 1024
batch_size= 2

  [[datasets.subsets]]
  image_dir = "/d/a"
  num_repeats = 1_0

  [[datasets.subsets]]
  image_dir = "/d/b"

[[datasets]]
resolution = [512, 768]
bucket = { min = 256, max = 1024 }
optimizer.name = "adamw"
`

func TestTOML(t *testing.T) {
	t.Parallel()
	in := func(from, to string) string { return strings.Replace(kohya, from, to, 1) }
	checkSets(t, "dataset.toml", []setCase{
		{kohya, "datasets[0].batch_size", "1", "int", in("batch_size= 2", "batch_size= 1")},
		{kohya, "general.batch_size", "2", "int", in("batch_size = 4", "batch_size = 2")},
		{kohya, "general.caption_extension", ".caption", "str", in("'.txt'", "'.caption'")},
		{kohya, "general.caption_extension", "it's", "str", in("'.txt'", `"it's"`)},
		{kohya, "datasets[0].subsets[1].image_dir", "/e\t", "str", in(`"/d/b"`, `"/e\t"`)},
		{kohya, "datasets[0].subsets[0].num_repeats", "5", "int", in("1_0", "5")},
		{kohya, "datasets[0].subsets[0].batch_size", "5", "int", in("1_0\n", "1_0\n  batch_size = 5\n")},
		{kohya, "datasets[1].resolution[1]", "512", "int", in("768", "512")},
		{kohya, "datasets[1].bucket.max", "512", "int", in("max = 1024", "max = 512")},
		{kohya, "datasets[1].bucket.step", "64", "int", in("max = 1024 }", "max = 1024, step = 64 }")},
		{kohya, "datasets[1].optimizer.name", "lion", "str", in("adamw", "lion")},
		{kohya, "datasets[1].optimizer.lr", "1e-5", "float", kohya + "optimizer.lr = 1.0e-5\n"},
		{kohya, "datasets[1].batch_size", "2", "int", kohya + "batch_size = 2\n"},
		{kohya, "general.keep_tokens", "2", "int", in("batch_size = 4\n", "batch_size = 4\nkeep_tokens = 2\n")},
		{kohya, "general.a.b", "2", "int", in("batch_size = 4\n", "batch_size = 4\na.b = 2\n")},
		{kohya, "train.epochs", "2", "int", kohya + "\n[train]\nepochs = 2\n"},
		{kohya, "epochs", "2", "int", "epochs = 2\n" + kohya},
		{"a = 1", "b", "true", "bool", "a = 1\nb = true"},
		{"a=1\r\n", "b", "true", "bool", "a=1\r\nb=true\r\n"},
		{"\ufeffa = 1\n[t]\n", "b", "2", "int", "\ufeffa = 1\nb = 2\n[t]\n"},
		{"\ufeffa = 1\n[t]\n", "a", "2", "int", "\ufeffa = 2\n[t]\n"},
		{"", "b", "2", "int", "b = 2\n"},
		{"", "t.b", "2", "int", "[t]\nb = 2\n"},
		{"# c\n", "b", "2", "int", "# c\nb = 2\n"},
		{"[t]", "t.b", "2", "int", "[t]\nb = 2"},
		{"[a.b]\nx = 1\n", "a.y", "2", "int", "[a.b]\nx = 1\n\n[a]\ny = 2\n"},
		{"a.b = 1\n", "a.c", "2", "int", "a.b = 1\na.c = 2\n"},
		{"a = {}\n", "a.c", "2", "int", "a = { c = 2 }\n"},
		{"a = [{x = 1}, {}]\n", "a[0].y", "2", "int", "a = [{x = 1, y = 2}, {}]\n"},
		{"a = [[1, 2], [3]]\n", "a[1][0]", "4", "int", "a = [[1, 2], [4]]\n"},
		{"'a b' = 1\n", "a b", "2", "int", "'a b' = 2\n"},
		{"t = \"\"\"\nx = 1\n\"\"\"\nx = 1\n", "x", "2", "int", "t = \"\"\"\nx = 1\n\"\"\"\nx = 2\n"},
		{"a = \"8\"\n", "a", "4", "int", "a = \"4\"\n"},
		{"a = \"auto\"\n", "a", "4", "int", "a = 4\n"},
	})
	checkRefusals(t, "c.toml", []refusal{
		{"a = 1\na = 2\n", "a", "3", "int", "line 2: not TOML: a stands on line 1 already"},
		{"[t]\n[t]\n", "a", "3", "int", "line 2: not TOML"},
		{"a = \n", "a", "3", "int", "line 1: not TOML"},
		{"x = 1\ny = [1,\n", "a", "3", "int", "not TOML"},
		{"a = 1\n", "a", "null", "int", "no null"},
		{"a = 1\n", "a.b", "1", "int", "has a value"},
		{"[t]\nx = 1\n", "t", "1", "int", "is a mapping"},
		{"[t]\nx = 1\n", "t", "", "remove", "table with lines of its own"},
		{"t.x = 1\n", "t.x", "", "remove", "t would change with it"},
		{"a = " + strings.Repeat("[", 300) + strings.Repeat("]", 300), "a", "1", "int", "nested deeper"},
		{"a = " + strings.Repeat("[", 1<<20), "a", "1", "int", "more than"},
		{strings.Repeat("a.", 1<<18) + "b = 1", "a", "1", "int", "nested deeper"},
	})
	for _, c := range []struct{ text, path, want string }{
		{kohya, "general.batch_size", in("batch_size = 4\n", "")},
		{kohya, "datasets[1].bucket.min", in("min = 256, ", "")},
		{kohya, "datasets[1].bucket.max", in(", max = 1024", "")},
		{"a = 1\nb = 2", "b", "a = 1"},
		{"a = [\n 1,\n]\nb = 2\n", "a", "b = 2\n"},
	} {
		d, err := Parse("c.toml", []byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		if after, err := d.Remove(c.path); err != nil {
			t.Errorf("%q without %s: %v", c.text, c.path, err)
		} else if diff := cmp.Diff(c.want, string(after.Bytes())); diff != "" {
			t.Errorf("%q without %s (-want +got):\n%s", c.text, c.path, diff)
		}
	}
	d, err := Parse("c.toml", []byte(kohya))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]Entry{
		"datasets[0].batch_size":    {"datasets[0].batch_size", "2", 8, Scalar, false},
		"general":                   {"general", "", 2, Map, false},
		"datasets[1]":               {"datasets[1]", "", 17, Map, false},
		"datasets[1].resolution":    {"datasets[1].resolution", "", 18, List, false},
		"datasets[1].bucket.min":    {"datasets[1].bucket.min", "256", 19, Scalar, false},
		"datasets[0].subsets[1]":    {"datasets[0].subsets[1]", "", 14, Map, false},
		"general.caption_extension": {"general.caption_extension", ".txt", 3, Scalar, false},
	} {
		if got, ok := d.Get(path); !ok || got != want {
			t.Errorf("Get(%s) = %v, %v, want %v", path, got, ok, want)
		}
	}
}

func TestArgs(t *testing.T) {
	t.Parallel()
	text := "--model_name_or_path m\n--per-device-train-batch-size 8 --learning_rate=1e-4\n--packing\n--targets q k v --temperature -1.5\n"
	in := func(from, to string) string { return strings.Replace(text, from, to, 1) }
	checkSets(t, "train.args", []setCase{
		{text, "per_device_train_batch_size", "4", "int", in("size 8", "size 4")},
		{text, "learning_rate", "2e-4", "float", in("1e-4", "2.0e-4")},
		{text, "packing", "false", "bool", in("--packing", "--packing False")},
		{text, "temperature", "-2", "float", in("-1.5", "-2.0")},
		{text, "targets[1]", "o", "str", in("q k v", "q o v")},
		{text, "max_steps", "5", "int", text + "--max_steps 5\n"},
		{"--a 1", "b", "2", "int", "--a 1 --b 2"},
		{"--a 1\n--c", "b", "true", "bool", "--a 1\n--c\n--b True"},
		{"", "b", "2", "int", "--b 2\n"},
		{"word --a 1", "a", "2", "int", "word --a 2"},
	})
	checkRefusals(t, "train.args", []refusal{
		{text, "targets", "q", "str", "is a list"},
		{text, "model_name_or_path", "a b", "str", "white space"},
		{text, "model_name_or_path", "", "str", "empty"},
		{text, "model_name_or_path", "-x", "str", "flag"},
		{text, "packing", "null", "bool", "no null"},
		{"--a 1 --a 2", "a", "3", "int", "stands on line 1 too"},
	})
	for path, want := range map[string]string{
		"packing": in("\n--packing", ""), "targets": in("\n--targets q k v", ""), "model_name_or_path": in("--model_name_or_path m\n", ""),
	} {
		d, err := Parse("train.args", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if after, err := d.Remove(path); err != nil || string(after.Bytes()) != want {
			t.Errorf("without %s: %v, %v, want %q", path, after, err, want)
		}
	}
	d, _ := Parse("train.args", []byte(text))
	want := []Entry{
		{"model_name_or_path", "m", 1, Scalar, false},
		{"per_device_train_batch_size", "8", 2, Scalar, false},
		{"learning_rate", "1e-4", 2, Scalar, false},
		{"packing", "true", 3, Scalar, false},
		{"targets", "", 4, List, false},
		{"targets[0]", "q", 4, Scalar, false},
		{"targets[1]", "k", 4, Scalar, false},
		{"targets[2]", "v", 4, Scalar, false},
		{"temperature", "-1.5", 4, Scalar, false},
	}
	if diff := cmp.Diff(want, d.Entries()); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if e, ok := d.Get("per-device-train-batch-size"); !ok || e.Value != "8" {
		t.Errorf("the spelling with hyphens is not found: %v", e)
	}
}

func TestParseLimits(t *testing.T) {
	t.Parallel()
	if _, err := Parse("train.py", nil); err == nil || Known("train.py") {
		t.Error("a Python file was taken for a configuration")
	}
	if !Known("A.YAML") {
		t.Error("capitals in the extension")
	}
	if _, err := Parse("a.yaml", bytes.Repeat([]byte("#"), MaxSize+1)); err == nil {
		t.Error("a file over the limit was read")
	}
	bomb := "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
	for c := 'b'; c < 'k'; c++ {
		p := string(c - 1)
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+p+", ", 10) + "]\n"
	}
	if _, err := Parse("a.yaml", []byte(bomb)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a bomb of aliases: %v", err)
	}
	for _, c := range []struct{ name, text string }{
		{"a.yaml", strings.Repeat("[", MaxSize)},
		{"a.yaml", strings.Repeat("- ", MaxSize/2)},
		{"a.yaml", "a: [" + strings.Repeat("1,", maxValues) + "]"},
		{"a.yaml", "a: &a {" + strings.Repeat("b: 1,", 20000) + "}\nb:\n" + strings.Repeat("- {<<: *a}\n", 20000)},
		{"a.json", strings.Repeat("[", MaxSize)},
		{"a.json", `{"a": [` + strings.Repeat("1,", maxValues) + "1]}"},
		{"a.toml", "a = " + strings.Repeat("[", MaxSize-4)},
		{"a.toml", strings.Repeat("a.", MaxSize/2)},
		{"a.toml", "a = [" + strings.Repeat("1,", maxValues) + "]"},
		{"a.args", strings.Repeat("a ", maxValues+1)},
	} {
		if d, err := Parse(c.name, []byte(c.text)); err == nil {
			t.Errorf("%s: %q... was read: %d entries", c.name, c.text[:20], len(d.Entries()))
		}
	}
}

func TestRelativeRef(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"a: 1\nb: text\nc: /abs/data.jsonl\n":         "",
		"a: 1\nd:\n  path: data.jsonl\n":              "d.path",
		"a: 1\nd:\n- ./x\n":                           "d[0]",
		"a: ../x\nb: ./y\n":                           "a",
		"base: other.yaml\n":                          "base",
		"defaults:\n- a\n":                            "defaults",
		"m:\n  _base_: x\n":                           "m._base_",
		"include: null\nlr: 1.0e-5\nout: not-there\n": "",
	} {
		d, err := Parse(filepath.Join(dir, "c.yaml"), []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := d.RelativeRef(); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// The time that a document takes does not grow with the square of its keys.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	long := func(n int) []byte {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "key_%d = %d\n", i, i)
		}
		return []byte(b.String())
	}
	d, err := Parse("a.toml", long(maxKeys))
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 31, 32, 33, maxKeys - 1} {
		if e, ok := d.Get(fmt.Sprintf("key_%d", i)); !ok || e.Value != fmt.Sprint(i) || e.Line != i+1 {
			t.Errorf("key %d: %+v", i, e)
		}
	}
	if _, err := Parse("a.toml", long(maxKeys+1)); err == nil || !strings.Contains(err.Error(), "keys") {
		t.Errorf("a key too many: %v", err)
	}
	twice := append(long(100), "key_50 = 3\n"...)
	if _, err := Parse("a.toml", twice); err == nil || !strings.Contains(err.Error(), "line 101: not TOML: key_50 stands on line 51 already") {
		t.Errorf("a key that is there twice: %v", err)
	}
}
