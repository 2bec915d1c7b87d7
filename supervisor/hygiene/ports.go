package hygiene

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sparkrun/supervisor/gate"
)

// States of /proc/net/tcp.
const (
	tcpTimeWait = 0x06
	tcpListen   = 0x0A
)

// listener is one line of /proc/net/tcp or tcp6.
type listener struct {
	addr  netip.Addr
	port  int
	state uint64
	inode uint64
}

func (l listener) String() string {
	return netip.AddrPortFrom(l.addr, uint16(l.port)).String()
}

// sockets reads the TCP sockets of the network that a process ("self", or a pid)
// is in.
func (t *table) sockets(pid string) []listener {
	var out []listener
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(t.root, "proc", pid, "net", name))
		if err != nil {
			continue
		}
		sc := bufio.NewScanner(f)
		for sc.Scan() {
			if l, ok := parseSocket(sc.Text()); ok {
				out = append(out, l)
			}
		}
		f.Close()
	}
	return out
}

// parseSocket reads a line such as
//
//	0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 12345 ...
func parseSocket(line string) (listener, bool) {
	f := strings.Fields(line)
	if len(f) < 10 {
		return listener{}, false
	}
	host, port, ok := strings.Cut(f[1], ":")
	b, err := hex.DecodeString(host)
	if !ok || err != nil || len(b)%4 != 0 {
		return listener{}, false
	}
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4]) // words of the machine, which is little endian
	}
	var l listener
	if l.addr, ok = netip.AddrFromSlice(b); !ok {
		return listener{}, false
	}
	l.addr = l.addr.Unmap()
	p, err1 := strconv.ParseUint(port, 16, 16)
	st, err2 := strconv.ParseUint(f[3], 16, 8)
	ino, err3 := strconv.ParseUint(f[9], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return listener{}, false
	}
	l.port, l.state, l.inode = int(p), st, ino
	return l, true
}

// socketInode reads the inode of "socket:[12345]".
func socketInode(link string) (uint64, bool) {
	s, ok := strings.CutPrefix(link, "socket:[")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(s, "]"), 10, 64)
	return n, err == nil
}

// listening says whether anybody listens on a port of our own network.
func (t *table) listening(port int) bool {
	return slices.ContainsFunc(t.sockets("self"), func(l listener) bool { return l.port == port && l.state == tcpListen })
}

// strangers tells, for the ports the job itself needs, who else has them.
func (c *cleaner) strangers() {
	if len(c.o.Ports) == 0 {
		return
	}
	told := map[int]bool{}
	for _, f := range c.out {
		if f.Kind == "port" && !f.Removed {
			if a, err := netip.ParseAddrPort(f.What); err == nil {
				told[int(a.Port())] = true
			}
		}
	}
	socks := c.tab.sockets("self")
	for _, port := range c.o.Ports {
		if told[port] {
			continue
		}
		told[port] = true
		var held *listener
		waiting := 0
		for i, l := range socks {
			switch {
			case l.port != port:
			case l.state == tcpListen:
				held = &socks[i]
			case l.state == tcpTimeWait:
				waiting++
			}
		}
		switch {
		case held != nil:
			pid, name := c.tab.owner(held.inode)
			who := "somebody who cannot be seen from here"
			if pid > 0 {
				who = fmt.Sprintf("%s (pid %d)", name, pid)
			}
			c.tell(Finding{Kind: "port", What: held.String(), PID: pid, Why: fmt.Sprintf("port %d, which the job listens on, is held by %s, not of this run: end it or give the job another port", port, who)})
		case waiting > 0:
			c.tell(Finding{Kind: "port", What: strconv.Itoa(port), Why: fmt.Sprintf("port %d has %d closed connections in TIME_WAIT: the kernel frees them within 60 s, and a job that sets SO_REUSEADDR need not wait", port, waiting)})
		}
	}
}

// owner finds the process that has a socket open.
func (t *table) owner(inode uint64) (int, string) {
	want := fmt.Sprintf("socket:[%d]", inode)
	for _, pid := range t.pids() {
		if slices.Contains(t.links(pid), want) {
			return pid, gate.Name(t.root, pid)
		}
	}
	return 0, ""
}
