package preflight

import (
	"maps"
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// with returns a venv of a command with packages, and files beside it.
func withPackages(files map[string]string, packages ...string) map[string]string {
	const site = "home/ada/venv/lib/python3.12/site-packages/"
	out := map[string]string{
		"home/ada/venv/bin/python": "-> /usr/bin/python3",
		"home/ada/venv/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.12.3\n",
		site + "torch/__init__.py": "", site + "torch/version.py": "__version__ = '2.9.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n",
	}
	for _, p := range packages {
		out[site+p+".dist-info/METADATA"] = ""
	}
	maps.Copy(out, files)
	return out
}

const (
	unslothLoad = "from unsloth import FastLanguageModel\nmodel, tok = FastLanguageModel.from_pretrained(\n    'unsloth/x', attn_implementation=\"sdpa\",\n)\n"
	flash, slot = "flash_attn-2.7.4.post1", "unsloth-2026.7.2"
)

func TestG2(t *testing.T) {
	t.Parallel()
	type files = map[string]string
	script := func(text string) files { return files{"home/ada/train.py": text} }
	plainLoad := "from transformers import AutoModelForCausalLM as A\nA.from_pretrained('x', attn_implementation='sdpa')\n"
	for _, c := range []struct {
		name     string
		line     string
		profile  string
		files    files
		packages []string
		want     Status
		detail   string
	}{
		{"bare pip without it", "", "", nil, nil, Pass, "no flash-attn, which is as it should be"},
		{"an image's, or built by hand", "", "", script(plainLoad), []string{flash}, Pass, "flash-attn 2.7.4.post1 is there"},
		{"asked for and there", "--attn_implementation flash_attention_2", "", script(""), []string{flash}, Pass, "flash-attn 2.7.4.post1 is there, as asked for (--attn_implementation)"},
		{"asked for and not there", "--attn_implementation flash_attention_2", "", script(""), nil, Warn, "flash_attention_2 asks for flash-attn (--attn_implementation), which is not installed"},
		{"asked for in code and not there", "", "", script("A.from_pretrained('x', attn_implementation='flash_attention_2')\n"), nil, Warn, "flash_attention_2 asks for flash-attn (train.py:1)"},
		{"for another GPU", "--attn_implementation flash_attention_3", "", script(""), []string{flash}, Warn, "flash_attention_3 (--attn_implementation) is for Hopper GPUs"},
		{"the default of a flag", "", "", script("p.add_argument('--attn_implementation', default='flash_attention_2')\nf(attn_implementation=a.attn_implementation)\n"), nil, Warn, "flash_attention_2 asks for flash-attn (train.py:1)"},
		{"null in a config", "c.yaml", "", files{"home/ada/train.py": "f(attn_implementation='flash_attention_2')\n", "home/ada/c.yaml": "attn_implementation:\n"}, nil, Warn, "flash_attention_2 asks for flash-attn (train.py:1)"},
		{"put in by the shell", "--attn_implementation $ATTN", "", script("f(attn_implementation='flash_attention_2')\n"), nil, Pass, ""},
		{"kernels of the hub", "--attn_implementation kernels-community/flash-attn2", "", script(""), nil, Pass, "no flash-attn"},
		{"left to the trainer", "flash_attn=auto", "llama-factory", script(""), nil, Pass, "no flash-attn"},
		{"argv beats the code", "--attn_implementation sdpa", "", script("A.from_pretrained('x', attn_implementation='flash_attention_2')\n"), nil, Pass, "no flash-attn"},

		{"the trap", "", "", script(unslothLoad), []string{flash, slot}, Warn, "SDPA is asked for (train.py:3), but Unsloth takes flash-attn 2.7.4.post1"},
		{"the trap in a profile's flags", "--attn_implementation sdpa", "unsloth-script", script("from unsloth import FastLanguageModel\n"), []string{flash, slot}, Warn, "SDPA is asked for (--attn_implementation)"},
		{"LLaMA-Factory on Unsloth", "use_unsloth=true flash_attn=sdpa", "llama-factory", script(""), []string{flash, slot}, Warn, "SDPA is asked for (flash_attn)"},
		{"LLaMA-Factory without", "use_unsloth=false flash_attn=sdpa", "llama-factory", script(""), []string{flash, slot}, Pass, ""},
		{"Unsloth without flash-attn", "", "", script(unslothLoad), []string{slot}, Pass, "no flash-attn"},
		{"Unsloth installed, another used", "", "", script(plainLoad), []string{flash, slot}, Pass, "flash-attn 2.7.4.post1 is there"},
		{"switched off by hand", "", "", script("import unsloth.models._utils as u\nu.HAS_FLASH_ATTENTION = False\n" + unslothLoad), []string{flash, slot}, Pass, "train.py:2 keeps Unsloth from taking it"},
		{"nothing asked for", "", "", script("from unsloth import FastLanguageModel\nFastLanguageModel.from_pretrained('x')\n"), []string{flash, slot}, Info, "Unsloth takes it by itself"},
		{"the loader of all models", "", "", script(strings.ReplaceAll(unslothLoad, "FastLanguageModel", "FastModel")), []string{flash, slot}, Pass, ""},
		{"full fine-tuning goes through that too", "", "", script(strings.Replace(unslothLoad, "'unsloth/x'", "'unsloth/x', full_finetuning=True", 1)), []string{flash, slot}, Pass, ""},
		{
			"a model of another type", "--model_name m", "",
			files{"home/ada/train.py": unslothLoad, "home/ada/m/config.json": `{"model_type": "gpt_oss"}`},
			[]string{flash, slot},
			Pass, "",
		},
		{
			"a model of that type", "--model_name m", "",
			files{"home/ada/train.py": unslothLoad, "home/ada/m/config.json": `{"model_type": "qwen2"}`},
			[]string{flash, slot},
			Warn, "SDPA is asked for",
		},
		{
			"a torn config of the model", "--model_name m", "",
			files{"home/ada/train.py": unslothLoad, "home/ada/m/config.json": `{"model_ty`},
			[]string{flash, slot},
			Warn, "SDPA is asked for",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := c.files
			if f == nil {
				f = script("")
			}
			j := &job.Job{
				Argv: append([]string{"python", "train.py"}, strings.Fields(c.line)...), Dir: "/home/ada",
				Interpreter: venvPython, Script: "train.py", Profile: c.profile,
			}
			r := Run(t.Context(), Input{Root: copyTree(t, "spark", withPackages(f, c.packages...)), Getenv: env(), Device: gb10, Job: j})
			got := find(t, r, "G2")
			if got.Status != c.want || !strings.HasPrefix(got.Detail, c.detail) && !strings.Contains(got.Detail, c.detail) {
				t.Errorf("%s: %q, want %s %q\n%s", got.Status, got.Detail, c.want, c.detail, strings.Join(got.Evidence, "\n"))
			}
			if got.Status == Warn && got.Fix == "" {
				t.Error("no fix")
			}
			if strings.Contains(got.Fix, "pip install") {
				t.Errorf("the fix installs something: %s", got.Fix)
			}
		})
	}
}

