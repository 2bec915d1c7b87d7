package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"sparkrun/internal/lazyre"
	"sparkrun/internal/proctree"
)

// spare says why an attempt in which nothing moves is not to be ended, empty where it
// is: it waits for somebody to type, or for the kernel.
func (w *hangWatch) spare(procs []proctree.Proc) string {
	last, given := w.a.outputEnd(512), pipeOf(w.r.o.Stdin)
	for _, p := range procs {
		if asks(p.PID, last, given) {
			return fmt.Sprintf("%s (pid %d) waits for input", p.Comm, p.PID)
		}
	}
	for _, p := range procs {
		if tid, where := inKernel("/proc/"+strconv.Itoa(p.PID), w.cfg.FileWaits); tid != 0 {
			text := fmt.Sprintf("%s (pid %d) waits in the kernel", p.Comm, p.PID)
			if where != "" {
				text += " (" + where + ")"
			}
			return text + " for a device or file system"
		}
	}
	return ""
}

// prompt is the end of a line that asks for something: a debugger, Python, a question.
var prompt = lazyre.New(`(?:\(\w*[Pp]db\)|ipdb>|>>>|In \[\d+\]:|\[[yYnN]/[yYnN]\]:?|\([yYnN]/[yYnN]\):?|[?:>]) *(?:\x1b\[[0-9;?]*[a-zA-Z])*$`)

// pipeOf names the pipe that a file is, as /proc does; empty for anything else.
func pipeOf(f *os.File) string {
	if f == nil {
		return ""
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		return ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return "pipe:[" + strconv.FormatUint(st.Ino, 10) + "]"
}

// asks says whether a process waits for somebody to type, or for more from the pipe that
// the run was given. last is the end of the output. Other pipes lie between the tree's own
// processes, as before a tee, which waits for as long as the training says nothing.
func asks(pid int, last []byte, given string) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	w, known := waitedFiles(dir)
	return asksBy(dir, w, known, last, given)
}

// asksBy is asks for a process of which it is known, or not, for which files it waits.
func asksBy(dir string, w waiting, known bool, last []byte, given string) bool {
	isGiven := func(fd int) bool {
		to, err := os.Readlink(dir + "/fd/" + strconv.Itoa(fd))
		return err == nil && given != "" && to == given
	}
	isTerminal := func(fd int) bool { return terminalOf(dir, fd) != "" }
	last = last[bytes.LastIndexByte(last, '\n')+1:]
	asked := prompt.Match(last)
	if known {
		return w.reads && (w.has(isGiven) || w.has(isTerminal)) || asked && w.has(isTerminal)
	}
	wait := waitsIn(dir)
	switch {
	case isGiven(0):
		// Which pipe it reads cannot be seen.
		return strings.Contains(wait, "pipe_read")
	case !isTerminal(0):
		return false
	case wait == "n_tty_read":
		return true
	case wait == "" || wait == "wait_woken":
		// Reading a terminal has the same name as reading a connection: it is no proof,
		// but an unfinished line that is no progress bar is.
		return asked || wait != "" && len(last) > 0 && !bytes.ContainsRune(last, '\r')
	case strings.Contains(wait, "poll"), strings.Contains(wait, "select"):
		return asked && edited(dir, 0)
	}
	return false
}

// waitsIn is the kernel function in which a process or thread waits, empty for unknown.
func waitsIn(dir string) string {
	b, err := os.ReadFile(dir + "/wchan")
	if name := strings.TrimSpace(string(b)); err == nil && name != "0" {
		return name
	}
	return ""
}

// inKernel returns a thread of a process, by its folder in /proc, that waits in the kernel
// for a device or a file system, and in what; 0 for none. No signal reaches it there (state
// D), or it is one of these functions: a file system that another program serves (FUSE)
// waits for its answers as everybody waits for anything.
func inKernel(dir string, functions []string) (tid int, where string) {
	task := dir + "/task"
	names, err := readNames(task, threadsMost)
	if err != nil {
		return 0, ""
	}
	for _, n := range names {
		id, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		state, _ := threadStat(task + "/" + n)
		if state != 'D' && state != 'S' && state != 'I' {
			continue
		}
		if where := waitsIn(task + "/" + n); state != 'S' || slices.Contains(functions, where) {
			return id, where
		}
	}
	return 0, ""
}

// threadStat returns the state and name of a thread by its folder in /proc.
func threadStat(dir string) (state byte, comm string) {
	b, err := os.ReadFile(dir + "/stat")
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if err != nil || open < 0 || end < open || end+2 >= len(b) {
		return 0, ""
	}
	return b[end+2], string(b[open+1 : end])
}

// readNames lists a folder, at most so many.
func readNames(dir string, most int) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(most)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}
