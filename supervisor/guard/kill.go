package guard

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// killer ends the tree by what was opened beforehand: it allocates nothing and
// waits for nothing. What it does not know of, the holder's scan finds a moment
// later.
type killer struct {
	// cgroup is cgroup.kill of a group that is the job's own, -1 for none.
	cgroup int
	one    [1]byte
	set    *atomic.Pointer[killSet]
	// container wakes the goroutine that talks to the container engine.
	container chan struct{}
}

func newKiller(cgroupKill string, set *atomic.Pointer[killSet], container chan struct{}) *killer {
	k := &killer{cgroup: -1, one: [1]byte{'1'}, set: set, container: container}
	if cgroupKill != "" {
		if fd, err := unix.Open(cgroupKill, unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
			k.cgroup = fd
		}
	}
	return k
}

// kill sends SIGKILL to everything that is known of the tree.
func (k *killer) kill() {
	if k.cgroup >= 0 {
		// The kernel walks the group itself: nothing in it escapes by forking.
		_, _, _ = unix.Syscall(unix.SYS_WRITE, uintptr(k.cgroup), uintptr(unsafe.Pointer(&k.one[0])), 1)
	}
	k.signal(unix.SIGKILL)
	select {
	case k.container <- struct{}{}:
	default:
	}
}

// signal sends sig to every known process; 0 only asks whether it is there.
func (k *killer) signal(sig unix.Signal) {
	set := k.set.Load()
	if set == nil {
		return
	}
	for i := range set.n {
		_, _, _ = unix.RawSyscall6(unix.SYS_PIDFD_SEND_SIGNAL, uintptr(set.fds[i]), uintptr(sig), 0, 0, 0, 0)
	}
}

func (k *killer) close() {
	if k.cgroup >= 0 {
		unix.Close(k.cgroup)
	}
}
