package configs

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// maxFile bounds a file of the user's: the largest built-in table has 60 KiB.
const maxFile = 16 << 20

// ReadFile reads a file of the user's: a table, a profile, settings. What is no
// regular file is refused, since reading a pipe or a terminal may wait for ever.
// The error wraps that of the system where there is one.
func ReadFile(path string) ([]byte, error) {
	// Opening a pipe without a writer must not wait either.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch {
	case info.IsDir():
		return nil, fmt.Errorf("%s is a folder, not a file", path)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file (a pipe, socket or device); write its text into a file", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s has %d MiB, which is too much for settings", path, info.Size()>>20)
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}
