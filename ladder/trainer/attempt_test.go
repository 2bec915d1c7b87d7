package trainer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/job"
	"sparkrun/ladder/trainer/shim"
)

// to is one change.
func to(k job.Knob, from, to string) Change { return Change{Knob: k, From: from, To: to} }

// understand reads a command, written with spaces between its words; ~ stands for a
// space inside one.
func understand(t *testing.T, s *Set, dir, argv string, env ...string) job.Job {
	t.Helper()
	words := strings.Fields(argv)
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "~", " ")
	}
	j, err := s.Understand(words, dir, env, nil)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

const constScript = `import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer
from peft import LoraConfig

MAX = 4096
bnb = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("org/model-1B", quantization_config=bnb)
args = SFTConfig(output_dir="out", max_length=MAX, per_device_train_batch_size=8)
SFTTrainer(model, args=args, peft_config=LoraConfig(r=8)).train()
`

// The script with its values in the code walks down the whole ladder by the shim.
func TestConstantsGoDownByTheShim(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"train.py": constScript})
	j := understand(t, s, dir, "python train.py")
	for k, want := range map[job.Knob]job.Setting{
		job.SeqLen:       {Value: "4096", Source: job.FromScript, Where: "train.py:6"},
		job.MicroBatch:   {Value: "8", Source: job.FromScript, Where: "train.py:9"},
		job.Accumulation: {Value: "1", Source: job.FromScript, Where: "default of the call at train.py:9"},
		job.LoadIn4Bit:   {Value: "true", Source: job.FromScript, Where: "train.py:7"},
		job.Method:       {Value: "qlora", Source: job.FromScript, Where: "train.py:7"},
		job.OutputDir:    {Value: "out", Source: job.FromScript, Where: "train.py:9"},
		job.Model:        {Value: "org/model-1B", Source: job.FromScript, Where: "train.py:8"},
	} {
		if diff := cmp.Diff(want, j.Knobs[k]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", k, diff)
		}
	}
	attempt := filepath.Join(dir, "attempts/2")
	all := []Change{
		to(job.SeqLen, "4096", "1024"), to(job.MicroBatch, "8", "1"), to(job.Accumulation, "1", "8"),
		to(job.Method, "qlora", "lora"), to(job.OutputDir, "out", "out-a2"),
	}
	got, err := s.Rewrite(j, Request{Changes: all, RunID: "r", Attempt: 2, AttemptDir: attempt, Env: []string{"PYTHONPATH=/mine", "PATH=/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(got.Argv, " ") != "python train.py" {
		t.Errorf("argv %q", got.Argv)
	}
	want := []shim.Clamp{
		{Knob: job.SeqLen, From: "4096", To: "1024"},
		{Knob: job.MicroBatch, From: "8", To: "1"},
		{Knob: job.Accumulation, From: "1", To: "8"},
		{Knob: job.OutputDir, From: "out", To: "out-a2"},
		{Knob: job.DType, To: "bfloat16"},
		{Knob: job.LoadIn4Bit, From: "true", To: "false"},
	}
	if got.Shim == nil {
		t.Fatal("no plan for the shim")
	}
	if diff := cmp.Diff(want, got.Shim.Clamps); diff != "" {
		t.Errorf("clamps (-want +got):\n%s", diff)
	}
	if !slices.Contains(got.Env, "PYTHONPATH="+attempt+"/shim:/mine") || !slices.Contains(got.Env, shim.PlanVar+"="+attempt+"/shim/plan.json") {
		t.Errorf("environment %q", got.Env)
	}
	for _, f := range got.Files {
		if f.Original != "" || !strings.HasPrefix(f.Path, attempt+"/shim/") {
			t.Errorf("file %+v", f)
		}
	}
	if !slices.Contains(got.Dirs, filepath.Join(attempt, shim.RecordDir)) {
		t.Errorf("folders %q", got.Dirs)
	}
	if len(got.Diff) != len(want) {
		t.Errorf("diff %q", got.Diff)
	}
	if _, err := s.Rewrite(j, Request{Changes: all, RunID: "r", Attempt: 2, AttemptDir: attempt, Shim: ShimNever}); err == nil || !strings.Contains(err.Error(), "--shim never") {
		t.Errorf("with --shim never: %v", err)
	}
	first, err := s.Rewrite(j, Request{RunID: "r", Attempt: 1, AttemptDir: attempt})
	if err != nil || first.Shim != nil || len(first.Files) > 0 {
		t.Errorf("attempt 1: %+v, %v", first, err)
	}
	always, err := s.Rewrite(j, Request{RunID: "r", Attempt: 1, AttemptDir: attempt, Shim: ShimAlways})
	if err != nil || always.Shim == nil || len(always.Shim.Clamps) > 0 || len(always.Diff) > 0 {
		t.Errorf("attempt 1 with --shim always: %+v, %v", always, err)
	}
}

// A flag that the script hands to the library is that setting's flag, by any name.
func TestFlagsAreFollowedToTheLibrary(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"t.py": "import argparse\nfrom trl import SFTConfig\np = argparse.ArgumentParser()\np.add_argument('--ctx', type=int, default=8192)\n" +
			"p.add_argument('-b', '--rows', type=int, default=4)\np.add_argument('--max_length', default=512)\na = p.parse_args()\n" +
			"SFTConfig(max_length=a.ctx, per_device_train_batch_size=a.rows, gradient_accumulation_steps=2)\n",
		"mixed.py": "p.add_argument('--acc', type=int, default=1)\nSFTConfig(per_device_train_batch_size=8, gradient_accumulation_steps=a.acc)\n",
		"sub.py":   "p.add_subparsers()\np.add_argument('--ctx', default=8192)\nSFTConfig(max_length=a.ctx)\n",
	})
	j := understand(t, s, dir, "python t.py --max_length 100 -b 8")
	if j.Knobs[job.SeqLen].Value != "8192" || j.Knobs[job.MicroBatch].Value != "8" || j.Knobs[job.Accumulation].Value != "2" {
		t.Fatalf("%+v %q", j.Knobs, j.Notes)
	}
	got, err := s.Rewrite(j, Request{RunID: "r", Attempt: 2, AttemptDir: "/a", Changes: []Change{
		to(job.SeqLen, "8192", "4096"), to(job.MicroBatch, "8", "4"), to(job.Accumulation, "2", "4"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if line := strings.Join(got.Argv, " "); line != "python t.py --max_length 100 -b 8 --ctx 4096" {
		t.Errorf("argv %q", line)
	}
	// Of micro-batch and accumulation the shim turns both or none.
	want := []shim.Clamp{{Knob: job.MicroBatch, From: "8", To: "4"}, {Knob: job.Accumulation, From: "2", To: "4"}}
	if got.Shim == nil || !cmp.Equal(want, got.Shim.Clamps) {
		t.Errorf("shim %+v", got.Shim)
	}
	// The other way round: where the shim turns the micro-batch, it raises accumulation
	// with it, and the flag must stay.
	j = understand(t, s, dir, "python mixed.py --acc 2")
	got, err = s.Rewrite(j, Request{RunID: "r", Attempt: 2, AttemptDir: "/a", Changes: []Change{to(job.MicroBatch, "8", "4"), to(job.Accumulation, "2", "4")}})
	if err != nil || strings.Join(got.Argv, " ") != "python mixed.py --acc 2" || len(got.Shim.Clamps) != 2 ||
		got.Shim.Clamps[1] != (shim.Clamp{Knob: job.Accumulation, From: "2", To: "4"}) {
		t.Errorf("%q %+v, %v", got.Argv, got.Shim, err)
	}
	// Where several parsers take flags, none is added.
	j = understand(t, s, dir, "python sub.py")
	if _, err := s.Rewrite(j, Request{RunID: "r", Attempt: 2, Changes: []Change{to(job.SeqLen, "8192", "4096")}}); err == nil {
		t.Error("a flag was added to one of several parsers")
	}
}

// Values that the shim cannot reach are refused beforehand, with the reason.
func TestShimOutOfReach(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"train.py": constScript})
	for _, argv := range []string{"python -I train.py", "python -E train.py", "python -S train.py"} {
		j := understand(t, s, dir, argv)
		fixed := s.Fixed(j)
		if j.ShimRefused == "" || fixed[job.SeqLen] == "" {
			t.Errorf("%s: refused %q, fixed %q", argv, j.ShimRefused, fixed)
		}
		if ok, why := s.CanTurn(j, job.MicroBatch); ok || why == "" {
			t.Errorf("%s: the batch can be turned", argv)
		}
		if _, err := s.Rewrite(j, Request{Changes: []Change{to(job.SeqLen, "4096", "2048")}, AttemptDir: dir}); err == nil {
			t.Errorf("%s: rewritten", argv)
		}
	}
}

// What cannot be seen beforehand is halved where the shim sees it, and known then.
func TestOpaqueJobsAreHalved(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"run.sh":  "#!/bin/bash\npython train.py\n",
		"work.py": "import os\nfrom trl import SFTConfig\nSFTConfig(max_length=int(os.environ['LEN']), per_device_train_batch_size=pick())\n",
	})
	for _, argv := range []string{"bash run.sh", "./run.sh --fast", "python work.py"} {
		j := understand(t, s, dir, argv)
		if j.Opaque == "" || j.Knobs[job.SeqLen].Value != "" {
			t.Fatalf("%s: opaque %q, knobs %v", argv, j.Opaque, j.Knobs)
		}
		got, err := s.Rewrite(j, Request{Changes: []Change{to(job.SeqLen, "", Half)}, RunID: "r", Attempt: 2, AttemptDir: filepath.Join(dir, "a")})
		if err != nil {
			t.Fatalf("%s: %v", argv, err)
		}
		if diff := cmp.Diff([]shim.Clamp{{Knob: job.SeqLen, Halve: 1, Floor: 1024}}, got.Shim.Clamps); diff != "" {
			t.Errorf("%s: clamps (-want +got):\n%s", argv, diff)
		}
		if strings.Join(got.Argv, " ") != argv {
			t.Errorf("%s: argv %q", argv, got.Argv)
		}
		after := s.Learn(j, shim.Record{Loaded: true, Seen: []shim.Seen{
			{Knob: job.SeqLen, Where: "SFTConfig.max_length", Before: "8192", After: "4096", Final: true},
			{Knob: job.MicroBatch, Where: "SFTConfig.per_device_train_batch_size", Before: "4", After: "4", Final: true},
			{Knob: job.Accumulation, Where: "SFTConfig.gradient_accumulation_steps", Before: "2", After: "2", Final: true},
		}})
		if after.Knobs[job.SeqLen].Value != "8192" || after.Knobs[job.MicroBatch].Source != job.FromScript {
			t.Fatalf("%s: learned %v", argv, after.Knobs)
		}
		if fixed := s.Fixed(after); len(fixed) > 0 {
			t.Errorf("%s: fixed after learning: %q", argv, fixed)
		}
		again, err := s.Rewrite(after, Request{
			Changes: []Change{to(job.SeqLen, "8192", "2048"), to(job.MicroBatch, "4", "2"), to(job.Accumulation, "2", "4")},
			RunID:   "r", Attempt: 3, AttemptDir: filepath.Join(dir, "a"),
		})
		if err != nil || len(again.Shim.Clamps) != 3 || again.Shim.Clamps[0].To != "2048" {
			t.Errorf("%s: %+v, %v", argv, again.Shim, err)
		}
	}
}

