package progress

import (
	"strings"
	"time"

	"sparkrun/internal/sample"
)

// maxEpochs bounds a number of epochs, so that its product with steps stays whole.
const maxEpochs = 1 << 20

// tracked is the training's bar.
type tracked struct {
	on    bool
	plain bool // it has no name
	weak  bool // it may count epochs
	// confirmed is set once a loss was logged beside it, full once it has run to
	// its end, zero once it was drawn at 0.
	confirmed, full, zero bool
	total, n              int64
	elapsed               sample.Num
	start                 time.Time // as of its last drawing
	epoch                 int64
	hasEpoch              bool
}

// other is a bar of the same length as the training's that is not it: an
// evaluation over as many batches.
type other struct {
	on      bool
	n       int64
	elapsed sample.Num
	start   time.Time
}

// candidate is the newest bar that could be the training's: a loss beside it settles
// that.
type candidate struct {
	on bool
	d  drawing
	t  time.Time
}

// drawing is a bar with what its description and postfix say.
type drawing struct {
	bar
	kind                barKind
	epoch, epochs, step int64
	hasEpoch, hasStep   bool
	lossV, lrV, gradV   value
	start               time.Time
}

type barKind int

const (
	never    barKind = iota
	evalBar          // of an evaluation
	plainBar         // without a name
	weakBar          // by its name the epochs'
	trainBar         // by its name the training's
)

// takeBar takes one drawing. It is false for a bar that is not the training's.
func (p *Progress) takeBar(st *Step, b bar, t time.Time) bool {
	if p.set.Bars == nil {
		return false
	}
	d := p.look(b)
	switch d.kind {
	case never:
		p.disturbed = true
		return false
	case evalBar:
		p.disturbed = true
		st.Eval = true
		return true
	}
	if p.set.Bars.TotalOnly {
		p.onlyTotal(&d)
		return false
	}
	d.start = t
	if b.elapsed.OK {
		d.start = t.Add(-time.Duration(b.elapsed.V * float64(time.Second)))
	}
	if !p.binds(&d, t) {
		if d.kind == plainBar {
			p.disturbed = true // it may be an evaluation's
		}
		return false
	}
	p.draw(st, &d, t)
	return true
}

// look says what kind of bar it is and reads its description and postfix.
func (p *Progress) look(b bar) drawing {
	d := drawing{bar: b}
	w, s := &p.t.Bars, p.set.Bars
	if b.unit != "" && !contains(w.Units, b.unit) {
		return d
	}
	post := strings.ToLower(b.postfix)
	d.lossV = find(post, w.Loss)
	d.lrV = find(post, w.LR)
	d.gradV = find(post, w.GradNorm)
	if b.name == "" {
		if s.Plain || s.AnyName && d.lossV.ok {
			d.kind = plainBar
		}
		return d
	}
	name := strings.ToLower(b.name)
	if s.pieces != nil && d.template(s.pieces, name) {
		d.kind = trainBar
		return d
	}
	switch {
	case wordStart(name, w.Evaluation):
		d.kind = evalBar
		return d
	case wordStart(name, w.Never):
		return d
	}
	if e := find(name, epochKeys); e.ok && e.whole && e.v >= 0 && e.v <= maxEpochs {
		d.epoch, d.hasEpoch = int64(e.v), true
		if e.over <= maxEpochs {
			d.epochs = int64(e.over)
		}
	}
	switch {
	case s.AnyName:
		if d.lossV.ok || p.bar.on {
			d.kind = trainBar
		}
	case !wordStart(name, w.Training):
	case strings.HasPrefix(name, "epoch") && !d.hasEpoch:
		d.kind = weakBar
	default:
		d.kind = trainBar
	}
	return d
}

var epochKeys = []string{"epoch"}

func contains(words []string, word string) bool {
	for _, w := range words {
		if w == word {
			return true
		}
	}
	return false
}

// template reads a description such as "1|52|Loss: 2.36".
func (d *drawing) template(pieces []string, name string) bool {
	at := 0
	for i, piece := range pieces {
		if i%2 == 0 {
			if !strings.HasPrefix(name[at:], piece) {
				return false
			}
			at += len(piece)
			continue
		}
		v, next := number(name, at)
		if !v.ok {
			return false
		}
		at = next
		switch {
		case piece == "loss":
			d.lossV = v
			continue
		case !v.whole || v.v < 0 || v.v > maxCount:
			return false
		case piece == "epoch":
			d.epoch, d.hasEpoch = min(int64(v.v), maxEpochs), true
		default:
			d.step, d.hasStep = int64(v.v), true
		}
	}
	return true
}

