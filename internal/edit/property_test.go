package edit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// leaf is a value that a generated document holds, spelled as Set would spell it, so
// that setting it again gives the bytes back.
type leaf struct{ path, value, kind string }

// writer draws a document.
type writer struct {
	t      *rapid.T
	b      strings.Builder
	nl     string
	step   string
	leaves []leaf
	maps   []string
	keys   int
}

func (w *writer) pick(label string, of ...string) string {
	return rapid.SampledFrom(of).Draw(w.t, label)
}

func (w *writer) n(label string, from, to int) int {
	return rapid.IntRange(from, to).Draw(w.t, label)
}

// key returns a name that is new in the document, so that no dotted path has two
// meanings.
func (w *writer) key() string {
	w.keys++
	return w.pick("key", "max_length", "batch-size", "a", "lr", "Train") + strconv.Itoa(w.keys)
}

func joinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// scalar draws a value and returns its text in a document.
func (w *writer) scalar(path string, quoted func(string) []string) string {
	l := leaf{path: path, kind: w.pick("kind", "int", "float", "bool", "str", "quoted int")}
	text := ""
	switch l.kind {
	case "int":
		l.value = strconv.Itoa(w.n("int", -5, 1<<20))
		text = l.value
	case "float":
		l.value = w.pick("float", "0.5", "1.0e-05", "2.0e+3", "-3.25")
		text = l.value
	case "bool":
		l.value = w.pick("bool", "true", "false")
		text = l.value
	case "str":
		l.value = w.pick("str", "bf16", "a b", "it's", `say "x" \n`, "x: y # z", "{no: map}", "1e-5", "yes", "über 😀", "- a", "")
		text = w.pick("quotes", quoted(l.value)...)
	case "quoted int":
		l.kind, l.value = "int", strconv.Itoa(w.n("int", 0, 4096))
		text = w.pick("quotes", quoted(l.value)...)
	}
	w.leaves = append(w.leaves, l)
	return text
}

func yamlQuotes(s string) []string {
	all := []string{yamlQuoted(s), "'" + strings.ReplaceAll(s, "'", "''") + "'"}
	if plainSafe(s) {
		all = append(all, s)
	}
	return all
}

// block writes a mapping of YAML in lines. Its first key stands where the text ends
// now if inline is set.
func (w *writer) block(path, indent string, depth int, inline bool) {
	w.maps = append(w.maps, path)
	for i := range w.n("keys", 1, 4) {
		for !inline && w.n("extra line", 0, 4) == 0 {
			w.b.WriteString(w.pick("extra", "", "# max_length: 1", "   # a: b") + w.nl)
		}
		if !inline || i > 0 {
			w.b.WriteString(indent)
		}
		inline = false
		key := w.key()
		at := joinPath(path, key)
		w.b.WriteString(w.pick("key quotes", key, key, `"`+key+`"`, "'"+key+"'") + w.pick("colon", ":", ":", " :"))
		form := w.pick("form", "scalar", "scalar", "scalar", "map", "list", "flow", "text", "quoted lines", "null")
		if depth > 3 && (form == "map" || form == "list") {
			form = "scalar"
		}
		end := w.pick("comment", "", "", "  # 4096", "\t# x: 'y") + w.nl
		switch form {
		case "scalar":
			w.b.WriteString(w.pick("gap", " ", "   ", "\t") + w.scalar(at, yamlQuotes) + end)
		case "map":
			w.b.WriteString(end)
			w.block(at, indent+w.step, depth+1, false)
		case "list":
			w.b.WriteString(end)
			dash := indent + w.pick("dash", "", w.step)
			for j := range w.n("items", 1, 3) {
				w.b.WriteString(dash + "-" + w.pick("after dash", " ", "   "))
				if w.n("item is a map", 0, 1) == 0 {
					w.b.WriteString(w.scalar(fmt.Sprintf("%s[%d]", at, j), yamlQuotes) + w.nl)
					continue
				}
				text := w.b.String()
				column := len(text) - strings.LastIndexByte(text, '\n') - 1
				if !strings.Contains(text, "\n") {
					column = len(strings.TrimPrefix(text, "\ufeff"))
				}
				w.block(fmt.Sprintf("%s[%d]", at, j), strings.Repeat(" ", column), depth+1, true)
			}
		case "flow":
			w.b.WriteString(" ")
			w.flow(at, depth+1, yamlQuotes)
			w.b.WriteString(end)
		case "text":
			w.b.WriteString(w.pick("style", " |", " >-", " |+") + w.nl)
			for range w.n("lines", 1, 3) {
				w.b.WriteString(indent + w.step + w.pick("line", "max_length1: 2", "# no comment", "a: [", "x") + w.nl)
			}
		case "quoted lines":
			w.b.WriteString(` "a` + w.nl + indent + w.step + ` b: 1 # c"` + end)
		case "null":
			w.b.WriteString(w.pick("null", "", " ~", " null") + end)
			w.leaves = append(w.leaves, leaf{path: at, kind: "null"})
		}
	}
}

