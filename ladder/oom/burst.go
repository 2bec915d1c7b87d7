package oom

import (
	"slices"
	"strings"
)

// reading is what the final burst of output says, before the exit status and the
// samples are asked.
type reading struct {
	state   state
	kind    string // of fatal and weak
	reason  string // of other
	conf    Confidence
	hit     *Hit     // the line that says it
	weak    *pattern // of weak
	handled int      // out-of-memory lines that the job survived
	retried bool     // the allocator's warnings were among them
}

// state orders what a burst can say.
type state int

const (
	silent      state = iota // nothing that means anything
	consequence              // only what follows from another death
	other                    // a cause that is not memory
	weak                     // a sign that needs samples
	doubtful                 // out of memory and another cause, neither clearly first
	fatal                    // out of memory
)

// clue is a hit with the part it plays.
type clue struct {
	*Hit
	p     *pattern // the pattern that gives it its part; nil for a plain exception
	role  role
	level int // of a fatal: traceback or bare tool, plain line, mention, warning
	// quoted says that the class of the exception speaks of something else.
	quoted bool
}

const (
	levelStrong = iota
	levelPlain
	levelMention
	levelWarning
)

// soft tells that a clue of role other gives way to what else may explain the death.
func (c *clue) soft() bool { return c.p != nil && (c.p.Soft || c.p.Raised && c.Exception == "") }

// environment tells that the clue names what is wrong with the installation or the
// machine.
func (c *clue) environment() bool { return c.role == roleOther && c.p != nil && c.p.Cause != "" }

// read reads the final burst.
func (t *Table) read(o *Output) reading {
	var r reading
	clues := t.clues(o, &r)
	if r.judge(t, clues, o) {
		return r
	}
	if r.state == silent || r.state == consequence {
		if h := t.justBefore(o); h != nil {
			r.state, r.kind, r.conf, r.hit = fatal, t.kindOf(h), Medium, h
		}
	}
	return r
}

// clues returns the clues since the last advance, in order, with what the job
// itself reports as handled taken out.
func (t *Table) clues(o *Output, r *reading) []clue {
	var out []clue
	for i := range o.Hits {
		h := &o.Hits[i]
		c := t.classify(h)
		if past(o, h) {
			if c.role == roleFatal || c.role == roleMention || c.role == roleWarning {
				r.handled++
				r.retried = r.retried || c.level == levelWarning
			}
			continue
		}
		if c.role == roleHandled {
			out = slices.DeleteFunc(out, func(b clue) bool {
				oom := b.role == roleFatal && b.level >= levelPlain
				if oom || (b.role == roleFatal && b.Stream == h.Stream) {
					r.handled++
					return true
				}
				return false
			})
			continue
		}
		if c.role != "" {
			out = append(out, c)
		}
	}
	return out
}

// past tells that the job went on after the line. An advance of another rank does
// not say so at once: the others take a step or two before they notice.
func past(o *Output, h *Hit) bool {
	return o.streams[h.Stream] > h.own || o.Advances-h.advances >= 3
}

// pythonsOwn are Python's classes for what is not about memory.
var pythonsOwn = map[string]bool{
	"ArithmeticError": true, "AssertionError": true, "AttributeError": true, "FileNotFoundError": true,
	"ImportError": true, "IndexError": true, "KeyError": true, "LookupError": true, "ModuleNotFoundError": true,
	"NameError": true, "NotImplementedError": true, "PermissionError": true, "SyntaxError": true, "TypeError": true,
	"UnicodeDecodeError": true, "ValueError": true, "ZeroDivisionError": true,
}

// classify gives a hit its part. Where several patterns match, the order of the
// roles below decides, then that of the table.
func (t *Table) classify(h *Hit) clue {
	order := []role{
		roleVeto, roleFatal, roleMention, roleWarning, roleLauncher, roleHandled,
		roleWeak, roleConsequence, roleOther, roleCleanup,
	}
	best, at := clue{Hit: h}, len(order)
	for _, id := range h.IDs {
		p := t.byID[id]
		if p == nil {
			continue
		}
		i := slices.Index(order, p.Role)
		// A veto on weak signs alone leaves room for what else the line says, and so
		// does a wide net.
		if p.Role == roleVeto && p.Scope == "weak" || p.Role == roleMention && p.Soft {
			i = slices.Index(order, roleCleanup)
		}
		if i < at {
			best.p, best.role, at = p, p.Role, i
		}
	}
	// A class of Python itself that says what it is (ValueError, KeyError) only
	// quotes the words.
	if best.role == roleMention && best.p.Soft && h.Exception != "" && !strings.Contains(h.Exception, ".") && (&clue{Hit: h}).definite(t) {
		best.p, best.role = nil, roleOther
	}
	switch best.role {
	case roleFatal:
		best.level = levelPlain
		if best.p.Soft && pythonsOwn[h.Exception] {
			best.level, best.quoted = levelMention, true
			break
		}
		if best.p.Bare || h.Traceback {
			best.level = levelStrong
		}
	case roleMention:
		best.role, best.level = roleFatal, levelMention
	case roleWarning:
		best.role, best.level = roleFatal, levelWarning
	case "":
		if h.Exception != "" {
			best.role = roleOther
		}
	case roleOther:
		// Words about a disk in a log line are no cause; an exception is.
		if best.p != nil && !best.p.Soft && best.p.Reason == "disk" && h.Exception == "" {
			best.role = ""
		}
	}
	return best
}

