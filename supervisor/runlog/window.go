package runlog

import (
	"bytes"
	"sort"
	"time"

	"sparkrun/internal/clock"
)

// reorderWindow is how long a line of run.log waits for older ones.
const reorderWindow = 2 * time.Second

// windowMax bounds what waits. A child that prints more than this within the
// window shortens it: memory is the machine's scarce good, order is not.
const windowMax = 4 << 20

// The two separators between a timestamp and what follows.
const (
	sepLine = " | "
	sepNote = " # "
)

// entry is one line that waits; its text lies in window.arena.
type entry struct {
	at       int64 // Unix ns
	off, len int32
	note     bool
}

// window sorts lines by time. The order it gives out is the order of time, and
// for equal times the order they came in. It is not safe for concurrent use.
type window struct {
	zone    *time.Location
	arena   []byte
	entries []entry
	// last is the time of the newest line given out: what comes later and is
	// older is given out with this time, so that the file stays sorted.
	last int64
	// The text of the last formatted millisecond; consecutive lines share it.
	stampMS int64
	stamp   []byte
}

func newWindow(zone *time.Location) *window {
	return &window{zone: zone, stampMS: -1 << 62, last: -1 << 62}
}

// add takes a line in. Line ends inside it become spaces: one entry is one line.
func (w *window) add(at time.Time, note bool, text []byte) {
	e := entry{at: at.UnixNano(), off: int32(len(w.arena)), len: int32(len(text)), note: note}
	w.arena = append(w.arena, text...)
	if kept := w.arena[e.off:]; bytes.IndexByte(kept, '\n') >= 0 {
		for i, c := range kept {
			if c == '\n' {
				kept[i] = ' '
			}
		}
	}
	n := len(w.entries)
	if n == 0 || w.entries[n-1].at <= e.at {
		w.entries = append(w.entries, e)
		return
	}
	i := sort.Search(n, func(i int) bool { return w.entries[i].at > e.at })
	w.entries = append(w.entries, entry{})
	copy(w.entries[i+1:], w.entries[i:])
	w.entries[i] = e
}

// size is how many bytes the window holds.
func (w *window) size() int { return len(w.arena) + 24*len(w.entries) }

// ripe counts the entries not younger than limit.
func (w *window) ripe(limit time.Time) int {
	ns := limit.UnixNano()
	return sort.Search(len(w.entries), func(i int) bool { return w.entries[i].at > ns })
}

// take formats the first n entries onto dst and forgets them.
func (w *window) take(dst []byte, n int) []byte {
	for _, e := range w.entries[:n] {
		w.last = max(w.last, e.at)
		dst = w.appendStamp(dst, w.last)
		if e.note {
			dst = append(dst, sepNote...)
		} else {
			dst = append(dst, sepLine...)
		}
		dst = append(dst, w.arena[e.off:e.off+e.len]...)
		dst = append(dst, '\n')
	}
	w.drop(n)
	return dst
}

// drop forgets the first n entries and moves the rest to the front.
func (w *window) drop(n int) {
	rest := w.entries[n:]
	if len(rest) == 0 {
		w.entries, w.arena = w.entries[:0], w.arena[:0]
		return
	}
	// Entries mostly lie in the arena as they came. The first byte still in use
	// is then far from the front, and what is before it goes.
	low := rest[0].off
	for _, e := range rest {
		low = min(low, e.off)
	}
	kept := copy(w.arena, w.arena[low:])
	w.arena = w.arena[:kept]
	kept = copy(w.entries, rest)
	w.entries = w.entries[:kept]
	for i := range w.entries {
		w.entries[i].off -= low
	}
}

func (w *window) appendStamp(dst []byte, ns int64) []byte {
	ms := ns / 1e6
	if ns < 0 && ns%1e6 != 0 {
		ms-- // round down, as the format does
	}
	if ms != w.stampMS {
		w.stampMS = ms
		w.stamp = clock.AppendFormat(w.stamp[:0], time.Unix(0, ns).In(w.zone))
	}
	return append(dst, w.stamp...)
}

// stampLen is the length of a timestamp in run.log.
const stampLen = len(clock.Layout)

// isNote says whether a formatted line of run.log is one of sparkrun's own.
func isNote(line []byte) bool {
	return len(line) >= stampLen+len(sepNote) && string(line[stampLen:stampLen+len(sepNote)]) == sepNote
}

// parseStamp reads the timestamp at the front of a line of run.log.
func parseStamp(line []byte, zone *time.Location) (time.Time, bool) {
	if len(line) < stampLen {
		return time.Time{}, false
	}
	t, err := time.ParseInLocation(clock.Layout, string(line[:stampLen]), zone)
	return t, err == nil
}
