package throttle

import "time"

// A slow state is found by its second block in a row beyond doubt. Where the steps
// scatter, blocks before those were slow as well and within doubt, and where a block is
// long it began within one. Both belong to it.

// leadMost is how many blocks before it are looked at: with blocks of a minute ten
// minutes, as long as anything else here takes to be told.
const leadMost = 10

// doubtFrom is from how many blocks on the baseline knows how they scatter: a doubtful one
// is learned at once before. (Own choice.)
const doubtFrom = 15

// judgedBlock is a block that was not slow beyond doubt.
type judgedBlock struct {
	k        block
	from, to time.Time
}

// keep remembers a block that ended at to.
func (c *course) keep(k *block, from, to time.Time) {
	if len(c.lead) == leadMost {
		c.lead = append(c.lead[:0], c.lead[1:]...)
	}
	c.lead = append(c.lead, judgedBlock{*k, from, to})
}

// doubt takes a block that is neither good nor slow beyond doubt. It is learned when a good
// one shows that it was scatter, or after so many more of them: a slow state whose first
// blocks count as scatter would raise the limit as it goes, and hide itself.
func (d *Detector) doubt(k *block, from time.Time) {
	c := &d.slow.course
	if c.doubts = append(c.doubts, judgedBlock{k: *k, from: from}); len(c.doubts) > leadMost {
		d.learn(&c.doubts[0].k, c.doubts[0].from, false)
		c.doubts = append(c.doubts[:0], c.doubts[1:]...)
	}
}

// takeLead takes the blocks right before the slowdown in that belong to it: those that
// were as slow within doubt, and the slow steps of the one in which it began, of which
// only the time they took too long is known.
func (d *Detector) takeLead(e *paceEpisode, env *environment, ratio float64) {
	c := &d.slow.course
	for i := len(c.lead) - 1; i >= 0 && c.lead[i].to.Equal(e.since); i-- {
		l := &c.lead[i]
		j := c.base.judge(&l.k, d.cfg)
		if !j.known {
			break
		}
		over := l.k.all() - c.base.expected(&l.k, j)
		if j.good() {
			if j.ratio > j.limit && ratio > 1 && over > 0 {
				slow := min(over*ratio/(ratio-1), l.k.all())
				e.since = later(l.from, e.since.Add(-seconds(Limit(slow))))
				e.steps, e.sec, e.want = e.steps+l.k.n*slow/l.k.all(), e.sec+slow, e.want+slow-over
			}
			break
		}
		e.since = l.from
		e.add(&l.k, told(&l.k, j), c.base.expected(&l.k, j))
		env.merge(&l.k.env)
	}
	c.lead = nil
}
