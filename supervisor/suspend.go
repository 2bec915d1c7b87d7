package supervisor

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
)

// forkLimit is how long a suspension waits for a process that is being started.
const forkLimit = 2 * time.Second

// suspend stops this process, for a Ctrl-Z that went to its whole group; it returns when
// it goes on.
func suspend() {
	if forksDone(forkLimit) {
		defer syscall.ForkLock.Unlock()
	}
	_ = unix.Kill(unix.Getpid(), unix.SIGSTOP)
}

// forksDone takes syscall.ForkLock: no process is being started then. A child that gets
// the group's signal before it has become its program stops there, and the thread that
// waits for it to become one cannot stop, so that the shell never heard that the job has
// stopped. It is woken. What has become its program stays stopped, as it was meant.
func forksDone(limit time.Duration) bool {
	for until := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		if syscall.ForkLock.TryLock() {
			return true
		}
		for _, p := range halfStarted() {
			_ = p.Signal(unix.SIGCONT) // the next look tells
		}
		if time.Now().After(until) {
			return false
		}
	}
}

// halfStarted returns the children that are stopped and still run our own program in our
// own group.
func halfStarted() []proctree.Proc {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return nil
	}
	var out []proctree.Proc
	for _, p := range proctree.Walk(unix.Getpid()) {
		if p.State != 'T' || p.PPID != unix.Getpid() {
			continue
		}
		if group, err := unix.Getpgid(p.PID); err != nil || group != unix.Getpgrp() {
			continue
		}
		if exe, err := os.Stat("/proc/" + strconv.Itoa(p.PID) + "/exe"); err == nil && os.SameFile(exe, own) {
			out = append(out, p)
		}
	}
	return out
}
