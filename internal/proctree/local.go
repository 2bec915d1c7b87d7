package proctree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Local says with whom a tree talks over sockets of the machine itself: unix sockets, and
// UDP over loopback.
type Local int

// With whom.
const (
	// LocalNone is nobody, itself within one process, or a process beside the tree.
	LocalNone Local = iota
	// LocalInner is another process of the tree.
	LocalInner
	// LocalOut is somebody outside the tree, or nobody knows whom.
	LocalOut
)

// localSockets are whose each socket of the tree is.
type localSockets struct {
	owner  map[uint32]int
	shared map[uint32]bool // more than one process has it
	talk   map[uint32]bool // of somebody else
}

func (l *localSockets) begin() {
	l.owner, l.shared, l.talk = map[uint32]int{}, map[uint32]bool{}, map[uint32]bool{}
}

func (l *localSockets) has(inode uint32, pid int) {
	if old, known := l.owner[inode]; known && old != pid {
		l.shared[inode] = true
	}
	l.owner[inode] = pid
}

// The kernel's structures of unix sockets (linux/unix_diag.h).
const (
	unixReqLen   = 24
	unixMsgLen   = 16
	unixShowPeer = 4 // UDIAG_SHOW_PEER
	unixPeer     = 2 // UNIX_DIAG_PEER
)

// talks notes with whom a socket of the tree talks.
func (s *SocketAccount) talks(inode uint32, with Local) {
	if with != LocalNone {
		s.total.Local = max(s.total.Local, with)
		s.local.talk[inode] = true
	}
}

// talkers finds the processes whose sockets those are.
func (s *SocketAccount) talkers() {
	s.total.Talkers = map[int]bool{}
	for pid, o := range s.procs {
		for _, inode := range o.sockets {
			if o.named == s.round && s.local.talk[inode] {
				s.total.Talkers[pid] = true
			}
		}
	}
}

// countLocal finds the other ends of the tree's unix sockets.
func (s *SocketAccount) countLocal(mine map[uint32]bool) error {
	for _, o := range s.procs {
		// Unix sockets of another network namespace are not listed here.
		for _, inode := range o.sockets {
			if o.apart && o.named == s.round && !mine[inode] {
				s.talks(inode, LocalInner)
			}
		}
	}
	ne := binary.NativeEndian
	body := make([]byte, unixReqLen)
	body[0] = unix.AF_UNIX
	ne.PutUint32(body[4:], 1<<1) // connected ones
	ne.PutUint32(body[12:], unixShowPeer)
	seq := uint32(s.round)<<4 | 0xf
	err := s.request(body, seq, func(b []byte) (bool, error) {
		return messages(b, seq, func(msg []byte) error {
			if len(msg) < unixMsgLen {
				return unix.EBADMSG
			}
			here := ne.Uint32(msg[4:])
			if beside, ours := mine[here]; ours && !beside {
				s.talks(here, s.local.with(here, peerOf(msg[unixMsgLen:]), mine))
			}
			return nil
		})
	})
	if errors.Is(err, unix.ENOENT) { // without unix_diag
		for inode, beside := range mine {
			if _, counted := s.last[inode]; !counted && !beside {
				s.talks(inode, LocalOut)
			}
		}
		return nil
	}
	return err
}

// with says with whom a socket is connected. An end that is closed has nobody: 0.
func (l *localSockets) with(here, away uint32, mine map[uint32]bool) Local {
	beside, ours := mine[away]
	switch {
	case away == 0, beside:
		return LocalNone
	case !ours:
		return LocalOut
	case l.owner[here] == l.owner[away] && !l.shared[here] && !l.shared[away]:
		return LocalNone
	}
	return LocalInner
}