func (t *Table) kindOf(h *Hit) string {
	c := t.classify(h)
	if c.p == nil {
		return ""
	}
	return c.p.Kind
}

// judge weighs the clues; false means that they decide nothing.
func (r *reading) judge(t *Table, clues []clue, o *Output) bool {
	clues = dropLaunchers(t, clues)
	clues = dropExplained(clues)
	pairs(clues)

	var first *clue // the out-of-memory line that counts
	for i := range clues {
		c := &clues[i]
		if c.role == roleFatal && (first == nil || c.level < first.level) {
			first = c
		}
	}
	// A veto counts where it stands first.
	for i := range clues {
		c := &clues[i]
		if c.role != roleVeto || c.p.Scope == "weak" {
			continue
		}
		if first == nil || first.level >= levelMention {
			r.other(t, c)
			return true
		}
		if c.seq > first.seq {
			break // it stands after the real one, as a crash after a failed call does
		}
		// A tool may log such an error and go on; only one that ended something
		// outweighs a full traceback further down.
		if c.Exception != "" || first.level > levelStrong {
			r.other(t, c)
			r.conf = Medium
			return true
		}
	}
	if first != nil {
		r.judgeFatal(t, first, clues, o)
		if r.hit == first.Hit {
			r.hit = root(first, clues)
		}
		return true
	}
	return r.judgeRest(t, clues)
}

// root returns the out-of-memory that f came up in the handling of, or f itself:
// the first one has the numbers that matter.
func root(f *clue, clues []clue) *Hit {
	if f.Chain == "" {
		return f.Hit
	}
	for i := range clues {
		c := &clues[i]
		if c.role == roleFatal && c.level <= levelPlain && c.Stream == f.Stream && c.seq < f.seq && c.p.Kind == f.p.Kind {
			return c.Hit
		}
	}
	return f.Hit
}

// judgeFatal decides between an out-of-memory line and the other exceptions of
// the burst.
func (r *reading) judgeFatal(t *Table, f *clue, clues []clue, o *Output) {
	r.kind, r.hit = f.p.Kind, f.Hit
	var definite, opaque *clue
	for i := range clues {
		c := &clues[i]
		if c.role != roleOther || c.soft() || c.seq == f.seq || r.excused(f, c, clues) {
			continue
		}
		if c.definite(t) {
			if definite == nil {
				definite = c
			}
		} else if opaque == nil {
			opaque = c
		}
	}
	switch f.level {
	case levelStrong:
		r.state, r.conf = fatal, High
		if definite != nil || opaque != nil {
			r.state, r.conf = doubtful, Low
			if definite == nil && opaque.Chain == "" {
				// An error without a name of its own after the real one.
				r.state, r.conf = fatal, Medium
			}
		}
	case levelPlain:
		r.state, r.conf = fatal, High
		switch {
		case definite != nil && definite.Traceback:
			// The line has no traceback and something else has: it is data.
			r.other(t, definite)
		case definite != nil || opaque != nil:
			r.state, r.conf = doubtful, Low
		case o.Lines-f.seq > 60:
			r.conf = Medium
		}
	case levelMention:
		switch {
		case definite != nil:
			r.other(t, definite)
			r.conf = Medium
		case opaque != nil, f.quoted:
			r.state, r.conf = doubtful, Low
		default:
			r.state, r.conf = fatal, Medium
		}
	case levelWarning:
		r.state, r.conf = fatal, Medium
		if definite != nil {
			r.other(t, definite)
			r.conf = Medium
		}
	}
}

// excused tells that exception c takes nothing away from the out-of-memory line
// f: it was raised from it, comes from clean-up code, is the Python face of what
// a C tool printed, or stands before a full traceback of the same rank.
func (r *reading) excused(f, c *clue, clues []clue) bool {
	if c.seq < f.seq {
		if c.environment() && f.level <= levelMention && !f.p.Soft {
			return true // whoever can run out of memory afterwards has survived that
		}
		return f.level == levelStrong && (c.Stream == f.Stream || !f.p.Bare)
	}
	if c.Chain == "cause" || c.Cleanup {
		return true
	}
	if f.level == levelStrong && f.p.Bare && f.Exception == "" {
		return true
	}
	// The same rank ran out of memory again after c: c was on the way.
	for i := range clues {
		l := &clues[i]
		if l.role == roleFatal && l.level == levelStrong && l.seq > c.seq && l.Stream == c.Stream {
			return true
		}
	}
	return false
}

// definite tells that the exception's class says what it is about.
func (c *clue) definite(t *Table) bool {
	if c.p != nil && c.p.Role == roleOther {
		return true
	}
	name := c.Exception
	if i := strings.IndexByte(name, '('); i >= 0 {
		name = name[:i]
	}
	name = name[strings.LastIndexByte(name, '.')+1:]
	return name != "" && !t.opaque[name]
}

