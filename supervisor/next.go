package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/job"
	"sparkrun/ladder"
	"sparkrun/ladder/trainer"
	"sparkrun/ladder/trainer/checkpoint"
	"sparkrun/ladder/trainer/place"
)

// AllowRestart is the word of --allow that lets a command of which nothing is known be
// started from the beginning after it has run long.
const AllowRestart = "restart"

// request is what trainer.Rewrite is asked for in attempt n.
func (r *run) request(n int, changes []trainer.Change) trainer.Request {
	return trainer.Request{
		Changes: changes, RunID: r.dir.ID, Attempt: n, AttemptDir: r.dir.Attempt(n), Env: r.o.Env, Shim: r.o.Shim,
		SmallerBatch: r.smallerBatch(), ImagePythonPath: r.pythonPathInside(),
	}
}

// smallerBatch says whether the batch of a plain loop, which has no accumulation to make
// up for it, may become smaller.
func (r *run) smallerBatch() bool {
	return slices.Contains(r.o.Allow, ladder.AllowSmallerBatch) && !r.o.Exact
}

// pythonPathInside is the PYTHONPATH that the container of an earlier attempt had, which
// the shim has to leave in force; "" where there was none, or no attempt without the shim.
func (r *run) pythonPathInside() string {
	for _, a := range r.all {
		if a.rewrite.Shim != nil {
			continue
		}
		a.box.mu.Lock()
		c := a.box.c
		a.box.mu.Unlock()
		if c != nil {
			return c.PythonPath
		}
	}
	return ""
}

// firstAttempt prepares attempt 1: the command exactly as typed, unless the user wants
// the shim in it or names a checkpoint.
func (r *run) firstAttempt() (*attempt, error) {
	a := r.newAttempt(1)
	a.knobs = r.job.Knobs
	rq := r.request(1, nil)
	var choice resumeChoice
	if r.resumePath() != "" {
		choice = chooseResume(r.resumeInput(nil, nil, false))
	}
	if choice.Refuse != "" {
		return nil, fmt.Errorf("--resume %s: %s", r.o.Resume, choice.Refuse)
	}
	if choice.Path != "" {
		ready, err := checkpoint.ForResume(choice.From, choice.Want)
		if err != nil {
			return nil, fmt.Errorf("--resume %s: %w", r.o.Resume, err)
		}
		r.noteMade(ready.Made...)
		rq.Resume, rq.ShimResume = ready.Path, choice.ByShim
		a.resume = choice.Say
	}
	var err error
	if a.rewrite, err = r.set.Rewrite(r.job, rq); err != nil {
		return nil, fmt.Errorf("the command of the first attempt: %w", err)
	}
	return a, nil
}

// afterGate asks the ladder for the next attempt and prepares it. A change that cannot
// be made in this command is refused, and the ladder is asked again without it.
//
// It runs on the gate's goroutine: while the run is at the gate the loop changes
// nothing of what it reads.
func (r *run) afterGate(ctx context.Context, a *attempt, drop *ladder.Drop) (*attempt, Input) {
	status := a.status()
	if why := r.looked.notAsRead(); why != "" {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.RungRefused, Level: event.Info, Msg: "no further attempt: " + why})
		return nil, Input{Kind: Judged, Status: status, Reason: why}
	}
	for ctx.Err() == nil {
		d := r.lad.Next(r.situation(drop))
		if d.Act != "retry" {
			return nil, r.stopInput(a, d, status)
		}
		// Tried before anything is arranged for it.
		if _, err := r.set.Rewrite(r.job, r.request(a.n+1, d.Changes)); err != nil {
			if !r.refuse(a, d, err) {
				return nil, Input{Kind: Judged, Status: status, Reason: err.Error()}
			}
			continue
		}
		next, err := r.prepareNext(a, d)
		if err != nil {
			r.log.Event(event.Event{Attempt: a.n, Kind: event.RungRefused, Level: event.Info, Msg: "no further attempt: " + err.Error()})
			return nil, Input{Kind: Judged, Status: status, Reason: err.Error()}
		}
		return next, Input{Kind: GateOpen, Changed: changesExperiment(d.Changes)}
	}
	return nil, Input{}
}

