package holder

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
	"sparkrun/supervisor/engine/killer"
	"sparkrun/supervisor/guard"
)

// The files of an attempt directory that come from the guard.
const (
	guardName    = "guard.json"
	blackboxName = "blackbox.csv"
)

const (
	// guardStop bounds the wait for the guard's thread at the end, guardSave
	// that for its files: exit.json must not wait for a slow disk.
	guardStop = time.Second
	guardSave = time.Second
	// lastRoom is what blackbox.csv leaves of a disk: half the reserve, for
	// exit.json, the verdict and run.json.
	lastRoom = 512 << 10
	// maxNotes bounds the notes of guard.json.
	maxNotes = 200
)

// watch starts the guard. The command exists: it has inherited nothing of what
// the guard does to this process.
func (h *hold) watch() {
	kill := ""
	if h.cgroup.kill {
		kill = filepath.Join(h.cgroup.dir, "cgroup.kill")
	}
	h.guard = guard.Start(guard.Config{Child: h.child.pid, CgroupKill: kill, Options: h.spec.Guard})
}

// guardSays does what an event of the guard asks for.
func (h *hold) guardSays(e guard.Event) {
	m := push{Push: PushGuard}
	m.Offset, m.Written = h.ring.offsets()
	if n := e.Text(); n != nil {
		n.T = h.machineTime(n.Boot)
		if len(h.guardNotes) < maxNotes {
			h.guardNotes = append(h.guardNotes, *n)
		}
		m.Note = n
		h.broadcast(m)
		return
	}
	if e.Action != nil {
		h.guardActs(e.Kind, e.Action)
		m.Guard = e.Action
		h.broadcast(m)
	}
}

// guardActs carries out what the guard has decided. a is ours from now on.
func (h *hold) guardActs(kind string, a *guard.Action) {
	a.T = h.machineTime(a.Boot)
	before := h.stop.phase
	ended := false // whether the guard ended the command, or the work of a client
	works := func() bool { return !h.stop.childGone || before == phaseAwait }
	switch kind {
	case guard.EventTerm:
		ended = works()
		h.step(stopEvent{kind: evGuardTerm})
		took := clock.Boottime() - a.Boot
		a.SinceAboveUS += took.Microseconds() - a.ReactionUS
		a.ReactionUS = took.Microseconds()
		if h.stop.phase == before {
			// Somebody's stop had come as far already.
			a.First, ended = "", false
		}
	case guard.EventKill:
		h.step(stopEvent{kind: evGuardKill})
		// The guard's own kill may be over, and the tree reaped, before its
		// event is heard.
		ended = works() || h.exit.Signal == signalName(unix.SIGKILL) || h.spec.AwaitTree && h.orphanKilled
		if before.over() && ended {
			h.sent(unix.SIGKILL, ToTree, ByGuard)
		}
	}
	// A warning, or an act that came too late, gives way to an act; what follows
	// a SIGTERM does not.
	if h.guardAction == nil || h.guardAction.First == "" {
		h.guardAction = a
		if ended {
			h.exit.Guard = a
		}
	}
}

func (h *hold) broadcast(m push) {
	if h.srv != nil {
		h.srv.broadcast(m)
	}
}

// machineTime is an instant of CLOCK_BOOTTIME on the run's clock.
func (h *hold) machineTime(boot time.Duration) string { return clock.Machine(h.spec.Clock.At(boot)) }

// floors passes on what the supervisor tells the guard.
func (h *hold) floors(f *Floors) error {
	if f == nil {
		return fmt.Errorf("a floors request without floors")
	}
	return h.guard.SetFloors(*f)
}

// addContainer opens the way to a container. It may take a moment, and runs in
// the goroutine of its client.
func (h *hold) addContainer(endpoint, id string) error {
	k, err := killer.Open(endpoint, id)
	if err != nil {
		return fmt.Errorf("opening the way to end container %.16s: %w", id, err)
	}
	h.guard.SetContainer(id, k)
	return nil
}

// guardFiles ends the guard and returns what writes its files, and says what of
// them could not be.
func (h *hold) guardFiles() func() []string {
	if !h.guard.Stop(guardStop) {
		return func() []string {
			return []string{fmt.Sprintf("there is no %s and no %s: the guard's thread hangs in the kernel", guardName, blackboxName)}
		}
	}
	for {
		select {
		case e := <-h.guard.Events():
			h.guardSays(e)
			continue
		default:
		}
		break
	}
	r := h.guard.Report()
	r.RunID, r.Attempt, r.Action = h.spec.RunID, h.spec.Attempt, h.guardAction
	r.Notes = append(r.Notes, h.guardNotes...)
	for i := range r.Sources {
		r.Sources[i].LowestT = h.machineTime(r.Sources[i].LowestBoot)
	}
	minute := h.guard.Minute()
	// A command that obeys a SIGTERM and exits with 0 has died too.
	died := !h.exit.Reaped || h.exit.Status() != 0 || len(h.exit.Stops) > 0
	spec := h.spec
	if h.guardAction == nil {
		// The reserve is for exit.json and run.json. Only a death that the guard
		// caused is worth a part of it here.
		spec.Reserve = ""
	}
	return func() (lost []string) {
		b, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = saveGiving(spec.Dir, guardName, spec.Reserve, append(b, '\n'))
		}
		if err != nil {
			lost = append(lost, fmt.Sprintf("%s, what the memory guard saw and did, could not be written: %v", guardName, err))
		}
		if died && len(minute) > 0 {
			if s := saveMinute(spec, minute); s != "" {
				lost = append(lost, s)
			}
		}
		return lost
	}
}

