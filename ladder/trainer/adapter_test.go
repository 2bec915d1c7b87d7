package trainer

import (
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// Attention, rank and modules of an adapter are read for the checks before a start and
// for the plan; no rung turns them.
func TestAttentionAndAdapter(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	const load = "from unsloth import FastLanguageModel\nfrom trl import SFTConfig\nMODS = [\"q_proj\", \"v_proj\"]\n" +
		"m, t = FastLanguageModel.from_pretrained('x', max_seq_length=2048, attn_implementation='sdpa')\n" +
		"m = FastLanguageModel.get_peft_model(m, r=32, target_modules=MODS)\nSFTConfig(max_length=2048)\n"
	for _, c := range []struct {
		name, argv, file, text string
		attention, rank, mods  string
	}{
		{"trl", "trl sft --use_peft --lora_r 8 --lora_target_modules q_proj v_proj --attn_implementation sdpa", "", "", "sdpa", "8", "q_proj,v_proj"},
		{"trl default", "trl sft --use_peft --lora_target_modules=all-linear", "", "", "", "16", "all-linear"},
		{"trl full", "trl sft", "", "", "", "", ""},
		{"trl config", "trl sft --config c.yaml", "c.yaml", "use_peft: true\nlora_target_modules:\n  - q_proj\n  - k_proj\n", "", "16", "q_proj,k_proj"},
		{"llama-factory", "llamafactory-cli train c.yaml flash_attn=fa2", "c.yaml", "stage: sft\nfinetuning_type: lora\nlora_rank: 64\nlora_target: q_proj, v_proj\n", "fa2", "64", "q_proj,v_proj"},
		{"llama-factory default", "llamafactory-cli train c.yaml", "c.yaml", "stage: sft\nfinetuning_type: lora\n", "", "8", "all"},
		{"llama-factory full", "llamafactory-cli train c.yaml", "c.yaml", "stage: sft\nfinetuning_type: full\n", "", "", ""},
		{"axolotl", "axolotl train c.yml", "c.yml", "adapter: lora\nlora_r: 16\nlora_target_linear: true\nflash_attention: true\nmicro_batch_size: 1\n", "flash_attention_2", "16", "all-linear"},
		{"axolotl list", "axolotl train c.yml", "c.yml", "adapter: lora\nlora_target_modules: [q_proj]\nsdp_attention: true\nflash_attention: false\n", "sdpa", "", "q_proj"},
		{"swift", "swift sft --attn_impl sdpa --lora_rank 4 --target_modules all-linear", "", "", "sdpa", "4", "all-linear"},
		{"automodel", "automodel c.yaml --peft.dim 4", "c.yaml", "peft:\n  dim: 8\n  target_modules: ['*_proj']\nmodel: {attn_implementation: eager}\n", "eager", "4", "*_proj"},
		{"unsloth script", "python t.py", "t.py", load, "sdpa", "32", "q_proj,v_proj"},
		{"peft script", "python t.py", "t.py", "from trl import SFTConfig\nfrom peft import LoraConfig\nLoraConfig(r=4, target_modules='all-linear')\nSFTConfig(max_length=1)\n", "", "4", "all-linear"},
		{"verl", "python -m verl.trainer.sft_trainer model.lora_rank=8", "", "", "", "8", ""},
	} {
		files := map[string]string{}
		if c.file != "" {
			files[c.file] = c.text
		}
		j := understand(t, s, folder(t, files), c.argv)
		for knob, want := range map[job.Knob]string{job.Attention: c.attention, job.LoRARank: c.rank, job.LoRATargets: c.mods} {
			if got := j.Knobs[knob].Value; got != want {
				t.Errorf("%s: %s is %q, want %q (%s)", c.name, knob, got, want, j.Profile)
			}
		}
		for _, n := range j.Notes {
			if strings.Contains(n, "lora") || strings.Contains(n, "attention") {
				t.Errorf("%s: note %q", c.name, n)
			}
		}
	}
}

func TestListsAreShownAndNeverTurned(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a,b": "a,b", "a b": "a,b", "['a', \"b\"]": "a,b", "[a,b]": "a,b", "('a',)": "a", "": "", "all-linear": "all-linear", "^.*proj$": "^.*proj$", "(q|v)_proj|x(a)?": "(q|v)_proj|x(a)?", "[": "[",
	} {
		if got := joined(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	s := profiles(t)
	j := understand(t, s, folder(t, nil), "trl sft --use_peft --lora_target_modules q_proj v_proj")
	if why := s.fixed(j, []job.Knob{job.LoRATargets})[job.LoRATargets]; why != "it is a list, which is never changed" {
		t.Errorf("a list is turned: %q", why)
	}
}
