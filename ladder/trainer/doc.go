// Package trainer owns what sparkrun knows of trainers: it recognises one in a
// command line, reads its settings, writes the command of the next attempt,
// reads progress from its output, and tells complete checkpoints from broken
// ones. What differs between trainers is data (configs/trainers/*.yaml); this
// package holds what they have in common.
//
// It is careful in one direction: a setting that is not certain to be taken by
// the trainer is not in Job.Knobs, and what is not there is never turned. The
// reason is then in Job.Notes, to be said at the start and not at the first
// death.
package trainer