// In a container the arguments are rewritten inside, the copy is written on this
// machine, and the shim comes with a mount.
func TestRewriteInsideContainers(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"work/train.py": hfScript, "work/conf/c.json": `{"max_seq_length": 4096}`, "work/const.py": constScript,
	})
	run := "docker run --rm -v " + dir + "/work:/w -w /w img "
	j := understand(t, s, dir, run+"python train.py conf/c.json")
	if got := j.Knobs[job.SeqLen]; got.Value != "4096" || got.Source != job.FromConfig || got.Where != "conf/c.json:1" {
		t.Fatalf("length %+v, notes %q", got, j.Notes)
	}
	got, err := s.Rewrite(j, Request{Changes: []Change{to(job.SeqLen, "4096", "2048")}, RunID: "r", Attempt: 2, AttemptDir: "/attempt"})
	if err != nil {
		t.Fatal(err)
	}
	if want := run + "python train.py conf/.sparkrun-r-a2-c.json"; strings.Join(got.Argv, " ") != want {
		t.Errorf("argv %q\nwant %q", got.Argv, want)
	}
	if len(got.Files) != 1 || got.Files[0].Path != dir+"/work/conf/.sparkrun-r-a2-c.json" || string(got.Files[0].Content) != `{"max_seq_length": 2048}` {
		t.Errorf("files %+v", got.Files)
	}

	j = understand(t, s, dir, run+"python train.py /elsewhere/c.json")
	if _, known := j.Knobs[job.SeqLen]; known || !strings.Contains(strings.Join(j.Notes, " "), "inside the container") {
		t.Errorf("a config that no mount reaches: %v, %q", j.Knobs, j.Notes)
	}

	j = understand(t, s, dir, run+"bash -c cd~/w~&&~python~const.py")
	got, err = s.Rewrite(j, Request{Changes: []Change{to(job.SeqLen, "4096", "2048")}, RunID: "r", Attempt: 2, AttemptDir: "/attempt"})
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Join(got.Argv, " ")
	for _, part := range []string{
		"/attempt/shim:/.sparkrun/shim:ro", "/attempt/shim-out:/.sparkrun/shim-out", "PYTHONPATH=/.sparkrun/shim",
		"SPARKRUN_SHIM_PLAN=/.sparkrun/shim/plan.json", "bash -c cd /w && python const.py",
	} {
		if !strings.Contains(line, part) {
			t.Errorf("%q lacks %q", line, part)
		}
	}
	for _, e := range got.Env {
		if strings.HasPrefix(e, "PYTHONPATH=") {
			t.Errorf("the client itself would get %s", e)
		}
	}
}