// refuse notes that the step of a decision cannot be made in this command. It is false
// where the step changes nothing, so that asking again would lead nowhere.
func (r *run) refuse(a *attempt, d ladder.Decision, err error) bool {
	if len(d.Step) == 0 {
		return false
	}
	rung := d.Rungs[len(d.Rungs)-1]
	r.log.Event(event.Event{
		Attempt: a.n, Kind: event.RungRefused, Level: event.Warn, Msg: rung + " refused: " + err.Error(),
		Data: map[string]any{"rung": rung, "how": "refused"},
	})
	return r.refuseStep(d.Step, err)
}

// refuseStep notes that the settings of a step cannot be turned in this command. It is
// false where that is known of all of them.
func (r *run) refuseStep(step []trainer.Change, err error) (fresh bool) {
	if r.refused == nil {
		r.refused = map[job.Knob]string{}
	}
	for _, c := range step {
		if _, known := r.refused[c.Knob]; !known {
			r.refused[c.Knob], fresh = err.Error(), true
		}
	}
	return fresh
}

// prepareNext makes the next attempt out of a decision: from what checkpoint it goes on
// or that it starts over, where it saves, and its command.
func (r *run) prepareNext(a *attempt, d ladder.Decision) (*attempt, error) {
	next := r.newAttempt(a.n + 1)
	next.rungs, next.knobs = d.Rungs, d.Knobs.Clone()
	changes := slices.Clone(d.Changes)
	saved := r.looked.saved
	choice := chooseResume(r.resumeInput(a, changes, d.StartOver))
	if choice.Refuse != "" {
		return nil, errors.New(choice.Refuse)
	}
	// Tried before anything is moved, made or claimed for it.
	if choice.Path != "" {
		try := r.request(next.n, changes)
		try.Resume, try.ShimResume = choice.Path, choice.ByShim
		if _, err := r.set.Rewrite(r.job, try); err != nil {
			choice = resumeChoice{StartOver: true, Say: append(choice.Say, "but that cannot be handed over, so it starts from the beginning: "+err.Error())}
		}
	}
	var said []string
	rq := r.request(next.n, nil)
	if choice.StartOver || choice.Path == "" && !choice.Itself {
		k, err := r.keepOutput(a, next.n, methodLeft(changes))
		if err != nil {
			return nil, err
		}
		said = k.said
		if k.change != nil {
			changes = append(changes, *k.change)
			next.knobs[job.OutputDir] = k.setting
		}
		if choice.Forget {
			set := r.job.Knobs[job.ResumeFrom]
			changes = append(changes, trainer.Change{Knob: job.ResumeFrom, From: set.Value, To: "null", Reason: "it starts over"})
			delete(next.knobs, job.ResumeFrom)
		}
	} else {
		if err := r.moveTorn(a, choice.MoveAside); err != nil {
			return nil, err
		}
		from := saved.from(choice.Path)
		if from == nil {
			from = a
		}
		k, err := r.keepApart(a, next.n, &choice)
		if err != nil {
			return nil, err
		}
		said = k.said
		if k.change != nil {
			changes = append(changes, *k.change)
			next.knobs[job.OutputDir] = k.setting
		} else {
			if c, ok := sameFolder(r.job, from); ok {
				changes = append(changes, c)
			}
			next.knobs[job.OutputDir] = from.knobs[job.OutputDir]
		}
		next.goesOn = max(choice.From.Step, 0)
		if choice.Path != "" {
			ready, err := checkpoint.ForResume(choice.From, r.wanted(choice, from, next.n))
			if err != nil {
				return nil, fmt.Errorf("going on from %s: %w", choice.Path, err)
			}
			r.noteMade(ready.Made...)
			if ready.Note != "" {
				choice.Say = append(choice.Say, ready.Note)
			}
			rq.Resume, rq.ShimResume = ready.Path, choice.ByShim
		}
	}
	rq.Changes = changes
	var err error
	if next.rewrite, err = r.set.Rewrite(r.job, rq); err != nil {
		return nil, err
	}
	r.tellNext(a, next, d, said, choice)
	return next, nil
}

