package oom

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every entry of the table says what it matches and is pinned by a text.
func TestEveryPatternIsPinned(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	check := func(id, what string, match func(string) bool, yes, no []string) {
		if strings.TrimSpace(what) == "" || len(yes) == 0 {
			t.Errorf("%s: needs what and case", id)
		}
		for _, s := range yes {
			if !match(s) {
				t.Errorf("%s does not match %q", id, s)
			}
		}
		for _, s := range no {
			if match(s) {
				t.Errorf("%s matches %q", id, s)
			}
		}
	}
	for i := range tab.Patterns {
		p := &tab.Patterns[i]
		check(p.ID, p.What, p.matches, p.Case, p.Not)
		for _, s := range p.Case {
			// The cheap filter must never hide a line from its pattern.
			if found, _ := tab.pre.scan(s, &sieve{}, nil); !slices.Contains(found, int32(i)) {
				t.Errorf("%s: the prefilter drops %q", p.ID, s)
			}
		}
	}
	for i := range tab.Kernel {
		k := &tab.Kernel[i]
		check(k.ID, k.What, k.Re.MatchString, k.Case, k.Not)
		for _, s := range k.Case {
			if got, ok := tab.kernelLine(KernelRecord{Text: s}); !ok || got.pattern.ID != k.ID {
				t.Errorf("%s: the line is not read as it: %q", k.ID, s)
			}
		}
	}
}

// The ladder's order is fixed: length before batch. Advice that says it the
// other way round, or tells to take a smaller batch where the length is not even
// named, would send people past it.
func TestAdviceKeepsTheOrderOfTheLadder(t *testing.T) {
	t.Parallel()
	batch := regexp.MustCompile(`(?i)smaller (micro-)?batch`)
	not := regexp.MustCompile(`(?i)more than a smaller batch`)
	seen := 0
	for _, a := range loaded(t).Advice {
		b := batch.FindStringIndex(a.Text)
		if b == nil || not.MatchString(a.Text) {
			continue
		}
		seen++
		if l := strings.Index(a.Text, "length"); l < 0 || l > b[0] {
			t.Errorf("batch before length: %s", a.Text)
		}
	}
	if seen < 3 {
		t.Errorf("only %d pieces of advice name the batch: the test looks past the table", seen)
	}
}

func TestPrefixesArePinned(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	for _, p := range tab.Prefixes {
		text, stream := tab.Clean(p.Case.In)
		if text != p.Case.Out || stream != p.Case.Stream {
			t.Errorf("%s: %q gives %q of stream %q", p.What, p.Case.In, text, stream)
		}
	}
}

func TestCleanNestedPrefixes(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	for _, c := range []struct{ in, text, stream string }{
		{"plain line", "plain line", ""},
		{"  indented stays", "  indented stays", ""},
		{"\x1b[31m[rank1]:\x1b[0m KeyError: 1\r", "KeyError: 1", "rank1"},
		{"trainer-1  | (Worker pid=20) [rank3]: KeyError", "KeyError", "trainer-1/Worker pid=20/rank3"},
		{" 10%|#  | 1/10 [00:01<00:09]\r 20%|## | 2/10 [00:02<00:08, 1it/s]", " 20%|## | 2/10 [00:02<00:08, 1it/s]", ""},
		{"\x00\x00Killed\x00", "Killed", ""},
		{"\x1b]0;title\x07text\x1b(B", "text", ""},
		{"torn \x1b[3", "torn ", ""},
		{"", "", ""},
	} {
		text, stream := tab.Clean(c.in)
		if text != c.text || stream != c.stream {
			t.Errorf("%q gives %q, %q; want %q, %q", c.in, text, stream, c.text, c.stream)
		}
	}
}

func TestLoadErrorsNameTheLine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"bad expression": {"patterns:\n  - id: A\n    role: fatal\n    kind: x\n    re: 'abc('\n", ":5: "},
		"unknown key":    {"patterns:\n  - id: A\n    roll: fatal\n", ":3: "},
		"no such role":   {"patterns:\n  - id: A\n    role: fatale\n    re: abc\n", ":4: pattern A: there is no role"},
		"no literal":     {"patterns:\n  - id: A\n    role: fatal\n    kind: x\n    re: '\\d+'\n", ":5: pattern A: every alternative"},
		"no kind":        {"patterns:\n  - id: A\n    role: fatal\n    re: abc\n", ":4: pattern A: a kind"},
		"no group":       {"sizes:\n  - {name: free, re: 'free \\d+'}\n", ":2: size free"},
		"empty prefix":   {"prefixes:\n  - what: x\n    re: ''\n", ":3: prefix"},
		"empty":          {"", "the file is empty"},
	} {
		path := filepath.Join(t.TempDir(), "extra.yaml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "absent.yaml")); !os.IsNotExist(unwrapAll(err)) {
		t.Errorf("an absent file: %v", err)
	}
}

func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		if _, leaf := u.(*os.PathError); leaf {
			return err
		}
		err = u.Unwrap()
	}
}

func TestExtraFileReplacesAndAdds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "extra.yaml")
	text := `patterns:
  - id: X7
    role: ignore
    what: silenced
    re: 'Error out of memory at line'
  - id: MINE
    role: fatal
    bare: true
    kind: cuda-driver
    what: our own kernel library
    re: 'flurb arena exhausted'
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tab, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	die := func(line string) Verdict {
		return tab.Decide(Evidence{Output: scanText(tab, line), Exit: Exit{Known: true, Code: 1}})
	}
	if v := die("flurb arena exhausted"); v.Answer != OOM || v.Kind != "cuda-driver" {
		t.Errorf("the added pattern gives %s %s", v.Answer, v.Kind)
	}
	if v := die("Error out of memory at line 3 in file x/ops.cu"); v.Answer != NotOOM {
		t.Errorf("the replaced pattern gives %s", v.Answer)
	}
}

func TestLiterals(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string][]string{
		`^foo\d+bar`:        {"foo"},
		`(?:abc|xyz) error`: {"abc error", "xyz error"},
		`[Cc]annot`:         {"cannot"},
		`(?i)Step\d`:        {"step"},
		`(?:longer)?abc`:    {"abc", "longerabc"},
		`\d+`:               nil,
		`abc|\d`:            nil,
		`(?:abcd)+x`:        {"abcd"},
	} {
		if got := literals(expr); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int64{
		"0 bytes": 0, "12.00 MiB": 12 << 20, "3.125GB": 3355443200, "6.48G": 6957847019,
		"4770354232": 4770354232, "1 KiB": 1024, "32.0 GiB": 32 << 30, "16 B": 16,
	} {
		if got, ok := parseSize(in); !ok || got != want {
			t.Errorf("%q is %d, %v", in, got, ok)
		}
	}
	for _, in := range []string{"", "GiB", "1.2.3 GiB", "5 apples", "1 Mib", "99999999 EiB", ". B", "-3 GiB"} {
		if got, ok := parseSize(in); ok {
			t.Errorf("%q is %d", in, got)
		}
	}
}
