// Package deadmount makes, for tests, a mount whose server never answers: every look at
// it hangs, as on a network file system whose server has died.
package deadmount

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// New mounts a dead file system on a new folder and returns its path. It skips the test
// where that takes rights or a kernel that are not there. Whoever hangs there is released
// when the test ends.
func New(t testing.TB) string {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("no FUSE here: ", err)
	}
	dir, err := os.MkdirTemp("", "dead-mount-")
	if err != nil {
		t.Fatal(err)
	}
	// Nobody reads from fd, so that the kernel waits for the first answer for ever.
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other", fd, os.Getuid(), os.Getgid())
	if err := unix.Mount("deadmount", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		os.Remove(dir)
		t.Skip("no mount here: ", err)
	}
	t.Cleanup(func() {
		unix.Close(fd) // ends the connection: what hangs gets an error
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmounting %s: %v", dir, err)
			return
		}
		os.Remove(dir)
	})
	return dir
}