// methodLeft says whether changes leave full fine-tuning: what comes then has a folder
// of its own, whatever lies in the old one.
func methodLeft(cs []trainer.Change) bool {
	return slices.ContainsFunc(cs, func(c trainer.Change) bool { return c.Knob == job.Method && c.From == "full" })
}

// tellNext announces an attempt before anything of it happens.
func (r *run) tellNext(a, next *attempt, d ladder.Decision, said []string, choice resumeChoice) {
	r.tellNotes(a, d, event.Info)
	level := event.Info
	if changesExperiment(d.Changes) {
		level = event.Warn // said also where only warnings are
	}
	next.changed = d.Changes
	why := d.Why
	for _, c := range r.set.Companions(r.job, d.Changes) {
		if c.Reason != "" {
			why += fmt.Sprintf("; with it %s %s (%s)", c.Knob, c.To, c.Reason)
		}
	}
	if next.rewrite.Shim != nil {
		why += "; the shim changes what stands in the code"
	}
	if d.OtherExperiment {
		why += "; from here on this is ANOTHER EXPERIMENT"
		next.other = true
	}
	r.log.Event(event.Event{
		Attempt: next.n, Kind: event.RungAnnounce, Level: level,
		Msg:  strings.Join(append([]string{why}, said...), "; "),
		Data: map[string]any{"rungs": d.Rungs, "diff": next.rewrite.Diff, "other_experiment": d.OtherExperiment},
	})
	if len(choice.Say) > 0 {
		r.log.Event(event.Event{
			Attempt: next.n, Kind: event.ResumeChoice, Level: event.Info, Msg: strings.Join(choice.Say, "; "),
			Data: map[string]any{"path": choice.Path, "start_over": choice.StartOver},
		})
	}
}

// savedBy are the checkpoints of a run, with the attempt that wrote each.
type savedBy struct {
	all []checkpoint.Checkpoint
	by  map[string]*attempt
}

// saved lists what the attempts of the run have saved.
func (r *run) saved() savedBy {
	s := savedBy{by: map[string]*attempt{}}
	first := 0
	if n := len(r.all); n > 0 {
		// Another run may have come since the start.
		last := r.all[n-1]
		r.markOutput(last)
		if name := r.foreign(last, r.checkpoints(last)); name != "" {
			r.share(last, last.theJob().Knobs[job.OutputDir].Value, fmt.Sprintf("somebody else (%s is of a step that this run has not come to)", name))
		}
	}
	for i := range r.all {
		// What another method has saved does not fit any more.
		if i > 0 && methodOf(r.all[i]) != methodOf(r.all[i-1]) && methodOf(r.all[i-1]) == "full" {
			first = i
		}
	}
	for _, a := range r.all[first:] {
		for _, c := range r.checkpoints(a) {
			if _, known := s.by[c.Path]; !known {
				s.all = append(s.all, c)
			}
			// Several attempts may save in one folder; the last that had begun by then
			// wrote it.
			if old := s.by[c.Path]; old == nil || !a.start.Add(r.clk.Step()).After(c.T) {
				s.by[c.Path] = a
			}
		}
	}
	slices.SortStableFunc(s.all, func(a, b checkpoint.Checkpoint) int { return int(a.Step - b.Step) })
	return s
}

func methodOf(a *attempt) string { return a.knobs[job.Method].Value }

func (s savedBy) from(path string) *attempt { return s.by[path] }

// resumeInput gathers what the choice of a checkpoint rests on; a is nil before the
// first attempt.
func (r *run) resumeInput(a *attempt, changes []trainer.Change, startOver bool) resumeInput {
	l := r.looked
	in := resumeInput{
		Job: r.job, Mode: r.o.Resume, Given: l.given, GivenErr: l.givenErr, Asked: l.asked, Changes: changes, StartOver: startOver, First: a == nil,
		CanPass: l.canPass, Shim: l.byShim,
	}
	if a == nil {
		return in
	}
	s := l.saved
	in.Found, in.Ran = s.all, a.end.Sub(a.start)
	if slices.Contains(r.o.Allow, AllowRestart) {
		in.Ran = 0
	}
	if c, ok := checkpoint.NewestResumable(r.job.Resume.Layout, s.all); ok && s.from(c.Path) != nil {
		in.Saved = s.from(c.Path).knobs
	}
	return in
}

