package trainer

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sparkrun/configs"
	"sparkrun/internal/edit"
)

// document is a config file of the trainer. It is only ever read; changes are made
// to the text in memory and become a copy.
type document struct {
	form configForm
	// typed is the path as the command has it; path the file on this machine.
	typed, path string
	// word is the index of the word that names it, lead what stands in front of the
	// path in that word (--config=).
	word int
	lead string
	doc  *edit.Doc
	// companion marks a file that only has to agree with the trainer's settings.
	companion bool
}

// files are texts of files that do not exist yet, by path.
type files map[string][]byte

// readFile reads a file of the command, with those that do not exist yet on top.
func (c *command) readFile(path string) ([]byte, error) {
	if data, ok := c.files[path]; ok {
		return data, nil
	}
	at, err := c.root.For(path).Path(path)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return configs.ReadFile(at)
}

// there tells that the command has such a file.
func (c *command) there(path string) bool {
	if _, ok := c.files[path]; ok {
		return true
	}
	info, err := c.root.For(path).Stat(path)
	return err == nil && !info.IsDir()
}

// head returns up to n bytes from the start of a regular file of the command, nothing if
// it cannot be read.
func (c *command) head(path string, n int64) []byte { return c.root.For(path).Head(path, n) }

// open reads the document. The error is a sentence about the file.
func (d *document) open(c *command) error {
	if d.form.Append != "" && !strings.HasSuffix(d.typed, d.form.Append) {
		d.typed += d.form.Append
	}
	path, ok := c.place.HostPath(d.typed)
	if !ok {
		if c.place.Container != nil {
			return fmt.Errorf("%s lies inside the container, where no mount of the command reaches", d.typed)
		}
		return fmt.Errorf("%s is relative to a folder that is not known", d.typed)
	}
	if d.form.Form == "name" {
		path, d.typed = c.named(d.typed, path, d.form.Folders)
	}
	d.path = path
	data, err := c.readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading %s: %w", d.typed, fs.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", d.typed, err)
	}
	c.saw(path, data)
	if d.doc, err = edit.Parse(path, data); err != nil {
		return fmt.Errorf("%s: %w", d.typed, err)
	}
	return nil
}

// named looks a config's name up in the folders beside the trainer first, to which an
// extension is always added. It returns the file and the way to type it.
func (c *command) named(typed, path string, folders []string) (file, as string) {
	if filepath.IsAbs(typed) {
		return path, typed
	}
	beside := filepath.Dir(c.scriptFile())
	for _, dir := range folders {
		for _, ext := range []string{".json", ".jsonc", ".yaml", ".yml", ".toml"} {
			if try := filepath.Join(beside, dir, typed+ext); c.there(try) {
				return try, c.typedAs(try)
			}
		}
	}
	return path, typed
}

// typedAs is how a file of this machine is named in the command: relative to the
// trainer's folder where it lies below that.
func (c *command) typedAs(file string) string {
	if rel, err := filepath.Rel(c.place.Dir, file); c.place.Dir != "" && err == nil && filepath.IsLocal(rel) {
		return rel
	}
	if inner, ok := c.place.InnerPath(file); ok {
		return inner
	}
	return file
}

// scriptFile is the trainer's script on this machine; a file of the trainer's folder
// if it has none.
func (c *command) scriptFile() string {
	if c.place.Script != "" {
		if file, ok := c.place.HostPath(c.place.Script); ok {
			return file
		}
	}
	return filepath.Join(c.place.Dir, "x")
}

// get returns the entry for a key of a knob.
func (d *document) get(key string) (edit.Entry, bool) {
	for _, k := range []string{key, normalise(key)} {
		if e, ok := d.doc.Get(d.at(k)); ok {
			return e, true
		}
	}
	if d.form.Keys != "flat" {
		return edit.Entry{}, false
	}
	// Sections do not count: the last one that has the key holds.
	var found edit.Entry
	ok := false
	for _, e := range d.doc.Entries() {
		if _, last, cut := strings.Cut(e.Path, "."); cut && (last == key || last == normalise(key)) {
			found, ok = e, true
		}
	}
	return found, ok
}

