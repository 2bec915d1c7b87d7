package supervisor

import (
	"fmt"
	"os"
	"strings"

	"sparkrun/internal/job"
	"sparkrun/ladder"
	"sparkrun/ladder/trainer/checkpoint"
	"sparkrun/supervisor/runlog"
)

// looked is what a decision rests on and only the disk tells: it is looked at once
// after each death, on a goroutine that may hang with a file system, and handed on as a
// value. The loop never reads a file of the user's.
type looked struct {
	saved savedBy
	// given is the checkpoint that --resume names, asked the one that the command does.
	given    checkpoint.Checkpoint
	givenErr error
	asked    *checkpoint.Checkpoint
	// canPass and byShim say how a checkpoint can be handed over.
	canPass, byShim bool
	// fixed are the knobs that cannot be turned in this command, with the reason.
	fixed map[job.Knob]string
	// edited are files of the command that are not what they were at the start, gone
	// those that are no more.
	edited, gone []string
}

// look reads everything that the next decision needs.
func (r *run) look(j job.Job) *looked { return r.lookWith(j, r.saved()) }

// lookWith does so with what was saved.
func (r *run) lookWith(j job.Job, saved savedBy) *looked {
	l := &looked{
		saved: saved, fixed: r.set.Fixed(j),
		canPass: r.set.CanResume(j), byShim: r.o.Shim != ladder.ShimNever && r.set.ResumeByShim(j),
	}
	if path := r.resumePath(); path != "" {
		l.given, l.givenErr = checkpoint.At(j.Resume.Layout, path)
	}
	if asked := j.Knobs[job.ResumeFrom].Value; asked != "" {
		if path, ok := r.set.HostPath(j, asked); ok {
			if c, err := checkpoint.At(j.Resume.Layout, path); err == nil {
				l.asked = &c
			}
		}
	}
	for _, name := range r.set.Changed(r.asked) {
		if path, ok := r.onHost(name); ok {
			if _, err := os.Stat(path); err != nil {
				l.gone = append(l.gone, name)
				continue
			}
		}
		l.edited = append(l.edited, name)
	}
	return l
}

// resumePath is the checkpoint that --resume names, absolute; "" where it names none.
func (r *run) resumePath() string {
	switch r.o.Resume {
	case "", resumeAuto, resumeNever:
		return ""
	}
	return r.abs(r.o.Resume)
}

// hashOwn returns the sums of the command's own files, by their names in it: the script
// and the config.
func (r *run) hashOwn() map[string]string {
	out := map[string]string{}
	for _, name := range []string{r.asked.Script, r.asked.ConfigFile} {
		if name == "" || r.asked.Module && name == r.asked.Script {
			continue
		}
		if path, ok := r.onHost(name); ok {
			if sum, err := runlog.HashFile(path); err == nil {
				out[name] = sum
			}
		}
	}
	return out
}

// notAsRead says why there is no further attempt where a file of the command is not the
// one that was read any more: what would run is not what was started, and what the
// ladder knows of the settings would be wrong. Empty where all are.
func (l *looked) notAsRead() string {
	switch {
	case len(l.gone) > 0:
		return fmt.Sprintf("%s cannot be read any more: it was there when the run began", l.gone[0])
	case len(l.edited) > 0:
		return fmt.Sprintf("%s has been changed since the run began, so that another attempt would not be what was started; start the run again", strings.Join(l.edited, ", "))
	}
	return ""
}
