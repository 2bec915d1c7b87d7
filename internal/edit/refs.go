package edit

import (
	"os"
	"path/filepath"
	"strings"
)

// RelativeRef returns the path of the first setting that makes the file depend on the
// folder it lies in: an include of another file, or a path relative to that folder. A
// file with one cannot move. The name given to Parse says which folder it is.
func (d *Doc) RelativeRef() string {
	folder := filepath.Dir(d.name)
	found := ""
	d.root.walk("", false, func(e Entry) {
		if found == "" && refers(folder, e) {
			found = e.Path
		}
	})
	return found
}

func refers(folder string, e Entry) bool {
	if e.Kind == Null {
		return false
	}
	switch e.Path {
	case "base", "defaults", "include", "includes", "extends":
		return true
	}
	if key := e.Path[strings.LastIndexByte(e.Path, '.')+1:]; key == "_base_" {
		return true
	}
	if e.Kind != Scalar || e.Value == "" || len(e.Value) > 1024 || filepath.IsAbs(e.Value) || strings.ContainsAny(e.Value, "\n\x00") {
		return false
	}
	if strings.HasPrefix(e.Value, "./") || strings.HasPrefix(e.Value, "../") {
		return true
	}
	_, err := os.Lstat(filepath.Join(folder, e.Value))
	return err == nil
}
