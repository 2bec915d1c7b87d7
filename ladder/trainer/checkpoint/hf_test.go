package checkpoint

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestHF(t *testing.T) {
	t.Parallel()
	good, torch := tensors(t, 1000), saved(t, 500)
	index := `{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}`
	one, two := "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	cases := []struct {
		files map[string]string
		want  want
	}{
		{map[string]string{"model.safetensors": good, "optimizer.pt": torch, "trainer_state.json": state(10)}, want{complete: true, optim: true}},
		{map[string]string{"model.safetensors": good, "optimizer.pt": torch}, want{why: "trainer_state.json is missing: it is written last"}},
		{map[string]string{"model.safetensors": good, "trainer_state.json": state(29)}, want{why: "is of step 29"}},
		{map[string]string{"model.safetensors": good, "trainer_state.json": state(40)[:25]}, want{why: "torn"}},
		{map[string]string{"trainer_state.json": state(50), "optimizer.pt": torch}, want{why: "no weights"}},
		{map[string]string{"model.safetensors": good[:len(good)-1], "trainer_state.json": state(60)}, want{why: "bytes of"}},
		{map[string]string{"model.safetensors": good[:20], "trainer_state.json": state(70)}, want{why: "cut short in its header"}},
		{map[string]string{"model.safetensors": "", "trainer_state.json": state(80)}, want{why: "is empty"}},
		{map[string]string{"model.safetensors.index.json": index, one: good, "trainer_state.json": state(90)}, want{why: two + " is missing"}},
		{map[string]string{"model.safetensors.index.json": index, one: good, two: good, "trainer_state.json": state(100)}, want{complete: true, why: "weights only"}},
		{map[string]string{"adapter_model.safetensors": good, "optimizer.pt": "", "trainer_state.json": state(110)}, want{why: "optimizer.pt is empty"}},
		{map[string]string{"pytorch_model.bin": torch[:len(torch)-30], "optimizer.pt": torch, "trainer_state.json": state(120)}, want{why: "pytorch_model.bin is cut short"}},
		{map[string]string{"adapter_model.bin": torch, "optimizer.pt": torch[:100], "trainer_state.json": state(130)}, want{why: "optimizer.pt is cut short"}},
		{map[string]string{"model.safetensors": good + "x", "trainer_state.json": state(140)}, want{why: "bytes of"}},
		{map[string]string{"model.safetensors": good, "optimizer.pt": string(legacy) + "rest", "trainer_state.json": state(150)}, want{complete: true, optim: true}},
		{map[string]string{"model.safetensors": good, "optimizer.pt": strings.Repeat("\x00", 500), "trainer_state.json": state(160)}, want{why: "or torn"}},
		// Without an index, the names of the shards say how many there are.
		{map[string]string{one: good, "trainer_state.json": state(170)}, want{why: two + " is missing"}},
		{map[string]string{two: good, "trainer_state.json": state(180)}, want{why: one + " is missing"}},
		{map[string]string{"model.safetensors": good, "optimizer.pt": torch, "trainer_state.json": state(190), incompleteMark: "x"}, want{why: incompleteMark}},
		{map[string]string{"model.safetensors": good, "optimizer.pt": torch, "config.json": `{"a": `, "trainer_state.json": state(200)}, want{why: "config.json is torn"}},
		// DeepSpeed, alone and with two ranks.
		{map[string]string{"latest": "global_step210\n", "global_step210/mp_rank_00_model_states.pt": torch, "global_step210/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": torch, "trainer_state.json": state(210)}, want{complete: true, optim: true}},
		{map[string]string{"global_step220/mp_rank_00_model_states.pt": torch, "trainer_state.json": state(220)}, want{why: "latest is missing"}},
		{map[string]string{"latest": "global_step230", "global_step230/mp_rank_00_model_states.pt": torch, "global_step230/zero_pp_rank_1_mp_rank_00_optim_states.pt": torch, "trainer_state.json": state(230)}, want{why: "lacks the states of some ranks"}},
		{map[string]string{"latest": "global_step239", "global_step240/mp_rank_00_model_states.pt": torch, "trainer_state.json": state(240)}, want{why: "which is not there"}},
		{map[string]string{"latest": "global_step250", "global_step250/zero_pp_rank_0_mp_rank_00_optim_states.pt": torch[:90], "trainer_state.json": state(250)}, want{why: "cut short"}},
		// FSDP, whole and sharded.
		{map[string]string{"pytorch_model_fsdp.bin": torch, "optimizer.bin": torch, "trainer_state.json": state(260)}, want{complete: true, optim: true}},
		{map[string]string{"pytorch_model_fsdp_0/.metadata": metadata("__0_0.distcp", "__1_0.distcp"), "pytorch_model_fsdp_0/__0_0.distcp": torch + torch, "pytorch_model_fsdp_0/__1_0.distcp": torch, "optimizer_0/.metadata": metadata("__0_0.distcp"), "optimizer_0/__0_0.distcp": torch, "trainer_state.json": state(270)}, want{complete: true, optim: true}},
		{map[string]string{"pytorch_model_fsdp_0/.metadata": metadata("__0_0.distcp", "__1_0.distcp"), "pytorch_model_fsdp_0/__0_0.distcp": torch, "trainer_state.json": state(280)}, want{why: "__1_0.distcp is missing"}},
		{map[string]string{"pytorch_model_fsdp_0/.metadata": metadata("__0_0.distcp"), "pytorch_model_fsdp_0/__0_0.distcp": torch + torch[:99], "trainer_state.json": state(290)}, want{why: "__0_0.distcp is cut short"}},
		{map[string]string{"pytorch_model_fsdp_0/__0_0.distcp": torch, "trainer_state.json": state(300)}, want{why: "no .metadata"}},
		{map[string]string{"pytorch_model_fsdp_0/.metadata": "\x80\x05__0_0.distcp", "pytorch_model_fsdp_0/__0_0.distcp": torch, "trainer_state.json": state(310)}, want{why: ".metadata is cut short"}},
		// An adapter of another name, as PEFT saves it.
		{map[string]string{"reward/adapter_model.safetensors": good, "optimizer.pt": torch, "trainer_state.json": state(320)}, want{complete: true, optim: true}},
		{map[string]string{"reward/adapter_model.safetensors": good[:90], "optimizer.pt": torch, "trainer_state.json": state(330)}, want{why: "adapter_model.safetensors"}},
		// A trainer without torch.
		{map[string]string{"model.json": `{"w": [1, NaN]}`, "trainer_state.json": state(340)}, want{complete: true, why: "weights only"}},
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "out[1] *")
	var wants []want
	for i, c := range cases {
		step := (i + 1) * 10
		name := fmt.Sprintf("checkpoint-%d", step)
		put(t, filepath.Join(out, name), c.files)
		w := c.want
		w.name, w.step = name, int64(step)
		wants = append(wants, w)
	}
	put(t, out, map[string]string{"checkpoint-x/trainer_state.json": state(1), "checkpoint-999": "a file", "tmp-checkpoint-5/a": ""})
	check(t, out, List(HF, out), wants)
	check(t, out, List("axolotl", out), wants)
	for _, none := range []string{"", "gone", filepath.Join(out, "checkpoint-999")} {
		if got := List(HF, none); got != nil {
			t.Errorf("%q holds %v", none, got)
		}
	}
	if got := List(None, out); got != nil {
		t.Errorf("layout none: %v", got)
	}
	if got := List("of my own", out); got != nil || Known("of my own") || !Known("swift") || !Known("") {
		t.Errorf("an unknown layout: %v", got)
	}
}