// canResume says whether an attempt with the same settings would go on where the dead
// one has saved.
func (r *run) canResume(a *attempt) bool {
	c := chooseResume(r.resumeInput(a, nil, false))
	return c.Refuse == "" && !c.StartOver && (c.Path != "" || c.Itself)
}

// wanted says how the checkpoint has to be made ready.
func (r *run) wanted(choice resumeChoice, from *attempt, n int) checkpoint.Want {
	w := choice.Want
	job := r.job
	job.Knobs = from.knobs
	if out := r.set.OutputFolder(job); out != "" {
		w.Into = checkpoint.Places(choice.From, out, r.dir.ID, n)
	}
	if r.job.Container != nil {
		mounts := r.set.Mounts(r.job)
		w.Into = slices.DeleteFunc(w.Into, func(path string) bool {
			return !slices.ContainsFunc(mounts, func(m place.Mount) bool { return within(m.Host, filepath.Dir(path)) })
		})
	}
	return w
}

// sameFolder is the change that lets an attempt go on where another one has saved.
func sameFolder(j job.Job, from *attempt) (trainer.Change, bool) {
	typed, there := j.Knobs[job.OutputDir], from.knobs[job.OutputDir]
	if there.Value == "" || there.Value == typed.Value {
		return trainer.Change{}, false
	}
	return trainer.Change{Knob: job.OutputDir, From: typed.Value, To: there.Value, Reason: "it goes on where that attempt has saved"}, true
}

// moveTorn renames half-written checkpoints that the trainer would take up by itself. One
// that somebody still writes to is waited for a moment, and is never moved.
func (r *run) moveTorn(a *attempt, paths []string) error {
	for _, path := range paths {
		stays := func(why string) error {
			return fmt.Errorf("%s is not complete, the trainer would take it up by itself, and it cannot be moved aside: %s: no retry; --resume never starts over in another folder", path, why)
		}
		if !settled(path) {
			return stays("somebody is writing to it")
		}
		if who := openAt(path); who != "" {
			return stays(who + " has it open for writing")
		}
		dir := filepath.Join(filepath.Dir(path), fmt.Sprintf("attempt-%d-%s", a.n, r.letters()))
		err := os.Mkdir(dir, 0o777)
		if err == nil || errors.Is(err, os.ErrExist) {
			err = renameNew(path, filepath.Join(dir, filepath.Base(path)))
		}
		if err != nil {
			return stays(err.Error())
		}
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Checkpoint, Level: event.Warn, Msg: fmt.Sprintf("%s is not complete and was moved to %s", path, dir), Data: map[string]any{"path": path, "to": dir}})
	}
	return nil
}

const (
	// settleQuiet is how long nothing must have been written to a checkpoint for it to
	// be at rest, settleMost how long that is waited for.
	settleQuiet = 2 * time.Second
	settleMost  = 5 * time.Second
)

