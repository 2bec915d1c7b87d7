package supervisor

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/job"
	"sparkrun/internal/lazyre"
	"sparkrun/ladder"
	"sparkrun/ladder/trainer"
	"sparkrun/ladder/trainer/checkpoint"
)

// Values of --resume beside a path.
const (
	resumeAuto  = "auto"
	resumeNever = "never"
)

// longRun is how long a script whose checkpoints are not known may have run for it
// to be started from the beginning again unasked.
const longRun = 15 * time.Minute

// resumeInput is what the choice rests on.
type resumeInput struct {
	// Job is the command as typed.
	Job job.Job
	// Mode is --resume: "auto" (also ""), "never" or a path.
	Mode string
	// Given is what lies at the path of Mode, and GivenErr why that cannot be told
	// (checkpoint.At).
	Given    checkpoint.Checkpoint
	GivenErr error
	// Asked is the checkpoint that the command itself names, nil for none.
	Asked *checkpoint.Checkpoint
	// Changes are those of the next attempt against the command as typed; none for
	// the first attempt.
	Changes []trainer.Change
	// Saved are the settings of the attempt that wrote the newest checkpoint found;
	// nil means those of Job.
	Saved job.Knobs
	// Found are the checkpoints that this run has written, by step.
	Found []checkpoint.Checkpoint
	// StartOver is the ladder's word that none of them may be taken up.
	StartOver bool
	// CanPass says that the trainer takes the path of a checkpoint by a setting of its
	// own; Shim that the shim may and can hand it over. Both may be false.
	CanPass, Shim bool
	// First is set for attempt 1, which has nothing behind it; Ran is how long the
	// attempt that died ran.
	First bool
	Ran   time.Duration
}

// resumeChoice is what becomes of the checkpoints in the next attempt.
type resumeChoice struct {
	// From is what it goes on from, zero for nothing. Path is its path where it has to
	// be handed over; ByShim says that the shim does it, Itself that the trainer takes
	// it up on its own and nothing is passed.
	From   checkpoint.Checkpoint
	Path   string
	ByShim bool
	Itself bool
	// Want is what checkpoint.ForResume needs to know of it; its Into is the caller's.
	Want checkpoint.Want
	// Say holds sentences for the announcement.
	Say []string
	// StartOver says that the attempt begins at step 0 although there is something to
	// go on from, or nothing was found. It must not write where an earlier one has
	// saved.
	StartOver bool
	// NewFolder says that the trainer takes up by itself what lies in its output
	// folder: the attempt needs another one, or everything in it moved aside.
	NewFolder bool
	// MoveAside lists what must be renamed before the start, since the trainer would
	// take it up: half-written checkpoints.
	MoveAside []string
	// Forget says that the command itself asks for a checkpoint, which must be taken
	// out of it: the attempt would go on from that one.
	Forget bool
	// Refuse is why there is no attempt; empty for one.
	Refuse string
}

