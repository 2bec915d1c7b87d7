package place

import (
	"path/filepath"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// before is one command that the same shell text runs in front of the trainer.
type before struct {
	// name is its program, module that behind python -m, words all that is known of its
	// words.
	name, module string
	words        []string
	// writes are the files that its output goes to; unclear is set where one of them is
	// not known.
	writes  []string
	unclear bool
}

// note collects the commands of the text in front of the trainer.
func (f *finder) note(stmts []*syntax.Stmt) {
	for _, st := range stmts {
		syntax.Walk(st, func(n syntax.Node) bool {
			s, ok := n.(*syntax.Stmt)
			if !ok {
				return true
			}
			b := before{}
			for _, r := range s.Redirs {
				switch r.Op {
				case syntax.RdrOut, syntax.AppOut, syntax.RdrInOut, syntax.RdrAll, syntax.AppAll:
					file, known := f.known(r.Word)
					b.unclear = b.unclear || !known
					b.writes = append(b.writes, file)
				}
			}
			if call, is := s.Cmd.(*syntax.CallExpr); is {
				for _, w := range call.Args {
					v, _ := f.known(w)
					b.words = append(b.words, v)
				}
			}
			if len(b.words) > 0 {
				b.name = filepath.Base(b.words[0])
				if call, is := s.Cmd.(*syntax.CallExpr); is && call.Args[0].Lit() == "[" {
					b.name = "["
				}
				if i := slices.Index(b.words, "-m"); pythonName.MatchString(b.name) && i > 0 && i+1 < len(b.words) {
					b.module = b.words[i+1]
				}
			}
			if len(b.words)+len(b.writes) > 0 {
				f.p.before = append(f.p.before, b)
			}
			return true
		})
	}
}

// Rewritten says why a file that the trainer names may be another one by the time it
// starts: an earlier command of the same shell text writes it. With any, a program that
// is not known to leave files alone is enough, whether it names the file or not.
func (p *Place) Rewritten(t *Table, name string, any bool) string {
	same := func(word string) bool {
		_, after, cut := strings.Cut(word, "=")
		return filepath.Base(word) == filepath.Base(name) || cut && filepath.Base(after) == filepath.Base(name)
	}
	for _, b := range p.before {
		harmless := slices.Contains(t.Harmless, b.name) || b.module != "" && slices.Contains(t.Harmless, b.module)
		switch {
		case slices.ContainsFunc(b.writes, same):
			return "an earlier command of the shell writes it"
		case !harmless && slices.ContainsFunc(b.words, same):
			return "an earlier command of the shell (" + b.name + ") names it and may change it"
		case any && b.unclear:
			return "an earlier command of the shell writes a file whose name is not known"
		case any && !harmless && len(b.words) > 0:
			program := b.name
			if program == "" || program == "." {
				program = "one that is not known"
			}
			return "an earlier command of the shell (" + program + ") may write it"
		}
	}
	return ""
}