// saveBeside writes a file whole or not at all.
func saveBeside(dir, name string, b []byte) error {
	tmp := filepath.Join(dir, name+".tmp")
	err := writeSynced(tmp, b)
	if err == nil {
		err = os.Rename(tmp, filepath.Join(dir, name))
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// saveGiving is saveBeside for a file worth the reserve: a few KiB.
func saveGiving(dir, name, reserve string, b []byte) error {
	err := saveBeside(dir, name, b)
	if noSpace(err) && reserve != "" && os.Remove(reserve) == nil {
		err = saveBeside(dir, name, b)
	}
	return err
}

// saveMinute writes what fits of the last minute, the newest of it, and says
// what does not. It leaves room for exit.json and what comes after it.
func saveMinute(spec Spec, minute []guard.Sample) string {
	header, rows := blackbox(spec, minute)
	all := 0
	for _, r := range rows {
		all += len(r)
	}
	room := roomFor(spec.Dir)
	if len(header)+all > room && spec.Reserve != "" && os.Remove(spec.Reserve) == nil {
		room = roomFor(spec.Dir)
	}
	err := error(unix.ENOSPC)
	for room > len(header) {
		// The newest rows that fit.
		size, from := len(header), len(rows)
		for from > 0 && size+len(rows[from-1]) <= room {
			from--
			size += len(rows[from])
		}
		if from == len(rows) {
			break
		}
		b := append(make([]byte, 0, size), header...)
		for _, r := range rows[from:] {
			b = append(b, r...)
		}
		if err = saveBeside(spec.Dir, blackboxName, b); err == nil && from > 0 {
			return fmt.Sprintf("%s holds only the newest %d of %d readings: there was no room on the disk for more", blackboxName, len(rows)-from, len(rows))
		} else if err == nil {
			return ""
		}
		if !noSpace(err) && !errors.Is(err, unix.EFBIG) {
			break
		}
		room = size / 2 // a quota, or somebody else was faster
	}
	return fmt.Sprintf("%s, the last minute before the end, could not be written: %v", blackboxName, err)
}

// roomFor is how many bytes a file may have that must not take the last room on
// a disk.
func roomFor(dir string) int {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return math.MaxInt
	}
	free := st.Bavail * uint64(st.Bsize)
	return int(min(free-min(free, lastRoom), math.MaxInt))
}

// blackbox is the last minute at full rate, with the columns of telemetry.csv:
// its first line and its rows, the oldest first. What only the sensors know stays
// empty.
func blackbox(spec Spec, minute []guard.Sample) (header []byte, rows [][]byte) {
	num := func(v uint64, per float64) sample.Num {
		if v == guard.Unknown {
			return sample.Num{}
		}
		return sample.Known(float64(v) / per)
	}
	b := make([]byte, 0, 160*len(minute))
	rows = make([][]byte, 0, len(minute))
	for i := range minute {
		m := &minute[i]
		s := sample.Sample{
			T: spec.Clock.At(m.At), Mono: m.At - spec.Clock.Boot, Attempt: spec.Attempt,
			MemAvailableKiB: num(m.AvailKiB, 1), MemFreeKiB: num(m.FreeKiB, 1), CachedKiB: num(m.CachedKiB, 1),
			ShmemKiB: num(m.ShmemKiB, 1), SwapFreeKiB: num(m.SwapFreeKiB, 1),
			PSIMemSome10: num(m.PSISome, 100), PSIMemFull10: num(m.PSIFull, 100),
			TreeRSSKiB: num(m.TreeRSSKiB, 1), GPUTreeMiB: num(m.GPUTreeKiB, 1024), GPUOtherMiB: num(m.GPUOtherKiB, 1024),
			CgroupKiB: num(m.CgroupKiB, 1), VMOOMKill: num(m.OOMKills, 1), Missed: int(m.Missed),
		}
		// A row keeps its place when b moves on to a larger one.
		at := len(b)
		b = appendRow(b, s.Row())
		rows = append(rows, b[at:])
	}
	return appendRow(nil, sample.Header), rows
}

// appendRow appends a line of cells, none of which needs quoting.
func appendRow(b []byte, cells []string) []byte {
	for i, c := range cells {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, c...)
	}
	return append(b, '\n')
}
