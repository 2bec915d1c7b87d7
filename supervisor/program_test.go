package supervisor

import (
	"testing"

	"sparkrun/internal/newprog"
)

// writeProgram writes a program that is going to be started.
func writeProgram(t *testing.T, path, text string) {
	t.Helper()
	if err := newprog.Write(path, []byte(text)); err != nil {
		t.Fatal(err)
	}
}