// peerOf finds the inode of the other end, 0 for none.
func peerOf(b []byte) uint32 {
	ne := binary.NativeEndian
	for len(b) >= 4 {
		size, kind := int(ne.Uint16(b)), ne.Uint16(b[2:])
		if size < 4 || size > len(b) {
			break
		}
		if kind == unixPeer && size >= 8 {
			return ne.Uint32(b[4:])
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return 0
}

// onMachine says whether what comes to an end may come over loopback.
func onMachine(end [18]byte) bool {
	if v4 := end[2:]; bytes.Equal(v4[4:], make([]byte, 12)) { // as the kernel writes IPv4
		if v4[0] == 127 {
			return true
		}
	}
	a := netip.AddrFrom16([16]byte(end[2:]))
	return a.IsLoopback() || a.IsUnspecified()
}

// Wakes is how often threads that wait were woken so far.
type Wakes struct {
	// Received are those of threads that wait in a socket without a time limit of their
	// own: something came, each time. Polled are those of threads that wait for one of
	// several files, or sleep, or nobody sees where: something came, or a time was over.
	Received, Polled uint64
}

// WakeAccount adds up how often the threads of processes were woken. It belongs to one
// goroutine; its zero value is ready.
type WakeAccount struct {
	round   uint64
	threads map[int]*waker
	total   Wakes
}

type waker struct {
	start    uint64 // of the process
	round    uint64
	switches uint64
	where    waitKind
}

type waitKind int

const (
	waitsElsewhere waitKind = iota
	waitsSocket
	waitsPoll
)

// wakersMost bounds the threads that are looked at.
const wakersMost = 4096

// Read takes the figures of these processes; ok is false where they are not all known.
// still names threads that wake up whether something came or not, which are left out.
func (w *WakeAccount) Read(procs []Proc, still func(comm string) bool) (total Wakes, ok bool) {
	if w.threads == nil {
		w.threads = map[int]*waker{}
	}
	w.round++
	ok = true
	n := 0
	for _, p := range procs {
		if p.State == 'Z' || p.State == 'X' {
			continue
		}
		task := "/proc/" + strconv.Itoa(p.PID) + "/task"
		d, err := os.Open(task)
		if err != nil {
			continue // gone since
		}
		names, _ := d.Readdirnames(-1)
		d.Close()
		for _, name := range names {
			tid, err := strconv.Atoi(name)
			if err != nil {
				continue
			}
			if n++; n > wakersMost {
				ok = false
				break
			}
			w.thread(p, tid, task+"/"+name, still)
		}
	}
	for tid, t := range w.threads {
		if t.round != w.round {
			delete(w.threads, tid)
		}
	}
	return w.total, ok
}

func (w *WakeAccount) thread(p Proc, tid int, dir string, still func(string) bool) {
	switches, ok := voluntary(readProc(dir + "/status"))
	if !ok || still(strings.TrimSpace(string(readProc(dir+"/comm")))) {
		return
	}
	where := waitOf(strings.TrimSpace(string(readProc(dir + "/wchan"))))
	t := w.threads[tid]
	if t == nil || t.start != p.Start || switches < t.switches {
		t = &waker{start: p.Start, switches: switches, where: where}
		w.threads[tid] = t
	}
	grew := switches - t.switches
	// A thread that waits elsewhere now may have waited in a socket before.
	switch {
	case where == waitsSocket && t.where == waitsSocket:
		w.total.Received += grew
	case where != waitsElsewhere || t.where != waitsElsewhere:
		w.total.Polled += grew
	}
	t.switches, t.round, t.where = switches, w.round, where
}

// waitOf says what a kernel function waits for.
func waitOf(wchan string) waitKind {
	switch {
	case wchan == "", wchan == "0":
		return waitsPoll
	case strings.Contains(wchan, "poll"), strings.Contains(wchan, "select"), strings.Contains(wchan, "nanosleep"):
		return waitsPoll
	// Not wait_woken, where TCP waits, whose bytes are counted.
	case strings.HasPrefix(wchan, "unix_"), strings.Contains(wchan, "wait_for_more_packets"), wchan == "sock_alloc_send_pskb":
		return waitsSocket
	}
	return waitsElsewhere
}

// voluntary reads how often a thread gave up its core by itself.
func voluntary(status []byte) (uint64, bool) {
	for line := range bytes.Lines(status) {
		if text, ok := bytes.CutPrefix(line, []byte("voluntary_ctxt_switches:")); ok {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
