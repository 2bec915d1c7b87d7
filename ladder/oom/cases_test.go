package oom

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// reduced is one case of testdata/*.txtar. Its first line says what is expected and
// how the command ended: "want oom cuda-allocator high exit 1", perhaps with pairs
// such as "lever wait" or "phase eval" behind; lines below "=== system" are records
// from outside.
type reduced struct {
	file, name, want, exit string
	more                   map[string]string
	log, system            string
}

func reducedCases(t testing.TB) []reduced {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	var out []reduced
	seen := map[string]bool{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		heads := caseHead.FindAllStringSubmatchIndex(string(data), -1)
		for i, m := range heads {
			end := len(data)
			if i+1 < len(heads) {
				end = heads[i+1][0]
			}
			c := reduced{file: filepath.Base(f), name: string(data[m[2]:m[3]]), more: map[string]string{}}
			words := strings.Fields(string(data[m[4]:m[5]]))
			if len(words) < 5 || words[3] != "exit" || len(words)%2 == 0 || seen[c.name] {
				t.Fatalf("%s: %s: a bad head, or a name used twice", f, c.name)
			}
			seen[c.name] = true
			c.want, c.exit = strings.Join(words[:3], " "), words[4]
			for i := 5; i < len(words); i += 2 {
				c.more[words[i]] = words[i+1]
			}
			c.log, c.system, _ = strings.Cut(string(data[m[1]:end]), "=== system\n")
			c.log = strings.TrimSuffix(c.log, "\n")
			out = append(out, c)
		}
	}
	return out
}

var caseHead = regexp.MustCompile(`(?m)^-- (.+) --\nwant (.+)\n`)

func (c reduced) evidence(tab *Table) Evidence {
	ev := Evidence{Output: scanText(tab, c.log)}
	if n, err := strconv.Atoi(c.exit); err == nil {
		ev.Exit = Exit{Known: true, Code: n}
	}
	if c.system != "" {
		SystemLines(&ev, strings.Split(c.system, "\n"))
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
			got := map[string]string{"lever": v.Lever, "phase": string(v.Phase), "cause": v.Cause}
			for what, want := range c.more {
				if what == "label" {
					continue
				}
				if got[what] != want {
					t.Errorf("%s is %q, want %q", what, got[what], want)
				}
			}
		})
	}
}

// label is what the case really was: what is expected, unless the head says
// otherwise, since some truths no text can tell.
func (c reduced) label() string {
	if l := c.more["label"]; l != "" {
		return l
	}
	if strings.HasPrefix(c.want, string(Unsure)) {
		return "ambiguous"
	}
	return strings.Fields(c.want)[0]
}

var update = flag.Bool("update", false, "write the expected tables anew")

// TestConfusion counts how each label comes out and compares with the table in
// testdata: no cell may get worse unseen.
func TestConfusion(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	counts := map[string]int{}
	for _, c := range reducedCases(t) {
		for _, withSystem := range []bool{false, true} {
			if withSystem == (c.system == "") {
				continue // no second kind of evidence
			}
			v := tab.Decide(c.evidence(tab))
			evidence := "text"
			if withSystem {
				evidence = "text+system"
			}
			counts[fmt.Sprintf("%s\t%s\t%s\t%s", evidence, c.label(), v.Answer, v.Confidence)]++
			opposite := c.label() == string(OOM) && v.Answer == NotOOM || c.label() == string(NotOOM) && v.Answer == OOM
			if opposite && v.Confidence == High {
				t.Errorf("%s: sure and wrong", c.name)
			}
		}
	}
	var lines []string
	for k, n := range counts {
		lines = append(lines, fmt.Sprintf("%s\t%d", k, n))
	}
	slices.Sort(lines)
	got := "evidence\tlabel\tanswer\tconfidence\tcases\n" + strings.Join(lines, "\n") + "\n"
	t.Log("\n" + got)
	const path = "testdata/confusion.tsv"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("the table has changed (go test -run TestConfusion -update writes it anew):\n%s", want)
	}
}
