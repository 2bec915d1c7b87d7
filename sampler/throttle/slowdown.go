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
	// markT is when the latest checkpoint or evaluation was seen.
	markT time.Time
	mark  string
	// unmarked is how many steps in a row were left out as those with a mark.
	unmarked int
	// procs are the processes on the GPU when they were last listed, at procsAt: some
	// sources list them with one reading in ten.
	procs   []sample.GPUProcess
	procsAt time.Time

	recent [stepClipOf]float64 // the latest steps, to tell a spike before there is a baseline
	seen   int

	tokens      sample.Num // at the latest count
	tokenSec    float64    // seconds of steps since
	tokenBroken bool

	around surroundings
	// making is what was around since the latest step, cur the block under way.
	making environment
	cur    block
	from   time.Time // where cur begins
	spike  bool      // the step before was one
	before float64   // the seconds of that step
	base   baseline
	judged judgement // of the latest whole block
	nowS   sample.Num
	// latest is that block, blocks how many there were.
	latest block
	blocks int

	// lead are the latest blocks that were not slow beyond doubt, doubts those since the
	// latest good one, which are not learned yet.
	lead, doubts []judgedBlock
	// edge is a block in which some steps were slow, kept until the next one shows
	// whether a slow state began in it.
	edge     *block
	edgeFrom time.Time
	// suspect is the first slow block, kept until the next one confirms it or not.
	suspect     *block
	suspectFrom time.Time
	who         []sample.GPUProcess // on the GPU then
	came        []int               // and at the block before
	down        *paceEpisode
	again       memory
	stalls      stalls
	// pending are the marks in the latest block, if that was none of the slow ones.
	pending [2]int

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
	c.markT, c.mark = t, kind
	c.cur.env.marks[markIndex(kind)]++
}

// procsFor is for how long a list of the processes on the GPU is believed.
const procsFor = 2 * time.Minute

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
	env := &c.making
	if d.slow.paused {
		env = new(environment) // what stands still shows nothing
	}
	if len(s.Processes) > 0 {
		c.procs, c.procsAt = append(c.procs[:0], s.Processes...), s.T
	} else if s.T.Sub(c.procsAt) > procsFor {
		c.procs = c.procs[:0]
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
		c.making, c.cur.env, c.from = environment{}, environment{}, s.T
	}
	switch f := d.pace.last; {
	case f.n <= 0:
	case d.slow.paused || f.stepS > stepMost:
		c.making, c.tokenBroken = environment{}, true
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
	marked := c.marked(f, s.T)
	base := d.pace.baseline(d.cfg)
	// A step with a checkpoint or an evaluation in it is a pause where it is long.
	// Where each step has one, a mark says nothing of them.
	marked = marked && base.OK && f.stepS > 1.5*base.V
	if marked {
		c.unmarked++
	}
	// An evaluation is not what steps look like.
	around := c.making
	c.making = environment{}
	if c.broken || marked && c.unmarked <= unmarkedMost {
		if e := c.down; e != nil && !c.broken && e.good == 0 && !e.stalls && !e.byToken {
			// What is in it beside the evaluation is as slow as the others.
			want := f.n * c.base.step
			e.steps, e.sec, e.want = e.steps+f.n, e.sec+want*e.now, e.want+want
		}
		c.broken, c.tokenBroken = false, true
		return
	}
	c.cur.env.merge(&around)
	if !marked {
		c.unmarked = 0
	}
	c.recent[c.seen%stepClipOf] = f.stepS
	c.seen++
	c.first.made += f.n
	if c.first.made > float64(d.cfg.SlowStart.SettleSteps) && !d.disturbed() && c.down == nil {
		c.steady += f.n
	}
	limit := 1 + float64(d.cfg.Pace.Up)
	spike := clip > 0 && f.stepS > clip
	// Where all steps are that long, one that is far longer still stands alone.
	lone := spike && (!c.spike || f.stepS > stepClip*c.before)
	sec := c.cur.take(f.n, f.stepS, clip, lone)
	c.before = f.stepS
	c.spike = spike
	c.stalls.cur.take(f, spike && c.base.known())
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

// unmarkedMost is how many steps in a row are left out because of a mark in them.
const unmarkedMost = 3

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
	if j.whole > 0 {
		c.nowS = sample.Known(k.all() / k.n)
	}
	c.latest, c.blocks = k, c.blocks+1
	if c.start != nil {
		d.goOnStart(out, s, &k)
	}
	c.freed(&k, !j.good() || c.down != nil)
	d.judgeStalls(out, s, r, &k, from, j)
	switch {
	case c.down != nil && c.down.stalls:
		// Its spans are judged as a whole.
	case c.down != nil:
		d.goOn(out, s, r, &k, from, j)
	case j.slow() && c.suspect == nil:
		c.edge = nil
		c.suspect, c.suspectFrom, c.who = &k, from, cloneProcesses(c.procs)
	case j.slow():
		d.begin(out, s, r, &k, j)
	default:
		if c.suspect != nil {
			d.doubt(c.suspect, c.suspectFrom) // it was nothing, and shows how blocks scatter
			c.keep(c.suspect, c.suspectFrom, from)
			c.suspect = nil
		}
		c.keep(&k, from, s.T)
		if c.edge != nil {
			d.learn(c.edge, c.edgeFrom, false)
			c.edge = nil
		}
		if j.known && j.ratio > j.limit {
			c.edge, c.edgeFrom = &k, from
			return
		}
		if j.known && !j.good() && len(c.base.kept) >= doubtFrom {
			d.doubt(&k, from)
			return
		}
		for i := range c.doubts {
			d.learn(&c.doubts[i].k, c.doubts[i].from, false)
		}
		c.doubts = c.doubts[:0]
		d.learn(&k, from, true)
	}
}

