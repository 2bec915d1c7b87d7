package progress

import (
	"strings"
	"time"

	"sparkrun/internal/sample"
)

// words reads headers, checkpoint messages and lines such as "step 12/100 loss=0.5".
func (p *Progress) words(st *Step, text string, signs sign, t time.Time) bool {
	p.lower = appendLower(p.lower[:0], text)
	low := string(p.lower)
	if signs&signLine != 0 {
		for i := range p.set.Lines {
			l := &p.set.Lines[i]
			if l.fits(low) && p.line(st, l, low, t) {
				return true
			}
		}
	}
	if signs&signCheckpoint == 0 {
		return false
	}
	path, ok := p.checkpoint(text, low)
	if ok {
		p.disturbed = true
		st.Checkpoint = path
	}
	return ok
}

// fits tells whether the texts of a pattern are in the line.
func (l *line) fits(low string) bool {
	for _, s := range l.All {
		if !strings.Contains(low, s) {
			return false
		}
	}
	for _, s := range l.None {
		if strings.Contains(low, s) {
			return false
		}
	}
	return true
}

func (p *Progress) line(st *Step, l *line, low string, t time.Time) bool {
	switch l.Kind {
	case kindEval:
		p.disturbed = true
		st.Eval = true
		return true
	case kindFinished:
		st.Finished, p.finished = true, true
		return true
	case kindResume:
		n, ok := l.one(low, l.Step)
		if ok && !p.any {
			p.resumed = n
		}
		return false // what it says shows in the first step
	case kindTotal:
		return p.header(l, low)
	}
	return p.stepLine(st, l, low, t)
}

// one returns the number that a header names.
func (l *line) one(low string, keys []string) (int64, bool) {
	if l.Last {
		return lastNumber(low)
	}
	v := find(low, keys)
	if !v.ok || !v.whole || v.v < 0 || v.v > maxCount {
		return 0, false
	}
	return int64(v.v), true
}

// header takes the number of steps, and of epochs. One that comes after a training
// is over begins the next.
func (p *Progress) header(l *line, low string) bool {
	if e := find(low, l.Epochs); e.ok && e.whole && e.v >= 1 && e.v <= maxEpochs {
		p.headEpochs = int64(e.v)
		p.epochs = p.headEpochs
	}
	total, ok := l.one(low, l.Total)
	if !ok || total <= 0 {
		return false
	}
	switch b := &p.bar; {
	case p.finished || b.full && b.confirmed:
		if p.n > p.stage {
			p.nextStage()
		}
	case b.on && !b.confirmed && b.total != total && p.n > p.stage:
		p.startOver()
	}
	p.told(total)
	return true
}

// stepLine takes a line with the number of a step. Only a loss, a total or a time
// beside it make it one of training.
func (p *Progress) stepLine(st *Step, l *line, low string, t time.Time) bool {
	n := find(low, l.Step)
	if !n.ok || !n.whole || n.v < 0 || n.v > maxCount {
		return false
	}
	total := n.over
	if len(l.Total) > 0 {
		if v := find(low, l.Total); v.ok && v.whole {
			total = v.over
			if total == 0 && v.v > 0 {
				total = v.v
			}
		}
	}
	loss := find(low, l.Loss)
	seconds, micro := l.seconds(low)
	elapsed := find(low, l.ElapsedMs)
	if !loss.ok && total == 0 && seconds == 0 && !elapsed.ok {
		return false
	}
	if wordStart(low[:n.at], p.t.EvalLines) {
		p.disturbed = true
		st.Eval = true
		return true
	}
	step := int64(n.v)
	if l.ZeroBased {
		step++
		if total > 0 {
			total++
		}
	}
	if total > 0 && (total < float64(step) || total > maxCount) {
		return false
	}
	if total > 0 && int64(total) != p.left() {
		if (p.fixed || p.bar.on) && !p.over() {
			return false // a count of something else, such as the micro-batches of a step
		}
		p.told(int64(total))
	}
	if p.beyond(step) {
		return false
	}
	if loss.ok {
		takeLoss(st, loss.v)
	}
	if v := find(low, l.LR); v.ok && finite(v.v) && v.v >= 0 {
		st.LR = sample.Known(v.v)
	}
	if v := find(low, l.GradNorm); v.ok {
		takeGrad(st, v.v)
	}
	if v := find(low, l.TokensPerS); v.ok && finite(v.v) && v.v > 0 {
		st.TokensPerS = sample.Known(v.v)
	}
	st.ZeroOK = l.MayBeZero
	switch {
	case micro:
		seconds = p.microBatch(step, !p.any && step == 0 && p.micro == 0, seconds)
	case elapsed.ok && finite(elapsed.v):
		seconds = p.since(step, elapsed.v)
	}
	p.named(st, step, seconds, loss.ok, t)
	return true
}

// seconds returns how long the step took as the line says, 0 if it does not.
func (l *line) seconds(low string) (s float64, micro bool) {
	for _, k := range []struct {
		keys  []string
		scale float64
		micro bool
	}{{l.Seconds, 1, false}, {l.Millis, 1e-3, false}, {l.MicroMs, 1e-3, true}} {
		if v := find(low, k.keys); v.ok && finite(v.v) && v.v > 0 {
			return v.v * k.scale, k.micro
		}
	}
	return 0, false
}

// checkpoint returns the path of a checkpoint that the line says is being saved.
func (p *Progress) checkpoint(text, low string) (string, bool) {
	for _, words := range p.t.Checkpoints {
		i := strings.Index(low, words)
		if i < 0 {
			continue
		}
		rest := text[i+len(words):]
		if rest != "" && rest[0] != ' ' && rest[0] != ':' {
			continue
		}
		rest = strings.TrimLeft(rest, ": ")
		// "at iteration 500 to PATH", "6.4 GB saved to PATH"
		to := strings.HasSuffix(words, " to")
		if path, ok := strings.CutPrefix(rest, "to "); ok {
			rest, to = path, true
		} else if _, path, ok := strings.Cut(rest, " to "); ok && !to {
			rest, to = path, true
		}
		rest = strings.TrimLeft(rest, " ")
		if rest == "" {
			return "", false
		}
		if q := rest[0]; q == '"' || q == '\'' || q == '`' {
			path, _, ok := strings.Cut(rest[1:], string(q))
			return path, ok && path != ""
		}
		path, _, _ := strings.Cut(rest, " ")
		path = strings.TrimRight(path, ".,;:")
		if !to && !strings.ContainsAny(path, "/.-") {
			return "", false // "for step 10", "at epoch 3"
		}
		// "Saving checkpoint in 3.2 s" and "Saving checkpoint (async)" name none.
		if path == "" || path[0] == '(' || digits(path) || digits(strings.Replace(strings.TrimSuffix(path, "s"), ".", "", 1)) {
			return "", false
		}
		return path, true
	}
	return "", false
}