// settled waits until nobody writes to a file or folder any more, and says whether that
// came to be.
func settled(path string) bool {
	for deadline := time.Now().Add(settleMost); ; time.Sleep(100 * time.Millisecond) {
		if time.Since(newestIn(path)).Abs() > settleQuiet {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// newestIn is when a file, or one in a folder, was last written to.
func newestIn(path string) time.Time {
	var newest time.Time
	seen := 0
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if seen++; err != nil || seen > scanMost {
			return fs.SkipAll
		}
		if info, err := d.Info(); err == nil && info.ModTime().After(newest) {
			newest = info.ModTime()
		}
		return nil
	})
	return newest
}

// checkpoints returns what an attempt has saved during the run, where it was told to. Of
// a folder in which somebody else saves too it returns none.
func (r *run) checkpoints(a *attempt) []checkpoint.Checkpoint {
	var since []checkpoint.Checkpoint
	if r.sharedWith(a.theJob().Knobs[job.OutputDir].Value) != "" {
		return nil
	}
	for _, c := range r.set.Checkpoints(a.theJob(), "") {
		if c.T.After(r.clk.Wall.Add(min(r.clk.Step(), 0) - time.Second)) {
			since = append(since, c)
		}
	}
	return since
}

// foreign names a checkpoint, written during the run, of a step that no attempt has come
// to: somebody else's; "" where there is none, and where the steps are not seen for
// certain.
func (r *run) foreign(a *attempt, cps []checkpoint.Checkpoint) string {
	most := int64(0)
	for _, past := range r.all {
		n, ok := past.reached(r.set.PerLog(past.theJob()))
		if !ok {
			return ""
		}
		most = max(most, n)
	}
	for _, c := range cps {
		if c.Step != checkpoint.Unknown && c.Step > most && most > 0 {
			return filepath.Base(c.Path)
		}
	}
	return ""
}

// reached is the furthest step that an attempt can have come to, by its own progress bar or
// by its logged losses, of which perLog steps lie between two (0 where that is not known):
// both may be some time behind. It is not ok where there is neither, or where it counts
// from another beginning.
func (a *attempt) reached(perLog int64) (int64, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	bar := a.first.Bar || a.last.Bar
	if !a.haveStep || !bar && perLog <= 0 || a.first.N < a.goesOn {
		return 0, false
	}
	behind := max(a.first.N-a.goesOn, a.last.N/20, 10)
	switch {
	case !bar && a.job.Container == nil:
		behind += logBehind * min(perLog, 1e6) // each is written at once
	case !bar:
		behind += bufferBehind * min(perLog, 1e6)
	case a.stepTime.OK && a.stepTime.V > 0:
		behind += int64(min(barBehind.Seconds()/a.stepTime.V, 1e6))
	default:
		behind += 100
	}
	return a.last.N + behind, true
}

const (
	// barBehind is how far a bar may be behind the training: tqdm draws at least every
	// ten seconds.
	barBehind = 20 * time.Second
	// logBehind is how many logged losses may be missing, bufferBehind how many where a
	// buffer may have held them.
	logBehind    = 3
	bufferBehind = 100
)

// newestComplete returns the path of the complete checkpoint with the most steps, "" for
// none.
func newestComplete(cps []checkpoint.Checkpoint) string {
	c, ok := checkpoint.NewestComplete(cps)
	if !ok {
		return ""
	}
	return c.Path
}

// inEffect are the changes of an attempt that were really made: not those that the shim
// was to make and nothing took.
func (a *attempt) inEffect() []trainer.Change {
	return slices.DeleteFunc(slices.Clone(a.changed), func(c trainer.Change) bool {
		return slices.Contains(a.shim.missing, c.Knob)
	})
}

// otherExperiment says whether an attempt of the run has trained by another method than
// asked for.
func (r *run) otherExperiment() bool {
	return slices.ContainsFunc(r.all, func(a *attempt) bool {
		return a.other && !slices.Contains(a.shim.missing, job.LoadIn4Bit) && !slices.Contains(a.shim.missing, job.Method)
	})
}

// differs says whether the attempt was another experiment than asked for, as far as is
// known.
func (a *attempt) differs() bool { return changesExperiment(a.inEffect()) }

// changeWords says a change in a person's words: "length 4096 -> 2048".
func changeWords(c trainer.Change) string {
	name := string(c.Knob)
	if w, ok := knobWords[c.Knob]; ok {
		name = w
	}
	if c.To == ladder.Half {
		return "half the " + name
	}
	return name + " " + c.From + " -> " + c.To
}

func changesWords(cs []trainer.Change) []string {
	out := make([]string, len(cs))
	for i, c := range cs {
		out[i] = changeWords(c)
	}
	return out
}

var knobWords = map[job.Knob]string{
	job.SeqLen: "length", job.MicroBatch: "micro-batch", job.Accumulation: "accumulation", job.EvalBatch: "eval batch",
	job.LoadIn4Bit: "4-bit loading", job.LoRALR: "LoRA learning rate", job.OutputDir: "output folder", job.DType: "weight type",
}

// changesExperiment says whether a changed knob makes it another experiment:
// micro-batch with exact accumulation, the evaluation batch and the output
// folder do not.
func changesExperiment(cs []trainer.Change) bool {
	for _, c := range cs {
		switch c.Knob {
		case job.MicroBatch, job.Accumulation, job.EvalBatch, job.OutputDir, job.NumWorkers, job.GradCkpt, job.ResumeFrom:
		default:
			return true
		}
	}
	return false
}
