package postmortem

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"sparkrun/ladder/oom"
)

const (
	// systemLines and systemBytes are how many lines of a system log are kept as
	// they are; of a longer one only those that can be about memory or kills.
	systemLines = 20000
	systemBytes = 8 << 20
	// systemLineMax is how much of one of its lines is looked at.
	systemLineMax = 4 << 10
)

// systemWords, of which one is in every record that can count, in small letters.
var systemWords = []string{"oom", "memory", "kill", "nvrm", "xid", "/dev/shm", "cancelled", "slurm", "evict", "resource"}

// canCount says whether a line may be such a record.
func canCount(line []byte) bool {
	lower := bytes.ToLower(line)
	for _, w := range systemWords {
		if bytes.Contains(lower, []byte(w)) {
			return true
		}
	}
	return false
}

// readSystem adds the lines of a file from outside the process.
func readSystem(ev *oom.Evidence, path string) (notes []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, readError(path, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, fmt.Errorf("--system %s is a folder; name a file with lines of the kernel or of daemons", path)
	}
	var lines []string
	size, left := 0, 0
	err = eachLine(f, systemLineMax, func(line []byte, _ bool) {
		line = bytes.Trim(line, "\x00\r ")
		if len(line) == 0 {
			return
		}
		if (len(lines) >= systemLines || size >= systemBytes) && !canCount(line) {
			return
		}
		if len(lines) >= 2*systemLines || size >= 2*systemBytes {
			// The last ones are nearest to the death.
			for _, l := range lines[:len(lines)/2] {
				size -= len(l)
			}
			left += len(lines) / 2
			lines = append(lines[:0], lines[len(lines)/2:]...)
		}
		lines = append(lines, string(line))
		size += len(line)
	})
	if err != nil {
		return nil, readError(path, err)
	}
	if left > 0 {
		notes = append(notes, fmt.Sprintf("%s is long: the last %d lines that can matter were used", path, len(lines)))
	}
	oom.SystemLines(ev, lines)
	return notes, nil
}

// eachLine reads lines in bounded memory; what is longer than most is cut off.
// whole is false for a last line without its end.
func eachLine(r io.Reader, most int, f func(line []byte, whole bool)) error {
	br := bufio.NewReaderSize(r, max(most, 64<<10))
	for {
		line, err := br.ReadSlice('\n')
		whole := err == nil
		if len(line) > most {
			line = line[:most]
		}
		if len(line) > 0 && (whole || !errors.Is(err, bufio.ErrBufferFull)) {
			f(bytes.TrimSuffix(line, []byte("\n")), whole)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			keep := bytes.Clone(line)
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = br.ReadSlice('\n')
			}
			f(keep, err == nil)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