// items are the values of the list at a path, joined by commas.
func (d *document) items(path string) string {
	var items []string
	for _, e := range d.doc.Entries() {
		if rest, ok := strings.CutPrefix(e.Path, path+"["); ok && e.Kind == edit.Scalar && strings.IndexByte(rest, ']') == len(rest)-1 {
			items = append(items, e.Value)
		}
	}
	return strings.Join(items, ",")
}

// at returns the path of a key inside the document.
func (d *document) at(key string) string {
	if d.form.Root == "" {
		return key
	}
	if d.form.RootOptional && d.doc != nil {
		if _, ok := d.doc.Get(d.form.Root); !ok {
			return key
		}
	}
	return d.form.Root + "." + key
}

// all returns the entries for a key, several where it has [*] in it.
func (d *document) all(key string) []edit.Entry {
	if !strings.Contains(key, "[*]") {
		if e, ok := d.get(key); ok {
			return []edit.Entry{e}
		}
		return nil
	}
	pattern := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(d.at(key)), regexp.QuoteMeta("[*]"), `\[[0-9]+\]`) + "$")
	var found []edit.Entry
	for _, e := range d.doc.Entries() {
		if pattern.MatchString(e.Path) {
			found = append(found, e)
		}
	}
	return found
}

// hasKeys says whether all keys are there.
func (d *document) hasKeys(keys []string) bool {
	for _, k := range keys {
		if _, ok := d.doc.Get(k); !ok && len(d.all(k)) == 0 {
			return false
		}
	}
	return len(keys) > 0
}

// wordsOf finds the words of the command that name a config of that form.
func (c *command) wordsOf(form configForm) []document {
	args := c.words[c.args:]
	var found []document
	add := func(word int, lead string) {
		typed := strings.TrimPrefix(c.words[word], lead)
		fits := form.Form == "flag" || form.Form == "name" || slices.Contains(form.Extensions, filepath.Ext(typed)) ||
			len(form.Extensions) == 0 && edit.Known(typed)
		if typed != "" && fits {
			found = append(found, document{form: form, typed: typed, word: word, lead: lead})
		}
	}
	switch form.Form {
	case "single":
		if len(args) == 1 && !strings.HasPrefix(args[0], "-") {
			add(c.args, "")
		}
	case "first":
		if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
			add(c.args, "")
		}
	case "positional", "name":
		for _, i := range c.positionals(form) {
			add(i, "")
		}
	case "flag":
		for i := c.args; i < len(c.words) && c.words[i] != "--"; i++ {
			word, value, inline := strings.Cut(c.words[i], "=")
			for _, f := range form.flags() {
				long, isLong := strings.CutPrefix(word, "--")
				if !(isLong && normalise(long) == normalise(f)) && !(len(f) == 1 && word == "-"+f) {
					continue
				}
				switch {
				case inline && !form.TwoWords && value != "":
					add(i, word+"=")
				case !inline && i+1 < len(c.words):
					add(i+1, "")
				}
			}
		}
		if n := len(found); n > 1 && form.Override != "dotted" {
			found = found[n-1:] // the last one wins
		}
	}
	return found
}

// positionals are the words that are no options and no values of options. Behind an
// option that the profile does not know a word counts as one.
func (c *command) positionals(form configForm) []int {
	takes := c.takes
	style := c.style
	if takes == nil {
		if style == "" {
			style = c.prof.Parser.Style
		}
		takes = c.prof.arguments(style, nil)
	}
	var found []int
	for i := c.args; i < len(c.words); i++ {
		w := c.words[i]
		switch {
		case w == "--":
			// What stands behind it is handed on, but for the file where that is missing.
			if len(found) == 0 && i+1 < len(c.words) {
				found = append(found, i+1)
			}
			return found
		case w == "" || w[0] != '-' || w == "-":
			found = append(found, i)
		case strings.Contains(w, "="):
		case takes.valued(w, form, style):
			if i+1 < len(c.words) && !strings.HasPrefix(c.words[i+1], "--") {
				i++
			}
		}
	}
	return found
}

