package holder

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxQueued is what a client may leave unread of what it was told unasked
	// before it is dropped. Replies do not count: the next request waits until
	// the reply before it is on its way, so there is never more than one.
	maxQueued = 256 << 10
	// maxRequest bounds one request line.
	maxRequest = 256 << 10
	// grewEvery is the least distance between two grew pushes.
	grewEvery = 5 * time.Millisecond
)

// server is the control socket. It never waits for a client: every client has
// a queue and a goroutine that empties it.
type server struct {
	ln *net.UnixListener
	// handle answers a request of a client that has said hello.
	handle func(*peer, request) reply
	// greet returns what a new client is told after hello, nil for nothing.
	greet func() *push

	mu    sync.Mutex
	peers map[*peer]bool
	seq   int64
	// empty is closed and replaced whenever the last client leaves.
	empty chan struct{}
}

// peer is one client.
type peer struct {
	srv  *server
	conn *net.UnixConn
	// seq tells who is newer.
	seq int64

	mu sync.Mutex
	// queue holds pushes, of queued bytes, and at most one reply; owed is
	// whether it is there, taken says that it is no more or never will be sent.
	queue  [][]byte
	queued int
	owed   bool
	taken  *sync.Cond
	// writing is whether lines taken from the queue are on their way.
	writing bool
	// grew is the newest growth not in the queue yet: telling a slow client
	// each of them would only drop it sooner.
	grew    *push
	hello   bool
	role    string
	typed   bool // has sent stdin
	toldEnd bool
	dropped bool
	wake    chan struct{}
}

// listen makes the socket with mode 0600. Nothing else of this process may make
// files meanwhile, since the umask is changed for it.
func listen(path string) (*net.UnixListener, error) {
	bind := func() (*net.UnixListener, error) {
		old := unix.Umask(0o177)
		defer unix.Umask(old)
		return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	}
	ln, err := bind()
	if errors.Is(err, unix.EADDRINUSE) {
		// Left by a holder that was killed, or owned by one that lives.
		conn, derr := net.DialTimeout("unix", path, time.Second)
		if derr == nil {
			conn.Close()
			return nil, fmt.Errorf("another holder listens at %s", path)
		}
		if !errors.Is(derr, unix.ECONNREFUSED) {
			return nil, err
		}
		if rerr := os.Remove(path); rerr != nil {
			return nil, rerr
		}
		ln, err = bind()
	}
	return ln, err
}

func newServer(ln *net.UnixListener) *server {
	return &server{ln: ln, peers: map[*peer]bool{}, empty: make(chan struct{})}
}

func (s *server) accept() {
	for {
		conn, err := s.ln.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, for example: the clients there are go on.
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if checkPeer(conn) != nil {
			conn.Close()
			continue
		}
		s.mu.Lock()
		s.seq++
		p := newPeer(s, conn, s.seq)
		s.peers[p] = true
		s.mu.Unlock()
		go p.read()
		go p.write()
	}
}

func newPeer(s *server, conn *net.UnixConn, seq int64) *peer {
	p := &peer{srv: s, conn: conn, seq: seq, wake: make(chan struct{}, 1)}
	p.taken = sync.NewCond(&p.mu)
	return p
}

func (s *server) remove(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.peers[p] {
		return
	}
	delete(s.peers, p)
	if len(s.peers) == 0 {
		close(s.empty)
		s.empty = make(chan struct{})
	}
}

// idle returns a channel that is closed when no client is connected.
func (s *server) idle() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.peers) == 0 {
		c := make(chan struct{})
		close(c)
		return c
	}
	return s.empty
}

// each calls f for every client that has said hello.
func (s *server) each(f func(*peer)) {
	s.mu.Lock()
	peers := make([]*peer, 0, len(s.peers))
	for p := range s.peers {
		peers = append(peers, p)
	}
	s.mu.Unlock()
	for _, p := range peers {
		p.mu.Lock()
		ok := p.hello
		p.mu.Unlock()
		if ok {
			f(p)
		}
	}
}

// supervised is whether a supervisor is connected.
func (s *server) supervised() bool {
	found := false
	s.each(func(p *peer) {
		p.mu.Lock()
		found = found || p.role == RoleSupervisor
		p.mu.Unlock()
	})
	return found
}

// mayType claims stdin for p. The newest client that types wins, and an older
// one gets it back only when the newer has left.
func (s *server) mayType(p *peer) bool {
	newer := false
	s.each(func(q *peer) {
		q.mu.Lock()
		newer = newer || (q.typed && q.seq > p.seq)
		q.mu.Unlock()
	})
	if newer {
		return false
	}
	p.mu.Lock()
	p.typed = true
	p.mu.Unlock()
	return true
}