// binds says whether the drawing is of the training's bar, and makes it so where
// that is settled now.
func (p *Progress) binds(d *drawing, t time.Time) bool {
	b := &p.bar
	if !b.on {
		if p.mayBind(d) {
			p.bind(d)
			return true
		}
		p.keep(d, t)
		return false
	}
	if d.kind == weakBar && !b.weak {
		return false // the epochs', around the steps'
	}
	if b.weak && d.kind == trainBar || b.plain && d.kind != plainBar && !b.confirmed {
		p.startOver()
		p.bind(d)
		return true
	}
	if b.plain != (d.kind == plainBar) {
		return false
	}
	if d.hasEpoch && b.hasEpoch {
		return p.epochBar(d)
	}
	if d.total != b.total {
		return p.otherTotal(d, t)
	}
	return p.sameTotal(d, t)
}

// mayBind says whether a bar can be taken for the training's when there is none yet.
func (p *Progress) mayBind(d *drawing) bool {
	if d.kind == plainBar {
		if p.fixed && d.total != p.left() {
			return false
		}
		// A bar that is first seen at its end is of something short before.
		known := (p.fixed || p.assumed) && d.total == p.left()
		return d.lossV.ok || p.o.Trusted && (known || !p.assumed && d.n < d.total)
	}
	return true
}

// bind makes the drawing's bar the training's.
func (p *Progress) bind(d *drawing) {
	if !p.bar.on && p.any {
		p.anchorT = time.Time{} // what was counted before was reckoned
	}
	p.bar = tracked{on: true, plain: d.kind == plainBar, weak: d.kind == weakBar, total: d.total, hasEpoch: d.hasEpoch, epoch: d.epoch}
	p.cand, p.other = candidate{}, other{}
	if e := p.epochsBefore(d); e > 0 && d.total > 0 {
		p.base, p.baseMicro = e*p.perEpoch(d.total), e*d.total
	}
}

// epochsBefore is how many epochs lie before the one a bar names.
func (p *Progress) epochsBefore(d *drawing) int64 {
	if !d.hasEpoch {
		return 0
	}
	first := p.set.Bars.FirstEpoch
	switch {
	case first != nil:
		return max(d.epoch-*first, 0)
	case d.epoch <= 1:
		return 0
	case d.epochs > 0:
		return d.epoch - 1
	}
	return d.epoch
}

// startOver forgets what a bar that was none of training counted: it never had a
// loss beside it.
func (p *Progress) startOver() {
	p.n, p.any = p.stage, p.stage > 0
	p.base, p.baseMicro = 0, 0
	p.bar = tracked{}
	p.clock = clock{counted: p.counted}
}

// epochBar takes a bar whose description numbers the epoch.
func (p *Progress) epochBar(d *drawing) bool {
	b := &p.bar
	switch {
	case d.epoch < b.epoch:
		return false
	case d.epoch > b.epoch:
		p.turnEpoch(d.epoch - b.epoch)
		b.epoch, b.total = d.epoch, d.total
	case d.total != b.total:
		if b.total != 0 {
			return false
		}
		b.total = d.total
	}
	return true
}

// turnEpoch adds what the bar counted to what lies behind it.
func (p *Progress) turnEpoch(epochs int64) {
	b := &p.bar
	of := b.total
	if of == 0 {
		of, epochs = b.n, 1
	}
	p.base = min(p.base+epochs*p.perEpoch(of), maxCount)
	p.baseMicro = min(p.baseMicro+epochs*of, maxCount)
	b.n, b.elapsed, b.full = 0, sample.Num{}, false
}

// otherTotal takes a bar of another length than the training's.
func (p *Progress) otherTotal(d *drawing, t time.Time) bool {
	b := &p.bar
	switch {
	case !b.confirmed && (b.full || d.lossV.ok && d.kind == plainBar):
		// The first bar was none of training.
		if !p.mayBind(d) {
			p.keep(d, t)
			return false
		}
		p.startOver()
		p.bind(d)
		return true
	case b.total == 0:
		b.total = d.total
		return true
	case b.full && (d.lossV.ok || d.kind == trainBar && d.n <= 1):
		p.turnEpoch(1)
		p.bind(d)
		return true
	case b.full:
		p.keep(d, t)
	}
	return false
}

// sameTotal takes a bar as long as the training's: mostly that, but an evaluation
// can have as many batches, and a loop over epochs draws it anew.
func (p *Progress) sameTotal(d *drawing, t time.Time) bool {
	b, o := &p.bar, &p.other
	if o.on {
		if d.n >= o.n && d.elapsed.V >= o.elapsed.V && o.n < d.total && nearer(d.start, o.start, b.start) {
			o.n, o.elapsed, o.start = d.n, d.elapsed, d.start
			return false
		}
		o.on = false
	}
	// Only a new bar is drawn at 0. The bars of ranks lag by a step, not by more.
	back := d.n == 0 && b.n > 0 || d.n+2 < b.n && d.elapsed.OK && b.elapsed.OK && d.elapsed.V+2 < b.elapsed.V
	if !back {
		return true
	}
	switch {
	case b.full && (d.lossV.ok || d.kind == trainBar):
		p.turnEpoch(1)
		p.bindAgain(d)
		return true
	case b.full:
		p.keep(d, t)
	default:
		*o = other{on: true, n: d.n, elapsed: d.elapsed, start: d.start}
	}
	return false
}

