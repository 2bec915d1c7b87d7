package supervisor

import (
	"os"
	"syscall"
	"testing"
)

// writeProgram writes a program that is going to be started. Meanwhile no process is
// forked: a child of a parallel test that has the file open for writing until its own exec
// would make the kernel refuse to start it (ETXTBSY).
func writeProgram(t *testing.T, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte(text), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}