// Everything of the list of bad input is right, or refused with the reason.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"t.py": hfScript, "sub/t.py": hfScript, "sub/c.json": `{"max_seq_length": 4096, "data": "t.py"}`,
		"crlf.yaml":     "a: 1\r\ncutoff_len: 4096 # long\r\nper_device_train_batch_size: 4\r\n",
		"tab.yaml":      "a:\tx\ncutoff_len:\t4096\n",
		"badtab.yaml":   "a:\n\tcutoff_len: 4096\n",
		"anchor.yaml":   "x: &n 4096\ncutoff_len: *n\n",
		"merge.yaml":    "base: &b\n  cutoff_len: 4096\n<<: *b\n",
		"twice.yaml":    "cutoff_len: 4096\ncutoff_len: 2048\n",
		"env.yaml":      "cutoff_len: ${LEN}\n",
		"under.yaml":    "cutoff_len: 4_096\n",
		"j.json":        "{\t\"max_seq_length\":\t4096\r\n}",
		"yaml.py":       hfScript + "parser.parse_yaml_file(x)",
		"anchored.yaml": "x: &n 4096\nmax_seq_length: *n\n",
	})
	for _, c := range []struct{ name, argv, from, want, refused string }{
		{"a flag twice", "python t.py --max_seq_length 8192 --max_seq_length 4096", "4096", "python t.py --max_seq_length 8192 --max_seq_length 2048", ""},
		{"twice in two spellings", "python t.py --max-seq-length=8192 --max_seq_length 4096", "4096", "python t.py --max-seq-length=8192 --max_seq_length 2048", ""},
		{"abbreviated", "python t.py --max_seq 4096", "4096", "python t.py --max_seq 2048", ""},
		{"mixed forms", "python t.py --max_seq_length 8192 --max_seq=4096", "4096", "python t.py --max_seq_length 8192 --max_seq=2048", ""},
		{"underscores", "python t.py --max_seq_length 4_096", "4096", "python t.py --max_seq_length 2048", ""},
		{"a leading zero", "python t.py --max_seq_length 04096", "", "", "not a whole number"},
		{"CRLF", "llamafactory-cli train crlf.yaml", "4096", "llamafactory-cli train crlf.yaml cutoff_len=2048", ""},
		{"tabs between", "llamafactory-cli train tab.yaml", "4096", "llamafactory-cli train tab.yaml cutoff_len=2048", ""},
		{"tabs that YAML forbids", "llamafactory-cli train badtab.yaml", "", "", "badtab.yaml"},
		{"an alias", "llamafactory-cli train anchor.yaml", "4096", "llamafactory-cli train anchor.yaml cutoff_len=2048", ""},
		{"an alias in a file that must change", "python yaml.py anchored.yaml", "4096", "python yaml.py .sparkrun-r-a2-anchored.yaml", ""},
		{"a merge", "llamafactory-cli train merge.yaml", "4096", "llamafactory-cli train merge.yaml cutoff_len=2048", ""},
		{"environment in a value", "llamafactory-cli train env.yaml", "", "", "is not a whole number"},
		{"underscores in YAML", "llamafactory-cli train under.yaml", "4096", "llamafactory-cli train under.yaml cutoff_len=2048", ""},
		{"tabs in JSON", "python t.py j.json", "4096", "python t.py .sparkrun-r-a2-j.json", ""},
		{"cd in bash -c", "bash -c cd~sub~&&~python~t.py~c.json", "4096", "bash -c cd~sub~&&~python~t.py~.sparkrun-r-a2-c.json", ""},
		{"env -C", "env -C sub python t.py c.json", "4096", "env -C sub python t.py .sparkrun-r-a2-c.json", ""},
		{"an unknown option in front", "nice --odd python t.py --max_seq_length 4096", "", "", "--odd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := understand(t, s, dir, c.argv)
			notes := strings.Join(j.Notes, " ")
			if got := j.Knobs[job.SeqLen].Value; got != c.from {
				t.Fatalf("length %q, want %q (notes %q)", got, c.from, notes)
			}
			got, err := s.Rewrite(j, Request{Changes: []Change{to(job.SeqLen, c.from, "2048")}, RunID: "r", Attempt: 2})
			if c.refused != "" {
				if err == nil || !strings.Contains(notes+" "+err.Error(), c.refused) {
					t.Errorf("%q, %v lack %q", notes, err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if line := strings.Join(got.Argv, " "); line != strings.ReplaceAll(c.want, "~", " ") {
				t.Errorf("argv %q\nwant %q", line, c.want)
			}
			for _, f := range got.Files {
				if filepath.Dir(f.Path) != filepath.Dir(f.Original) || !strings.Contains(string(f.Content), "2048") {
					t.Errorf("file %+v", f)
				}
			}
		})
	}
}

// A file whose folder cannot be written moves to the attempt's folder, if it can.
func TestConfigInAFolderThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"t.py": hfScript})
	// Not even root can write into a folder that is gone.
	conf := folder(t, map[string]string{"c.json": `{"max_seq_length": 4096}`, "d.json": `{"max_seq_length": 4096, "train_file": "./x"}`})
	for name, movable := range map[string]bool{"c.json": true, "d.json": false} {
		j := understand(t, s, dir, "python t.py "+filepath.Join(conf, name))
		c, err := s.inJob(j, nil, nil, nil)
		if err != nil || len(c.docs) != 1 {
			t.Fatal(err)
		}
		w := newWriter(c, j, Request{RunID: "r", Attempt: 2, AttemptDir: "/attempts/2"})
		c.docs[0].path = filepath.Join(conf, "gone", name)
		f, word, err := w.copyOf(c.docs[0])
		if movable != (err == nil) || movable && (f.Path != "/attempts/2/.sparkrun-r-a2-"+name || word != f.Path) {
			t.Errorf("%s: %v %q %v", name, f.Path, word, err)
		}
		w.rq.AttemptDir = ""
		if _, _, err := w.copyOf(c.docs[0]); err == nil {
			t.Errorf("%s: placed nowhere", name)
		}
	}
}

