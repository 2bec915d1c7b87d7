package progress

import (
	"bytes"
	"math"
	"strings"
	"time"

	"sparkrun/internal/sample"
)

// maxLine bounds a line that is looked into. Trainers print nothing of interest
// in longer ones, and data does.
const maxLine = 16 << 10

// Options are what the command says of its training.
type Options struct {
	// Set names a pattern set of the table; empty, or one that is not there, is
	// "generic".
	Set string
	// PerLog is how many optimizer steps lie between two logged losses, 0 if unknown.
	PerLog int64
	// Total is the number of optimizer steps, Epochs of passes over the data, as the
	// command or its configuration states them; 0 if unknown.
	Total, Epochs int64
	// Accumulation is how many micro-batches one optimizer step takes on each device,
	// for bars that count those; 0 is 1.
	Accumulation int64
	// Trusted is set where a profile fits: its first bar without a name is then the
	// training's.
	Trusted bool
}

// Progress reads the output of one attempt and keeps what one line alone does not
// tell: the last step and which bar is the training's. It is not safe for concurrent
// use.
type Progress struct {
	t     *table
	set   *set
	o     Options
	sieve *sieve

	// total is the number of optimizer steps, 0 while unknown; fixed is set where
	// a header, a record or a line told it, assumed where only the command did.
	total, epochs  int64
	headEpochs     int64 // as a header tells them
	fixed, assumed bool
	n              int64
	any            bool // a step was seen
	finished       bool

	bar   tracked
	other other
	cand  candidate
	// stage is what earlier trainings of this attempt did, which the numbers of the
	// present one are added to; base is what earlier epochs did where the bar begins
	// again with each, baseMicro the same in micro-batches.
	stage, base, baseMicro int64

	// top is the highest number a line named in this stage; low counts the lines
	// since it began again far below, lowLast is the last of them.
	top, lowLast int64
	low          int

	// logs counts losses that came without a step and without a bar, from resumed on.
	logs, resumed int64
	explicit      bool // step numbers are told: logs need not be counted
	lastLog       [2]string

	clock
	lower []byte
}

// New returns the reader of one attempt.
func New(o Options) *Progress {
	t, err := loadTable()
	if err != nil {
		// A test proves that the built-in table can be read.
		t = &table{}
	}
	return newProgress(t, o)
}

func newProgress(t *table, o Options) *Progress {
	s := t.Sets[o.Set]
	if s == nil {
		s = t.Sets["generic"]
	}
	if s == nil {
		s = &set{}
	}
	bound := func(n int64) int64 { return min(max(n, 0), maxCount) }
	o.Total, o.PerLog, o.Accumulation = bound(o.Total), bound(o.PerLog), max(bound(o.Accumulation), 1)
	o.Epochs = min(bound(o.Epochs), maxEpochs)
	return &Progress{t: t, set: s, o: o, sieve: newSieve(s.triggers, t.Checkpoints, t.Keys.signs()), total: o.Total, assumed: o.Total > 0, epochs: o.Epochs}
}

// Line reads one line of output, or one piece of a line between two carriage
// returns. It is false for a line that says nothing of the training.
func (p *Progress) Line(text string, t time.Time) (Step, bool) {
	if len(text) < 6 || len(text) > maxLine {
		return Step{}, false
	}
	look := p.worth(text)
	if look == (glance{}) {
		return Step{}, false
	}
	text = strip(text)
	var (
		st  Step
		any bool
	)
	for {
		piece, rest, more := strings.Cut(text, "\r")
		any = p.piece(&st, piece, look, t) || any
		if !more {
			break
		}
		text = rest
	}
	return p.done(st, any)
}

// Record reads one line of a trainer's own log file: JSON where the trainer writes
// that, else what it would print.
func (p *Progress) Record(record []byte, t time.Time) (Step, bool) {
	record = bytes.TrimSpace(record)
	if len(record) < 6 || len(record) > maxLine {
		return Step{}, false
	}
	text := string(record)
	if text[0] != '{' {
		return p.Line(text, t)
	}
	var st Step
	d, ok, _ := parseDict(text, true)
	return p.done(st, ok && p.dict(&st, d, t))
}

func (p *Progress) done(st Step, any bool) (Step, bool) {
	if !any {
		return Step{}, false
	}
	if p.total > 0 && p.n > p.total {
		// Whoever told the total was wrong.
		p.unknown()
	}
	st.N, st.Total = p.n, p.total
	if st.Bar || st.Advance || st.Loss.OK || st.NonFinite {
		st.Eval = false // an evaluation's line and the training's were glued together
	}
	return st, true
}

// piece reads one drawing or line.
func (p *Progress) piece(st *Step, text string, look glance, t time.Time) (any bool) {
	if look.bar {
		if b, ok := findBar(text); ok {
			any = p.takeBar(st, b, t)
		}
	}
	if look.dict {
		if i := strings.IndexByte(text, '{'); i >= 0 {
			if d, ok := findDict(text[i:]); ok {
				return p.dict(st, d, t) || any // a row of data may say anything
			}
		}
	}
	return any || look.words != 0 && p.words(st, text, look.words, t)
}

