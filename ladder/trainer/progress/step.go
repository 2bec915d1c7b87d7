package progress

import "sparkrun/internal/sample"

// Step is what one line said of the training.
type Step struct {
	// N is the last optimizer step known, Total how many there will be, never less
	// than N; 0 is unknown. Where a trainer prints losses without a step number and
	// no bar, N is reckoned from the steps between two logs or, failing that, counts
	// the logs.
	N, Total int64
	// Advance is set when N is larger than on every line before.
	Advance bool
	// Loss, LR and GradNorm are known only on lines that carry them. A loss that is
	// NaN or infinite is left unknown here and sets NonFinite, a gradient norm sets
	// GradNonFinite.
	Loss, LR, GradNorm       sample.Num
	NonFinite, GradNonFinite bool
	// LossN is the step that the loss belongs to, which a record of a log file read
	// late names after N has gone on. It means something beside a loss only.
	LossN int64
	// ZeroOK is set where the line tells a kind of training whose loss is 0 when
	// nothing is wrong: reinforcement learning on its own samples.
	ZeroOK bool
	// StepTimeS is seconds per optimizer step, set with Advance: what the trainer
	// says, else the wall clock between two advances unless an evaluation or a
	// checkpoint lay between them, else the rate that the bar shows.
	StepTimeS sample.Num
	// Tokens counts tokens seen since the start of training and TokensPerS their
	// rate, as the trainer reports them; a rate it does not report is worked out
	// from two counts.
	Tokens, TokensPerS sample.Num
	// Checkpoint is the path of a checkpoint that the line says is being saved, as
	// the trainer sees it. It is not complete until package checkpoint says so.
	Checkpoint string
	// Finished is set when the trainer says that training is over.
	Finished bool
	// Bar is set when the line is a progress bar.
	Bar bool
	// Eval is set when the line is of an evaluation: nothing else is set then but N
	// and Total, which stay as they were.
	Eval bool
}
