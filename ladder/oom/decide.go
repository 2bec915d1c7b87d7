package oom

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"sparkrun/internal/sample"
)

// Decide says why an attempt died. It is a function of its argument alone.
func (t *Table) Decide(ev Evidence) Verdict {
	d := &decision{t: t, ev: &ev}
	d.text = t.read(&ev.Output)
	d.kernel = d.kernelEvidence()
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

	v        Verdict
	outsider string // the process that took the memory, by the guard's account
	sent     bool   // a signal of ours decided
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
	if ev.Exit.Known && (ev.Exit.Code != 0 || ev.Exit.Signal != "") {
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
	d.v.Evidence = append(d.v.Evidence, d.kernel.xidItems(d.t)...)
	if c := ev.Container; c != nil && c.Known {
		text := fmt.Sprintf("%s says that the container was not killed for memory; that is no proof", engine(c))
		w := Note
		if c.OOMKilled {
			w, text = Weak, fmt.Sprintf("%s says OOMKilled, which it also says when only a child was", engine(c))
		}
		d.add("container", w, "%s", text)
		if c.Error != "" {
			d.add("container", Note, "%s: %s", engine(c), c.Error)
		}
	}
	if g := ev.Guard; g != nil && g.Warned {
		item := guardItem(g, Weak)
		item.Text = "only told, did not end it: " + item.Text
		d.v.Evidence = append(d.v.Evidence, item)
	}
	if d.kernel.otherDay > 0 {
		d.add("kernel", Note, "%d records carry times that lie days away from those of the log", d.kernel.otherDay)
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
	for i := range d.kernel.engine {
		d.v.Evidence = append(d.v.Evidence, d.kernel.engine[i].item(Weak))
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

// lastPhase is what the job was doing when something from outside ended it.
func (d *decision) lastPhase() {
	if h := d.text.hit; d.v.Answer == NotOOM || h != nil && h.Phase != "" {
		return
	}
	d.v.Phase = d.t.phase(d.ev, nil)
}

// signalled is the first hard rule: what we or the user sent decides, the first
// of them where there are several.
func (d *decision) signalled() bool {
	var first *SignalSent
	sent := d.ev.Signals
	if g := d.ev.Guard; g != nil && !g.Warned && !slices.ContainsFunc(sent, func(s SignalSent) bool { return s.By == "guard" }) {
		sent = append(slices.Clip(sent), SignalSent{Name: "SIGKILL", By: "guard", T: g.T})
	}
	for i := range sent {
		s := &sent[i]
		if !ending(s.Name) || (!d.ev.Exit.T.IsZero() && s.T.After(d.ev.Exit.T)) {
			continue
		}
		if first == nil || (!s.T.IsZero() && !first.T.IsZero() && s.T.Before(first.T)) {
			first = s
		}
	}
	if first == nil {
		return false
	}
	s := first
	d.sent = true
	item := Item{Source: "signal", Weight: Decides, T: stamp(s.T)}
	why := ""
	if s.Why != "" {
		why = ": " + s.Why
	}
	switch s.By {
	case "guard":
		d.guard(s, item)
		return true
	case "hang":
		if d.text.state == fatal || d.text.state == doubtful {
			item.Text = fmt.Sprintf("nothing moved any more after an out-of-memory line%s; sent %s", why, s.Name)
			d.set(OOM, d.text.kind, Medium)
			d.v.Reason = "hang"
			d.addHit(Decides, d.text.hit)
		} else {
			item.Text = fmt.Sprintf("nothing moved any more%s; sent %s", why, s.Name)
			d.set(NotOOM, "hang", High)
		}
	case "power-wedge":
		item.Text = fmt.Sprintf("the GPU was in the low-power wedge; sent %s", s.Name)
		d.set(NotOOM, "power-wedge", High)
	case "slowdown":
		item.Text = fmt.Sprintf("a step took too long for too long; sent %s", s.Name)
		d.set(NotOOM, "slowdown", High)
	case "divergence":
		item.Text = fmt.Sprintf("the loss had diverged; sent %s", s.Name)
		d.set(NotOOM, "divergence", High)
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

// guard is a death by our own memory guard. Where somebody else's process took
// the memory the job itself is as it should be.
func (d *decision) guard(s *SignalSent, item Item) {
	d.set(OOM, "guard", High)
	g := d.ev.Guard
	if g == nil || g.Warned {
		item.Text = fmt.Sprintf("the memory guard sent %s before the machine ran out", s.Name)
		d.v.Evidence = append(d.v.Evidence, item)
		return
	}
	item = guardItem(g, Decides)
	if item.T.IsZero() {
		item.T = stamp(s.T)
	}
	d.v.Evidence = append(d.v.Evidence, item)
	if g.Outsider == "" {
		return
	}
	w := Weak
	if g.outsiderTookIt() {
		w = Supports
		d.set(OOM, "co-tenant", High)
		d.outsider = g.Outsider
	}
	text := fmt.Sprintf("process %s (%d), which is not the job's, grew by %s in the last minute", g.Outsider, g.OutsiderPID, numText(g.OutsiderGrewKiB))
	if g.TreeGrewKiB.OK {
		text += fmt.Sprintf("; the job by %s", numText(g.TreeGrewKiB))
	}
	d.add("guard", w, "%s", text)
}

// outsiderTookIt tells that a process outside the tree grew most: the guard names one
// only then, and knows how much is much on this machine.
func (g *GuardAction) outsiderTookIt() bool {
	return g.Outsider != "" && g.OutsiderGrewKiB.OK && g.OutsiderGrewKiB.V > g.TreeGrewKiB.Or(0)
}

func guardItem(g *GuardAction, w Weight) Item {
	why := g.Why
	switch why {
	case "hard-floor":
		why = "the hard floor was reached"
	case "predicted":
		why = "the floor would have been reached within a second"
	case "swap-thrash":
		why = "swap was full and everything waited for memory"
	}
	text := "the memory guard ended it before the machine froze"
	if g.Limit != "" {
		text = "the memory guard ended it before the memory limit of " + g.Limit + " was reached"
	}
	if g.Warned {
		text = "the memory guard"
	}
	text += ": " + why
	if g.AvailKiB.OK {
		text += fmt.Sprintf(", %s available", numText(g.AvailKiB))
	}
	if g.FloorKiB.OK {
		text += fmt.Sprintf(", floor %s", numText(g.FloorKiB))
	}
	return Item{Source: "guard", Weight: w, Text: short(text), T: stamp(g.T)}
}

// numText writes KiB for a person, where they are known.
func numText(n sample.Num) string {
	if !n.OK {
		return "an unknown amount"
	}
	return sizeText(n.V)
}

// sizeText writes KiB in the unit that leaves figures to read: what is left at a death
// is often far below 1 GiB.
func sizeText(kib float64) string {
	switch size := math.Abs(kib); {
	case size >= 1<<20:
		return fmt.Sprintf("%.1f GiB", kib/(1<<20))
	case size >= 1<<10, size == 0:
		return fmt.Sprintf("%.0f MiB", kib/(1<<10))
	}
	return fmt.Sprintf("%.0f KiB", kib)
}

func engine(c *ContainerEnd) string {
	if c.Engine == "" {
		return "the container engine"
	}
	return c.Engine
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
	killedLate := slices.ContainsFunc(d.kernel.ours, func(k kill) bool {
		// A helper's death that the job worked on after is its own affair.
		worked := !k.t.IsZero() && ev.Output.advancedAfter(k.t) >= 2
		return k.near(ev) && !k.survived(ev) && !worked
	})
	switch {
	case killedLate && !finished:
		d.unsure("kernel-oom", "swallowed")
		d.v.Evidence = append(d.v.Evidence, d.kernel.ours[0].item(Supports))
	case !steps && (d.text.state == fatal || d.text.state == doubtful || d.text.state == weak && d.text.weak.Needs == "never"):
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
		if k.survived(ev) || d.outlived(k) {
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
		if ev.foreign() {
			conf = d.foreignConfidence(k)
		}
		if !k.near(ev) {
			conf = Medium
		}
		d.set(OOM, k.kind, conf)
		if ev.foreign() && k.tie != tiedByID && !ev.Exit.Known && ev.Lost == nil && d.mem != memLow {
			d.unsure(k.kind, "needs-samples")
		}
		d.v.Evidence = append(d.v.Evidence, k.item(Decides))
	}
	if n := ev.CgroupOOMKillDelta; n.OK && n.V > 0 {
		w := Supports
		text := fmt.Sprintf("the kernel counted %.0f out-of-memory kills in the job's own cgroup", n.V)
		kind := "cgroup-oom"
		if e := ev.CgroupOOMEvents; e.OK && e.V == 0 {
			kind = "kernel-oom"
			text += ", which never hit a limit of its own: the machine's memory was the reason"
		}
		if d.killed == nil && int(n.V) > survived {
			w = Decides
			d.set(OOM, kind, High)
		}
		d.add("cgroup", w, "%s", text)
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

// outlived tells that the job made several steps after the kill and then died of
// something that it names itself: the kill was a helper's.
func (d *decision) outlived(k *kill) bool {
	return d.text.state == other && d.text.conf == High && !k.t.IsZero() && d.ev.Output.advancedAfter(k.t) >= 2
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
		d.t.messageSizes(v.Sizes, ev, h)
		d.demoteAbsurd()
		d.doubtPlenty()
	}
	if d.sent || d.killed != nil || d.text.hit == nil || d.text.state == silent {
		d.lastPhase()
	}
	word := v.Kind
	if v.Answer == NotOOM {
		word = v.Reason
	}
	v.Cause = d.cause(word)
	if v.Cause == causeAddressLimit || v.Cause == causeWorker && word == "host-alloc" && d.addressLimit() {
		d.add("limit", Supports, "the command may use %s of address space (ulimit -v), and the machine had memory left", numText(ev.AddressLimitKiB))
	}
	slices.SortStableFunc(v.Evidence, func(a, b Item) int { return rank(a.Weight) - rank(b.Weight) })
	// A burst of kills can name hundreds of victims.
	v.Evidence = append([]Item{}, v.Evidence[:min(len(v.Evidence), maxItems)]...)
	v.Quote = d.quote()
	v.Lever = d.t.lever(v, word)
	v.Advice = d.adviceText(word)
	v.Unreadable = append([]string{}, ev.Unreadable...)
	// Whoever gathered the evidence may have named it already, with more to say.
	missing := func(what, why string) {
		if slices.ContainsFunc(v.Unreadable, func(s string) bool { return strings.HasPrefix(s, what) }) {
			return
		}
		if why != "" {
			what += ": " + why
		}
		v.Unreadable = append(v.Unreadable, what)
	}
	if !ev.KernelReadable {
		missing("kernel log", ev.KernelErr)
	}
	if !ev.CgroupOOMKillDelta.OK {
		missing("cgroup oom_kill counter", "")
	}
	if d.mem == memUnknown {
		missing("memory samples", "none of the last minute")
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
	if d.killed != nil || d.sent || d.v.Answer == NotOOM || !absurd(d.v.Sizes, hostTotal(d.ev)) {
		return
	}
	d.set(NotOOM, "bad-size", High)
	d.add("output", Against, "the request is more than a hundred times the memory there is, or a petabyte: a bug in a size, not a need")
}

// doubtPlenty lowers the confidence where the message's own numbers leave room for
// another reading: it asks for far less than is free, and no limit of its own says why;
// or it has no numbers at all and nothing has run yet.
func (d *decision) doubtPlenty() {
	s := d.v.Sizes
	if d.killed != nil || d.sent || d.v.Answer != OOM {
		return
	}
	steps := d.ev.StepsDone || d.ev.LastStep > 0 || d.ev.Output.Advances > 0
	if p := d.t.classify(d.text.hit).p; p != nil && p.Vague && d.text.hit.Exception != "" && d.text.hit.Cause == "" && !steps && s["requested"] == 0 && d.mem != memLow {
		d.v.Confidence = lower(d.v.Confidence, Medium)
		return
	}
	if s["allowed"] > 0 || s["requested"] == 0 || s["free"] < 8*s["requested"] {
		return
	}
	d.v.Confidence = lower(d.v.Confidence, Medium)
	d.add("output", Against, "far more was free than was asked for: a mode of the allocator or a broken install may refuse it")
}

// quote is the one line to show: the item that decides, else the line that was
// weighed, else what is known of the end. An ordinary line of output says nothing.
func (d *decision) quote() string {
	decides := func(outside bool) string {
		for _, it := range d.v.Evidence {
			if it.Weight == Decides && outside == (it.Source == "exit" || it.Source == "signal") {
				return it.Text
			}
		}
		return ""
	}
	if text := decides(false); text != "" {
		return text
	}
	// What is in doubt is told by the words that raise the doubt.
	if d.v.Answer == Unsure && d.text.hit != nil && d.text.state != silent {
		return short(d.text.hit.Text)
	}
	if text := decides(true); text != "" {
		return text
	}
	if d.text.hit != nil && d.text.state != silent {
		return short(d.text.hit.Text)
	}
	for _, source := range []string{"exit", "memory", ""} {
		for _, it := range d.v.Evidence {
			if source == "" || it.Source == source {
				return it.Text
			}
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
