// Package killer ends a container when memory runs out: everything is made ready
// beforehand, so that the kill itself is one system call and allocates nothing.
// It is a leaf that the holder can use.
package killer

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/lazyre"
	"sparkrun/internal/proctree"
)

// checkEvery is how often the connections and the list of processes are looked
// after.
const checkEvery = time.Second

// Killer is a kill that has been got ready. Its methods may be called from
// several goroutines.
type Killer struct {
	mu      sync.Mutex
	addr    *unix.SockaddrUnix
	request []byte
	// fds are two open connections to the engine, -1 for none: the second is
	// for the case that the first was closed since it was last looked at.
	fds [2]int
	// used is the connection the request went out on, -1 for none.
	used int
	// procs are the processes to signal, where there is no engine to ask.
	procs  []target
	root   proctree.Proc
	closed bool
	stop   chan struct{}
	done   chan struct{}
}

type target struct {
	fd    int
	pid   int
	start uint64
}

// maxProcs is how many processes are held open for a kill without an engine.
const maxProcs = 256

var validID = lazyre.New(`^[0-9a-f]{12,64}$`)

// Open gets a kill ready. endpoint is the engine's unix socket; what is the
// container's id, "exec/ID" for an exec that does the killing, or
// "pid/PID/START" for a process and all below it (engine.Container.Target
// returns one of these). Close it when the attempt is over.
func Open(endpoint, what string) (*Killer, error) {
	k := &Killer{fds: [2]int{-1, -1}, used: -1, stop: make(chan struct{}), done: make(chan struct{})}
	if rest, ok := strings.CutPrefix(what, "pid/"); ok {
		if err := k.openProcs(rest); err != nil {
			return nil, err
		}
	} else if err := k.openEngine(endpoint, what); err != nil {
		return nil, err
	}
	go k.look()
	return k, nil
}

func (k *Killer) openProcs(rest string) error {
	pidText, startText, _ := strings.Cut(rest, "/")
	pid, err1 := strconv.Atoi(pidText)
	start, err2 := strconv.ParseUint(startText, 10, 64)
	if err := errors.Join(err1, err2); err != nil || pid <= 1 {
		return fmt.Errorf("%q names no process to end", rest)
	}
	k.root = proctree.Proc{PID: pid, Start: start}
	k.procs = make([]target, 0, maxProcs)
	k.refresh()
	if len(k.procs) == 0 {
		return fmt.Errorf("process %d of the container is gone or may not be signalled", pid)
	}
	return nil
}

func (k *Killer) openEngine(endpoint, what string) error {
	id, exec := strings.CutPrefix(what, "exec/")
	if !validID.MatchString(id) {
		return errors.New("no container id was given")
	}
	if endpoint == "" || len(endpoint) > 107 {
		return fmt.Errorf("the engine's socket %q cannot be connected to: 1 to 107 bytes", endpoint)
	}
	k.addr = &unix.SockaddrUnix{Name: endpoint}
	path, body := "/containers/"+id+"/kill?signal=KILL", ""
	if exec {
		path, body = "/exec/"+id+"/start", `{"Detach":true,"Tty":false}`
	}
	k.request = []byte("POST " + path + " HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\nContent-Length: " +
		strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	err := k.connect(0)
	if err != nil {
		return fmt.Errorf("connecting to the engine on %s: %w", endpoint, err)
	}
	_ = k.connect(1)
	return nil
}

// connect opens connection i. It does not wait: an engine that has no room for
// a connection refuses with EAGAIN.
func (k *Killer) connect(i int) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, k.addr); err != nil {
		_ = unix.Close(fd)
		return err
	}
	k.fds[i] = fd
	return nil
}

// Kill sends what was made ready and does not wait for an answer. It may be
// called again.
func (k *Killer) Kill() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return errClosed
	}
	if k.addr == nil {
		return k.signal()
	}
	err := errNoConnection
	for i := range k.fds {
		if k.fds[i] < 0 {
			continue
		}
		if err = k.send(k.fds[i]); err == nil {
			k.used = i
			return nil
		}
	}
	// Both are gone since they were last looked at: an engine that was started
	// again.
	_ = unix.Close(k.fds[0])
	k.fds[0] = -1
	if e := k.connect(0); e != nil {
		return err
	}
	k.used = 0
	return k.send(k.fds[0])
}

var (
	errClosed       = errors.New("the kill was closed")
	errNoConnection = errors.New("no connection to the engine")
	errShort        = errors.New("the engine does not take the request")
	errNobody       = errors.New("no process of the container could be signalled")
)