// The fix of the trap is the whole override in its scoped form, line by line.
func TestG2PrintsTheScopedOverride(t *testing.T) {
	t.Parallel()
	files := withPackages(map[string]string{"home/ada/train.py": unslothLoad}, flash, slot)
	r := Run(t.Context(), Input{Root: copyTree(t, "spark", files), Getenv: env(), Device: gb10, Job: pythonJob(venvPython)})
	f := find(t, r, "G2")
	last := -1
	for _, want := range []string{
		"import unsloth.models._utils", "before = unsloth_utils.HAS_FLASH_ATTENTION", "try:", "HAS_FLASH_ATTENTION = False",
		"from_pretrained", `assert model.config._attn_implementation == "sdpa"`, "finally:", "HAS_FLASH_ATTENTION = before",
	} {
		i := strings.Index(f.Fix[last+1:], want)
		if i < 0 {
			t.Fatalf("the fix lacks %q behind offset %d:\n%s", want, last, f.Fix)
		}
		last += 1 + i
	}
	evidence := strings.Join(f.Evidence, "\n")
	for _, want := range []string{"flash-attn 2.7.4.post1", "unsloth 2026.7.2", "flash_sdp_enabled(): not read", "attn_implementation = sdpa (train.py:3)"} {
		if !strings.Contains(evidence, want) {
			t.Errorf("the evidence lacks %q:\n%s", want, evidence)
		}
	}
	if f.Line != "G2 WARN: "+f.Detail {
		t.Errorf("line %q", f.Line)
	}
}

func TestG2WhereThereIsNothingToLookAt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		in   Input
		tree string
		want string
	}{
		{"no command", Input{Device: gb10}, "spark", "pass"},
		{"an NGC image", Input{Device: gb10, Job: pythonJob("/usr/bin/python3")}, "spark-ngc", "pass"},
		{"no Python program", Input{Device: gb10, Job: &job.Job{Argv: []string{"make"}, Dir: "/"}}, "spark", "skip: the command is not a Python program (by design)"},
		{"no GPU", Input{Device: noLibrary, Job: pythonJob("/usr/bin/python3")}, "laptop", "skip: no NVIDIA GPU on this machine (by design)"},
		{
			"an image that cannot be told",
			Input{Device: gb10, Job: &job.Job{Container: &job.Container{Verb: "run", Image: "img"}}},
			"spark",
			"skip: inside image img (by design)",
		},
		{
			"a wrapper that asks for nothing",
			Input{Device: gb10, Job: &job.Job{Argv: []string{"w", "t.py"}, Dir: "/", Interpreter: "/home/ada/w"}},
			"spark",
			"skip: which packages the command imports",
		},
		{
			"a wrapper that needs it",
			Input{Device: gb10, Job: &job.Job{Argv: []string{"w", "--attn_implementation", "flash_attention_2"}, Dir: "/", Interpreter: "/home/ada/w"}},
			"spark",
			"skip: could not tell which packages /home/ada/w would import",
		},
	} {
		c.in.Root, c.in.Getenv = copyTree(t, c.tree, map[string]string{"home/ada/w": "#!/bin/sh\n"}), env()
		if got := find(t, Run(t.Context(), c.in), "G2").Value(); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
