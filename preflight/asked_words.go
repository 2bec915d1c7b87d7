package preflight

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"sparkrun/internal/edit"
	"sparkrun/internal/job"
	"sparkrun/internal/lazyre"
	"sparkrun/internal/shellread"
)

var (
	pairName = lazyre.New(`^[+~]{0,2}[A-Za-z_@][\w.\-@/\[\]]*$`)
	flagName = lazyre.New(`^-{1,2}[A-Za-z_][\w.\-\[\]]*$`)
	// interpolated is a value that a shell or OmegaConf puts in later.
	interpolated = lazyre.New(`\$[({A-Za-z_]`)
)

// words reads the settings of a command line: --name=value, --name value, -name value,
// --name, name=value and JSON objects. Of a name that stands twice the last one holds.
func (a *asking) words(words []string, from job.Source, where func(flag string, at int) string) {
	var found []setting
	add := func(name, value string, at int) {
		found = append(found, setting{name: name, value: value, where: where(name, at), from: from, computed: interpolated.MatchString(value)})
	}
	for i, w := range words {
		if name, value, inline := strings.Cut(w, "="); inline && (flagName.MatchString(name) || pairName.MatchString(name)) {
			add(name, unquoted(value), i)
			if strings.HasPrefix(value, "{") {
				found = append(found, a.object(name, value, where(name, i), from)...)
			}
			continue
		}
		if !flagName.MatchString(w) {
			continue
		}
		next := ""
		if i+1 < len(words) {
			next = words[i+1]
		}
		switch {
		case next == "", looksLikeFlag(next):
			add(w, "true", i)
		case strings.HasPrefix(next, "{"):
			add(w, next, i)
			found = append(found, a.object(w, next, where(w, i), from)...)
		default:
			add(w, next, i)
		}
	}
	slices.Reverse(found)
	for _, s := range found {
		a.add(s)
	}
}

// looksLikeFlag tells a flag from a value that begins with a dash, such as -1.
func looksLikeFlag(word string) bool {
	if !strings.HasPrefix(word, "-") || len(word) < 2 {
		return false
	}
	_, err := strconv.ParseFloat(word, 64)
	return err != nil
}

func unquoted(value string) string {
	if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		return value[1 : n-1]
	}
	return value
}

// object reads an object of JSON, or a mapping of YAML, that stands in a word.
func (a *asking) object(name, text, where string, from job.Source) []setting {
	for _, form := range []string{"word.json", "word.yaml"} {
		doc, err := edit.Parse(form, []byte(text))
		if err != nil {
			continue
		}
		var out []setting
		for _, s := range entriesOf(doc) {
			s.name, s.where, s.from = plain(name)+"."+s.name, where, from
			out = append(out, s)
		}
		return out
	}
	return nil
}

// shells are the programs whose -c takes a command line.
var shells = []string{"sh", "bash", "dash", "zsh", "ksh"}

// shellWords are the command lines in the string of bash -c.
func (a *asking) shellWords(words []string) [][]string {
	var out [][]string
	for i, w := range words {
		if !slices.Contains(shells, filepath.Base(w)) {
			continue
		}
		for j := i + 1; j+1 < len(words) && strings.HasPrefix(words[j], "-"); j++ {
			if strings.HasSuffix(words[j], "c") && !strings.HasPrefix(words[j], "--") {
				lines, err := shellLines(words[j+1])
				if err != nil {
					a.unread = append(a.unread, "the command line of "+w+" -c: "+err.Error())
				}
				for _, l := range lines {
					out = append(out, l.words)
				}
				break
			}
		}
	}
	return out
}

// shellLine is one command of a shell script: its words, and the line each stands on.
type shellLine struct {
	words []string
	lines []int
}

// shellLines parses a script and returns its commands. What the shell would put in is
// left as it is written, as $NAME. Assignments are words too.
func shellLines(text string) ([]shellLine, error) {
	file, err := shellread.Parse(text, syntax.LangBash)
	if err != nil {
		return nil, err
	}
	var out []shellLine
	syntax.Walk(file, func(n syntax.Node) bool {
		var l shellLine
		put := func(word string, at syntax.Pos) {
			l.words, l.lines = append(l.words, word), append(l.lines, int(at.Line()))
		}
		assign := func(as *syntax.Assign) {
			if as.Name != nil && as.Value != nil {
				put(as.Name.Value+"="+wordText(as.Value, text), as.Pos())
			}
		}
		switch n := n.(type) {
		case *syntax.CallExpr:
			for _, as := range n.Assigns {
				assign(as)
			}
			for _, w := range n.Args {
				put(wordText(w, text), w.Pos())
			}
		case *syntax.DeclClause:
			for _, as := range n.Args {
				assign(as)
			}
		}
		if len(l.words) > 0 {
			out = append(out, l)
		}
		return true
	})
	return out, nil
}

// wordText is a word without its quotes.
func wordText(w *syntax.Word, text string) string {
	var b strings.Builder
	var parts func([]syntax.WordPart)
	parts = func(list []syntax.WordPart) {
		for _, p := range list {
			switch p := p.(type) {
			case *syntax.Lit:
				b.WriteString(strings.ReplaceAll(p.Value, "\\\n", ""))
			case *syntax.SglQuoted:
				b.WriteString(p.Value)
			case *syntax.DblQuoted:
				parts(p.Parts)
			default:
				from, to := int(p.Pos().Offset()), int(p.End().Offset())
				if from <= to && to <= len(text) {
					b.WriteString(text[from:to])
				}
			}
		}
	}
	parts(w.Parts)
	return b.String()
}
