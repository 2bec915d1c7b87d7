package place

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"

	"sparkrun/internal/shellread"
)

// shellText is the text given to a shell with -c, of which the last command is the
// trainer's.
type shellText struct {
	text    string
	dialect syntax.LangVariant
	// before are the commands in front of the last one.
	before []*syntax.Stmt
	// args are its words, assigns the NAME=VALUE in front of them.
	args    []shellArg
	assigns [][2]string
}

// shellArg is text[at:end], which the shell reads as value.
type shellArg struct {
	at, end int
	value   string
}

func (s *shellText) words() []string {
	words := make([]string, len(s.args))
	for i, a := range s.args {
		words[i] = a.value
	}
	return words
}

// parseShell finds the last command of a text, or says why it cannot be told
// apart or changed.
func parseShell(text string, dialect syntax.LangVariant) (*shellText, string) {
	if strings.ContainsRune(text, '\r') {
		return nil, "it has carriage returns in it"
	}
	file, err := shellread.Parse(text, dialect)
	if err != nil {
		return nil, fmt.Sprintf("it does not parse: %v", err)
	}
	if len(file.Stmts) == 0 {
		return nil, "it is empty"
	}
	s := &shellText{text: text, dialect: dialect}
	last := file.Stmts[len(file.Stmts)-1]
	s.before = slices.Clone(file.Stmts[:len(file.Stmts)-1])
	for {
		switch {
		case last.Background, last.Coprocess, last.Disown:
			return nil, "its last command runs in the background"
		case last.Negated:
			return nil, "its last command is negated"
		case !outputsBehind(last):
			return nil, "its last command redirects what it reads"
		}
		switch cmd := last.Cmd.(type) {
		case *syntax.BinaryCmd:
			switch cmd.Op {
			case syntax.AndStmt:
				s.before = append(s.before, cmd.X)
				last = cmd.Y
				continue
			case syntax.OrStmt:
				return nil, "its last command runs only if another fails"
			default:
				if call, ok := cmd.Y.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 && call.Args[0].Lit() == "tee" {
					return nil, "its last command is part of a pipe into tee: leave that out, the output is kept in the run's folder anyway (attempts/N/output.log)"
				}
				return nil, "its last command is part of a pipe"
			}
		case *syntax.TimeClause:
			if cmd.Stmt == nil {
				return nil, "it has no command to time"
			}
			last = cmd.Stmt
			continue
		case *syntax.CallExpr:
			if why := s.command(cmd); why != "" {
				return nil, why
			}
			if s.isFunction() {
				return nil, fmt.Sprintf("%s is a function or alias of its own", s.args[0].value)
			}
			return s, ""
		default:
			return nil, "its last command is not a simple one"
		}
	}
}

// outputsBehind says whether a command redirects nothing but what it prints, behind its
// words: that changes nothing of what it does, and stays as it is.
func outputsBehind(st *syntax.Stmt) bool {
	for _, r := range st.Redirs {
		switch r.Op {
		case syntax.RdrOut, syntax.AppOut, syntax.DplOut, syntax.RdrAll, syntax.AppAll:
		default:
			return false
		}
		if st.Cmd == nil || r.Pos().Offset() < st.Cmd.End().Offset() {
			return false
		}
	}
	return true
}

// command reads a simple command, all of whose words must be literal.
func (s *shellText) command(cmd *syntax.CallExpr) string {
	if len(cmd.Args) == 0 {
		return "its last command only sets variables"
	}
	for _, a := range cmd.Assigns {
		if a.Name == nil || a.Append || a.Index != nil || a.Array != nil || a.Naked {
			return "its last command sets a variable in a way that is not simple"
		}
		value, ok := "", true
		if a.Value != nil {
			value, ok = literal(a.Value)
		}
		if !ok {
			return fmt.Sprintf("its last command has an expansion (%s)", s.part(a))
		}
		s.assigns = append(s.assigns, [2]string{a.Name.Value, value})
	}
	for _, w := range cmd.Args {
		value, ok := literal(w)
		if !ok {
			return fmt.Sprintf("its last command has an expansion (%s)", s.part(w))
		}
		if s.dialect == syntax.LangZsh && strings.HasPrefix(s.part(w), "=") {
			return fmt.Sprintf("its last command has an expansion (%s)", s.part(w))
		}
		s.args = append(s.args, shellArg{offset(w.Pos()), offset(w.End()), value})
	}
	return ""
}

func (s *shellText) part(n syntax.Node) string { return s.text[offset(n.Pos()):offset(n.End())] }

func offset(p syntax.Pos) int { return int(p.Offset()) }