// ms-swift makes a folder with the time in its name for every start.
func TestSwift(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := map[string]string{"adapter_model.safetensors": tensors(t, 100), "optimizer.pt": saved(t, 9)}
	put(t, dir, under("v0-20260105-101010/checkpoint-500/", with(whole, "trainer_state.json", state(500))))
	put(t, dir, under("v1-20260106-101010/checkpoint-600/", with(whole, "trainer_state.json", state(600))))
	put(t, dir, under("v1-20260106-101010/checkpoint-700/", whole))
	put(t, dir, under("runs/checkpoint-900/", with(whole, "trainer_state.json", state(900))))
	got := List("ms-swift", dir)
	check(t, dir, got, []want{
		{"v0-20260105-101010/checkpoint-500", 500, true, true, ""},
		{"v1-20260106-101010/checkpoint-600", 600, true, true, ""},
		{"v1-20260106-101010/checkpoint-700", 700, false, true, "trainer_state.json is missing"},
	})
	c, ok := NewestComplete(got)
	if half := HalfWritten(got); !ok || c.Step != 600 || len(half) != 1 || half[0].Step != 700 || !half[0].Writing {
		t.Errorf("newest complete %+v, half-written %+v", c, half)
	}
	aged(t, filepath.Join(dir, "v1-20260106-101010"), time.Hour)
	if half := HalfWritten(List(HF, dir)); len(half) != 1 || half[0].Writing {
		t.Errorf("an hour later: %+v", half)
	}
}

