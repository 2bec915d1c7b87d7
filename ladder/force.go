package ladder

import (
	"maps"
	"slices"
	"strconv"

	"sparkrun/internal/job"
)

// phaseLoad is the phase before any knob of the training has been read.
const phaseLoad = "load"

// inForce returns the situation with the settings that each attempt really ran with:
// what was asked for, less a step that the shim did not carry out, and with halves of
// what has become known since. Everything in this package that compares attempts sees
// them so.
func (s Situation) inForce() Situation {
	past := slices.Clone(s.Past)
	stuck := maps.Clone(s.stuck)
	before := s.Job.Knobs
	for i := range past {
		now := s.Job.Knobs
		if past[i].Knobs != nil {
			now = s.known(past[i].Knobs)
		}
		if past[i].Phase != phaseLoad {
			missed := missed(past[i].NotApplied, s.Job.Knobs, before, now)
			// A step is one thing: half of it (accumulation without the batch) would be
			// another training.
			if len(missed) > 0 {
				now = before
				if stuck == nil {
					stuck = map[job.Knob]int{}
				}
				for _, k := range missed {
					stuck[k] = past[i].Attempt
				}
			}
		}
		past[i].Knobs = now
		before = now
	}
	s.Past, s.stuck = past, stuck
	return s
}

// missed returns the knobs of a step that the shim did not turn: those that differ from
// the attempt before, and those that are as typed, where the settings were taken from
// what the shim saw. One that it had turned in an earlier attempt is not among them.
func missed(reported []job.Knob, typed, before, now job.Knobs) []job.Knob {
	var ks []job.Knob
	for _, k := range turned {
		if slices.Contains(reported, k) && (before[k].Value != now[k].Value || now[k].Value == typed[k].Value) {
			ks = append(ks, k)
		}
	}
	return ks
}

// known fills in what was not known when an attempt was started: settings that the
// shim has seen since, and what became of those that it halved.
func (s Situation) known(k job.Knobs) job.Knobs {
	k = k.Clone()
	for _, name := range turned {
		typed := s.Job.Knobs[name]
		if set := k[name]; typed.Value != "" && set.Value == "" {
			k[name] = typed
		}
	}
	for name := range halvable {
		n := whole(s.Job.Knobs[name].Value)
		if k[name].Value != Half || n < 1 || n > most {
			continue
		}
		half := n
		switch {
		case name == job.SeqLen && n/2 >= max(defaultFloor, s.Floor, s.Job.Floor):
			half = n / 2
		case name != job.SeqLen && n > 1:
			half = properDivisors(n)[0]
		}
		put(k, name, half)
		// Accumulation goes with it, where the attempt did not name its own.
		acc, global := whole(k[job.Accumulation].Value), (&state{s: s, now: k}).global()
		if name == job.MicroBatch && acc > 0 && !global && k[job.Accumulation].Value == s.Job.Knobs[job.Accumulation].Value {
			put(k, job.Accumulation, min(acc, most)*(n/half))
		}
	}
	return k
}

func put(k job.Knobs, name job.Knob, n int64) {
	set := k[name]
	set.Value = strconv.FormatInt(n, 10)
	k[name] = set
}

// otherMethod says whether settings train by another method than the command as typed.
func (s Situation) otherMethod(k job.Knobs) bool {
	from, to := s.Job.Knobs, k
	return from[job.Method].Value != to[job.Method].Value || from[job.LoadIn4Bit].Value != to[job.LoadIn4Bit].Value
}

// mark says on a decision what another method means for it.
func (s Situation) mark(d *Decision) {
	retry := d.Act == "retry"
	other := retry && s.otherMethod(d.Knobs)
	taken := false // an attempt with the other method has left a checkpoint of its own
	for i := range s.Past {
		if s.otherMethod(s.knobs(i)) {
			d.OtherExperiment = true
			taken = taken || s.Past[i].Progressed
		}
	}
	d.OtherExperiment = d.OtherExperiment || other
	d.NewFolder = other
	d.StartOver = other && !taken && s.Job.Knobs[job.Method].Value == "full"
}
