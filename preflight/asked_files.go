package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"sparkrun/internal/edit"
	"sparkrun/internal/job"
	"sparkrun/internal/pyread"
)

// Bounds of the files that are looked at: of one command all together, in one folder
// and below it, and of files that other files name.
const (
	maxAskedFiles = 64
	maxFolderDeep = 3
	maxNamedDeep  = 4
)

// files reads the config files of the command: the one that is known for such, those
// that were read to understand the command, those that a word names, and those that
// stand in them.
func (a *asking) files(words [][]string) {
	j := a.v.job
	var read []string
	for path := range j.Read {
		if edit.Known(path) {
			read = append(read, path)
		}
	}
	slices.Sort(read)
	if j.ConfigFile != "" {
		switch path, ok := a.place(j.ConfigFile, read); {
		case ok:
			a.config(path, true, 0)
		default:
			a.unread = append(a.unread, j.ConfigFile+": inside the container, where it cannot be seen")
		}
	}
	for _, path := range read {
		a.config(path, true, 0)
	}
	for _, list := range words {
		a.named(list, read)
	}
}

// place is where a file that the command names lies on this machine. Inside a container
// only those count that were found before, through a mount.
func (a *asking) place(name string, read []string) (string, bool) {
	if a.v.job.Container == nil {
		return a.v.abs(name), true
	}
	if slices.Contains(read, name) {
		return name, true
	}
	for _, path := range read {
		if filepath.Base(path) == filepath.Base(name) {
			return path, true
		}
	}
	return "", false
}

// named reads the files of settings that words name: the value of --config and its
// like, and a word with the extension of one.
func (a *asking) named(words []string, read []string) {
	for i, w := range words {
		name, value, inline := strings.Cut(w, "=")
		flag := flagName.MatchString(name) || inline && pairName.MatchString(name)
		switch {
		case !flag:
			// The value of a flag that is not known may be data: only one that no flag
			// stands in front of is taken for settings.
			behind := i > 0 && flagName.MatchString(words[i-1])
			switch {
			case behind:
			case yamlOrTOML(w):
				a.file(w, read)
			case edit.Known(w): // of JSON a data set may be made
				if path, ok := a.place(w, read); ok {
					a.config(path, false, 0)
				}
			}
		case !endsIn(plain(name), a.table.Files):
		case inline:
			a.file(value, read)
		case i+1 < len(words) && !looksLikeFlag(words[i+1]):
			a.file(words[i+1], read)
		}
	}
}

func yamlOrTOML(name string) bool {
	ext := strings.ToLower(filepath.Ext(name))
	return ext == ".yaml" || ext == ".yml" || ext == ".toml"
}

// file reads what a word names: a file of settings, or a folder of them. A value with
// neither the extension of one nor a folder behind it is a name (zero2, default).
func (a *asking) file(name string, read []string) {
	if name == "" || interpolated.MatchString(name) || strings.ContainsAny(name, "\x00\n") {
		return
	}
	path, ok := a.place(name, read)
	switch {
	case !ok && edit.Known(name):
		a.unread = append(a.unread, name+": inside the container, where it cannot be seen")
	case !ok:
	case edit.Known(name):
		a.config(path, true, 0)
	default:
		a.folder(path, 0)
	}
}

// folder reads every file of settings in a folder and below.
func (a *asking) folder(path string, deep int) {
	if deep > maxFolderDeep || len(a.seen) >= maxAskedFiles || a.folders >= maxAskedFiles {
		return
	}
	a.folders++
	names := a.v.root.names(path)
	slices.Sort(names)
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, "."):
		case edit.Known(name):
			a.config(filepath.Join(path, name), yamlOrTOML(name), 1)
		case filepath.Ext(name) == "":
			a.folder(filepath.Join(path, name), deep+1)
		}
	}
}

// config reads one file of settings. must says that it is one for certain, so that it is
// worth a word if it is not there or is large; another may be data, or be made later.
func (a *asking) config(path string, must bool, deep int) {
	if a.seen[path] || deep > maxNamedDeep || a.v.over != nil && a.v.over() {
		return
	}
	if len(a.seen) >= maxAskedFiles {
		if len(a.unread) == 0 || a.unread[len(a.unread)-1] != tooManyFiles {
			a.unread = append(a.unread, tooManyFiles)
		}
		return
	}
	a.seen[path] = true
	data, err := a.v.own(path)
	switch {
	case err != nil && !must && errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		a.unread = append(a.unread, a.display(path)+": "+reason(err))
		return
	case len(data) == 0:
		// A pipe without a writer reads like a file that was cut to nothing.
		a.unread = append(a.unread, a.display(path)+": empty, or no regular file")
		return
	case len(data) >= maxRead && !must:
		return
	case len(data) >= maxRead:
		a.unread = append(a.unread, fmt.Sprintf("%s: larger than %d KiB, too large for settings", a.display(path), maxRead>>10))
		return
	}
	if !must && strings.HasPrefix(strings.TrimSpace(string(data)), "[") {
		return // rows of data
	}
	a.opened = append(a.opened, path)
	doc, err := edit.Parse(path, data)
	if err != nil {
		a.unread = append(a.unread, a.display(path)+": "+err.Error())
		return
	}
	var more []string
	file := a.display(path)
	for _, s := range entriesOf(doc) {
		s.where = file + s.where
		s.from = job.FromConfig
		a.add(s)
		if !s.computed && edit.Known(s.value) && endsIn(plain(s.name), a.table.Files) {
			more = append(more, s.value)
		}
	}
	for _, name := range more {
		if a.v.job.Container != nil {
			continue
		}
		// Relative to the trainer's folder for most, to the file itself for some.
		inside := filepath.Join(filepath.Dir(path), name)
		if there, _ := a.v.root.exists(inside); there && !filepath.IsAbs(name) {
			a.config(inside, false, deep+1)
			continue
		}
		a.config(a.v.abs(name), true, deep+1)
	}
}

