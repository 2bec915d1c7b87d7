package runlog

import "fmt"

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
