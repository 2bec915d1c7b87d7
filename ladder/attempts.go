package ladder

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"sparkrun/internal/job"
	"sparkrun/ladder/trainer"
)

// A ladder that is a list of attempts: each names the settings it has, and those of
// the ones before it stay. It is read into rungs, one for each, so that verdicts,
// limits and consent are those of every ladder.

// settable are the settings that an attempt of such a list may name, in the order in
// which they are turned, with other words for them.
var settable = []struct {
	knob job.Knob
	also string
}{
	{job.SeqLen, ""},
	{job.MicroBatch, ""},
	{job.Accumulation, "grad_accum"},
	{job.EvalBatch, ""},
	{job.GradCkpt, "grad_checkpointing"},
	{job.Method, ""},
	{job.LoadIn4Bit, ""},
	{job.LearningRate, ""},
}

// entryError is a mistake in a list of attempts, at a line.
type entryError struct {
	line int
	text string
}

func (e entryError) Error() string { return e.text }

func mistake(n *yaml.Node, format string, args ...any) error {
	return entryError{n.Line, fmt.Sprintf(format, args...)}
}

// attemptRungs reads a list of attempts.
func attemptRungs(list []yaml.Node) ([]rung, error) {
	var rungs []rung
	var entries int
	written := map[job.Knob]string{} // by the attempts so far
	lines := map[job.Knob]int{}
	names := map[string]bool{}
	for i := range list {
		n := &list[i]
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		if n.Kind == yaml.ScalarNode && n.Value == dropCaches {
			if i > 0 {
				return nil, mistake(n, "drop-caches must come first: it is done before every attempt")
			}
			rungs = append(rungs, rung{Name: dropCaches, Does: []string{dropCaches}})
			names[dropCaches] = true
			continue
		}
		if n.Kind != yaml.MappingNode {
			return nil, mistake(n, "an attempt names its settings, as {seq_len: 2048, micro_batch: 1, accumulation: 16}")
		}
		entries++
		r, err := attemptRung(n, entries)
		if err != nil {
			return nil, err
		}
		if names[r.Name] {
			return nil, mistake(n, "two attempts are called %s", r.Name)
		}
		names[r.Name] = true
		if err := descends(n, r, written, lines); err != nil {
			return nil, err
		}
		rungs = append(rungs, r)
	}
	if entries == 0 {
		return nil, errors.New("a list of attempts needs one that changes a setting")
	}
	return rungs, nil
}

// attemptRung reads one attempt: settings and perhaps a name.
func attemptRung(n *yaml.Node, number int) (rung, error) {
	r := rung{Name: fmt.Sprintf("step-%d", number), Does: []string{settingsOf}, set: map[job.Knob]string{}}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		for value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if value.Kind != yaml.ScalarNode || value.Value == "" || value.Tag == "!!null" {
			return rung{}, mistake(key, "%s needs one value", key.Value)
		}
		if key.Value == "name" {
			r.Name = value.Value
			continue
		}
		k, ok := settingNamed(key.Value)
		if !ok {
			var known []string
			for _, s := range settable {
				known = append(known, string(s.knob))
			}
			return rung{}, mistake(key, "an attempt cannot set %q: it can set %s", key.Value, strings.Join(known, ", "))
		}
		if _, twice := r.set[k]; twice {
			return rung{}, mistake(key, "%s stands in the attempt twice", k)
		}
		text, err := settingValue(k, value.Value)
		if err != nil {
			return rung{}, mistake(key, "%s: %v", k, err)
		}
		r.set[k] = text
	}
	switch {
	case len(r.set) == 0:
		return rung{}, mistake(n, "the attempt sets nothing")
	case len(r.set) == 1 && r.set[job.Accumulation] != "":
		return rung{}, mistake(n, "accumulation alone saves no memory: it goes with micro_batch or seq_len")
	case r.set[job.LearningRate] != "" && r.set[job.Method] == "":
		return rung{}, mistake(n, "a learning rate goes with method: lora only: it saves no memory")
	}
	return r, nil
}

func settingNamed(word string) (job.Knob, bool) {
	for _, s := range settable {
		if word == string(s.knob) || word == s.also && word != "" {
			return s.knob, true
		}
	}
	return "", false
}

