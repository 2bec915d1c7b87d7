package postmortem

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
	"sparkrun/supervisor/holder"
	"sparkrun/supervisor/runlog"
)

const (
	// eventsTail is how much of the end of events.jsonl is looked at.
	eventsTail = 1 << 20
)

// attemptFiles is one attempt of a run as its files tell it.
type attemptFiles struct {
	man *runlog.Manifest
	run string // the run directory
	dir string // the attempt's folder
	n   int
	// outputMost, if set, is how much of the end of the output is looked at.
	outputMost int64
	progress   func(read, total int64)
	notes      []string
}

// gathered is the evidence that the files of an attempt hold.
type gathered struct {
	ev    oom.Evidence
	exit  *holder.Exit // nil while there is none
	lastT time.Time    // the last sign of life; zero if there is none
	// noLines says that the lines were not counted from the beginning.
	noLines bool
	// sums are those of a run without an end; over is when its last attempt ended.
	sums reckoned
	over time.Time
}

// gather reads the files of an attempt that nobody has judged.
func (f *attemptFiles) gather(ctx context.Context, t *oom.Table) (gathered, error) {
	var g gathered
	clk := f.man.Start.Clock()
	ev := &g.ev
	ev.Nodes = f.man.Nodes
	if rec := f.record(); rec != nil {
		ev.Start = rec.Start.T
	}
	if e, err := holder.ReadExit(f.dir); err == nil {
		g.exit = &e
		at := clk.At(e.Boot)
		ev.End = at
		if e.Reaped {
			ev.Exit = oom.Exit{Known: true, Code: e.Code, Signal: e.Signal, T: at}
		}
		for _, o := range e.Orphans {
			ws := unix.WaitStatus(o.Status)
			r := oom.Reaped{PID: o.PID, Comm: o.Comm, Code: ws.ExitStatus()}
			if ws.Signaled() {
				r.Signal = unix.SignalName(ws.Signal())
			}
			ev.Reaped = append(ev.Reaped, r)
		}
		for _, s := range e.Stops {
			if at, err := time.Parse(time.RFC3339, s.T); err == nil {
				// Who had asked is not in the file; nobody but a user or a limit of
				// the user's does.
				ev.Signals = append(ev.Signals, oom.SignalSent{Name: s.Signal, By: "user", T: at})
			}
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		f.notes = append(f.notes, err.Error())
	}
	f.samples(&g)
	if err := f.output(ctx, t, &g); err != nil {
		return g, err
	}
	f.guard(ev)
	f.kernel(ev)
	if ev.End.IsZero() {
		ev.End = g.lastT
	}
	return g, nil
}

func (f *attemptFiles) record() *runlog.AttemptRecord {
	for i := range f.man.Attempts {
		if f.man.Attempts[i].N == f.n {
			return &f.man.Attempts[i]
		}
	}
	return nil
}

// samples reads the last minute of telemetry.csv and the attempt's blackbox.csv.
func (f *attemptFiles) samples(g *gathered) {
	ev := &g.ev
	for path, attempt := range map[string]int{
		filepath.Join(f.run, "telemetry.csv"): f.n,
		filepath.Join(f.dir, "blackbox.csv"):  0,
	} {
		tel, err := readTelemetry(path, attempt)
		if err != nil {
			continue // there is none, and the verdict says that it has no samples
		}
		if kib := f.man.Host.MemTotalKiB; kib > 0 {
			tel.total = sample.Known(float64(kib))
		}
		tel.into(ev)
	}
	slices.SortStableFunc(ev.Samples, func(a, b sample.Sample) int { return a.T.Compare(b.T) })
	end := ev.End
	for i := range ev.Samples {
		s := &ev.Samples[i]
		if s.Step.OK && (end.IsZero() || !s.T.After(end)) {
			ev.StepsDone, ev.LastStep = true, int64(s.Step.V)
		}
		if s.T.After(g.lastT) {
			g.lastT = s.T
		}
	}
	if end.IsZero() {
		end = g.lastT
	}
	ev.Samples = slices.DeleteFunc(ev.Samples, func(s sample.Sample) bool { return end.Sub(s.T) > lastMinute })
}

// output scans output.log.
func (f *attemptFiles) output(ctx context.Context, t *oom.Table, g *gathered) error {
	path := filepath.Join(f.dir, "output.log")
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		g.ev.Unreadable = append(g.ev.Unreadable, "output.log: there is none")
		return nil
	}
	if err != nil {
		return readError(path, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return readError(path, err)
	}
	if info.IsDir() {
		return readError(path, unix.EISDIR)
	}
	size, from, before := info.Size(), int64(0), 0
	if f.outputMost > 0 && size > f.outputMost {
		from = size - f.outputMost
		before = countLines(ctx, io.NewSectionReader(file, 0, from))
		g.noLines = before < 0
		if _, err := file.Seek(from, io.SeekStart); err != nil {
			return readError(path, err)
		}
	}
	r := &watched{r: io.LimitReader(until(ctx, file), size-from+growMost), total: size - from, progress: f.progress}
	in := readAhead(r)
	defer in.Close()
	out, err := t.Read(in)
	if err != nil {
		f.notes = append(f.notes, fmt.Sprintf("%s could be read only up to byte %d: %v", path, from+r.n, plainError(err)))
	}
	f.place(&out, from, max(before, 0))
	if last := f.times(&out, size); last.After(g.lastT) {
		g.lastT = last
	}
	g.ev.Output = out
	return nil
}

// place turns the positions in what was read into those in the whole output.
func (f *attemptFiles) place(out *oom.Output, offset int64, lines int) {
	for i := range out.Hits {
		out.Hits[i].Offset += offset
		out.Hits[i].Line += lines
	}
	for i := range out.Tail {
		out.Tail[i].Offset += offset
		out.Tail[i].N += lines
	}
	if out.Advances > 0 {
		out.LastAdvance.Offset += offset
		out.LastAdvance.N += lines
	}
}

// times looks up when the lines that were kept were printed. It returns the time
// of the newest byte before size; zero where the index does not say.
func (f *attemptFiles) times(out *oom.Output, size int64) (last time.Time) {
	idx, err := holder.OpenIndex(f.dir)
	if err != nil {
		return last
	}
	defer idx.Close()
	clk := f.man.Start.Clock()
	at := func(off int64) time.Time {
		if boot, ok := idx.BootAt(off); ok {
			return clk.At(boot)
		}
		return time.Time{}
	}
	for i := range out.Hits {
		out.Hits[i].T = at(out.Hits[i].Offset)
	}
	for i := range out.Tail {
		out.Tail[i].T = at(out.Tail[i].Offset)
	}
	if out.Advances > 0 {
		out.LastAdvance.T = at(out.LastAdvance.Offset)
	}
	return at(size)
}

// unnumber takes line numbers back that do not count from the beginning.
func (g *gathered) unnumber(v *oom.Verdict) {
	for i := range v.Evidence {
		if g.noLines {
			v.Evidence[i].Line = 0
		}
	}
}

// readerFunc is a function that reads.
type readerFunc func(b []byte) (int, error)

// Read calls the function.
func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// until is a reader that ends with a context.
func until(ctx context.Context, r io.Reader) io.Reader {
	return readerFunc(func(b []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(b)
	})
}

// countLines counts line ends; -1 where that could not be finished.
func countLines(ctx context.Context, r io.Reader) int {
	buf := make([]byte, 256<<10)
	n := 0
	for ctx.Err() == nil {
		k, err := r.Read(buf)
		n += bytes.Count(buf[:k], []byte{'\n'})
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			return -1
		}
	}
	return -1
}

