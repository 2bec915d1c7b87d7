package standalone

import "time"

const (
	// late is how long a row waits for its reading: a little longer than the sensors
	// process waits for a driver, so that a reading which says that nothing is known
	// comes first.
	late = 2 * time.Second
	// asleep is by how much longer than that nothing may have happened before it is clear
	// that this process did not run: the machine slept, or it was stopped. Rows of such a
	// time are left out, as nobody looked.
	asleep = 10 * time.Second
)

// schedule says which row a reading belongs to. Rows are due at base, base+interval,
// base+2*interval and so on: a late row moves none of those after it. All times are
// CLOCK_BOOTTIME, which goes on during suspend.
type schedule struct {
	base, interval time.Duration
	// next is the first row that is not decided yet.
	next int64
}

// slot is one row that is to be written now.
type slot struct {
	// due is the instant of a row for which there is no reading.
	due time.Duration
	// read says that it takes the reading that was given.
	read bool
	// missed is how many rows before this one are left out.
	missed int
}

func (s *schedule) due(n int64) time.Duration { return s.base + time.Duration(n)*s.interval }

// reading takes a reading of the instant t and returns the rows to be written: those that
// have waited for one in vain, then the one it belongs to. None, when no row is due yet.
func (s *schedule) reading(t time.Duration) []slot {
	if t < s.due(s.next) {
		return nil
	}
	n := int64((t - s.base) / s.interval)
	out, missed := s.until(n)
	s.next = n + 1
	return append(out, slot{read: true, missed: missed})
}

// overdue returns the rows that are not to wait any longer at the instant now.
func (s *schedule) overdue(now time.Duration) []slot {
	n := s.next
	if last := now - late; last >= s.due(n) {
		n = int64((last-s.base)/s.interval) + 1
	}
	out, missed := s.until(n)
	if missed > 0 {
		// The last of a time that nobody looked at is the first one after it.
		out = append(out, slot{due: s.due(n - 1), missed: missed - 1})
	}
	s.next = n
	return out
}

// until returns the rows from next up to n, which is left out, and how many of them are
// left out since this process did not run.
func (s *schedule) until(n int64) (out []slot, missed int) {
	if n > s.next && s.due(n-1)-s.due(s.next) > asleep+s.interval {
		return nil, int(n - s.next)
	}
	for ; s.next < n; s.next++ {
		out = append(out, slot{due: s.due(s.next)})
	}
	return out, 0
}

// wait is how long there is nothing to do without a reading.
func (s *schedule) wait(now time.Duration) time.Duration {
	return max(s.due(s.next)+late-now, time.Millisecond)
}

// step is the time between readings for rows every interval: about a second, so that the
// first row and all others are an interval apart, and a whole part of the interval where
// there is one, so that a reading is taken at the instant at which a row is due.
func step(interval time.Duration) time.Duration {
	for n := max(interval/time.Second, 1); n < 2*interval/time.Second+2; n++ {
		if interval%n == 0 {
			return interval / n
		}
	}
	return time.Second
}