// chooseResume decides from what the next attempt goes on. docs/resume.md says why.
func chooseResume(in resumeInput) resumeChoice {
	given := in.Mode != "" && in.Mode != resumeAuto && in.Mode != resumeNever
	layout := in.Job.Resume.Layout
	auto := in.Job.Resume.How == "auto"
	var say []string
	over := func(why string) resumeChoice {
		if in.Mode != resumeNever && !in.StartOver && opaque(in.Job) && in.Ran > longRun {
			return resumeChoice{Say: say, Refuse: fmt.Sprintf("it ran for %s and what it does when it is started again cannot be seen, so it is not started from the beginning unasked (%s). With --allow restart or --resume never it is, and --resume PATH goes on from a checkpoint", clock.Span(in.Ran), why)}
		}
		return resumeChoice{
			StartOver: true, NewFolder: auto && len(in.Found) > 0, Say: append(say, "it starts from the beginning: "+why),
			Forget: in.Mode != resumeNever && in.Job.Knobs[job.ResumeFrom].Value != "",
		}
	}
	if given {
		if why := unusable(in, layout); why != "" {
			return resumeChoice{Refuse: why}
		}
	}
	switch {
	case in.Mode == resumeNever && in.First:
		return resumeChoice{}
	case in.Mode == resumeNever:
		return over("--resume never")
	case in.First && !given:
		return resumeChoice{}
	case in.StartOver:
		return over("the checkpoints are of another training method, whose parameters do not fit")
	}
	from, behind, ok := newest(in, layout, given)
	for _, b := range behind {
		say = append(say, fmt.Sprintf("%s is skipped: %s", filepath.Base(b.Path), b.Why))
	}
	if !ok {
		if len(in.Found) > 0 {
			return over("no checkpoint was saved from which it could go on")
		}
		return over("no checkpoint was saved that is known of")
	}
	name := filepath.Base(from.Path)
	effect := effectOf(in, layout)
	if effect.never != "" {
		return over(fmt.Sprintf("from %s it cannot go on, since %s", name, effect.never))
	}
	c := resumeChoice{From: from, Path: from.Path, Say: say, Want: effect.want}
	c.Want.Layout = layout
	switch {
	case in.CanPass:
	case in.Shim:
		c.ByShim = true
	case auto && !given:
		if effect.micro && layout == checkpoint.HF {
			return over(fmt.Sprintf("the trainer would take up %s by itself, and with it the old micro-batch", name))
		}
		c.Itself, c.Path = true, ""
	default:
		why := in.Job.Resume.Why
		if why == "" {
			why = "there is no way to hand it to this command"
		}
		return over(fmt.Sprintf("%s is complete, but %s", name, why))
	}
	if auto && checkpoint.TakesNewest(layout) && !c.ByShim {
		for _, b := range behind {
			c.MoveAside = append(c.MoveAside, b.Path)
		}
		if len(behind) > 0 {
			c.Say = append(c.Say, "the trainer would take the newest one by itself, so what is skipped is moved aside")
		}
	}
	step := ""
	if from.Step != checkpoint.Unknown {
		step = fmt.Sprintf(" (step %d)", from.Step)
	}
	c.Say = append(c.Say, fmt.Sprintf("it goes on from %s%s", name, step))
	if !from.HasOptimizer {
		c.Say = append(c.Say, from.Why)
	}
	c.Say = append(c.Say, effect.say...)
	return c
}

// unusable says why the checkpoint that the user named cannot be gone on from.
func unusable(in resumeInput, layout string) string {
	switch {
	case in.GivenErr != nil:
		return in.GivenErr.Error()
	case !in.Given.Complete:
		return fmt.Sprintf("%s is not complete: %s", in.Given.Path, in.Given.Why)
	}
	if ok, why := checkpoint.CanResume(layout, in.Given); !ok {
		return fmt.Sprintf("%s cannot be gone on from: %s", in.Given.Path, why)
	}
	if !in.CanPass && !in.Shim {
		why := in.Job.Resume.Why
		if why == "" {
			why = "there is no way to hand a checkpoint to this command; give it in the command itself"
		}
		return fmt.Sprintf("%s cannot be handed over: %s", in.Given.Path, why)
	}
	if in.StartOver {
		return fmt.Sprintf("%s does not fit the next attempt: its training method is another one", in.Given.Path)
	}
	return ""
}

// newest returns the checkpoint with the most steps that can be gone on from, among
// those of the run and the one asked for, and those of the run behind it, from
// which that cannot be done.
func newest(in resumeInput, layout string, given bool) (from checkpoint.Checkpoint, behind []checkpoint.Checkpoint, ok bool) {
	behind = in.Found
	for i, c := range slices.Backward(in.Found) {
		if can, _ := checkpoint.CanResume(layout, c); can {
			from, behind, ok = c, in.Found[i+1:], true
			break
		}
	}
	if given && (!ok || in.Given.Step >= from.Step) {
		return in.Given, behind, true
	}
	if in.Asked != nil && !ok {
		if can, _ := checkpoint.CanResume(layout, *in.Asked); can {
			return *in.Asked, behind, true
		}
	}
	return from, behind, ok
}

// opaque says whether it cannot be seen what a command does when it is started
// again.
func opaque(j job.Job) bool { return j.Opaque != "" || j.Profile == "" }

// effect is what the changed settings mean for a resume.
type effect struct {
	never string // why it cannot be
	say   []string
	micro bool // the micro-batch is another one than the checkpoint's
	want  checkpoint.Want
}

