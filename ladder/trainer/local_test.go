package trainer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const localProfile = `# settings of this job
grace: 60s
trainers:
  # our own trainer
  - name: house
    about: the trainer of this house
    recognise:
      programs: [housetrain]
    family: per-device
    parser: {always: true, style: argparse}
    knobs:
      seq_len: {names: [ctx], kind: int, default: "4096"}
    # the last word
  -
    name: second
    about: another one
    recognise: {programs: [secondtrain]}
    family: per-device
    parser: {always: true, style: argparse}
    knobs:
      seq_len: {names: [ctx], kind: int}
max-attempts: 3
`

func TestProfilesBesideTheJob(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sparkrun.yaml")
	if err := os.WriteFile(path, []byte(localProfile), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddLocal(path); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(s.Names(), "house") || !slices.Contains(s.Names(), "second") {
		t.Fatalf("profiles: %v", s.Names())
	}
	j, err := s.Understand([]string{"housetrain", "--ctx", "8192"}, t.TempDir(), nil, nil)
	if err != nil || j.Profile != "house" || j.Knobs["seq_len"].Value != "8192" {
		t.Errorf("profile %q, knobs %v, %v", j.Profile, j.Knobs, err)
	}
}

// A mistake is told with the line of the settings file.
func TestProfilesBesideTheJobNameTheirLine(t *testing.T) {
	t.Parallel()
	line := func(text, what string) string {
		for i, l := range strings.Split(text, "\n") {
			if strings.Contains(l, what) {
				return ":" + string(rune('0'+(i+1)/10)) + string(rune('0'+(i+1)%10)) + ":"
			}
		}
		return "nowhere"
	}
	for name, c := range map[string]struct{ old, broken, at string }{
		"an unknown key":        {"    about: the trainer", "    abuot: the trainer", "abuot"},
		"a family that is none": {"    family: per-device\n    parser: {always: true, style: argparse}\n    knobs:\n      seq_len: {names: [ctx], kind: int, default", "    family: both\n    parser: {always: true, style: argparse}\n    knobs:\n      seq_len: {names: [ctx], kind: int, default", "family: both"},
		"in the second entry":   {"{programs: [secondtrain]}", "{programs: [secondtrain], prograns: [x]}", "prograns"},
	} {
		text := strings.Replace(localProfile, c.old, c.broken, 1)
		if text == localProfile {
			t.Fatalf("%s: nothing was broken", name)
		}
		path := filepath.Join(t.TempDir(), "sparkrun.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Load(nil)
		if err != nil {
			t.Fatal(err)
		}
		want := line(text, c.at)
		if want[1] == '0' {
			want = ":" + want[2:]
		}
		if err := s.AddLocal(path); err == nil || !strings.Contains(err.Error(), path+want) {
			t.Errorf("%s: %v, want %s", name, err, path+want)
		}
	}
}

func TestProfilesBesideTheJobThatAreNoList(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"trainers: {name: x}\n", "trainers: [x]\n", "trainers:\n  - x\n", "trainers:\n  - &a {name: b}\n"} {
		path := filepath.Join(t.TempDir(), "sparkrun.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Load(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.AddLocal(path); err == nil || !strings.Contains(err.Error(), path+":") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