// isFunction says whether a command before the last one gives its name another
// meaning.
func (s *shellText) isFunction() bool {
	name := s.args[0].value
	found := false
	for _, st := range s.before {
		syntax.Walk(st, func(n syntax.Node) bool {
			switch x := n.(type) {
			case *syntax.FuncDecl:
				found = found || x.Name != nil && x.Name.Value == name
			case *syntax.CallExpr:
				if len(x.Args) > 1 {
					if v, ok := literal(x.Args[0]); ok && v == "alias" {
						for _, a := range x.Args[1:] {
							v, ok := literal(a)
							found = found || !ok || strings.HasPrefix(v, name+"=")
						}
					}
				}
			}
			return true
		})
	}
	return found
}

// literal returns the text of a word without expansions, patterns or braces.
func literal(w *syntax.Word) (string, bool) {
	var b strings.Builder
	for i, part := range w.Parts {
		switch x := part.(type) {
		case *syntax.Lit:
			if i == 0 && strings.HasPrefix(x.Value, "~") {
				return "", false
			}
			text, ok := unescape(x.Value)
			if !ok {
				return "", false
			}
			b.WriteString(text)
		case *syntax.SglQuoted:
			text, ok := single(x)
			if !ok {
				return "", false
			}
			b.WriteString(text)
		case *syntax.DblQuoted:
			if x.Dollar {
				return "", false
			}
			for _, in := range x.Parts {
				lit, ok := in.(*syntax.Lit)
				if !ok {
					return "", false
				}
				b.WriteString(unescapeDouble(lit.Value))
			}
		default:
			return "", false
		}
	}
	return b.String(), true
}

// unescape takes the backslashes out of a bare word. It is not ok where the shell
// might expand something in it.
func unescape(text string) (string, bool) {
	var b strings.Builder
	brace, list := false, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\\':
			i++
			if i >= len(text) {
				return "", false
			}
			if text[i] != '\n' {
				b.WriteByte(text[i])
			}
			continue
		case '*', '?', '[', '$', '`':
			return "", false
		case '{':
			brace = true
		case ',':
			list = true
		case '.':
			list = list || i+1 < len(text) && text[i+1] == '.'
		}
		b.WriteByte(text[i])
	}
	return b.String(), !brace || !list
}