const tooManyFiles = "more config files than are looked at"

// reason is an error without the path, which stands in front of it.
func reason(err error) string {
	var pe *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file"
	case errors.Is(err, syscall.EISDIR):
		return "a folder, not a file"
	case errors.As(err, &pe):
		return pe.Err.Error()
	}
	return err.Error()
}

// entriesOf returns the values of a document; where is ":LINE". Lists of values are one
// setting.
func entriesOf(doc *edit.Doc) []setting {
	var out []setting
	list := map[string]int{}    // path of a list to its place in out
	items := map[int][]string{} // of such a place, joined at the end: a list may be long
	for _, e := range doc.Entries() {
		s := setting{name: e.Path, value: e.Value, where: fmt.Sprintf(":%d", e.Line), computed: interpolated.MatchString(e.Value)}
		switch e.Kind {
		case edit.Null:
			s.value = "null"
		case edit.List:
			list[e.Path] = len(out)
		case edit.Map:
			continue
		}
		if parent := e.Path[:max(0, strings.LastIndexByte(e.Path, '['))]; strings.HasSuffix(e.Path, "]") && e.Kind != edit.List {
			if i, ok := list[parent]; ok {
				items[i] = append(items[i], s.value)
				continue
			}
		}
		out = append(out, s)
	}
	for i, values := range items {
		out[i].value = strings.Join(values, ",")
	}
	return out
}

// script reads the constants in the text of the script.
func (a *asking) script() {
	j := a.v.job
	var paths []string
	for path := range j.Read {
		if path != "" && !edit.Known(path) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	if j.Script != "" && !j.Module && j.Container == nil {
		paths = append([]string{a.v.abs(j.Script)}, paths...)
	}
	for i, w := range j.Argv {
		// bash train.sh and ./train.sh: the words of the trainer stand there.
		shell := i > 0 && slices.Contains(shells, filepath.Base(j.Argv[i-1])) && !strings.HasPrefix(w, "-")
		if j.Container == nil && (strings.HasSuffix(w, ".sh") || shell) && !strings.ContainsAny(w, " \n") {
			paths = append(paths, a.v.abs(w))
		}
	}
	for _, path := range paths {
		if a.seen[path] || len(a.seen) >= maxAskedFiles || a.v.over != nil && a.v.over() {
			continue
		}
		a.seen[path] = true
		data, err := a.v.own(path)
		if err != nil {
			a.unread = append(a.unread, a.display(path)+": "+reason(err))
			continue
		}
		text := string(data)
		a.opened = append(a.opened, path)
		switch {
		case strings.HasSuffix(path, ".sh"), shebang(text):
			a.shellScript(path, text)
		case strings.Contains(text[:min(len(text), 1024)], "\x00"):
			// A program, not a script.
		default:
			a.python(path, text)
		}
	}
}

// shebang tells a shell script by its first line.
func shebang(text string) bool {
	first, _, _ := strings.Cut(text, "\n")
	interp, ok := strings.CutPrefix(first, "#!")
	if !ok {
		return false
	}
	return slices.ContainsFunc(strings.Fields(interp), func(w string) bool { return slices.Contains(shells, filepath.Base(w)) })
}

func (a *asking) shellScript(path, text string) {
	lines, err := shellLines(text)
	if err != nil {
		a.unread = append(a.unread, a.display(path)+": "+err.Error())
		return
	}
	for _, l := range lines {
		a.words(l.words, job.FromScript, func(_ string, at int) string { return fmt.Sprintf("%s:%d", a.display(path), l.lines[at]) })
		if a.v.job.Container == nil {
			a.named(l.words, nil)
		}
	}
}

func (a *asking) python(path, text string) {
	if len(text) > pyread.MaxSize {
		a.unread = append(a.unread, fmt.Sprintf("%s: only its first %d KiB are looked at", a.display(path), pyread.MaxSize>>10))
	}
	given := pyread.Read(text)
	a.imports = append(a.imports, given.Imports...)
	file := a.display(path)
	flag := ""
	for _, c := range given.Constants {
		name := c.Keyword
		if n := len(a.calls); c.Call != "" && (n == 0 || a.calls[n-1] != c.Call) {
			a.calls = append(a.calls, c.Call)
		}
		if strings.HasSuffix(c.Call, "add_argument") {
			// parser.add_argument("--name", default=value)
			switch {
			case isDigits(c.Keyword) && strings.HasPrefix(c.Value, "--"):
				flag = c.Value
				continue
			case c.Keyword != "default" || flag == "" || c.Value == "None":
				continue
			}
			name = flag
		} else if isDigits(name) {
			continue
		}
		s := setting{name: name, value: c.Value, from: job.FromScript, where: file + ":" + strconv.Itoa(c.Line)}
		switch {
		case c.Literal && c.Value == "None" && !c.Text:
			s.value = "null"
		case c.Literal:
		case len(c.Items) > 0:
			s.value = strings.Join(c.Items, ",")
		default:
			s.computed = true
		}
		if c.ValueLine > 0 {
			s.where = file + ":" + strconv.Itoa(c.ValueLine)
		}
		a.add(s)
	}
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
