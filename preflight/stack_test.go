package preflight

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func loadedStack(t *testing.T) stack {
	t.Helper()
	s, err := loadStack()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestInstallLines(t *testing.T) {
	t.Parallel()
	s := loadedStack(t)
	want := []string{
		`pip install "transformers==5.13.1" "peft==0.19.1" "hf_transfer==0.1.9" "datasets==4.3.0" "trl==1.8.0"`,
		`pip install --no-deps "unsloth==2026.7.2" "unsloth_zoo==2026.7.2" "bitsandbytes==0.49.2"`,
		`pip install -U "torchao==0.17.0"`,
	}
	if diff := cmp.Diff(want, s.installLines("pip install")); diff != "" {
		t.Error(diff)
	}
	if got := s.installLines("'/home/a b/bin/python' -m pip install", "torchao"); !slices.Equal(got, []string{`'/home/a b/bin/python' -m pip install -U "torchao==0.17.0"`}) {
		t.Errorf("%q", got)
	}
}

func TestStackTableHoldsTogether(t *testing.T) {
	t.Parallel()
	s := loadedStack(t)
	if _, err := time.Parse(time.DateOnly, s.AsOf); err != nil || s.Refresh == "" {
		t.Errorf("as of %q, refresh %q", s.AsOf, s.Refresh)
	}
	recorded := func(what, name string) {
		if !slices.Contains(s.Packages, name) {
			t.Errorf("%s: the version of %s is never looked at", what, name)
		}
	}
	pinned := func(what, name string) {
		if s.pin(name).Version == "" {
			t.Errorf("%s: %s has no version", what, name)
		}
	}
	for _, p := range s.Pins {
		recorded("pins", p.Name)
		if _, ok := parsePEP440(p.Version); p.Version != "" && !ok {
			t.Errorf("pins: %s %s is no version", p.Name, p.Version)
		}
		if _, ok := parsePEP440(p.Image); p.Image != "" && !ok {
			t.Errorf("pins: %s %s is no version", p.Name, p.Image)
		}
	}
	for _, l := range s.Install {
		for _, name := range l.Packages {
			pinned("install", name)
		}
	}
	pins := make(map[string]string)
	for _, p := range s.Pins {
		if p.Version != "" {
			pins[p.Name] = p.Version
		}
	}
	for _, k := range s.KnownBad {
		if k.Why == "" || len(k.Cure) == 0 || matches(k.Packages, pins) {
			t.Errorf("known_bad: %+v has no reason or cure, or forbids the pins", k)
		}
		for name := range k.Packages {
			recorded("known_bad", name)
		}
		for _, name := range k.Cure {
			pinned("known_bad", name)
		}
	}
	for _, v := range s.Variables {
		if v.Why == "" || v.Status != Info && v.Status != Warn || v.Status == Warn && (v.Cost == "" || v.Fix == "") {
			t.Errorf("variables: %+v", v)
		}
		for _, word := range append(append([]string{}, v.Is...), v.Not...) {
			if word != strings.ToLower(word) {
				t.Errorf("variables: %s: values are compared in small letters, not %q", v.Name, word)
			}
		}
		for name := range v.With {
			recorded(v.Name, name)
		}
		for name := range v.AbsentWith {
			recorded(v.Name, name)
		}
	}
	for _, r := range s.Fragile {
		if r.Why == "" || r.Instead == "" || len(r.Profiles)+len(r.Packages) == 0 {
			t.Errorf("fragile: %+v", r)
		}
		for _, name := range r.Packages {
			recorded(r.What, name)
		}
	}
	if _, ok := parsePEP440(s.Triton.PtxasFrom); !ok || len(s.Triton.OldPtxas.terms) == 0 || len(s.NVFP4.Arch) == 0 || s.NVFP4.ReadOneMiB <= 0 {
		t.Errorf("triton %+v, nvfp4 %+v", s.Triton, s.NVFP4)
	}
}
