package throttle

import (
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// Long steps that stand alone make no slow block: one is a checkpoint, an evaluation,
// a new epoch. Where there are many of them they cost as much as slow steps do, such
// as a loader that fetches its next shard. So the time of all steps is compared as
// well, over spans of ten minutes, with that of the attempt's first spans, in which
// regular evaluations are as well. The same shows what comes and goes in step with the
// blocks, so that no two in a row are slow.

// stallsMost is how many spans are kept to compare with, the first stallsFirst of them
// whatever is in them; stallsLeast is how many long steps a span must have: an
// evaluation each few minutes is no stall. stallsSlow is how many slow blocks, none of
// which had another behind it, do instead of them.
const (
	stallsMost  = 6
	stallsFirst = 2
	stallsLeast = 4
	stallsSlow  = 3
)

// span is a stretch of steps with all their time.
type span struct {
	n, sec float64
	long   int // steps of several times the baseline
	env    environment
	from   time.Time
	slow   int  // blocks that were slow
	rough  bool // it has an episode in it
}

func (s *span) take(f finished, long bool) {
	s.n += f.n
	s.sec += f.n * f.stepS
	if long {
		s.long++
	}
}

// often tells that what was slow in it is more than an evaluation now and then.
func (s *span) often() bool { return s.long >= stallsLeast || s.slow >= stallsSlow }

// stalls follows the spans of one attempt.
type stalls struct {
	cur span
	// usual are the seconds a step of calm spans.
	usual []float64
	// suspect is the first span with many stalls.
	suspect *span
	// nowS and slower are the pace of the latest span, while it is a slowdown.
	nowS, slower sample.Num
}

// judgeStalls takes a block that has ended into the present span, and judges that
// where it is long enough.
func (d *Detector) judgeStalls(out *[]event.Event, s *sample.Sample, r reading, k *block, from time.Time, j judgement) {
	c := &d.slow.course
	t := &c.stalls
	w := &t.cur
	if w.from.IsZero() {
		w.from = from
	}
	w.env.merge(&k.env)
	w.rough = w.rough || c.down != nil && !c.down.stalls || !k.env.undisturbed()
	if j.slow() {
		w.slow++
	}
	if !c.base.known() || !c.base.even || w.sec < float64(d.cfg.Slowdown.StallS) {
		return
	}
	now := *w
	*w = span{from: s.T}
	e := c.down
	if now.rough && (e == nil || !e.stalls) {
		t.suspect = nil
		return
	}
	per := now.sec / now.n
	t.nowS, t.slower = sample.Known(per), sample.Num{}
	usual := c.base.step
	for _, v := range t.usual {
		usual = max(usual, v)
	}
	ratio := per / usual
	slow := ratio >= 1+float64(d.cfg.Slowdown.StallUp)
	switch {
	case len(t.usual) < stallsFirst && now.slow < stallsSlow:
		t.usual = append(t.usual, per) // stalls that were always there are its pace
	case e != nil && slow:
		e.resume()
		d.addStalls(e, &now, ratio, usual)
		e.until = s.T
	case e != nil:
		e.wait(&block{n: now.n, full: now.sec}, ratio, now.n*usual)
		d.endDown(out, s.T, EndedRecovered)
		t.suspect = nil
	case slow && now.often() && t.suspect == nil:
		t.suspect = &now
	case slow && now.often():
		e := d.newSlowdown(s.T, t.suspect.from, false)
		e.stalls, e.base = true, sample.Known(usual)
		d.addStalls(e, t.suspect, t.suspect.sec/t.suspect.n/usual, usual)
		d.addStalls(e, &now, ratio, usual)
		e.told, _ = e.causes.top()
		e.level = c.levelOf(e.told)
		e.spikes = t.suspect.long + now.long
		t.suspect, c.suspect = nil, nil
		c.down, d.pace.slow = e, true
		*out = append(*out, e.startEvent(r))
	default:
		t.suspect = nil
		if len(t.usual) < stallsMost && now.slow == 0 {
			t.usual = append(t.usual, per)
		}
	}
}

// addStalls takes a span into a slowdown.
func (d *Detector) addStalls(e *paceEpisode, w *span, ratio, usual float64) {
	e.add(&block{n: w.n, full: w.sec}, ratio, w.n*usual)
	d.slow.stalls.slower = sample.Known(ratio)
	e.causes.add(d.causeOf(w.env, w.from, ratio, true), w.env.sec)
}
