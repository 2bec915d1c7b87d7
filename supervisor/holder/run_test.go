package holder

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestOutputIsKeptByteForByte(t *testing.T) {
	t.Parallel()
	for _, pty := range []bool{true, false} {
		t.Run(fmt.Sprintf("pty=%v", pty), func(t *testing.T) {
			t.Parallel()
			// Every byte value, CR bars, colours, no newline at the end.
			want := []byte("10%\r50%\r100%\n\x1b[31mred\x1b[0m\n")
			for i := range 256 {
				want = append(want, byte(i))
			}
			want = append(want, "no newline at the end"...)
			dir := shortDir(t)
			file := filepath.Join(dir, "bytes")
			if err := os.WriteFile(file, want, 0o600); err != nil {
				t.Fatal(err)
			}
			spec := baseSpec(dir, "cat", file)
			if spec.PTY = pty; !pty {
				spec.Stdin = StdinNull
			}
			a := start(t, spec, nil)
			e := a.end()
			if got := a.log(); !bytes.Equal(got, want) {
				t.Errorf("output.log = %q, want %q", got, want)
			}
			if e.Offset != int64(len(want)) || e.Written != e.Offset || e.GapBytes != 0 || !e.Drained {
				t.Errorf("exit = %+v", e)
			}
			if e.Status() != 0 || !e.Reaped || e.RunID != spec.RunID || e.T == "" || e.Boot == 0 {
				t.Errorf("exit = %+v", e)
			}
			if st, err := os.Stat(filepath.Join(dir, logName)); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("output.log: %v %v", st.Mode(), err)
			}
			if _, err := os.Lstat(spec.Socket); !notExist(err) {
				t.Errorf("the socket is still there: %v", err)
			}
		})
	}
}

func TestMuchOutputIsUnharmed(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	dir := shortDir(t)
	spec := baseSpec(dir, self(t), "fake-flood", strconv.Itoa(size))
	spec.PTY, spec.Stdin = false, StdinNull
	a := start(t, spec, nil)
	e := a.end()
	checkFlood(t, a, e, size)
}

func TestMuchOutputThroughPTY(t *testing.T) {
	t.Parallel()
	const size = 20 << 20
	spec := baseSpec(shortDir(t), self(t), "fake-flood", strconv.Itoa(size))
	a := start(t, spec, nil)
	e := a.end()
	checkFlood(t, a, e, size)
}

func checkFlood(t *testing.T, a *attempt, e Exit, size int64) {
	t.Helper()
	gaps, err := ReadGaps(a.dir)
	if err != nil || len(gaps) > 0 {
		t.Fatalf("gaps %+v, %v", gaps, err)
	}
	want := sha256.New()
	for left := size; left > 0; {
		b := floodBlock()
		b = b[:min(left, int64(len(b)))]
		want.Write(b)
		left -= int64(len(b))
	}
	f, err := os.Open(filepath.Join(a.dir, logName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := sha256.New()
	n, err := io.Copy(got, f)
	if err != nil || n != size || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("%d bytes of %d, %v, same hash %v", n, size, err, bytes.Equal(got.Sum(nil), want.Sum(nil)))
	}
	if e.Offset != size || e.Written != size {
		t.Errorf("offset %d written %d, want %d", e.Offset, e.Written, size)
	}
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		script string
		status int
		signal string
	}{
		"success":   {"exit 0", 0, ""},
		"code":      {"exit 3", 3, ""},
		"killed":    {"kill -9 $$", 137, "SIGKILL"},
		"aborted":   {"ulimit -c 0; kill -ABRT $$", 134, "SIGABRT"},
		"high code": {"exit 255", 255, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, e := runSh(t, tc.script, nil)
			if e.Status() != tc.status || e.Signal != tc.signal {
				t.Errorf("status %d signal %q, want %d %q", e.Status(), e.Signal, tc.status, tc.signal)
			}
			if (tc.signal == "") != (e.Code >= 0) {
				t.Errorf("code %d with signal %q", e.Code, e.Signal)
			}
			if e.ChildPID != a.st.ChildPID || e.ChildStart != a.st.ChildStart || e.ChildStart == 0 {
				t.Errorf("exit %d/%d, started %d/%d", e.ChildPID, e.ChildStart, a.st.ChildPID, a.st.ChildStart)
			}
		})
	}
}

