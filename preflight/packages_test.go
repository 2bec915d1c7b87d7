package preflight

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPackagesAreThoseThePythonWouldImport(t *testing.T) {
	t.Parallel()
	const site = "home/ada/.local/lib/python3.12/site-packages/"
	r := root(copyTree(t, "", map[string]string{
		"usr/bin/python3": "-> python3.12", "usr/bin/python3.12": elf,
		site + "torch-2.9.0+cu130.dist-info/METADATA":                                      "",
		site + "Unsloth-Zoo-2026.7.2.dist-info/METADATA":                                   "",
		site + "requests-2.31.0.dist-info/METADATA":                                        "",
		site + "trl.dist-info/METADATA":                                                    "",
		"usr/local/lib/python3.12/dist-packages/torch-2.6.0.dist-info/METADATA":            "",
		"usr/local/lib/python3.12/dist-packages/peft-0.19.1-py3.12.egg-info":               "",
		"usr/local/lib/python3.12/dist-packages/xformers-0.0.33.egg-info/x":                "",
		"usr/local/lib/python3.10/dist-packages/triton-3.0.0.dist-info/METADATA":           "",
		"usr/local/lib/python3.12/dist-packages/flash_attn-2.7.4.post1.dist-info/METADATA": "",
	}))
	s, err := loadStack()
	if err != nil {
		t.Fatal(err)
	}
	got := packagesIn(r, venueOf(r, "/usr/bin/python3", env(), "/home/ada", ""), s.Packages)
	want := map[string]string{"torch": "2.9.0+cu130", "unsloth_zoo": "2026.7.2", "peft": "0.19.1", "xformers": "0.0.33", "flash_attn": "2.7.4.post1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestSkippedReportHasAllTen(t *testing.T) {
	t.Parallel()
	r := Skipped(t.TempDir(), "--no-preflight")
	if len(r.Findings) != 10 || r.Verdict != ReadyWithWarnings || r.HeadroomGB != nil {
		t.Errorf("%+v", r)
	}
	for _, f := range r.Findings {
		if f.Value() != "skip: --no-preflight" {
			t.Errorf("%s: %q", f.ID, f.Value())
		}
	}
}

// A preflight that was not made still says which machine it is, as far as the
// machine says so by itself.
func TestSkippedAtNamesThePlatform(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tree  string
		files map[string]string
		want  string
	}{
		{"spark", nil, DGXSpark},
		{"spark", map[string]string{"proc/driver/nvidia/version": ""}, DGXSpark},
		{"laptop", nil, Generic},
		{"laptop", map[string]string{"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95\n"}, GenericNVIDIA},
		{"laptop", map[string]string{
			"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module  580.95\n", "sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark\n",
		}, DGXSpark},
	} {
		r := Skipped(copyTree(t, c.tree, c.files), "--no-preflight")
		if r.Platform != c.want || r.Verdict != ReadyWithWarnings || len(r.Findings) != 10 || r.Findings[0].Value() != "skip: --no-preflight" {
			t.Errorf("%s with %v: platform %q, verdict %q, %+v", c.tree, c.files, r.Platform, r.Verdict, r.Findings)
		}
	}
	if r := Skipped(t.TempDir(), "x"); r.Platform != Generic {
		t.Errorf("an empty tree is %q", r.Platform)
	}
}
