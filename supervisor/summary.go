package supervisor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
	"sparkrun/internal/shellread"
	"sparkrun/sampler/energy"
	"sparkrun/supervisor/runlog"
)

// Facts is everything the summary is made from.
type Facts struct {
	State    State
	Status   int
	EndedBy  string
	Reason   string
	Attempts []AttemptFacts
	Changes  []string // what the last attempt did differently, as "length 4096 -> 2048"
	// OtherExperiment says that the last attempt trains by another method than asked
	// for; Diverged how its loss went wrong, "" if it did not.
	OtherExperiment bool
	Diverged        string
	// Watched is what a watch of ours was ending the last attempt for; told where the user
	// stopped it meanwhile.
	Watched   string
	FirstStep int64
	LastStep  int64
	StepTotal int64
	// StepTimeS is seconds for one optimizer step at last, EtaS what was left then.
	StepTimeS, EtaS sample.Num
	FirstLoss       sample.Num
	LastLoss        sample.Num
	// Checkpoint is the newest complete one, "" for none; Output the folder of
	// the last attempt where it is not the one that was asked for.
	Checkpoint string
	// OutputKnown says that the folder was known and could be looked at.
	OutputKnown bool
	Output      string
	Gate        time.Duration
	LowestKiB   sample.Num
	LowestAt    time.Time
	HottestC    sample.Num
	// Pauses counts those of --max-temp, Paused is how long they were.
	Pauses int
	Paused time.Duration
	// Heat is nil where nothing was known of it; Energy is of all attempts.
	Heat   *runlog.Heat
	Energy energy.Figures
	RunDir string
	// Next is the one command to type; Advice a sentence about what would help.
	Next   string
	Advice string
	Took   time.Duration
}

// AttemptFacts is one attempt as the summary tells it.
type AttemptFacts struct {
	N       int
	End     time.Time
	Took    time.Duration
	Died    bool
	How     string // "exit 1", "SIGKILL"
	Verdict string // "oom (cuda-allocator)", "not-oom (python-error)"
	Quote   string
	// Paused is how long it was paused for heat, LostS what its steps took longer.
	Paused time.Duration
	LostS  sample.Num
}

// MaxSummaryLines bounds the summary: it is read half awake.
const MaxSummaryLines = 8

// Summary tells a run in at most eight lines: what came of it, how far it got,
// each death, what it cost, where everything is and what to type next.
func Summary(f Facts) []string {
	lines := []string{resultLine(f)}
	if s := progressLine(f); s != "" {
		lines = append(lines, s)
	}
	var deaths []string
	for _, a := range f.Attempts {
		if a.Died {
			deaths = append(deaths, deathLine(a))
		}
	}
	tail := tailLines(f)
	if len(lines)+min(1, len(deaths))+len(tail) > MaxSummaryLines {
		tail[0] += "; " + tail[1] // time lost, and machine
		tail = slices.Delete(tail, 1, 2)
	}
	// The first deaths are alike as a rule; the last one is what counts.
	if room := max(MaxSummaryLines-len(lines)-len(tail), 1); len(deaths) > room {
		cut := len(deaths) - room
		deaths = deaths[cut:]
		deaths[0] += fmt.Sprintf(" (and %d before: see run.log)", cut)
	}
	return append(append(lines, deaths...), tail...)
}

func resultLine(f Facts) string {
	n := len(f.Attempts)
	attempts := "1 attempt"
	if n != 1 {
		attempts = fmt.Sprintf("%d attempts", n)
	}
	var s string
	switch f.State {
	case Succeeded:
		s = "succeeded in " + attempts + ", exactly as asked"
	case SucceededChanged:
		s = "succeeded in " + attempts + ", but not as asked: " + strings.Join(f.Changes, ", ")
		if f.OtherExperiment {
			s = "succeeded in " + attempts + ", but as ANOTHER EXPERIMENT: " + strings.Join(f.Changes, ", ")
		}
	case Exhausted:
		s = "out of memory in every attempt (" + attempts + "); exit status 75"
		if f.Reason != "" {
			s += ": " + f.Reason
		}
	case Blocked:
		s = "blocked by preflight"
		if f.Reason != "" {
			s = f.Reason
		}
		s += ", nothing was started; exit status 78"
	case Stopped:
		s = fmt.Sprintf("%s after %s; exit status %d", f.Reason, attempts, f.Status)
		if f.Watched != "" {
			s += "; sparkrun had begun to end the attempt: " + f.Watched
		}
	case Lost:
		s = "lost: " + f.Reason + "; exit status 125"
	case Errored:
		s = fmt.Sprintf("sparkrun could not go on: %s; exit status %d", f.Reason, f.Status)
	default:
		s = fmt.Sprintf("failed after %s; exit status %d", attempts, f.Status)
		if f.Status == 0 {
			s = "ended with status 0, but its output tells of a death (" + attempts + "): look before you trust it"
		}
		if f.Reason != "" {
			s += ": " + f.Reason
		}
	}
	if f.Diverged != "" {
		if f.State == Succeeded || f.State == SucceededChanged {
			s = "NOT GOOD, the loss diverged (" + f.Diverged + "), although the command says success: " + s
		} else {
			s += "; the loss had diverged: " + f.Diverged
		}
	}
	return "result: " + s + " (" + human(f.Took) + ")"
}

