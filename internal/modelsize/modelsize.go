// Package modelsize tells how many parameters a model has and how many bytes its
// weights take on disk, from the headers of its files: no tensor is read, and the
// network is never asked.
package modelsize

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sparkrun/internal/treefs"
)

// Size is what is known of a model's weights.
type Size struct {
	// Params counts the parameters, of pre-quantised weights those that the packed
	// tensors stand for; 0 is not known.
	Params int64 `json:"params"`
	// Bytes is the size of the weights on disk; 0 is not known.
	Bytes int64 `json:"bytes"`
	// Exact says that Params was counted tensor by tensor; otherwise it is an estimate
	// from a configuration, from file sizes or from a name.
	Exact bool `json:"exact"`
	// DType is the type of most parameters in the words of safetensors: BF16, F16,
	// F32, U8...; "" is not known.
	DType string `json:"dtype,omitempty"`
	// Quantised names the format of pre-quantised weights (bnb-4bit, bnb-8bit, gptq,
	// awq, mxfp4, nvfp4, fp8...); "" where they are not.
	Quantised string `json:"quantised,omitempty"`
	// Experts is how many experts a layer of a mixture has, ActiveExperts how many a
	// token passes; 0 for dense models and where it is not known.
	Experts       int64 `json:"experts,omitempty"`
	ActiveExperts int64 `json:"active_experts,omitempty"`
	// ActiveParams is how many parameters a token passes, where the name says it
	// (30B-A3B); 0 is not known.
	ActiveParams int64 `json:"active_params,omitempty"`
	// From says in a few words where Params comes from, as in "counted in the headers
	// of its weights".
	From string `json:"from"`
	// Path is the folder or file that was read; "" where only the name was.
	Path string `json:"path,omitempty"`
	// Arch is the shape of the model and Parts what its parameters are, where its files
	// say so.
	Arch  Arch  `json:"arch,omitzero"`
	Parts Parts `json:"parts,omitzero"`
	// TensorBytes is what the tensors take, headers left out: what a copy of them in
	// memory takes; 0 is not known. It does not count a stored output layer that the
	// config ties to the embedding.
	TensorBytes int64 `json:"tensor_bytes,omitempty"`
	// Notes are sentences about what could not be read, each naming its file.
	Notes []string `json:"notes,omitempty"`
	// Missing says which files of the weights are not there; Fault what is wrong with
	// config.json, so that a training cannot load it. Both are among Notes too, and ""
	// where there is nothing to say.
	Missing string `json:"missing,omitempty"`
	Fault   string `json:"fault,omitempty"`
}

// FromName is Size.From of a size that nothing but the model's name tells.
const FromName = "guessed from its name"

// ErrUnknown is wrapped by the errors of models of which nothing is on disk and whose
// name says no size.
var ErrUnknown = errors.New("the size of the model is not known")

// errNoWeights says that a folder has no weights, so that the name may speak.
var errNoWeights = errors.New("no weights in the folder")

// Place is where the training looks for models.
type Place struct {
	// Root is the machine that it runs on, or a recorded tree of one: every path is one
	// of its own, and no link or .. leads out of it. The zero value is this machine.
	Root treefs.Root
	// NoFolders says that the training does not see the folders of Root, as inside a
	// container: then the caches and the name tell.
	NoFolders bool
	// Dir is the folder that relative paths start from; "" is the working folder.
	Dir string
	// Getenv reads the training's environment; nil is our own.
	Getenv func(name string) string
}

// Read returns the size of the model in a folder or file of the place, or of the one of that
// name in the Hugging Face cache (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface). A size
// in the name counts only where nothing is on disk. Weights that are torn or not what
// they say are an error, and so is a model of which nothing is known (ErrUnknown; then
// Notes, Missing and Fault still say what is wrong with the files that there are).
func (p Place) Read(name string) (Size, error) {
	name = strings.TrimSpace(name)
	if name == "" || strings.ContainsRune(name, 0) {
		return Size{}, fmt.Errorf("%w: no model is named", ErrUnknown)
	}
	return p.read(name, maxBases)
}

// maxBases is how many adapters may stand on another.
const maxBases = 3

func (p Place) read(name string, bases int) (Size, error) {
	local := name
	if !filepath.IsAbs(local) {
		local = filepath.Join(p.Dir, local)
	}
	var info os.FileInfo
	err := fs.ErrNotExist
	if !p.NoFolders {
		info, err = p.Root.Stat(local)
	}
	folder := local
	switch {
	case p.NoFolders:
		folder = p.cached(name)
	case err == nil && !info.IsDir():
		return p.readFile(local, info)
	case err != nil:
		folder = p.cached(name)
	}
	var there Size // what is to be said of a folder that tells no size
	if folder != "" {
		s, base, err := p.readFolder(folder)
		there = Size{Notes: s.Notes, Missing: s.Missing, Fault: s.Fault}
		switch {
		case err == nil && base != "" && bases > 0 && base != name:
			s, err = p.read(base, bases-1)
			if err != nil {
				return Size{}, fmt.Errorf("base model %s of the adapter in %s: %w", base, folder, err)
			}
			return s, nil
		case err == nil && base == "":
			_, s.ActiveParams = sizeInName(name)
			return s, nil
		case err != nil && !errors.Is(err, errNoWeights):
			return Size{}, fmt.Errorf("model %s: %w", name, err)
		}
	}
	if s, ok := p.sibling(name); ok {
		return there.under(s), nil
	}
	params, active := sizeInName(name)
	switch {
	case params > 0:
		return there.under(Size{Params: params, ActiveParams: active, Quantised: quantisedInName(name), From: FromName}), nil
	case len(there.Notes) > 0:
		return there, fmt.Errorf("%w: %s", ErrUnknown, strings.Join(there.Notes, "; "))
	case folder != "":
		return there, fmt.Errorf("%w: the folder %s holds neither weights nor a config.json that tells a size", ErrUnknown, folder)
	}
	return Size{}, fmt.Errorf("%w: %s is not on this machine, and its name says no size", ErrUnknown, name)
}

// under puts what is to be said of a folder to a size that something else tells.
func (s Size) under(other Size) Size {
	other.Notes = append(s.Notes, other.Notes...)
	other.Missing, other.Fault = s.Missing, s.Fault
	return other
}

// readFile reads one file of weights.
func (p Place) readFile(path string, info os.FileInfo) (Size, error) {
	if !info.Mode().IsRegular() {
		return Size{}, fmt.Errorf("%s is no regular file", path)
	}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".safetensors":
		var c count
		if err := c.file(p, path); err != nil {
			return Size{}, err
		}
		return c.size(config{}, filepath.Dir(path)), nil
	case ".gguf":
		return Size{}, fmt.Errorf("%w: %s is in GGUF format, which is for inference", ErrUnknown, path)
	}
	return Size{}, fmt.Errorf("%w: %s is neither a folder of a model nor a .safetensors file", ErrUnknown, path)
}
