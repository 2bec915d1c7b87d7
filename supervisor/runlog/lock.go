package runlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked is in the error of Lock when another supervisor has the run.
var ErrLocked = errors.New("the run has a supervisor already")

// Lock takes the run for this supervisor: a flock on <id>.lock in the socket
// folder, never in the run directory, which may be on a network file system. It
// does not wait, but for the blink that a probe by Running may take. The kernel
// drops the lock with the process; release drops it earlier and removes the
// file.
func (d *Dir) Lock() (release func(), err error) {
	dir, err := d.places.SocketDir()
	if err != nil {
		return nil, fmt.Errorf("locking run %s: %w", d.ID, err)
	}
	path := filepath.Join(dir, d.ID+".lock")
	for try := 0; ; {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("locking run %s: %w", d.ID, err)
		}
		if err := flock(f, unix.LOCK_EX); err != nil {
			holder := readPID(f)
			_ = f.Close()
			if try++; try <= probeTries && errors.Is(err, unix.EWOULDBLOCK) {
				time.Sleep(probePause)
				continue
			}
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("locking run %s: %w%s", d.ID, ErrLocked, holder)
			}
			return nil, fmt.Errorf("locking run %s: %w", d.ID, err)
		}
		// The one before may have removed the name between our open and our
		// lock: then this lock is on a file that nobody else will ever see.
		if !stillNamed(f, path) {
			_ = f.Close()
			continue
		}
		_ = f.Truncate(0)
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		return func() {
			_ = os.Remove(path)
			_ = f.Close()
		}, nil
	}
}

// A probe holds the lock for some microseconds; one that was descheduled in
// between is waited for this often and this long before Lock gives up.
const (
	probeTries = 50
	probePause = 2 * time.Millisecond
)

// Running says whether some supervisor has the run of that ID: whether the lock
// that Lock takes is held. It makes no file and no folder, and where the socket
// folder is not there or not this user's alone, nobody has the run.
func Running(p Places, id string) bool {
	dir := p.socketDirPath()
	if id == "" || id != filepath.Base(id) || checkPrivate(dir, os.Getuid()) != nil {
		return false
	}
	// O_NONBLOCK: a FIFO of that name must not hold the question up.
	f, err := os.OpenFile(filepath.Join(dir, id+".lock"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close() // drops the lock where the probe got it
	// Shared, so that two who ask at once do not take each other for a supervisor.
	return errors.Is(flock(f, unix.LOCK_SH), unix.EWOULDBLOCK)
}

// flock takes a lock of that kind without waiting.
func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func readPID(f *os.File) string {
	var b [16]byte
	n, _ := f.ReadAt(b[:], 0)
	if pid := strings.TrimSpace(string(b[:n])); pid != "" {
		return " (process " + pid + ")"
	}
	return ""
}

func stillNamed(f *os.File, path string) bool {
	opened, errA := f.Stat()
	named, errB := os.Lstat(path)
	return errA == nil && errB == nil && os.SameFile(opened, named)
}