// dict takes what a printed dict or a JSON record says. It is false for one that is
// not about the training.
func (p *Progress) dict(st *Step, d dict, t time.Time) bool {
	k := &p.t.Keys
	if _, ok := d.get(k.Finished); ok {
		st.Finished, p.finished = true, true
		return true
	}
	step, hasStep := d.count(k.Step)
	total, _ := d.count(k.Total)
	if text, ok := d.get(k.Fraction); ok {
		if n, of, ok := counts(text); ok {
			step, hasStep, total = n, true, of
		}
	}
	loss, hasLoss := d.get(k.Loss)
	if !hasLoss {
		switch {
		case d.hasPrefix(k.Eval):
			p.disturbed = true
			st.Eval = true
			return true
		case !hasStep || total == 0: // a record of LLaMA-Factory's without a loss is progress all the same
			return false
		}
	} else if !setLoss(st, loss) {
		return false
	}
	if total > 0 {
		p.told(total)
	}
	if hasStep && p.beyond(step) {
		*st = Step{Bar: st.Bar, Advance: st.Advance, StepTimeS: st.StepTimeS}
		return st.Bar
	}
	st.ZeroOK = d.hasPrefix(k.ZeroOK)
	p.numbers(st, d)
	direct, _ := d.number(k.Seconds)
	if v, ok := d.number(k.PerStep); ok && v > 0 {
		p.rate = sample.Known(v)
	} else if v, ok := d.number(k.PerSecond); ok && v > 0 {
		p.rate = sample.Known(1 / v)
	}
	if hasStep {
		p.named(st, step, direct, hasLoss, t)
	} else if hasLoss {
		p.unnumbered(st, d, loss, direct, t)
	}
	p.tokens(st, d, t)
	return true
}

// numbers takes what stands beside a loss.
func (p *Progress) numbers(st *Step, d dict) {
	k := &p.t.Keys
	if v, ok := d.number(k.LR); ok && v >= 0 {
		st.LR = sample.Known(v)
	}
	if text, ok := d.get(k.GradNorm); ok {
		setGrad(st, text)
	}
	if v, ok := d.number(k.TokensPerS); ok && v > 0 {
		st.TokensPerS = sample.Known(v)
	}
}

// GoesOn tells that the training goes on from that step, before the first line of it:
// losses without a step and without a bar are counted from there.
func (p *Progress) GoesOn(step int64) { p.resumed = max(step, 0) }

// unnumbered takes a logged loss without a step: it belongs to the bar's, or is
// counted.
func (p *Progress) unnumbered(st *Step, d dict, loss string, direct float64, t time.Time) {
	epoch, _ := d.get(p.t.Keys.Epoch)
	again := p.lastLog == [2]string{epoch, loss} && epoch != ""
	p.lastLog = [2]string{strings.Clone(epoch), strings.Clone(loss)}
	p.bindCandidate(st, t)
	switch {
	case p.bar.on:
		p.bar.confirmed = true
		if o := &p.other; o.on && o.n < p.bar.total {
			// A loss beside the other bar: workers that were started again draw a new
			// one and go on from a checkpoint.
			p.bar.n, p.bar.elapsed, p.bar.start, p.bar.full = o.n, o.elapsed, o.start, false
			p.other = other{}
		}
	case again || p.explicit: // another rank's, or counted by a log file
	default:
		p.logs++
		n := p.resumed + p.logs*max(p.o.PerLog, 1)
		if total := max(p.total, p.o.Total); total > 0 && n > total {
			// More than there are: the steps between two logs are not what was thought.
			p.o.PerLog = 0
			n = min(p.resumed+p.logs, total)
		}
		if p.o.PerLog == 0 {
			n = p.byEpoch(epoch, n)
		}
		p.advance(st, n, direct, t)
	}
	st.LossN = p.n
}

// byEpoch reckons the step from the part of the epochs that is done, where that is
// more than the count of logs: nobody knows then how many steps lie between two. It
// is never too much, also where a number of steps ends the last epoch early.
func (p *Progress) byEpoch(epoch string, n int64) int64 {
	e, ok := parseFloat(epoch)
	if !ok || !p.fixed || p.total <= p.stage || p.headEpochs == 0 || e < 0 || e > float64(p.headEpochs) {
		return n
	}
	per := float64(p.total-p.stage) / float64(p.headEpochs)
	places := 0
	if dot := strings.IndexByte(epoch, '.'); dot >= 0 {
		places = len(epoch) - dot - 1
	}
	byEpoch := float64(p.stage) + e*per
	if byEpoch-float64(n) <= 1+per*0.5*math.Pow10(-places) {
		return n
	}
	return int64(math.Round(byEpoch))
}