func progressLine(f Facts) string {
	if f.LastStep == 0 && !f.LastLoss.OK && f.Checkpoint == "" {
		return ""
	}
	var parts []string
	if f.LastStep > 0 {
		s := fmt.Sprintf("step %d to %d", f.FirstStep, f.LastStep)
		if f.StepTotal > 0 {
			s += fmt.Sprintf(" of %d", f.StepTotal)
		}
		if f.StepTimeS.OK && f.StepTimeS.V >= 0.001 {
			s += fmt.Sprintf(" (%s a step", stepWords(f.StepTimeS.V))
			if left := time.Duration(f.EtaS.V * float64(time.Second)); f.EtaS.OK && left > 0 && f.LastStep < f.StepTotal && f.State != Succeeded && f.State != SucceededChanged {
				s += ", about " + human(left) + " were left"
			}
			s += ")"
		}
		parts = append(parts, s)
	}
	if f.FirstLoss.OK && f.LastLoss.OK {
		parts = append(parts, "loss "+f.FirstLoss.CSV(4)+" to "+f.LastLoss.CSV(4))
	}
	if f.Checkpoint != "" {
		parts = append(parts, "newest complete checkpoint "+f.Checkpoint)
	} else if f.Output == "" && f.OutputKnown {
		parts = append(parts, "no complete checkpoint")
	}
	if f.Output != "" {
		parts = append(parts, "output in "+f.Output)
	}
	return "training: " + strings.Join(parts, "; ")
}

func deathLine(a AttemptFacts) string {
	s := fmt.Sprintf("attempt %d died %s (%s): %s", a.N, a.End.Format("15:04:05"), a.How, a.Verdict)
	if a.Quote != "" {
		s += ": " + clip(a.Quote, 120)
	}
	return s
}

func tailLines(f Facts) []string {
	var out []string
	var lost []string
	var failed time.Duration
	for _, a := range f.Attempts {
		if a.Died && a.N < len(f.Attempts) {
			failed += a.Took
		}
	}
	if failed > 0 {
		lost = append(lost, human(failed)+" in failed attempts")
	}
	if f.Gate > time.Second {
		lost = append(lost, human(f.Gate)+" waiting for memory")
	}
	if len(lost) > 0 {
		out = append(out, "time lost: "+strings.Join(lost, ", "))
	}
	if f.LowestKiB.OK {
		out = append(out, fmt.Sprintf("machine: lowest MemAvailable %.1f GiB at %s", f.LowestKiB.V/(1<<20), f.LowestAt.Format("15:04:05")))
	}
	if s := heatLine(f); s != "" {
		out = append(out, s)
	}
	if f.Advice != "" {
		out = append(out, "advice: "+clip(f.Advice, 300))
	} else if s := heatAdvice(f); s != "" {
		out = append(out, "advice: "+s)
	}
	out = append(out, "everything is in "+f.RunDir)
	if f.Next != "" {
		out = append(out, "next: "+f.Next)
	}
	return out
}

// stepWords writes the length of a step, in three digits: steps are compared with each
// other, and a tenth more is what one wants to see.
func stepWords(s float64) string {
	switch {
	case s < 0.0995:
		return fmt.Sprintf("%.0f ms", s*1000)
	case s < 120:
		return digits(s) + " s"
	}
	return human(time.Duration(s * float64(time.Second)))
}

// clip shortens s to n characters at most.
func clip(s string, n int) string {
	r := []rune(strings.TrimSpace(s))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n-3]) + "..."
}

// human writes a duration as a person would say it.
func human(d time.Duration) string { return clock.Span(d) }

// shellLine writes argv so that it can be pasted into a shell.
func shellLine(argv []string) string { return shellread.Line(argv) }