// settingValue checks what an attempt sets a knob to.
func settingValue(k job.Knob, text string) (string, error) {
	switch k {
	case job.Method:
		if text != "lora" {
			return "", fmt.Errorf("a ladder goes to lora only, not to %q", text)
		}
		return text, nil
	case job.LoadIn4Bit, job.GradCkpt:
		on, err := strconv.ParseBool(text)
		want := k == job.GradCkpt
		if err != nil || on != want {
			return "", fmt.Errorf("a ladder turns it to %t only, not to %q", want, text)
		}
		if want {
			return "True", nil
		}
		return "False", nil
	case job.LearningRate:
		if v, err := strconv.ParseFloat(text, 64); err != nil || !(v > 0 && v < 1e6) {
			return "", fmt.Errorf("%q is no learning rate", text)
		}
		return text, nil
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
	if err != nil || n < 1 || n > most {
		return "", fmt.Errorf("%q is no whole number from 1 on", text)
	}
	return strconv.FormatInt(n, 10), nil
}

// descends refuses an attempt that needs more memory than one before it in the list,
// as far as that can be told without the command, or that says nothing new.
func descends(n *yaml.Node, r rung, written map[job.Knob]string, lines map[job.Knob]int) error {
	fresh := false
	for _, s := range settable {
		to, ok := r.set[s.knob]
		if !ok {
			continue
		}
		from, before := written[s.knob]
		fresh = fresh || !before || from != to
		if before && grows[s.knob] && whole(to) > whole(from) {
			return mistake(n, "%s goes up from %s (line %d) to %s: a ladder never goes up", s.knob, from, lines[s.knob], to)
		}
		written[s.knob], lines[s.knob] = to, n.Line
	}
	if !fresh {
		return mistake(n, "the attempt changes nothing of the ones before it")
	}
	return nil
}

// grows are the settings that cost memory by their size.
var grows = map[job.Knob]bool{job.SeqLen: true, job.MicroBatch: true, job.EvalBatch: true}

func whole(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// settings makes of the settings in force those of one attempt of a list. An attempt
// that was passed over, because it could not help then, is open still.
func (st *state) settings(r rung) turn {
	if st.taken[r.Name] {
		return ended("it was taken already")
	}
	e := &entry{st: st, r: r}
	for _, s := range settable {
		if to, ok := r.set[s.knob]; ok {
			if t, ok := e.set(s.knob, to); !ok {
				return t
			}
		}
	}
	if t, ok := e.keepBatch(); !ok {
		return t
	}
	switch {
	case len(e.step) == 0 && e.left.note.Why != "":
		return e.left
	case len(e.step) == 0, len(e.step) == 1 && e.accumulation > 0:
		return ended("its settings are in force already")
	case st.only != nil && !slices.ContainsFunc(e.helps, st.helps):
		return no(notApplicable, "%s", st.only.Why)
	}
	if e.left.note.Why != "" {
		e.why = append(e.why, "without the rest: "+e.left.note.Why)
	}
	return turn{step: e.step, why: strings.Join(e.why, ", ")}
}

// setLater says whether an attempt further down the list has been taken and sets a
// knob: its value stays.
func (st *state) setLater(r rung, k job.Knob) bool {
	at := slices.IndexFunc(st.rungs, func(q rung) bool { return q.Name == r.Name })
	return slices.ContainsFunc(st.rungs[at+1:], func(q rung) bool { return st.taken[q.Name] && q.set[k] != "" })
}

// entry is the step of one attempt of a list while it is put together.
type entry struct {
	st    *state
	r     rung
	step  []trainer.Change
	why   []string
	helps []string // actions that the step stands for
	// micro and accumulation are set where the step changes them.
	micro, accumulation int64
	// left says why some of the attempt's settings are left out.
	left turn
}

// has says whether the step has a change of the knob already.
func (e *entry) has(k job.Knob) bool {
	return slices.ContainsFunc(e.step, func(c trainer.Change) bool { return c.Knob == k })
}

// set adds one setting to the step; false with the reason where the attempt cannot be
// made as it is written.
func (e *entry) set(k job.Knob, to string) (turn, bool) {
	st := e.st
	from := st.now[k].Value
	switch {
	case from == to || e.has(k) || st.setLater(e.r, k):
		return turn{}, true
	case k == job.Method || k == job.LoadIn4Bit:
		return e.method()
	case k == job.LearningRate:
		return turn{}, true // it goes with the way from all weights to LoRA, see lora
	case k == job.SeqLen && st.s.Job.Image:
		e.left = noLength
		return turn{}, true
	case (k == job.MicroBatch || k == job.Accumulation) && st.s.Job.SelfShrinks != "":
		e.left = selfShrinks(st.s.Job.SelfShrinks)
		return turn{}, true
	case st.s.Exact && k == job.SeqLen:
		return no(refused, "--exact: a shorter length changes what is learned"), false
	case k == job.Accumulation && st.global():
		return no(refused, "the trainer derives accumulation from the global batch, which stays as it is"), false
	case k == job.GradCkpt:
		if t := st.checkpointing(); t.ok() {
			return e.take(t, gradCkpt)
		} else if !t.ended {
			e.left = t // it leaves the training as it is, so the rest goes without it
		}
		return turn{}, true
	}
	if typed := whole(st.s.Job.Knobs[k].Value); grows[k] && typed > 0 && whole(to) > typed {
		return no(refused, "%s %s is more than the %d of the command, and a ladder never goes up", words[k], to, typed), false
	}
	if n := st.number(k); grows[k] && n > 0 && whole(to) > n {
		return turn{}, true
	}
	if floor := max(st.s.Floor, st.s.Job.Floor); k == job.SeqLen && whole(to) < floor {
		return no(refused, "length %s is below %d, the shortest for this trainer", to, floor), false
	}
	w, t := st.anyReach(k)
	if !w.ok && k == job.EvalBatch {
		e.left = t
		return turn{}, true
	}
	if !w.ok {
		return t, false
	}
	if grows[k] || k == job.Accumulation {
		if !st.allowed(k, whole(to)) {
			return no(refused, "the command does not take %s %s, only %s", words[k], to, strings.Join(st.choices(k), ", ")), false
		}
	}
	e.step = append(e.step, st.change(k, to, "as the ladder's list says"))
	e.why = append(e.why, fmt.Sprintf("%s %s -> %s%s", words[k], orUnknown(from), to, w.shimmed()))
	switch k {
	case job.SeqLen:
		e.helps = append(e.helps, length)
	case job.MicroBatch:
		e.helps = append(e.helps, microBatch)
		e.micro = whole(to)
	case job.EvalBatch:
		e.helps = append(e.helps, evalBatch)
	case job.Accumulation:
		e.accumulation = whole(to)
	}
	return turn{}, true
}

// anyReach is reach for a value of one's own: an unknown knob of an opaque command can
// be set by the shim, which never raises what it sees.
func (st *state) anyReach(k job.Knob) (way, turn) {
	w, t := st.reach(k)
	if k == job.Accumulation && !w.ok && st.s.Job.Knobs[k].Value == "" && st.s.Job.Opaque != "" {
		// It goes with the micro-batch and is reached where that is.
		return st.reach(job.MicroBatch)
	}
	return w, t
}

// take adds what an action of the other ladders does.
func (e *entry) take(t turn, action string) (turn, bool) {
	if !t.ok() {
		return t, false
	}
	e.step = append(e.step, t.step...)
	e.why = append(e.why, t.why)
	e.helps = append(e.helps, action)
	return turn{}, true
}

// method goes to LoRA in 16 bit from whatever is trained now.
func (e *entry) method() (turn, bool) {
	switch e.st.now[job.Method].Value {
	case "lora":
		return turn{}, true
	case "full":
		if e.r.set[job.Method] == "" {
			return turn{}, true // load_in_4bit: false, which it is
		}
		return e.take(e.st.lora(e.r), fullToLoRA)
	}
	return e.take(e.st.sixteenBit(e.r), fourTo16Bit)
}

// keepBatch raises accumulation with a smaller micro-batch where the list does not say
// what becomes of it: the effective batch changes only where that is written.
func (e *entry) keepBatch() (turn, bool) {
	st := e.st
	n, acc := st.number(job.MicroBatch), st.number(job.Accumulation)
	switch {
	case e.micro == 0 && e.accumulation == 0:
		return turn{}, true
	case e.r.set[job.Accumulation] != "" && !st.global():
		return e.writtenBatch(n, acc)
	case st.global():
		if g := st.number(job.GlobalBatch); !st.madeOf(g, n, e.micro) {
			return no(refused, "micro-batch %d does not divide the global batch %d", e.micro, g), false
		}
		return turn{}, true
	case n == 0 || acc == 0:
		return no(refused, "what the effective batch would become is not known: write accumulation beside micro_batch"), false
	case n*acc%e.micro != 0 || n*acc/e.micro > most || !st.allowed(job.Accumulation, n*acc/e.micro):
		return no(refused, "micro-batch %d leaves no accumulation that keeps the effective batch %d: write accumulation beside it", e.micro, n*acc), false
	}
	if w, t := st.reach(job.Accumulation); !w.ok {
		return t, false
	}
	up := n * acc / e.micro
	e.step = append(e.step, st.change(job.Accumulation, strconv.FormatInt(up, 10), "the effective batch stays the same"))
	e.why = append(e.why, fmt.Sprintf("accumulation %d -> %d (the effective batch stays the same)", acc, up))
	return turn{}, true
}

// writtenBatch says what becomes of the effective batch where the list names both of
// its parts.
func (e *entry) writtenBatch(micro, acc int64) (turn, bool) {
	to, toAcc := micro, acc
	if e.micro > 0 {
		to = e.micro
	}
	if e.accumulation > 0 {
		toAcc = e.accumulation
	}
	a, ok1 := product(micro, acc, e.st.procs())
	b, ok2 := product(to, toAcc, e.st.procs())
	switch {
	case ok1 && ok2 && a == b:
		e.why = append(e.why, fmt.Sprintf("the effective batch stays %d", a))
	case e.st.s.Exact:
		return no(refused, "--exact: the batch that the list asks for changes the effective batch, or that is not known"), false
	case ok1 && ok2:
		e.why = append(e.why, fmt.Sprintf("the effective batch goes from %d to %d, as the list says", a, b))
	}
	return turn{}, true
}
