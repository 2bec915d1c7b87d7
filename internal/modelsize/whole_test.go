package modelsize

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A folder whose weights are not all there says so, whatever tells how many there should
// be, and nothing of it is exact.
func TestMissingFiles(t *testing.T) {
	t.Parallel()
	one := map[string]part{"a.weight": {"BF16", []int64{10, 10}}}
	const llama = `{"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": true, "torch_dtype": "bfloat16"}`
	index := func(ext string) string {
		return `{"weight_map": {"a.weight": "model-00001-of-00002` + ext + `", "b.weight": "model-00002-of-00002` + ext + `"}}`
	}
	for _, c := range []struct {
		name    string
		fill    func(t *testing.T, dir string)
		missing string
		params  int64
	}{
		{"an index of safetensors", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "model.safetensors.index.json"), index(".safetensors"))
			write(t, filepath.Join(dir, "config.json"), llama)
			weights(t, filepath.Join(dir, "model-00001-of-00002.safetensors"), one)
		}, "names model-00002-of-00002.safetensors, which is not there (1 of 2 files are missing)", 6400 + 2*(64*64*2+64*32*2+3*64*128)},
		{"an index alone", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "model.safetensors.index.json"), index(".safetensors"))
		}, "model-00001-of-00002.safetensors, which is not there (2 of 2 files are missing)", 0},
		{"an index of torch's own files", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, binIndex), index(".bin"))
			write(t, filepath.Join(dir, "config.json"), llama)
			write(t, filepath.Join(dir, "model-00001-of-00002.bin"), "x")
		}, "names model-00002-of-00002.bin, which is not there", 6400 + 2*(64*64*2+64*32*2+3*64*128)},
		{"names without an index", func(t *testing.T, dir string) {
			weights(t, filepath.Join(dir, "model-00002-of-00004.safetensors"), one)
		}, "model-00001-of-00004.safetensors is not there, as the names of the others have it (3 of 4 files are missing)", 400},
		{"all of them", func(t *testing.T, dir string) {
			weights(t, filepath.Join(dir, "model-00001-of-00001.safetensors"), one)
		}, "", 100},
	} {
		dir := filepath.Join(t.TempDir(), "model")
		c.fill(t, dir)
		s, err := Read(dir)
		if (err == nil) != (c.params > 0) || s.Params != c.params || s.Exact != (c.missing == "") {
			t.Errorf("%s: %+v, %v", c.name, s, err)
		}
		if c.missing == "" != (s.Missing == "") || !strings.Contains(s.Missing, c.missing) || !strings.Contains(strings.Join(s.Notes, "\n"), s.Missing) {
			t.Errorf("%s: missing %q, notes %q", c.name, s.Missing, s.Notes)
		}
		if err != nil && (!errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), c.missing)) {
			t.Errorf("%s: %v", c.name, err)
		}
		// The size in the name does not hide it.
		named := filepath.Join(filepath.Dir(dir), "Some-7B")
		if err := os.Rename(dir, named); err != nil {
			t.Fatal(err)
		}
		if s := mustRead(t, Place{}, named); (s.Missing == "") != (c.missing == "") {
			t.Errorf("%s: with a size in the name %+v", c.name, s)
		}
	}
}

// What stands in the place of config.json, or in it, is said; what nobody could load is a
// fault.
func TestConfigsThatAreNone(t *testing.T) {
	t.Parallel()
	text := func(s string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { write(t, path, s) }
	}
	for _, c := range []struct {
		name  string
		make  func(t *testing.T, path string)
		fault string
	}{
		{"a pipe", func(t *testing.T, path string) {
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "config.json is a named pipe and no regular file"},
		{"a folder", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "config.json is a folder and no regular file"},
		{"torn", text(`{"hidden_size": 64,`), "config.json is no JSON object"},
		{"a width below zero", text(`{"hidden_size": -4, "num_hidden_layers": 2, "vocab_size": 10}`), "config.json: hidden_size is -4, which is no such size"},
		{"experts below zero", text(`{"num_local_experts": -8}`), ""},
		{"a window of none", text(`{"sliding_window": -1}`), ""},
	} {
		dir := t.TempDir()
		c.make(t, filepath.Join(dir, "config.json"))
		// Without weights: the error says what is wrong, and not that nothing is here.
		s, err := Read(dir)
		if err == nil || !errors.Is(err, ErrUnknown) || strings.Contains(err.Error(), "not on this machine") || !strings.Contains(err.Error(), "config.json") || !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %+v, %v", c.name, s, err)
		}
		weights(t, filepath.Join(dir, "model.safetensors"), map[string]part{"a.weight": {"BF16", []int64{10, 10}}})
		s = mustRead(t, Place{}, dir)
		if c.fault == "" != (s.Fault == "") || !strings.Contains(s.Fault, c.fault) || len(s.Notes) != 1 {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
	if s, err := Read(t.TempDir()); err == nil || !strings.Contains(err.Error(), "holds neither weights nor a config.json") {
		t.Errorf("an empty folder: %+v, %v", s, err)
	}
}

// Headers that are each of a size that may be are not read without an end.
func TestHeadersOfOneModelAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text, _ := header(t, map[string]part{})
	c := count{headers: maxHeaders}
	file := filepath.Join(dir, "model.safetensors")
	weights(t, file, map[string]part{})
	if err := c.file(Place{}, file); err == nil || !strings.Contains(err.Error(), "MiB together") {
		t.Errorf("a header of %d bytes over the bound: %v", len(text), err)
	}
}