func (s *server) broadcast(m push) {
	s.each(func(p *peer) { p.push(m) })
}

func (s *server) close() {
	s.ln.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		p.conn.Close()
	}
}

func encodeLine(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		// Only our own structures come here: they always encode.
		return []byte("{\"error\":\"encoding failed\"}\n")
	}
	return append(b, '\n')
}

// push sends m; growth waits in its own place until the client has read what
// came before.
func (p *peer) push(m push) {
	p.mu.Lock()
	if m.Push == PushGrew {
		p.grew = &m
		p.mu.Unlock()
		notify(p.wake)
		return
	}
	if m.Push == PushExited {
		if p.toldEnd { // greeted and told at the same moment
			p.mu.Unlock()
			return
		}
		p.toldEnd = true
	}
	if p.grew != nil {
		p.enqueue(encodeLine(*p.grew))
		p.grew = nil
	}
	p.enqueue(encodeLine(m))
	p.mu.Unlock()
	notify(p.wake)
}

// send queues the reply to a request of the client's. The reply before it has
// been taken: see wait.
func (p *peer) send(r reply) {
	p.mu.Lock()
	if !p.dropped {
		p.queue = append(p.queue, encodeLine(r))
		p.owed = true
	}
	p.mu.Unlock()
	notify(p.wake)
}

// wait returns when the last reply is on its way. A client that asks for more
// than it reads is held back by that, and by its socket.
func (p *peer) wait() {
	p.mu.Lock()
	for p.owed && !p.dropped {
		p.taken.Wait()
	}
	p.mu.Unlock()
}

// enqueue adds a push, or drops the client that has left too many unread. The
// caller holds mu.
func (p *peer) enqueue(line []byte) {
	if p.dropped {
		return
	}
	if p.queued+len(line) > maxQueued {
		p.dropped = true
		p.queue = nil
		p.taken.Broadcast()
		p.conn.Close()
		return
	}
	p.queue = append(p.queue, line)
	p.queued += len(line)
}

func (p *peer) write() {
	for range p.wake {
		for {
			p.mu.Lock()
			p.writing = false
			if len(p.queue) == 0 && p.grew != nil {
				p.enqueue(encodeLine(*p.grew))
				p.grew = nil
			}
			lines := p.queue
			// What is being written counts no more: its reader may have all of
			// it, and have asked again, before Write returns here.
			p.queue, p.queued, p.writing = nil, 0, len(lines) > 0
			p.owed = false
			p.taken.Broadcast()
			gone := p.dropped
			p.mu.Unlock()
			if gone {
				return
			}
			if len(lines) == 0 {
				break
			}
			bufs := net.Buffers(lines)
			_, err := bufs.WriteTo(p.conn)
			if err != nil {
				p.drop()
				return
			}
		}
	}
}

func (p *peer) drop() {
	p.mu.Lock()
	p.dropped = true
	p.queue = nil
	p.taken.Broadcast()
	p.mu.Unlock()
	p.conn.Close()
	notify(p.wake)
}

func (p *peer) read() {
	defer p.srv.remove(p)
	defer p.drop()
	in := bufio.NewScanner(p.conn)
	in.Buffer(make([]byte, 0, 4096), maxRequest)
	for in.Scan() {
		p.wait()
		var r request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			p.send(reply{Error: "this line is no request: " + err.Error()})
			continue
		}
		if r.Req == reqHello {
			// Versions begin at 1; a newer client may ask for what we do not
			// know, so it has to speak ours.
			if r.V < Version-1 || r.V < 1 || r.V > Version {
				p.send(reply{ID: r.ID, Error: fmt.Sprintf("this holder speaks version %d of the protocol, not %d", Version, r.V)})
				continue
			}
			p.mu.Lock()
			p.hello, p.role = true, r.Role
			p.mu.Unlock()
			p.send(reply{V: Version, ID: r.ID, OK: true})
			if m := p.srv.greet(); m != nil {
				p.push(*m)
			}
			continue
		}
		p.mu.Lock()
		known := p.hello
		p.mu.Unlock()
		if !known {
			p.send(reply{ID: r.ID, Error: "say hello first"})
			continue
		}
		rep := p.srv.handle(p, r)
		rep.ID = r.ID
		if rep.Error == "" {
			rep.OK = true
		}
		p.send(rep)
		if r.Req == reqGoodbye {
			p.flush()
			return
		}
	}
}

// flush gives the last reply a moment to leave.
func (p *peer) flush() {
	deadline := time.Now().Add(100 * time.Millisecond)
	for time.Now().Before(deadline) {
		p.mu.Lock()
		busy := len(p.queue) > 0 || p.writing
		p.mu.Unlock()
		if !busy {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
