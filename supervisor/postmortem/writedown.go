package postmortem

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
	"sparkrun/supervisor/runlog"
)

// writeDown puts the end into the run: the verdict first, then the log, and the
// state last, so that a crash in between leaves it to be done again.
func writeDown(d *runlog.Dir, man *runlog.Manifest, r Recovered, end time.Time, g gathered) error {
	var errs []error
	verdictFile := filepath.Join(d.Attempt(r.Attempt), "verdict.json")
	if _, err := os.Lstat(verdictFile); r.Attempt > 0 && errors.Is(err, os.ErrNotExist) {
		errs = append(errs, writeVerdict(d, r.Attempt, r.Verdict))
	}
	clk := man.Start.Clock()
	errs = append(errs, logEnd(d, clk, r, end, &g))
	record(man, clk, r, end, &g)
	errs = append(errs, d.Save(man))
	d.ReleaseReserve()
	d.ReleaseLast()
	return errors.Join(errs...)
}

// writeVerdict writes verdict.json of an attempt's folder.
func writeVerdict(d *runlog.Dir, attempt int, v oom.Verdict) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the verdict: %w", err)
	}
	return d.WriteVerdict(filepath.Join(d.Attempt(attempt), "verdict.json"), append(b, '\n'))
}

// logEnd adds the end to events.jsonl and run.log. A torn last line there gets its
// end first; nothing is taken away.
func logEnd(d *runlog.Dir, clk clock.Clock, r Recovered, end time.Time, g *gathered) error {
	log, err := runlog.OpenLog(d, clk)
	if err != nil {
		return err
	}
	if c := g.sums.cut; c != nil {
		log.Event(c.event(r.Attempt, g.exit != nil && c.end.Before(g.over)))
	}
	if r.Attempt > 0 {
		log.Event(event.Event{
			T: end, Attempt: r.Attempt, Kind: event.Verdict, Level: event.Warn, Msg: InWords(r.Verdict),
			Data: map[string]any{"verdict": r.Verdict.Answer, "kind": r.Verdict.Kind, "reason": r.Verdict.Reason, "confidence": r.Verdict.Confidence, "phase": r.Verdict.Phase},
		})
	}
	log.Event(event.Event{
		T: end, Attempt: r.Attempt, Kind: event.RunEnd, Level: event.Warn, Msg: r.Text,
		Data: map[string]any{"state": runlog.StateLost, "exit_status": statusLost, "ended_by": runlog.BySparkrun, "what": r.What},
	})
	return log.Close()
}

// record brings run.json to its end.
func record(man *runlog.Manifest, clk clock.Clock, r Recovered, end time.Time, g *gathered) {
	exit, ended := g.exit, false
	moment := runlog.MomentOf(clk, end)
	if n := len(man.Attempts); r.Attempt > 0 && (n == 0 || man.Attempts[n-1].N < r.Attempt) {
		// The folder was made, and then there was no time left to say so.
		man.Attempts = append(man.Attempts, runlog.AttemptRecord{
			N: r.Attempt, Start: moment, Log: filepath.Join(runlog.AttemptsDir, strconv.Itoa(r.Attempt), "output.log"),
		})
	}
	for i := range man.Attempts {
		a := &man.Attempts[i]
		if a.N != r.Attempt {
			continue
		}
		if ended = a.End != nil; !ended {
			at := moment
			a.End, a.DurationS = &at, sample.Known(max(end.Sub(a.Start.T).Seconds(), 0))
		}
		if a.EndKind == "" {
			a.EndKind = runlog.EndLost
			if exit != nil {
				a.EndKind = runlog.EndExited
				if exit.Signal != "" {
					a.EndKind = runlog.EndSignaled
				}
			}
		}
		if exit != nil && a.Exit == nil {
			a.Exit = &runlog.Exit{Signal: exit.Signal, Status: exit.Status()}
			if exit.Signal == "" {
				code := exit.Code
				a.Exit.Code = &code
			}
		}
		if a.Verdict == nil {
			v := r.Verdict
			a.Verdict = &runlog.VerdictSummary{Verdict: string(v.Answer), Kind: v.Kind, Reason: v.Reason, Confidence: string(v.Confidence), Quote: v.Quote}
		}
	}
	g.sums.into(man, r.Attempt, ended)
	status := statusLost
	man.State, man.Result = runlog.StateLost, string(runlog.StateLost)
	man.ExitStatus, man.EndedBy, man.End, man.Pending = &status, runlog.BySparkrun, &moment, nil
}
