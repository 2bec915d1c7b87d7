// Package progress owns what a trainer's output says of the training: lines and
// the records of trainers' own log files become steps, and steps whose losses are
// no numbers become a finding. Which words each trainer uses stands in
// configs/progress.yaml, one pattern set a trainer.
//
//	line -> strip (colours, ranks) -> sieve -> bar | dict | words -> Progress -> Step
//
// Only optimizer steps count here: bars that count micro-batches are converted, bars
// that begin again with each epoch go on counting.
package progress
