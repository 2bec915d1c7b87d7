package ladder

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"sparkrun/internal/job"
)

// knobs returns the settings that an attempt of Past ran with.
func (s Situation) knobs(i int) job.Knobs {
	if k := s.Past[i].Knobs; k != nil {
		return k
	}
	return s.Job.Knobs
}

// changed lists the settings that a ladder turns and that differ.
func changed(from, to job.Knobs) []job.Knob {
	var ks []job.Knob
	for _, k := range turned {
		if from[k].Value != to[k].Value {
			ks = append(ks, k)
		}
	}
	return ks
}

// smaller says whether a change of settings was one that saves memory: a lower
// length or batch, checkpointing on, LoRA in place of all weights. LoRA without
// quantisation is a rung, but needs more.
func smaller(from, to job.Knobs) bool {
	for _, k := range changed(from, to) {
		switch k {
		case job.SeqLen, job.MicroBatch, job.EvalBatch:
			if to[k].Value == Half || from[k].Value == "" && to[k].Value != "" {
				return true // by the shim, which never raises what it sees
			}
			a, err1 := strconv.ParseInt(from[k].Value, 10, 64)
			b, err2 := strconv.ParseInt(to[k].Value, 10, 64)
			if err1 == nil && err2 == nil && b < a {
				return true
			}
		case job.GradCkpt:
			if on, err := strconv.ParseBool(to[k].Value); err == nil && on {
				return true
			}
		case job.Method:
			if from[k].Value == "full" {
				return true
			}
		}
	}
	return false
}

// sameDeath says whether cuts of the settings have changed nothing, so that memory
// is not what more of them would help with. Only attempts that a cut led to are
// compared, each with the one before the cut: never a drop of the caches, a retry
// after an unsure death, or one after a co-tenant.
func (l Ladder) sameDeath(s Situation) (why string, is bool) {
	r := l.rules.SameDeath
	last := len(s.Past) - 1
	// What the least certain of the pairs so far says, and how many there are.
	worst, cuts := requestSame, 0
	for b := last; b > 0; b-- {
		a := b - 1
		if len(changed(s.knobs(a), s.knobs(b))) == 0 {
			if b == last {
				return "", false
			}
			continue // the same settings again, between two cuts
		}
		if !smaller(s.knobs(a), s.knobs(b)) || l.coTenant(s.Past[a]) || !sameKind(s.Past[a], s.Past[b]) {
			break
		}
		if b == last && beyond(s, a, b) {
			return fmt.Sprintf("one request of %s, more than the whole budget, stayed as large although %s: no rung makes it smaller",
				gigabytes(s.Past[b].RequestedBytes.V), settings(s.knobs(a), s.knobs(b))), true
		}
		how := r.compare(s.Past[a], s.Past[b])
		if how == moved {
			break
		}
		worst = max(worst, how)
		cuts++
		need := map[comparison]int{requestSame: r.CutsSameRequest, requestLarger: r.CutsLargerRequest, requestUnknown: r.CutsUnknownRequest}[worst]
		if cuts >= max(need, 1) {
			p := s.Past[last]
			return fmt.Sprintf("it died at step %d as before and used no less memory, although %s: it is not memory, or nothing that a rung turns",
				p.Step, settings(s.knobs(a), s.knobs(last))), true
		}
	}
	return "", false
}

// comparison is what two deaths with a cut between them say about the cut.
type comparison int

const (
	requestSame    comparison = iota // it changed nothing, and the same size was asked for
	requestLarger                    // ... and a larger one
	requestUnknown                   // ... and what was asked for is not known
	moved                            // it changed something, or nobody can tell
)

func sameKind(a, b Past) bool {
	return a.Answer == AnswerOOM && b.Answer == AnswerOOM && a.Kind == b.Kind && a.Phase == b.Phase
}

// beyond says that both attempts asked for more than the run may use at all, and
// the later one for no less.
func beyond(s Situation, a, b int) bool {
	x, y := s.Past[a].RequestedBytes, s.Past[b].RequestedBytes
	return x.OK && y.OK && s.BudgetBytes.OK && x.V > s.BudgetBytes.V && y.V >= x.V
}