func TestNewest(t *testing.T) {
	t.Parallel()
	if _, ok := NewestComplete(nil); ok {
		t.Error("none is complete of none")
	}
	all := []Checkpoint{{Step: 1, Complete: true}, {Step: 2}, {Step: 3, Complete: true, HasOptimizer: true}, {Step: 4, Complete: true}, {Step: 5}}
	if c, ok := NewestComplete(all); !ok || c.Step != 4 {
		t.Errorf("newest complete: %+v", c)
	}
	if c, ok := NewestResumable(HF, all); !ok || c.Step != 4 {
		t.Errorf("the Trainer goes on from weights alone: %+v", c)
	}
	if c, ok := NewestResumable(Lightning, all); !ok || c.Step != 3 {
		t.Errorf("Lightning does not: %+v", c)
	}
	if h := HalfWritten(all); len(h) != 1 || h[0].Step != 5 {
		t.Errorf("half-written: %+v", h)
	}
	if h := HalfWritten([]Checkpoint{{Step: 1}, {Step: 2}}); len(h) != 2 {
		t.Errorf("none complete: %+v", h)
	}
}

// A size is a note and never a verdict.
func TestSizes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for step, size := range map[int]int{1: 10000, 2: 10100, 3: 3000, 4: 3000} {
		put(t, dir, under(fmt.Sprintf("checkpoint-%d/", step), map[string]string{"model.safetensors": tensors(t, size), "trainer_state.json": state(step)}))
	}
	for i, c := range List(HF, dir) {
		if (c.Note != "") != (i == 2) || !c.Complete || c.Bytes == 0 {
			t.Errorf("%+v", c)
		}
	}
}

