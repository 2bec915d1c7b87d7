package edit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// pyCheck reads changed documents as trainers do. For each it demands that exactly one
// path differs, and that the value there has the type that was asked for.
const pyCheck = `
import json, sys, yaml
try:
    import tomllib
except ImportError:
    tomllib = None

def load(name, text):
    text = text.lstrip("\ufeff")
    if name.endswith("yaml"):
        return yaml.safe_load(text) or {}
    if name.endswith("json"):
        return json.loads(text)
    return tomllib.loads(text)

def differ(a, b, path):
    if type(a) is not type(b):
        return [path]
    if isinstance(a, dict):
        out = []
        for k in {**a, **b}:
            at = path + "." + str(k) if path else str(k)
            if k not in a or k not in b:
                out.append(at)
            else:
                out += differ(a[k], b[k], at)
        return out
    if isinstance(a, list) and len(a) == len(b):
        return sum((differ(x, y, "%s[%d]" % (path, i)) for i, (x, y) in enumerate(zip(a, b))), [])
    return [] if a == b else [path]

def at(v, path):
    for part in path.replace("[", ".[").split("."):
        v = v[int(part[1:-1])] if part.startswith("[") else v[part]
    return v

types = {"int": (int,), "float": (float, int), "bool": (bool,), "str": (str,), "null": (type(None),)}
read = 0
for line in sys.stdin:
    c = json.loads(line)
    if "word" in c:
        got = type(yaml.safe_load("a: " + c["word"])["a"]).__name__
        got = {"NoneType": "null", "date": "other", "datetime": "other"}.get(got, got)
        if got != c["kind"] and c["kind"] != "other":
            print("%r is %s to PyYAML, not %s" % (c["word"], got, c["kind"]))
        continue
    if c["name"].endswith("toml") and tomllib is None:
        continue
    try:
        before = load(c["name"], c["before"])
    except yaml.YAMLError:
        continue  # tabs after a colon
    read += 1
    try:
        after = load(c["name"], c["after"])
    except Exception as e:
        print("%r became %r: %s" % (c["before"], c["after"], e))
        continue
    changed = differ(before, after, "")
    value = at(after, c["path"])
    if changed != [c["change"]] and not (changed == [] and at(before, c["path"]) == value):
        print("%r became %r: %s changed, not %s" % (c["before"], c["after"], changed, c["path"]))
    elif type(value) not in types[c["kind"]] and not c["quoted"]:
        print("%r: %s is %r, not of kind %s" % (c["after"], c["path"], value, c["kind"]))
    elif c["quoted"] and type(value) is not str:
        print("%r: %s is %r, no longer a string" % (c["after"], c["path"], value))
print("read", read)
`

// python returns a Python that has PyYAML.
func python(t *testing.T) string {
	t.Helper()
	for _, p := range []string{os.Getenv("SPARKRUN_TRAINERS_PYTHON"), "python3"} {
		if p != "" && exec.Command(p, "-c", "import yaml").Run() == nil {
			return p
		}
	}
	t.Skip("no python3 with PyYAML, and SPARKRUN_TRAINERS_PYTHON names none")
	return ""
}

type pyCase struct {
	Name   string `json:"name"`
	Before string `json:"before"`
	After  string `json:"after"`
	Path   string `json:"path"`
	// Change is the path that differs: Path, or the first of its parents that was
	// missing.
	Change string `json:"change"`
	Kind   string `json:"kind"`
	Quoted bool   `json:"quoted"`
}

// TestPythonAgrees has Python read what Set writes.
func TestPythonAgrees(t *testing.T) {
	t.Parallel()
	py := python(t)
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	for _, word := range []string{
		"1", "-1", "+1", "0", "01", "0o7", "0x1F", "0b1", "1_000", "1__0", "1_", "_1", "1:30", "1:75", "1:30.5", "1.", "1.5", ".5", "-.5", "+.5", "1e5", "1.e5", "1.0e5", "1.0e+5", "1e-5", "1.0E-5",
		".inf", "-.Inf", ".nan", "-.nan", "nan", "inf", "yes", "No", "on", "OFF", "oN", "y", "n", "true", "True", "tRue", "~", "null", "NULL", "nuLL", "2026-01-02", "2026-1-2 3:04:05", "20260102", "abc", "1.2.3", "1-2", "0.1_5", "0_1", "1e", "e5", "08", "0.",
	} {
		if err := enc.Encode(map[string]string{"word": word, "kind": yaml11(word)}); err != nil {
			t.Fatal(err)
		}
	}
	sent := 0
	values := []struct{ kind, value string }{
		{"int", "2048"}, {"float", "1e-5"}, {"float", "3E4"}, {"float", "7"}, {"bool", "false"}, {"str", "on"}, {"str", "1e-5"}, {"str", "a # b: 'c'"}, {"str", "bf16"}, {"str", "\t\x01\u2028"}, {"null", "null"},
	}
	for name, draw := range map[string]func(*rapid.T) (*writer, []byte){"c.yaml": drawYAML, "c.json": drawJSON, "c.toml": drawTOML} {
		type document struct {
			w    *writer
			data []byte
		}
		gen := rapid.Custom(func(t *rapid.T) document {
			w, data := draw(t)
			return document{w, data}
		})
		for seed := range 60 {
			doc := gen.Example(seed)
			d, err := Parse(name, doc.data)
			if err != nil {
				t.Fatalf("%q: %v", doc.data, err)
			}
			paths := map[string]bool{}
			for _, l := range doc.w.leaves {
				paths[l.path] = true
			}
			for _, m := range doc.w.maps {
				paths[joinPath(m, "added.below")] = true
				paths[joinPath(m, "added")] = true
			}
			i := seed
			for path := range paths {
				v := values[i%len(values)]
				i++
				if v.kind == "null" && name == "c.toml" {
					continue
				}
				after, err := d.Set(path, v.value, v.kind)
				if err != nil {
					t.Fatalf("%q: %s: %v", doc.data, path, err)
				}
				c := pyCase{Name: name, Before: string(doc.data), After: string(after.Bytes()), Path: path, Change: path, Kind: v.kind}
				if old, ok := d.find(path); ok && v.kind != "str" && v.kind != "null" {
					n := old.end(d.root)
					c.Quoted = n.quote != 0 && readsAs(v.kind, n.text)
				}
				c.Change = strings.TrimSuffix(path, ".below")
				if err := enc.Encode(c); err != nil {
					t.Fatal(err)
				}
				sent++
			}
		}
	}
	cmd := exec.Command(py, "-c", pyCheck)
	cmd.Stdin = &in
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	for i, line := range lines[:len(lines)-1] {
		if i > 10 {
			break
		}
		t.Errorf("%s", line)
	}
	var read int
	if _, err := fmt.Sscanf(string(lines[len(lines)-1]), "read %d", &read); err != nil || read < sent/2 {
		t.Errorf("of %d documents Python says: %s", sent, lines[len(lines)-1])
	}
}
