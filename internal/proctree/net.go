package proctree

import (
	"bytes"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// NetAccount adds up what the network namespaces of a tree of processes have moved since
// the first look at each. The kernel does not count the network by process: in the
// machine's own namespace everybody's traffic is in it, in a container's only the
// container's. RDMA passes the kernel by and is not in it. A NetAccount belongs to one
// goroutine; its zero value is ready.
type NetAccount struct {
	own    uint64 // names our own namespace, 0 before the first reading
	round  uint64
	spaces map[uint64]*netspace
	// of remembers each process's namespace.
	of    map[int]netOf
	total uint64
	buf   []byte
}

type netOf struct{ space, round uint64 }

// netspace is one network namespace.
type netspace struct {
	fd    int
	own   bool
	round uint64 // when a process of the tree was last in it
	ports []netport
	begun bool
}

// netport is one interface.
type netport struct {
	name    string
	counted bool
	last    uint64
}

const (
	// netAgain is after how many readings it is looked again in which namespace a
	// process is: it may leave the one it was born in.
	netAgain = 10
	// netMost bounds how many namespaces are kept open.
	netMost = 8
	// netBuf is for some hundred interfaces.
	netBuf = 32 << 10
)

// Read returns how many bytes were received and sent so far. Where a process of the tree
// has a namespace of its own, those alone count, else the machine's, there by its network
// cards: bridges and tunnels would count the same bytes again. Loopback is left out. The
// figure never falls; ok is false where nothing can be read.
func (n *NetAccount) Read(pids []int) (total uint64, ok bool) {
	if n.spaces == nil {
		n.spaces, n.of, n.buf = map[uint64]*netspace{}, map[int]netOf{}, make([]byte, netBuf)
		var st unix.Stat_t
		if unix.Stat("/proc/self/net/dev", &st) == nil {
			n.own = st.Ino
		}
	}
	n.round++
	apart := false
	for _, pid := range pids {
		id := n.spaceOf(pid)
		if s := n.spaces[id]; s != nil {
			s.round = n.round
			apart = apart || !s.own
		}
	}
	for id, s := range n.spaces {
		switch {
		case s.round != n.round:
			unix.Close(s.fd)
			delete(n.spaces, id)
		case s.own && apart:
		case n.count(s):
			ok = true
		}
	}
	for pid, o := range n.of {
		if o.round != n.round {
			delete(n.of, pid)
		}
	}
	return n.total, ok
}

// Close gives the files back; the account begins anew after it.
func (n *NetAccount) Close() {
	for _, s := range n.spaces {
		unix.Close(s.fd)
	}
	*n = NetAccount{}
}

// spaceOf names the namespace of a process, 0 for unknown: by the inode of its list of
// interfaces, which whoever may not look at its namespaces may look at all the same.
func (n *NetAccount) spaceOf(pid int) uint64 {
	o, known := n.of[pid]
	if known && n.round%netAgain != 0 && n.spaces[o.space] != nil {
		n.of[pid] = netOf{o.space, n.round}
		return o.space
	}
	path := "/proc/" + strconv.Itoa(pid) + "/net/dev"
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	if n.spaces[st.Ino] == nil && len(n.spaces) < netMost {
		fd, err := openFile(path)
		if err != nil {
			return 0
		}
		if unix.Fstat(fd, &st) != nil {
			unix.Close(fd)
			return 0
		}
		if n.spaces[st.Ino] != nil {
			unix.Close(fd)
		} else {
			n.spaces[st.Ino] = &netspace{fd: fd, own: st.Ino == n.own}
		}
	}
	n.of[pid] = netOf{st.Ino, n.round}
	return st.Ino
}

// count adds what has come since the last reading of a namespace.
func (n *NetAccount) count(s *netspace) bool {
	b := n.read(s.fd)
	if b == nil {
		return false
	}
	first := !s.begun
	for len(b) > 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 0 {
			continue
		}
		moved, ok := portBytes(line[colon+1:])
		if !ok {
			continue
		}
		p := s.port(bytes.TrimSpace(line[:colon]))
		switch {
		case first:
			// What it moved before is not of this run.
		case moved >= p.last:
			if p.counted {
				n.total += moved - p.last
			}
		case p.counted:
			// Counters begin at 0 when a driver is loaded again.
			n.total += moved
		}
		p.last = moved
	}
	if first {
		s.begun = true
		s.chooseCards()
	}
	return true
}

func (n *NetAccount) read(fd int) []byte {
	got := 0
	for got < len(n.buf) {
		k, err := unix.Pread(fd, n.buf[got:], int64(got))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil
		}
		got += k
		// The kernel hands over a page at a time, in whole lines of some 130 bytes.
		if k < 3072 {
			break
		}
	}
	return n.buf[:got]
}

// portBytes reads received and sent bytes, the first and the ninth figure.
func portBytes(b []byte) (uint64, bool) {
	var sum, v uint64
	field, in := 0, false
	for i := 0; i <= len(b); i++ {
		if i < len(b) && b[i] >= '0' && b[i] <= '9' {
			v, in = v*10+uint64(b[i]-'0'), true
			continue
		}
		if !in {
			continue
		}
		if field++; field == 1 || field == 9 {
			sum += v
		}
		v, in = 0, false
	}
	return sum, field >= 9
}

// port finds an interface, or adds it.
func (s *netspace) port(name []byte) *netport {
	for i := range s.ports {
		if s.ports[i].name == string(name) {
			return &s.ports[i]
		}
	}
	p := netport{name: string(name), counted: string(name) != "lo"}
	if s.own && p.counted && s.begun && s.cards() {
		p.counted = isCard(p.name)
	}
	s.ports = append(s.ports, p)
	return &s.ports[len(s.ports)-1]
}

// chooseCards leaves out, in the machine's own namespace, what is no network card; where
// there is none at all, as in a container, everything counts.
func (s *netspace) chooseCards() {
	if !s.own || !s.cards() {
		return
	}
	for i := range s.ports {
		s.ports[i].counted = s.ports[i].counted && isCard(s.ports[i].name)
	}
}

func (s *netspace) cards() bool {
	for _, p := range s.ports {
		if isCard(p.name) {
			return true
		}
	}
	return false
}

// isCard says whether a device is behind an interface of our own namespace.
func isCard(name string) bool {
	_, err := os.Stat("/sys/class/net/" + name + "/device")
	return err == nil
}
