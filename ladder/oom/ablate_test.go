package oom

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// never matches nothing.
var never = rx{Regexp: regexp.MustCompile(`[^\x00-\x{10FFFF}]`)}

// without is the table without one entry. The prefilter stays as it is: it only
// lets more through.
func without(tab *Table, change func(*Table)) *Table {
	t := *tab
	t.Patterns = slices.Clone(tab.Patterns)
	t.Kernel = slices.Clone(tab.Kernel)
	t.Prefixes = slices.Clone(tab.Prefixes)
	t.Sizes = slices.Clone(tab.Sizes)
	t.Phases = slices.Clone(tab.Phases)
	t.PhaseLines = slices.Clone(tab.PhaseLines)
	t.Progress = slices.Clone(tab.Progress)
	t.CauseFrames = slices.Clone(tab.CauseFrames)
	t.CleanupFrames = slices.Clone(tab.CleanupFrames)
	change(&t)
	return &t
}

// Every entry of the table is there for a reason: without it some case comes out
// another way.
func TestEveryEntryIsNeeded(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	cases := reducedCases(t)
	result := func(tab *Table, c reduced) string {
		v := tab.Decide(c.evidence(tab))
		v.Unreadable = nil
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	before, text := make([]string, len(cases)), make([]string, len(cases))
	for i, c := range cases {
		before[i] = result(tab, c)
		for l := range strings.Lines(c.log + "\n" + c.system) {
			clean, _ := tab.Clean(l)
			text[i] += clean + "\n"
		}
	}
	n := 0
	// Where re is given, only the cases that it matches can change.
	needed := func(what string, re *regexp.Regexp, change func(*Table)) {
		if re != nil {
			re = regexp.MustCompile("(?m)" + re.String())
		}
		// The table is data and races with nobody: a part of it is enough there.
		if n++; raced && n%10 != 0 {
			return
		}
		other := without(tab, change)
		for i, c := range cases {
			if re != nil && !re.MatchString(text[i]) {
				continue
			}
			if result(other, c) != before[i] {
				return
			}
		}
		t.Errorf("%s: no case needs it", what)
	}
	for i := range tab.Patterns {
		needed("pattern "+tab.Patterns[i].ID, tab.Patterns[i].Re.Regexp, func(t *Table) { t.Patterns[i].Re = never })
		for j := range tab.Patterns[i].Also {
			needed(fmt.Sprintf("pattern %s, also %d", tab.Patterns[i].ID, j), tab.Patterns[i].Re.Regexp, func(t *Table) {
				t.Patterns[i].Also = slices.Delete(slices.Clone(t.Patterns[i].Also), j, j+1)
				_ = t.check("") // the prefilter looks at them too
			})
		}
	}
	for i := range tab.Kernel {
		needed("kernel "+tab.Kernel[i].ID, tab.Kernel[i].Re.Regexp, func(t *Table) { t.Kernel[i].Re = never })
	}
	for i := range tab.Prefixes {
		if tab.Prefixes[i].Builtin == "" {
			needed("prefix "+tab.Prefixes[i].What, nil, func(t *Table) { t.Prefixes[i].Re = never })
		}
	}
	for i := range tab.Sizes {
		needed("size "+tab.Sizes[i].Name+" "+tab.Sizes[i].Re.String(), tab.Sizes[i].Re.Regexp, func(t *Table) { t.Sizes[i].Re = never })
	}
	for i := range tab.Phases {
		needed("phase "+string(tab.Phases[i].Phase), nil, func(t *Table) { t.Phases[i].Re = never })
	}
	for i := range tab.PhaseLines {
		needed("phase line "+string(tab.PhaseLines[i].Phase), nil, func(t *Table) { t.PhaseLines[i].Re = never })
	}
	for i := range tab.Progress {
		if tab.Progress[i].Builtin == "" {
			needed(fmt.Sprintf("progress %d", i), nil, func(t *Table) { t.Progress[i].Re = never })
		}
	}
	for i := range tab.CauseFrames {
		needed("cause frame "+tab.CauseFrames[i].Cause, nil, func(t *Table) { t.CauseFrames[i].Re = never })
	}
	for i := range tab.CleanupFrames {
		needed("cleanup frame", nil, func(t *Table) { t.CleanupFrames[i].Re = never })
	}
}

// An exception of a name that says nothing takes little from an out-of-memory in
// front of it; one of another name makes two causes.
func TestOpaqueNames(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	die := func(name string) Verdict {
		log := cudaDeath + "\nTraceback (most recent call last):\n  File \"a.py\", line 9, in main\n" + name + ": went wrong"
		return tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, Output: scanText(tab, log)})
	}
	for _, name := range tab.Opaque {
		if v := die(name); v.Answer != OOM {
			t.Errorf("%s: %s", name, v.Answer)
		}
	}
	if v := die("LookupError"); v.Answer != Unsure {
		t.Errorf("a telling name: %s", v.Answer)
	}
}

// Every piece of advice and every lever is given to somebody.
func TestEveryAdviceAndLeverIsGiven(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	advice, levers := map[string]bool{}, map[string]bool{}
	for _, c := range reducedCases(t) {
		v := tab.Decide(c.evidence(tab))
		levers[v.Lever] = true
		for _, a := range v.Advice {
			advice[a] = true
		}
	}
	for _, ev := range outside(t) {
		v := tab.Decide(ev)
		levers[v.Lever] = true
		for _, a := range v.Advice {
			advice[a] = true
		}
	}
	for _, a := range tab.Advice {
		if !advice[a.Text] {
			t.Errorf("no case is advised: %s", a.Text)
		}
		if !strings.HasSuffix(a.Text, ".") {
			t.Errorf("not a sentence: %s", a.Text)
		}
	}
	for _, l := range tab.Levers {
		if !levers[l.Lever] {
			t.Errorf("no case has the lever %s", l.Lever)
		}
	}
}
