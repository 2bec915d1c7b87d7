package postmortem

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
)

// growMost is how much a file may grow while it is read before the rest is left
// out: a log that is written faster than it is read has no end.
const growMost = 64 << 20

// LogOptions say what to judge a log by.
type LogOptions struct {
	// Path is the log; "-" reads Stdin.
	Path  string
	Stdin io.Reader
	// Exit is how the command ended, if that is known.
	Exit oom.Exit
	// System are files with lines of the kernel or of daemons, Telemetry files of
	// samples: our telemetry.csv or blackbox.csv.
	System, Telemetry []string
	// Progress, if set, hears how many of how many bytes are read; total is 0
	// where nobody knows.
	Progress func(read, total int64)
}

// Answer is a verdict with what to tell beside it.
type Answer struct {
	Verdict oom.Verdict
	// Notes are sentences about what was given: a file without a row, say.
	Notes []string
	// Run is nil for a log that somebody brought.
	Run *RunInfo
	// log says that the exit status was not given.
	log bool
}

// JudgeLog says why the command died that printed a log. Errors are about what
// cannot be read; what cannot be made sense of is none.
func JudgeLog(t *oom.Table, o LogOptions) (Answer, error) {
	a := Answer{log: !o.Exit.Known}
	ev := oom.Evidence{Exit: o.Exit}
	for _, path := range o.System {
		note, err := readSystem(&ev, path)
		if err != nil {
			return a, err
		}
		a.Notes = append(a.Notes, note...)
	}
	if len(o.System) == 0 {
		ev.KernelErr = "not given"
	}
	for _, path := range o.Telemetry {
		tel, err := readTelemetry(path, 0)
		if err != nil {
			return a, err
		}
		if memTotal := totalBeside(path); memTotal.OK {
			tel.total = memTotal
		}
		a.Notes = append(a.Notes, tel.notes...)
		tel.into(&ev)
	}
	r, total, done, err := openLog(o)
	if err != nil {
		return a, err
	}
	defer done()
	head := &watched{r: r, total: total, progress: o.Progress}
	in := readAhead(head)
	defer in.Close()
	ev.Output, err = t.Read(in)
	if err != nil {
		if head.n == 0 {
			return a, readError(o.Path, err)
		}
		a.Notes = append(a.Notes, fmt.Sprintf("the log could be read only up to byte %d: %v", head.n, plainError(err)))
	}
	if err := head.compressed(o.Path); err != nil {
		return a, err
	}
	if len(head.head) == 0 {
		a.Notes = append(a.Notes, "the log is empty")
	}
	a.Verdict = t.Decide(ev)
	return a, nil
}

// openLog opens what is to be read, and says how long it is if that is known.
func openLog(o LogOptions) (r io.Reader, total int64, done func(), err error) {
	if o.Path == "-" {
		if o.Stdin == nil {
			return nil, 0, nil, errors.New("there is no standard input to read a log from")
		}
		return o.Stdin, 0, func() {}, nil
	}
	f, err := os.Open(o.Path)
	if err != nil {
		return nil, 0, nil, readError(o.Path, err)
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = unix.EISDIR
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, nil, readError(o.Path, err)
	}
	r = f
	if info.Mode().IsRegular() && info.Size() > 0 {
		// Files of the kernel have size 0 and are read to their end.
		total = info.Size()
		r = io.LimitReader(f, total+growMost)
		// A hint only: the file is read once, from front to back.
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL)
	}
	return r, total, func() { _ = f.Close() }, nil
}

// readError is the sentence for a file that cannot be read.
func readError(path string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("there is no file %s", path)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s cannot be read: permission denied", path)
	case errors.Is(err, unix.EISDIR):
		return fmt.Errorf("%s is a folder, neither a log nor a run directory (it has no run.json)", path)
	}
	return fmt.Errorf("%s cannot be read: %w", path, plainError(err))
}

// plainError leaves the path and the system call out, which the sentence has.
func plainError(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// watched remembers how a stream begins and tells how far it is read.
type watched struct {
	r        io.Reader
	n, total int64
	head     []byte
	progress func(read, total int64)
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	if len(w.head) < 6 && n > 0 {
		w.head = append(w.head, b[:min(n, 6-len(w.head))]...)
	}
	w.n += int64(n)
	if w.progress != nil {
		w.progress(w.n, w.total)
	}
	return n, err
}

// compressed is the error for a log that was not unpacked: nothing of what it says was
// read, and an answer would be a guess.
func (w *watched) compressed(path string) error {
	for magic, tool := range map[string]string{"\x1f\x8b": "zcat", "\x28\xb5\x2f\xfd": "zstdcat", "BZh": "bzcat", "\xfd7zX": "xzcat"} {
		if !strings.HasPrefix(string(w.head), magic) {
			continue
		}
		if path == "-" {
			return fmt.Errorf("what comes in is compressed and was not read; unpack it on the way: %s | sparkrun why -", tool)
		}
		return fmt.Errorf("%s is compressed and was not read; unpack it on the way: %s %s | sparkrun why -", path, tool, path)
	}
	return nil
}

// grown is how much a count grew; unknown unless both ends are known.
func grown(from, to sample.Num) sample.Num {
	if !from.OK || !to.OK || to.V < from.V {
		return sample.Num{}
	}
	return sample.Known(to.V - from.V)
}
