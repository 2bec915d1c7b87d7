package place

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"sparkrun/internal/lazyre"
)

var dialects = map[string]syntax.LangVariant{
	"bash":  syntax.LangBash,
	"posix": syntax.LangPOSIX,
	"zsh":   syntax.LangZsh,
	"mksh":  syntax.LangMirBSDKorn,
}

// shell reads a shell's options and, with -c, the command in its text.
func (f *finder) shell(s *shellWord, words []string) {
	i, command, login := 1, false, false
	for ; i < len(words); i++ {
		w := words[i]
		if w == "--" || w == "-" {
			i++
			break
		}
		if len(w) < 2 || (w[0] != '-' && w[0] != '+') {
			break
		}
		if strings.HasPrefix(w, "--") {
			name, _, inline := strings.Cut(w, "=")
			switch {
			case slices.Contains(s.Plain, name):
				login = login || name == "--login"
			case slices.Contains(s.Value, name) && !inline:
				i++
			default:
				f.p.Launchers = append(f.p.Launchers, s.Name)
				f.unsure(words, "cannot tell where the trainer starts: option %s of %s is not known", w, s.Name)
				return
			}
			continue
		}
		more := 0
		for _, c := range w[1:] {
			switch {
			case c == 'c' && w[0] == '-':
				command = true
			case c == 'o', c == 'O' && s.Dialect == "bash":
				more++
			case c == 'l', c == 'i':
				login = true
			case strings.ContainsRune(s.Letters, c):
			default:
				f.p.Launchers = append(f.p.Launchers, s.Name)
				f.unsure(words, "cannot tell where the trainer starts: option %s of %s is not known", w, s.Name)
				return
			}
		}
		i += more
	}
	if !command || i >= len(words) {
		f.p.Launchers = append(f.p.Launchers, s.Name)
		switch {
		case command:
			f.unsure(words, "cannot tell where the trainer starts: option -c of %s has no value", s.Name)
		case i >= len(words):
			f.opaque(words, "%s reads its commands from standard input: what it starts is not seen", s.Name)
		default:
			f.opaque(words, "%s is a shell script: what it starts is not seen", words[i])
			f.scriptAdvice(words[i])
			f.p.ShellFile, f.p.shellHead, f.p.shellArgs = words[i], words[:i], words[i+1:]
		}
		return
	}
	text, why := parseShell(words[i], dialects[s.Dialect])
	if why != "" {
		f.p.Launchers = append(f.p.Launchers, s.Name)
		f.opaque(words, "the text of %s -c is left alone: %s", s.Name, why)
		return
	}
	inner := text.words()
	if base := filepath.Base(inner[0]); slices.Contains(f.t.NoTrainers, base) {
		f.p.Launchers = append(f.p.Launchers, s.Name)
		f.opaque(words, "the text of %s -c is left alone: its last command is %s, and only the last one can be changed", s.Name, base)
		return
	}
	if login {
		// Its start files set PATH as they like.
		f.p.first, f.p.OtherPath = "", true
	}
	l := layer{
		name: s.Name, head: words[:i], tail: words[i+1:], text: text,
		way: wayShell, at: i, typed: map[string]string{},
	}
	f.note(text.before)
	f.earlier(text.before, &l)
	for _, a := range text.assigns {
		f.p.set(a[0], a[1])
		l.typed[a[0]] = a[1]
		l.unclear = slices.DeleteFunc(l.unclear, func(n string) bool { return n == a[0] })
	}
	f.push(l)
	f.peel(inner)
}

// Reading is the whole command with the text of its ShellFile in place of the script, as
// sh -c would be given it: what a look at the script takes for what it starts. It is not
// ok for other commands.
func (p *Place) Reading(text string) (argv []string, ok bool) {
	if p.ShellFile == "" || p.Unsure != "" || strings.ContainsRune(text, 0) {
		return nil, false
	}
	// Scripts hand on what they are given, as a rule all of it in one place.
	args := make([]string, len(p.shellArgs))
	for i, w := range p.shellArgs {
		args[i] = quote(w)
	}
	text = strings.ReplaceAll(text, `"$@"`, strings.Join(args, " "))
	words := append(slices.Clone(p.shellHead), "-c", text)
	for i := len(p.layers) - 1; i >= 0; i-- {
		var err error
		if words, err = p.layers[i].around(words, addition{}); err != nil {
			return nil, false
		}
	}
	return words, true
}

