package trainer

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// tensors returns a safetensors file with size bytes of data.
func tensors(t *testing.T, size int) string {
	t.Helper()
	header, err := json.Marshal(map[string]any{
		"__metadata__": map[string]string{"format": "pt"},
		"w":            map[string]any{"dtype": "U8", "shape": []int{size}, "data_offsets": []int{0, size}},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return string(b) + string(header) + strings.Repeat("x", size)
}

// torchSave returns a zip archive as torch.save writes one.
func torchSave(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	f, err := w.Create("archive/data.pkl")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(bytes.Repeat([]byte("x"), 500)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestCheckpoints(t *testing.T) {
	t.Parallel()
	good, saved := tensors(t, 1000), torchSave(t)
	state := func(step int) string {
		return fmt.Sprintf(`{"global_step": %d, "log_history": [{"loss": NaN, "note": "a: NaN, b"}, [Infinity,NaN,-Infinity]]}`, step)
	}
	index := `{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}`
	cases := []struct {
		step     int
		files    map[string]string
		complete bool
		why      string
	}{
		{10, map[string]string{"model.safetensors": good, "optimizer.pt": saved, "trainer_state.json": state(10)}, true, ""},
		{20, map[string]string{"model.safetensors": good, "optimizer.pt": saved}, false, "trainer_state.json is missing"},
		{30, map[string]string{"model.safetensors": good, "trainer_state.json": state(29)}, false, "is of step 29"},
		{40, map[string]string{"model.safetensors": good, "trainer_state.json": state(40)[:25]}, false, "torn"},
		{50, map[string]string{"trainer_state.json": state(50), "optimizer.pt": saved}, false, "no weights"},
		{60, map[string]string{"model.safetensors": good[:len(good)-1], "trainer_state.json": state(60)}, false, "bytes of"},
		{70, map[string]string{"model.safetensors": good[:20], "trainer_state.json": state(70)}, false, "cut short in its header"},
		{80, map[string]string{"model.safetensors": "", "trainer_state.json": state(80)}, false, "is empty"},
		{90, map[string]string{"model.safetensors.index.json": index, "model-00001-of-00002.safetensors": good, "trainer_state.json": state(90)}, false, "model-00002-of-00002.safetensors is missing"},
		{100, map[string]string{"model.safetensors.index.json": index, "model-00001-of-00002.safetensors": good, "model-00002-of-00002.safetensors": good, "trainer_state.json": state(100)}, true, "weights only"},
		{110, map[string]string{"adapter_model.safetensors": good, "optimizer.pt": "", "trainer_state.json": state(110)}, false, "optimizer.pt is empty"},
		{120, map[string]string{"pytorch_model.bin": saved[:len(saved)-30], "optimizer.pt": saved, "trainer_state.json": state(120)}, false, "pytorch_model.bin is cut short"},
		{130, map[string]string{"adapter_model.bin": saved, "optimizer.pt": saved[:100], "trainer_state.json": state(130)}, false, "optimizer.pt is cut short"},
		{140, map[string]string{"model.safetensors": good, "global_step140/x": "x", "trainer_state.json": state(140)}, true, ""},
		{150, map[string]string{"model.safetensors": good, "optimizer.pt": "old pickle", "trainer_state.json": state(150)}, true, ""},
	}
	files := map[string]string{
		"out[1]/checkpoint-x/trainer_state.json": state(1), "out[1]/checkpoint-999": "a file", "out[1]/tmp-checkpoint-5/a": "",
	}
	for _, c := range cases {
		for name, text := range c.files {
			files[fmt.Sprintf("out[1]/checkpoint-%d/%s", c.step, name)] = text
		}
	}
	dir := folder(t, files)
	s := profiles(t)
	got := s.Checkpoints(job.Job{Dir: dir}, "out[1]")
	if len(got) != len(cases) {
		t.Fatalf("%d checkpoints, want %d: %+v", len(got), len(cases), got)
	}
	for i, c := range cases {
		g := got[i]
		if g.Step != int64(c.step) || g.Complete != c.complete || !strings.Contains(g.Why, c.why) || (c.why == "") != (g.Why == "") {
			t.Errorf("checkpoint-%d: %+v, want complete %v, why %q", c.step, g, c.complete, c.why)
		}
		if g.T.IsZero() || g.Path != filepath.Join(dir, "out[1]", fmt.Sprintf("checkpoint-%d", c.step)) {
			t.Errorf("checkpoint-%d: %+v", c.step, g)
		}
	}
	for _, none := range []string{"", "gone", "out[1]/checkpoint-999"} {
		if got := s.Checkpoints(job.Job{Dir: dir}, none); got != nil {
			t.Errorf("%q holds %v", none, got)
		}
	}
	// A header length that is no length must not be allocated.
	huge := filepath.Join(dir, "huge.safetensors")
	if err := os.WriteFile(huge, bytes.Repeat([]byte{0xff}, 64), 0o644); err != nil {
		t.Fatal(err)
	}
	if why := safetensors(huge, 64); !strings.Contains(why, "cut short") {
		t.Errorf("a huge header: %q", why)
	}
}
