package oom

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Decide says why an attempt died. It is a function of its argument alone.
func (t *Table) Decide(ev Evidence) Verdict {
	d := &decision{t: t, ev: &ev}
	d.kernel = t.kernelEvidence(&ev)
	d.text = t.read(&ev.Output)
	d.mem, d.memText = memory(&ev)
	d.collect()
	switch {
	case d.signalled():
	case d.succeeded():
	case d.killedByKernel():
	default:
		d.fromText()
	}
	return d.finish()
}

// maxItems bounds the evidence list; the weakest are left out.
const maxItems = 40

// decision is a verdict being made.
type decision struct {
	t       *Table
	ev      *Evidence
	kernel  kernelEvidence
	text    reading
	mem     memState
	memText string

	v Verdict
	// killed is the kernel record that decided, if one did.
	killed *kill
}

func (d *decision) set(a Answer, word string, c Confidence) {
	d.v.Answer, d.v.Confidence = a, c
	d.v.Kind, d.v.Reason = "", ""
	if a == OOM {
		d.v.Kind = word
	} else {
		d.v.Reason = word
	}
}

// unsure leaves the question open and names the kind it would be.
func (d *decision) unsure(kind, reason string) {
	d.set(Unsure, reason, Low)
	d.v.Kind = kind
}

func (d *decision) add(source string, w Weight, format string, args ...any) {
	d.v.Evidence = append(d.v.Evidence, Item{Source: source, Weight: w, Text: short(fmt.Sprintf(format, args...))})
}

func (d *decision) addHit(w Weight, h *Hit) {
	d.v.Evidence = append(d.v.Evidence, Item{Source: "output", Weight: w, Text: short(h.Text), Line: h.Line, T: stamp(h.T)})
}

// collect records what is worth showing whatever the verdict will be.
func (d *decision) collect() {
	ev := d.ev
	if ev.Exit.Known {
		d.add("exit", Note, "%s", exitText(ev.Exit))
	}
	if d.memText != "" {
		w := Note
		switch d.mem {
		case memLow:
			w = Supports
		case memClear:
			w = Against
		}
		d.add("memory", w, "%s in the last minute", d.memText)
	}
	for i := range d.kernel.others {
		if i == 3 {
			d.add("kernel", Note, "%d more kills of other processes", len(d.kernel.others)-i)
			break
		}
		d.v.Evidence = append(d.v.Evidence, d.kernel.others[i].item(Note))
	}
	if n := len(d.kernel.hints); n > 0 {
		item := d.kernel.hints[n-1].item(Weak)
		if n > 1 {
			item.Text = short(fmt.Sprintf("%s (%d times)", item.Text, n))
		}
		d.v.Evidence = append(d.v.Evidence, item)
	}
	for i := range d.kernel.against {
		d.v.Evidence = append(d.v.Evidence, d.kernel.against[i].item(Against))
	}
	if n := ev.VMOOMKillDelta; n.OK && n.V > 0 {
		d.add("vmstat", Weak, "the kernel killed %.0f processes somewhere on this machine during the attempt", n.V)
	}
	for _, r := range ev.Reaped {
		if r.Signal != "" && r.Signal != "SIGTERM" {
			d.add("process", Weak, "process %d (%s) ended by %s", r.PID, r.Comm, r.Signal)
		}
	}
	if d.text.handled > 0 {
		d.add("output", Note, "%d earlier out-of-memory lines were survived", d.text.handled)
	}
	d.v.Phase = PhaseUnknown
	if d.text.hit != nil {
		d.v.Phase = d.t.phase(ev, d.text.hit)
	}
}

// signalled is the first hard rule: what we or the user sent decides.
func (d *decision) signalled() bool {
	for _, s := range d.ev.Signals {
		if !ending(s.Name) || (!d.ev.Exit.T.IsZero() && s.T.After(d.ev.Exit.T)) {
			continue
		}
		item := Item{Source: "signal", Weight: Decides, T: stamp(s.T)}
		switch s.By {
		case "guard":
			item.Text = fmt.Sprintf("the memory guard sent %s before the machine ran out", s.Name)
			d.set(OOM, "guard", High)
		case "hang":
			if d.text.state == fatal || d.text.state == doubtful {
				item.Text = fmt.Sprintf("nothing moved any more after an out-of-memory line; sent %s", s.Name)
				d.set(OOM, d.text.kind, Medium)
				d.v.Reason = "hang"
				d.addHit(Decides, d.text.hit)
			} else {
				item.Text = fmt.Sprintf("nothing moved any more; sent %s", s.Name)
				d.set(NotOOM, "hang", High)
			}
		case "limit":
			item.Text = fmt.Sprintf("the time limit was reached; sent %s", s.Name)
			d.set(NotOOM, "limit", High)
		default:
			item.Text = fmt.Sprintf("%s was sent by %s", s.Name, s.By)
			d.set(NotOOM, "user", High)
		}
		d.v.Evidence = append(d.v.Evidence, item)
		return true
	}
	return false
}

// ending tells whether a signal is meant to end a process.
func ending(name string) bool {
	switch strings.TrimPrefix(name, "SIG") {
	case "INT", "TERM", "KILL", "QUIT", "HUP", "ABRT":
		return true
	}
	return false
}