func TestExitIsAbsentWhileRunning(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), "sh", "-c", "echo up; read x"), nil)
	a.says("up")
	if _, err := ReadExit(a.dir); !notExist(err) {
		t.Errorf("ReadExit = %v, want os.ErrNotExist", err)
	}
	c := a.dial("test")
	if err := c.Stdin([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	a.end()
}

func TestRusage(t *testing.T) {
	t.Parallel()
	_, e := runSh(t, "python3 -c 'b=bytearray(64<<20); x=sum(range(3000000))'", nil)
	if e.Rusage.MaxRSSKiB < 64<<10 || e.Rusage.UserS <= 0 {
		t.Errorf("rusage %+v", e.Rusage)
	}
}

func TestTerminalIsWhatTheSpecSays(t *testing.T) {
	t.Parallel()
	a, _ := runSh(t, "stty -a; tty; test -t 0 && test -t 1 && test -t 2 && echo all; echo $MARK$HOME; pwd; ps -o sid= -p $$", nil)
	out := string(a.log())
	for _, want := range []string{"rows 40; columns 120", "-ixon", "-opost", " echo ", " icanon ", "isig ", "/dev/pts/", "all\n", "\n1\n", "\n/\n", strconv.Itoa(a.st.ChildPID)} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %q", want, out)
		}
	}
}

func TestStdinInherit(t *testing.T) {
	t.Parallel()
	for _, pty := range []bool{true, false} {
		t.Run(fmt.Sprintf("pty=%v", pty), func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			spec := baseSpec(shortDir(t), "sh", "-c", "cat; test -t 1 && echo terminal; (: </dev/tty) 2>/dev/null && echo controlling; exit 0")
			spec.PTY, spec.Stdin = pty, StdinInherit
			a := start(t, spec, r)
			r.Close()
			long := strings.Repeat("x", 10000) // beyond the line limit of a terminal
			fmt.Fprintln(w, long)
			// The end of file must arrive: neither holder nor test keeps an end.
			w.Close()
			a.end()
			want := long + "\n"
			if pty {
				want += "terminal\ncontrolling\n"
			}
			if got := string(a.log()); got != want {
				t.Errorf("output %q, want %q", got, want)
			}
		})
	}
}

func TestStdinNull(t *testing.T) {
	t.Parallel()
	a, _ := runSh(t, "readlink /proc/self/fd/0; cat", func(s *Spec) { s.Stdin = StdinNull })
	if got := string(a.log()); got != "/dev/null\n" {
		t.Errorf("output %q", got)
	}
}

func TestArgumentsNeedNotBeText(t *testing.T) {
	t.Parallel()
	odd := "a\xff\xfe\x01b"
	spec := baseSpec(shortDir(t), "sh", "-c", `printf %s "$1$ODD"`, "sh", odd)
	spec.Env = append(spec.Env, "ODD="+odd)
	a := start(t, spec, nil)
	a.end()
	if got := string(a.log()); got != odd+odd {
		t.Errorf("output %q, want %q", got, odd+odd)
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	write := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	tests := map[string]struct {
		change func(*Spec)
		status int
		errno  syscall.Errno
		text   string
	}{
		"missing":         {func(s *Spec) { s.Path = dir + "/nothing" }, 127, unix.ENOENT, "there is no such file"},
		"not executable":  {func(s *Spec) { s.Path = write("plain", "x", 0o600) }, 126, unix.EACCES, "chmod +x"},
		"directory":       {func(s *Spec) { s.Path = dir }, 126, unix.EACCES, "is a directory"},
		"no format":       {func(s *Spec) { s.Path = write("noformat", "echo x\n", 0o700) }, 126, unix.ENOEXEC, "#! line"},
		"bad interpreter": {func(s *Spec) { s.Path = write("bad", "#!/no/such/sh -e\n", 0o700) }, 126, unix.ENOENT, `"/no/such/sh"`},
		"bad cwd":         {func(s *Spec) { s.Cwd = dir + "/nowhere" }, 125, unix.ENOENT, "nowhere"},
		"bad cgroup":      {func(s *Spec) { s.Cgroup = dir + "/nogroup" }, 125, unix.ENOENT, "nogroup"},
		"bad stdin":       {func(s *Spec) { s.Stdin = "x" }, 125, 0, "stdin"},
		"bad directory":   {func(s *Spec) { s.Dir = dir + "/absent" }, 125, unix.ENOENT, "attempt directory"},
		"newer version":   {func(s *Spec) { s.V = 99 }, 125, 0, "version"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := baseSpec(shortDir(t), "true")
			tc.change(&spec)
			_, _, err := Start(self(t), spec, nil)
			var se *StartError
			if !errors.As(err, &se) {
				t.Fatalf("err = %v, want a *StartError", err)
			}
			if se.Status() != tc.status || se.Errno != tc.errno || !strings.Contains(se.Error(), tc.text) {
				t.Errorf("status %d errno %v %q, want %d %v ...%s...", se.Status(), se.Errno, se, tc.status, tc.errno, tc.text)
			}
			if tc.errno != 0 && !errors.Is(err, tc.errno) {
				t.Errorf("errors.Is(%v, %v) is false", err, tc.errno)
			}
			if _, err := os.Lstat(spec.Socket); err == nil {
				t.Error("the socket is left behind")
			}
		})
	}
}

