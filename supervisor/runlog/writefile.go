package runlog

import (
	"fmt"
	"os"
	"path/filepath"
)

// ReserveName is the name of the reserve file in a run directory.
const ReserveName = reserveFile

// WriteFile puts a small file of a run in its place in one step and on the disk:
// a reader sees the old one or the new one, whole.
func WriteFile(path string, data []byte) error {
	if err := replaceFile(path, data, 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// WriteFileSoon is WriteFile for what a power cut may take for a moment: the file is there
// whole when it returns, and brought to the disk beside what comes next.
func WriteFileSoon(path string, data []byte) error {
	if err := renameOver(path, data, 0o600, false); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	go func() {
		f, err := os.Open(path)
		if err != nil {
			return // the folder was taken away meanwhile
		}
		defer f.Close()
		if f.Sync() == nil {
			_ = syncDir(filepath.Dir(path)) // as good as the disk is
		}
	}()
	return nil
}
