package trainer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// What looks like a slip is said: files that are not there, a subcommand, a knob's name.
func TestSlipsAreSaid(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"mine.py": "print(1)\n", "locked.py": "print(1)\n", "bin/there.sh": "true\n"})
	if err := os.Chmod(filepath.Join(dir, "locked.py"), 0); err != nil {
		t.Fatal(err)
	}
	for argv, want := range map[string]string{
		"python nosuch.py":             "nosuch.py: no such file",
		"torchrun nosuch.py":           "nosuch.py: no such file",
		"trl sft --config sfft.yaml":   "reading sfft.yaml: file does not exist",
		"llamafactory-cli trian":       "did you mean llamafactory-cli train (llama-factory)?",
		"axolotl trn a.yml":            "did you mean axolotl train",
		"llamafactory-cli export x":    "no trainer profile fits",
		"./train.sh":                   "put sparkrun -- inside it",
		"bash train.sh":                "put sparkrun -- inside it",
		"bash nosuch.sh":               "nosuch.sh: no such file",
		"env A=1 sh sub/nosuch.sh x":   "sub/nosuch.sh: no such file",
		"bash -c python~mine.py|tee~l": "leave that out",
		"docker run -v " + dir + "/gone:/w -w /w img python mine.py": "is to see as /w, is not there",
		"docker run -v " + dir + ":/w -w /w img python his.py":       "his.py: no such file",
	} {
		if j := understand(t, s, dir, argv); !strings.Contains(strings.Join(j.Notes, "\n"), want) {
			t.Errorf("%s: %q, want %q", argv, j.Notes, want)
		}
	}
	if j := understand(t, s, dir, "python mine.py"); strings.Contains(strings.Join(j.Notes, "\n"), "no such file") {
		t.Errorf("%q", j.Notes)
	}
	// A shell also looks on the PATH, and an earlier command may make the script.
	for _, argv := range []string{"bash there.sh", "bash mine.py", "bash -c make~gen;bash~nosuch.sh", "docker run img bash nosuch.sh"} {
		if j := understand(t, s, dir, argv, "PATH=/nowhere:"+dir+"/bin"); j.Slip != "" {
			t.Errorf("%s: %q", argv, j.Slip)
		}
	}
	if os.Geteuid() != 0 {
		if j := understand(t, s, dir, "python locked.py"); !strings.Contains(strings.Join(j.Notes, "\n"), "locked.py cannot be read") {
			t.Errorf("%q", j.Notes)
		}
	}
	if _, why := s.CanTurn(understand(t, s, dir, "trl sft --config sfft.yaml"), job.SeqLen); !strings.Contains(why, "sfft.yaml") {
		t.Errorf("%q", why)
	}
	for name, near := range map[string]string{"seqlen": "did you mean seq_len?", "microbatch": "did you mean micro_batch?", "epsilon": "", "seq_len": ""} {
		j, err := s.Understand([]string{"./train"}, dir, nil, map[string]string{name: "12"})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(j.Notes, "\n"); strings.Contains(got, "did you mean") != (near != "") || !strings.Contains(got, near) {
			t.Errorf("--knob %s: %q", name, got)
		}
	}
}

// A flag that the script cannot read does not hide the value in its code.
func TestFlagsThatNobodyReads(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	const code = "from trl import SFTConfig, SFTTrainer\nSFTConfig(max_length=4096, per_device_train_batch_size=8)\n"
	dir := folder(t, map[string]string{
		"dumb.py": code, "argv.py": "import sys\nprint(sys.argv)\n" + code, "own.py": "from conf import get_args\n" + code,
		"parsed.py": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--max_length', type=int)\na = p.parse_args()\nfrom trl import SFTConfig\nSFTConfig(max_length=a.max_length)\n",
		"none.py":   "from trl import SFTConfig\nSFTConfig(per_device_train_batch_size=8)\n",
	})
	for argv, want := range map[string]job.Setting{
		"python dumb.py --max_length 2048":   {Value: "4096", Source: job.FromScript, Where: "dumb.py:2"},
		"python dumb.py":                     {Value: "4096", Source: job.FromScript, Where: "dumb.py:2"},
		"python argv.py --max_length 2048":   {Value: "2048", Source: job.FromArgv, Where: "--max_length"},
		"python own.py --max_length 2048":    {Value: "4096", Source: job.FromScript, Where: "own.py:3"},
		"python parsed.py --max_length 2048": {Value: "2048", Source: job.FromArgv, Where: "--max_length"},
		"python none.py --max_length 2048":   {Value: "2048", Source: job.FromArgv, Where: "--max_length"},
	} {
		j := understand(t, s, dir, argv)
		got := j.Knobs[job.SeqLen]
		if got.Value != want.Value || got.Source != want.Source || got.Where != want.Where {
			t.Errorf("%s: %+v, want %+v", argv, got, want)
		}
		unread := strings.Contains(strings.Join(j.Notes, "\n"), "reads no command line: 4096 in dumb.py:2 counts")
		if unread != (argv == "python dumb.py --max_length 2048") {
			t.Errorf("%s: %q", argv, j.Notes)
		}
	}
	j := understand(t, s, dir, "python dumb.py --max_length 2048")
	r, err := s.Rewrite(j, Request{Changes: []Change{to(job.SeqLen, "4096", "2048")}, RunID: "r", Attempt: 2, AttemptDir: dir + "/a"})
	if err != nil || r.Shim == nil || strings.Join(r.Argv, " ") != "python dumb.py --max_length 2048" {
		t.Errorf("%q, shim %v, %v", r.Argv, r.Shim, err)
	}
}
