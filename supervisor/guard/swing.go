package guard

import (
	"math"
	"time"
)

const (
	// half is the least length of each of the two windows of a slope: together
	// 300 ms. stale is how old a window may begin.
	half  = 150 * time.Millisecond
	stale = 2500 * time.Millisecond
	// whole is the length of the window that the choice of the signal rests on:
	// a job that takes memory in steps is no faster than its steps are apart.
	whole = time.Second
	// points covers all windows at the fastest polling, with room for polls that
	// something hurried.
	points = 96
	// held is how long a level must be held to count as survived without a
	// rise.
	held = 3 * time.Second
)

// window holds the newest readings of one source.
type window struct {
	at    [points]time.Duration
	avail [points]uint64
	n     int // readings ever
}

func (w *window) add(at time.Duration, avail uint64) {
	w.at[w.n%points], w.avail[w.n%points] = at, avail
	w.n++
}

// slope is how fast memory falls, in KiB a second, in two adjacent windows.
// steady is the lesser of both: a prediction rests on it, so that one steep
// moment is no trend. fast is the greater. Both are 0 where nothing is known, negative in a rise.
func (w *window) slope() (steady, fast float64) {
	last := w.n - 1
	mid := w.before(last)
	if mid < 0 || w.at[last%points]-w.at[mid%points] > stale {
		return 0, 0
	}
	now := w.between(mid, last)
	old := w.before(mid)
	if old < 0 || w.at[mid%points]-w.at[old%points] > stale {
		return min(now, 0), now
	}
	before := w.between(old, mid)
	return min(before, now), max(before, now)
}

// long is how fast memory falls, in KiB a second, over a second or, where there
// are no readings so old, what there is of it; 0 where nothing is known.
func (w *window) long() float64 {
	last, from := w.n-1, -1
	for j := last - 1; j >= 0 && j > last-points; j-- {
		age := w.at[last%points] - w.at[j%points]
		if age > stale {
			break
		}
		from = j
		if age >= whole {
			break
		}
	}
	if from < 0 || w.at[last%points]-w.at[from%points] < half {
		return 0
	}
	return w.between(from, last)
}

// before returns the newest reading that is at least half older than reading i,
// -1 for none.
func (w *window) before(i int) int {
	for j := i - 1; j >= 0 && j > w.n-1-points; j-- {
		if w.at[i%points]-w.at[j%points] >= half {
			return j
		}
	}
	return -1
}

func (w *window) between(from, to int) float64 {
	fell := float64(w.avail[from%points]) - float64(w.avail[to%points])
	return fell / (w.at[to%points] - w.at[from%points]).Seconds()
}

// swing follows the ups and downs of one source and learns from each fall that
// ended by itself.
type swing struct {
	begun   bool
	falling bool
	// extreme is the lowest level of the present fall, or the highest of the
	// present rise.
	extreme   uint64
	extremeAt time.Duration
	// gap is how long after the lowest level nothing was read.
	gap time.Duration
	// mark is the level at which the fall last went on, markAt when.
	mark   uint64
	markAt time.Duration
	// peak is where the present fall began; steepest is how steep it has been,
	// fastest how steep in any one window.
	peak     uint64
	steepest float64
	fastest  float64

	// What was survived: the lowest level, and the depth and speed of the
	// greatest fall.
	hasLow bool
	low    uint64
	depth  uint64
	steep  float64
}

func (s *swing) add(at time.Duration, avail, total uint64, slope, fast float64) {
	step := max(total/400, 1<<10)
	switch {
	case !s.begun:
		s.begun, s.extreme = true, avail
	case !s.falling && avail >= s.extreme:
		s.extreme = avail
	case !s.falling && avail+step < s.extreme:
		s.falling, s.peak, s.extreme, s.extremeAt, s.gap = true, s.extreme, avail, at, 0
		s.mark, s.markAt, s.steepest, s.fastest = avail, at, slope, fast
	case s.falling:
		s.steepest, s.fastest = max(s.steepest, slope), max(s.fastest, fast)
		if avail <= s.extreme {
			s.extreme, s.extremeAt, s.gap = avail, at, 0
		} else if s.gap == 0 {
			s.gap = at - s.extremeAt
		}
		if avail+step < s.mark {
			s.mark, s.markAt = avail, at
		}
		if avail > s.extreme+step || at-s.markAt > held {
			s.survived()
			s.falling, s.extreme = false, avail
		}
	}
}

func (s *swing) survived() {
	// Between two readings the fall may have gone on at its speed: what was seen
	// of a short dip is rarely its lowest point.
	unseen := uint64(max(s.fastest, 0) * s.gap.Seconds())
	low := s.extreme - min(unseen, s.extreme)
	if !s.hasLow || low < s.low {
		s.hasLow, s.low = true, low
	}
	s.depth = max(s.depth, s.peak-min(low, s.peak))
	s.steep = max(s.steep, s.steepest)
}

// forgetFalls is called when the load is over: how the model came in says
// nothing about the swings of a step. The lowest level stays survived.
func (s *swing) forgetFalls() { s.depth, s.steep = 0, 0 }

// newLow is whether avail is lower than anything the job has lived through.
func (s *swing) newLow(avail uint64) bool { return !s.hasLow || avail < s.low }

// ahead is the level to expect after a time. A fall that is no steeper
// than one survived is expected to end where that one did.
func (s *swing) ahead(avail uint64, slope float64, after time.Duration) float64 {
	linear := float64(avail) - math.Max(slope, 0)*after.Seconds()
	if s.falling && s.depth > 0 && slope <= 1.25*s.steep {
		end := float64(s.peak) - 1.1*float64(s.depth)
		if end <= float64(avail) {
			return math.Max(linear, end)
		}
	}
	return linear
}
