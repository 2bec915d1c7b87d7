package preflight

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/job"
)

var evening = time.Date(2026, 7, 14, 22, 0, 0, 0, time.UTC)

func cached(t *testing.T, c PlaybookCache) map[string]string {
	t.Helper()
	c.Schema = PlaybookSchema
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"home/ada/.cache/sparkrun-train/playbook-issues.json": string(text)}
}

func issue(n int, title string, labels ...string) PlaybookIssue {
	i := PlaybookIssue{Number: n, Title: title, UpdatedAt: evening.AddDate(0, 0, -n)}
	for _, l := range labels {
		i.Labels = append(i.Labels, struct {
			Name string `json:"name"`
		}{l})
	}
	return i
}

func TestPlaybooksTable(t *testing.T) {
	t.Parallel()
	p, err := loadPlaybooks()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse(time.DateOnly, p.AsOf); err != nil {
		t.Errorf("as_of: %v", err)
	}
	if p.Tell != 3 || p.StaleDays != 14 || p.Repository != "NVIDIA/dgx-spark-playbooks" || p.Most < 20 {
		t.Errorf("table %+v", p)
	}
	for _, b := range p.Playbooks {
		if len(b.Words) == 0 {
			t.Errorf("%s: no issue could ever be about it", b.Name)
		}
	}
}

func TestG8(t *testing.T) {
	t.Parallel()
	unsloth := &job.Job{Argv: []string{"python", "test_unsloth.py"}, Dir: "/home/ada", Script: "test_unsloth.py", Profile: "unsloth-script", Interpreter: "/usr/bin/python3"}
	inNeMo := &job.Job{Argv: []string{"docker", "run"}, Dir: "/home/ada", Container: &job.Container{Engine: "docker", Verb: "run", Image: "nvcr.io/nvidia/nemo-automodel:26.02"}}
	own := &job.Job{Argv: []string{"python", "mine.py"}, Dir: "/home/ada", Script: "mine.py", Interpreter: "/usr/bin/python3"}
	list := []PlaybookIssue{
		issue(9, "An Unsloth run ends with flat loss"), issue(2, "vLLM starts slowly"), issue(5, "test_unsloth.py: wrong address"),
		issue(4, "Something else", "Unsloth"), issue(7, "unslothed is another word"), issue(8, "UNSLOTH\x1b[2J\nG8 FAIL: forged \u202e"+strings.Repeat("x", 300)),
		issue(3, "nemo automodel: checkpoint missing"),
	}
	fresh := PlaybookCache{Fetched: evening.Add(-time.Hour), Tried: evening.Add(-time.Hour), Issues: list}
	for _, c := range []struct {
		name     string
		job      *job.Job
		files    map[string]string
		status   Status
		byDesign bool
		detail   string
		proof    []string
	}{
		{"no cache", unsloth, nil, Skip, true, "needs gh, logged in, and the network; by hand: gh issue list --repo NVIDIA/dgx-spark-playbooks", nil},
		{"nobody has asked", unsloth, map[string]string{"usr/bin/gh": "\x7fELF"}, Skip, true, "nobody has asked gh so far: sparkrun preflight does", nil},
		{"torn cache", unsloth, map[string]string{"home/ada/.cache/sparkrun-train/playbook-issues.json": `{"schema":"sparkr`}, Skip, true, "torn", nil},
		{"a folder in its place", unsloth, map[string]string{"home/ada/.cache/sparkrun-train/playbook-issues.json/x": ""}, Skip, true, "cannot be read", nil},
		{"never a success", unsloth, cached(t, PlaybookCache{Tried: evening, Problem: "gh is not logged in (gh auth login)"}), Skip, true, "gh is not logged in", nil},
		{
			"issues of the playbook", unsloth, cached(t, fresh), Info, false, "4 open issues of playbook unsloth (as of 2026-07-14): #4 Something else",
			[]string{"#4 Something else (updated 2026-07-10)", "#5 test_unsloth.py: wrong address (updated 2026-07-09)", "#8 UNSLOTH[2J G8 FAIL: forged xxx", "and 1 more"},
		},
		{"by its image", inNeMo, cached(t, fresh), Info, false, "1 open issue of playbook nemo-fine-tune (as of 2026-07-14): #3 nemo automodel", nil},
		{"of no playbook", own, cached(t, fresh), Info, false, "of none of the upstream playbooks (7 open issues", nil},
		{"no command", nil, cached(t, fresh), Info, false, "7 open issues of NVIDIA/dgx-spark-playbooks", nil},
		{"none open", unsloth, cached(t, PlaybookCache{Fetched: evening}), Pass, false, "no open issue of playbook unsloth", nil},
		{
			"old, and the last try failed", unsloth, cached(t, PlaybookCache{Fetched: evening.AddDate(0, 0, -15), Issues: list[:1], Tried: evening, Problem: "gh gave no answer within 5.0 s"}), Info, false,
			"as of 2026-06-29, 15 days ago",
			[]string{"without success: gh gave no answer"},
		},
	} {
		in := Input{Root: copyTree(t, "spark", c.files), Getenv: env(), Device: gb10, Machine: "aarch64", Job: c.job, Now: evening}
		f := find(t, Run(t.Context(), in), "G8")
		proof := strings.Join(f.Evidence, "\n")
		if f.Status != c.status || f.ByDesign != c.byDesign || !strings.Contains(f.Detail, c.detail) {
			t.Errorf("%s: %+v", c.name, f)
		}
		for _, want := range c.proof {
			if !strings.Contains(proof, want) {
				t.Errorf("%s: %q is not in\n%s", c.name, want, proof)
			}
		}
		if len(f.Evidence) > 4 || strings.ContainsAny(f.Line+proof, "\x1b\u202e") || strings.Contains(proof, strings.Repeat("x", 150)) {
			t.Errorf("%s: foreign text as it came:\n%q", c.name, proof)
		}
	}
	in := Input{Root: copyTree(t, "laptop", cached(t, fresh)), Getenv: env(), Device: noLibrary, Job: unsloth}
	if f := find(t, Run(t.Context(), in), "G8"); !f.ByDesign {
		t.Errorf("on a laptop: %+v", f)
	}
	// The first answer of gh takes longer than a preflight waits.
	in = Input{
		Root: copyTree(t, "spark", map[string]string{"usr/bin/gh": "\x7fELF"}), Getenv: env(), Device: gb10, Machine: "aarch64", Job: unsloth, Now: evening,
		Playbooks: func(context.Context) {},
	}
	if f := find(t, Run(t.Context(), in), "G8"); !f.ByDesign || !strings.Contains(f.Detail, "gh was asked and has not answered yet") {
		t.Errorf("without an answer so far: %+v", f)
	}
}