// effectOf goes through the settings that differ from those of the attempt that
// saved.
func effectOf(in resumeInput, layout string) effect {
	saved := in.Saved
	if saved == nil {
		saved = in.Job.Knobs
	}
	var e effect
	changed := map[job.Knob]trainer.Change{}
	for _, c := range in.Changes {
		if s, known := saved[c.Knob]; known && s.Value == c.To {
			continue
		}
		changed[c.Knob] = c
	}
	has := func(knobs ...job.Knob) bool {
		return slices.ContainsFunc(knobs, func(k job.Knob) bool { _, ok := changed[k]; return ok })
	}
	if _, ok := changed[job.Optimizer]; ok {
		e.never = "the optimizer is another one, and its saved state does not fit"
		return e
	}
	if c, ok := changed[job.Method]; ok && !sixteenBit(c, changed) {
		e.never = "the training method is another one, and the parameters do not fit"
		return e
	}
	if has(job.SeqLen) && layout == checkpoint.NanoGPT {
		e.never = "the position table is as long as the block, so that the saved state does not fit a shorter one"
		return e
	}
	if has(job.LoadIn4Bit, job.Method) {
		e.say = append(e.say, "the adapter was fitted to 4-bit weights and goes on over 16-bit ones: the loss may jump a little")
	}
	switch {
	case has(job.SeqLen, job.Packing) && packed(in, changed):
		e.say = append(e.say, "rows are packed to another length: the step goes on where it was, but planned steps and the learning-rate schedule are reckoned anew, and some data is seen again")
	case has(job.SeqLen, job.Packing):
		e.say = append(e.say, "with another length the number of rows may change: the step goes on where it was, planned steps and the place in the data may shift")
	case has(job.GlobalBatch), has(job.MicroBatch) != has(job.Accumulation) && in.Job.Family != "global":
		if !half(changed) {
			e.say = append(e.say, "with another effective batch the place in the data and the planned steps shift")
		}
	case has(job.MicroBatch) && (layout == checkpoint.Lightning || layout == checkpoint.LitGPT):
		e.say = append(e.say, "this trainer counts micro-batches, so that some data of this epoch is seen again")
	}
	e.micro = has(job.MicroBatch)
	e.want.Half = half(changed)
	// The number is always told, since the checkpoint may be older than the last
	// change of it.
	for _, c := range in.Changes {
		if n, err := strconv.ParseInt(c.To, 10, 64); err == nil && c.Knob == job.MicroBatch {
			e.want.Micro = n
		}
	}
	if n, err := strconv.ParseInt(saved[job.MicroBatch].Value, 10, 64); err == nil && e.want.Micro > 0 {
		e.want.WasMicro = n
	}
	return e
}

// sixteenBit says whether a change of the method is that of QLoRA to LoRA, which
// have the same parameters.
func sixteenBit(c trainer.Change, changed map[job.Knob]trainer.Change) bool {
	_, bits := changed[job.LoadIn4Bit]
	return c.From == "qlora" && c.To == "lora" || bits && c.From != "full"
}

// packed says whether rows are packed before or after the change.
func packed(in resumeInput, changed map[job.Knob]trainer.Change) bool {
	if _, ok := changed[job.Packing]; ok {
		return true
	}
	return strings.EqualFold(in.Job.Knobs[job.Packing].Value, "true")
}

// half says whether the shim halves the micro-batch, which it never does without
// its accumulation.
func half(changed map[job.Knob]trainer.Change) bool {
	return changed[job.MicroBatch].To == ladder.Half
}

// keepApart prepares the output folder of an attempt that goes on from a checkpoint. Where
// it is not certain that it does, it gets a folder of its own, like one that starts over:
// a script that ignores what it is handed begins at step 0 and would write over what it
// was to go on from.
func (r *run) keepApart(a *attempt, n int, choice *resumeChoice) (kept, error) {
	why := r.unsureResume(*choice)
	if why == "" {
		return kept{}, nil
	}
	k, err := r.keepOutput(a, n, true)
	if err != nil {
		return kept{}, err
	}
	for from, to := range k.moved {
		if within0(from, choice.Path) {
			choice.Path = to + choice.Path[len(from):]
			choice.From.Path = choice.Path
		}
	}
	choice.Say = append(choice.Say, "whether it really goes on from there is not certain ("+why+"), so it does not save where that lies")
	return k, nil
}

