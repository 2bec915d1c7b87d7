package trainer

import (
	"fmt"
	"strings"

	"sparkrun/internal/job"
)

// Expand fills in placeholders: exactly {name}, for the names in knobs. {{name}}
// stands for a literal {name}; every other brace is left as it is.
func Expand(argv []string, knobs map[string]string) ([]string, error) {
	for name := range knobs {
		if !validName(name) {
			return nil, fmt.Errorf("--knob %s: a knob's name has lower case letters, digits and _ only, as in seq_len", name)
		}
	}
	out := make([]string, len(argv))
	for i, w := range argv {
		out[i], _ = expandWord(w, knobs)
	}
	return out, nil
}

// expandWord returns the word with its placeholders filled in and the names it
// used.
func expandWord(w string, knobs map[string]string) (string, []string) {
	if !strings.Contains(w, "{") {
		return w, nil
	}
	var (
		b    strings.Builder
		used []string
	)
	for len(w) > 0 {
		if w[0] != '{' {
			n := strings.IndexByte(w, '{')
			if n < 0 {
				n = len(w)
			}
			b.WriteString(w[:n])
			w = w[n:]
			continue
		}
		if name, ok := braced(w, "{{", "}}", knobs); ok {
			b.WriteString("{" + name + "}")
			w = w[len(name)+4:]
			continue
		}
		if name, ok := braced(w, "{", "}", knobs); ok {
			b.WriteString(knobs[name])
			used = append(used, name)
			w = w[len(name)+2:]
			continue
		}
		b.WriteByte('{')
		w = w[1:]
	}
	return b.String(), used
}

func braced(w, open, shut string, knobs map[string]string) (string, bool) {
	rest, ok := strings.CutPrefix(w, open)
	if !ok {
		return "", false
	}
	name, _, ok := strings.Cut(rest, shut)
	if !ok {
		return "", false
	}
	_, known := knobs[name]
	return name, known
}

// hasPlaceholder says whether some word of argv has {name} in it.
func hasPlaceholder(argv []string, name string) bool {
	for _, w := range argv {
		if _, used := expandWord(w, map[string]string{name: ""}); len(used) > 0 {
			return true
		}
	}
	return false
}

// KnobEnv returns the SPARKRUN_KNOB_NAME=value words that the child gets: one
// for every knob of the job, sorted.
func KnobEnv(j job.Job) []string {
	var env []string
	for _, name := range j.Knobs.Names() {
		v := j.Knobs[name].Value
		if !validName(string(name)) || strings.ContainsRune(v, 0) {
			continue
		}
		env = append(env, "SPARKRUN_KNOB_"+strings.ToUpper(string(name))+"="+v)
	}
	return env
}

// userKnobs returns the knobs that the user named on sparkrun's command line.
func userKnobs(k job.Knobs) map[string]string {
	m := map[string]string{}
	for name, s := range k {
		if s.Source == job.FromUser {
			m[string(name)] = s.Value
		}
	}
	return m
}