// tokens works out a rate from two counts where the trainer tells none.
func (p *Progress) tokens(st *Step, d dict, t time.Time) {
	text, ok := d.get(p.t.Keys.Tokens)
	v, known := d.number(p.t.Keys.Tokens)
	if !ok || !known || v < 0 {
		return
	}
	st.Tokens = sample.Known(v)
	// Four digits ("9.289e+04") tell nothing of one step late in a run.
	rate := p.counted.add(v, strings.ContainsAny(text, "eE"), t)
	if !st.TokensPerS.OK {
		st.TokensPerS = rate
	}
}

// told takes the number of steps of the present training from who knows it.
func (p *Progress) told(total int64) {
	if total <= 0 || total > maxCount || p.stage+total < p.n {
		return
	}
	p.total, p.fixed, p.assumed = p.stage+total, true, false
}

// unknown forgets a total that was wrong.
func (p *Progress) unknown() { p.total, p.fixed, p.assumed = 0, false, false }

// left is the total of the present training, 0 while unknown.
func (p *Progress) left() int64 {
	if p.total == 0 {
		return 0
	}
	return p.total - p.stage
}

// over says that the present training may have come to its end.
func (p *Progress) over() bool { return p.finished || p.total == 0 || p.n >= p.total-1 }

// beyond says that a number is too far above the total to be a step's.
func (p *Progress) beyond(n int64) bool {
	if p.total == 0 || n-p.left() <= 2+p.total/50 {
		return false
	}
	if p.assumed {
		p.unknown() // the command did not mean this
		return false
	}
	return p.fixed
}

// named takes the number of a step that the line tells. A number far below those
// before, that goes on rising, is a second training of the same command.
func (p *Progress) named(st *Step, n int64, direct float64, hasLoss bool, t time.Time) {
	if p.fixed || p.assumed {
		n = min(n, p.left()) // a last step or two beyond what was planned
	}
	p.explicit = true
	if n < p.top {
		if p.over() && p.top-n > 8 && n < p.top/2 && hasLoss {
			switch {
			case n > p.lowLast || p.low == 0:
				p.low++
			case n < p.lowLast:
				p.low = 1
			}
			p.lowLast = n
			if p.low >= 3 {
				p.nextStage()
				p.unknown()
			}
		}
	} else {
		p.low = 0
	}
	p.top = max(p.top, n)
	st.LossN = p.stage + n
	p.advance(st, p.stage+n, direct, t)
	if p.bar.on && hasLoss {
		p.bar.confirmed = true
	}
}

// nextStage begins to count another training of the same command behind the first.
func (p *Progress) nextStage() {
	p.stage, p.base, p.baseMicro = p.n, 0, 0
	p.top, p.low, p.lowLast = 0, 0, 0
	p.logs, p.resumed, p.finished = 0, p.n, false
	p.bar, p.other, p.cand = tracked{}, other{}, candidate{}
}

// advance takes a step number.
func (p *Progress) advance(st *Step, n int64, direct float64, t time.Time) {
	if n < 0 || n > maxCount || p.any && n <= p.n || !p.any && n == 0 {
		return
	}
	wall := p.clock.step(n, t)
	switch {
	case direct > 0 && finite(direct):
		st.StepTimeS = sample.Known(direct)
	case wall.OK && p.rate.OK && wall.V < p.rate.V/10:
		// Output that was held back comes in a rush: the rate it shows is the truth.
		st.StepTimeS = p.rate
	case wall.OK:
		st.StepTimeS = wall
	case !p.paused:
		st.StepTimeS = p.rate
	}
	p.n, p.any = n, true
	st.Advance = true
}

// ETA is how long the training will still take as of now; false while that is
// unknown.
func (p *Progress) ETA(now time.Time) (time.Duration, bool) {
	if p.total == 0 || !p.any {
		return 0, false
	}
	left := float64(p.total - p.n)
	if left <= 0 {
		return 0, true
	}
	per := p.clock.mean()
	if !per.OK {
		per = p.rate
	}
	if !per.OK {
		return 0, false
	}
	s := left*per.V - max(0, min(now.Sub(p.last).Seconds(), per.V))
	if s > (100 * 365 * 24 * time.Hour).Seconds() {
		return 0, false
	}
	return time.Duration(s * float64(time.Second)), true
}

func setLoss(st *Step, text string) bool {
	v, ok := parseFloat(text)
	if !ok {
		return false
	}
	takeLoss(st, v)
	return true
}

func takeLoss(st *Step, v float64) {
	st.NonFinite = !finite(v)
	if st.NonFinite {
		st.Loss = sample.Num{}
	} else {
		st.Loss = sample.Known(v)
	}
}

func setGrad(st *Step, text string) {
	if v, ok := parseFloat(text); ok {
		takeGrad(st, v)
	}
}

func takeGrad(st *Step, v float64) {
	st.GradNonFinite = !finite(v)
	if st.GradNonFinite {
		st.GradNorm = sample.Num{}
	} else {
		st.GradNorm = sample.Known(v)
	}
}
