package throttle

import "time"

// window holds the readings of the last span and their means.
type window struct {
	span   time.Duration
	points []point
	sum    values
}

// columns is how many values a reading can have in a window.
const columns = 7

type values [columns]float64

type point struct {
	t time.Time
	v values
}

func newWindow(span time.Duration) *window { return &window{span: span} }

// add takes the next reading. After a gap it starts anew: a mean over time in
// which nothing was known is no mean.
func (w *window) add(t time.Time, gap time.Duration, v ...float64) {
	if n := len(w.points); n > 0 && t.Sub(w.points[n-1].t) > gap {
		w.clear()
	}
	p := point{t: t}
	copy(p.v[:], v)
	w.points = append(w.points, p)
	for i, v := range p.v {
		w.sum[i] += v
	}
	// One reading from before the span stays, so that the span is covered.
	for len(w.points) > 1 && t.Sub(w.points[1].t) >= w.span {
		for i, v := range w.points[0].v {
			w.sum[i] -= v
		}
		w.points = w.points[1:]
	}
}

func (w *window) clear() {
	w.points, w.sum = w.points[:0], values{}
}

// full tells whether the readings cover the span.
func (w *window) full() bool {
	n := len(w.points)
	return n > 1 && w.points[n-1].t.Sub(w.points[0].t) >= w.span
}

// start is the time of the oldest reading, oldest the reading itself.
func (w *window) start() time.Time { return w.points[0].t }

func (w *window) oldest(i int) float64 { return w.points[0].v[i] }

func (w *window) newest(i int) float64 { return w.points[len(w.points)-1].v[i] }

// mean returns the mean of column i, zero without readings.
func (w *window) mean(i int) float64 {
	if len(w.points) == 0 {
		return 0
	}
	return w.sum[i] / float64(len(w.points))
}
