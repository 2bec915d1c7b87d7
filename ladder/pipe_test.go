package ladder

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sparkrun/ladder/trainer"
)

// A pipe without a writer would be waited for without end.
func TestPipesAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe := filepath.Join(dir, "mine.yaml")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(pipe); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a ladder from a pipe: %v", err)
	}
	if _, err := trainer.Load([]string{dir}); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a profile from a pipe: %v", err)
	}
}