// flow writes a value in brackets, for YAML and JSON.
func (w *writer) flow(path string, depth int, quoted func(string) []string) {
	asJSON := quoted("x")[0] == `"x"` && len(quoted("x")) == 1
	gap := func() string {
		if asJSON {
			return w.pick("space", "", " ", w.nl+strings.Repeat(w.step, depth), "\t")
		}
		return w.pick("space", "", " ")
	}
	value := func(at string) {
		if depth < 4 && w.n("deeper", 0, 3) == 0 {
			w.flow(at, depth+1, quoted)
		} else {
			w.b.WriteString(w.scalar(at, quoted))
		}
	}
	if depth > 1 && w.n("list", 0, 2) == 0 {
		w.b.WriteString("[" + gap())
		n := w.n("items", 0, 3)
		for i := range n {
			value(fmt.Sprintf("%s[%d]", path, i))
			if w.b.WriteString(gap()); i < n-1 {
				w.b.WriteString("," + gap())
			}
		}
		w.b.WriteString("]")
		return
	}
	w.maps = append(w.maps, path)
	w.b.WriteString("{" + gap())
	n := w.n("members", 0, 3)
	for i := range n {
		key := w.key()
		colon := w.pick("colon", ": ", ":  ")
		if asJSON {
			key, colon = `"`+key+`"`, w.pick("colon", ":", ": ", " : ", ":"+w.nl)
		}
		w.b.WriteString(key + colon)
		value(joinPath(path, strings.Trim(key, `"`)))
		if w.b.WriteString(gap()); i < n-1 {
			w.b.WriteString("," + gap())
		}
	}
	w.b.WriteString("}")
}

func newWriter(t *rapid.T) *writer {
	w := &writer{t: t}
	w.nl = w.pick("line end", "\n", "\n", "\r\n")
	w.step = w.pick("step", "  ", "    ", " ")
	return w
}

func (w *writer) text() []byte {
	text := w.b.String()
	if w.n("last line break", 0, 2) == 0 {
		text = strings.TrimSuffix(text, w.nl)
	}
	return []byte(w.pick("bom", "", "", "\ufeff") + text)
}

func drawYAML(t *rapid.T) (*writer, []byte) {
	w := newWriter(t)
	if w.n("braces", 0, 6) == 0 {
		w.flow("", 0, yamlQuotes)
		w.b.WriteString(w.nl)
	} else {
		w.b.WriteString(w.pick("head", "", "", "# head"+w.nl, "---"+w.nl))
		w.block("", w.pick("indent", "", "", "  "), 0, false)
		w.b.WriteString(w.pick("tail", "", "", "# end"+w.nl, w.nl, "..."+w.nl))
	}
	return w, w.text()
}

func drawJSON(t *rapid.T) (*writer, []byte) {
	w := newWriter(t)
	w.flow("", 0, func(s string) []string { return []string{jsonString(s)} })
	w.b.WriteString(w.nl)
	return w, w.text()
}

