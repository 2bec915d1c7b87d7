package trainer

import (
	"sparkrun/internal/edit"
	"sparkrun/internal/job"
	"sparkrun/ladder/trainer/shim"
)

// CanTurn says whether Rewrite can give a knob another value in this command, and if
// not, why. A knob whose value stands in code can be turned if the shim reaches the
// trainer; a Setting whose Source is job.FromScript is one of those.
func (s *Set) CanTurn(j job.Job, knob job.Knob) (ok bool, why string) {
	why = s.fixed(j, []job.Knob{knob})[knob]
	return why == "", why
}

// Fixed returns the knobs of the job that are known but cannot be turned in this
// command, each with the reason.
func (s *Set) Fixed(j job.Job) map[job.Knob]string { return s.fixed(j, j.Knobs.Names()) }

func (s *Set) fixed(j job.Job, names []job.Knob) map[job.Knob]string {
	out := map[job.Knob]string{}
	c, err := s.inJob(j, userKnobs(j.Knobs), nil, nil)
	var k *knobs
	if err == nil && c.prof != nil {
		k = c.knobs()
	}
	for _, name := range names {
		set, known := j.Knobs[name]
		switch {
		case j.Unsure != "":
			out[name] = j.Unsure
		case name == job.Method && k == nil && set.Source == job.FromUser && !carriesMethod(j.Knobs[job.LoadIn4Bit]):
			out[name] = "no trainer profile fits the command, so which settings change the method is not known"
		case set.Source == job.FromUser && (name != job.Method || k == nil):
		case k == nil && (j.Opaque != "" || set.Source == job.FromScript):
			if why := j.ShimRefused; why != "" {
				out[name] = "only the shim could change it, and it does not reach the trainer: " + why
			} else if name != job.Method && !shimTurns(string(name)) {
				out[name] = "the shim does not know it"
			}
		case k == nil:
			out[name] = "no trainer profile fits the command"
		case name == job.Method:
			if _, err := k.switchOf(set.Value, "lora"); err != nil && set.Value != "lora" {
				out[name] = err.Error()
			}
		default:
			why := k.fixed(string(name))
			if f, _, _ := k.get(string(name)); why != "" && known && set.Source == job.FromScript && !f.inCode && j.ShimRefused == "" && shimTurns(string(name)) && k.void(string(name)) == "" {
				why = "" // seen by the shim, which turns it where it was seen
			}
			if why != "" {
				out[name] = why
			}
		}
	}
	return out
}

// ResumeByShim says whether the shim can hand a checkpoint to the trainer though the
// command cannot ask for it.
func (s *Set) ResumeByShim(j job.Job) bool {
	if j.ShimRefused != "" || j.Unsure != "" {
		return false
	}
	if j.Profile == "" {
		return j.Opaque != ""
	}
	p := s.profile(j.Profile)
	return p != nil && p.Resume.Shim
}

// Changed returns the files that are no longer what they were when the command was
// understood: what is known of the job may be wrong.
func (s *Set) Changed(j job.Job) []string {
	c, err := s.inJob(j, userKnobs(j.Knobs), nil, nil)
	if err != nil {
		return nil
	}
	return differ(j.Read, c.read)
}

// differ returns the files that were read before and are gone or others now.
func differ(before, now map[string]string) []string {
	var files []string
	for _, f := range sortedKeys(before) {
		if before[f] != now[f] {
			files = append(files, f)
		}
	}
	return files
}

// Learn returns the job with the settings that only the shim has seen: they are
// written in code, and the shim is the way to turn them.
func (s *Set) Learn(j job.Job, r shim.Record) job.Job {
	learned := shim.Learned(r)
	if len(learned) == 0 {
		return j
	}
	j.Knobs = j.Knobs.Clone()
	for _, name := range learned.Names() {
		if _, known := j.Knobs[name]; known {
			continue
		}
		set := learned[name]
		set.Source = job.FromScript
		j.Knobs[name] = set
	}
	if _, known := j.Knobs[job.Method]; !known {
		if set, ok := j.Knobs[job.LoadIn4Bit]; ok {
			if on, _ := edit.AsBool(set.Value); on {
				j.Knobs[job.Method] = job.Setting{Value: "qlora", Source: job.FromScript, Where: set.Where}
			}
		}
	}
	return j
}

// Floor returns the shortest length that the job's profile allows a rung to go
// to, 0 if it does not say.
func (s *Set) Floor(j job.Job) int64 {
	if p := s.profile(j.Profile); p != nil {
		return int64(p.Floor)
	}
	return 0
}

// CanResume says whether the trainer takes up a checkpoint that the command names.
func (s *Set) CanResume(j job.Job) bool {
	if j.Unsure != "" || j.Nodes > 1 || j.Resume.How == "never" {
		return false
	}
	c, err := s.inJob(j, userKnobs(j.Knobs), nil, nil)
	return err == nil && c.prof != nil && c.knobs().asksResume() == ""
}

// carriesMethod says whether 4-bit loading, where no profile fits, is a knob by which
// the method can be changed.
func carriesMethod(set job.Setting) bool {
	return set.Source == job.FromUser || set.Source == job.FromScript
}