// freed counts the checkpoints and evaluations that cost nothing: the block they were in
// and the next one were as fast as any. cost says that this one was not.
func (c *course) freed(k *block, cost bool) {
	if cost {
		c.pending = [2]int{}
		return
	}
	for i, n := range c.pending {
		c.base.free[i] += n
	}
	c.pending = k.env.marks
}

// learn takes an undisturbed block into the attempt's own pace. With now it is the
// latest one.
func (d *Detector) learn(k *block, from time.Time, now bool) {
	c := &d.slow.course
	if !k.env.undisturbed() {
		return
	}
	// Who was there a block ago did not come just before the pace fell.
	c.base.learn(k, from, c.came)
	if now {
		c.came = nil
		for _, p := range c.procs[:min(len(c.procs), pidsMost)] {
			if !c.base.pids[p.PID] {
				c.came = append(c.came, p.PID)
			}
		}
	}
	d.settle()
}

// settle gives the attempt's own pace to what is measured by single steps.
func (d *Detector) settle() {
	c := &d.slow.course
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

// causeOf looks for the cause of what went on in an environment, which began at from
// and in which work took ratio times as long. With marks, it may be a checkpoint's or
// an evaluation's doing.
func (d *Detector) causeOf(now environment, from time.Time, ratio float64, marks bool) finding {
	c := &d.slow.course
	for i, typ := range throttleCauses {
		// An episode is told only when it has lasted, and by then has been there for longer.
		e := d.open[typ]
		if e == nil {
			continue
		}
		there := d.last.Sub(later(e.since, from)).Seconds()
		now.openS[i] = max(now.openS[i], there)
		if e.signOnly() {
			now.signS = max(now.signS, there)
		}
	}
	others := append(cloneProcesses(c.procs), c.who...)
	return clue{
		now: &now, base: &c.base.env, others: others, known: c.base.pids, names: d.Names,
		ratio: ratio, free: c.base.free, noMarks: !marks, clockCap: d.clockCap,
	}.find(d.cfg.Slowdown)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// begin starts a slowdown: the second block in a row is slow.
func (d *Detector) begin(out *[]event.Event, s *sample.Sample, r reading, k *block, j judgement) {
	c := &d.slow.course
	e := d.newSlowdown(s.T, c.suspectFrom, j.byToken)
	env := c.suspect.env
	env.merge(&k.env)
	// Blocks that were taken for the attempt's own pace while too little of it was known.
	early := c.base.prune(d.cfg)
	if len(early) == 0 {
		d.takeLead(e, &env, told(k, j))
	}
	c.lead, c.doubts = nil, nil
	for _, l := range early {
		if l.from.Before(e.since) {
			e.since = l.from
		}
		was := c.base.judge(&l.k, d.cfg)
		e.add(&l.k, told(&l.k, was), c.base.expected(&l.k, was))
		env.merge(&l.k.env)
	}
	d.settle()
	f := d.causeOf(env, e.since, told(k, j), true)
	was := c.base.judge(c.suspect, d.cfg)
	e.add(c.suspect, told(c.suspect, was), c.base.expected(c.suspect, was))
	e.add(k, told(k, j), c.base.expected(k, j))
	e.causes.add(f, env.sec)
	e.told, e.level = f, c.levelOf(f)
	e.slowSec = c.suspect.full + k.full
	c.suspect, c.who = nil, nil
	c.down = e
	d.pace.slow = true
	if e.muted = c.again.is(e, f, s.T); !e.muted {
		*out = append(*out, e.startEvent(r))
	}
}

// newSlowdown is a slowdown that begins now.
func (d *Detector) newSlowdown(t, since time.Time, byToken bool) *paceEpisode {
	c := &d.slow.course
	return &paceEpisode{
		typ: Slowdown, id: episodeID(Slowdown, t), attempt: d.attempt, since: since, until: t,
		base: c.base.stepS(), baseTokens: c.base.tokensPerS(), byToken: byToken,
	}
}

// levelOf is how loud a slowdown of that cause is: one warning of one thing. A
// checkpoint, an evaluation and our own limit are no fault.
func (c *course) levelOf(f finding) event.Level {
	if c.warned[f.cause] || f.mark() || f.own {
		return event.Info
	}
	return event.Warn
}

// told is by how much a block is slower, with all that its steps took: what was
// clipped to judge it is no figure to tell.
func told(k *block, j judgement) float64 {
	v := j.ratio
	if j.calm > 0 {
		v = min(v, j.calm) // the slowest time alone may be something else
	}
	switch {
	case j.whole > 0:
		return max(v, j.whole)
	case v > clippedFrom && k.sec > 0:
		return v * k.unclipped()
	}
	return v
}

// goOn takes a block, which began at from, into an open slowdown.
func (d *Detector) goOn(out *[]event.Event, s *sample.Sample, r reading, k *block, from time.Time, j judgement) {
	c := &d.slow.course
	e := c.down
	switch {
	case !j.known:
		return
	case j.good() && j.ratio > j.limit && e.good == 0 && !e.tail:
		// It ended within this block.
		e.tail = true
		e.add(k, told(k, j), c.base.expected(k, j))
		return
	case j.good():
		e.slowSec = 0
		e.wait(k, j.ratio, c.base.expected(k, j))
		if e.good >= 2 && s.T.Sub(e.until) >= seconds(d.cfg.Slowdown.QuietS) {
			d.endDown(out, s.T, EndedRecovered)
			d.learn(k, from, true)
		}
		return
	}
	e.resume()
	e.until, e.tail = s.T, false
	e.add(k, told(k, j), c.base.expected(k, j))
	e.slowSec += k.full
	f := d.causeOf(k.env, from, told(k, j), !e.noMarks)
	e.causes.add(f, k.env.sec)
	if ep := d.open[f.cause]; ep != nil && !ep.since.After(e.since.Add(seconds(d.cfg.Slowdown.WindowS))) {
		e.causes.move(f.cause)
	}
	d.unmark(out, r, k, from, f)
	if e.muted && !c.again.still(e, s.T) {
		e.muted, e.told = false, f
		e.level = c.levelOf(f)
		*out = append(*out, e.startEvent(r))
	}
}

// unmark takes a slowdown that was put down to a checkpoint or an evaluation for what
// it is where it goes on beyond what these explain: it is a fault then, and told again.
func (d *Detector) unmark(out *[]event.Event, r reading, k *block, from time.Time, f finding) {
	c := &d.slow.course
	e := c.down
	if e.noMarks || !e.causes.marked() {
		return
	}
	if f.mark() {
		e.beyond = 0
	} else {
		e.beyond++
	}
	if e.beyond < 2 && e.slowSec < 2*float64(d.cfg.Slowdown.MarkS) {
		return
	}
	e.noMarks = true
	f = d.causeOf(k.env, from, e.now, false)
	e.causes.unmark(f)
	was := e.level
	if e.level = c.levelOf(f); e.level != was && !e.muted {
		e.told = f
		*out = append(*out, e.updateEvent(r))
	}
}

// otherwiseSlow tells that the steps are slower for a reason that is known and is not
// the GPU's, or are not slower at all by the token.
func (d *Detector) otherwiseSlow() bool {
	c := &d.slow.course
	if c.judged.byToken && c.judged.known && c.judged.ratio < 1+float64(d.cfg.Pace.Up) {
		return true
	}
	if c.down == nil {
		return false
	}
	switch f, _ := c.down.causes.top(); f.cause {
	case CauseMemory, CauseGPUProcess, CauseInput:
		return true
	}
	return false
}

// endDown closes the open slowdown.
func (d *Detector) endDown(out *[]event.Event, t time.Time, how string) {
	c := &d.slow.course
	e := c.down
	c.down = nil
	d.pace.slow = false
	d.slow.count(e)
	f, _ := e.causes.top()
	if how == EndedRecovered && !e.stalls && (f.mark() || f.cause == CauseUnknown && c.base.token == 0) {
		// Rows of other lengths, perhaps, which nobody told, or an upload behind each
		// checkpoint: the same again is no news.
		c.again.of(f.cause).seen(e, t)
	}
	if !e.muted {
		*out = append(*out, e.endEvent(t, how))
	}
}

// closePace ends what is open about pace.
func (d *Detector) closePace(out *[]event.Event, t time.Time, how string) {
	c := &d.slow.course
	if e := c.down; e != nil {
		// Steps that are in no whole block yet count all the same.
		if c.cur.times > 0 && e.good == 0 && !e.stalls {
			j := c.base.judge(&c.cur, d.cfg)
			if j.known && j.ratio > 1 {
				e.add(&c.cur, told(&c.cur, j), c.base.expected(&c.cur, j))
				e.until = c.lastT
			}
		}
		d.endDown(out, t, how)
	}
	if c.start != nil {
		d.endStart(out, t, how)
	}
	c.cur, c.from, c.suspect, c.edge, c.stalls.cur = block{}, t, nil, nil, span{}
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
		s.Pace.Slower = sample.Known(told(&c.latest, c.judged))
	}
	if c.stalls.slower.OK {
		s.Pace.NowS, s.Pace.Slower = c.stalls.nowS, c.stalls.slower
	}
}
