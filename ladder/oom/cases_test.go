package oom

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

type reduced struct {
	file, name, want, exit, log string
}

func reducedCases(t testing.TB) []reduced {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	var out []reduced
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range strings.Split(string(data), "\n-- ")[1:] {
			name, rest, _ := strings.Cut(c, " --\n")
			head, body, _ := strings.Cut(rest, "\n")
			want, exit, ok := strings.Cut(strings.TrimPrefix(head, "want "), " exit ")
			if !ok {
				t.Fatalf("%s: %s: no want line", f, name)
			}
			out = append(out, reduced{filepath.Base(f), name, want, exit, body})
		}
	}
	return out
}

func (c reduced) evidence(tab *Table) Evidence {
	ev := Evidence{Output: scanText(tab, c.log)}
	if n, err := strconv.Atoi(c.exit); err == nil {
		ev.Exit = Exit{Known: true, Code: n}
	}
	return ev
}

// word is the kind of an oom and the reason of the others.
func word(v Verdict) string {
	if v.Answer == OOM {
		return v.Kind
	}
	return v.Reason
}

func TestReducedCases(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	for _, c := range reducedCases(t) {
		t.Run(c.file+"/"+c.name, func(t *testing.T) {
			v := tab.Decide(c.evidence(tab))
			if got := fmt.Sprintf("%s %s %s", v.Answer, word(v), v.Confidence); got != c.want {
				t.Errorf("got %s, want %s\n%+v", got, c.want, v.Evidence)
			}
			if v.Answer == OOM && len(v.Advice) == 0 {
				t.Errorf("no advice for %s", v.Kind)
			}
		})
	}
}
