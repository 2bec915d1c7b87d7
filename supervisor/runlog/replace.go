package runlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// replaceFile puts data at path in one step: a reader, and the machine after a
// power cut, sees the old file or the new one, whole. The folder is synced too,
// since a rename is only on the disk when its folder is.
func replaceFile(path string, data []byte, perm os.FileMode) error {
	if err := renameOver(path, data, perm, true); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// renameOver puts data at path whole or not at all, for whoever reads it on this machine as
// it runs. It outlives a power cut only where it is synced first.
func renameOver(path string, data []byte, perm os.FileMode, synced bool) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	tmp := f.Name()
	err = fill(f, data, perm, synced)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// fillReserve puts data at path in the blocks of a reserve. What does not fit into
// them is refused before anything is touched.
func fillReserve(reserve, path string, data []byte) error {
	f, err := os.OpenFile(reserve, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() < int64(len(data)) {
		_ = f.Close()
		return unix.ENOSPC
	}
	// Cut only when the text is in: until then the blocks must not be free.
	_, err = f.Write(data)
	if err == nil {
		err = f.Truncate(int64(len(data)))
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(reserve, path)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// fill writes, syncs if that is asked for, and closes a new file.
func fill(f *os.File, data []byte, perm os.FileMode, synced bool) error {
	err := f.Chmod(perm)
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil && synced {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		// The last chance of a network file system or quota to refuse.
		err = cerr
	}
	return err
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		return nil // this file system has no sync of folders
	}
	return err
}

// encodeJSON writes v without turning <, > and & into escapes: these files are
// read by people too.
func encodeJSON(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