// guard reads what the memory guard wrote about itself.
func (f *attemptFiles) guard(ev *oom.Evidence) {
	b, err := readSmall(filepath.Join(f.dir, "guard.json"), 0)
	if err != nil {
		return // it has not acted
	}
	var file struct {
		Action *struct {
			T           string     `json:"t"`
			Why         string     `json:"why"`
			AvailKiB    sample.Num `json:"avail_kib"`
			FloorKiB    sample.Num `json:"floor_kib"`
			TreeGrew    sample.Num `json:"tree_grew_kib"`
			Outsider    string     `json:"outsider"`
			OutsiderPID int        `json:"outsider_pid"`
			Grew        sample.Num `json:"outsider_grew_kib"`
			Warned      bool       `json:"warned"`
		} `json:"action"`
	}
	if json.Unmarshal(b, &file) != nil || file.Action == nil {
		return
	}
	a := file.Action
	at, _ := time.Parse(time.RFC3339, a.T) // zero is unknown
	ev.Guard = &oom.GuardAction{
		T: at, Why: a.Why, AvailKiB: a.AvailKiB, FloorKiB: a.FloorKiB,
		Outsider: a.Outsider, OutsiderPID: a.OutsiderPID, OutsiderGrewKiB: a.Grew, TreeGrewKiB: a.TreeGrew, Warned: a.Warned,
	}
}

// kernel takes from events.jsonl what the kernel said about processes of the job
// while somebody was there to hear it.
func (f *attemptFiles) kernel(ev *oom.Evidence) {
	ev.KernelErr = "it was not kept"
	b, err := readSmall(filepath.Join(f.run, runlog.EventsFile), eventsTail)
	if err != nil {
		return
	}
	for line := range bytes.Lines(b) {
		var e struct {
			T     time.Time   `json:"t"`
			Kind  event.Kind  `json:"kind"`
			Level event.Level `json:"level"`
			Msg   string      `json:"msg"`
		}
		if !bytes.Contains(line, []byte(event.KernelOOM)) || json.Unmarshal(line, &e) != nil || e.Kind != event.KernelOOM {
			continue
		}
		// The others are of processes that were not the job's.
		if e.Level == event.Warn && !e.T.Before(ev.Start) && (ev.End.IsZero() || e.T.Before(ev.End.Add(lastMinute))) {
			ev.Kernel = append(ev.Kernel, oom.KernelRecord{T: e.T, Text: strings.TrimPrefix(e.Msg, "kernel: ")})
		}
	}
}

// readSmall reads a file, or the last most bytes of it.
func readSmall(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if most <= 0 {
		most = eventsTail
	}
	if size := info.Size(); size > most {
		if _, err := f.Seek(size-most, io.SeekStart); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// lastAttempt is the highest attempt that a run has a record or a folder of, 0 for
// none.
func lastAttempt(man *runlog.Manifest, dir string) int {
	last := 0
	for i := range man.Attempts {
		last = max(last, man.Attempts[i].N)
	}
	entries, err := os.ReadDir(filepath.Join(dir, runlog.AttemptsDir))
	if err != nil {
		return last
	}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && e.IsDir() && n > 0 {
			last = max(last, n)
		}
	}
	return last
}

// readVerdict reads verdict.json of an attempt's folder.
func readVerdict(dir string) (oom.Verdict, error) {
	path := filepath.Join(dir, "verdict.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return oom.Verdict{}, err
	}
	var v oom.Verdict
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("%s is damaged: %w", path, err)
	}
	if v.Schema != oom.Schema || v.Answer == "" {
		return v, fmt.Errorf("%s has schema %q, this version reads %q", path, v.Schema, oom.Schema)
	}
	return v, nil
}