func TestAnOldAttemptIsNotOverwritten(t *testing.T) {
	t.Parallel()
	a, _ := runSh(t, "echo first", nil)
	_, _, err := Start(self(t), baseSpec(a.dir, "sh", "-c", "echo second"), nil)
	var se *StartError
	if !errors.As(err, &se) || se.Stage != StageDir {
		t.Fatalf("err = %v", err)
	}
	if got := string(a.log()); got != "first\n" {
		t.Errorf("output %q", got)
	}
}

func TestMissingHolderBinary(t *testing.T) {
	t.Parallel()
	_, _, err := Start("/no/such/binary", baseSpec(shortDir(t), "true"), nil)
	var se *StartError
	if !errors.As(err, &se) || se.Status() != 125 || se.Stage != StageHolder {
		t.Fatalf("err = %v", err)
	}
	// A program that is no holder answers nothing.
	_, _, err = Start("/bin/true", baseSpec(shortDir(t), "true"), nil)
	if !errors.As(err, &se) || se.Status() != 125 {
		t.Fatalf("err = %v", err)
	}
}

func TestSocketProblemsDoNotStopTheRun(t *testing.T) {
	t.Parallel()
	spec := baseSpec(shortDir(t), "sh", "-c", "echo ran")
	spec.Socket = filepath.Join(spec.Dir, strings.Repeat("long", 40))
	a := start(t, spec, nil)
	if a.st.SocketErr == "" {
		t.Error("no word about the socket")
	}
	a.end()
	if got := string(a.log()); got != "ran\n" {
		t.Errorf("output %q", got)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	t.Parallel()
	spec := baseSpec(shortDir(t), "sh", "-c", "read x")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: spec.Socket}); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd) // as a killed holder leaves it
	a := start(t, spec, nil)
	if a.st.SocketErr != "" {
		t.Fatal(a.st.SocketErr)
	}
	st, err := os.Lstat(spec.Socket)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v", st.Mode(), err)
	}
	if err := a.dial("test").Stdin([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	a.end()
}

// What the command sees of its process must be what it would see without us.
func TestTheCommandFindsACleanProcess(t *testing.T) {
	t.Parallel()
	// Not /proc/self of a shell's child: the command itself.
	a, _ := runSh(t, "", func(s *Spec) {
		s.Path, s.Argv = "/bin/cat", []string{"cat", "/proc/self/status"}
	})
	out := string(a.log())
	for _, field := range []string{"SigIgn:", "SigBlk:", "SigCgt:", "SigPnd:"} {
		if v := statusField(out, field); strings.Trim(v, "0") != "" || v == "" {
			t.Errorf("%s %q", field, v)
		}
	}
	a, _ = runSh(t, "", func(s *Spec) {
		s.Path, s.Argv = "/bin/ls", []string{"ls", "/proc/self/fd"}
	})
	// ls itself opens the directory as 3.
	if got := strings.Fields(string(a.log())); strings.Join(got, " ") != "0 1 2 3" {
		t.Errorf("descriptors %q", got)
	}
}

func statusField(status, name string) string {
	for _, l := range strings.Split(status, "\n") {
		if v, ok := strings.CutPrefix(l, name); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Under nohup, with signals blocked, with stray descriptors, a low soft limit
// and a umask: the supervisor's caller as it may be.
func TestTheCallersOdditiesDoNotReachTheCommand(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	// In programs that the shell starts, since a shell blocks signals while it
	// waits; ls has one descriptor of its own.
	script := `while [ ! -e ` + dir + `/go ]; do sleep 0.01; done; cat /proc/self/status; echo fds; ls -1 /proc/self/fd; ulimit -Sn; umask`
	shell := `ulimit -Sn 200; umask 027; exec 4</etc/passwd 7</etc/passwd; trap '' TERM TSTP CHLD PIPE; exec nohup "$0" fake-supervisor "$1" "$2" 2>/dev/null`
	cmd := exec.Command("python3", "-c", `import signal,os,sys
signal.pthread_sigmask(signal.SIG_BLOCK,[signal.SIGUSR1,signal.SIGTERM,signal.SIGCHLD])
os.execvp("sh",["sh","-c"]+sys.argv[1:])`, shell, self(t), dir, script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	if fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)); len(fds) == 0 {
		t.Error("the holder has no descriptors to look at")
	} else {
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); to == "/etc/passwd" {
				t.Errorf("the holder keeps %s", fd)
			}
		}
	}
	a := &attempt{t: t, dir: dir}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the attempt is over", func() bool { _, err := ReadExit(dir); return err == nil })
	got := string(a.log())
	for _, field := range []string{"SigIgn:", "SigBlk:"} {
		if v := statusField(got, field); strings.Trim(v, "0") != "" || v == "" {
			t.Errorf("%s %q", field, v)
		}
	}
	for _, want := range []string{"fds\n0\n1\n2\n3\n200\n0027\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
}

func TestOOMScoreOnlyRises(t *testing.T) {
	t.Parallel()
	a, _ := runSh(t, "cat /proc/self/oom_score_adj", func(s *Spec) { s.OOMScoreAdj = 500 })
	if got := string(a.log()); got != "500\n" {
		t.Errorf("oom_score_adj %q", got)
	}
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	a, _ = runSh(t, "cat /proc/self/oom_score_adj", func(s *Spec) { s.OOMScoreAdj = -1 })
	if got := string(a.log()); got != string(b) {
		t.Errorf("oom_score_adj %q, inherited %q", got, b)
	}
}

func TestCgroupIsJoined(t *testing.T) {
	t.Parallel()
	for name, base := range map[string]string{"v1": "/sys/fs/cgroup/memory", "v2": "/sys/fs/cgroup/unified", "v2 only": "/sys/fs/cgroup"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := os.Stat(base + "/cgroup.procs"); err != nil {
				t.Skipf("this machine has no cgroup hierarchy at %s", base)
			}
			group := filepath.Join(base, fmt.Sprintf("holdertest-%d", os.Getpid()))
			if err := os.Mkdir(group, 0o755); err != nil {
				t.Skipf("a cgroup needs root: %v", err)
			}
			defer func() {
				if err := os.Remove(group); err != nil {
					t.Errorf("the cgroup is not empty: %v", err)
				}
			}()
			spec := baseSpec(shortDir(t), "sh", "-c", "trap '' TERM INT; cat /proc/self/cgroup; sleep 1000 & echo up; wait; wait")
			spec.Cgroup = group
			a := start(t, spec, nil)
			a.says("up")
			if !strings.Contains(string(a.log()), "/"+filepath.Base(group)+"\n") {
				t.Errorf("cgroups of the command: %s", a.log())
			}
			procs, err := os.ReadFile(group + "/cgroup.procs")
			if err != nil || strings.Contains(string(procs), strconv.Itoa(a.st.HolderPID)) {
				t.Errorf("holder %d in %q, %v", a.st.HolderPID, procs, err)
			}
			if err := a.dial("test").Stop("KILL", 0); err != nil {
				t.Fatal(err)
			}
			if e := a.end(); e.Signal != "SIGKILL" {
				t.Errorf("ended by %q", e.Signal)
			}
			until(t, "the cgroup is empty", func() bool {
				b, err := os.ReadFile(group + "/cgroup.procs")
				return err == nil && len(b) == 0
			})
		})
	}
}

