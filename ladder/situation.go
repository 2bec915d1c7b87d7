package ladder

import (
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
	"sparkrun/ladder/trainer"
)

// Why the same settings are tried once more (Decision.Again).
const (
	AgainUnsure   = "unsure"
	AgainCoTenant = "co-tenant"   // wait in the gate until the memory is back
	AgainWatch    = "watch"       // a watch ended it, and it is to go on from its checkpoint
	AgainDropped  = "drop-caches" // the rung of that name, by itself
)

// Why nothing follows (Decision.Stop).
const (
	StopSuccess      = "success"
	StopFinished     = "finished"         // the trainer had reported its end
	StopNotOOM       = "not-oom"          // memory was not the reason
	StopSettingBroke = "setting-broke-it" // the change made it fail in a new way
	StopOtherCause   = "other-cause"      // it died earlier than before, of something else
	StopNotMemory    = "not-memory"       // smaller settings changed nothing
	StopNoLever      = "no-lever"         // no rung acts on this kind of death
	StopCoTenant     = "co-tenant"        // somebody else takes the memory again and again
	StopUnsureAgain  = "unsure-again"
	StopLostAgain    = "lost-again" // the machine froze again
	StopNoRetry      = "no-retry"
	StopMaxAttempts  = "max-attempts"
	StopNoRungs      = "no-rungs"     // no setting of this command is in reach
	StopNothingLeft  = "nothing-left" // nothing helps in the phase it died in
	StopUsedUp       = "used-up"
)

// The answers of a verdict, as ladder/oom writes them.
const (
	AnswerOOM     = "oom"
	AnswerNotOOM  = "not-oom"
	AnswerUnsure  = "unsure"
	AnswerSuccess = "success"
)

// Past is one attempt that has ended.
type Past struct {
	// Attempt counts from 1; Rungs are the rungs that led to it, none for the
	// first.
	Attempt int      `json:"attempt"`
	Rungs   []string `json:"rungs"`
	// Knobs are the settings it ran with; nil means those of the Job.
	Knobs job.Knobs `json:"knobs"`
	// Answer, Kind, Phase and Confidence are the verdict's words. Kind and Phase
	// are empty where it names none.
	Answer     string        `json:"answer"`
	Kind       string        `json:"kind,omitempty"`
	Phase      string        `json:"phase,omitempty"`
	Confidence string        `json:"confidence,omitempty"`
	Duration   time.Duration `json:"duration_ns"`
	// Step is the last optimizer step seen.
	Step int64 `json:"step"`
	// Progressed is set when it left a new complete checkpoint behind.
	Progressed bool `json:"progressed"`
	// Quote is the line that tells most about the death.
	Quote string `json:"quote,omitempty"`

	// Lever is the verdict's word for the first thing that helps ("length",
	// "workers", "wait"...); empty where it names none.
	Lever string `json:"lever,omitempty"`
	// Cause is the verdict's word that tells apart deaths of one kind; empty where
	// it names none.
	Cause string `json:"cause,omitempty"`
	// Reason is the verdict's word where the answer is not an out-of-memory.
	Reason string `json:"reason,omitempty"`
	// Exception is class and message of the fatal exception, cleaned; empty where
	// none was seen.
	Exception string `json:"exception,omitempty"`
	// RequestedBytes is the size of the allocation that failed.
	RequestedBytes sample.Num `json:"requested_bytes,omitzero"`
	// PeakKiB is the most memory the job is known to have used: MemTotal less the
	// lowest MemAvailable, or its cgroup's peak.
	PeakKiB sample.Num `json:"peak_kib,omitzero"`
	// Finished says that the trainer reported its end.
	Finished bool `json:"finished,omitempty"`
	// Lost says that the machine froze or lost power under the attempt.
	Lost bool `json:"lost,omitempty"`
	// CoTenant names the process outside the job that took the memory; empty
	// where none did.
	CoTenant string `json:"co_tenant,omitempty"`
	// NotApplied are the knobs that the shim was to turn in this attempt and that no
	// process changed. The step to this attempt does not count as tried then, and
	// these knobs are not turned by the shim again. It says nothing of an attempt that
	// died while loading: the shim had not come to them.
	NotApplied []job.Knob `json:"not_applied,omitempty"`
	// PlannedSteps is how many optimizer steps the trainer announced; 0 where it did
	// not.
	PlannedSteps int64 `json:"planned_steps,omitempty"`
}

// Drop is what became of the drop-caches effect after the last death.
type Drop struct {
	Done     bool  `json:"done"`
	FreedKiB int64 `json:"freed_kib"`
	// How is "system", "files" or "none".
	How string `json:"how"`
	// Err says why it was not done.
	Err string `json:"err,omitempty"`
	// MissingKiB is what the failed allocation lacked, where it is known.
	MissingKiB sample.Num `json:"missing_kib"`
}

