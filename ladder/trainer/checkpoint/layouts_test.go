package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLayouts(t *testing.T) {
	t.Parallel()
	good, torch := tensors(t, 1000), saved(t, 300)
	dcp := map[string]string{".metadata": metadata("model.w", "optimizer.state", "__0_0.distcp"), "__0_0.distcp": torch + torch}
	automodel := map[string]string{"model/shard-00001-model-00001-of-00001.safetensors": good, "step_scheduler.pt": torch, "rng/rng_dp_rank_0.pt": torch, "config.yaml": "a: 1"}
	for n, s := range dcp {
		automodel["optim/"+n] = s
	}
	accelerate := map[string]string{"pytorch_lora_weights.safetensors": good, "optimizer.bin": torch, "scheduler.bin": torch, "random_states_0.pkl": torch}
	verl := map[string]string{"data.pt": torch}
	for _, kind := range []string{"model", "optim", "extra_state"} {
		verl["actor/"+kind+"_world_size_2_rank_0.pt"] = torch
		verl["actor/"+kind+"_world_size_2_rank_1.pt"] = torch
	}
	cases := []struct {
		name  string
		files map[string]string
		links map[string]string
		wants []want
	}{
		{name: Torchtune, files: map[string]string{
			"epoch_0/model-00001-of-00001.safetensors": good, "epoch_1/model-00001-of-00001.safetensors": good, "epoch_1/adapter_model.pt": torch,
			"epoch_2/model-00001-of-00002.safetensors": good, "recipe_state/recipe_state.pt": saved(t, 9, "seed", 1, "epochs_run", 2),
		}, wants: []want{{"epoch_0", Unknown, true, false, "no recipe_state.pt belongs to it"}, {"epoch_1", Unknown, true, true, ""}, {"epoch_2", Unknown, false, false, "model-00002-of-00002.safetensors is missing"}}},
		{name: Torchtune, files: map[string]string{
			"step_100/hf_model_0001_0.pt": torch, "step_200/hf_model_0001_0.pt": torch, "recipe_state/recipe_state.pt": torch[:50],
		}, wants: []want{{"step_100", 100, false, false, "recipe_state.pt is cut short"}, {"step_200", 200, false, false, "recipe_state.pt is cut short"}}},
		{name: AutoModel, files: concat(
			under("epoch_0_step_19/", automodel), under("epoch_0_step_9/", automodel), under("epoch_1_step_29/", with(automodel, ".incomplete", "")),
			under("epoch_1_step_39/", with(automodel, "optim/__0_0.distcp", gone)), under("epoch_1_step_49/", with(automodel, "step_scheduler.pt", gone)),
		), links: map[string]string{"LATEST": "epoch_0_step_19"}, wants: []want{
			{"epoch_0_step_9", 9, true, true, ""},
			{"epoch_0_step_19", 19, true, true, ""},
			{"epoch_1_step_29", 29, false, true, "marked as incomplete"},
			{"epoch_1_step_39", 39, false, true, "__0_0.distcp is missing"},
			{"epoch_1_step_49", 49, false, true, "step_scheduler.pt is missing"},
		}},
		{name: Megatron, files: concat(
			under("iter_0000100/", dcp), under("iter_0000200/mp_rank_00/", map[string]string{"model_optim_rng.pt": saved(t, 9, "iteration", 200, "optimizer", -1)}),
			under("iter_0000300/", dcp), map[string]string{"latest_checkpointed_iteration.txt": "200", "iter_0000050/mp_rank_00/other": ""},
		), wants: []want{
			{"iter_0000050", 50, false, false, "mp_rank_00 has no weights"},
			{"iter_0000100", 100, true, true, ""},
			{"iter_0000200", 200, true, true, ""},
			{"iter_0000300", 300, false, true, "latest_checkpointed_iteration.txt names step 200"},
		}},
		{name: Megatron, files: under("iter_0000100/", dcp), wants: []want{{"iter_0000100", 100, false, true, "latest_checkpointed_iteration.txt is missing"}}},
		{name: Megatron, files: concat(under("iter_0000100/", dcp), map[string]string{"latest_checkpointed_iteration.txt": "release\n"}), wants: []want{{"iter_0000100", 100, false, true, `no step but "release"`}}},
		{name: Verl, files: concat(
			under("global_step_10/", verl), under("global_step_20/", with(verl, "actor/optim_world_size_2_rank_1.pt", gone)), under("global_step_30/", verl),
			map[string]string{"latest_checkpointed_iteration.txt": "20"},
		), wants: []want{{"global_step_10", 10, true, true, ""}, {"global_step_20", 20, false, true, "optim_world_size_2_rank_1.pt is missing"}, {"global_step_30", 30, false, true, "names step 20"}}},
		{name: Lightning, files: map[string]string{
			"lightning_logs/version_0/checkpoints/epoch=0-step=100.ckpt": saved(t, 9, "epoch", 0, "global_step", 100, "pytorch-lightning_version", -1, "optimizer_states", -1),
			"lightning_logs/version_1/checkpoints/best.ckpt":             saved(t, 9, "epoch", 3, "global_step", 70000, "pytorch-lightning_version", -1),
			"last.ckpt":        saved(t, 9, "global_step", 300, "pytorch-lightning_version", -1, "optimizer_states", -1)[:90],
			"base.ckpt":        saved(t, 9, "state_dict", -1),
			"s-step=400.ckpt/": "", "s-step=400.ckpt/.metadata": dcp[".metadata"], "s-step=400.ckpt/__0_0.distcp": torch, "s-step=400.ckpt/meta.pt": saved(t, 1, "global_step", 401),
			"s-step=500.ckpt/__0_0.distcp": torch,
			".hidden/x-step=9.ckpt":        torch,
		}, links: map[string]string{"newest.ckpt": "lightning_logs/version_0/checkpoints/epoch=0-step=100.ckpt", "round": "."}, wants: []want{
			{"last.ckpt", Unknown, false, true, "last.ckpt is cut short"},
			{"lightning_logs/version_0/checkpoints/epoch=0-step=100.ckpt", 100, true, true, ""},
			{"s-step=400.ckpt", 401, true, true, ""},
			{"s-step=500.ckpt", 500, false, true, "no .metadata"},
			{"lightning_logs/version_1/checkpoints/best.ckpt", 70000, true, false, "weights only"},
		}},
		{name: NanoGPT, files: map[string]string{"ckpt.pt": saved(t, 9, "model", -1, "optimizer", -1, "iter_num", 2000)}, wants: []want{{"ckpt.pt", 2000, true, true, ""}}},
		{name: NanoGPT, files: map[string]string{"ckpt.pt": saved(t, 9, "iter_num", 2000)[:70]}, wants: []want{{"ckpt.pt", Unknown, false, false, "ckpt.pt is cut short"}}},
		{name: NanoChat, files: map[string]string{
			"d20/model_000100.pt": torch, "d20/meta_000100.json": "{}", "d20/optim_000100_rank0.pt": torch,
			"d20/model_000200.pt": torch, "d20/meta_000200.json": "{}", "d20/optim_000200_rank1.pt": torch,
			"d20/model_000300.pt": torch, "d20/meta_000300.json": "{}",
			"d20/model_000400.pt": torch, "d20/model_000400_old.pt": torch,
		}, wants: []want{
			{"d20/model_000100.pt", 100, true, true, ""},
			{"d20/model_000200.pt", 200, false, true, "optim_000200_rank0.pt is missing"},
			{"d20/model_000300.pt", 300, true, false, "weights only"},
			{"d20/model_000400.pt", 400, false, false, "meta_000400.json is missing"},
		}},
		{name: Kohya, files: concat(
			under("lora-step00000500-state/", with(accelerate, "train_state.json", `{"current_epoch": 1, "current_step": 500}`)),
			under("lora-step00001000-state/", with(accelerate, "random_states_0.pkl", gone)), under("lora-000003-state/", accelerate), under("lora-state/", accelerate),
			under("lora-step00001500-state/", with(accelerate, "train_state.json", `{"curr`)), map[string]string{"lora-step00000500.safetensors": good},
		), wants: []want{
			{"lora-000003-state", Unknown, true, true, ""},
			{"lora-state", Unknown, true, true, ""},
			{"lora-step00000500-state", 500, true, true, ""},
			{"lora-step00001000-state", 1000, false, true, "random_states_0.pkl is missing"},
			{"lora-step00001500-state", 1500, false, true, "train_state.json is torn"},
		}},
		{name: Kohya, files: map[string]string{"lora-step00000500.safetensors": good}},
		{name: Diffusers, files: concat(
			under("checkpoint-500/", accelerate), under("checkpoint-1000/", with(accelerate, "random_states_0.pkl", gone)), under("checkpoint-1500/", with(accelerate, "optimizer.bin", torch[:80])),
			under("checkpoint-2000/", with(accelerate, "pytorch_lora_weights.safetensors", gone)),
			under("checkpoint-2500/", with(accelerate, "pytorch_lora_weights.safetensors", gone, "unet/diffusion_pytorch_model.safetensors", good, "unet/config.json", "{}")),
		), wants: []want{
			{"checkpoint-500", 500, true, true, ""},
			{"checkpoint-1000", 1000, false, true, "random_states_0.pkl is missing"},
			{"checkpoint-1500", 1500, false, true, "optimizer.bin is cut short"},
			{"checkpoint-2000", 2000, false, true, "no weights"},
			{"checkpoint-2500", 2500, true, true, ""},
		}},
		{name: AIToolkit, files: map[string]string{"my_lora/my_lora_000000500.safetensors": good[:700], "my_lora/my_lora_000000250.safetensors": good, "my_lora/optimizer.pt": torch, "my_lora/my_lora.safetensors": good, "my_lora/config.yaml": ""}, wants: []want{
			{"my_lora/my_lora_000000250.safetensors", 250, true, true, ""}, {"my_lora/my_lora_000000500.safetensors", 500, false, true, "bytes of"},
		}},
		{name: AIToolkit, files: map[string]string{"l_000000250.safetensors": good, "optimizer.pt": torch[:60]}, wants: []want{{"l_000000250.safetensors", 250, true, false, "optimizer.pt is cut short"}}},
		{name: LitGPT, files: map[string]string{
			"step-00000100/lit_model.pth": saved(t, 9, "model", -1, "optimizer", -1), "step-00000200/lit_model.pth": saved(t, 9), "step-00000300/hyperparameters.yaml": "a: 1",
			"step-00000400/lit_model.pth.lora": torch[:50], "final/lit_model.pth": torch,
		}, wants: []want{
			{"step-00000100/lit_model.pth", 100, true, true, ""}, {"step-00000200/lit_model.pth", 200, true, false, "weights only"}, {"step-00000300", 300, false, false, "lit_model.pth is missing"}, {"step-00000400/lit_model.pth.lora", 400, false, false, "cut short"},
		}},
		{name: Torchtitan, files: concat(under("checkpoint/step-10/", dcp), under("checkpoint/step-20/", with(dcp, ".metadata", gone))), wants: []want{
			{"checkpoint/step-10", 10, true, true, ""}, {"checkpoint/step-20", 20, false, true, "no .metadata"},
		}},
		{name: NeMo, files: concat(
			under("default/2026-01-05/checkpoints/llama--reduced_train_loss=2.1-step=9-consumed_samples=80.0/weights/", dcp),
			under("default/2026-01-05/checkpoints/llama--reduced_train_loss=2.0-step=19-consumed_samples=160.0-last/weights/", dcp),
			map[string]string{"default/2026-01-05/checkpoints/llama--reduced_train_loss=2.0-step=19-consumed_samples=160.0-last-unfinished": ""},
		), wants: []want{
			{"default/2026-01-05/checkpoints/llama--reduced_train_loss=2.1-step=9-consumed_samples=80.0", 9, true, true, ""},
			{"default/2026-01-05/checkpoints/llama--reduced_train_loss=2.0-step=19-consumed_samples=160.0-last", 19, false, false, "-unfinished is there"},
		}},
		{name: OpenRLHF, files: map[string]string{
			"_actor/latest": "global_step10", "_actor/global_step10/mp_rank_00_model_states.pt": torch, "_actor/global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt": torch,
			"_actor/global_step20/mp_rank_00_model_states.pt": torch,
		}, wants: []want{{"_actor/global_step10", 10, true, true, ""}, {"_actor/global_step20", 20, false, true, "latest names global_step10"}}},
		{name: Composer, files: map[string]string{"run/ep0-ba100-rank0.pt": saved(t, 9, "optimizers", -1), "run/ep0-ba200-rank0.pt": torch[:70], "run/ep0-ba100-rank1.pt": torch}, links: map[string]string{"run/latest-rank0.pt": "ep0-ba100-rank0.pt"}, wants: []want{
			{"run/ep0-ba100-rank0.pt", 100, true, true, ""}, {"run/ep0-ba200-rank0.pt", 200, false, true, "cut short"},
		}},
	}
	tested := map[string]bool{HF: true, None: true}
	for i, c := range cases {
		tested[c.name] = true
		t.Run(fmt.Sprintf("%d %s", i, c.name), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			put(t, dir, c.files)
			for link, target := range c.links {
				if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
					t.Fatal(err)
				}
			}
			got := List(c.name, dir)
			check(t, dir, got, c.wants)
			for _, w := range c.wants {
				if at, err := At(c.name, filepath.Join(dir, w.name)); err != nil || at.Complete != w.complete || at.Step != w.step {
					t.Errorf("At(%s): %+v, %v", w.name, at, err)
				}
			}
		})
	}
	for _, n := range Layouts() {
		if !tested[n] {
			t.Errorf("layout %s has no test", n)
		}
	}
	for from, to := range aliases {
		if !slices.Contains(Layouts(), to) {
			t.Errorf("%q stands for %q, which is none", from, to)
		}
	}
}

