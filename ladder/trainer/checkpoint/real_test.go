package checkpoint

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRealCheckpoints takes what the libraries themselves save, cuts each file at
// several places, and resumes from a copy.
func TestRealCheckpoints(t *testing.T) {
	t.Parallel()
	python := os.Getenv("SPARKRUN_TRAINERS_PYTHON")
	if python == "" {
		t.Skip("SPARKRUN_TRAINERS_PYTHON is not set: no transformers to save with")
	}
	base := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), python, append([]string{"testdata/save.py", base}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	run()
	for _, c := range []struct {
		layout, dir string
		wants       []want
	}{
		{HF, "out", []want{{"checkpoint-1", 1, true, true, ""}, {"checkpoint-2", 2, true, true, ""}}},
		{HF, "lora", []want{{"checkpoint-1", 1, true, true, ""}}},
		{Diffusers, "images", []want{{"checkpoint-3", 3, true, true, ""}}},
		{Torchtitan, "titan", []want{{"step-3", 3, true, true, ""}}},
		{NanoGPT, "gpt", []want{{"ckpt.pt", 70000, true, true, ""}}},
	} {
		dir := filepath.Join(base, c.dir)
		got := List(c.layout, dir)
		check(t, dir, got, c.wants)
		if len(got) > 0 {
			cutEach(t, c.layout, dir, got[len(got)-1].Path)
		}
	}
	if why, note := torchFile(filepath.Join(base, "old.pt")); why != "" || !strings.Contains(note, "before 1.6") {
		t.Errorf("the old format: %q, %q", why, note)
	}

	c, ok := NewestComplete(List(HF, filepath.Join(base, "out")))
	if !ok {
		t.Fatal("none is complete any more")
	}
	before, _ := fingerprint(t, filepath.Join(base, "out"))
	ready, err := ForResume(c, Want{Layout: HF, Micro: 1, Into: Places(c, filepath.Join(base, "out"), "id", 2)})
	if err != nil || ready.Path == c.Path || !strings.Contains(ready.Note, "train_batch_size 1 instead of 2") {
		t.Fatalf("%+v, %v", ready, err)
	}
	if out := run("resume", ready.Path); !strings.Contains(out, "AT 3 1\n") {
		t.Errorf("the resumed run:\n%s", out)
	}
	after, _ := fingerprint(t, filepath.Join(base, "out"))
	same(t, "after a resume from the copy", before, after)
}

// noEnd are files that a resume does not read and whose format has no end.
var noEnd = []string{".md", ".jinja", ".txt", ".model"}

// cutEach cuts every file of a checkpoint at several places, alone and with all that
// was written after it gone.
func cutEach(t *testing.T, layout, dir, path string) {
	t.Helper()
	type file struct {
		path string
		data []byte
		at   time.Time
	}
	var files []file
	root := path
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		root = filepath.Dir(path)
	}
	err := filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		files = append(files, file{p, data, info.ModTime()})
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", path, len(files), err)
	}
	slices.SortFunc(files, func(a, b file) int { return a.at.Compare(b.at) })
	put := func(fs []file) {
		t.Helper()
		for _, f := range fs {
			if err := os.WriteFile(f.path, f.data, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(f.path, f.at, f.at); err != nil {
				t.Fatal(err)
			}
		}
	}
	complete := func() bool {
		for _, c := range List(layout, dir) {
			if strings.HasPrefix(c.Path, path) && c.Complete {
				return true
			}
		}
		return false
	}
	for i, f := range files {
		n := len(f.data)
		for _, cut := range []int{0, 1, 7, n / 3, n / 2, n - 40, n - 22, n - 2, n - 1} {
			if cut < 0 || cut >= n {
				continue
			}
			if err := os.WriteFile(f.path, f.data[:cut], 0o644); err != nil {
				t.Fatal(err)
			}
			blank := strings.TrimSpace(string(f.data[cut:])) == "" // a last line break
			if complete() && !blank && !slices.Contains(noEnd, filepath.Ext(f.path)) {
				t.Errorf("%s cut to %d bytes of %d passes", f.path, cut, n)
			}
			for _, later := range files[i+1:] {
				if err := os.Remove(later.path); err != nil {
					t.Fatal(err)
				}
			}
			if complete() && len(files) > i+1 {
				t.Errorf("%s cut to %d bytes of %d, and nothing after it, passes", f.path, cut, n)
			}
			put(files[i:])
		}
	}
	if !complete() {
		t.Errorf("%s is whole again and does not pass", path)
	}
}