// Situation is everything the decision rests on.
type Situation struct {
	Job  job.Job
	Past []Past
	// Drop is nil before the gate and where no drop was wanted.
	Drop        *Drop
	MaxAttempts int
	// NoRetry is --no-retry; Exact is --exact: only changes that leave the
	// training the same.
	NoRetry, Exact bool
	// Allow and Deny are keyed by rung name; Allow also by Allowances.
	Allow, Deny map[string]bool
	// CanDrop says that some way of dropping caches is open to this run.
	CanDrop bool
	// Floor raises the ladder's shortest length (trainer.Set.Floor); 0 does not.
	Floor int64
	// CanResume says that a complete checkpoint is there and that the trainer
	// takes it up with unchanged settings.
	CanResume bool
	// AgainAfter says how often at most an attempt that a watch ended for that reason (the
	// verdict's: hang, slowdown) is followed by one that goes on from its checkpoint with
	// the same settings. It is what the user asked for; nil is never.
	AgainAfter map[string]int
	// ContainerEnds says, of a command in a container, that the processes inside are
	// known to be gone or can be ended; without that nothing is started beside
	// them. It means nothing for other commands.
	ContainerEnds bool
	// ModelParams counts the model's parameters; BudgetBytes is the memory the
	// run may use.
	ModelParams, BudgetBytes sample.Num
	// ModelFrom says in a few words where ModelParams comes from, as "from the
	// weights' headers" or "guessed from its name"; empty says nothing.
	ModelFrom string
	// ModelQuantised names the format of a model whose own files are quantised
	// (bnb-4bit, gptq...): no switch of the trainer makes them 16 bit.
	ModelQuantised string
	// SixteenBit reckons LoRA on 16-bit weights with the settings that it is given, as
	// `sparkrun plan` does; nil, or false, where that is not known.
	SixteenBit func(job.Knobs) (Reckoned, bool) `json:"-"`
	// LoadDoubles is for jobs that cannot be reckoned: it says whether loading holds the weights twice for a while, once for
	// the host and once for the device; nil is not known and taken as true.
	LoadDoubles *bool
	// Shim is --shim: ShimAuto (also ""), ShimAlways or ShimNever.
	Shim string
	// Fixed holds the knobs that are known but cannot be turned in this command, each
	// with the reason (trainer.Set.CanTurn, or what trainer.Rewrite refused).
	Fixed map[job.Knob]string

	// stuck holds the knobs that the shim did not reach, each with the attempt that
	// showed it.
	stuck map[job.Knob]int
}

// Reckoned is an estimate of a training's memory beside what it may use, all in bytes.
type Reckoned struct {
	// Peak is the estimate, Low and High the range that it is in most likely.
	Peak, Low, High int64
	// Budget is what the training may use.
	Budget int64
}

// Modes of the shim.
const (
	ShimAuto   = "auto"   // where nothing else can turn a knob, from attempt 2 on
	ShimAlways = "always" // in every attempt
	ShimNever  = "never"
)

// Half is the value of a Change whose knob is not known: the shim halves what it
// sees, a length not below its floor, and a micro-batch only together with its
// accumulation. It stands at most once for a knob: what the shim has seen then makes
// the value known (trainer.Set.Learn).
const Half = "half"

// Words that --allow knows beside the names of rungs.
const (
	// AllowSmallerBatch lets the micro-batch of a command without accumulation become
	// smaller, and the effective batch with it.
	AllowSmallerBatch = "smaller-batch"
	// AllowKeepTokens lets accumulation double where a packed length is halved, so
	// that an optimizer step sees as many tokens as before.
	AllowKeepTokens = "keep-tokens"
)

// Allowances returns the words that --allow knows beside the names of rungs.
func Allowances() []string { return []string{AllowSmallerBatch, AllowKeepTokens} }

// Note says why a rung was passed over.
type Note struct {
	Rung string `json:"rung"`
	// Kind is "refused" (it could be done but may not) or "not-applicable" (it
	// cannot help or cannot be done).
	Kind string `json:"kind"`
	Why  string `json:"why"`
}

// RungView is one step that a ladder may take, or why it does not: for people who want
// to know before anything runs.
type RungView struct {
	// Name is the rung's; Action what it does, in the words of configs/ladder.yaml
	// ("settings" for a rung that is a list of settings).
	Name   string `json:"name"`
	Action string `json:"action"`
	// Allowed says that it would be taken; Kind is that of a Note where it is not.
	Allowed bool   `json:"allowed"`
	Kind    string `json:"kind,omitempty"`
	Reason  string `json:"reason"`
	// Step is what is new with it, Changes everything that differs then from the
	// command as typed, ready for trainer.Rewrite.
	Step    []trainer.Change `json:"step,omitempty"`
	Changes []trainer.Change `json:"changes,omitempty"`
	// Shim says that some change of Changes needs the shim.
	Shim bool `json:"shim,omitempty"`
	// OtherExperiment is as in Decision.
	OtherExperiment bool `json:"other_experiment,omitempty"`
}

// Decision is what happens next.
type Decision struct {
	// Act is "retry" or "stop".
	Act string `json:"act"`
	// Rungs names the rungs that the next attempt carries; empty for a retry
	// with the same settings.
	Rungs []string `json:"rungs"`
	// Changes holds every knob of the next attempt that differs from the
	// command as typed, ready for trainer.Rewrite; Step only those that are new
	// with this decision.
	Changes []trainer.Change `json:"changes"`
	Step    []trainer.Change `json:"step"`
	// Knobs are the settings in force in the next attempt.
	Knobs job.Knobs `json:"knobs"`
	// Why is one sentence, announced before the change is made.
	Why   string `json:"why"`
	Notes []Note `json:"notes"`
	// Again says why the same settings are tried once more; empty for a step down
	// and for a stop.
	Again string `json:"again,omitempty"`
	// Stop says in one word why nothing follows: one of the Stop constants.
	Stop string `json:"stop,omitempty"`
	// OtherExperiment is set from the first attempt with another training method on:
	// what comes out is not what was asked for. It never goes back.
	OtherExperiment bool `json:"other_experiment,omitempty"`
	// StartOver says that no checkpoint may be taken up: all there are were written by
	// another method (full fine-tuning, and LoRA now).
	StartOver bool `json:"start_over,omitempty"`
	// NewFolder says that the attempt must not write where attempts with another
	// method have saved.
	NewFolder bool `json:"new_folder,omitempty"`
	// Status75 is set when the run's exit status is 75: every attempt was out of
	// memory and no rung is left.
	Status75 bool `json:"status_75"`
	// Advice holds sentences for the summary, most useful first.
	Advice []string `json:"advice"`
}