func concat(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range all {
		for n, s := range m {
			out[n] = s
		}
	}
	return out
}

// The one optimizer.pt of ai-toolkit, and the one recipe_state.pt of torchtune,
// belong to the newest save.
func TestOneStateForAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir, map[string]string{"l_000000250.safetensors": tensors(t, 50), "l_000000500.safetensors": tensors(t, 50), "optimizer.pt": saved(t, 5)})
	at := time.Now().Add(-time.Hour)
	for name, late := range map[string]time.Duration{"l_000000250.safetensors": 0, "optimizer.pt": time.Second, "l_000000500.safetensors": time.Minute} {
		if err := os.Chtimes(filepath.Join(dir, name), at.Add(late), at.Add(late)); err != nil {
			t.Fatal(err)
		}
	}
	got := List(AIToolkit, dir)
	if len(got) != 2 || !got[0].HasOptimizer || got[1].HasOptimizer || !got[1].Complete || !strings.Contains(got[1].Why, "earlier save") {
		t.Errorf("%+v", got)
	}
}

// A folder with more names than any output has costs a moment, and no more than the
// newest of many checkpoints are looked into.
func TestManyNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range maxListed + 50 {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprintf("checkpoint-%d", i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got := List(HF, dir)
	if len(got) != maxListed || got[len(got)-1].Step != maxListed+49 {
		t.Fatalf("%d checkpoints, the last %+v", len(got), got[len(got)-1])
	}
}
