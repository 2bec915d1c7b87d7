package clock

import (
	"math"
	"strconv"
	"time"
)

// Span writes a length of time as a person would say it, in two digits or three: 81 ms, 3 s,
// 5.5 s, 90 s, 3.2 min, 45 min, 7.5 h. Halves are rounded up, so that a figure reads the
// same wherever it is told.
func Span(d time.Duration) string {
	rounded := func(v float64, parts float64) string {
		return strconv.FormatFloat(math.Round(v*parts)/parts, 'f', -1, 64)
	}
	switch s := d.Seconds(); {
	case s < 0.095:
		return rounded(s*1000, 1) + " ms"
	case s < 9.95:
		return rounded(s, 10) + " s"
	case s < 119.5:
		return rounded(s, 1) + " s"
	case s < 9.95*60:
		return rounded(s/60, 10) + " min"
	case s < 119.5*60:
		return rounded(s/60, 1) + " min"
	default:
		return rounded(s/3600, 10) + " h"
	}
}
