package standalone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const head = "timestamp,temperature.gpu,power.draw\n"

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What was in the log stays as it is; what is no log is refused.
func TestWhatStandsBeforeTheNextRow(t *testing.T) {
	t.Parallel()
	const row = "2026/07/14 10:00:00.123, 68, 97.31 W\n"
	for name, c := range map[string]struct {
		has, lead string
		refused   bool
	}{
		"new":                     {"", head, false},
		"the header alone":        {head, "", false},
		"rows":                    {head + row, "", false},
		"a torn row":              {head + row + "2026/07/14 10:0", "\n", false},
		"a torn header":           {"timestamp,temp", "erature.gpu,power.draw\n", false},
		"a header without end":    {head[:len(head)-1], "\n", false},
		"a word of the header":    {"timestamp", "", true},
		"somebody's text":         {"dear diary\n", "", true},
		"a header with units":     {"timestamp, temperature.gpu, power.draw [W]\n", "", true},
		"a longer header":         {head[:len(head)-1] + ",clocks.sm\n", "", true},
		"the header further down": {"\n" + head, "", true},
		"a byte order mark":       {"\xef\xbb\xbf" + head, "", true},
	} {
		path := filepath.Join(t.TempDir(), "thermal.log")
		write(t, path, c.has)
		l := &logFile{path: path, header: []byte(head)}
		err := l.look()
		if c.refused {
			if !errors.Is(err, errOther) {
				t.Errorf("%s: %v, want a refusal", name, err)
			}
			if err := l.open(); !errors.Is(err, errOther) {
				t.Errorf("%s: opened (%v)", name, err)
			}
		} else {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if err := l.open(); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			got, err := l.lead(l.file)
			if err != nil || string(got) != c.lead {
				t.Errorf("%s: %q before the next row (%v), want %q", name, got, err, c.lead)
			}
			l.close(true)
		}
		if got := read(t, path); got != c.has {
			t.Errorf("%s: the file is %q now, and was %q", name, got, c.has)
		}
	}
}

func TestPIDFileOfOthersIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"words": "not a pid\n", "two": "12 13\n", "negative": "-1\n", "zero": "0\n", "long": strings.Repeat("1", 40), "spaces": strings.Repeat(" ", 40),
	} {
		path := filepath.Join(t.TempDir(), "log.pid")
		write(t, path, text)
		if p, err := openPID(path, true); err == nil {
			p.close()
			t.Errorf("%s: taken for a pid file", name)
		}
		if got := read(t, path); got != text {
			t.Errorf("%s: %q now", name, got)
		}
	}
	dir := t.TempDir()
	target, link, fifo := filepath.Join(dir, "target"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	write(t, target, "")
	if err := errors.Join(os.Symlink(target, link), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, fifo, dir} {
		if p, err := openPID(path, true); err == nil {
			p.close()
			t.Errorf("%s is taken for a pid file", path)
		}
	}
}

func TestPIDFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log.pid")
	write(t, path, "123456789\n")
	p, err := openPID(path, true)
	if err != nil || p.pid != 123456789 || !p.mine || p.made {
		t.Fatalf("%+v %v", p, err)
	}
	// A lock is of the open file, so that a second one stands for another process.
	if q, err := openPID(path, true); err != nil || q.mine {
		t.Fatalf("locked twice: %+v %v", q, err)
	} else {
		q.drop()
	}
	if err := p.write(42); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); got != "42\n" {
		t.Errorf("%q", got)
	}
	if info := fmt.Sprintf("/proc/self/fdinfo/%d", p.file.Fd()); !hasLock(info) || hasLock("/proc/self/fdinfo/0") {
		t.Error("the kernel shows locks otherwise than we read them")
	}
	p.remove()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pid file is still there: %v", err)
	}
	// One that another has put in its place is not removed.
	if p, err = openPID(path, true); err != nil || !p.made {
		t.Fatalf("%+v %v", p, err)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	write(t, path, "7\n")
	p.remove()
	if got := read(t, path); got != "7\n" {
		t.Errorf("%q", got)
	}
}

// A process is a sampler of ours only if it is: neither the name in a command line nor an
// open log is enough.
func TestWhoIsASampler(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "thermal.log")
	write(t, log, head)
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// It has the word in its arguments and the log open, but runs another program.
	cmd := exec.Command("sh", "-c", "while :; do sleep 60; done", Word)
	cmd.Stdin = f
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait()
	}()
	pid := cmd.Process.Pid
	if isSampler(pid, inodes(f), false) {
		t.Error("a shell is taken for a sampler")
	}
	if isSampler(os.Getpid(), inodes(f), false) || isSampler(1, inodes(f), false) || isSampler(0, nil, false) || isSampler(-1, nil, false) {
		t.Error("we, init or nobody is taken for a sampler")
	}
	if !writes(pid, log) {
		t.Error("nobody sees that the shell has the log open")
	}
	if writes(pid, log+".other") || writes(os.Getpid()+1<<22, log) {
		t.Error("it is said to have a log open that it has not")
	}
	if _, ok := find(pid, inodes(f)); ok {
		t.Error("a sampler is found where there is none")
	}
}

// A held process is stopped and waited for; TERM comes first.
func TestStopWaits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", `trap 'sleep 0.3; echo bye >"$0/said"; exit' TERM; echo >"$0/ready"; while :; do sleep 0.05; done`, dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "ready")); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("the shell does not start")
		}
	}
	p, ok := hold(cmd.Process.Pid)
	if !ok {
		t.Fatal("not held")
	}
	defer p.release()
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	// It is a zombie now, since nobody has waited for it; it counts as gone.
	if p.alive() || read(t, filepath.Join(dir, "said")) != "bye\n" {
		t.Error("stop returned before it had ended by itself")
	}
	if _, ok := hold(cmd.Process.Pid); ok {
		t.Error("a zombie is held")
	}
	_ = cmd.Wait()
	if err := p.stop(); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
}

