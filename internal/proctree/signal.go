package proctree

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// Signal sends sig to exactly this process, known by its number and its start; 0 only
// asks whether that may be done. The error is unix.ESRCH when the process is gone, also
// where its number is another one's by now: a busy machine has used up 32768 numbers in
// minutes.
func (p Proc) Signal(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if NoPidfd(err) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		if now, ok := Read(p.PID); ok && now.Start != p.Start {
			return unix.ESRCH
		}
		return syscall.Kill(p.PID, sig)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// The descriptor holds one process: if the table still shows the same start
	// time now, it is the one that was meant.
	if now, ok := Read(p.PID); !ok || now.Start != p.Start {
		return unix.ESRCH
	}
	err = unix.PidfdSendSignal(fd, sig, nil, 0)
	if NoPidfd(err) {
		return syscall.Kill(p.PID, sig) // which says whether it was a matter of permission
	}
	return err
}

// NoPidfd says whether a call about a pidfd failed since there is no such call here: an old
// kernel has none (ENOSYS), and an old engine's filter of system calls does not know it
// (EPERM). To open one needs no permission; to send a signal does, and the same EPERM then
// comes from kill too.
func NoPidfd(err error) bool { return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) }