// scriptAdvice says how the settings of a training in a shell script become known.
func (f *finder) scriptAdvice(file string) {
	f.p.Notes = append(f.p.Notes, fmt.Sprintf("nothing in %s is read: to have the settings of what it starts known, put sparkrun -- inside it, in front of the trainer", file))
}

// earlier applies what the commands in front of the last one do to folder,
// environment and PATH.
func (f *finder) earlier(stmts []*syntax.Stmt, l *layer) {
	for _, st := range stmts {
		if st.Background || st.Coprocess || st.Disown {
			continue
		}
		switch cmd := st.Cmd.(type) {
		case *syntax.BinaryCmd:
			if cmd.Op == syntax.OrStmt && !st.Negated && leaves(cmd.Y) {
				f.earlier([]*syntax.Stmt{cmd.X}, l) // what comes later runs only if it went well
			} else if cmd.Op == syntax.AndStmt && !st.Negated {
				f.earlier([]*syntax.Stmt{cmd.X, cmd.Y}, l)
			} else {
				f.doubt(cmd, l)
			}
		case *syntax.Subshell, nil:
		case *syntax.DeclClause:
			f.declare(cmd, l)
		case *syntax.CallExpr:
			f.call(cmd, l)
		default:
			f.doubt(cmd, l)
		}
	}
}

// leaves says whether a command ends the shell.
func leaves(st *syntax.Stmt) bool {
	call, ok := st.Cmd.(*syntax.CallExpr)
	if !ok || st.Background || st.Negated || len(call.Args) == 0 {
		return false
	}
	name, _ := literal(call.Args[0])
	return name == "exit" || name == "return"
}

// call applies one simple command.
func (f *finder) call(cmd *syntax.CallExpr, l *layer) {
	if len(cmd.Args) == 0 {
		// A variable of the shell; the trainer gets it if it was exported before.
		for _, a := range cmd.Assigns {
			f.assign(a, l, false)
		}
		return
	}
	args := cmd.Args
	if args[0].Lit() == "[" {
		return // a test, whose name looks like a pattern
	}
	for len(args) > 1 {
		// command cd and builtin cd are cd.
		if v, _ := literal(args[0]); v != "command" && v != "builtin" {
			break
		}
		if v, ok := literal(args[1]); ok && strings.HasPrefix(v, "-") {
			break // command -v and its kin start nothing
		}
		args = args[1:]
	}
	words := make([]string, len(args))
	for i, w := range args {
		v, ok := literal(w)
		if !ok && i == 0 {
			f.doubt(cmd, l)
			return
		}
		words[i] = v
	}
	// arg is the last argument, "" if it is not known.
	arg := ""
	if n := len(words); n > 1 {
		arg, _ = f.known(args[n-1])
	}
	p := f.p
	switch words[0] {
	case "cd", "pushd":
		switch {
		case len(words) == 1 && f.home() != "":
			f.cd(f.home(), false)
		case arg == "" || arg == "-" || strings.HasPrefix(arg, "+"):
			f.lost()
		default:
			f.cd(arg, slices.Contains(words[1:len(words)-1], "-P"))
		}
	case "popd":
		f.lost()
	case "export":
		f.exportWords(args[1:], l)
	case "unset":
		for _, name := range words[1:] {
			if !strings.HasPrefix(name, "-") {
				p.unset(name)
				l.gone = append(l.gone, name)
			}
		}
	case "source", ".":
		bin := ""
		if filepath.Base(arg) == "activate" && p.Container == nil {
			bin = f.pythonIn(filepath.Dir(filepath.Dir(arg)))
		}
		p.first, p.OtherPath = bin, bin == ""
		if f.mayMove(arg) {
			f.lost()
		}
	case "conda", "mamba", "micromamba":
		if len(words) > 2 && words[1] == "activate" {
			bin := ""
			if p.Container == nil && arg != "" {
				bin = f.condaEnv(words[0], arg)
			}
			p.first, p.OtherPath = bin, bin == ""
		}
	case "eval":
		p.first, p.OtherPath = "", true
		if !f.hook(args[1:]) {
			f.lost()
		}
	case "module", "pyenv", "use", "spack", "ml":
		p.first, p.OtherPath = "", true
	}
}

