package configs

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// maxFile bounds a file of the user's: the largest built-in table has 60 KiB.
const maxFile = 16 << 20

// ReadFile reads a file of the user's: a table, a profile, settings. What is no
// regular file is refused, since reading a pipe or a terminal may wait for ever.
// The error wraps that of the system where there is one.
func ReadFile(path string) ([]byte, error) {
	// A pipe is not even opened: its writer would be let in, and what it writes is the
	// training's. O_NONBLOCK is for one that is put there meanwhile.
	if info, err := os.Stat(path); err == nil {
		if err := regular(path, info); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := regular(path, info); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// regular says why something is no file of settings.
func regular(path string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return fmt.Errorf("%s is a folder, not a file", path)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is no regular file (a pipe, socket or device); write its text into a file", path)
	case info.Size() > maxFile:
		return fmt.Errorf("%s has %d MiB, which is too much for settings", path, info.Size()>>20)
	}
	return nil
}