func drawTOML(t *rapid.T) (*writer, []byte) {
	w := newWriter(t)
	quoted := func(s string) []string {
		all := []string{tomlString(s)}
		if !strings.Contains(s, "'") {
			all = append(all, "'"+s+"'")
		}
		return all
	}
	lines := func(path, indent string) {
		for range w.n("keys", 0, 4) {
			key := w.key()
			at := joinPath(path, key)
			w.b.WriteString(indent + w.pick("key quotes", key, `"`+key+`"`) + w.pick("equals", " = ", "=", "    = "))
			switch w.pick("form", "scalar", "scalar", "list", "table", "lines") {
			case "scalar":
				w.b.WriteString(w.scalar(at, quoted))
			case "list":
				w.b.WriteString("[" + w.scalar(at+"[0]", quoted) + "," + w.pick("space", "", w.nl, " # c"+w.nl) + w.scalar(at+"[1]", quoted) + "]")
			case "table":
				inner := w.key()
				w.maps = append(w.maps, at)
				w.b.WriteString("{" + inner + " = " + w.scalar(joinPath(at, inner), quoted) + "}")
			case "lines":
				w.b.WriteString(`"""` + w.nl + "[a]" + w.nl + `b = 1"""`)
			}
			w.b.WriteString(w.pick("comment", "", " # [x]") + w.nl)
		}
	}
	w.maps = append(w.maps, "")
	lines("", "")
	for range w.n("tables", 0, 3) {
		name := w.key()
		w.b.WriteString(w.pick("blank", "", w.nl, "# c"+w.nl))
		switch w.pick("table", "one", "array", "implied") {
		case "one":
			w.b.WriteString("[" + name + "]" + w.nl)
			w.maps = append(w.maps, name)
			lines(name, "")
		case "implied":
			sub := w.key()
			w.b.WriteString("[" + name + "." + sub + "]" + w.nl)
			w.maps = append(w.maps, name, name+"."+sub)
			lines(name+"."+sub, "")
		case "array":
			for i := range w.n("items", 1, 2) {
				at := fmt.Sprintf("%s[%d]", name, i)
				w.b.WriteString("[[" + name + "]]" + w.nl)
				w.maps = append(w.maps, at)
				lines(at, "  ")
				for j := range w.n("subitems", 0, 2) {
					w.b.WriteString("  [[" + name + ".subsets]]" + w.nl)
					sub := fmt.Sprintf("%s.subsets[%d]", at, j)
					w.maps = append(w.maps, sub)
					lines(sub, "  ")
				}
			}
		}
	}
	return w, w.text()
}

// decode reads a document with a library, independent of this package's reading.
func decode(name string, data []byte) (v any, err error) {
	data = bytes.TrimPrefix(data, bom)
	switch {
	case strings.HasSuffix(name, "yaml"):
		err = yaml.Unmarshal(data, &v)
		if v == nil {
			v = map[string]any{}
		}
	case strings.HasSuffix(name, "json"):
		err = json.Unmarshal(data, &v)
	default:
		m := map[string]any{}
		err = toml.Unmarshal(data, &m)
		v = m
	}
	return v, err
}

// changes lists the paths at which two decoded documents differ; those of keys that
// one of them lacks end there.
func changes(a, b any, path string) []string {
	ma, aok := a.(map[string]any)
	mb, bok := b.(map[string]any)
	if aok && bok {
		keys := map[string]bool{}
		for k := range ma {
			keys[k] = true
		}
		for k := range mb {
			keys[k] = true
		}
		var all []string
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			va, ina := ma[k]
			vb, inb := mb[k]
			if !ina || !inb {
				all = append(all, joinPath(path, k))
			} else {
				all = append(all, changes(va, vb, joinPath(path, k))...)
			}
		}
		return all
	}
	la, aok := a.([]any)
	lb, bok := b.([]any)
	if aok && bok && len(la) == len(lb) {
		var all []string
		for i := range la {
			all = append(all, changes(la[i], lb[i], fmt.Sprintf("%s[%d]", path, i))...)
		}
		return all
	}
	if reflect.DeepEqual(a, b) {
		return nil
	}
	return []string{path}
}

