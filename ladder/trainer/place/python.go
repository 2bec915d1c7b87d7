package place

import (
	"fmt"
	"path/filepath"
	"strings"
)

// python reads Python's own options; words[0] is the interpreter.
func (f *finder) python(words []string) {
	p := f.p
	p.Python = words[0]
	deaf := ""
	for i := 1; i < len(words); i++ {
		w := words[i]
		if len(w) < 2 || w[0] != '-' {
			if w == "-" || w == "" {
				f.opaque(words, "the script comes from standard input: its settings cannot be read")
			} else {
				p.Script = w
				f.trainer(words, i+1)
			}
			f.deaf(deaf)
			return
		}
		if strings.HasPrefix(w, "--") {
			if w == "--check-hash-based-pycs" {
				i++
				continue
			}
			f.unsure(words, "cannot tell where the trainer starts: option %s of Python is not known", w)
			return
		}
	letters:
		for at := 1; at < len(w); at++ {
			rest := w[at+1:]
			switch c := w[at]; {
			case strings.IndexByte("IES", c) >= 0:
				deaf = fmt.Sprintf("python -%c does not look at PYTHONPATH", c)
				if c == 'S' {
					deaf = "python -S does not load sitecustomize"
				}
			case strings.IndexByte("bBdhiOPqsuvVx?", c) >= 0:
			case c == 'X' || c == 'W':
				if rest == "" {
					i++
				}
				break letters
			case c == 'm':
				if rest == "" {
					i++
					if i >= len(words) {
						f.unsure(words, "cannot tell where the trainer starts: option -m of Python has no value")
						return
					}
					rest = words[i]
				}
				f.module(words, i+1, rest, deaf)
				return
			case c == 'c':
				f.opaque(words, "the program is given with python -c: its settings cannot be read")
				f.deaf(deaf)
				return
			default:
				f.unsure(words, "cannot tell where the trainer starts: option %s of Python is not known", w)
				return
			}
		}
	}
	f.opaque(words, "%s reads its program from standard input", filepath.Base(words[0]))
	f.deaf(deaf)
}

func (f *finder) deaf(why string) {
	if why != "" && f.p.ShimRefused == "" {
		f.p.ShimRefused = why
	}
}

// module goes on behind python -m NAME; its arguments start at words[i].
func (f *finder) module(words []string, i int, name, deaf string) {
	if name == "" {
		f.unsure(words, "cannot tell where the trainer starts: option -m of Python has no value")
		return
	}
	pre := f.t.byModule[name]
	if pre != nil {
		for _, m := range pre.ModuleSub {
			if m != name {
				continue
			}
			if i >= len(words) || words[i] != pre.Sub {
				pre = nil
				break
			}
			i++
		}
	}
	if pre == nil {
		f.p.Module = name
		f.trainer(words, i)
		f.deaf(deaf)
		return
	}
	f.behind(pre, words, i, options{dash: -1})
	if deaf != "" && f.p.Unsure == "" && !pre.Distributed {
		f.deaf(deaf) // what runs the script in the same interpreter
	}
}