// bindAgain goes on with a bar that was drawn anew.
func (p *Progress) bindAgain(d *drawing) {
	confirmed := p.bar.confirmed
	base, micro := p.base, p.baseMicro
	p.bind(d)
	p.base, p.baseMicro, p.bar.confirmed = base, micro, confirmed
}

// nearer tells whether a is nearer to b than to c.
func nearer(a, b, c time.Time) bool { return a.Sub(b).Abs() < a.Sub(c).Abs() }

// keep remembers a bar that a loss may yet make the training's.
func (p *Progress) keep(d *drawing, t time.Time) {
	if p.fixed && !p.finished && d.total != p.left() {
		return
	}
	p.cand = candidate{on: true, d: *d, t: t}
}

// bindCandidate is called when a loss is logged.
func (p *Progress) bindCandidate(st *Step, t time.Time) {
	c := p.cand
	if !c.on || c.d.n >= c.d.total {
		return
	}
	switch b := &p.bar; {
	case !b.on:
		p.bind(&c.d)
	case !b.full:
		p.cand = candidate{}
		return
	case !b.confirmed:
		p.startOver()
		p.bind(&c.d)
	default:
		p.turnEpoch(1)
		base, micro := p.base, p.baseMicro
		if p.finished {
			base = p.n - p.stage
			p.finished, p.fixed = false, false
		}
		p.bind(&c.d)
		p.base, p.baseMicro = base, micro
	}
	p.bar.confirmed = true
	p.draw(st, &c.d, t)
}

// draw takes a drawing of the training's bar.
func (p *Progress) draw(st *Step, d *drawing, t time.Time) {
	b := &p.bar
	// A bar is drawn ten times a second at most: one that jumps by more went on from
	// a checkpoint, and its rate counts the steps that were skipped.
	jumped := b.zero && b.n == 0 && d.n > 1 && d.elapsed.V >= 1 && d.elapsed.V < float64(d.n)/10
	b.n, b.elapsed, b.start = max(b.n, d.n), d.elapsed, d.start
	b.zero = b.zero || d.n == 0
	b.full = d.total > 0 && d.n >= d.total
	st.Bar = true
	p.barTotal(d)
	p.rate = sample.Num{}
	if d.per.OK && !jumped {
		p.rate = sample.Known(d.per.V * float64(p.perStep()))
	}
	n := p.count(d)
	p.advance(st, n, 0, t)
	if d.lossV.ok {
		takeLoss(st, d.lossV.v)
		st.LossN = n
		b.confirmed = true
	}
	if d.lrV.ok && finite(d.lrV.v) && d.lrV.v >= 0 {
		st.LR = sample.Known(d.lrV.v)
	}
	if d.gradV.ok {
		takeGrad(st, d.gradV.v)
	}
}

// perStep is how many counts of the bar are one optimizer step.
func (p *Progress) perStep() int64 {
	if p.set.Bars.Micro {
		return p.o.Accumulation
	}
	return 1
}

// perEpoch is how many optimizer steps a bar's whole length is: what is left over at
// its end is a step of its own.
func (p *Progress) perEpoch(total int64) int64 {
	per := p.perStep()
	return (total + per - 1) / per
}

// count is the drawing's optimizer step.
func (p *Progress) count(d *drawing) int64 {
	if d.hasStep {
		return p.stage + d.step
	}
	switch per := p.perStep(); {
	case p.set.Bars.Carried:
		return p.stage + (p.baseMicro+d.n)/per
	case d.total > 0 && d.n >= d.total:
		return p.stage + p.base + p.perEpoch(d.total)
	default:
		return p.stage + p.base + d.n/per
	}
}

// barTotal works the number of steps out from the bar, unless it is known better.
func (p *Progress) barTotal(d *drawing) {
	if p.fixed || p.assumed && (d.hasEpoch || d.total == p.left()) {
		return
	}
	p.assumed = false
	if d.hasEpoch {
		epochs := p.epochs
		if epochs == 0 && d.epochs > 0 {
			epochs = d.epochs
			if first := p.set.Bars.FirstEpoch; first != nil && *first == 0 {
				epochs++ // "Epoch 0/9" names the last one
			}
		}
		switch {
		case epochs == 0 || d.total == 0:
			p.total = 0
		case p.set.Bars.Carried:
			p.total = p.stage + min(epochs*d.total/p.perStep(), maxCount)
		default:
			p.total = p.stage + min(epochs*p.perEpoch(d.total), maxCount)
		}
		return
	}
	p.total = 0
	if d.total > 0 {
		p.total = p.stage + p.base + p.perEpoch(d.total)
	}
}

// onlyTotal takes the total of a bar whose steps are told by lines.
func (p *Progress) onlyTotal(d *drawing) {
	if d.kind == trainBar && !p.fixed && d.total > 0 {
		p.barTotal(d)
	}
}