// The numbers of a DeepSpeed file change with the flags, in a copy.
func TestDeepSpeedFileGoesAlong(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	const ds = "{\n  \"train_micro_batch_size_per_gpu\": 8,\n  \"gradient_accumulation_steps\": \"auto\",\n  \"train_batch_size\": 8,\n  \"zero_optimization\": {\"stage\": 2}\n}\n"
	dir := folder(t, map[string]string{
		"t.py": hfScript, "conf/ds.json": ds, "auto.json": `{"train_micro_batch_size_per_gpu": "auto"}`,
		"c.yaml": "deepspeed: conf/ds.json\nper_device_train_batch_size: 8\n",
	})
	batch := []Change{to(job.MicroBatch, "8", "4"), to(job.Accumulation, "1", "2")}
	for argv, want := range map[string]string{
		"python t.py --deepspeed conf/ds.json": "python t.py --deepspeed conf/.sparkrun-r-a2-ds.json --per_device_train_batch_size 4 --gradient_accumulation_steps 2",
		"python t.py --deepspeed auto.json":    "python t.py --deepspeed auto.json --per_device_train_batch_size 4 --gradient_accumulation_steps 2",
		"llamafactory-cli train c.yaml":        "llamafactory-cli train c.yaml per_device_train_batch_size=4 gradient_accumulation_steps=2 deepspeed=conf/.sparkrun-r-a2-ds.json",
		"python t.py --deepspeed gone.json":    "",
	} {
		j := understand(t, s, dir, argv)
		got, err := s.Rewrite(j, Request{Changes: batch, RunID: "r", Attempt: 2, AttemptDir: dir})
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "gone.json") {
				t.Errorf("%s: %v", argv, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", argv, err)
			continue
		}
		if line := strings.Join(got.Argv, " "); line != want {
			t.Errorf("%s\n got %s\nwant %s", argv, line, want)
		}
		if !strings.Contains(argv, "auto") {
			if len(got.Files) != 1 || string(got.Files[0].Content) != strings.Replace(ds, "gpu\": 8", "gpu\": 4", 1) {
				t.Errorf("%s: files %+v", argv, got.Files)
			}
		}
	}
	// The file and the option that accelerate is given for itself.
	if err := os.WriteFile(filepath.Join(dir, "acc.yaml"), []byte("deepspeed_config:\n  gradient_accumulation_steps: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	j0 := understand(t, s, dir, "accelerate launch --config_file acc.yaml t.py")
	got0, err := s.Rewrite(j0, Request{Changes: batch, RunID: "r", Attempt: 2})
	if want := "accelerate launch --config_file .sparkrun-r-a2-acc.yaml t.py --per_device_train_batch_size 4 --gradient_accumulation_steps 2"; err != nil ||
		strings.Join(got0.Argv, " ") != want || len(got0.Files) != 1 || !strings.Contains(string(got0.Files[0].Content), "steps: 2") {
		t.Errorf("%q, %+v, %v", got0.Argv, got0.Files, err)
	}
	j := understand(t, s, dir, "accelerate launch --gradient_accumulation_steps 1 t.py")
	got, err := s.Rewrite(j, Request{Changes: batch, RunID: "r", Attempt: 2})
	if want := "accelerate launch --gradient_accumulation_steps 2 t.py --per_device_train_batch_size 4 --gradient_accumulation_steps 2"; err != nil || strings.Join(got.Argv, " ") != want {
		t.Errorf("%q, %v", got.Argv, err)
	}
}

// A checkpoint is passed the way each trainer wants it.
func TestResumeIsPassed(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"t.py": hfScript, "c.yaml": "output_dir: out\n", "const.py": constScript, "w/t.py": hfScript,
	})
	cp := filepath.Join(dir, "out/checkpoint-340")
	for _, c := range []struct{ argv, how, want string }{
		{"python t.py", "path", "python t.py --resume_from_checkpoint " + cp},
		{"python t.py --resume_from_checkpoint out/checkpoint-20", "path", "python t.py --resume_from_checkpoint " + cp},
		{"llamafactory-cli train c.yaml", "path", "llamafactory-cli train c.yaml resume_from_checkpoint=" + cp},
		{"docker run -v " + dir + ":/d -w /d/w img python t.py", "path", "docker run -v " + dir + ":/d -w /d/w img python t.py --resume_from_checkpoint /d/out/checkpoint-340"},
		{"docker run -v /x:/d -w /d img python /d/t.py", "never", ""},
	} {
		j := understand(t, s, dir, c.argv)
		if j.Resume.How != c.how {
			t.Errorf("%s: resume %+v", c.argv, j.Resume)
		}
		got, err := s.Rewrite(j, Request{RunID: "r", Attempt: 2, Resume: cp})
		if (c.want == "") != (err != nil) || err == nil && strings.Join(got.Argv, " ") != c.want {
			t.Errorf("%s: %q, %v", c.argv, got.Argv, err)
		}
	}
	j := understand(t, s, dir, "python const.py")
	if j.Resume.How != "never" || !s.ResumeByShim(j) {
		t.Errorf("a script that resumes never: %+v", j.Resume)
	}
	got, err := s.Rewrite(j, Request{RunID: "r", Attempt: 2, Resume: cp, ShimResume: true, AttemptDir: filepath.Join(dir, "a")})
	if err != nil || got.Shim == nil || got.Shim.ResumeFolder != "out" || !cmp.Equal(got.Shim.Clamps, []shim.Clamp{{Knob: job.ResumeFrom, To: cp}}) {
		t.Errorf("%+v, %v", got.Shim, err)
	}
}

