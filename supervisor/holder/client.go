package holder

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dialTimeout = 2 * time.Second
	// replyTimeout is far above what a holder needs on a loaded machine.
	replyTimeout = 10 * time.Second
	// stdinChunk keeps one stdin request well below maxRequest.
	stdinChunk = 64 << 10
)

// ErrLost is the error of every request once the connection is gone: the holder
// has ended, or has dropped a client that did not read.
var ErrLost = errors.New("the connection to the holder is lost")

// Client is one connection to a holder. Its methods may be called from several
// goroutines.
type Client struct {
	conn   *net.UnixConn
	pushes chan Push

	mu      sync.Mutex
	writeMu sync.Mutex
	nextID  int64
	waiting map[int64]chan reply
	lost    bool

	closed  chan struct{}
	closing sync.Once

	// The pushes not taken yet; grew pushes are merged, so the list stays short.
	pushMu  sync.Mutex
	pending []Push
	wake    chan struct{}
}

// Dial connects to the socket of a holder and says hello. The peer must run
// under our own uid: anything else is refused. role is RoleSupervisor for the
// one that decides about the run, any other word for everybody else.
func Dial(socket, role string) (*Client, error) {
	conn, err := net.DialTimeout("unix", socket, dialTimeout)
	if err != nil {
		return nil, fmt.Errorf("connecting to the holder: %w", err)
	}
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("connecting to the holder: %s is no unix socket", socket)
	}
	if err := checkPeer(uc); err != nil {
		uc.Close()
		return nil, fmt.Errorf("refusing the holder at %s: %w", socket, err)
	}
	c := &Client{
		conn: uc, pushes: make(chan Push), waiting: map[int64]chan reply{},
		closed: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	go c.receive()
	go c.deliver()
	if _, err := c.call(request{V: Version, Req: reqHello, Role: role}); err != nil {
		c.Close()
		return nil, fmt.Errorf("greeting the holder: %w", err)
	}
	return c, nil
}

// checkPeer fails unless the other end runs under our uid.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("asking who is at the other end: %w", credErr)
	}
	if uid := syscall.Geteuid(); int(cred.Uid) != uid {
		return fmt.Errorf("the other end runs under uid %d, not %d", cred.Uid, uid)
	}
	return nil
}

// call sends one request and waits for its reply.
func (c *Client) call(r request) (reply, error) {
	ch := make(chan reply, 1)
	c.mu.Lock()
	if c.lost {
		c.mu.Unlock()
		return reply{}, ErrLost
	}
	c.nextID++
	r.ID = c.nextID
	c.waiting[r.ID] = ch
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, r.ID)
		c.mu.Unlock()
	}()

	b, err := json.Marshal(r)
	if err != nil {
		return reply{}, fmt.Errorf("encoding a %s request: %w", r.Req, err)
	}
	c.writeMu.Lock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(replyTimeout))
	_, err = c.conn.Write(append(b, '\n'))
	c.writeMu.Unlock()
	if err != nil {
		return reply{}, fmt.Errorf("sending %s to the holder: %w", r.Req, errors.Join(ErrLost, err))
	}
	timer := time.NewTimer(replyTimeout)
	defer timer.Stop()
	select {
	case rep, ok := <-ch:
		if !ok {
			return reply{}, ErrLost
		}
		if rep.Error != "" {
			return rep, errors.New(rep.Error)
		}
		return rep, nil
	case <-timer.C:
		return reply{}, fmt.Errorf("the holder did not answer a %s request within %s", r.Req, replyTimeout)
	}
}

// incoming is a reply or a push.
type incoming struct {
	reply
	push
}

func (c *Client) receive() {
	in := bufio.NewReaderSize(c.conn, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		var m incoming
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		if m.Push != "" {
			c.queue(Push{Kind: m.Push, Offset: m.push.Offset, Written: m.Written, Gap: m.Gap, Exit: m.Exit, Saved: m.Saved, Guard: m.Guard, Note: m.Note})
			continue
		}
		c.mu.Lock()
		ch := c.waiting[m.ID]
		delete(c.waiting, m.ID)
		c.mu.Unlock()
		if ch != nil {
			ch <- m.reply
		}
	}
	c.mu.Lock()
	c.lost = true
	for id, ch := range c.waiting {
		delete(c.waiting, id)
		close(ch)
	}
	c.mu.Unlock()
	c.shut()
}