// send writes the request whole: it is some hundred bytes, and an idle unix
// socket has room for that.
func (k *Killer) send(fd int) error {
	for {
		n, err := unix.Write(fd, k.request)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n != len(k.request):
			return errShort
		}
		return nil
	}
}

// signal kills the processes held open. With the first process of a pid
// namespace the kernel ends all others in it.
func (k *Killer) signal() error {
	err := errNobody
	for _, t := range k.procs {
		e := unix.PidfdSendSignal(t.fd, unix.SIGKILL, nil, 0)
		if e == nil || e == unix.ESRCH {
			err = nil
		}
	}
	return err
}

// Answer reads the engine's answer to a Kill: its HTTP status. It waits as long
// as it is told. A kill by process has no answer and returns 0.
func (k *Killer) Answer(limit time.Duration) (int, error) {
	k.mu.Lock()
	if k.addr == nil {
		k.mu.Unlock()
		return 0, nil
	}
	fd := -1
	if k.used >= 0 {
		// The connection is the reader's now; another takes its place.
		fd, k.fds[k.used] = k.fds[k.used], -1
		k.used = -1
	}
	k.mu.Unlock()
	if fd < 0 {
		return 0, errNoConnection
	}
	defer unix.Close(fd)
	deadline := time.Now().Add(limit)
	buf := make([]byte, 0, 512)
	for {
		if line, _, ok := bytes.Cut(buf, []byte("\r\n")); ok {
			f := bytes.Fields(line)
			if len(f) >= 2 && bytes.HasPrefix(f[0], []byte("HTTP/1.")) {
				if code, err := strconv.Atoi(string(f[1])); err == nil {
					return code, nil
				}
			}
			return 0, errors.New("the engine's answer is no HTTP")
		}
		if len(buf) == cap(buf) {
			return 0, errors.New("the engine's answer is no HTTP")
		}
		left := time.Until(deadline)
		if left <= 0 {
			return 0, errors.New("the engine does not answer to the kill")
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, int(left/time.Millisecond)+1); err != nil && !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("waiting for the engine's answer: %w", err)
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("reading the engine's answer: %w", err)
		case n == 0:
			return 0, errors.New("the engine closed the connection without an answer")
		default:
			buf = buf[:len(buf)+n]
		}
	}
}

// Close lets go of everything. Nothing is killed.
func (k *Killer) Close() error {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return nil
	}
	k.closed = true
	close(k.stop)
	k.mu.Unlock()
	<-k.done
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, fd := range k.fds {
		if fd >= 0 {
			_ = unix.Close(fd)
			k.fds[i] = -1
		}
	}
	for _, t := range k.procs {
		_ = unix.Close(t.fd)
	}
	k.procs = nil
	return nil
}

// look keeps everything ready, off the kill path.
func (k *Killer) look() {
	defer close(k.done)
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-k.stop:
			return
		case <-tick.C:
		}
		if k.addr == nil {
			k.refresh()
			continue
		}
		k.reopen()
	}
}

// reopen replaces connections that the engine has closed.
func (k *Killer) reopen() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, fd := range k.fds {
		if fd >= 0 && i != k.used && hungUp(fd) {
			_ = unix.Close(fd)
			k.fds[i] = -1
		}
		if k.fds[i] < 0 {
			_ = k.connect(i) // next time, then
		}
	}
}

// hungUp says whether the other side has closed a connection. One that talks
// without being asked is of no use either.
func hungUp(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// refresh brings the list of processes up to date: those below the root, each
// held by a descriptor that stays that process.
func (k *Killer) refresh() {
	var now []proctree.Proc
	if p, ok := proctree.Read(k.root.PID); ok && p.Start == k.root.Start {
		now = append([]proctree.Proc{p}, proctree.Walk(p.PID)...)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	kept := k.procs[:0]
	have := map[int]uint64{}
	for _, t := range k.procs {
		// What was re-parented away from the root is kept while it lives.
		if p, ok := proctree.Read(t.pid); !ok || p.Start != t.start {
			_ = unix.Close(t.fd)
			continue
		}
		have[t.pid] = t.start
		kept = append(kept, t)
	}
	k.procs = kept
	for _, p := range now {
		if have[p.PID] == p.Start || len(k.procs) == maxProcs {
			continue
		}
		fd, err := unix.PidfdOpen(p.PID, 0)
		if err != nil {
			continue
		}
		again, ok := proctree.Read(p.PID)
		if !ok || again.Start != p.Start || unix.PidfdSendSignal(fd, 0, nil, 0) != nil {
			_ = unix.Close(fd)
			continue
		}
		k.procs = append(k.procs, target{fd: fd, pid: p.PID, start: p.Start})
	}
}
