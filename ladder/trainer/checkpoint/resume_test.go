package checkpoint

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// print is what must not change of a user's file: bytes, mode, owner, size and the
// time it was written. The count of its names is told apart.
func fingerprint(t *testing.T, root string) (files map[string]string, names map[string]uint64) {
	t.Helper()
	files, names = map[string]string{}, map[string]uint64{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		sum := ""
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = fmt.Sprintf("%x", sha256.Sum256(data))
			names[path] = uint64(st.Nlink) //nolint:unconvert // its type differs between platforms
		}
		files[path] = fmt.Sprint(sum, info.Mode(), st.Uid, st.Gid, info.Size(), info.ModTime().UnixNano(), st.Ino)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, names
}

func TestForResume(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	put(t, out, under("checkpoint-340/", map[string]string{
		"adapter_model.safetensors": tensors(t, 100), "optimizer.pt": saved(t, 9), "training_args.bin": saved(t, 1, "per_device_train_batch_size", 4),
		"global_step340/mp_rank_00_model_states.pt": saved(t, 4), "latest": "global_step340",
		"trainer_state.json": "{\n  \"best\": \"train_batch_size\",\n  \"log_history\": [{\"loss\": NaN, \"train_batch_size\": 3, \"a\\\"b\": \"{\"}],\n  \"global_step\": 340,\n  \"train_batch_size\": 8\n}\n",
	}))
	if err := os.Symlink("../outside", filepath.Join(out, "checkpoint-340", "vocab.txt")); err != nil {
		t.Fatal(err)
	}
	put(t, out, map[string]string{"outside": "words"})
	aged(t, out, time.Hour)
	before, namesBefore := fingerprint(t, out)
	list := List(HF, out)
	if len(list) != 1 || !list[0].Resumable() {
		t.Fatalf("%+v", list)
	}
	c := list[0]
	places := Places(c, out, "20260105-101010-sft-ab12", 2)
	if len(places) < 2 || filepath.Dir(places[0]) != dir || filepath.Base(places[0]) != ".sparkrun-20260105-101010-sft-ab12-a2-checkpoint-340" || filepath.Dir(places[1]) != out {
		t.Fatalf("places %v", places)
	}
	// A micro-batch of 2 on 2 devices that one process drives.
	ready, err := ForResume(c, Want{Layout: "ms-swift", Micro: 2, Into: places})
	if err != nil {
		t.Fatal(err)
	}
	if ready.Path != filepath.Join(places[0], "checkpoint-340") || len(ready.Made) != 1 || ready.Made[0] != places[0] || !strings.Contains(ready.Note, "4 instead of 8") || !strings.Contains(ready.Note, "hard links") {
		t.Errorf("%+v", ready)
	}
	data, err := os.ReadFile(filepath.Join(ready.Path, "trainer_state.json"))
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(filepath.Join(c.Path, "trainer_state.json"))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(string(old), "\"train_batch_size\": 8\n}", "\"train_batch_size\": 4\n}", 1); string(data) != want {
		t.Errorf("the copy's state:\n%s", data)
	}
	if words, err := os.ReadFile(filepath.Join(ready.Path, "vocab.txt")); err != nil || string(words) != "words" {
		t.Errorf("a link of the checkpoint's: %q, %v", words, err)
	}
	// The copy is a whole checkpoint, and a trainer that looks for one in the output
	// folder does not see it.
	if got, err := At(HF, ready.Path); err != nil || !got.Resumable() || got.Step != 340 {
		t.Errorf("the copy: %+v, %v", got, err)
	}
	during, namesDuring := fingerprint(t, out)
	same(t, "while the copy lasts", before, during)
	for path, n := range namesDuring {
		want := namesBefore[path] + 1
		if filepath.Base(path) == "trainer_state.json" || filepath.Base(path) == "outside" {
			want = namesBefore[path]
		}
		if n != want {
			t.Errorf("%s has %d names, want %d", path, n, want)
		}
	}
	for _, m := range ready.Made {
		if err := os.RemoveAll(m); err != nil {
			t.Fatal(err)
		}
	}
	after, namesAfter := fingerprint(t, out)
	same(t, "afterwards", before, after)
	for path, n := range namesAfter {
		if n != namesBefore[path] {
			t.Errorf("%s has %d names afterwards", path, n)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func same(t *testing.T, when string, before, after map[string]string) {
	t.Helper()
	for path, b := range before {
		if after[path] != b {
			t.Errorf("%s, %s:\n%s\n%s", when, path, b, after[path])
		}
	}
	if len(before) != len(after) {
		t.Errorf("%s: %d files instead of %d", when, len(after), len(before))
	}
}

func TestForResumeNoCopy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	into := []string{filepath.Join(dir, "copy")}
	for i, c := range []struct {
		state    string
		args     string
		layout   string
		micro    int64
		was      int64
		half     bool
		into     []string
		number   string // that must stand in the copy, "" for no copy
		refusing string
	}{
		{state: `{"global_step": 5, "train_batch_size": 8}`, micro: 0},
		{state: `{"global_step": 5, "train_batch_size": 8}`, micro: 8, was: 8},
		{state: `{"global_step": 5, "train_batch_size": 8}`, micro: 4, layout: Diffusers},
		{state: `{"global_step": 5}`, micro: 4},
		{state: `{"global_step": 5, "train_batch_size": 8}`, micro: 4, was: 8, into: into, number: "4"},
		{state: `{"global_step": 5, "train_batch_size": 16}`, micro: 4, was: 8, into: into, number: "8"},
		{state: `{"global_step": 5, "train_batch_size": 8}`, half: true, args: saved(t, 1, "per_device_train_batch_size", 8), into: into, number: "4"},
		{state: `{"global_step": 5, "train_batch_size": 3}`, half: true, into: into, refusing: "no half"},
		{state: `{"global_step": 5, "train_batch_size": null}`, half: true, into: into, refusing: "no count of rows"},
		{state: `{"global_step": 5, "train_batch_size": null}`, micro: 4, into: into, number: "4"},
		{state: `{"global_step": 5, "train_batch_size":8}`, micro: 2, args: saved(t, 1, "per_device_train_batch_size", 8), was: 99, into: into, number: "2"},
		{state: `{"global_step": 5, "train_batch_size": 8}`, micro: 4, was: 8, refusing: "no place"},
		{state: `{"global_step": 5, "train_batch_size": 8}`, micro: 4, into: into, refusing: "cannot be told"},
		{state: `{"global_step": 5, "train_batch_size": 1}`, micro: 1, was: 2, into: into, refusing: "cannot be told"},
		{state: `{"global_step": 5, "train_batch_size": "8"}`, micro: 4, was: 8, into: into, refusing: "no count of rows"},
		{state: `{"global_step": 5, "train_ba`, micro: 4, was: 8, into: into, refusing: "torn"},
		{state: `{"global_step": 5, "train_batch_size": 8}`, micro: 4, was: 8, into: []string{filepath.Join(dir, "no", "where")}, refusing: "cannot be made"},
	} {
		path := filepath.Join(dir, fmt.Sprint(i), "checkpoint-5")
		put(t, path, map[string]string{"trainer_state.json": c.state})
		if c.args != "" {
			put(t, path, map[string]string{"training_args.bin": c.args})
		}
		layout := c.layout
		if layout == "" {
			layout = HF
		}
		ready, err := ForResume(Checkpoint{Path: path}, Want{Layout: layout, Micro: c.micro, WasMicro: c.was, Half: c.half, Into: c.into})
		switch {
		case c.refusing != "":
			if err == nil || !strings.Contains(err.Error(), c.refusing) {
				t.Errorf("%d: %+v, %v", i, ready, err)
			}
		case err != nil:
			t.Errorf("%d: %v", i, err)
		case c.number == "":
			if ready.Path != path || ready.Made != nil || ready.Note != "" {
				t.Errorf("%d: %+v", i, ready)
			}
		default:
			var st map[string]json.RawMessage
			data, err := os.ReadFile(filepath.Join(ready.Path, "trainer_state.json"))
			if err == nil {
				err = json.Unmarshal(data, &st)
			}
			if err != nil || string(st["train_batch_size"]) != c.number {
				t.Errorf("%d: %s, %v", i, data, err)
			}
		}
		for _, m := range ready.Made {
			if err := os.RemoveAll(m); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Lstat(into[0]); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("%d: something is left: %v", i, err)
		}
	}
}

// Another file system has no second names; links lead to the files then.
func TestForResumeOtherFileSystem(t *testing.T) {
	t.Parallel()
	const shm = "/dev/shm"
	dir := t.TempDir()
	here, ok := device(dir)
	there, ok2 := device(shm)
	if !ok || !ok2 || here == there {
		t.Skip("no second file system at /dev/shm")
	}
	other, err := os.MkdirTemp(shm, "sparkrun-test-")
	if err != nil {
		t.Skipf("%s cannot be written: %v", shm, err)
	}
	t.Cleanup(func() { os.RemoveAll(other) })
	put(t, dir, under("checkpoint-5/", map[string]string{"model.safetensors": tensors(t, 100), "sub/optimizer.pt": saved(t, 9), "trainer_state.json": `{"global_step": 5, "train_batch_size": 8}`}))
	c, err := At(HF, filepath.Join(dir, "checkpoint-5"))
	if err != nil {
		t.Fatal(err)
	}
	before, _ := fingerprint(t, dir)
	ready, err := ForResume(c, Want{Layout: HF, Micro: 4, WasMicro: 8, Into: []string{filepath.Join(other, "copy")}})
	if err != nil {
		t.Fatal(err)
	}
	to, err := os.Readlink(filepath.Join(ready.Path, "model.safetensors"))
	if err != nil || filepath.IsAbs(to) || !strings.Contains(ready.Note, "(links)") {
		t.Errorf("%s, %+v, %v", to, ready, err)
	}
	if got, err := At(HF, ready.Path); err != nil || !got.Complete {
		t.Errorf("the copy: %+v, %v", got, err)
	}
	if err := os.RemoveAll(ready.Made[0]); err != nil {
		t.Fatal(err)
	}
	after, _ := fingerprint(t, dir)
	same(t, "afterwards", before, after)
	// The place on the checkpoint's own file system comes first.
	if p := Places(c, filepath.Join(other, "out"), "id", 3); filepath.Dir(p[0]) == dir {
		t.Errorf("places %v", p)
	}
}

// Whatever stands around it, the change of one top-level number changes nothing else.
func TestSetTopLevel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringN(0, 20, 60)
		inner := map[string]any{text.Draw(rt, "k"): text.Draw(rt, "v"), "train_batch_size": rapid.IntRange(0, 99).Draw(rt, "inner")}
		doc := map[string]any{"a" + text.Draw(rt, "k2"): []any{inner, text.Draw(rt, "v2")}, "train_batch_size": 12345678, "z" + text.Draw(rt, "k3"): inner}
		data, err := json.MarshalIndent(doc, "", rapid.SampledFrom([]string{"", "  ", "\t"}).Draw(rt, "indent"))
		if err != nil {
			rt.Fatal(err)
		}
		got, err := setTopLevel(data, "train_batch_size", "7")
		if err != nil {
			rt.Fatal(err)
		}
		if want := strings.Replace(string(data), "12345678", "7", 1); string(got) != want {
			rt.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	})
}
