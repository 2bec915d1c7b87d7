package throttle

import (
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// SlowStart and Slowdown are the types of episode about pace: slower than this
// machine's earlier runs from the first steps, and slower than the attempt itself
// was before.
const (
	SlowStart = "slow-start"
	Slowdown  = "slowdown"
)

// NamesFunc tells in a few words whose a process on the GPU is, such as its
// command line. It returns "" for a process of the training itself, or one that
// nothing can be said of; those are not named as a cause.
type NamesFunc func(pid int) string

// The kinds of Mark.
const (
	MarkCheckpoint = "checkpoint"
	MarkEval       = "eval"
)

// PaceSummary is the pace of an attempt.
type PaceSummary struct {
	// BaselineS is the attempt's own seconds a step, unknown before there were
	// enough steps; TokensPerS the same in tokens a second where they are told.
	BaselineS, TokensPerS sample.Num
	// NowS is the seconds a step of the latest block of steps, Slower how many
	// times longer than the baseline a step (or a token, where rows differ in
	// length) takes in it.
	NowS, Slower sample.Num
	// Steps is how many steady steps were made in this attempt with nothing known to
	// slow them, those of the first ones left out.
	Steps int
	// Compared says what the comparison with earlier runs gave: one of the constants
	// below, "" before there were enough steady steps.
	Compared string
}

// What a comparison with earlier runs gave.
const (
	ComparedNone   = "no baseline yet" // no earlier run of the same job
	ComparedNormal = "normal"
	ComparedSlow   = "slow"
)

// slowness follows the pace of one run; what is in course belongs to an attempt.
type slowness struct {
	history History
	paused  bool
	course
	sum map[string]paceSum
}

// paceSum adds up closed episodes of one type.
type paceSum struct {
	episodes         int
	seconds          float64
	lostS, lostSteps sample.Num
}

// course is the pace of one attempt.
type course struct {
	on      bool
	attempt int
	lastT   time.Time
	usual   time.Duration // between samples
	// broken says that something other than work lies in the steps being made: a
	// pause, a gap.
	broken bool
	// markT is when the latest checkpoint or evaluation was seen, marked that no
	// step has ended since.
	markT  time.Time
	mark   string
	marked bool

	recent [stepClipOf]float64 // the latest steps, to tell a spike before there is a baseline
	seen   int

	tokens      sample.Num // at the latest count
	tokenSec    float64    // seconds of steps since
	tokenBroken bool

	around surroundings
	cur    block
	from   time.Time // where cur begins
	spike  bool      // the step before was one
	base   baseline
	judged judgement // of the latest whole block
	nowS   sample.Num

	// suspect is the first slow block, kept until the next one confirms it or not.
	suspect     *block
	suspectFrom time.Time
	who         []sample.GPUProcess // on the GPU then
	came        []sample.GPUProcess // and at the block before
	down        *paceEpisode

	first firstSteps
	start *paceEpisode

	steady float64 // undisturbed steps
	// warned has the types of open episodes that have been told as a warning.
	warned map[string]bool
}

// stepClipOf is how many steps a spike is told from before there is a baseline.
const stepClipOf = 9

// Mark tells that a checkpoint or an evaluation was seen at the run's time t: kind
// is MarkCheckpoint or MarkEval. The step that is under way then counts for no
// pace where it is long, and the steps behind it are looked at for what they cost.
func (d *Detector) Mark(t time.Time, kind string) {
	c := &d.slow.course
	if kind != MarkCheckpoint && kind != MarkEval {
		return
	}
	c.markT, c.mark, c.marked = t, kind, true
}

// Paused tells that the training has been stopped (SIGSTOP), or goes on. What it
// stood still is no slow step.
func (d *Detector) Paused(on bool) {
	d.slow.paused = on
	d.slow.broken = true
}

// judgePace follows the pace of the training: it gives the sample's finished
// steps to the attempt's baseline and tells slow-start and slowdown.
func (d *Detector) judgePace(out *[]event.Event, s *sample.Sample, r reading) {
	c := &d.slow.course
	if !c.on || c.attempt != s.Attempt {
		*c = course{on: true, attempt: s.Attempt, markT: c.markT, mark: c.mark, from: s.T}
		d.slow.paused = false // whoever was stopped is gone
	}
	c.heed(*out)
	dt := time.Duration(0)
	if !c.lastT.IsZero() {
		dt = s.T.Sub(c.lastT)
		if most := max(d.gap(), 3*c.usual); dt > most {
			// Asleep, or nobody looked; unless it is looked as seldom as that.
			c.broken = true
			c.usual = min(dt, most)
			dt = 0
		} else {
			c.usual = dt
		}
	}
	c.lastT = s.T
	if s.Attempt == 0 {
		return
	}
	env := &c.cur.env
	if d.slow.paused {
		env = new(environment) // what stands still shows nothing
	}
	c.around.take(env, s, r, dt, d)
	if !c.markT.IsZero() && s.T.Sub(c.markT) <= seconds(d.cfg.Slowdown.MarkS) {
		if c.mark == MarkEval {
			env.eval += dt.Seconds()
		} else {
			env.checkpoint += dt.Seconds()
		}
	}
	if c.seen == 0 {
		// Loading the model is not what steps look like.
		c.cur.env, c.from = environment{}, s.T
	}
	switch f := d.pace.last; {
	case f.n <= 0:
	case d.slow.paused || f.stepS > stepMost:
		c.tokenBroken = true
	default:
		d.takeSteps(out, s, r, f)
	}
	c.countTokens(finite(s.Tokens))
	if c.cur.whole(d.cfg.Slowdown) && !c.base.wants(&c.cur, d.cfg) {
		d.closeBlock(out, s, r)
	}
}

// heed remembers which episodes have been told as a warning.
func (c *course) heed(events []event.Event) {
	for _, e := range events {
		typ, _ := e.Data["type"].(string)
		switch {
		case typ == "" || typ == Slowdown || typ == SlowStart:
		case e.Kind == event.ThrottleEnd:
			delete(c.warned, typ)
		case e.Level == event.Warn:
			if c.warned == nil {
				c.warned = map[string]bool{}
			}
			c.warned[typ] = true
		}
	}
}

// takeSteps takes the steps that a sample has finished.
func (d *Detector) takeSteps(out *[]event.Event, s *sample.Sample, r reading, f finished) {
	c := &d.slow.course
	clip := c.base.clip()
	if clip == 0 && c.seen >= stepClipOf {
		clip = paceOutlier * median(c.recent[:])
	}
	marked := c.marked
	c.marked = false
	base := d.pace.baseline(d.cfg)
	// A step with a checkpoint or an evaluation in it is a pause where it is long.
	if c.broken || marked && base.OK && f.stepS > 1.5*base.V {
		c.broken, c.tokenBroken = false, true
		return
	}
	c.recent[c.seen%stepClipOf] = f.stepS
	c.seen++
	c.first.made += f.n
	if c.first.made > float64(d.cfg.SlowStart.SettleSteps) && !d.disturbed() && c.down == nil {
		c.steady += f.n
	}
	limit := 1 + float64(d.cfg.Pace.Up)
	spike := clip > 0 && f.stepS > clip
	sec := c.cur.take(f.n, f.stepS, clip, spike && !c.spike)
	c.spike = spike
	c.tokenSec += sec
	if c.base.known() && c.base.even && f.stepS > limit*c.base.step {
		e := &c.cur.env
		if over := sec - f.n*c.base.step; !c.markT.IsZero() && s.T.Sub(c.markT) <= seconds(d.cfg.Slowdown.MarkS) {
			e.slowMarked += over
		} else {
			e.slowElse += over
		}
	}
	d.judgeStart(out, s, r, f.n, sec)
}

// countTokens takes how many tokens were trained on so far.
func (c *course) countTokens(now sample.Num) {
	if !now.OK || now.V <= 0 || c.tokens.OK && now.V == c.tokens.V {
		return
	}
	was := c.tokens
	c.tokens = now
	if was.OK && now.V > was.V && !c.tokenBroken && c.tokenSec > 0 {
		g := grain(now.V)
		if c.cur.grain == 0 || g < c.cur.grain {
			c.cur.grain = g
		}
		c.cur.tokens += now.V - was.V
		c.cur.tokenSec += c.tokenSec
		c.first.count(now.V-was.V, c.tokenSec, g)
	}
	c.tokenSec, c.tokenBroken = 0, false
}

// disturbed tells that the GPU is held back now: what is measured then is not the
// attempt's own pace.
func (d *Detector) disturbed() bool {
	return d.heldNow > 0 || d.open[PowerWedge] != nil || d.open[LowCap] != nil
}

// undisturbedPart is the part of a block in which the GPU may have been held back
// and the block still is one of the attempt's own pace: a unit that throttles for a
// second in each minute has no other.
const undisturbedPart = 0.05

// undisturbed says whether a block shows the attempt's own pace.
func (e *environment) undisturbed() bool {
	for i, typ := range throttleCauses {
		if (typ == PowerWedge || typ == LowCap) && e.openS[i] > 0 {
			return false
		}
	}
	return e.heldS <= undisturbedPart*e.sec
}

// closeBlock judges a block of steps that is long enough.
func (d *Detector) closeBlock(out *[]event.Event, s *sample.Sample, r reading) {
	c := &d.slow.course
	k, from := c.cur, c.from
	c.cur, c.from = block{}, s.T
	j := c.base.judge(&k, d.cfg)
	c.judged, c.nowS = j, sample.Known(k.perStep())
	if c.start != nil {
		d.goOnStart(out, s, &k)
	}
	switch {
	case c.down != nil:
		d.goOn(out, s, &k, j)
	case j.slow() && c.suspect == nil:
		c.suspect, c.suspectFrom, c.who = &k, from, cloneProcesses(s.Processes)
	case j.slow():
		d.begin(out, s, r, &k, j)
	default:
		if c.suspect != nil {
			d.learn(c.suspect, nil) // it was nothing, and shows how blocks scatter
			c.suspect = nil
		}
		d.learn(&k, s)
	}
}

// learn takes an undisturbed block into the attempt's own pace.
func (d *Detector) learn(k *block, s *sample.Sample) {
	c := &d.slow.course
	if !k.env.undisturbed() {
		return
	}
	c.base.learn(k)
	// Who was there a block ago did not come just before the pace fell.
	for _, p := range c.came {
		if c.base.pids == nil {
			c.base.pids = map[int]bool{}
		}
		if len(c.base.pids) < pidsMost {
			c.base.pids[p.PID] = true
		}
	}
	if s != nil {
		c.came = append(c.came[:0], s.Processes...)
	}
	d.pace.settled = sample.Num{}
	if c.base.known() && c.base.even {
		d.pace.settled = sample.Known(c.base.step)
	}
}

// stepMost is the longest step in seconds that is believed; a longer one is a number
// that means something else.
const stepMost = 1e6

// pidsMost bounds how many processes on the GPU are remembered.
const pidsMost = 256

func cloneProcesses(p []sample.GPUProcess) []sample.GPUProcess {
	return append([]sample.GPUProcess(nil), p...)
}

// causeOf looks for the cause of what went on in an environment.
func (d *Detector) causeOf(now *environment, s *sample.Sample) finding {
	c := &d.slow.course
	others := append(cloneProcesses(s.Processes), c.who...)
	return clue{now: now, base: &c.base.env, others: others, known: c.base.pids, names: d.Names}.find(d.cfg.Slowdown)
}

// begin starts a slowdown: the second block in a row is slow.
func (d *Detector) begin(out *[]event.Event, s *sample.Sample, r reading, k *block, j judgement) {
	c := &d.slow.course
	e := &paceEpisode{
		typ: Slowdown, id: episodeID(Slowdown, s.T), attempt: d.attempt, since: c.suspectFrom, until: s.T,
		base: c.base.stepS(), baseTokens: c.base.tokensPerS(), byToken: j.byToken,
	}
	env := c.suspect.env
	env.merge(&k.env)
	f := d.causeOf(&env, s)
	was := c.base.judge(c.suspect, d.cfg)
	e.add(c.suspect, was.ratio, c.base.expected(c.suspect, was))
	e.add(k, j.ratio, c.base.expected(k, j))
	e.causes.add(f, env.sec)
	e.told = f
	e.level = event.Warn
	if c.warned[f.cause] || f.cause == CauseCheckpoint || f.cause == CauseEval {
		e.level = event.Info // one warning of one thing; and those are no fault
	}
	c.suspect, c.who = nil, nil
	c.down = e
	d.pace.slow = true
	*out = append(*out, e.startEvent(r))
}

// goOn takes a block into an open slowdown.
func (d *Detector) goOn(out *[]event.Event, s *sample.Sample, k *block, j judgement) {
	c := &d.slow.course
	e := c.down
	switch {
	case !j.known:
		return
	case j.good():
		e.wait(k, j.ratio, c.base.expected(k, j))
		if e.good >= 2 && s.T.Sub(e.until) >= seconds(d.cfg.Slowdown.QuietS) {
			if f, _ := e.causes.top(); f.cause == CauseUnknown && c.base.token == 0 {
				// Rows of other lengths, perhaps, which nobody told: the same again is
				// no news.
				c.base.excused = max(c.base.excused, e.worst*excusedMore)
			}
			d.endDown(out, s.T, EndedRecovered)
			d.learn(k, s)
		}
		return
	}
	e.resume()
	e.until = s.T
	e.add(k, j.ratio, c.base.expected(k, j))
	f := d.causeOf(&k.env, s)
	e.causes.add(f, k.env.sec)
	if ep := d.open[f.cause]; ep != nil && !ep.since.After(e.since.Add(seconds(d.cfg.Slowdown.WindowS))) {
		e.causes.move(f.cause)
	}
}

// endDown closes the open slowdown.
func (d *Detector) endDown(out *[]event.Event, t time.Time, how string) {
	c := &d.slow.course
	e := c.down
	c.down = nil
	d.pace.slow = false
	d.slow.count(e)
	*out = append(*out, e.endEvent(t, how))
}

// closePace ends what is open about pace.
func (d *Detector) closePace(out *[]event.Event, t time.Time, how string) {
	c := &d.slow.course
	if e := c.down; e != nil {
		// Steps that are in no whole block yet count all the same.
		if c.cur.times > 0 && e.good == 0 {
			j := c.base.judge(&c.cur, d.cfg)
			if j.known && j.ratio > 1 {
				e.add(&c.cur, j.ratio, c.base.expected(&c.cur, j))
				e.until = c.lastT
			}
		}
		d.endDown(out, t, how)
	}
	if c.start != nil {
		d.endStart(out, t, how)
	}
	c.cur, c.from, c.suspect = block{}, t, nil
}

// count adds a closed episode.
func (w *slowness) count(e *paceEpisode) {
	if w.sum == nil {
		w.sum = map[string]paceSum{}
	}
	p := w.sum[e.typ]
	p.add(e)
	w.sum[e.typ] = p
}

func (p *paceSum) add(e *paceEpisode) {
	p.episodes++
	p.seconds += e.until.Sub(e.since).Seconds()
	p.lostS = sample.Known(p.lostS.Or(0) + e.lost())
	if steps := e.lostSteps(); steps.OK {
		p.lostSteps = sample.Known(p.lostSteps.Or(0) + steps.V)
	}
}

// sumPace adds what is about pace to the summary. The time lost to a slowdown is
// not in Summary.LostS: throttling may have cost it, and is counted there.
func (d *Detector) sumPace(s *Summary) {
	c := &d.slow.course
	for _, typ := range []string{SlowStart, Slowdown} {
		p := d.slow.sum[typ]
		for _, e := range []*paceEpisode{c.start, c.down} {
			if e != nil && e.typ == typ {
				p.add(e)
			}
		}
		if p.episodes > 0 {
			s.ByType[typ] = TypeSummary{Episodes: p.episodes, Seconds: p.seconds, LostS: p.lostS, LostSteps: p.lostSteps}
		}
	}
	s.Pace = PaceSummary{
		BaselineS: d.pace.baseline(d.cfg), TokensPerS: c.base.tokensPerS(),
		NowS: c.nowS, Steps: int(c.steady), Compared: c.first.compared,
	}
	if c.base.known() {
		s.Pace.BaselineS = c.base.stepS()
	}
	if !s.Pace.TokensPerS.OK {
		s.Pace.TokensPerS = c.first.rate
	}
	if c.judged.known {
		s.Pace.Slower = sample.Known(c.judged.ratio)
	}
}
