package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sparkrun/internal/event"
	"sparkrun/internal/job"
	"sparkrun/ladder"
	"sparkrun/ladder/oom"
	"sparkrun/ladder/trainer"
	"sparkrun/ladder/trainer/shim"
)

// writeShim writes one file of the shim below the attempt's folder.
func writeShim(file trainer.File) error {
	// A container may run as somebody else, who has to read it.
	if err := os.MkdirAll(filepath.Dir(file.Path), 0o755); err != nil {
		return fmt.Errorf("making the folder of the shim: %w", err)
	}
	f, err := os.OpenFile(file.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, file.Mode)
	if err != nil {
		return fmt.Errorf("writing the shim: %w", err)
	}
	_, err = f.Write(file.Content)
	if err = errors.Join(err, f.Chmod(file.Mode), f.Close()); err != nil {
		_ = os.Remove(file.Path) // half a file is no shim, and may be tried again
		return fmt.Errorf("writing the shim: %w", err)
	}
	return nil
}

// makeShimDir makes a folder of the shim. In a container somebody else may have to
// write there; the run folder around it keeps everybody else on this machine out.
func makeShimDir(dir string) error {
	mode := os.FileMode(0o755)
	if filepath.Base(dir) == shim.RecordDir {
		mode = 0o777 | os.ModeSticky
	}
	err := os.MkdirAll(dir, mode)
	if err == nil {
		err = os.Chmod(dir, mode)
	}
	if err != nil {
		return fmt.Errorf("making a folder of the shim: %w", err)
	}
	return nil
}

// shimmed is what the shim of an attempt has told; the zero value is no shim.
type shimmed struct {
	used bool
	rec  shim.Record
	// missing are the knobs it was to turn and has not.
	missing []job.Knob
}

// readShim takes in what the shim has recorded, keeps it as attempts/N/shim.json and
// tells what went wrong. The training does not depend on any of it.
func (r *run) readShim(a *attempt) shimmed {
	if a.rewrite.Shim == nil {
		return shimmed{}
	}
	rec, err := shim.Read(a.dir)
	if err != nil {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Warn, Msg: "what the shim has seen cannot be read: " + err.Error()})
	}
	s := shimmed{used: true, rec: rec, missing: shim.Applied(*a.rewrite.Shim, rec)}
	r.writeSmall(a, "shim.json", rec)
	for i, t := range append(append([]string{}, rec.Trouble...), rec.Skipped...) {
		if i == 5 {
			break // shim.json has them all
		}
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Warn, Msg: "the shim left something as it was: " + t})
	}
	if len(a.rewrite.Shim.Clamps) == 0 {
		return s
	}
	switch {
	case !rec.Loaded:
		r.log.Event(event.Event{
			Attempt: a.n, Kind: event.RungNotApplied, Level: event.Warn,
			Msg: "the shim was not loaded by any Python process of the attempt, so the settings in the code were as before", Data: map[string]any{"knobs": s.missing},
		})
	case len(s.missing) > 0:
		r.log.Event(event.Event{
			Attempt: a.n, Kind: event.RungNotApplied, Level: event.Warn,
			Msg:  "the shim was loaded, but nothing took from it: " + strings.Join(words(s.missing), ", ") + "; those settings were as before" + whyNot(rec, s.missing),
			Data: map[string]any{"knobs": s.missing},
		})
	}
	return s
}

// notTurned are the knobs that the shim cannot turn in this command: those it was to turn
// and has not, and all of them where it was not loaded or no process has imported a
// library that it knows, so that the next one would be tried in vain.
func (s shimmed) notTurned() []job.Knob {
	if len(s.missing) > 0 && (!s.rec.Loaded || len(s.rec.Processes) == 0) {
		return shim.Knobs()
	}
	return s.missing
}

// unreached says why the shim is of no use in further attempts: Python ran, and did not
// load it. Empty where it was loaded, or was not there.
func (s shimmed) unreached(n int) string {
	if !s.used {
		return ""
	}
	if why := s.rec.Unreached(); why != "" {
		return fmt.Sprintf("attempt %d: %s", n, why)
	}
	return ""
}

// whyNot gives the shim's own reasons for what it left alone.
func whyNot(rec shim.Record, missing []job.Knob) string {
	said := map[string]bool{}
	for _, seen := range rec.Seen {
		for _, k := range missing {
			if seen.Knob == k && seen.Why != "" {
				said[seen.Where+": "+seen.Why] = true
			}
		}
	}
	if len(said) == 0 {
		return ""
	}
	return " (" + strings.Join(sortedFiles(said), "; ") + ")"
}

func words(knobs []job.Knob) []string {
	out := make([]string, len(knobs))
	for i, k := range knobs {
		out[i] = string(k)
		if w, ok := knobWords[k]; ok {
			out[i] = w
		}
	}
	return out
}

// inForce are the settings an attempt ran with: those it was given, and in place of
// what was not known beforehand what the shim saw the trainer take.
func (s shimmed) inForce(given job.Knobs) job.Knobs {
	if !s.used {
		return given
	}
	knobs := given.Clone()
	for _, seen := range s.rec.Seen {
		set, known := knobs[seen.Knob]
		if seen.After == "" || known && set.Source != job.FromScript && set.Value != ladder.Half {
			continue
		}
		set.Value, set.Source = seen.After, job.FromScript
		if set.Where == "" {
			set.Where = seen.Where
		}
		knobs[seen.Knob] = set
	}
	return knobs
}

// withException looks at a verdict once more where the output did not show what ended
// the training but the shim has seen the exception: a progress display, a logger or a
// launcher may have swallowed it.
func (r *run) withException(v oom.Verdict, ev oom.Evidence, s shimmed) oom.Verdict {
	x := s.rec.Exception
	if x == nil || v.Answer == oom.NotOOM && (v.Reason == "success" || ev.Exit.Known && ev.Exit.Code == 0 && ev.Exit.Signal == "") {
		return v
	}
	item := oom.Item{Source: "shim", Weight: oom.Note, T: x.Time, Text: clip(x.Type+": "+x.Message, 300)}
	if v.Answer == oom.Unsure || v.Answer == oom.NotOOM && v.Reason == "error" {
		sc := r.table().NewScanner()
		for i, text := range tracebackOf(x) {
			sc.Feed(oom.Line{N: i + 1, T: x.Time, Text: text})
		}
		ev.Output = sc.Output()
		if again := r.table().Decide(ev); again.Answer != oom.Unsure && (again.Answer != v.Answer || again.Reason != v.Reason) {
			item.Weight = oom.Decides
			for i := range again.Evidence {
				// Line numbers are those of the exception, not of output.log.
				again.Evidence[i].Line = 0
			}
			v = again
		}
	}
	v.Evidence = append(v.Evidence, item)
	for name, n := range x.Memory {
		if _, known := v.Sizes[name]; !known && v.Sizes != nil {
			v.Sizes["torch_"+name] = n
		}
	}
	return v
}

// tracebackOf writes an exception as Python would have printed it.
func tracebackOf(x *shim.Exception) []string {
	lines := []string{"Traceback (most recent call last):"}
	for _, f := range x.Frames {
		parts := strings.Split(f, ":")
		if n := len(parts); n >= 3 {
			lines = append(lines, fmt.Sprintf("  File %q, line %s, in %s", strings.Join(parts[:n-2], ":"), parts[n-2], parts[n-1]))
		}
	}
	return append(lines, strings.Split(x.Type+": "+x.Message, "\n")...)
}
