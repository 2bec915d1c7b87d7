package kmsg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxLine bounds a line of journalctl; longer ones are passed over. The journal
// itself shortens fields to a few KiB.
const maxLine = 64 << 10

// child is a journalctl that lives no longer than this process, however it ends.
type child struct {
	cmd    *exec.Cmd
	stdout io.ReadCloser
	stderr said
	reap   chan struct{} // closed when everything was read
	ended  chan error
	once   sync.Once
	why    error
}

// startChild starts journalctl. The kernel ends it together with the thread that
// started it (PDEATHSIG is about threads, not processes), so that thread is kept for
// as long.
func startChild(path string, env []string, args ...string) (*child, error) {
	c := &child{cmd: exec.Command(path, args...), reap: make(chan struct{}), ended: make(chan error, 1)}
	c.cmd.Env = append(env[:len(env):len(env)], "LC_ALL=C")
	c.cmd.Stderr = &c.stderr
	// In a group of its own, or Ctrl-C at the terminal would end it.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.cmd.WaitDelay = time.Second
	var err error
	if c.stdout, err = c.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		<-c.reap
		c.ended <- c.cmd.Wait()
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// kill ends the process; what it has written can still be read.
func (c *child) kill() { _ = c.cmd.Process.Kill() }

// endWith ends the process together with ctx. One that hangs in the kernel, on a disk
// that does not answer, does not even die; it is not read from any longer then.
func (c *child) endWith(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		c.kill()
		time.AfterFunc(time.Second, func() { c.stdout.Close() })
	})
}

// wait returns why the process ended, in its own words too. Call it when nothing more
// is to be read.
func (c *child) wait() error {
	c.once.Do(func() {
		close(c.reap)
		c.why = <-c.ended
		if c.why == nil {
			c.why = errors.New("it ended by itself")
		}
		if s := c.stderr.String(); s != "" {
			c.why = fmt.Errorf("%w: %s", c.why, s)
		}
	})
	return c.why
}

// lines gives every line to each, without its end, until there are no more. Lines
// longer than maxLine are left out.
func (c *child) lines(each func(line []byte)) {
	r := bufio.NewReaderSize(c.stdout, maxLine)
	skip := false
	for {
		line, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			skip = true
			continue
		case err != nil:
			return // the last line without an end is torn
		}
		if !skip {
			each(line[:len(line)-1])
		}
		skip = false
	}
}

// said keeps the beginning of what a process says on stderr.
type said struct {
	mu sync.Mutex
	b  []byte
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if room := 1024 - len(s.b); room > 0 {
		s.b = append(s.b, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

// String returns it as one line.
func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(s.b), "?")), " ")
}

// journalDirs are where journald keeps its files, on disk and until the next boot.
var journalDirs = []string{"/var/log/journal", "/run/log/journal"}

// readableJournal says why the journal of the system cannot be read; nil if it can.
// journalctl itself would wait in silence for what it may never see.
func readableJournal(dirs []string) error {
	found := false
	for _, dir := range dirs {
		// A pattern made of a constant cannot be a bad one.
		files, _ := filepath.Glob(filepath.Join(dir, "*", "system*.journal"))
		for _, f := range files {
			found = true
			if unix.Access(f, unix.R_OK) == nil {
				return nil
			}
		}
		// Where the folder itself may not be read, nobody can tell.
		if d, err := os.Open(dir); err == nil {
			d.Close()
		} else if errors.Is(err, os.ErrPermission) {
			found = true
		}
	}
	if found {
		return errors.New("the journal of the system may not be read by this user (the groups adm and systemd-journal may)")
	}
	return errors.New("no journal on this machine")
}

// lookPath finds a program on the PATH of env.
func lookPath(env []string, name string) (string, error) {
	if strings.Contains(name, "/") {
		return exec.LookPath(name)
	}
	path := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v // of two, the last one counts
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue // the working folder is the training's, not ours
		}
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("no %s on this machine", name)
}