// checkProperties draws a document, changes one value and one missing key, and takes
// both back.
func checkProperties(t *testing.T, name string, draw func(*rapid.T) (*writer, []byte)) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		w, data := draw(t)
		before, err := decode(name, data)
		if err != nil {
			t.Fatalf("the generator wrote %q: %v", data, err)
		}
		d, err := Parse(name, data)
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		for _, l := range w.leaves {
			if e, ok := d.Get(l.path); !ok || e.Value != l.value {
				t.Fatalf("%q: %s is %v, %v, want %q", data, l.path, e, ok, l.value)
			}
		}
		if len(w.leaves) > 0 {
			l := rapid.SampledFrom(w.leaves).Draw(t, "leaf")
			value := "7777"
			kind := "int"
			if l.kind == "str" {
				kind = "str"
				value = rapid.SampledFrom([]string{"new-value", "it's: \"new\" #1"}).Draw(t, "value")
			}
			after, err := d.Set(l.path, value, kind)
			if err != nil {
				t.Fatalf("%q: %s: %v", data, l.path, err)
			}
			now, err := decode(name, after.Bytes())
			if err != nil {
				t.Fatalf("%q became %q: %v", data, after.Bytes(), err)
			}
			if got := changes(before, now, ""); !slices.Equal(got, []string{l.path}) {
				t.Fatalf("%q became %q: %v changed, want %s", data, after.Bytes(), got, l.path)
			}
			if e, _ := after.Get(l.path); e.Value != value {
				t.Fatalf("%q became %q: %s is %v", data, after.Bytes(), l.path, e)
			}
			back, err := after.Set(l.path, l.value, l.kind)
			if l.kind == "null" || kind == "str" && value != "new-value" {
				return // null has several spellings, and some values need quotes
			}
			if err != nil || !bytes.Equal(back.Bytes(), data) {
				t.Fatalf("%q became %q and then %q, %v", data, after.Bytes(), back.Bytes(), err)
			}
		}
		if len(w.maps) > 0 {
			at := rapid.SampledFrom(w.maps).Draw(t, "map")
			first := joinPath(at, "added")
			path := first
			if rapid.Bool().Draw(t, "with a parent") {
				path += ".below"
			}
			after, err := d.Set(path, "true", "bool")
			if err != nil {
				t.Fatalf("%q: adding %s: %v", data, path, err)
			}
			now, err := decode(name, after.Bytes())
			if err != nil {
				t.Fatalf("%q became %q: %v", data, after.Bytes(), err)
			}
			if got := changes(before, now, ""); !slices.Equal(got, []string{first}) {
				t.Fatalf("%q became %q: %v changed, want %s", data, after.Bytes(), got, first)
			}
			if missing := lost(data, after.Bytes()); missing {
				t.Fatalf("%q became %q: bytes are lost", data, after.Bytes())
			}
			if strings.HasSuffix(name, "toml") && (path != first || bytes.Count(after.Bytes(), []byte("[")) > bytes.Count(data, []byte("["))) {
				return // the header of a table stays
			}
			back, err := after.Remove(first)
			if err != nil {
				t.Fatalf("%q: removing %s: %v", after.Bytes(), first, err)
			}
			if !bytes.Equal(squeeze(back.Bytes()), squeeze(data)) {
				t.Fatalf("%q became %q and then %q", data, after.Bytes(), back.Bytes())
			}
		}
	})
}