// judgeRest decides where no line says out of memory.
func (r *reading) judgeRest(t *Table, clues []clue) bool {
	var sign, cause, plain, soft, after, weakVeto *clue
	for i := range clues {
		c := &clues[i]
		if cause != nil && c.continues(cause) {
			cause = c
			continue
		}
		switch {
		case c.role == roleVeto && c.p.Scope == "weak" && sign == nil && weakVeto == nil:
			weakVeto = c
		case c.role == roleWeak:
			if sign == nil || (c.p.Likely && !sign.p.Likely) {
				sign = c
			}
		case c.role == roleOther && c.soft():
			if soft == nil {
				soft = c
			}
		case c.role == roleOther && (c.Traceback || c.definite(t)):
			if cause == nil {
				cause = c
			}
			if after == nil && sign != nil {
				after = c
			}
		case c.role == roleOther:
			plain = c
		case c.role == roleConsequence && r.state == silent:
			r.state, r.reason, r.conf, r.hit = consequence, c.p.Reason, Low, c.Hit
		}
	}
	switch {
	case sign != nil && weakVeto != nil:
		r.other(t, weakVeto)
	case sign != nil && cause != nil && cause.seq < sign.seq:
		// The real error stands further up.
		r.other(t, cause)
	case sign != nil && after != nil && after.definite(t) && !after.Cleanup && sign.p.Needs != "host" && sign.p.Needs != "shm":
		r.other(t, after)
	case sign != nil && soft != nil && soft.p.Reason == "segfault":
		// The pool says what ended its worker.
		r.other(t, soft)
	case sign != nil:
		r.state, r.kind, r.conf, r.hit, r.weak = weak, sign.p.Kind, Low, sign.Hit, sign.p
	case cause != nil:
		r.other(t, cause)
	case soft != nil:
		r.other(t, soft)
	case plain != nil:
		r.other(t, plain)
	case weakVeto != nil:
		r.other(t, weakVeto)
	default:
		return false
	}
	return true
}

// continues tells that the line belongs to the message of exception e, which only wraps
// another one: "the compiler failed:", and below it why.
func (c *clue) continues(e *clue) bool {
	const apart = 4 // lines that a message takes before it comes to the point
	return c.environment() && !c.Traceback && e.p == nil && e.Stream == c.Stream && c.seq-e.seq <= apart
}

// other records a cause that is not memory.
func (r *reading) other(t *Table, c *clue) {
	r.state, r.kind, r.hit = other, "", c.Hit
	r.reason, r.conf = "exception", Medium
	if c.p != nil && c.p.Reason != "" {
		r.reason = c.p.Reason
	}
	if c.Traceback && c.definite(t) || c.role == roleVeto && c.p.Scope == "burst" {
		r.conf = High
	}
}

// dropLaunchers takes out the weak signs about processes that the launcher itself
// has killed.
func dropLaunchers(t *Table, clues []clue) []clue {
	killed := map[string]bool{}
	for _, c := range clues {
		if c.role == roleLauncher {
			for _, pid := range pidsOf(c.p, c.Text) {
				killed[pid] = true
			}
		}
	}
	if len(killed) == 0 {
		return clues
	}
	return slices.DeleteFunc(clues, func(c clue) bool {
		if c.role != roleWeak {
			return false
		}
		for _, pid := range pidsOf(c.p, c.Text) {
			if killed[pid] {
				return true
			}
		}
		return false
	})
}

// pidsOf returns what the groups named pid... matched.
func pidsOf(p *pattern, text string) []string {
	var pids []string
	for _, m := range p.Re.FindAllStringSubmatch(text, 8) {
		for i, name := range p.Re.SubexpNames() {
			if strings.HasPrefix(name, "pid") && m[i] != "" {
				pids = append(pids, m[i])
			}
		}
	}
	return pids
}

// dropExplained takes out what another clue gives a meaning to.
func dropExplained(clues []clue) []clue {
	explained := map[string]bool{}
	for _, c := range clues {
		if c.p != nil {
			for _, id := range c.p.Explains {
				explained[id] = true
			}
		}
	}
	return slices.DeleteFunc(clues, func(c clue) bool { return c.p != nil && explained[c.p.ID] })
}

// pairs makes two weak signs that complete each other count like a report.
func pairs(clues []clue) {
	have := map[string]bool{}
	for _, c := range clues {
		for _, id := range c.IDs {
			have[id] = true
		}
	}
	for i := range clues {
		if c := &clues[i]; c.role == roleWeak && c.p.With != "" && have[c.p.With] {
			c.role, c.level = roleFatal, levelWarning
		}
	}
}

// justBefore returns a full out-of-memory traceback that stands one or two steps
// before a death that nothing else explains: another rank's bar may move once
// more before everything ends.
func (t *Table) justBefore(o *Output) *Hit {
	for i := len(o.Hits) - 1; i >= 0; i-- {
		h := &o.Hits[i]
		c := t.classify(h)
		if c.role == roleHandled || o.Advances-h.advances > 2 {
			return nil
		}
		if c.role == roleFatal && c.level == levelStrong {
			return h
		}
	}
	return nil
}