// told collects notes.
type told struct {
	mu   sync.Mutex
	text []string
}

func (n *told) note(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text = append(n.text, text)
}

func (n *told) has(part string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Contains(strings.Join(n.text, "\n"), part)
}

func opened(t *testing.T, path string) *logFile {
	t.Helper()
	l := &logFile{path: path, header: []byte(head)}
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	return l
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func hasText(path, text string) func() bool {
	return func() bool {
		b, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(b), text)
	}
}

// The log is begun anew where it was moved, removed or emptied, and never on top of
// something else.
func TestWriterFollowsTheLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "thermal.log")
	var n told
	w := newWriter(opened(t, path), n.note)
	w.write([]byte("one\n"))
	if err := <-w.first; err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	w.write([]byte("two\n"))
	eventually(t, "a new log", hasText(path, head+"two\n"))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	w.write([]byte("three\n"))
	eventually(t, "a new log", hasText(path, head+"three\n"))
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	w.write([]byte("four\n"))
	eventually(t, "the header again", hasText(path, head+"four\n"))
	if got := read(t, path+".1"); got != head+"one\n" {
		t.Errorf("the log that was moved is %q", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, path, "somebody else's\n")
	w.write([]byte("five\n"))
	if err := <-w.fatal; !errors.Is(err, errOther) {
		t.Errorf("the end is told as: %v", err)
	}
	w.write([]byte("six\n"))
	w.close()
	if got := read(t, path); got != "somebody else's\n" {
		t.Errorf("the other file is %q now", got)
	}
	if !n.has("begun anew") {
		t.Errorf("told: %q", n.text)
	}
}

// A folder that is gone costs no row: they wait, and that is told once.
func TestWriterTriesAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "thermal.log")
	var n told
	w := newWriter(opened(t, path), n.note)
	w.write([]byte("one\n"))
	if err := <-w.first; err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	w.write([]byte("two\n"))
	eventually(t, "that it cannot be written", func() bool { return n.has("cannot be written") })
	w.write([]byte("three\n"))
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rows", hasText(path, head+"one\ntwo\nthree\n"))
	eventually(t, "that it is written again", func() bool { return n.has("rows lost: 0") })
	if !w.close() {
		t.Error("the end is waited for")
	}
	if got := read(t, path); strings.Count(got, "\n") != 4 || len(n.text) != 2 {
		t.Errorf("%q, told %q", got, n.text)
	}
}

// A disk that takes nothing for long costs the oldest rows, and they are counted; the end
// does not wait for it.
func TestWriterForgetsTheOldest(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "thermal.log")
	var n told
	w := newWriter(opened(t, path), n.note)
	w.write([]byte("first\n"))
	if err := <-w.first; err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	const more = 40
	for i := range pendingRows + more {
		w.write([]byte(strconv.Itoa(i) + "\n"))
		// As rows come in practice: one after the other.
		eventually(t, "that the row was taken", func() bool { return len(w.in) == 0 })
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "that it is written again", func() bool { return n.has("rows lost: " + strconv.Itoa(more)) })
	w.close()
	got := read(t, path)
	if !strings.HasPrefix(got, head+"first\n"+strconv.Itoa(more)+"\n") || strings.Count(got, "\n") != pendingRows+2 {
		t.Errorf("%.80q... of %d lines", got, strings.Count(got, "\n"))
	}
}

// A process that is being started holds a copy of the lock for a moment.
func TestALockOfAMomentIsNoOtherSampler(t *testing.T) {
	t.Parallel()
	l := opened(t, filepath.Join(t.TempDir(), "thermal.log"))
	copied, err := unix.FcntlInt(l.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.file.Close()
	held := &logFile{path: l.path, header: []byte(head)}
	if err := held.open(); !errors.Is(err, errLocked) {
		t.Fatalf("locked by another: %v", err)
	}
	time.AfterFunc(lockAgain/4, func() { _ = unix.Close(copied) })
	if err := held.open(); err != nil {
		t.Errorf("locked for a moment: %v", err)
	}
	held.close(false)
}

// What cannot be had leaves nothing behind, and what was there as it was.
func TestOccupyRefuses(t *testing.T) {
	t.Parallel()
	quiet := Options{Say: func(string) {}, Note: func(string) {}}
	dir := t.TempDir()
	path := filepath.Join(dir, "thermal.log")
	write(t, PIDFile(path), "words\n")
	if _, err := occupy(context.Background(), &logFile{path: path, header: []byte(head)}, quiet); err == nil {
		t.Error("a pid file of somebody's is taken")
	}
	// A shell, as in the runbook's script, appends to a log whose pid it has noted.
	other := filepath.Join(dir, "other.log")
	write(t, other, head)
	f, err := os.OpenFile(other, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("sleep", "60")
	cmd.Stdout = f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	pid := strconv.Itoa(cmd.Process.Pid) + "\n"
	write(t, PIDFile(other), pid)
	_, err = occupy(context.Background(), &logFile{path: other, header: []byte(head)}, quiet)
	if err == nil || !strings.Contains(err.Error(), "no sampler of sparkrun") {
		t.Errorf("a log that another program writes: %v", err)
	}
	if err := Stop(other, quiet.Say, quiet.Note); err == nil {
		t.Error("it is stopped")
	}
	if got := read(t, PIDFile(other)); got != pid {
		t.Errorf("its pid file is %q now", got)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a log was made: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := occupy(ctx, &logFile{path: path, header: []byte(head)}, quiet); !errors.Is(err, ErrEnded) {
		t.Errorf("told to end: %v", err)
	}
}
