package newprog

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// TestStartedWhileOthersStart: of many that write a program and start it at once, beside
// others that start some, none finds it busy.
func TestStartedWhileOthersStart(t *testing.T) {
	t.Parallel()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	// A large one is open for longer.
	var wg sync.WaitGroup
	for i := range 4 {
		path := filepath.Join(t.TempDir(), "program")
		wg.Go(func() {
			for range 8 {
				if err := Write(path, self); err != nil {
					t.Error(err)
				}
				if out, err := exec.Command(path, "-test.run=^$").CombinedOutput(); err != nil {
					t.Errorf("program %d: %v %s", i, err, out)
					return
				}
			}
		})
	}
	wg.Wait()
}