// succeeded is exit status 0: no death where work was done, and a puzzle where
// there was none and memory is spoken of.
func (d *decision) succeeded() bool {
	ev := d.ev
	if !ev.Exit.Known || ev.Exit.Code != 0 || ev.Exit.Signal != "" {
		return false
	}
	finished := ev.TrainingFinished || ev.Output.Finished
	steps := ev.StepsDone || ev.LastStep > 0 || ev.Output.Advances > 0
	killedLate := slices.ContainsFunc(d.kernel.ours, func(k kill) bool { return k.near(ev) && !k.survived(ev) })
	switch {
	case killedLate && !finished:
		d.unsure("kernel-oom", "swallowed")
		d.v.Evidence = append(d.v.Evidence, d.kernel.ours[0].item(Supports))
	case !steps && (d.text.state == fatal || d.text.state == doubtful || d.text.state == weak):
		d.unsure(d.text.kind, "swallowed")
		d.addHit(Supports, d.text.hit)
	case steps || finished:
		d.set(NotOOM, "success", High)
	default:
		d.set(NotOOM, "success", Medium)
	}
	d.add("exit", Decides, "it exited with status 0")
	return true
}

// killedByKernel is the second hard rule: a kill record of one of ours, or a
// count of kills in our own cgroup.
func (d *decision) killedByKernel() bool {
	ev := d.ev
	survived := 0
	for i := range d.kernel.ours {
		k := &d.kernel.ours[i]
		if k.survived(ev) {
			survived++
			d.v.Evidence = append(d.v.Evidence, k.item(Weak))
			continue
		}
		if d.killed != nil {
			d.v.Evidence = append(d.v.Evidence, k.item(Supports))
			continue
		}
		d.killed = k
		conf := High
		if !k.near(ev) || (ev.TreePIDs == nil && k.pid != 0 && !ev.Exit.Known) {
			conf = Medium
		}
		d.set(OOM, k.kind, conf)
		d.v.Evidence = append(d.v.Evidence, k.item(Decides))
	}
	if n := ev.CgroupOOMKillDelta; n.OK && n.V > 0 {
		w := Supports
		if d.killed == nil && int(n.V) > survived {
			w = Decides
			d.set(OOM, "cgroup-oom", High)
		}
		d.add("cgroup", w, "the kernel counted %.0f out-of-memory kills in the job's own cgroup", n.V)
		if w == Decides {
			return true
		}
	}
	if d.killed != nil {
		for name, n := range d.killed.sizes {
			d.size(name, n)
		}
		return true
	}
	return false
}

func (d *decision) size(name string, n int64) {
	if d.v.Sizes == nil {
		d.v.Sizes = map[string]int64{}
	}
	d.v.Sizes[name] = n
}

// finish orders the evidence and fills what every verdict has.
func (d *decision) finish() Verdict {
	v, ev := &d.v, d.ev
	v.Schema = Schema
	if v.Sizes == nil {
		v.Sizes = map[string]int64{}
	}
	if h := d.text.hit; h != nil && (v.Answer == OOM || v.Kind != "") && (d.text.state == fatal || d.text.state == doubtful) {
		d.t.messageSizes(v.Sizes, &ev.Output, h)
		d.demoteAbsurd()
	}
	slices.SortStableFunc(v.Evidence, func(a, b Item) int { return rank(a.Weight) - rank(b.Weight) })
	// A burst of kills can name hundreds of victims.
	v.Evidence = append([]Item{}, v.Evidence[:min(len(v.Evidence), maxItems)]...)
	v.Quote = d.quote()
	word := v.Kind
	if v.Answer == NotOOM {
		word = v.Reason
	}
	v.Advice = d.t.advice(word, v.Phase, v.Sizes)
	v.Unreadable = append([]string{}, ev.Unreadable...)
	if !ev.KernelReadable {
		why := "kernel log"
		if ev.KernelErr != "" {
			why += ": " + ev.KernelErr
		}
		v.Unreadable = append(v.Unreadable, why)
	}
	if !ev.CgroupOOMKillDelta.OK {
		v.Unreadable = append(v.Unreadable, "cgroup oom_kill counter")
	}
	if d.mem == memUnknown {
		v.Unreadable = append(v.Unreadable, "memory samples of the last minute")
	}
	switch {
	case ev.StepsDone || ev.LastStep > 0:
		v.Step = &ev.LastStep
	case ev.Output.Advances > 0 && ev.Output.LastAdvance.Step > 0:
		v.Step = &ev.Output.LastAdvance.Step
	}
	return *v
}

// demoteAbsurd takes an out-of-memory back whose request no machine could meet.
func (d *decision) demoteAbsurd() {
	if d.killed != nil || d.v.Answer == NotOOM || !absurd(d.v.Sizes, hostTotal(d.ev)) {
		return
	}
	d.set(NotOOM, "bad-size", High)
	d.add("output", Against, "the request is more than a hundred times the memory there is, or a petabyte: a bug in a size, not a need")
}

func (d *decision) quote() string {
	for _, it := range d.v.Evidence {
		if it.Weight == Decides && it.Source != "exit" && it.Source != "signal" {
			return it.Text
		}
	}
	if d.text.hit != nil && d.text.state != silent {
		return short(d.text.hit.Text)
	}
	for _, it := range d.v.Evidence {
		if it.Weight == Decides {
			return it.Text
		}
	}
	for i := len(d.ev.Output.Tail) - 1; i >= 0; i-- {
		text, _ := d.t.Clean(d.ev.Output.Tail[i].Text)
		if text = strings.TrimSpace(text); text != "" {
			return short(text)
		}
	}
	return ""
}

func rank(w Weight) int {
	return slices.Index([]Weight{Decides, Supports, Against, Weak, Note}, w)
}

// short cuts a text to what fits a line of a report, and keeps it valid UTF-8
// without control characters.
func short(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if r < 0x20 || r == 0x7f || r == utf8.RuneError || (r >= 0x80 && r < 0xa0) {
			return -1
		}
		return r
	}, strings.TrimSpace(s))
	const limit = 400
	if len(s) <= limit {
		return s
	}
	cut := limit
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// stamp gives a time the precision of the run's other files.
func stamp(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Truncate(time.Millisecond)
}