// unsureResume says why it is not certain that an attempt takes up what it is handed; ""
// where it is.
func (r *run) unsureResume(choice resumeChoice) string {
	if choice.Path == "" || r.job.Resume.Layout != checkpoint.HF {
		return ""
	}
	loaded := false
	for _, a := range r.all {
		a.mu.Lock()
		went := a.goesOn >= surelyOn && a.haveStep && a.first.Bar && a.first.N >= a.goesOn
		a.mu.Unlock()
		if went {
			return "" // one has
		}
		loaded = loaded || a.shim.rec.Loaded && len(a.shim.rec.Processes) > 0
	}
	switch {
	case choice.ByShim && !loaded:
		return "whether the shim is loaded is not known yet"
	case choice.ByShim:
		return ""
	case ownResume[r.job.Profile], r.job.Profile == "trl" && r.job.Script == "":
		return ""
	case !handsResume(r.scriptText()):
		return fmt.Sprintf("%s does not surely hand it to its trainer where that is started", r.programName())
	}
	return ""
}

// ownResume are the profiles of trainers that document a flag for a checkpoint and always
// follow it; that of trl's own program is read before it is used.
var ownResume = map[string]bool{"llama-factory": true, "ms-swift": true}

func (r *run) programName() string {
	if r.job.Script == "" {
		return "the command"
	}
	return filepath.Base(r.job.Script)
}

// surelyOn is so many steps that no progress bar skips them when it begins at 0.
const surelyOn = 50

var (
	// trainCall matches the start of a trainer's call.
	trainCall = lazyre.New(`\.(train|fit)\(`)
	// resumeKey matches the argument that takes a checkpoint, resumeAttr a bare setting
	// that holds one.
	resumeKey  = lazyre.New(`^(resume_from_checkpoint|ckpt_path)\s*=\s*([^=].*)$`)
	resumeAttr = lazyre.New(`^(\w+\.)+(resume\w*|ckpt|ckpt_path|checkpoint|checkpoint_path)$`)
	plainName  = lazyre.New(`^[A-Za-z_]\w*$`)
	commented  = lazyre.New(`(?m)^[ \t]*#.*$`)
)

// handsResume says whether a script starts its trainer itself and every time hands it the
// checkpoint of its settings as it is: what is chosen or changed in between may be none.
func handsResume(text string) bool {
	text = commented.ReplaceAllString(text, "")
	var handed []string
	for _, at := range trainCall.FindAllStringIndex(text, -1) {
		args, ok := callArgs(text[at[1]:])
		if len(args) == 0 && strings.HasSuffix(text[:at[0]], "model") {
			continue // it switches a mode and starts nothing
		}
		value := ""
		for i, arg := range args {
			if m := resumeKey.FindStringSubmatch(arg); m != nil {
				value = m[2]
			} else if i == 0 && value == "" {
				value = arg
			}
		}
		if !ok || value == "" {
			return false
		}
		handed = append(handed, value)
	}
	for _, value := range handed {
		if plainName.MatchString(value) {
			// It is set in one line and named nowhere else but in the calls.
			set := regexp.MustCompile(`(?m)^[ \t]*`+value+`[ \t]*=[ \t]*([\w.]+)[ \t]*(#.*)?$`).FindAllStringSubmatch(text, -1)
			named := regexp.MustCompile(`\b`+value+`\b`).FindAllString(text, -1)
			calls := 0
			for _, v := range handed {
				if v == value {
					calls++
				}
			}
			if len(set) != 1 || len(named) != 1+calls {
				return false
			}
			value = set[0][1]
		}
		if !resumeAttr.MatchString(value) {
			return false
		}
		attr := value[strings.LastIndex(value, ".")+1:]
		if regexp.MustCompile(`\.` + attr + `\s*=[^=]|setattr\(`).MatchString(text) {
			return false
		}
	}
	return len(handed) > 0
}

// callArgs splits the arguments of a call, from behind its parenthesis on; ok is false
// where it has no end.
func callArgs(text string) (args []string, ok bool) {
	depth, from := 1, 0
	take := func(end int) {
		if arg := strings.TrimSpace(text[from:end]); arg != "" {
			args = append(args, arg)
		}
		from = end + 1
	}
	for i := range len(text) {
		switch text[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth == 0 {
				take(i)
				return args, true
			}
		case ',':
			if depth == 1 {
				take(i)
			}
		}
	}
	return args, false
}