// The user's own file is read and never opened for writing.
func TestNothingIsWritten(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"t.py": hfScript, "c.json": `{"max_seq_length": 4096}`})
	before, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	j := understand(t, s, dir, "python t.py c.json")
	if _, err := s.Rewrite(j, Request{Changes: []Change{to(job.SeqLen, "4096", "2048")}, RunID: "r", Attempt: 2}); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadDir(dir)
	if err != nil || len(after) != len(before) {
		t.Errorf("%d files became %d, %v", len(before), len(after), err)
	}
}

// Where the effective batch is fixed, accumulation follows from it.
func TestDerivedAccumulation(t *testing.T) {
	t.Parallel()
	for want, j := range map[int64]job.Job{
		8: {Family: "global", Knobs: job.Knobs{job.GlobalBatch: {Value: "64"}, job.MicroBatch: {Value: "4"}}},
		0: {Family: "global", Knobs: job.Knobs{job.GlobalBatch: {Value: "64"}, job.MicroBatch: {Value: "5"}}},
	} {
		if got := derived(j, 2); got != want {
			t.Errorf("%+v: %d, want %d", j.Knobs, got, want)
		}
	}
}

// The folders of a job, as this machine names them.
func TestFoldersOfAJob(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"c.yaml": "output_dir: out/x\n", "t.py": hfScript, "bad.py": "from transformers import TrainingArguments\nTrainingArguments('o', resume_from_checkpoint='a')\n",
		"out/x/checkpoint-3/trainer_state.json": `{"global_step": 3}`,
	})
	j := understand(t, s, dir, "llamafactory-cli train c.yaml")
	if got := s.OutputFolder(j); got != filepath.Join(dir, "out/x") {
		t.Errorf("output folder %q", got)
	}
	if got := s.TrainerLogs(j); !slices.Equal(got, []string{filepath.Join(dir, "out/x/trainer_log.jsonl")}) {
		t.Errorf("logs %q", got)
	}
	if got := s.Checkpoints(j, ""); len(got) != 1 || got[0].Step != 3 || got[0].Complete {
		t.Errorf("checkpoints %+v", got)
	}
	j = understand(t, s, dir, "docker run -v "+dir+":/d -w /d img python t.py --output_dir /d/out")
	if got := s.OutputFolder(j); got != filepath.Join(dir, "out") {
		t.Errorf("output folder of a container %q", got)
	}
	j = understand(t, s, dir, "docker run img python t.py --output_dir /data/out --max_seq_length 2048")
	if got := s.OutputFolder(j); got != "" {
		t.Errorf("an output folder that is not mounted: %q", got)
	}
	j = understand(t, s, dir, "python bad.py")
	if _, err := s.Rewrite(j, Request{Changes: []Change{to(job.ResumeFrom, "a", "null")}, AttemptDir: dir}); err == nil || !strings.Contains(err.Error(), "cannot take") {
		t.Errorf("a resume in code taken away: %v", err)
	}
}
