package hygiene

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is also the processes that a training leaves behind: with ROLE
// set it does what that says, prints "ready" and lives until its stdin ends.
func TestMain(m *testing.M) {
	if role := os.Getenv("ROLE"); role != "" {
		if err := play(role, os.Getenv("WHAT")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func play(role, what string) error {
	switch role {
	case "live":
	case "deaf": // to SIGTERM
		signal.Ignore(unix.SIGTERM)
	case "open":
		f, err := os.Open(what)
		if err != nil {
			return err
		}
		defer f.Close()
	case "map": // and close the descriptor, as torch does
		f, err := os.OpenFile(what, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		f.Close()
		if err != nil {
			return err
		}
		defer func() { b[0] = 1 }()
	case "listen":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		fmt.Println(l.Addr().(*net.TCPAddr).Port)
	case "parent": // of a process without an environment
		cmd := exec.Command("sleep", "600")
		cmd.Env = []string{}
		if err := cmd.Start(); err != nil {
			return err
		}
		fmt.Println(cmd.Process.Pid)
	case "grandparent": // of one, by a process with an environment of its own
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{"ROLE=parent", "PATH=" + os.Getenv("PATH")}
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		child, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			return err
		}
		fmt.Print(child)
	case "segment": // System V
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 1<<20, unix.IPC_CREAT|0o600)
		if err != nil {
			return err
		}
		fmt.Println(id)
	case "clean":
		var o Options
		if err := json.Unmarshal([]byte(what), &o); err != nil {
			return err
		}
		o.Before = Before{shm: map[string]bool{}}
		return json.NewEncoder(os.Stdout).Encode(Clean(context.Background(), o))
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// player is a process that plays a role until the test ends or stop is called;
// said is what it said before it was ready.
type player struct {
	pid  int
	said string
	stop func()
}

func start(t *testing.T, role, what string, env ...string) player {
	t.Helper()
	return begin(t, exec.Command(os.Args[0]), append([]string{"ROLE=" + role, "WHAT=" + what}, env...))
}

func begin(t *testing.T, cmd *exec.Cmd, env []string) player {
	t.Helper()
	cmd.Env = append(os.Environ(), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := player{pid: cmd.Process.Pid}
	stopped := false
	p.stop = func() {
		if !stopped {
			stopped = true
			in.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(p.stop)
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%s: %q, %v", env, p.said, err)
		}
		if line == "ready\n" {
			return p
		}
		p.said += strings.TrimSpace(line)
	}
}

// number is what a player said, as a number.
func (p player) number(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(p.said)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// machine is a root with a /dev/shm of its own, in memory, and with this process
// and those it is told of, which are real ones. Other trainings may run on the
// machine, and they change what is allowed.
func machine(t *testing.T) (root, shm string) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skip("needs a tmpfs on /dev/shm")
	}
	root, err := os.MkdirTemp("/dev/shm", "sparkrun-hygiene-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	shm = filepath.Join(root, "dev/shm")
	for _, err := range []error{os.Chmod(root, 0o755), os.MkdirAll(shm, 0o755), os.Chmod(shm, 0o1777)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	knows(t, root, os.Getpid())
	return root, shm
}

// knows makes a process one of those of a machine.
func knows(t *testing.T, root string, pid int) {
	t.Helper()
	dir := filepath.Join(root, "proc")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self", filepath.Join(dir, "self")); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	name := strconv.Itoa(pid)
	if err := os.Symlink("/proc/"+name, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// entry is an environment entry that no other process has.
func entry(t *testing.T) string {
	return fmt.Sprintf("SPARKRUN_RUN_ID=hygiene-test-%d-%s", os.Getpid(), t.Name())
}

// write makes a file of 8 KiB.
func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
}

// settled waits until a file made from now on is younger than the moment
// returned.
func settled(t *testing.T, dir string) time.Time {
	t.Helper()
	now := time.Now()
	for {
		f, err := os.CreateTemp(dir, "clock")
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		err = unix.Fstat(int(f.Fd()), &st)
		f.Close()
		_ = os.Remove(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if time.Unix(st.Ctim.Unix()).After(now) {
			return now
		}
		time.Sleep(time.Millisecond)
	}
}

// attempt is what Clean is asked for an attempt that begins now.
func attempt(t *testing.T, root string, tree ...int) Options {
	t.Helper()
	o := Options{Before: snapshot(root), UID: os.Getuid(), Entry: entry(t), Root: root, Tree: map[int]string{}}
	for _, pid := range tree {
		o.Tree[pid] = "python3"
	}
	// The names without a pid that these tests use.
	o.Seen = map[string]bool{}
	for _, name := range []string{"psm_00000001", "psm_00000002", "psm_00000003", "psm_00000010", "psm_a1b2c3d4", "sem.mp-x1y2z3", "sem.mp-open", "nccl-AbC123", "nccl-shm-recv-1-2-0-1"} {
		o.Seen[filepath.Join(root, "dev/shm", name)] = true
	}
	o.Start = settled(t, filepath.Join(root, "dev/shm"))
	return o
}

func find(t *testing.T, fs []Finding, kind, what string) Finding {
	t.Helper()
	for _, f := range fs {
		if f.Kind == kind && strings.Contains(f.What, what) {
			return f
		}
	}
	t.Errorf("no finding of %s %q in %+v", kind, what, fs)
	return Finding{}
}

func there(path string) bool { _, err := os.Lstat(path); return err == nil }

// dead is a pid that nobody has: above what the kernel gives out.
const dead = 1<<22 + 77
