package fakenvml

import (
	"debug/elf"
	"slices"
	"testing"
)

// exports returns the functions a library shows to the dynamic loader.
func exports(t *testing.T, path string) []string {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			names = append(names, s.Name)
		}
	}
	return names
}

func TestVariantsLackTheirSymbols(t *testing.T) {
	t.Parallel()
	const power = "nvmlDeviceGetPowerUsage"
	if all := exports(t, Build(t)); len(all) < 30 || !slices.Contains(all, power) || slices.Contains(all, "enter") {
		t.Errorf("whole library: %v", all)
	}
	if some := exports(t, Build(t, Omit(power))); len(some) < 30 || slices.Contains(some, power) {
		t.Errorf("without %s: %v", power, some)
	}
	got := exports(t, Build(t, Minimal))
	slices.Sort(got)
	want := slices.Sorted(slices.Values(minimal))
	if !slices.Equal(got, want) {
		t.Errorf("minimal: %v, want %v", got, want)
	}
}

func TestUnknownVariantsAreRefused(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"nonsense", Omit("nvmlNoSuchFunction")} {
		if path, err := build([]string{v}); err == nil {
			t.Errorf("%q was built: %s", v, path)
		}
	}
}
