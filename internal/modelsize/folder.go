package modelsize

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/lazyre"
)

// maxIndex bounds an index of weights; those of mixtures with ten thousands of tensors
// have some 10 MB. maxShards bounds the files that it names.
const (
	maxIndex  = 64 << 20
	maxShards = 4096
)

// readFolder reads the model in a folder. Where it holds only an adapter, base names
// the model that stands under it. The error is errNoWeights where there is nothing to
// count; then the size has what is to be said of the files that there are.
func (p Place) readFolder(dir string) (s Size, base string, err error) {
	entries, err := p.Root.ReadDir(dir)
	if err != nil {
		return Size{}, "", fmt.Errorf("reading the folder of the model: %w", err)
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	if names["model_index.json"] {
		s, err = p.readPipeline(dir, entries)
		return s, "", err
	}
	cfg := p.readConfig(dir)
	s, err = p.readWeights(dir, names, cfg)
	switch {
	case err == nil:
		return cfg.describe(s), "", nil
	case !errors.Is(err, errNoWeights):
		return Size{}, "", err
	}
	there := Size{Notes: append(s.Notes, cfg.notes...), Missing: s.Missing, Fault: cfg.fault}
	if a := p.object(dir, "adapter_config.json"); a != nil {
		if base, ok := a["base_model_name_or_path"].(string); ok && base != "" {
			return Size{}, base, nil
		}
	}
	if n := cfg.estimate(); n > 0 {
		return cfg.describe(Size{
			Params: n, DType: cfg.dtype, Quantised: cfg.quantised, Experts: cfg.experts, ActiveExperts: cfg.active,
			Path: dir, From: "reckoned from its config.json", Notes: s.Notes, Missing: s.Missing,
		}), "", nil
	}
	return there, "", errNoWeights
}

// readWeights counts the weights of one folder: those that an index names, else the one
// file of the usual name, else all of a kind.
func (p Place) readWeights(dir string, names map[string]bool, cfg config) (Size, error) {
	for _, stem := range []string{"model", "diffusion_pytorch_model"} {
		if index := stem + ".safetensors.index.json"; names[index] {
			return p.readIndexed(dir, index, ".safetensors", names, cfg)
		}
		if file := stem + ".safetensors"; names[file] {
			return p.countFiles(dir, []string{file}, cfg)
		}
	}
	var files, whole, bins []string
	for _, n := range slices.Sorted(maps.Keys(names)) {
		switch ext := filepath.Ext(n); {
		case ext == ".safetensors" && strings.HasPrefix(n, "consolidated"):
			whole = append(whole, n) // the same weights once more, in another layout
		case ext == ".safetensors" && !strings.HasPrefix(n, "adapter") && !strings.HasPrefix(n, "optimizer"):
			files = append(files, n)
		case ext == ".bin" && (strings.HasPrefix(n, "pytorch_model") || strings.HasPrefix(n, "diffusion_pytorch_model")):
			bins = append(bins, n)
		}
	}
	if len(files) == 0 {
		files = whole
	}
	switch {
	case len(files) > maxShards || len(bins) > maxShards:
		return Size{}, fmt.Errorf("%s has more than %d files of weights", dir, maxShards)
	case len(files) > 0:
		return wholeOf(dir, files, cfg, p.countFiles)
	case names[binIndex]:
		return p.readIndexed(dir, binIndex, ".bin", names, cfg)
	case len(bins) > 0:
		return wholeOf(dir, bins, cfg, p.sizeOfBins)
	}
	return Size{}, errNoWeights
}

// binIndex is the index of weights in torch's own format.
const binIndex = "pytorch_model.bin.index.json"

var shardName = lazyre.New(`^(.*)-(\d{5})-of-(\d{5})(\.[a-z]+)$`)

// wholeOf sizes files that no index names. Their own names say how many there should be:
// where some are not there, nothing is counted.
func wholeOf(dir string, files []string, cfg config, read func(string, []string, config) (Size, error)) (Size, error) {
	s, err := read(dir, files, cfg)
	if err != nil {
		return s, err
	}
	for _, f := range files {
		m := shardName.FindStringSubmatch(f)
		if m == nil {
			continue
		}
		total, _ := strconv.Atoi(m[3])
		missing, first := 0, ""
		for n := 1; n <= total && total <= maxShards; n++ {
			name := fmt.Sprintf("%s-%05d-of-%s%s", m[1], n, m[3], m[4])
			if slices.Contains(files, name) {
				continue
			}
			if missing++; missing == 1 {
				first = name
			}
		}
		if missing == 0 || missing >= total {
			continue
		}
		s.lacks(fmt.Sprintf("%s is not there, as the names of the others have it", filepath.Join(dir, first)), missing, total)
		share := float64(total) / float64(total-missing)
		s.Bytes, s.TensorBytes = int64(float64(s.Bytes)*share), int64(float64(s.TensorBytes)*share)
		s.Params, s.Exact, s.Parts = int64(float64(s.Params)*share), false, Parts{}
		if n := cfg.estimate(); n > 0 {
			s.Params = n
		}
		s.From = fmt.Sprintf("reckoned from the files that there are (%d of %d are not there)", missing, total)
		break
	}
	return s, nil
}

// lacks notes that so many of the files of the weights are not there.
func (s *Size) lacks(what string, missing, total int) {
	s.Missing = fmt.Sprintf("%s (%d of %d files are missing): the download is not complete", what, missing, total)
	s.Notes = append(s.Notes, s.Missing)
}

func (p Place) countFiles(dir string, files []string, cfg config) (Size, error) {
	var c count
	for _, f := range files {
		if err := c.file(p, filepath.Join(dir, f)); err != nil {
			return Size{}, err
		}
	}
	return c.size(cfg, dir), nil
}

// readIndexed counts the files that an index names. Where some are not there (not
// downloaded yet), the index itself says how large they are together.
func (p Place) readIndexed(dir, index, ext string, names map[string]bool, cfg config) (Size, error) {
	data, err := p.readSmall(filepath.Join(dir, index), maxIndex)
	if err != nil {
		return Size{}, fmt.Errorf("reading the index of the weights: %w", err)
	}
	var doc struct {
		Metadata struct {
			TotalSize       float64 `json:"total_size"`
			TotalParameters float64 `json:"total_parameters"`
		} `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return Size{}, fmt.Errorf("%s in %s: %w", index, dir, err)
	}
	shards := map[string]bool{}
	for _, f := range doc.WeightMap {
		if filepath.Base(f) != f || f == "." || f == ".." || !strings.HasSuffix(f, ext) {
			return Size{}, fmt.Errorf("%s in %s names the file %.80q, which cannot be one of its weights", index, dir, f)
		}
		shards[f] = true
	}
	if len(shards) == 0 || len(shards) > maxShards {
		return Size{}, fmt.Errorf("%s in %s names %d files", index, dir, len(shards))
	}
	missing, first := 0, ""
	for _, f := range sortedKeys(shards) {
		// A link into the cache whose file has not come yet is as good as none.
		if _, err := p.Root.Stat(filepath.Join(dir, f)); !names[f] || errors.Is(err, fs.ErrNotExist) {
			if missing++; missing == 1 {
				first = f
			}
		}
	}
	switch {
	case missing == 0 && ext == ".bin":
		return p.sizeOfBins(dir, sortedKeys(shards), cfg)
	case missing == 0:
		return p.countFiles(dir, sortedKeys(shards), cfg)
	}
	s := Size{DType: cfg.dtype, Quantised: cfg.quantised, Experts: cfg.experts, ActiveExperts: cfg.active, Path: dir}
	s.From = fmt.Sprintf("reckoned from the index of its weights (%d of %d files are not there)", missing, len(shards))
	s.lacks(fmt.Sprintf("%s in %s names %s, which is not there", index, dir, first), missing, len(shards))
	if t := doc.Metadata.TotalSize; t >= 1 && t < 1e18 {
		s.Bytes, s.TensorBytes = int64(t), int64(t)
	}
	switch p := doc.Metadata.TotalParameters; {
	case p >= 1 && p < 1e15 && cfg.quantised == "":
		s.Params = int64(p)
	case s.Bytes > 0:
		s.Params = fromBytes(s.Bytes, cfg)
	default:
		s.Params = cfg.estimate()
	}
	if s.Params == 0 {
		return s, errNoWeights
	}
	return s, nil
}

// fromBytes reckons parameters from the size of the weights; 0 where their type is not
// known.
func fromBytes(bytes int64, cfg config) int64 {
	if cfg.quantised != "" {
		// Embeddings and norms keep 16 bit, scales are added: the config knows better.
		if n := cfg.estimate(); n > 0 {
			return n
		}
		if cfg.bits > 0 {
			return int64(float64(bytes) * 8 / float64(cfg.bits))
		}
		return 0
	}
	if bits := bitsOf[cfg.dtype]; bits > 0 {
		return int64(float64(bytes) * 8 / float64(bits))
	}
	return cfg.estimate()
}

// sizeOfBins takes the file sizes of weights in torch's own format, which is not read:
// it is a pickle.
func (p Place) sizeOfBins(dir string, bins []string, cfg config) (Size, error) {
	s := Size{DType: cfg.dtype, Quantised: cfg.quantised, Experts: cfg.experts, ActiveExperts: cfg.active, Path: dir, From: "reckoned from the size of its files"}
	for _, b := range bins {
		info, err := p.Root.Stat(filepath.Join(dir, b))
		if err != nil || !info.Mode().IsRegular() {
			return Size{}, fmt.Errorf("%s in %s cannot be read: its weights are not complete", b, dir)
		}
		s.Bytes += info.Size()
	}
	s.TensorBytes = s.Bytes
	s.Params = fromBytes(s.Bytes, cfg)
	if s.Params == 0 {
		// Older files without a word about their type are 32 bit more often than not,
		// but half of that is as likely: nothing is claimed.
		return Size{}, errNoWeights
	}
	return s, nil
}

// readPipeline adds up the parts of a diffusers pipeline, each in a folder of its own.
func (p Place) readPipeline(dir string, entries []fs.DirEntry) (Size, error) {
	total := Size{Exact: true, Path: dir, From: "counted in the headers of its weights"}
	parts := 0
	for _, e := range entries {
		sub := filepath.Join(dir, e.Name())
		if info, err := p.Root.Stat(sub); err != nil || !info.IsDir() {
			continue
		}
		files, err := p.Root.ReadDir(sub)
		if err != nil {
			return Size{}, fmt.Errorf("reading the folder of the model: %w", err)
		}
		names := map[string]bool{}
		for _, f := range files {
			names[f.Name()] = true
		}
		s, err := p.readWeights(sub, names, p.readConfig(sub))
		if errors.Is(err, errNoWeights) {
			continue
		}
		if err != nil {
			return Size{}, err
		}
		parts++
		total.Params += s.Params
		total.Bytes += s.Bytes
		total.Exact = total.Exact && s.Exact
		if !s.Exact {
			total.From = s.From
		}
		if total.DType == "" || e.Name() == "transformer" || e.Name() == "unet" {
			total.DType = s.DType
		}
		if total.Quantised == "" {
			total.Quantised = s.Quantised
		}
	}
	if parts == 0 {
		return Size{}, errNoWeights
	}
	return total, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
