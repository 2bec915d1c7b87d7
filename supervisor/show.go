package supervisor

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"sparkrun/internal/event"
	"sparkrun/supervisor/follow"
	"sparkrun/supervisor/runlog"
)

// show is our own side of the terminal: what the log takes note of, as far as a
// person watching wants it.
func (r *run) show(e event.Event) {
	switch e.Kind {
	case event.RunEnd, event.SensorAbsent, event.Checkpoint, event.AttemptEnd, event.Verdict, event.RungRefused, event.KernelOOM:
		if e.Level == event.Info {
			return // in run.log; the summary tells it
		}
	case event.AttemptStart:
		if e.Attempt == 1 {
			return // the user has just typed it
		}
	}
	if r.o.Quiet && e.Level == event.Info {
		return
	}
	label := string(e.Kind) + ": "
	switch e.Kind {
	case event.RunStart, event.RungAnnounce, event.AttemptStart, event.RunStop, event.GateWait, event.GateOpen,
		event.ResumeChoice, event.RungRefused, event.RungNotApplied, event.Divergence:
		label = "" // the sentence says it
	}
	if e.Label != "" {
		label = e.Label + ": "
	}
	r.screen.Say("sparkrun: " + label + e.Msg)
}

// showChild copies one attempt after the other to the terminal. It alone may be
// blocked by a terminal that does not read.
func (r *run) showChild() {
	defer close(r.shown)
	for rd := range r.screenq {
		if err := r.screen.Child(context.Background(), rd); err != nil && !errors.Is(err, follow.ErrTerminalLost) {
			r.log.Event(event.Event{Kind: event.Internal, Level: event.Error, Msg: "showing the output: " + err.Error()})
		}
	}
}

// nextCommand is the one thing to type next: always a command, never a sentence.
func (r *run) nextCommand(checkpoint string) string {
	switch r.m.State {
	case Succeeded, SucceededChanged:
		return "less " + shellLine([]string{filepath.Join(r.dir.Path, "run.log")})
	case Blocked:
		return r.o.Prog + " preflight -- " + shellLine(r.secrets.Argv(r.o.Argv))
	case Stopped:
		return r.againFrom(checkpoint)
	}
	for _, a := range r.advice {
		// The ladder ends with a ready command where there is one.
		if _, cmd, ok := strings.Cut(a, ": sparkrun "); ok {
			return r.o.Prog + " " + r.secrets.Text(cmd)
		}
	}
	if r.att != nil && r.att.endedFor() != nil && r.att.endedFor().kept != "" {
		return "less " + shellLine([]string{r.dir.File(r.att.endedFor().kept)})
	}
	if r.att != nil && r.att.endKind != runlog.EndNotStarted {
		return "tail -n 50 " + shellLine([]string{filepath.Join(r.att.dir, "output.log")})
	}
	return r.o.Prog + " preflight -- " + shellLine(r.secrets.Argv(r.o.Argv))
}

// againFrom is this call to be typed again, from the newest complete checkpoint where
// one can be handed over: the same command alone would write over what was saved.
func (r *run) againFrom(checkpoint string) string {
	l := r.looked
	if checkpoint == "" {
		return r.againCommand("") + "   (starts from the beginning)"
	}
	if l == nil || !l.canPass && !l.byShim || r.resumePath() != "" {
		return r.againCommand("") + "   (starts from the beginning, and may write over " + filepath.Dir(checkpoint) + ")"
	}
	return r.againCommand(checkpoint)
}

// againCommand is this call of sparkrun, to be typed again.
func (r *run) againCommand(from string) string {
	args := r.o.Self
	if len(args) == 0 {
		args = append([]string{"--"}, r.o.Argv...)
	}
	if from != "" {
		at := 0
		if args[0] == "run" {
			at = 1
		}
		args = slices.Insert(slices.Clone(args), at, "--resume", from)
	}
	safe := r.secrets.Argv(args)
	line := r.o.Prog + " " + shellLine(safe)
	if !slices.Equal(safe, args) {
		line += "   (with what was redacted filled in)"
	}
	return line
}

// adviceLine is the sentence that helps most, where it is not the next command.
func (r *run) adviceLine() string {
	for _, a := range r.advice {
		a, _, _ = strings.Cut(strings.TrimSpace(a), "\n")
		if a != "" && !strings.Contains(a, ": sparkrun ") {
			return strings.TrimPrefix(a, "start from: ")
		}
	}
	return ""
}
