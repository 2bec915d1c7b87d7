package trainer

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

// maxLine bounds a line that is looked into. Trainers print nothing of interest
// in longer ones, and data does.
const maxLine = 16 << 10

// Progress reads the output of one attempt, line by line, and keeps what one
// line alone does not tell: the number of the last step and which bar is the
// training's. It is not safe for concurrent use.
type Progress struct {
	// trusted is set where a profile fits: its first bar without a name is then
	// the training's.
	trusted bool
	// perLog is how many steps lie between two logged losses, 0 if unknown.
	perLog int64
	// total is the number of optimizer steps, 0 while unknown. fixed is set once
	// the trainer or the command named it.
	total int64
	fixed bool
	// bar is the total of the training's bar, 0 while there is none; confirmed
	// is set once a loss was logged beside it; full once it has run to its end.
	bar       int64
	confirmed bool
	full      bool

	n    int64
	last time.Time // when n last grew
	logs int64     // losses logged
}

// NewProgress returns the reader of one attempt.
func (s *Set) NewProgress(j job.Job) *Progress {
	p := &Progress{trusted: j.Profile != "" && j.Profile != "argparse"}
	if set := j.Knobs[job.MaxSteps]; set.Source != job.FromDefault {
		if n, err := parseInt(set.Value); err == nil && n > 0 {
			p.total, p.fixed = n, true
		}
	}
	prof := s.profile(j.Profile)
	if prof == nil {
		return p
	}
	words, err := Expand(j.Argv, userKnobs(j.Knobs))
	if err != nil {
		return p
	}
	if c := s.inspect(words, j.Dir); c.prof == prof {
		if f, ok, _ := c.knob("logging_steps"); ok {
			if v, err := strconv.ParseFloat(f.value, 64); err == nil && v >= 1 && v == math.Trunc(v) && v < 1e9 {
				p.perLog = int64(v)
			}
		}
	}
	return p
}

var (
	headerTotal = regexp.MustCompile(`Total (?:optimization )?steps\s*=\s*([\d,]+)`)
	savingTo    = regexp.MustCompile(`(?i)\b(?:saving (?:the )?(?:model )?checkpoint (?:to|in|at)|(?:saved (?:the )?checkpoint|checkpoint saved) (?:to|in|at))\s+["']?([^\s"']+)`)
	plainStep   = regexp.MustCompile(`(?i)(?:^|[\s|\[(,>])(?:global[_ ])?(?:step|iter|iteration)\s*[:=# ]?\s*(\d[\d,]*)(?:\s*(?:/|of)\s*(\d[\d,]*))?(?:[^\d.]|$)`)
	plainLoss   = regexp.MustCompile(`(?i)(?:^|[^\w])(?:train[_/ ])?loss(?:/train)?\s*[:=]?\s*([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf(?:inity)?))\b`)
	plainLR     = regexp.MustCompile(`(?i)(?:^|[^\w])(?:lr|learning[_ ]rate)\s*[:=]?\s*(\d[\d.]*(?:e[-+]?\d+)?)\b`)
)

// Line reads one line of output, or one piece of a line between two carriage
// returns, without control sequences. It is false for a line that says nothing
// of the training.
func (p *Progress) Line(text string, t time.Time) (Step, bool) {
	if len(text) < 6 || len(text) > maxLine {
		return Step{}, false
	}
	var (
		st  Step
		any bool
	)
	if b, ok := findBar(text); ok {
		if p.binds(b) {
			any = true
			st.Bar = true
			p.advance(&st, b.n, t)
			if !st.StepTimeS.OK {
				st.StepTimeS = b.perStep
			}
			p.fields(&st, b.postfix)
		}
	}
	if i := strings.IndexByte(text, '{'); i >= 0 {
		if d, ok := findDict(text[i:]); ok && p.dict(&st, d, t) {
			any = true
		}
	}
	if !any && p.words(&st, text, t) {
		any = true
	}
	if !any {
		return Step{}, false
	}
	st.N, st.Total = p.n, p.total
	return st, true
}

// binds says whether the bar is the one of the training, and makes it so where
// that is settled now.
func (p *Progress) binds(b bar) bool {
	if b.named && !b.training {
		return false
	}
	switch {
	case p.bar != 0 && b.total == p.bar && !(p.full && b.n == 0 && p.confirmed):
		if b.n >= b.total {
			p.full = true
		}
		return true
	case p.fixed:
		if b.total != p.total {
			return false
		}
	case p.bar != 0 && (p.confirmed || !p.full):
		return false // the training's bar is known: this one is evaluation or the like
	case !p.trusted && !b.training:
		// A bar of an unknown program: its own until a loss is logged beside it.
		if p.logs == 0 {
			return false
		}
	}
	if p.bar != b.total && !p.fixed {
		p.n = 0
	}
	p.bar, p.full = b.total, b.n >= b.total
	p.confirmed = p.logs > 0
	p.total = b.total
	return true
}

// advance takes a step number from a line.
func (p *Progress) advance(st *Step, n int64, t time.Time) {
	if n <= p.n {
		return
	}
	if p.n > 0 && !p.last.IsZero() && t.After(p.last) {
		st.StepTimeS = sample.Known(t.Sub(p.last).Seconds() / float64(n-p.n))
	}
	p.n, p.last = n, t
	st.Advance = true
}

