package proctree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Carried is what the connections of a tree have carried so far.
type Carried struct {
	// OutB are the bytes of TCP connections to somebody outside the tree, InnerB those of
	// connections between two of its processes, BesideB those to the outside of the
	// processes that were named as beside it. They never fall. A connection that came or
	// went counts for a byte at least.
	OutB, InnerB, BesideB uint64
	// Rest says that the tree has other sockets to the network, or its own network
	// namespace, of which nothing is counted here.
	Rest bool
	// Local says with whom the tree talks over sockets of the machine itself, of which the
	// kernel counts nothing.
	Local Local
	// Talkers are the processes that do.
	Talkers map[int]bool
}

// SocketAccount adds up what the TCP connections of a tree of processes carry. The figures
// are the kernel's, one by one for each connection (sock_diag), so that it counts what the
// I/O of a process leaves out (recv and send) and nobody else's traffic. A SocketAccount
// belongs to one goroutine; its zero value is ready.
type SocketAccount struct {
	round uint64
	local localSockets
	procs map[int]*socketOwner
	last  map[uint32]carried // by inode, of connections of the tree
	total Carried
	fd    int // of the netlink socket, 0 for none
	buf   []byte
	own   string // our network namespace
}

// carried are the bytes of a connection; beside says whose it is.
type carried struct {
	bytes  uint64
	beside bool
}

// socketOwner is one process with the inodes of its sockets.
type socketOwner struct {
	start   uint64
	files   int64
	named   uint64 // the round in which it was last named
	read    uint64 // the round in which its files were last read
	sockets []uint32
	apart   bool // in another network namespace
}

// socketsAgain is after how many readings the files of a process are read again though
// their number is the same.
const socketsAgain = 6

// Read takes the figures of the connections of these processes; beside are others of the
// same tree, whose own connections to the outside are counted apart. An error says that they
// are not known this time: files of another user, or a kernel without sock_diag.
func (s *SocketAccount) Read(procs, beside []Proc) (Carried, error) {
	if s.procs == nil {
		s.procs, s.buf = map[int]*socketOwner{}, make([]byte, 64<<10)
		s.own, _ = os.Readlink("/proc/self/ns/net")
	}
	s.round++
	s.total.Rest, s.total.Local, s.total.Talkers = false, LocalNone, nil
	s.local.begin()
	mine := map[uint32]bool{} // whether it is one of beside
	for i, list := range [][]Proc{beside, procs} {
		for _, p := range list {
			if p.State == 'Z' || p.State == 'X' {
				// Where only the first thread has ended the others have the files.
				if threads, _ := os.ReadDir("/proc/" + strconv.Itoa(p.PID) + "/task"); len(threads) > 1 {
					return s.total, fmt.Errorf("the open files of process %d (%s), whose first thread has ended: %w", p.PID, p.Comm, unix.EACCES)
				}
				continue
			}
			o, err := s.owner(p)
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
				continue // gone since
			}
			if err != nil {
				return s.total, fmt.Errorf("the open files of process %d (%s): %w", p.PID, p.Comm, err)
			}
			s.total.Rest = s.total.Rest || o.apart
			for _, inode := range o.sockets {
				mine[inode] = i == 0 // of both it is the tree's
				s.local.has(inode, p.PID)
			}
		}
	}
	for pid, o := range s.procs {
		if o.named != s.round {
			delete(s.procs, pid)
		}
	}
	if len(mine) == 0 && len(s.last) == 0 {
		return s.total, nil
	}
	err := s.count(mine)
	if err == nil {
		err = s.countLocal(mine)
	}
	s.talkers()
	return s.total, err
}

// Close gives the netlink socket back; the account begins anew after it.
func (s *SocketAccount) Close() {
	if s.fd != 0 {
		unix.Close(s.fd)
	}
	*s = SocketAccount{}
}

