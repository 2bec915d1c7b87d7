package postmortem

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
	"sparkrun/supervisor/runlog"
)

const (
	// rowMax is the longest row that is looked at; ours have about 250 bytes.
	rowMax = 16 << 10
	// tailRead is how much of the end of a telemetry file is read: the last minute
	// at full rate is under 1 MiB, at one row a second it is three hours.
	tailRead = 2 << 20
	// lastMinute is what a verdict looks at, rowsMost how many rows of it are kept
	// in any case.
	lastMinute = time.Minute
	rowsMost   = 8000
)

// What the machine's whole memory is judged by where nothing says it; see
// telemetry.totalOf.
const (
	lowShare  = 0.03
	plentyKiB = 16 << 20  // 16 GiB free is never low on a machine of up to 512 GiB
	commonKiB = 128 << 20 // the memory of the machine this is made for
	startMono = 10 * time.Second
)

// telemetry is what the end of a telemetry file says.
type telemetry struct {
	rows []sample.Sample // of one attempt, oldest first; the last minute of it
	// total is MemTotal in KiB, unknown where only the columns are known.
	total sample.Num
	// most is the largest MemAvailable seen; fromStart says that the beginning of
	// the run was among what was read.
	most      float64
	fromStart bool
	oomKills  sample.Num // how much the kernel's count grew
	notes     []string
}

