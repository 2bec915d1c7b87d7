package trainer

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sparkrun/configs"
)

// Check names everything that is wrong, each with its line.
func TestCheckNamesEverything(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{
		"a.yaml": "name: A b\nfamily: odd\nrecognise: {programs: [x]}\nparser: {style: hf}\nknobs:\n  seq_len:\n    names: [len]\n    kind: int\n" +
			"    default: many\n    formula: {op: sum, of: [other]}\n  packing: {kind: bool}\nconfig:\n  - {form: first, override: none}\n  - {form: flag, override: some}\n" +
			"method:\n  to_lora: {peft: x}\ncheckpoints: odd\nresume: {how: never}\nlogs: [{path: \"{gone}/x\"}]\n",
		"b.yaml":    "name: b\nbogus: 1\nfamily: [1]\nmore: 2\n",
		"good.yaml": "name: g\nrecognise: {programs: [g]}\nfamily: global\nparser: {style: dotlist}\n",
	})
	for name, want := range map[string][]string{
		"a.yaml": {
			":1: name is", ":2: family is", ":9: knob seq_len: default", ":10: knobs.seq_len.formula.op", ":10: formula names other", ":11: knob packing has no names",
			":14: flag belongs", ":14: config[1].override", ":16: method names peft", ":17: checkpoints is", ":18: resume", ":19: logs[0] names gone",
		},
		"b.yaml":    {":2: there is no key bogus", ":3: cannot unmarshal", ":4: there is no key more"},
		"good.yaml": nil,
		"gone.yaml": {""},
	} {
		var got []string
		for _, err := range Check(filepath.Join(dir, name)) {
			got = append(got, err.Error())
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d problems, want %d:\n%s", name, len(got), len(want), strings.Join(got, "\n"))
			continue
		}
		for i, w := range want {
			if w != "" && !strings.HasPrefix(got[i], filepath.Join(dir, name)+w) {
				t.Errorf("%s: %q does not start with %q", name, got[i], w)
			}
		}
	}
}

// A profile beside the job is added as one of the user's.
func TestAddAndProfiles(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	if err := s.Add("sparkrun.yaml", []byte("name: trl\nabout: mine\nrecognise: {modules: [my.train]}\nfamily: global\nparser: {style: typer}\nknobs: {seq_len: {names: [max_len, L], kind: int}}\n")); err != nil {
		t.Fatal(err)
	}
	if err := s.Add("sparkrun.yaml", []byte("name: x\n")); err == nil {
		t.Error("a profile without anything was added")
	}
	n := 0
	for _, p := range s.Profiles() {
		if p.Name != "trl" {
			continue
		}
		n++
		if p.Origin != "sparkrun.yaml" || p.Family != "global" || len(p.Knobs) != 1 || !slices.Equal(p.Knobs[0].Spellings, []string{"--max-len", "-L"}) ||
			!slices.Equal(p.Recognised, []string{"python -m my.train"}) {
			t.Errorf("%+v", p)
		}
	}
	if n != 1 {
		t.Errorf("%d profiles of one name", n)
	}
}

// Every built-in profile passes the check that users' profiles pass.
func TestProfilesLoad(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("../../configs/trainers/[a-z]*.yaml")
	if err != nil || len(names) < 4 {
		t.Fatalf("%d profiles, %v", len(names), err)
	}
	for _, name := range names {
		for _, err := range Check(name) {
			t.Error(err)
		}
	}
	s, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Whole(); err != nil {
		t.Error(err)
	}
	entries, err := configs.FS.ReadDir("trainers")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := e.Name()[:len(e.Name())-len(filepath.Ext(e.Name()))]
		if name[0] != '_' && !slices.Contains(s.Names(), name) {
			t.Errorf("%s does not hold a profile of its own name", e.Name())
		}
	}
}

// What a built-in profile is recognised by is read without the rest of it, and says the
// same: of the profiles a start decodes only the one that fits.
func TestOnlyWhatFitsIsDecoded(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	decoded := map[string]bool{}
	for _, e := range s.profiles {
		whole := e.whole
		e.whole = func() (*profile, error) {
			decoded[e.Name] = true
			return whole()
		}
	}
	for command, want := range map[string]string{"true": "", "trl sft --model m": "trl", "python -m torchtitan.train": "torchtitan"} {
		clear(decoded)
		if j := understand(t, s, t.TempDir(), command); j.Profile != want {
			t.Errorf("%s: profile %q, want %q", command, j.Profile, want)
		}
		delete(decoded, want)
		if len(decoded) > 0 {
			t.Errorf("%s: decoded too: %v", command, slices.Sorted(maps.Keys(decoded)))
		}
	}
	for _, e := range s.profiles {
		p, err := e.whole()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(head{Name: p.Name, Rank: p.Rank, Recognise: p.Recognise}, e.head, cmp.AllowUnexported(head{})); diff != "" {
			t.Errorf("%s: the head and the whole differ:\n%s", e.file, diff)
		}
	}
}