// valued says whether an option takes the next word.
func (a *arguments) valued(word string, form configForm, style string) bool {
	if style == "fire" {
		return true // it takes the next word whatever the option is
	}
	bare := strings.TrimLeft(word, "-")
	if containsName(form.Valued, bare) {
		return true
	}
	name, negated, ok := a.resolve(word)
	if !strings.HasPrefix(word, "--") {
		name, ok = a.shorts[word]
		name, negated = normalise(name), false
	}
	return ok && !negated && a.knobs[name] && !a.bools[name]
}

// leftAlone says why nothing of the command is changed, "" if nothing speaks against
// it.
func (c *command) leftAlone() string {
	for i := c.args; i < len(c.words) && c.words[i] != "--"; i++ {
		flag, _, _ := strings.Cut(c.words[i], "=")
		for _, r := range c.prof.LeaveAlone {
			if strings.HasPrefix(flag, "--") && containsName(r.Flags, flag[2:]) {
				return flag + ": " + r.Why
			}
		}
	}
	return ""
}

// openConfigs finds and reads the config files that the command names, and the
// script's .args file.
func (c *command) openConfigs() {
	for _, form := range c.prof.Config {
		if c.style == "configurator" {
			break // its configs are Python, and read as such
		}
		if len(form.Text) > 0 && !mentions(c.text, form.Text) {
			continue
		}
		words := c.wordsOf(form)
		if len(words) > 1 && (form.Form == "positional" || form.Form == "name") {
			c.blind = "more than one config file is given: " + words[0].typed + " and " + words[1].typed
			c.config = words[0].typed
			continue
		}
		for _, d := range words {
			if slices.ContainsFunc(c.docs, func(o *document) bool { return o.word == d.word }) {
				continue
			}
			if err := d.open(c); err != nil {
				c.blind = err.Error()
				if c.config == "" {
					c.config = d.typed
				}
				continue
			}
			if c.config == "" {
				c.config = d.typed
			}
			c.docs = append(c.docs, &d)
		}
	}
	for _, d := range c.docs {
		if d.form.Override == "dotlist" && flagStyle(c.style) {
			// Key=value words override this form, and flags do not mix with it.
			c.found = readPairs(c.words, d.word+1)
			c.pairs = true
		}
	}
	if c.config == "" && c.style != "configurator" && len(c.words) > c.args {
		first := c.words[c.args]
		if first != "" && first[0] != '-' && edit.Known(first) && filepath.Ext(first) != ".args" && !strings.Contains(first, "=") {
			c.blind = first + " is given in a way that profile " + c.prof.Name + " does not know"
		}
	}
	if c.blind == "" && len(c.docs) == 0 && c.config == "" && slices.ContainsFunc(c.prof.Config, func(f configForm) bool { return f.Required }) {
		c.blind = c.prof.Name + " needs one, and which word of the command names it cannot be told"
	}
	if c.style == "hf" && c.place.Script != "" {
		c.readArgsFile()
	}
}

// readArgsFile reads SCRIPT.args, whose words HfArgumentParser puts before those
// of the command line.
func (c *command) readArgsFile() {
	if !c.proven || !mentions(c.text, []string{"HfArgumentParser("}) || c.file == "" {
		return
	}
	data := c.head(strings.TrimSuffix(c.file, filepath.Ext(c.file))+".args", edit.MaxSize)
	if data == nil {
		return
	}
	c.saw(strings.TrimSuffix(c.file, filepath.Ext(c.file))+".args", data)
	early := c.takes.read(strings.Fields(string(data)), 0)
	for i := range early {
		early[i].at = -1
	}
	c.found = append(early, c.found...)
}
