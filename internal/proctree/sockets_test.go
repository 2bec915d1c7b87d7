package proctree

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// receiver starts a process that connects to addr, says so with a line, and then reads
// what comes.
func receiver(t *testing.T, addr string) (Proc, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skipf("no listening on %s: %v", addr, err)
	}
	defer l.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestReceiverProcess$")
	cmd.Env = append(os.Environ(), "PROCTREE_CONNECT="+l.Addr().String())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "connected\n" {
		t.Fatalf("%q, %v", line, err)
	}
	p, ok := Read(cmd.Process.Pid)
	if !ok {
		t.Fatal("the process is gone")
	}
	return p, c
}

// TestReceiverProcess is the process of the tests below and no test of its own.
func TestReceiverProcess(t *testing.T) {
	addr := os.Getenv("PROCTREE_CONNECT")
	if addr == "" {
		return // not the process
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("connected\n")
	b := make([]byte, 1)
	for {
		if _, err := c.Read(b); err != nil {
			return
		}
		_, _ = c.Write(b) // to be waited for
	}
}

// TestConnections: each byte over a connection of the tree counts, and what passes
// between two of its processes is told apart.
func TestConnections(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(strings.Trim(addr[:4], "["), func(t *testing.T) {
			t.Parallel()
			p, c := receiver(t, addr)
			var s, both, beside SocketAccount
			defer s.Close()
			defer both.Close()
			defer beside.Close()
			self, _ := Read(os.Getpid())
			read := func(acc *SocketAccount, procs ...Proc) Carried {
				t.Helper()
				got, err := acc.Read(procs, nil)
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			first := read(&s, p)
			if first.OutB == 0 || first.InnerB != 0 {
				t.Errorf("a new connection: %+v", first)
			}
			if again := read(&s, p); again.OutB != first.OutB {
				t.Errorf("nothing was sent: %+v then %+v", first, again)
			}
			apart, err := beside.Read(nil, []Proc{p})
			if err != nil || apart.OutB != 0 || apart.BesideB == 0 {
				t.Errorf("of a process beside: %+v, %v", apart, err)
			}
			before := read(&both, self, p).InnerB
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			// One byte there, and one back: that one's acknowledgement may be on its way.
			if got := read(&s, p).OutB - first.OutB; got < 1 || got > 2 {
				t.Errorf("a byte was sent and answered: %d", got)
			}
			if got := read(&both, self, p).InnerB; got <= before {
				t.Errorf("between the tree's own processes: %d, then %d", before, got)
			}
			if got, err := beside.Read(nil, []Proc{p}); err != nil || got.OutB != 0 || got.BesideB <= apart.BesideB {
				t.Errorf("of a process beside: %+v, then %+v, %v", apart, got, err)
			}
			last := read(&s, p).OutB
			if got := read(&s).OutB; got != last+1 {
				t.Errorf("a connection that is gone counts for %d", got-last)
			}
		})
	}
}

// TestOtherSockets: a socket to the network that has no figures is told.
func TestOtherSockets(t *testing.T) {
	t.Parallel()
	var s SocketAccount
	defer s.Close()
	self, _ := Read(os.Getpid())
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if got, err := s.Read([]Proc{self}, nil); err != nil || !got.Rest {
		t.Errorf("with a UDP socket: %+v, %v", got, err)
	}
}

// TestAnswersOfGarbage: what is no answer is an error and no panic.
func TestAnswersOfGarbage(t *testing.T) {
	t.Parallel()
	for _, size := range []uint32{0, 15, 17, 1 << 31} {
		b := make([]byte, 16)
		b[0], b[1], b[2], b[3] = byte(size), byte(size>>8), byte(size>>16), byte(size>>24)
		if _, err := answers(b, 1, true, func(conn) { t.Error("a connection") }); err == nil {
			t.Errorf("size %d passes", size)
		}
	}
}
