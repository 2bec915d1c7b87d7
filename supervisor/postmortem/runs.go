package postmortem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sparkrun/ladder/oom"
	"sparkrun/supervisor/runlog"
)

// RunInfo is the run that an answer is about.
type RunInfo struct {
	ID    string       `json:"id"`
	Dir   string       `json:"dir"`
	State runlog.State `json:"state"`
	// Going says that the run has not ended: somebody has it.
	Going bool `json:"going"`
	// Attempt is the one the verdict is about, 0 if the command never ran.
	Attempt int `json:"attempt"`
	// Judged says that the verdict is the one the run itself came to; otherwise it
	// was made now, from the run's files.
	Judged   bool          `json:"judged"`
	Attempts []AttemptLine `json:"attempts"`
	open     bool          // the attempt has no end
}

// AttemptLine is one attempt in short.
type AttemptLine struct {
	N       int      `json:"n"`
	Rungs   []string `json:"rungs"`
	End     string   `json:"end"`     // "exit 1", "SIGKILL", "lost", "running"
	Verdict string   `json:"verdict"` // as "oom (guard)"; empty if there is none
}

// JudgeRun says why an attempt of a run ended: the last one where attempt is 0.
// Where the run has come to a verdict it is that, else one is made from the files.
// dir is the run directory.
func JudgeRun(ctx context.Context, t *oom.Table, p runlog.Places, dir string, attempt int, progress func(read, total int64)) (Answer, error) {
	man, err := runlog.ReadManifest(dir)
	if err != nil {
		return Answer{}, fmt.Errorf("%w; its output can still be judged: sparkrun why %s", err, filepath.Join(dir, runlog.AttemptsDir, "1", "output.log"))
	}
	info := &RunInfo{ID: man.ID, Dir: dir, State: man.State, Attempts: []AttemptLine{}}
	here := thisMachine()
	if !man.State.Final() {
		switch lifeOf(p, man, dir, here, &processes{}) {
		case living:
			info.Going = true
		case lifeUnknown:
			// Of another machine, or in a container of its own: recent writes mean
			// that it goes on.
			info.Going = here.now.Sub(lastWrite(dir, man)) < quietFor
		}
	}
	last := lastAttempt(man, dir)
	for n := 1; n <= last; n++ {
		info.Attempts = append(info.Attempts, attemptLine(man, dir, n, info.Going && n == last))
	}
	a := Answer{Run: info}
	switch {
	case attempt > last && last == 0, attempt < 0:
		return a, fmt.Errorf("run %s has no attempt %d: its command was never started", man.ID, attempt)
	case attempt > last:
		return a, fmt.Errorf("run %s has no attempt %d: it has %s", man.ID, attempt, counted(last))
	case last == 0:
		a.Verdict = neverStarted(man)
		return a, nil
	case attempt == 0:
		attempt = last
	}
	info.Attempt = attempt
	f := &attemptFiles{man: man, run: dir, n: attempt, dir: filepath.Join(dir, runlog.AttemptsDir, strconv.Itoa(attempt)), progress: progress}
	v, err := readVerdict(f.dir)
	if err == nil {
		info.Judged = true
		a.Verdict = v
		return a, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		a.Notes = append(a.Notes, err.Error()+"; judged anew")
	}
	if _, err := os.Lstat(f.dir); errors.Is(err, os.ErrNotExist) {
		if v, ok := recorded(man, attempt); ok {
			info.Judged = true
			a.Verdict = v
			a.Notes = append(a.Notes, fmt.Sprintf("the files of attempt %d are gone; this is what run.json has kept of its verdict", attempt))
			return a, nil
		}
	}
	g, err := f.gather(ctx, t)
	if err != nil {
		return a, err
	}
	info.open = g.exit == nil
	if g.exit == nil && !info.Going && here.rebooted(man) && man.Host.Name == here.host {
		g.ev.Lost = previousBoot(ctx, here, man, g.lastT)
	}
	a.Verdict = t.Decide(g.ev)
	g.unnumber(&a.Verdict)
	a.Notes = append(a.Notes, f.notes...)
	return a, nil
}

func counted(n int) string {
	if n == 1 {
		return "one attempt"
	}
	return fmt.Sprintf("attempts 1 to %d", n)
}

// neverStarted is the verdict on a run whose command never ran.
func neverStarted(man *runlog.Manifest) oom.Verdict {
	v := blank(oom.NotOOM, "not-started", oom.High)
	v.Evidence = append(v.Evidence, oom.Item{Source: "process", Weight: oom.Decides, Text: fmt.Sprintf("the run is %s and its command was never started", man.State)})
	v.Quote = v.Evidence[0].Text
	return v
}

// recorded is what run.json has kept of an attempt's verdict.
func recorded(man *runlog.Manifest, n int) (oom.Verdict, bool) {
	for _, rec := range man.Attempts {
		if s := rec.Verdict; rec.N == n && s != nil {
			v := blank(oom.Answer(s.Verdict), s.Reason, oom.Confidence(s.Confidence))
			v.Kind, v.Quote = s.Kind, s.Quote
			if s.Quote != "" {
				v.Evidence = append(v.Evidence, oom.Item{Source: "run.json", Weight: oom.Decides, Text: s.Quote})
			}
			return v, true
		}
	}
	return oom.Verdict{}, false
}

// blank is a verdict that rests on something else than the evidence of a death.
func blank(answer oom.Answer, reason string, c oom.Confidence) oom.Verdict {
	return oom.Verdict{
		Schema: oom.Schema, Answer: answer, Reason: reason, Phase: oom.PhaseUnknown, Confidence: c,
		Evidence: []oom.Item{}, Sizes: map[string]int64{}, Advice: []string{}, Unreadable: []string{}, Lever: "none",
	}
}

// attemptLine is an attempt in short, from run.json and its folder.
func attemptLine(man *runlog.Manifest, dir string, n int, going bool) AttemptLine {
	f := attemptFiles{man: man, n: n}
	l := AttemptLine{N: n, Rungs: []string{}, End: "no end"}
	rec := f.record()
	if rec != nil {
		l.Rungs = append(l.Rungs, rec.Rungs...)
		if rec.EndKind != "" {
			l.End = string(rec.EndKind)
		}
		if e := rec.Exit; e != nil && e.Signal != "" {
			l.End = e.Signal
		} else if e != nil && e.Code != nil {
			l.End = fmt.Sprintf("exit %d", *e.Code)
		}
		if v := rec.Verdict; v != nil {
			l.Verdict = word(v.Verdict, v.Kind, v.Reason)
		}
	}
	if l.Verdict == "" {
		if v, err := readVerdict(filepath.Join(dir, runlog.AttemptsDir, strconv.Itoa(n))); err == nil {
			l.Verdict = word(string(v.Answer), v.Kind, v.Reason)
		}
	}
	if going && (rec == nil || rec.End == nil) {
		l.End = "running"
	}
	return l
}

// word is a verdict in short, as "oom (guard)".
func word(answer, kind, reason string) string {
	what := strings.Join(strings.Fields(kind+" "+reason), ", ")
	if what == "" {
		return answer
	}
	return answer + " (" + what + ")"
}

// lostAt is the moment of a loss as it is told to a person.
func lostAt(t time.Time) string {
	if t.IsZero() {
		return "an unknown moment"
	}
	return t.Format("2006/01/02 15:04:05")
}
