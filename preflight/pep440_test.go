package preflight

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sparkrun/configs"
)

func TestVersionsInTheirOrder(t *testing.T) {
	t.Parallel()
	// Each is before the next one.
	order := []string{
		"0.16.0.dev3", "0.16.0a0.dev1", "0.16.0a0", "0.16.0a0+git1", "0.16.0b2", "0.16.0rc1", "0.16.0", "0.16.0+cpu", "0.16.0+cu128",
		"0.16.0+cu130", "0.16.0+git", "0.16.0+git.2", "0.16.0+1", "0.16.0+1.git", "0.16.0+2", "0.16.0+10", "0.16.0.post1.dev1", "0.16.0.post1", "0.16.1", "0.17", "2.9.0a0+50eac811a6.nv25.09",
		"2.9.0", "2.10.0.dev20251024+cu130", "2.10.0", "2026.7.2", "1!0.1",
	}
	for i, a := range order {
		v, ok := parsePEP440(a)
		if !ok {
			t.Errorf("%s is no version", a)
			continue
		}
		for j, b := range order {
			w, _ := parsePEP440(b)
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := v.compare(w); got != want {
				t.Errorf("%s against %s: %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestVersionsThatAreOne(t *testing.T) {
	t.Parallel()
	for a, b := range map[string]string{
		"1.0": "1.0.0.0", "v1.2": "1.2", "1.0-rc.1": "1.0RC1", "1.0c1": "1.0rc1", "1.0alpha": "1.0a0", "1.0preview2": "1.0rc2",
		"1.0-1": "1.0.post1", "1.0r3": "1.0.post3", "1.0.post": "1.0.post0", "1.0dev": "1.0.dev0", "1.0+cu-130_x": "1.0+CU.130.x", " 007.1 ": "7.1",
	} {
		v, ok1 := parsePEP440(a)
		w, ok2 := parsePEP440(b)
		if !ok1 || !ok2 || v.compare(w) != 0 {
			t.Errorf("%s and %s: %v %v", a, b, v, w)
		}
	}
	for _, text := range []string{"", "unknown", "1.0.x", "1..0", "+cu130", "1.0+", "1.0+a..b", "99999999999999999999999.1", "1.0 2"} {
		if v, ok := parsePEP440(text); ok {
			t.Errorf("%q is read as %v", text, v)
		}
	}
}

func TestSameVersion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		have, want string
		same       bool
	}{
		{"0.49.2", "0.49.2", true},
		{"0.49.2+cu130", "0.49.2", true},
		{"0.49.2", "0.49.2+cu130", false},
		{"2.9.0a0+50eac811a6.nv25.09", "2.9.0a0+50EAC811A6.nv25.09", true},
		{"0.17.0a0+git", "0.17.0", false},
		{"5.13.1.dev0", "5.13.1", false},
		{"editable", "editable", true},
		{"editable", "1.0", false},
	} {
		if got := sameVersion(c.have, c.want); got != c.same {
			t.Errorf("%s as %s: %t", c.have, c.want, got)
		}
	}
}

func TestVersionRanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r, v string
		in   bool
	}{
		{"<0.16.0", "0.13.0+git", true},
		// What compares versions takes a pre-release for older, and refuses it.
		{"<0.16.0", "0.16.0a0+git", true},
		{"<0.16.0", "0.16.0", false},
		{"<0.16.0", "0.16.0+cu130", false},
		{">=0.19.0", "0.19.0", true},
		{">=0.19.0", "0.19.0rc1", false},
		{">=1.23, <2", "1.23.1", true},
		{">=1.23, <2", "2.0", false},
		{"==2.9.0", "2.9.0+cu130", true},
		{"<=2.9.0", "2.9.0+cu130", true},
		{"!=2.9.0", "2.9.0+cu130", false},
		{"==2.9.0+cu130", "2.9.0+cu128", false},
		{">1.0", "1.0.post1", true},
		{">1.0", "garbage", false},
		{"<1.0", "", false},
	} {
		r, err := parseRange(c.r)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.contains(c.v); got != c.in {
			t.Errorf("%s in %s: %t", c.v, c.r, got)
		}
	}
	for _, text := range []string{"", "1.0", "~=1.0", "<1.0,", ">=x", "=1.0"} {
		if _, err := parseRange(text); err == nil {
			t.Errorf("%q is taken for a range", text)
		}
	}
	if (versionRange{}).contains("1.0") {
		t.Error("an empty range has a version in it")
	}
}

func TestOrderOfVersionsIsAnOrder(t *testing.T) {
	t.Parallel()
	gen := rapid.Custom(func(t *rapid.T) string {
		return rapid.StringMatching(`([01]!)?[012](\.[0-2]){0,2}((a|b|rc)[01])?(\.post[01])?(\.dev[01])?(\+(cu130|git|[01]|[01]\.git))?`).Draw(t, "version")
	})
	rapid.Check(t, func(t *rapid.T) {
		var v [3]pep440
		for i := range v {
			text := gen.Draw(t, "v")
			var ok bool
			if v[i], ok = parsePEP440(text); !ok {
				t.Fatalf("%s is no version", text)
			}
		}
		if v[0].compare(v[1]) != -v[1].compare(v[0]) || v[0].compare(v[0]) != 0 {
			t.Fatal("not the same from both sides")
		}
		if v[0].compare(v[1]) <= 0 && v[1].compare(v[2]) <= 0 && v[0].compare(v[2]) > 0 {
			t.Fatal("not transitive")
		}
	})
}

func TestABadRangeIsNamedByItsLine(t *testing.T) {
	t.Parallel()
	var s stack
	err := configs.Decode("stack.yaml", []byte("as_of: 2026-07-14\nknown_bad:\n  - packages:\n      torchao: \"older than 0.16\"\n"), &s)
	if err == nil || !strings.Contains(err.Error(), "stack.yaml:4: ") || !strings.Contains(err.Error(), "older than 0.16") {
		t.Errorf("error %v", err)
	}
}