// queue keeps a push until the user takes it; the receiver must not wait for
// that, since replies come the same way.
func (c *Client) queue(p Push) {
	c.pushMu.Lock()
	if n := len(c.pending); p.Kind == PushGrew && n > 0 && c.pending[n-1].Kind == PushGrew {
		c.pending[n-1] = p
	} else {
		c.pending = append(c.pending, p)
	}
	c.pushMu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// deliver hands the pushes over and closes the channel after the last one.
func (c *Client) deliver() {
	defer close(c.pushes)
	for {
		c.pushMu.Lock()
		var p Push
		have := len(c.pending) > 0
		if have {
			p = c.pending[0]
			c.pending = c.pending[1:]
		}
		c.pushMu.Unlock()
		if have {
			select {
			case c.pushes <- p:
			case <-c.closed:
				// A lost connection still delivers what has come, for a reader
				// that is on its way.
				select {
				case c.pushes <- p:
				case <-time.After(time.Second):
					return
				}
			}
			continue
		}
		select {
		case <-c.wake:
		case <-c.closed:
			c.pushMu.Lock()
			rest := len(c.pending)
			c.pushMu.Unlock()
			if rest == 0 {
				return
			}
		}
	}
}

func (c *Client) shut() {
	c.closing.Do(func() { close(c.closed) })
	c.conn.Close()
}

// Pushes returns the pushes. The channel is closed when the connection is lost
// or closed. Consecutive PushGrew not taken in time are merged into the newest.
func (c *Client) Pushes() <-chan Push { return c.pushes }

// Stdin types p on the command's terminal. It is an error when there is none,
// when a newer client types, or when the command has left more than 1 MiB
// unread.
func (c *Client) Stdin(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), stdinChunk)
		if _, err := c.call(request{Req: reqStdin, B64: p[:n]}); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// Resize sets the size of the command's terminal.
func (c *Client) Resize(rows, cols uint16) error {
	_, err := c.call(request{Req: reqResize, Rows: rows, Cols: cols})
	return err
}

// Signal sends the named signal ("INT" or "SIGINT") to ToForeground, ToChild or
// ToTree.
func (c *Client) Signal(name, to string) error {
	_, err := c.call(request{Req: reqSignal, Name: name, To: to})
	return err
}

// Stop begins the stop order with the named signal, or shortens the one under
// way. A negative grace is the holder's default. Where the command has ended and
// its descendants are waited for (Spec.AwaitTree), they get SIGTERM instead.
func (c *Client) Stop(signal string, grace time.Duration) error {
	r := request{Req: reqStop, Signal: signal}
	if grace >= 0 {
		s := grace.Seconds()
		r.GraceS = &s
	}
	_, err := c.call(r)
	return err
}

// Floors tells the memory guard the phase of the attempt, the GPU memory in use
// and new options, each where f gives it. GPU memory is in nobody's RSS, so
// without these figures the guard takes all of it for the tree's.
func (c *Client) Floors(f Floors) error {
	_, err := c.call(request{Req: reqFloors, Floors: &f})
	return err
}

// Container opens the way to end a container: from then on SIGKILL to the tree
// ends it too, and its processes count as the tree's. endpoint and id are what
// killer.Open takes.
func (c *Client) Container(endpoint, id string) error {
	_, err := c.call(request{Req: reqContainer, Endpoint: endpoint, Container: id})
	return err
}

// Pause stops the whole tree with SIGSTOP. Where one process cannot be stopped it is an
// error that names it, and the others have been woken again.
func (c *Client) Pause() error {
	_, err := c.call(request{Req: reqPause})
	return err
}

// PauseFor is Pause for a supervisor: the holder continues the tree by itself when limit
// is over, and some seconds after the last supervisor has gone.
func (c *Client) PauseFor(limit time.Duration) error {
	s := limit.Seconds()
	_, err := c.call(request{Req: reqPause, LimitS: &s})
	return err
}

// Continue undoes Pause and PauseFor. What was stopped before the pause stays so.
func (c *Client) Continue() error {
	_, err := c.call(request{Req: reqContinue})
	return err
}

// Read returns output from memory, beginning at logical offset from or, where
// that is no longer there, at the oldest byte in memory: off is where data
// begins. At least the last 1 MiB is there, whatever the disk does. data is
// empty at the end, and at most 128 KiB: call again for more.
func (c *Client) Read(from int64) (off int64, data []byte, err error) {
	rep, err := c.call(request{Req: reqRead, From: from})
	return rep.Off, rep.B64, err
}

// Status returns the holder's state.
func (c *Client) Status() (Status, error) {
	rep, err := c.call(request{Req: reqStatus})
	if err != nil {
		return Status{}, err
	}
	if rep.Status == nil {
		return Status{}, errors.New("the holder's status reply is empty")
	}
	return *rep.Status, nil
}

// Goodbye takes leave, so that a holder about to end does not wait for us, and
// closes the connection.
func (c *Client) Goodbye() error {
	_, err := c.call(request{Req: reqGoodbye})
	return errors.Join(err, c.Close())
}

// Close closes the connection. The command goes on.
func (c *Client) Close() error {
	c.shut()
	return nil
}