func TestLinksAndPipes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := map[string]string{"model.safetensors": tensors(t, 100), "optimizer.pt": saved(t, 9)}
	put(t, dir, under("elsewhere/ck/", with(whole, "trainer_state.json", state(10))))
	put(t, dir, under("out/checkpoint-20/", with(whole, "trainer_state.json", state(20))))
	put(t, dir, under("out/checkpoint-30/", with(whole, "trainer_state.json", state(30), "model.safetensors", gone)))
	put(t, dir, under("out/checkpoint-60/", with(whole, "trainer_state.json", state(60))))
	out := filepath.Join(dir, "out")
	for link, target := range map[string]string{
		"checkpoint-10":        "../elsewhere/ck",
		"checkpoint-40":        "checkpoint-40", // a circle
		"checkpoint-50":        "../gone",
		"checkpoint-70":        "checkpoint-60", // a second name
		"checkpoint-20/around": "..",
		"checkpoint-60/vocab":  "../gone", // of no format that is looked into
	} {
		if err := os.Symlink(target, filepath.Join(out, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(out, "checkpoint-30", "model.safetensors"), 0o644); err != nil {
		t.Fatal(err)
	}
	done := make(chan []Checkpoint)
	go func() { done <- List(HF, out) }()
	select {
	case got := <-done:
		check(t, out, got, []want{
			{"checkpoint-10", 10, true, true, ""},
			{"checkpoint-20", 20, true, true, ""},
			{"checkpoint-30", 30, false, true, "no regular file"},
			{"checkpoint-60", 60, true, true, ""},
		})
	case <-time.After(20 * time.Second):
		t.Fatal("a pipe or a circle held it up")
	}
}

// Nothing that a file says may make it read or allocate without bound.
func TestHostileFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	huge := bytes.Repeat([]byte{0xff}, 64)
	good := saved(t, 100, "global_step", 5)
	eocd := strings.LastIndex(good, "PK\x05\x06")
	counts := []byte(good)
	copy(counts[eocd+8:], "\xfe\xff\xfe\xff")
	wide := []byte(good)
	copy(wide[eocd+8:], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
	for name, data := range map[string][]byte{
		"length.safetensors": huge,
		"none.safetensors":   append(append([]byte{30, 0, 0, 0, 0, 0, 0, 0}, `{"w":{"data_offsets":[-5,-1]}}`...), 'x'),
		"word.safetensors":   append([]byte{4, 0, 0, 0, 0, 0, 0, 0}, `"ab"`...),
		"counts.pt":          counts,
		"wide.pt":            wide,
		"member.pt":          []byte(strings.Replace(good, "PK\x01\x02", "PK\x01\x03", 1)),
		"local.pt":           []byte(good[:strings.LastIndex(good, "PK\x03\x04")] + "PK\x03\x05" + good[strings.LastIndex(good, "PK\x03\x04")+4:]),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		why, _ := torchFile(path)
		if strings.HasSuffix(name, ".safetensors") {
			why = safetensors(path)
		}
		if why == "" {
			t.Errorf("%s passes", name)
		}
	}
	// A sparse terabyte costs as little as any other.
	path := filepath.Join(dir, "sparse.bin")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(1 << 40); err != nil {
		t.Skipf("this file system has no sparse files: %v", err)
	}
	f.Close()
	if why, _ := torchFile(path); why == "" {
		t.Error("a terabyte of nothing passes")
	}
}

func TestAt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := map[string]string{"model.safetensors": tensors(t, 100), "optimizer.pt": saved(t, 9), "trainer_state.json": state(10)}
	put(t, dir, under("out/checkpoint-10/", whole))
	put(t, dir, under("out/checkpoint-20/", with(whole, "trainer_state.json", gone)))
	put(t, dir, under("kept/", whole))
	put(t, dir, map[string]string{"bad/checkpoint-5/a": "", "empty/": ""})
	for path, step := range map[string]int64{"out/checkpoint-10": 10, "out/checkpoint-10/": 10, "kept": 10, "out": 10} {
		c, err := At(HF, filepath.Join(dir, path))
		if err != nil || c.Step != step || !c.Complete {
			t.Errorf("%s: %+v, %v", path, c, err)
		}
	}
	if c, err := At(HF, filepath.Join(dir, "out/checkpoint-20")); err != nil || c.Complete || !strings.Contains(c.Why, "trainer_state.json is missing") {
		t.Errorf("a half-written one: %+v, %v", c, err)
	}
	for path, words := range map[string]string{"gone": "cannot be looked at", "bad": "trainer_state.json is missing"} {
		if c, err := At(HF, filepath.Join(dir, path)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %+v, %v", path, c, err)
		}
	}
	if c, err := At(HF, filepath.Join(dir, "empty")); err == nil && c.Complete {
		t.Errorf("an empty folder: %+v", c)
	}
	if _, err := At("unheard of", dir); err == nil || !strings.Contains(err.Error(), "not known") {
		t.Errorf("an unknown layout: %v", err)
	}
}

// No truncation of any file whose format has an end may pass.
func TestTruncations(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := map[string]string{
		"model.safetensors": tensors(t, 3000), "optimizer.pt": saved(t, 900, "state", 1), "scheduler.pt": saved(t, 3, "last_epoch", 4),
		"rng_state.pth": saved(t, 20), "training_args.bin": saved(t, 1), "config.json": `{"model_type": "llama", "sizes": {"hidden": 16}}`,
		"trainer_state.json": state(10),
	}
	put(t, dir, under("checkpoint-10/", files))
	for name, text := range files {
		path := filepath.Join(dir, "checkpoint-10", name)
		for n := range len(text) {
			if len(text) > 400 && n%37 != 0 && n < len(text)-100 && n > 150 {
				continue
			}
			if err := os.Truncate(path, int64(n)); err != nil {
				t.Fatal(err)
			}
			if got := List(HF, dir); len(got) != 1 || got[0].Complete || got[0].Why == "" {
				t.Fatalf("%s cut to %d bytes of %d: %+v", name, n, len(text), got)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := List(HF, dir); len(got) != 1 || !got[0].Resumable() {
		t.Fatalf("whole again: %+v", got)
	}
}
