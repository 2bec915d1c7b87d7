// Package newprog writes, for tests, programs that are started right after.
package newprog

import (
	"os"
	"syscall"
)

// Write writes a program, over what was there. Meanwhile this process forks no other: a
// child of a parallel test would have the file open for writing until its own exec, and
// the kernel refuses to start a program that anybody may write to (ETXTBSY).
func Write(path string, data []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, data, 0o755) //nolint:gosec // a program has to be one that may be started
}
