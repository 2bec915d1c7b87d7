package preflight

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"sparkrun/internal/lazyre"
	"sparkrun/internal/regular"
)

// This file finds out whether a command asks for NVFP4, and for which GPUs the kernels
// that it would use were built.

// nvfp4Call is Transformer Engine's recipe in a script, not behind a comment's #.
var nvfp4Call = lazyre.New(`(?m)^[^#\n]*\bNVFP4BlockScaling\b`)

// nvfp4Asked tells where the command asks for NVFP4: a setting, the model's name or its
// files, the script. It is "" where nothing does. unread names what could not be read.
func nvfp4Asked(v view) (where string, unread []string) {
	if v.job == nil {
		return "", nil
	}
	r := readAsked(v)
	for _, list := range [][]setting{r.named("quantization"), r.named("model")} {
		for _, s := range list {
			if isNVFP4(s.value) || isNVFP4(s.name) && !s.off() {
				return s.said(), nil
			}
		}
	}
	// Under another name the word alone counts: a folder may be called anything.
	for _, s := range r.settings {
		if strings.EqualFold(s.value, "nvfp4") {
			return s.said(), nil
		}
	}
	model := modelName(v)
	if isNVFP4(model) {
		return "the model " + model, nil
	}
	folder, seen := v.modelPath(), true
	if folder == "" {
		folder, seen = v.onHost(model)
	}
	if seen {
		for _, name := range []string{"hf_quant_config.json", "config.json"} {
			file := filepath.Join(folder, name)
			if b, err := v.root.read(file); err == nil && isNVFP4(string(b)) {
				return file, nil
			}
		}
	}
	if v.job.Script != "" && !v.job.Module {
		file, seen := v.onHost(v.job.Script)
		if b, err := v.own(file); seen && err == nil {
			if at := nvfp4Call.FindIndex(b); at != nil {
				return fmt.Sprintf("%s:%d: NVFP4BlockScaling", v.job.Script, 1+bytes.Count(b[:at[1]], []byte("\n"))), nil
			}
		}
	}
	return "", r.unread
}

func isNVFP4(text string) bool { return strings.Contains(strings.ToLower(text), "nvfp4") }

// builtFor looks for the name of a target in extensions below folders of packages, and
// returns the first file that has it. Of each file only a part is read; a name that is
// not found proves nothing, since code for a GPU may lie there compressed.
func builtFor(ctx context.Context, r root, sites []string, n nvfp4Facts) (file string, looked int) {
	left := n.ReadAllMiB << 20
	for _, pattern := range n.Extensions {
		dir, name := path.Split(pattern)
		for _, site := range sites {
			for _, have := range r.names(filepath.Join(site, dir)) {
				if ok, _ := path.Match(name, have); !ok {
					continue
				}
				if left <= 0 || ctx.Err() != nil {
					return "", looked
				}
				file := filepath.Join(site, dir, have)
				found, read := r.scan(ctx, file, n.Target, min(left, n.ReadOneMiB<<20))
				left -= read
				if read > 0 {
					looked++
				}
				if found {
					return file, looked
				}
			}
		}
	}
	return "", looked
}

// scan tells whether the first limit bytes of a regular file have a word in them, and how
// many were read. What cannot be read has none.
func (r root) scan(ctx context.Context, file, word string, limit int64) (found bool, read int64) {
	real, err := r.resolve(file)
	if err != nil {
		return false, 0
	}
	f, _, err := regular.OpenHere(r.host(real))
	if err != nil {
		return false, 0
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	kept := 0
	for read < limit && ctx.Err() == nil {
		n, err := f.Read(buf[kept:])
		read += int64(n)
		if bytes.Contains(buf[:kept+n], []byte(word)) {
			return true, read
		}
		if err != nil { // io.EOF, or a file that cannot be read any further
			return false, read
		}
		// The word may begin at the end of this part.
		end := kept + n
		kept = min(len(word)-1, end)
		copy(buf, buf[end-kept:end])
	}
	return false, read
}