// owner returns what sockets a process has.
func (s *SocketAccount) owner(p Proc) (*socketOwner, error) {
	dir := "/proc/" + strconv.Itoa(p.PID)
	var st unix.Stat_t
	if err := unix.Stat(dir+"/fd", &st); err != nil {
		return nil, err
	}
	o := s.procs[p.PID]
	if o != nil && o.start == p.Start {
		o.named = s.round
		// Linux 6.2 and later give the number of open files as the folder's size; before, 0.
		if st.Size > 0 && st.Size == o.files && s.round-o.read < socketsAgain {
			return o, nil
		}
	}
	o = &socketOwner{start: p.Start, files: st.Size, named: s.round, read: s.round}
	net, err := os.Readlink(dir + "/ns/net")
	if err != nil {
		return nil, err
	}
	o.apart = net != s.own
	d, err := os.Open(dir + "/fd")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		to, err := os.Readlink(dir + "/fd/" + n)
		if err != nil {
			continue // closed since
		}
		text, ok := strings.CutPrefix(to, "socket:[")
		if !ok {
			continue
		}
		if inode, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 32); err == nil {
			o.sockets = append(o.sockets, uint32(inode))
		}
	}
	s.procs[p.PID] = o
	return o, nil
}

// conn is one TCP connection; port and address are both ends as the kernel writes them.
type conn struct {
	inode      uint32
	here, away [18]byte
	bytes      uint64
}

// count adds what the connections of the tree have carried since the last time.
func (s *SocketAccount) count(mine map[uint32]bool) error {
	var conns []conn
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		err := s.dump(family, unix.IPPROTO_TCP, func(c conn) {
			if _, ours := mine[c.inode]; ours {
				conns = append(conns, c)
			}
		})
		if err != nil {
			return err
		}
		err = s.dump(family, unix.IPPROTO_UDP, func(c conn) {
			beside, ours := mine[c.inode]
			s.total.Rest = s.total.Rest || ours && !beside
			if ours && !beside && onMachine(c.here) {
				s.talks(c.inode, LocalOut)
			}
		})
		if err != nil && !errors.Is(err, unix.ENOENT) { // without udp_diag
			return err
		} else if err != nil {
			s.total.Rest = true
		}
	}
	ends := map[[18]byte]bool{}
	for _, c := range conns {
		ends[c.here] = true
	}
	now := make(map[uint32]carried, len(conns))
	add := func(n uint64, beside bool) {
		if beside {
			s.total.BesideB += n
		} else {
			s.total.OutB += n
		}
	}
	for _, c := range conns {
		beside := mine[c.inode]
		now[c.inode] = carried{c.bytes, beside}
		before, known := s.last[c.inode]
		grew := c.bytes - before.bytes
		if !known || c.bytes < before.bytes {
			grew = max(c.bytes, 1)
		}
		if ends[c.away] {
			s.total.InnerB += grew
		} else {
			add(grew, beside)
		}
	}
	for inode, c := range s.last {
		if _, there := now[inode]; !there {
			add(1, c.beside)
		}
	}
	s.last = now
	return nil
}

// The kernel's structures (linux/inet_diag.h): the request, and in each answer where the
// ends, the inode and the attributes are.
const (
	diagReqLen  = 56
	diagMsgLen  = 72
	diagInfo    = 2 // INET_DIAG_INFO: struct tcp_info
	tcpAcked    = 120
	tcpReceived = 128
	allStates   = 0xfff &^ (1 << 10) // but those that listen
)

// dump asks for all sockets of a family and protocol in our network namespace.
func (s *SocketAccount) dump(family, protocol uint8, each func(conn)) error {
	body := make([]byte, diagReqLen)
	body[0], body[1], body[2] = family, protocol, 1<<(diagInfo-1)
	binary.NativeEndian.PutUint32(body[4:], allStates)
	seq := uint32(s.round)<<4 | uint32(protocol&7)<<1 | uint32(family&1)
	return s.request(body, seq, func(b []byte) (bool, error) {
		return answers(b, seq, protocol == unix.IPPROTO_TCP, each)
	})
}