func TestPlaybookCacheFile(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"/var/cache/ada", "/home/ada", "/var/cache/ada/sparkrun-train/playbook-issues.json"},
		{"", "/home/ada", "/home/ada/.cache/sparkrun-train/playbook-issues.json"},
		{"relative", "/home/ada", "/home/ada/.cache/sparkrun-train/playbook-issues.json"},
		{"", "", ""},
		{"", "relative", ""},
	} {
		if got := PlaybookCacheFile(env("XDG_CACHE_HOME", c[0], "HOME", c[1])); got != c[2] {
			t.Errorf("%q, %q: %q", c[0], c[1], got)
		}
	}
}

func TestPlaybookQuery(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		cache PlaybookCache
		due   bool
	}{
		{"nothing yet", PlaybookCache{}, true},
		{"an hour old", PlaybookCache{Fetched: evening.Add(-time.Hour)}, false},
		{"two days old", PlaybookCache{Fetched: evening.Add(-48 * time.Hour)}, true},
		{"from the future", PlaybookCache{Fetched: evening.Add(time.Hour)}, true},
		{"failed a minute ago", PlaybookCache{Tried: evening.Add(-time.Minute), Problem: "x"}, false},
		{"failed an hour ago", PlaybookCache{Tried: evening.Add(-time.Hour), Problem: "x"}, true},
	} {
		repository, most, due, err := PlaybookQuery(c.cache, evening)
		if err != nil || due != c.due || repository == "" || most <= 0 {
			t.Errorf("%s: due %t, %v", c.name, due, err)
		}
	}
}

func TestHasWord(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"FLUX.1 breaks": true, "the flux": true, "flux-finetuning": true, "flux": true, "reflux": false, "fluxes": false, "ünflux": false, "": false,
		"reflux and flux": true,
	} {
		if hasWord(text, "Flux") != want {
			t.Errorf("%q: %t", text, !want)
		}
	}
	if hasWord("x", "") {
		t.Error("an empty word is in everything")
	}
}