// readTelemetry reads the end of telemetry.csv or blackbox.csv: the rows of an
// attempt, or of the last one where attempt is 0. Torn rows, NULs and headers in
// the middle are passed over; a file that is something else is an error.
func readTelemetry(path string, attempt int) (telemetry, error) {
	f, err := os.Open(path)
	if err != nil {
		return telemetry{}, readError(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		return telemetry{}, fmt.Errorf("--telemetry %s is a folder; name the telemetry.csv or blackbox.csv in it", path)
	}
	p := &rowParser{want: attempt}
	var r io.Reader = f
	if err == nil && info.Mode().IsRegular() && info.Size() > tailRead {
		// The header and the start of the run, then the end.
		if err := eachLine(io.LimitReader(f, rowMax), rowMax, p.line); err != nil {
			return telemetry{}, readError(path, err)
		}
		if _, err := f.Seek(-tailRead, io.SeekEnd); err != nil {
			return telemetry{}, readError(path, err)
		}
		p.torn = true // the read begins inside a row
		r = io.LimitReader(f, tailRead+growMost)
	}
	if err := eachLine(r, rowMax, p.line); err != nil {
		return telemetry{}, readError(path, err)
	}
	if p.cols == nil && p.any {
		return telemetry{}, fmt.Errorf("%s is no telemetry of ours: it has no header with the columns t and mem_available_kib (telemetry.csv and blackbox.csv of a run have)", path)
	}
	t := p.finish()
	if len(t.rows) < 2 && attempt == 0 {
		// The file may have been begun anew just before the death.
		if part := lastPart(path); part != "" {
			if before, err := readTelemetry(part, 0); err == nil {
				t.prepend(before)
			}
		}
	}
	if len(t.rows) == 0 {
		t.notes = append(t.notes, path+" has no row that can be read")
	}
	return t, nil
}

// lastPart returns the newest full part of a telemetry file, "" for none.
func lastPart(path string) string {
	parts := allParts(path)
	if len(parts) == 0 {
		return ""
	}
	return parts[len(parts)-1]
}

// allParts returns the full parts of a telemetry file, oldest first.
func allParts(path string) []string {
	dir, name := filepath.Split(path)
	ext := filepath.Ext(name)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if err != nil {
		return nil
	}
	var parts []string
	for _, e := range entries { // in order
		n, ok := strings.CutPrefix(e.Name(), strings.TrimSuffix(name, ext)+".")
		n, is := strings.CutSuffix(n, ext)
		if _, err := strconv.ParseUint(n, 10, 10); ok && is && len(n) == 3 && err == nil && e.Type().IsRegular() {
			parts = append(parts, filepath.Join(dir, e.Name()))
		}
	}
	return parts
}

// prepend puts the rows of an earlier file before these.
func (t *telemetry) prepend(before telemetry) {
	rows := append(before.rows, t.rows...)
	if n := len(rows); n > 0 {
		first := rows[n-1].T.Add(-lastMinute)
		rows = rows[sort.Search(n, func(i int) bool { return !rows[i].T.Before(first) }):]
	}
	t.rows = rows
	t.most = max(t.most, before.most)
	t.fromStart = t.fromStart || before.fromStart
	if !t.oomKills.OK {
		t.oomKills = before.oomKills
	}
}

// rowParser reads rows as they come and keeps the last minute of one attempt.
type rowParser struct {
	want int
	cols map[string]int
	any  bool
	// torn says that the next line is the rest of one.
	torn  bool
	t     telemetry
	kills struct{ first, last sample.Num }
}

func (p *rowParser) line(line []byte, whole bool) {
	if p.torn {
		p.torn = false
		return
	}
	line = bytes.TrimRight(line, "\r")
	if len(bytes.Trim(line, "\x00 ")) == 0 {
		return
	}
	p.any = true
	cells := strings.Split(string(line), ",")
	if i := indexOf(cells, "mem_available_kib"); i >= 0 && indexOf(cells, "t") >= 0 {
		p.cols = make(map[string]int, len(cells))
		for i, c := range cells {
			p.cols[strings.TrimSpace(c)] = i
		}
		return
	}
	// A row cut short has a last cell that looks like a number and is none.
	if p.cols == nil || !whole || len(cells) < len(p.cols) || bytes.IndexByte(line, 0) >= 0 {
		return
	}
	if s, ok := p.row(cells); ok {
		p.take(s)
	}
}

func indexOf(cells []string, name string) int {
	for i, c := range cells {
		if strings.TrimSpace(c) == name {
			return i
		}
	}
	return -1
}

// row turns cells into a sample; what a cell does not say stays unknown.
func (p *rowParser) row(cells []string) (s sample.Sample, ok bool) {
	cell := func(name string) string {
		if i, ok := p.cols[name]; ok && i < len(cells) {
			return strings.TrimSpace(cells[i])
		}
		return ""
	}
	num := func(name string) sample.Num {
		v, err := strconv.ParseFloat(cell(name), 64)
		if err != nil || v != v || v < 0 {
			return sample.Num{}
		}
		return sample.Known(v)
	}
	var err error
	if s.T, err = time.Parse(time.RFC3339, cell("t")); err != nil {
		return s, false
	}
	mono := num("mono_s")
	s.Mono = time.Duration(mono.V * float64(time.Second))
	s.Attempt = int(num("attempt").V)
	s.Step, s.StepTimeS = num("step"), num("step_time_s")
	s.MemTotalKiB = num("mem_total_kib")
	s.MemAvailableKiB, s.MemFreeKiB = num("mem_available_kib"), num("mem_free_kib")
	s.CachedKiB, s.ShmemKiB = num("cached_kib"), num("shmem_kib")
	s.SwapTotalKiB, s.SwapFreeKiB = num("swap_total_kib"), num("swap_free_kib")
	s.PSIMemSome10, s.PSIMemFull10 = num("psi_mem_some10"), num("psi_mem_full10")
	s.TreeRSSKiB, s.CgroupKiB, s.VMOOMKill = num("tree_rss_kib"), num("cgroup_current_kib"), num("vm_oom_kill")
	s.GPUTreeMiB, s.GPUOtherMiB = num("gpu_tree_mib"), num("gpu_other_mib")
	if mono.OK && s.Mono < startMono {
		p.t.fromStart = true
	}
	if s.MemAvailableKiB.OK {
		p.t.most = max(p.t.most, s.MemAvailableKiB.V)
	}
	return s, true
}

func (p *rowParser) take(s sample.Sample) {
	if p.want > 0 && s.Attempt != p.want || s.Attempt == 0 && len(p.t.rows) > 0 && p.t.rows[0].Attempt > 0 {
		return
	}
	rows := p.t.rows
	if n := len(rows); n > 0 && rows[n-1].Attempt != s.Attempt {
		rows = rows[:0] // another attempt begins
		p.kills.first = sample.Num{}
	}
	if s.VMOOMKill.OK {
		if !p.kills.first.OK {
			p.kills.first = s.VMOOMKill
		}
		p.kills.last = s.VMOOMKill
	}
	rows = append(rows, s)
	drop := 0
	for len(rows)-drop > rowsMost || s.T.Sub(rows[drop].T) > lastMinute {
		drop++
	}
	if drop > 0 && (drop > len(rows)/2 || len(rows) > rowsMost) {
		rows = append(rows[:0], rows[drop:]...)
	}
	p.t.rows = rows
}

func (p *rowParser) finish() telemetry {
	t := p.t
	if n := len(t.rows); n > 0 {
		first := t.rows[n-1].T.Add(-lastMinute)
		t.rows = t.rows[sort.Search(n, func(i int) bool { return !t.rows[i].T.Before(first) }):]
	}
	t.oomKills = grown(p.kills.first, p.kills.last)
	return t
}

// into adds what the rows say to the evidence.
func (t *telemetry) into(ev *oom.Evidence) {
	total := t.totalOf()
	if !total.OK && len(t.rows) > 0 {
		ev.Unreadable = append(ev.Unreadable, "the machine's whole memory (MemTotal), without which the telemetry cannot be judged")
	}
	for _, s := range t.rows {
		if !s.MemTotalKiB.OK {
			s.MemTotalKiB = total
		}
		ev.Samples = append(ev.Samples, s)
	}
	if t.oomKills.OK {
		ev.VMOOMKillDelta = t.oomKills
	}
}

// totalOf is MemTotal, which the columns do not have. Where no run.json says it,
// the largest MemAvailable is a lower bound: what is low against that is low. What
// is not low against it may still be low against the truth, so it only serves for
// that where the rows begin with the run, before it took its memory.
func (t *telemetry) totalOf() sample.Num {
	if t.total.OK || t.most <= 0 {
		return t.total
	}
	lowest := t.most
	for i := range t.rows {
		if a := t.rows[i].MemAvailableKiB; a.OK {
			lowest = min(lowest, a.V)
		}
	}
	switch {
	case t.fromStart || lowest < lowShare*t.most:
		return sample.Known(t.most)
	case lowest >= plentyKiB:
		return sample.Known(max(t.most, commonKiB))
	}
	return sample.Num{}
}

// totalBeside returns MemTotal in KiB from the run.json that a telemetry file lies
// beside, or two folders below.
func totalBeside(path string) sample.Num {
	dir := filepath.Dir(path)
	for _, d := range []string{dir, filepath.Join(dir, "..", "..")} {
		m, err := runlog.ReadManifest(filepath.Join(d, runlog.ManifestFile))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil && m.Host.MemTotalKiB > 0 {
			return sample.Known(float64(m.Host.MemTotalKiB))
		}
	}
	return sample.Num{}
}