// request sends one question to sock_diag and hands the datagrams of the answer to take.
func (s *SocketAccount) request(body []byte, seq uint32, take func([]byte) (done bool, err error)) error {
	if s.fd == 0 {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
		if err != nil {
			return fmt.Errorf("asking the kernel for its connections: %w", err)
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
			unix.Close(fd)
			return fmt.Errorf("asking the kernel for its connections: %w", err)
		}
		s.fd = fd
	}
	req := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	ne := binary.NativeEndian
	ne.PutUint32(req[0:], uint32(cap(req)))
	ne.PutUint16(req[4:], 20) // SOCK_DIAG_BY_FAMILY
	ne.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	ne.PutUint32(req[8:], seq)
	req = append(req, body...)
	fail := func(err error) error {
		unix.Close(s.fd) // with what it may still have to say
		s.fd = 0
		return fmt.Errorf("asking the kernel for its connections: %w", err)
	}
	if err := unix.Sendto(s.fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fail(err)
	}
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_TRUNC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fail(err)
		}
		if n > len(s.buf) {
			return fail(unix.EMSGSIZE)
		}
		done, err := take(s.buf[:n])
		if err != nil {
			return fail(err)
		}
		if done {
			return nil
		}
	}
}

// answers reads the messages of one datagram about connections of IP.
func answers(b []byte, seq uint32, tcp bool, each func(conn)) (done bool, err error) {
	ne := binary.NativeEndian
	return messages(b, seq, func(msg []byte) error {
		if len(msg) < diagMsgLen {
			return nil
		}
		c := conn{inode: ne.Uint32(msg[68:])}
		// sport, dport, source, destination.
		copy(c.here[:2], msg[4:6])
		copy(c.here[2:], msg[8:24])
		copy(c.away[:2], msg[6:8])
		copy(c.away[2:], msg[24:40])
		plainV4(&c.here)
		plainV4(&c.away)
		var err error
		if c.bytes, err = attrBytes(msg[diagMsgLen:]); err != nil && tcp && c.inode != 0 {
			return err
		}
		each(c)
		return nil
	})
}

// messages hands the messages of one datagram to each.
func messages(b []byte, seq uint32, each func(msg []byte) error) (done bool, err error) {
	ne := binary.NativeEndian
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(ne.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return false, unix.EBADMSG
		}
		kind, of := ne.Uint16(b[4:]), ne.Uint32(b[8:])
		if flags := ne.Uint16(b[6:]); flags&unix.NLM_F_DUMP_INTR != 0 {
			return false, unix.EINTR
		}
		msg := b[unix.SizeofNlMsghdr:size]
		b = b[min((size+3)&^3, len(b)):]
		switch {
		case of != seq:
		case kind == unix.NLMSG_DONE:
			return true, nil
		case kind == unix.NLMSG_ERROR:
			if len(msg) >= 4 {
				if code := int32(ne.Uint32(msg)); code != 0 {
					return false, unix.Errno(-code)
				}
			}
			return true, nil
		default:
			if err := each(msg); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// plainV4 writes an IPv4 address in its IPv6 form as the kernel writes it for IPv4, for
// both ends of one connection to be found alike.
func plainV4(end *[18]byte) {
	if a := end[2:]; bytes.Equal(a[:12], v4InV6) {
		copy(a, a[12:16])
		clear(a[4:])
	}
}

var v4InV6 = []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}

// attrBytes adds what the connection has received and what of its own was acknowledged.
func attrBytes(b []byte) (uint64, error) {
	ne := binary.NativeEndian
	for len(b) >= 4 {
		size, kind := int(ne.Uint16(b)), ne.Uint16(b[2:])
		if size < 4 || size > len(b) {
			break
		}
		if kind == diagInfo && size >= 4+tcpReceived+8 {
			info := b[4:size]
			return ne.Uint64(info[tcpAcked:]) + ne.Uint64(info[tcpReceived:]), nil
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return 0, fmt.Errorf("a connection without its figures: %w", unix.EBADMSG)
}
