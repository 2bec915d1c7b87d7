package supervisor

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// waiting is a system call that a thread is in, as far as it waits for files.
type waiting struct {
	reads bool  // it reads one; else it waits for one of several
	fds   []int // which
}

// has says whether one of the files that are waited for is such a one.
func (w waiting) has(is func(fd int) bool) bool {
	for _, fd := range w.fds {
		if is(fd) {
			return true
		}
	}
	return false
}

// The system calls that wait for files.
const (
	callRead = iota + 1
	callSelect
	callPoll
	callEpoll
)

// fileCalls are their numbers by architecture.
var fileCalls = map[string]map[string]int{
	"amd64": {"0": callRead, "19": callRead, "23": callSelect, "270": callSelect, "7": callPoll, "271": callPoll, "232": callEpoll, "281": callEpoll, "441": callEpoll},
	"arm64": {"63": callRead, "65": callRead, "72": callSelect, "73": callPoll, "22": callEpoll, "441": callEpoll},
}

// waitedFiles says what files a process's main thread waits for, by its folder in /proc.
// known is false where that is not for us to see, as under kernel.yama.ptrace_scope=1.
func waitedFiles(dir string) (w waiting, known bool) {
	b, err := os.ReadFile(dir + "/syscall")
	f := strings.Fields(string(b))
	calls := fileCalls[runtime.GOARCH]
	if err != nil || len(f) == 0 || calls == nil {
		return w, false
	}
	if len(f) < 7 { // it runs
		return w, true
	}
	arg := func(n int) uint64 {
		v, _ := strconv.ParseUint(strings.TrimPrefix(f[n], "0x"), 16, 64)
		return v
	}
	switch calls[f[0]] {
	case callRead:
		return waiting{true, []int{int(int32(arg(1)))}}, true
	case callSelect:
		n := min(int(int32(arg(1))), 1024)
		set, ok := memory(dir, arg(2), (n+63)/64*8)
		for fd := 0; ok && fd < n; fd++ {
			// Longs of the machine; both architectures are little-endian.
			if set[fd/8]&(1<<(fd%8)) != 0 {
				w.fds = append(w.fds, fd)
			}
		}
		// Without the memory only the first one's number says which it is.
		if !ok && n == 1 {
			w.fds = []int{0}
		}
		return w, ok || n <= 1
	case callPoll:
		n := int(min(arg(2), 1024))
		list, ok := memory(dir, arg(1), 8*n)
		for i := 0; ok && i < n; i++ {
			if events := binary.LittleEndian.Uint16(list[8*i+4:]); events&unix.POLLIN != 0 {
				w.fds = append(w.fds, int(int32(binary.LittleEndian.Uint32(list[8*i:]))))
			}
		}
		return w, ok
	case callEpoll:
		info, err := os.ReadFile(filepath.Join(dir, "fdinfo", strconv.Itoa(int(int32(arg(1))))))
		for _, line := range strings.Split(string(info), "\n") {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "tfd:" {
				if fd, err := strconv.Atoi(f[1]); err == nil {
					w.fds = append(w.fds, fd)
				}
			}
		}
		return w, err == nil
	}
	return w, true
}

// memory reads a process's memory.
func memory(dir string, at uint64, n int) ([]byte, bool) {
	b := make([]byte, max(n, 0))
	if n <= 0 || at == 0 { // no list at all
		return b, true
	}
	if at > 1<<62 {
		return nil, false
	}
	f, err := os.Open(dir + "/mem")
	if err != nil {
		return nil, false
	}
	defer f.Close()
	_, err = f.ReadAt(b, int64(at))
	return b, err == nil
}

// terminalOf names the terminal that a file of a process is, empty for anything else.
func terminalOf(dir string, fd int) string {
	to, err := os.Readlink(dir + "/fd/" + strconv.Itoa(fd))
	if err != nil || !strings.HasPrefix(to, "/dev/pts/") && !strings.HasPrefix(to, "/dev/tty") {
		return ""
	}
	return to
}

// edited says whether somebody edits a line on a terminal: an editor (readline, IPython)
// takes each key by itself for as long as it waits for one.
func edited(dir string, fd int) bool {
	f, err := os.OpenFile(dir+"/fd/"+strconv.Itoa(fd), os.O_RDONLY|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && t.Lflag&unix.ICANON == 0
}
