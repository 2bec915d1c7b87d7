package checkpoint

import (
	"path/filepath"
	"slices"

	"sparkrun/internal/lazyre"
)

// maxMetadata bounds the .metadata of a distributed checkpoint: a line for each
// piece of each tensor.
const maxMetadata = 128 << 20

// pieceName matches the files that .metadata names.
var pieceName = lazyre.New(`__\d{1,9}_\d{1,9}\.distcp`)

// distributed returns what is wrong with a folder written by
// torch.distributed.checkpoint, "" if nothing is. Its .metadata is written last,
// by one process, and names every file of the others.
func distributed(dir string, list []entry) string {
	base := filepath.Base(dir)
	files := map[string]entry{}
	for _, e := range list {
		files[e.name] = e
	}
	if _, ok := files[".metadata"]; !ok {
		return base + " has no .metadata, which is written last"
	}
	data, err := readSmall(filepath.Join(dir, ".metadata"), maxMetadata)
	if err != nil {
		return base + "/.metadata cannot be read: " + reason(err)
	}
	// A pickle ends with its stop code.
	if len(data) < 2 || data[0] != 0x80 || data[len(data)-1] != '.' {
		return base + "/.metadata is cut short"
	}
	named := map[string]bool{}
	for _, n := range pieceName.FindAll(data, -1) {
		named[string(n)] = true
	}
	for _, n := range sortedKeys(named) {
		if _, ok := files[n]; !ok {
			return n + " is missing, which " + base + "/.metadata names"
		}
	}
	for _, e := range list {
		if filepath.Ext(e.name) == ".distcp" && !e.dir {
			if why := piece(e.path); why != "" {
				return why
			}
		}
	}
	return ""
}

// piece returns what is wrong with a .distcp file: a row of archives, one for each
// piece of a tensor, so that it ends as an archive does.
func piece(path string) string {
	name := filepath.Base(path)
	f, size, err := openFile(path)
	if err != nil {
		return name + " cannot be read: " + reason(err)
	}
	defer f.Close()
	if size == 0 {
		return name + " is empty"
	}
	var head [4]byte
	var tail [22]byte
	if size < int64(len(tail)) {
		return name + " is cut short"
	}
	if _, err := f.ReadAt(head[:], 0); err == nil && string(head[:]) != "PK\x03\x04" {
		return "" // written through another format: nothing to hold it against
	}
	if _, err := f.ReadAt(tail[:], size-int64(len(tail))); err != nil || string(tail[:4]) != "PK\x05\x06" {
		return name + " is cut short"
	}
	return ""
}

func sortedKeys(m map[string]bool) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
