package acting

import (
	"fmt"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/sampler/throttle"
)

// Slow follows whether the pace has been slower than allowed for as long as allowed
// (--max-slowdown). It counts the time of steps and not of the clock: a pause, a
// checkpoint and an evaluation are in no block of steps.
type Slow struct {
	// Factor is from how many times the usual time on a step is too slow, For how long
	// that may go on.
	Factor float64
	For    time.Duration

	attempt, block int
	blocks         int
	// seconds of slow steps in a row, which should have taken want.
	seconds, want float64
}

// slowBlocks are needed in a row at least, however short For is: one may have something
// in it that happens once.
const slowBlocks = 2

// Take takes the comparison of the latest block of steps, the same one as often as one
// likes, and says whether the limit is passed.
func (s *Slow) Take(b throttle.Slowness) (over bool) {
	if b.Attempt != s.attempt {
		*s = Slow{Factor: s.Factor, For: s.For, attempt: b.Attempt}
	}
	if b.Block != s.block {
		s.block = b.Block
		switch {
		case !b.Slower.OK || b.Excused:
			// It says nothing, neither way.
		case b.Slower.V > s.Factor:
			s.blocks++
			s.seconds += b.Seconds
			s.want += b.Seconds / b.Slower.V
		default:
			s.blocks, s.seconds, s.want = 0, 0, 0
		}
	}
	return s.blocks >= slowBlocks && s.seconds >= s.For.Seconds()
}

// Ratio is how many times longer the slow steps have taken so far, 0 without any.
func (s *Slow) Ratio() float64 {
	if s.want <= 0 {
		return 0
	}
	return s.seconds / s.want
}

// Lasted is for how long steps have been too slow, without pauses.
func (s *Slow) Lasted() time.Duration { return time.Duration(s.seconds * float64(time.Second)) }

// Words say what was seen, in a sentence's part.
func (s *Slow) Words() string {
	return fmt.Sprintf("for %s of training a step has taken %.2g times as long as before, and --max-slowdown allows %g times for %s", span(s.Lasted()), s.Ratio(), s.Factor, span(s.For))
}

// span writes a time as one says it.
func span(d time.Duration) string { return clock.Span(d) }