func TestTheHolderOutlivesItsSupervisor(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	cmd := exec.Command(self(t), "fake-supervisor", dir, "echo before; while [ ! -e "+dir+"/go ]; do sleep 0.01; done; echo after; exit 5")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	a := &attempt{t: t, dir: dir}
	a.says("before")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGTSTP, unix.SIGPIPE, unix.SIGUSR1} {
		if err := unix.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	// Another supervisor finds the same attempt.
	c := a.dial(RoleSupervisor)
	st, err := c.Status()
	if err != nil || st.HolderPID != pid || st.Exited {
		t.Fatalf("status %+v, %v", st, err)
	}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the attempt is over", func() bool { _, err := ReadExit(dir); return err == nil })
	e, _ := ReadExit(dir)
	if got := string(a.log()); got != "before\nafter\n" || e.Status() != 5 {
		t.Errorf("output %q, status %d", got, e.Status())
	}
	until(t, "the holder is gone", func() bool { return !alive(pid) })
}

func TestCloseStdoutDoesNotEndTheAttempt(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	for _, pty := range []bool{true, false} {
		spec := baseSpec(shortDir(t), "sh", "-c", "echo x; exec <&- >&- 2>&-; while [ ! -e "+dir+"/go ]; do sleep 0.01; done; exit 4")
		if spec.PTY = pty; !pty {
			spec.Stdin = StdinNull
		}
		a := start(t, spec, nil)
		a.says("x")
		st, err := a.dial("test").Status()
		if err != nil || st.Exited {
			t.Errorf("status %+v, %v", st, err)
		}
		if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if e := a.end(); e.Status() != 4 || !e.Drained {
			t.Errorf("exit %+v", e)
		}
		os.Remove(dir + "/go")
	}
}