// lost says whether after is anything but before with one stretch put in.
func lost(before, after []byte) bool {
	head := 0
	for head < len(before) && head < len(after) && before[head] == after[head] {
		head++
	}
	tail := 0
	for tail < len(before)-head && tail < len(after)-head && before[len(before)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	return head+tail < len(before)
}

// squeeze takes out white space inside empty brackets, which removing the only key
// does not give back.
func squeeze(data []byte) []byte {
	for _, b := range []string{"{}", "[]"} {
		for i := 0; ; {
			open := bytes.IndexByte(data[i:], b[0])
			if open < 0 {
				break
			}
			i += open + 1
			rest := bytes.TrimLeft(data[i:], " \t\r\n")
			if len(rest) > 0 && rest[0] == b[1] {
				data = append(bytes.Clone(data[:i]), rest...)
			}
		}
	}
	return data
}

func TestYAMLProperties(t *testing.T) {
	t.Parallel()
	checkProperties(t, "c.yaml", drawYAML)
}

func TestJSONProperties(t *testing.T) {
	t.Parallel()
	checkProperties(t, "c.json", drawJSON)
}

func TestTOMLProperties(t *testing.T) {
	t.Parallel()
	checkProperties(t, "c.toml", drawTOML)
}

// TestYAMLSharedProperties draws documents full of anchors, aliases and merge keys: a
// change is refused or the only one.
func TestYAMLSharedProperties(t *testing.T) {
	t.Parallel()
	done, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		w := &writer{t: t}
		var scalars, mappings []string
		for i := range w.n("keys", 2, 6) {
			key := w.key()
			anchor := ""
			if w.n("anchor", 0, 1) == 0 {
				anchor = fmt.Sprintf("&x%d ", i)
			}
			form := w.pick("form", "scalar", "map", "flow", "alias", "alias of a map", "merge")
			switch {
			case form == "alias" && len(scalars) > 0:
				fmt.Fprintf(&b, "%s: *%s\n", key, w.pick("alias", scalars...))
				continue
			case form == "alias of a map" && len(mappings) > 0:
				fmt.Fprintf(&b, "%s: *%s\n", key, w.pick("alias", mappings...))
				continue
			case form == "merge" && len(mappings) > 0:
				fmt.Fprintf(&b, "%s: %s\n  <<: *%s\n  in: %d\n", key, anchor, w.pick("alias", mappings...), i)
			case form == "map":
				fmt.Fprintf(&b, "%s: %s\n  in: %d # c\n  more: {x: 1}\n", key, anchor, i)
			case form == "flow":
				fmt.Fprintf(&b, "%s: %s{in: %d, more: [1, 2]}\n", key, anchor, i)
			default:
				fmt.Fprintf(&b, "%s: %s%d\n", key, anchor, i)
				if anchor != "" {
					scalars = append(scalars, strings.Trim(anchor, "& "))
				}
				continue
			}
			if anchor != "" {
				mappings = append(mappings, strings.Trim(anchor, "& "))
			}
		}
		data := []byte(b.String())
		before, err := decode("c.yaml", data)
		if err != nil {
			t.Fatalf("the generator wrote %q: %v", data, err)
		}
		d, err := Parse("c.yaml", data)
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		for _, e := range d.Entries() {
			path := e.Path
			if e.Kind == Map {
				path += ".added"
			}
			after, err := d.Set(path, "7777", "int")
			if err != nil {
				if e.Kind == Scalar && !e.Shared {
					t.Fatalf("%q: %s: %v", data, path, err)
				}
				refused++
				continue
			}
			done++
			now, err := decode("c.yaml", after.Bytes())
			if err != nil {
				t.Fatalf("%q became %q: %v", data, after.Bytes(), err)
			}
			if got := changes(before, now, ""); !slices.Equal(got, []string{path}) {
				t.Fatalf("%q became %q: %v changed, want %s", data, after.Bytes(), got, path)
			}
		}
	})
	if done == 0 || refused == 0 {
		t.Errorf("%d changes, %d refused: the documents are not what they should be", done, refused)
	}
}

// FuzzSet gives hostile text to every format: nothing panics, and what is changed is
// changed alone.
func FuzzSet(f *testing.F) {
	for _, seed := range []string{
		"a: 1\nn: 4096 # c\n", "{a: b, n: '1'}", "n: *x\n", "? n\n: 1\n", "n: 1\r\nb: |\r\n  x\r\n", "n: é\n", "a:\n  n: 1\n", "b: &b {n: 1}\n<<: *b\n",
		`{"a": [1, {"n": 2}], "n": "x"}`, `{"n":1,"n":2}`, "{\"a\":1\n}", "[a]\nn = 1\n[[b]]\n  n = '''x'''\n", "--n 4 --a=b c", kohya,
	} {
		f.Add([]byte(seed), "n")
	}
	f.Fuzz(func(t *testing.T, data []byte, path string) {
		for _, name := range []string{"c.yaml", "c.json", "c.toml", "c.args"} {
			d, err := Parse(name, data)
			if err != nil {
				continue
			}
			for _, e := range d.Entries() {
				if e.Line < 1 || e.Line > 1+bytes.Count(data, []byte("\n"))+bytes.Count(data, []byte("\r")) && name != "c.yaml" {
					t.Fatalf("%s %q: line %d", name, data, e.Line)
				}
			}
			if after, err := d.Remove(path); err == nil {
				if _, ok := after.Get(path); ok {
					t.Fatalf("%s %q: %s is still in %q", name, data, path, after.Bytes())
				}
			}
			after, err := d.Set(path, "2048", "int")
			if err != nil {
				continue
			}
			if e, ok := after.Get(path); !ok || e.Value != "2048" {
				t.Fatalf("%s %q became %q: %s is %v", name, data, after.Bytes(), path, e)
			}
			before, err := decode(name, data)
			if err != nil || name == "c.args" {
				continue // duplicate keys and the like
			}
			now, err := decode(name, after.Bytes())
			if err != nil {
				t.Fatalf("%s %q became %q: %v", name, data, after.Bytes(), err)
			}
			if got := changes(before, now, ""); len(got) > 1 {
				t.Fatalf("%s %q became %q: %v changed", name, data, after.Bytes(), got)
			}
		}
	})
}
