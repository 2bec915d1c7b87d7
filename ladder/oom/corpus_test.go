package oom

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
)

var builtIn = sync.OnceValues(func() (*Table, error) { return Load() })

// loaded is the built-in table, which all tests share.
func loaded(t testing.TB) *Table {
	t.Helper()
	tab, err := builtIn()
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// scanText reads a whole log, with the advances that Steps finds.
func scanText(tab *Table, text string) Output {
	o, err := tab.Read(strings.NewReader(text))
	if err != nil {
		panic(err)
	}
	return o
}

type labelled struct {
	id, label, kind, exit, signal string
	log, system, sizes            string
}

func (c labelled) evidence(tab *Table, withSystem bool) Evidence {
	ev := Evidence{Output: scanText(tab, c.log)}
	if n, err := strconv.Atoi(c.exit); err == nil {
		ev.Exit = Exit{Known: true, Code: n, Signal: c.signal}
	}
	if withSystem && c.system != "" {
		SystemLines(&ev, strings.Split(c.system, "\n"))
	}
	return ev
}

func labelledCases(t *testing.T, dir string) []labelled {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "index.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comma = '\t'
	rows, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var cases []labelled
	for _, row := range rows[1:] {
		c := labelled{id: row[0], label: row[1], kind: row[2], exit: row[4], signal: row[5], sizes: row[6]}
		b, err := os.ReadFile(filepath.Join(dir, c.id+".log"))
		if err != nil {
			t.Fatal(err)
		}
		c.log = string(b)
		if b, err := os.ReadFile(filepath.Join(dir, c.id+".system.log")); err == nil {
			c.system = string(b)
		}
		cases = append(cases, c)
	}
	return cases
}

// TestLabelledLogs scores the verdict on the labelled logs that SPARKRUN_CASES
// names, once by text and status alone and once with the system's records.
func TestLabelledLogs(t *testing.T) {
	dir := os.Getenv("SPARKRUN_CASES")
	if dir == "" {
		t.Skip("SPARKRUN_CASES names no folder of labelled logs")
	}
	tab := loaded(t)
	cases := labelledCases(t, dir)
	for _, withSystem := range []bool{false, true} {
		matrix := map[string]int{}
		kinds, kindsRight := 0, 0
		var wrong []string
		for _, c := range cases {
			v := tab.Decide(c.evidence(tab, withSystem))
			matrix[c.label+" -> "+string(v.Answer)]++
			line := fmt.Sprintf("%s: %s (%s) -> %s %s%s %s | %s", c.id, c.label, c.exit, v.Answer, v.Kind, v.Reason, v.Confidence, v.Quote)
			opposite := (c.label == "oom" && v.Answer == NotOOM) || (c.label == "not-oom" && v.Answer == OOM)
			if opposite && v.Confidence == High {
				t.Errorf("sure and wrong: %s", line)
			}
			if c.label != "ambiguous" && string(v.Answer) != c.label {
				wrong = append(wrong, line)
			}
			for _, f := range strings.Fields(c.sizes) {
				name, text, _ := strings.Cut(f, "=")
				name = strings.Replace(name, "reserved_unalloc", "reserved_unallocated", 1)
				if n, ok := parseSize(text); ok && v.Answer == OOM && n != v.Sizes[name] {
					t.Logf("size %s=%s (%d) of %s is %d", name, text, n, c.id, v.Sizes[name])
				}
			}
			if c.label == "oom" && v.Answer == OOM {
				kinds++
				if v.Kind == c.kind {
					kindsRight++
				} else {
					t.Logf("kind %s for %s", c.kind, line)
				}
			}
		}
		keys := make([]string, 0, len(matrix))
		for k := range matrix {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		t.Logf("with system records: %v", withSystem)
		for _, k := range keys {
			t.Logf("  %-22s %d", k, matrix[k])
		}
		t.Logf("  kind right in %d of %d", kindsRight, kinds)
		for _, w := range wrong {
			t.Logf("  not as labelled: %s", w)
		}
	}
}