// mayMove says whether a file that the shell takes its commands from may change the
// folder. Those of environments do not; of another its text tells, if it is at hand.
func (f *finder) mayMove(file string) bool {
	if slices.Contains(f.t.Sourced, filepath.Base(file)) {
		return false
	}
	host, ok := f.p.HostPath(file)
	if !ok || file == "" {
		return true
	}
	text := f.p.root.For(host).Head(host, maxProject)
	return text == nil || movesFolder.Match(shellComment.ReplaceAll(text, nil))
}

// shellComment is a line of a shell's text that is nothing but a comment.
var shellComment = lazyre.New(`(?m)^[ \t]*#.*$`)

// movesFolder finds words of a shell's text that may change the folder, or whose own
// text is not at hand.
var movesFolder = lazyre.New(`(?m)(^|[^\w./$-])\\?(cd|pushd|popd|eval|source)\s|(^|[;&|]|\bthen|\bdo)\s*\.\s`)

// hook says whether eval is given what a program prints for the shell to set its
// variables: $(conda shell.bash hook).
func (f *finder) hook(args []*syntax.Word) bool {
	for _, w := range args {
		ok := false
		syntax.Walk(w, func(n syntax.Node) bool {
			sub, is := n.(*syntax.CmdSubst)
			if !is || len(sub.Stmts) != 1 {
				return true
			}
			if call, is := sub.Stmts[0].Cmd.(*syntax.CallExpr); is && len(call.Args) > 0 {
				name, known := f.known(call.Args[0])
				ok = known && slices.Contains(f.t.Hooks, filepath.Base(name))
			}
			return false
		})
		if !ok {
			return false
		}
	}
	return len(args) > 0
}

// declare applies export NAME=value.
func (f *finder) declare(cmd *syntax.DeclClause, l *layer) {
	if cmd.Variant.Value != "export" && cmd.Variant.Value != "declare" && cmd.Variant.Value != "typeset" {
		return
	}
	for _, a := range cmd.Args {
		f.assign(a, l, cmd.Variant.Value == "export")
	}
}

// assign applies one assignment; without export only a variable that is already
// in the environment reaches the trainer.
func (f *finder) assign(a *syntax.Assign, l *layer, export bool) {
	if a.Name == nil || a.Naked {
		return
	}
	name := a.Name.Value
	if !export {
		if _, there := f.around()[name]; !there {
			return
		}
	}
	value, ok := "", a.Array == nil && a.Index == nil && !a.Append
	if ok && a.Value != nil {
		value, ok = f.assigned(name, a.Value)
	}
	if !ok {
		f.unclear(name, a.Value, l)
		return
	}
	f.export(name, value, l)
}

// assigned is the value of an assignment, with variables filled in whose values are known.
// What stands in PYTHONPATH must be known to the letter: ours is put before it.
func (f *finder) assigned(name string, w *syntax.Word) (string, bool) {
	if name == pythonPath {
		return literal(w)
	}
	return f.known(w)
}

// exportWords applies export where the parser takes its words for arguments.
func (f *finder) exportWords(args []*syntax.Word, l *layer) {
	for _, w := range args {
		text, ok := literal(w)
		if !ok && !mentions(w, pythonPath) {
			text, ok = f.known(w)
		}
		name, value, cut := strings.Cut(text, "=")
		switch {
		case ok && cut:
			f.export(name, value, l)
		case !ok && len(w.Parts) > 0:
			if lit, isLit := w.Parts[0].(*syntax.Lit); isLit {
				name, _, _ := strings.Cut(lit.Value, "=")
				f.unclear(name, w, l)
			}
		}
	}
}

func (f *finder) export(name, value string, l *layer) {
	f.p.set(name, value)
	l.typed[name] = value
	l.unclear = slices.DeleteFunc(l.unclear, func(n string) bool { return n == name })
	if name == "PATH" {
		f.p.first = ""
	}
}

// unclear notes that a variable has a value that is not known.
func (f *finder) unclear(name string, value *syntax.Word, l *layer) {
	if value == nil || !mentions(value, name) {
		delete(f.p.Set, name)
		f.p.clearUp(name)
		f.p.Unclear = append(f.p.Unclear, name)
	}
	delete(l.typed, name)
	switch {
	case name == "PATH":
		f.p.first, f.p.OtherPath = "", true
	case name == pythonPath && value != nil && mentions(value, pythonPath):
		// PYTHONPATH=/x:$PYTHONPATH keeps what stands there.
	default:
		l.unclear = append(l.unclear, name)
	}
}

