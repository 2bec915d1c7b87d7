package holder

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// The files of an attempt directory that this package owns.
const (
	logName  = "output.log"
	idxName  = "output.idx"
	gapsName = "gaps.jsonl"
	exitName = "exit.json"
)

// Gap names bytes that the command printed and output.log does not have.
type Gap struct {
	// Offset is the logical offset of the first lost byte, Bytes their number.
	Offset int64 `json:"offset"`
	Bytes  int64 `json:"bytes"`
	// T0 is when the first of them was given up, T1 when writing went on:
	// RFC 3339 with milliseconds.
	T0 string `json:"t0"`
	T1 string `json:"t1"`
	// Errno is what the disk said; 0 when it was merely too slow.
	Errno syscall.Errno `json:"errno"`
	// Error is Errno in words, or the sentence that less than --min-free is
	// left, which has the number of a full disk.
	Error string `json:"error"`
}

// ReadGaps returns the gaps of an attempt in the order of their offsets; none
// is no error. A last line torn by a crash is left out.
func ReadGaps(dir string) ([]Gap, error) {
	b, err := os.ReadFile(filepath.Join(dir, gapsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the gaps of the output: %w", err)
	}
	var gaps []Gap
	for line := range bytes.Lines(b) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var g Gap
		// Torn lines are not only last ones: an append that a full disk cut
		// short is followed by the whole record on a line of its own.
		if json.Unmarshal(line, &g) == nil && g.Bytes > 0 {
			gaps = append(gaps, g)
		}
	}
	return gaps, nil
}

// appendGap adds one record and syncs it: bytes that follow the gap in
// output.log would be taken for the lost ones if a power cut took the record.
func appendGap(dir string, g Gap) error {
	path := filepath.Join(dir, gapsName)
	b, err := json.Marshal(g)
	if err != nil {
		return fmt.Errorf("encoding a gap: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	// One write per line. What a refusing disk took of it is cut off again, so
	// that the retry starts a line of its own.
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = unix.Fdatasync(int(f.Fd()))
	}
	if err != nil {
		_ = f.Truncate(st.Size())
	}
	return errors.Join(err, f.Close())
}
