// Package trainer owns what sparkrun knows of trainers as such: it recognises one in
// a command line, reads its settings, and writes the command of the next attempt. What
// differs between trainers is data (configs/trainers/*.yaml, schema.go has its fields);
// this package holds what they have in common.
//
// The parts of the work lie in packages of their own: where in a command the trainer
// stands (place), changes in copies of config files (internal/edit), constants in a script
// (internal/pyread), the Python shim (shim), checkpoints (checkpoint) and progress (progress).
//
//	Understand: words -> place -> profile -> mentions, documents, constants -> knobs -> Job
//	Rewrite:    Job + changes -> edits of words and copies, clamps -> words -> read again
//
// It is careful in one direction: a value that is not certain to be what the trainer
// takes is not in Job.Knobs, and what cannot be changed exactly as asked is refused with
// the reason (Fixed), to be said at the start and not at the first death. Every rewritten
// command is read again, and unless it has exactly the settings that were asked for
// there is none.
package trainer