// known returns the text of a word whose variables have values that are known:
// those of HOME, PWD and the environment, outside of containers.
func (f *finder) known(w *syntax.Word) (string, bool) {
	if text, ok := literal(w); ok {
		return text, true
	}
	if f.p.Container != nil {
		return "", false
	}
	var b strings.Builder
	for i, part := range w.Parts {
		switch x := part.(type) {
		case *syntax.Lit:
			text := x.Value
			if rest, ok := strings.CutPrefix(text, "~"); ok && i == 0 && (rest == "" || rest[0] == '/') {
				b.WriteString(f.home())
				text = rest
			}
			text, ok := unescape(text)
			if !ok {
				return "", false
			}
			b.WriteString(text)
		case *syntax.DblQuoted:
			for _, in := range x.Parts {
				text, ok := f.simple(in)
				if !ok {
					return "", false
				}
				b.WriteString(text)
			}
		case *syntax.SglQuoted:
			text, ok := single(x)
			if !ok {
				return "", false
			}
			b.WriteString(text)
		default:
			text, ok := f.simple(part)
			if !ok || strings.ContainsAny(text, " \t\n*?[") {
				return "", false
			}
			b.WriteString(text)
		}
	}
	return b.String(), b.Len() > 0
}

// simple returns the value of a plain $NAME, or of text within double quotes.
func (f *finder) simple(part syntax.WordPart) (string, bool) {
	switch x := part.(type) {
	case *syntax.Lit:
		return unescapeDouble(x.Value), true
	case *syntax.ParamExp:
		if x.Param == nil || !plainParam(x) {
			return "", false
		}
		v, ok := f.around()[x.Param.Value]
		switch name := x.Param.Value; {
		case name == "PWD":
			return f.p.Dir, f.p.Dir != ""
		case name == "PATH" && f.p.OtherPath, slices.Contains(f.p.Unclear, name):
			return "", false
		case name == "PATH" && f.p.first != "" && v != "":
			v = f.p.first + string(filepath.ListSeparator) + v // of an environment that is switched on
		}
		return v, ok && v != ""
	}
	return "", false
}

func (f *finder) home() string {
	if f.p.Container != nil {
		return ""
	}
	return f.around()["HOME"]
}

// mentions says whether a word expands that variable.
func mentions(w *syntax.Word, name string) bool {
	found := false
	syntax.Walk(w, func(n syntax.Node) bool {
		if e, ok := n.(*syntax.ParamExp); ok && e.Param != nil && e.Param.Value == name {
			found = true
		}
		return true
	})
	return found
}

// doubt gives up folder or PATH where a command that is not simple may change
// them.
func (f *finder) doubt(cmd syntax.Node, l *layer) {
	syntax.Walk(cmd, func(n syntax.Node) bool {
		switch x := n.(type) {
		case *syntax.Subshell, *syntax.CmdSubst:
			return false
		case *syntax.DeclClause:
			for _, a := range x.Args {
				f.doubtful(a, l)
			}
		case *syntax.CallExpr:
			if len(x.Args) == 0 {
				for _, a := range x.Assigns {
					f.doubtful(a, l)
				}
				return true
			}
			name, ok := literal(x.Args[0])
			if x.Args[0].Lit() == "[" {
				return true
			}
			if (name == "command" || name == "builtin") && len(x.Args) > 1 {
				name, ok = literal(x.Args[1])
			}
			last, _ := f.known(x.Args[len(x.Args)-1])
			switch {
			case !ok, name == "eval" && !f.hook(x.Args[1:]), (name == "source" || name == ".") && f.mayMove(last):
				f.lost()
				f.p.first, f.p.OtherPath = "", true
			case slices.Contains([]string{"cd", "pushd", "popd"}, name):
				f.lost()
			case slices.Contains([]string{"source", ".", "eval", "conda", "mamba", "micromamba", "module"}, name):
				f.p.first, f.p.OtherPath = "", true
			}
		}
		return true
	})
}

func (f *finder) doubtful(a *syntax.Assign, l *layer) {
	if a.Name == nil || a.Naked {
		return
	}
	f.unclear(a.Name.Value, a.Value, l)
}

// lost gives up the folder.
func (f *finder) lost() { f.p.Dir, f.p.Workdir = "", "" }
