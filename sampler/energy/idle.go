package energy

import (
	"slices"
	"time"

	"sparkrun/internal/sample"
)

// The idle GPU is the one of the last seconds before an attempt uses it: at most idleFor,
// seen idleReadings times at least, and to within idleLate of that moment. An attempt loads
// libraries for some seconds before it does.
const (
	idleFor      = 30 * time.Second
	idleLate     = 5 * time.Second
	idleReadings = 3
	idleKept     = 512
)

// idle has the newest readings of an unused GPU, without a break.
type idle struct {
	at    []time.Time
	watts []float64
}

// see takes a reading. One that shows work, or does not tell, ends what was idle.
func (i *idle) see(t time.Time, unused bool, watts sample.Num) {
	if !unused || !watts.OK {
		*i = idle{}
		return
	}
	for len(i.at) > 0 && (t.Sub(i.at[0]) > idleFor || len(i.at) >= idleKept) {
		i.at, i.watts = i.at[1:], i.watts[1:]
	}
	i.at, i.watts = append(i.at, t), append(i.watts, watts.V)
}

// before returns the power of the idle GPU up to t: the median,
// since the power of the attempt before sinks for some seconds.
func (i *idle) before(t time.Time) sample.Num {
	var w []float64
	var newest time.Time
	for n, at := range i.at {
		if !at.After(t) && t.Sub(at) <= idleFor {
			w, newest = append(w, i.watts[n]), at
		}
	}
	if len(w) < idleReadings || t.Sub(newest) > idleLate {
		return sample.Num{}
	}
	slices.Sort(w)
	if n := len(w); n%2 == 0 {
		return sample.Known((w[n/2-1] + w[n/2]) / 2)
	}
	return sample.Known(w[len(w)/2])
}