// unescapeDouble takes the backslashes out of text within double quotes.
func unescapeDouble(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			switch text[i+1] {
			case '$', '`', '"', '\\':
				i++
			case '\n':
				i++
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

func plainParam(x *syntax.ParamExp) bool {
	return !x.Excl && !x.Length && !x.Width && !x.IsSet && x.Flags == nil && x.NestedParam == nil && len(x.Modifiers) == 0 && x.Index == nil && x.Slice == nil && x.Repl == nil && x.Names == 0 && x.Exp == nil
}

// single returns the text of '...' or $'...'.
func single(x *syntax.SglQuoted) (string, bool) {
	if !x.Dollar {
		return x.Value, true
	}
	var b strings.Builder
	for i := 0; i < len(x.Value); i++ {
		c := x.Value[i]
		if c != '\\' || i+1 >= len(x.Value) {
			b.WriteByte(c)
			continue
		}
		i++
		digits := func(most, base int) (int64, bool) {
			n := 0
			for n < most && i+n < len(x.Value) {
				if _, err := strconv.ParseUint(x.Value[i+n:i+n+1], base, 8); err != nil {
					break
				}
				n++
			}
			v, err := strconv.ParseInt(x.Value[i:i+n], base, 64)
			i += n - 1
			return v, err == nil && v != 0
		}
		switch c := x.Value[i]; c {
		case 'n', 't', 'r', 'a', 'b', 'f', 'v':
			b.WriteByte("\n\t\r\a\b\f\v"[strings.IndexByte("ntrabfv", c)])
		case 'e', 'E':
			b.WriteByte(0x1b)
		case '\\', '\'', '"', '?':
			b.WriteByte(c)
		case '0', '1', '2', '3', '4', '5', '6', '7':
			v, ok := digits(3, 8)
			if !ok || v > 255 {
				return "", false
			}
			b.WriteByte(byte(v))
		case 'x', 'u', 'U':
			most := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			i++
			v, ok := digits(most, 16)
			if !ok || (c != 'x' && !utf8.ValidRune(rune(v))) {
				return "", false
			}
			if c == 'x' {
				b.WriteByte(byte(v))
			} else {
				b.WriteRune(rune(v))
			}
		default:
			return "", false
		}
	}
	return b.String(), true
}

// quote writes a word so that every shell reads it as it is.
func quote(word string) string {
	plain := word != "" && word[0] != '~' && word[0] != '=' && strings.IndexFunc(word, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_-./:=@%+,", r)
	}) < 0
	if plain {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// edit replaces text[at:end].
type edit struct {
	at, end int
	with    string
}

// with returns the text with the words of its last command replaced and env set
// for it. Every byte of the words that stay, and of all around, stays. The result
// is parsed again: what it says must be what was asked for.
func (s *shellText) with(words, env []string) (string, error) {
	if len(words) == 0 {
		return "", fmt.Errorf("no words to put into the shell's text")
	}
	edits := s.edits(words)
	assigns := slices.Clone(s.assigns)
	if len(env) > 0 {
		var b strings.Builder
		for _, kv := range env {
			name, value, _ := strings.Cut(kv, "=")
			if !assignment.MatchString(kv) {
				return "", fmt.Errorf("%s is no name that a shell can set", name)
			}
			b.WriteString(name + "=" + quote(value) + " ")
			assigns = append(assigns, [2]string{name, value})
		}
		at := s.args[0].at
		if len(edits) > 0 && edits[0].at == at {
			edits[0].with = b.String() + edits[0].with
		} else {
			edits = slices.Insert(edits, 0, edit{at, at, b.String()})
		}
	}
	var b strings.Builder
	from := 0
	for _, e := range edits {
		b.WriteString(s.text[from:e.at])
		b.WriteString(e.with)
		from = e.end
	}
	b.WriteString(s.text[from:])
	again, why := parseShell(b.String(), s.dialect)
	if why != "" {
		return "", fmt.Errorf("changing the shell's text: %s", why)
	}
	if !slices.Equal(again.words(), words) || !slices.Equal(again.assigns, assigns) {
		return "", fmt.Errorf("changing the shell's text would change more than was asked for")
	}
	return b.String(), nil
}

// edits are the smallest changes that turn the command's words into others.
func (s *shellText) edits(words []string) []edit {
	var edits []edit
	old := s.words()
	at, next := 0, 0
	for _, m := range append(common(old, words), [2]int{len(old), len(words)}) {
		edits = s.gap(edits, at, m[0], words[next:m[1]])
		at, next = m[0]+1, m[1]+1
	}
	return edits
}

// gap replaces the words from..to by others.
func (s *shellText) gap(edits []edit, from, to int, words []string) []edit {
	n := min(to-from, len(words))
	for k := range n {
		text := quote(words[k])
		if from+k == 0 && strings.Contains(text, "=") && text[0] != '\'' {
			text = "'" + text + "'" // an assignment, if it is bare
		}
		edits = append(edits, edit{s.args[from+k].at, s.args[from+k].end, text})
	}
	var more strings.Builder
	for _, w := range words[n:] {
		more.WriteString(" " + quote(w))
	}
	switch {
	case more.Len() > 0 && n > 0:
		edits[len(edits)-1].with += more.String()
	case more.Len() > 0 && from > 0:
		end := s.args[from-1].end
		edits = append(edits, edit{end, end, more.String()})
	case more.Len() > 0:
		edits = append(edits, edit{s.args[0].at, s.args[0].at, more.String()[1:] + " "})
	case to-from > n && from+n > 0:
		edits = append(edits, edit{s.args[from+n-1].end, s.args[to-1].end, ""})
	case to-from > n:
		edits = append(edits, edit{s.args[0].at, s.args[to].at, ""})
	}
	return edits
}

// common returns the index pairs of a longest common subsequence.
func common(a, b []string) [][2]int {
	// What is the same at both ends needs no table.
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var pairs [][2]int
	for i := range head {
		pairs = append(pairs, [2]int{i, i})
	}
	x, y := a[head:len(a)-tail], b[head:len(b)-tail]
	if len(x)*len(y) <= 1<<20 {
		best := make([][]int, len(x)+1)
		for i := range best {
			best[i] = make([]int, len(y)+1)
		}
		for i := len(x) - 1; i >= 0; i-- {
			for j := len(y) - 1; j >= 0; j-- {
				if x[i] == y[j] {
					best[i][j] = best[i+1][j+1] + 1
				} else {
					best[i][j] = max(best[i+1][j], best[i][j+1])
				}
			}
		}
		for i, j := 0, 0; i < len(x) && j < len(y); {
			switch {
			case x[i] == y[j]:
				pairs = append(pairs, [2]int{head + i, head + j})
				i++
				j++
			case best[i+1][j] >= best[i][j+1]:
				i++
			default:
				j++
			}
		}
	}
	for k := tail; k > 0; k-- {
		pairs = append(pairs, [2]int{len(a) - k, len(b) - k})
	}
	return pairs
}
