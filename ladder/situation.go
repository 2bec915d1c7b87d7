package ladder

import (
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
	"sparkrun/ladder/trainer"
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
	// Allow and Deny are keyed by rung name.
	Allow, Deny map[string]bool
	// CanDrop says that some way of dropping caches is open to this run.
	CanDrop bool
	// Floor raises the ladder's shortest length (trainer.Set.Floor); 0 does not.
	Floor int64
	// CanResume says that a complete checkpoint is there and that the trainer
	// takes it up with unchanged settings.
	CanResume bool
	// ModelParams counts the model's parameters; BudgetBytes is the memory the
	// run may use.
	ModelParams, BudgetBytes sample.Num
}

// Note says why a rung was passed over.
type Note struct {
	Rung string `json:"rung"`
	// Kind is "refused" (it could be done but may not) or "not-applicable" (it
	// cannot help or cannot be done).
	Kind string `json:"kind"`
	Why  string `json:"why"`
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
	// Stop is one of "success", "not-oom", "unsure-again", "no-retry",
	// "max-attempts", "used-up", "no-rungs", "nothing-left", "not-memory".
	Stop string `json:"stop,omitempty"`
	// Status75 is set when the run's exit status is 75: every attempt was out of
	// memory and no rung is left.
	Status75 bool `json:"status_75"`
	// Advice holds sentences for the summary, most useful first.
	Advice []string `json:"advice"`
}
