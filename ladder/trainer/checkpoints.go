package trainer

import (
	"archive/zip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"sparkrun/internal/job"
)

var checkpointName = regexp.MustCompile(`^checkpoint-(\d{1,18})$`)

// Checkpoints lists the checkpoint folders under outputDir (relative to the
// job's folder, or absolute), by step. Whether one is complete is told from its
// files alone: trainer_state.json is written last and must name the same step,
// and the weights must be all there, to the byte where their header says how
// many. The highest number alone proves nothing: a kill while saving, which is
// a peak of memory, leaves the newest one broken.
func (s *Set) Checkpoints(j job.Job, outputDir string) []Checkpoint {
	if outputDir == "" {
		return nil
	}
	dir := absolute(j.Dir, outputDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var found []Checkpoint
	for _, e := range entries {
		m := checkpointName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			continue
		}
		step, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			continue
		}
		found = append(found, readCheckpoint(path, step))
	}
	sort.Slice(found, func(a, b int) bool { return found[a].Step < found[b].Step })
	return found
}

func readCheckpoint(path string, step int64) Checkpoint {
	c := Checkpoint{Path: path, Step: step}
	if info, err := os.Stat(path); err == nil {
		c.T = info.ModTime()
	}
	state := filepath.Join(path, "trainer_state.json")
	data, err := os.ReadFile(state)
	if errors.Is(err, fs.ErrNotExist) {
		c.Why = "trainer_state.json is missing: it is written last, so saving was cut short"
		return c
	}
	if err != nil {
		c.Why = "trainer_state.json cannot be read: " + err.Error()
		return c
	}
	if info, err := os.Stat(state); err == nil {
		c.T = info.ModTime()
	}
	var st struct {
		GlobalStep *int64 `json:"global_step"`
	}
	if err := json.Unmarshal(lenient(data), &st); err != nil || st.GlobalStep == nil {
		c.Why = "trainer_state.json is torn or has no global_step"
		return c
	}
	if *st.GlobalStep != step {
		c.Why = fmt.Sprintf("trainer_state.json is of step %d", *st.GlobalStep)
		return c
	}
	if why := weights(path); why != "" {
		c.Why = why
		return c
	}
	optimizer := filepath.Join(path, "optimizer.pt")
	info, err := os.Stat(optimizer)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// DeepSpeed and FSDP keep it elsewhere, and save_only_model leaves it out.
		c.Complete = true
		if !hasOther(path, "optimizer*", "global_step*", "pytorch_model_fsdp*", "optim*") {
			c.Why = "weights only: the optimizer would start anew"
		}
	case err != nil:
		c.Why = "optimizer.pt cannot be read: " + err.Error()
	case info.Size() == 0:
		c.Why = "optimizer.pt is empty"
	default:
		if why := torchFile(optimizer, info.Size()); why != "" {
			c.Why = why
			return c
		}
		c.Complete = true
	}
	return c
}

// nonFinite matches the bare words that Python's json writes for numbers that
// JSON does not have, where a value stands.
var nonFinite = regexp.MustCompile(`([:,\[]\s*)(?:NaN|-?Infinity)(\s*[,\]}])`)

// lenient makes Python's JSON strict: a NaN in the loss history must not make a
// good checkpoint a broken one.
func lenient(data []byte) []byte {
	// Twice, since two neighbours share a comma.
	data = nonFinite.ReplaceAll(data, []byte("${1}null${2}"))
	return nonFinite.ReplaceAll(data, []byte("${1}null${2}"))
}

func hasOther(dir string, patterns ...string) bool {
	for _, p := range patterns {
		if m, err := filepath.Glob(filepath.Join(escapeGlob(dir), p)); err == nil && len(m) > 0 {
			return true
		}
	}
	return false
}

var globSpecial = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

func escapeGlob(path string) string { return globSpecial.Replace(path) }

// weights returns what is wrong with the weight files of a checkpoint, "" if
// they are all there.
func weights(dir string) string {
	seen := false
	for _, index := range []string{"model.safetensors.index.json", "pytorch_model.bin.index.json"} {
		data, err := os.ReadFile(filepath.Join(dir, index))
		if err != nil {
			continue
		}
		var ix struct {
			WeightMap map[string]string `json:"weight_map"`
		}
		if err := json.Unmarshal(data, &ix); err != nil || len(ix.WeightMap) == 0 {
			return index + " is torn or lists no weights"
		}
		shards := map[string]bool{}
		for _, s := range ix.WeightMap {
			shards[s] = true
		}
		for _, s := range sortedKeys(shards) {
			if _, err := os.Stat(filepath.Join(dir, filepath.Base(s))); err != nil {
				return s + " is missing, which " + index + " lists"
			}
		}
		seen = true
	}
	for _, pattern := range []string{"*.safetensors", "pytorch_model*.bin", "adapter_model.bin", "model.json", "model.pt", "weights.*"} {
		files, err := filepath.Glob(filepath.Join(escapeGlob(dir), pattern))
		if err != nil {
			continue
		}
		for _, f := range files {
			info, err := os.Stat(f)
			name := filepath.Base(f)
			if err != nil || !info.Mode().IsRegular() {
				return name + " cannot be read"
			}
			if info.Size() == 0 {
				return name + " is empty"
			}
			why := ""
			switch filepath.Ext(f) {
			case ".safetensors":
				why = safetensors(f, info.Size())
			case ".bin", ".pt":
				why = torchFile(f, info.Size())
			case ".json":
				if data, err := os.ReadFile(f); err != nil || !json.Valid(lenient(data)) {
					why = name + " is torn"
				}
			}
			if why != "" {
				return why
			}
			seen = true
		}
	}
	if !seen && !hasOther(dir, "global_step*", "pytorch_model_fsdp*") {
		return "there are no weights in it"
	}
	return ""
}

// safetensors checks that a file is as long as its header says.
func safetensors(path string, size int64) string {
	name := filepath.Base(path)
	f, err := os.Open(path)
	if err != nil {
		return name + " cannot be opened"
	}
	defer f.Close()
	var length [8]byte
	if _, err := io.ReadFull(f, length[:]); err != nil {
		return name + " is cut short"
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > 100<<20 || int64(n) > size-8 {
		return name + " is cut short in its header"
	}
	header := make([]byte, n)
	if _, err := io.ReadFull(f, header); err != nil {
		return name + " is cut short in its header"
	}
	var tensors map[string]json.RawMessage
	if err := json.Unmarshal(header, &tensors); err != nil {
		return name + " has a broken header"
	}
	var end int64
	for key, raw := range tensors {
		if key == "__metadata__" {
			continue
		}
		var t struct {
			Offsets []int64 `json:"data_offsets"`
		}
		if err := json.Unmarshal(raw, &t); err != nil || len(t.Offsets) != 2 {
			return name + " has a broken header"
		}
		end = max(end, t.Offsets[1])
	}
	if want := 8 + int64(n) + end; size != want {
		return fmt.Sprintf("%s has %d bytes of %d", name, size, want)
	}
	return ""
}

// torchFile checks that a file that starts like a zip archive ends like one:
// torch.save writes the directory of the archive last.
func torchFile(path string, size int64) string {
	f, err := os.Open(path)
	if err != nil {
		return filepath.Base(path) + " cannot be opened"
	}
	defer f.Close()
	var magic [4]byte
	if _, err := io.ReadFull(f, magic[:]); err != nil || string(magic[:]) != "PK\x03\x04" {
		return "" // torch before 1.6, or another format: no end to check
	}
	if _, err := zip.NewReader(f, size); err != nil {
		return filepath.Base(path) + " is cut short"
	}
	return ""
}