// Closing the terminal is not the end of the output: /dev/tty opens it again.
func TestTerminalCanBeOpenedAgain(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	a := start(t, baseSpec(shortDir(t), "sh", "-c", "echo x; exec <&- >&- 2>&-; while [ ! -e "+dir+"/go ]; do sleep 0.01; done; exec >/dev/tty; "+self(t)+" fake-flood 1000000"), nil)
	a.says("x")
	c := a.dial("test")
	// Nobody but the holder has it open now.
	until(t, "the command has closed the terminal", func() bool {
		_, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/1", a.st.ChildPID))
		return err != nil
	})
	if _, err := c.Status(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if e := a.end(); e.Status() != 0 || e.Offset != 1000002 || len(a.log()) != 1000002 {
		t.Errorf("exit %+v", e)
	}
}

// A main thread that has ended leaves a zombie leader while others compute.
func TestZombieLeaderWithRunningThreads(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	script := `import threading,os,time,ctypes,sys
def work():
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    os.write(1,b"worked\n"); os._exit(9)
threading.Thread(target=work).start()
os.write(1,b"leaving\n")
ctypes.CDLL(None).pthread_exit(None)`
	a := start(t, baseSpec(shortDir(t), "python3", "-c", script, dir+"/go"), nil)
	a.says("leaving")
	until(t, "the leader is a zombie", func() bool { return !alive(a.st.ChildPID) })
	if _, err := ReadExit(a.dir); !notExist(err) {
		t.Errorf("the attempt is over while a thread works: %v", err)
	}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if e := a.end(); e.Status() != 9 || !strings.Contains(string(a.log()), "worked") {
		t.Errorf("status %d, output %q", e.Status(), a.log())
	}
}

func TestDrainEndsThoughAStrangerHoldsTheTerminal(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), "sh", "-c", "tty; read x; echo last"), nil)
	a.says("/dev/pts/")
	tty := strings.TrimSpace(string(a.log()))
	f, err := os.OpenFile(tty, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := a.dial("test").Stdin([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	e := a.end()
	if e.Drained || !strings.HasSuffix(string(a.log()), "last\n") || time.Since(began) > 10*time.Second {
		t.Errorf("drained %v, output %q after %s", e.Drained, a.log(), time.Since(began))
	}
}
