package holder

import (
	"encoding/binary"
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
)

// reaped is one process that was waited for.
type reaped struct {
	pid    int
	comm   string
	status syscall.WaitStatus
	usage  syscall.Rusage
	// address is its RLIMIT_AS in bytes, 0 for none or unknown.
	address uint64
}

// reapNext waits for one ended child without blocking. ok is false when none
// has ended; childless is whether there is no child at all, which for a
// subreaper means that it has no descendant either.
//
// It looks first and waits second: between the two the zombie still has its
// name. All waiting of a holder goes through here, so nothing can take the
// command's status away, and os.Process, which keeps books of its own, is not
// used for any child.
func reapNext() (r reaped, ok, childless bool) {
	pid, err := peekEnded()
	if err != nil {
		return reaped{}, false, errors.Is(err, unix.ECHILD)
	}
	if pid == 0 {
		return reaped{}, false, false
	}
	if p, ok := proctree.Read(pid); ok {
		r.comm = p.Comm
	}
	// A zombie still has its limits, those that it set itself included.
	var limit unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_AS, nil, &limit) == nil && limit.Cur != unix.RLIM_INFINITY {
		r.address = limit.Cur
	}
	for {
		r.pid, err = syscall.Wait4(pid, &r.status, syscall.WNOHANG, &r.usage)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	return r, err == nil && r.pid == pid, false
}

// peekEnded returns the pid of a child that can be waited for, 0 for none.
func peekEnded() (int, error) {
	// siginfo_t is 128 bytes on every Linux; for SIGCHLD si_pid follows the
	// three ints of the header and the padding of the union.
	const pidAt = 12 + (unsafe.Sizeof(uintptr(0)) - 4)
	var info [128]byte
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
		switch errno {
		case 0:
			return int(int32(binary.NativeEndian.Uint32(info[pidAt:]))), nil
		case unix.EINTR:
			continue
		default:
			return 0, errno
		}
	}
}