// dict takes what a printed dict or a JSON line says. It is false for one that
// is not about the training.
func (p *Progress) dict(st *Step, d dict, t time.Time) bool {
	if _, ok := d.get("train_runtime"); ok {
		st.Finished = true
		return true
	}
	loss, hasLoss := d.get("loss", "train_loss", "train/loss")
	step, hasStep := d.number("step", "global_step", "current_steps")
	if !hasStep {
		if v, ok := d.get("global_step/max_steps"); ok {
			n, total, ok := fraction(v)
			if ok {
				step, hasStep = float64(n), true
				p.total, p.fixed = total, true
			}
		}
	}
	if !hasLoss {
		return false
	}
	if !p.setLoss(st, loss) {
		return false
	}
	if v, ok := d.number("learning_rate", "lr"); ok {
		st.LR = sample.Known(v)
	}
	if v, ok := d.number("num_tokens", "num_input_tokens_seen", "tokens"); ok {
		st.Tokens = sample.Known(v)
	}
	if v, ok := d.number("total_steps", "max_steps"); ok && v >= 1 {
		p.total, p.fixed = int64(v), true
	}
	p.logs++
	switch {
	case hasStep:
		p.advance(st, int64(step), t)
	case p.bar != 0:
		p.confirmed = true
	default:
		per := max(p.perLog, 1)
		p.advance(st, p.logs*per, t)
	}
	return true
}

// setLoss keeps a loss that is a number, and marks one that is not finite. It is
// false for a word.
func (p *Progress) setLoss(st *Step, text string) bool {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return false
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		st.NonFinite = true
	} else {
		st.Loss = sample.Known(v)
	}
	return true
}

// fields reads loss and learning rate from the tail of a bar.
func (p *Progress) fields(st *Step, tail string) {
	if len(tail) < 4 {
		return
	}
	if m := plainLoss.FindStringSubmatch(tail); m != nil {
		p.setLoss(st, m[1])
	}
	if m := plainLR.FindStringSubmatch(tail); m != nil {
		if v, err := strconv.ParseFloat(m[1], 64); err == nil {
			st.LR = sample.Known(v)
		}
	}
}

// words reads headers, checkpoint messages and lines such as
// "step 12/100 loss=0.5".
func (p *Progress) words(st *Step, text string, t time.Time) bool {
	if strings.Contains(text, "Total ") {
		if m := headerTotal.FindStringSubmatch(text); m != nil {
			if n, ok := commaInt(m[1]); ok && n > 0 {
				if p.bar != 0 && p.bar != n {
					p.bar = 0
				}
				p.total, p.fixed = n, true
				return true
			}
		}
	}
	if strings.Contains(text, "heckpoint ") {
		if m := savingTo.FindStringSubmatch(text); m != nil {
			st.Checkpoint = strings.TrimRight(m[1], ".,;:")
			return true
		}
	}
	if !countsSteps(text) {
		return false
	}
	m := plainStep.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	n, ok := commaInt(m[1])
	if !ok {
		return false
	}
	loss := plainLoss.FindStringSubmatch(text)
	var total int64
	if m[2] != "" {
		total, _ = commaInt(m[2])
	}
	// A number behind the word step is a training step only if a loss or a total
	// stands beside it.
	if loss == nil && total == 0 || hasWord(text, "eval") || strings.Contains(text, "[val]") || hasWord(text, "valid") && loss == nil {
		return false
	}
	if total > 0 && !p.fixed {
		p.total = total
	}
	p.fields(st, text)
	if loss != nil {
		p.logs++
	}
	p.advance(st, n, t)
	return true
}

// countsSteps says whether a number follows the word step or iteration
// somewhere. It spares most lines the patterns, which cost a hundred times as
// much.
func countsSteps(text string) bool {
	for _, word := range []string{"tep", "ter"} {
		for rest := text; ; {
			i := strings.Index(rest, word)
			if i < 0 {
				break
			}
			rest = rest[i+len(word):]
			after := strings.TrimLeft(strings.TrimPrefix(rest, "ation"), ":=# ")
			if after != "" && after[0] >= '0' && after[0] <= '9' {
				return true
			}
		}
	}
	return false
}

// hasWord looks for a lower case word or the same with a capital: cheaper than
// folding every line of a long log.
func hasWord(text, word string) bool {
	if strings.Contains(text, word) {
		return true
	}
	return strings.Contains(text, strings.ToUpper(word[:1])+word[1:])
}

func commaInt(text string) (int64, bool) {
	n, err := strconv.ParseInt(strings.ReplaceAll(text, ",", ""), 10, 64)
	return n, err == nil
}

func fraction(text string) (n, total int64, ok bool) {
	a, b, ok := strings.Cut(text, "/")
	if !ok {
		return 0, 0, false
	}
	n, ok1 := commaInt(strings.TrimSpace(a))
	total, ok2 := commaInt(strings.TrimSpace(b))
	return n, total, ok1 && ok2 && total > 0
}
