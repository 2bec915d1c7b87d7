package throttle

import "time"

// spacing is how often somebody looks. With a sample each minute, a minute without
// one is no gap.
type spacing struct {
	last [4]time.Duration
	n    int
}

// spacingMost is the slowest sampling there is; what is longer is a machine that
// slept.
const spacingMost = 10 * time.Minute

func (s *spacing) take(d time.Duration) {
	s.last[s.n%len(s.last)] = d
	s.n++
}

// gap returns the least time without a reading that is a gap: two and a half
// samples, but at least the one given. The shortest of the latest spacings counts,
// so that one suspend makes no slow sampling.
func (s *spacing) gap(least time.Duration) time.Duration {
	if s.n < 2 {
		return least
	}
	usual := spacingMost
	for _, d := range s.last[:min(s.n, len(s.last))] {
		usual = min(usual, d)
	}
	return max(least, usual*5/2)
}