// compare says what a cut between two deaths has moved.
func (r sameDeath) compare(a, b Past) comparison {
	slack := math.Ceil(float64(a.Step) * r.StepSlackPct / 100)
	peakSlack := max(a.PeakKiB.V*r.PeakSlackPct/100, r.PeakSlackMiB*1024)
	x, y := a.RequestedBytes, b.RequestedBytes
	switch {
	case a.Step < r.MinStep || b.Step < r.MinStep || b.Step > a.Step || float64(b.Step) < float64(a.Step)-slack:
		return moved
	case !a.PeakKiB.OK || !b.PeakKiB.OK || b.PeakKiB.V < a.PeakKiB.V-peakSlack:
		return moved
	case !x.OK || !y.OK || x.V < r.MinRequestMiB*(1<<20):
		return requestUnknown
	case y.V < x.V:
		return moved
	case y.V > x.V:
		return requestLarger
	}
	return requestSame
}

// notMemory decides after a death for another reason: it ends the ladder, but a
// reason that a rung itself has made is told apart.
func (l Ladder) notMemory(s Situation) Decision {
	last := len(s.Past) - 1
	p := s.Past[last]
	d := Decision{Act: "stop", Stop: StopNotOOM, Knobs: l.newState(s).now}
	d.Why = "the death was not a matter of memory, so the ladder does not retry it"
	switch p.Reason {
	case "user", "limit":
		return d // somebody wanted it to end
	case "hang":
		d.Why = "nothing moved any more and it was ended; only --hang-restart starts it again, from a checkpoint"
		return d
	}
	before := l.beforeChange(s)
	if before >= 0 && p.Exception != "" && p.Step <= s.Past[before].Step+l.rules.NewException.Steps && !seenBefore(s, p.Exception) {
		return l.settingBroke(s, before)
	}
	for i := last - 1; i >= 0; i-- {
		o := s.Past[i]
		if o.Answer != AnswerOOM {
			continue
		}
		if p.Step < o.Step {
			d.Stop = StopOtherCause
			d.Why = fmt.Sprintf("attempt %d died of something else before it came to step %d, where attempt %d ran out of memory, so nothing says whether that is cured: %s; before that: %s",
				p.Attempt, o.Step, o.Attempt, cause(p), cause(o))
		}
		break
	}
	return d
}

// beforeChange returns the index of the last attempt with other settings than those
// in force, or -1 where there is none, or where the settings in force have already
// carried an attempt further than the last one came: then they are not to blame.
func (l Ladder) beforeChange(s Situation) int {
	last := len(s.Past) - 1
	for i := last - 1; i >= 0; i-- {
		if len(changed(s.knobs(i), s.knobs(last))) > 0 {
			return i
		}
		if s.Past[i].Step > s.Past[last].Step {
			return -1
		}
	}
	return -1
}

// seenBefore says whether an earlier attempt has died of the same exception. Numbers
// do not count: sizes and addresses differ from one attempt to the next.
func seenBefore(s Situation, exception string) bool {
	for _, p := range s.Past[:len(s.Past)-1] {
		if p.Exception != "" && unnumbered(p.Exception) == unnumbered(exception) {
			return true
		}
	}
	return false
}

// unnumbered puts one 0 in the place of every number, hexadecimal ones included.
func unnumbered(text string) string {
	var b strings.Builder
	number := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		digit := c >= '0' && c <= '9'
		inHex := number && (c == 'x' || c == '.' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F')
		switch {
		case digit && !number:
			b.WriteByte('0')
			number = true
		case digit || inHex:
		default:
			number = false
			b.WriteByte(c)
		}
	}
	return b.String()
}

// cause says in a few words what an attempt died of.
func cause(p Past) string {
	for _, text := range []string{p.Exception, p.Quote, p.Reason, p.Kind} {
		if text != "" {
			return short(text)
		}
	}
	return "unknown"
}

// short cuts a text to what a sentence can hold, between two characters.
func short(text string) string {
	const most = 160
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// words are the settings in a person's words.
var words = map[job.Knob]string{
	job.SeqLen: "length", job.MicroBatch: "micro-batch", job.Accumulation: "accumulation", job.EvalBatch: "evaluation batch",
	job.GradCkpt: "activation checkpointing", job.Method: "method", job.LoadIn4Bit: "4-bit loading", job.LearningRate: "learning rate",
}

// settings says a change of settings: "length went 4096 -> 2048".
func settings(from, to job.Knobs) string { return moves(from, to, " went ") }

// moves says a change of settings with a verb of one's own.
func moves(from, to job.Knobs, verb string) string {
	var parts []string
	for _, k := range changed(from, to) {
		if to[k].Value == Half {
			parts = append(parts, words[k]+" was halved by the shim")
			continue
		}
		parts = append(parts, words[k]+verb+orUnknown(from[k].Value)+" -> "+orUnknown(to[k].Value))
	}
	return strings.Join(parts, ", ")
}
