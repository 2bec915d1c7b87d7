package guard

import (
	"fmt"
	"time"
)

// raw is a note in numbers, from the guard's own thread, which makes no text.
type raw struct {
	told                     told
	at                       time.Duration
	source                   string
	avail, total, hard, soft uint64
	off                      bool
}

// Text returns the note of an EventNote in words; nil for any other event.
func (e Event) Text() *Note {
	if e.Kind != EventNote {
		return nil
	}
	if e.Note != nil {
		return e.Note
	}
	r := e.raw
	n := &Note{Kind: NoteFloorLearned, Boot: r.at, Data: map[string]any{
		"source": r.source, "avail_kib": r.avail, "total_kib": r.total, "hard_kib": r.hard, "soft_kib": r.soft,
	}}
	of := "of memory"
	if r.source != SourceHost {
		of = "below the memory limit of " + r.source
	}
	switch {
	case r.told&tellTouch != 0:
		n.Text = fmt.Sprintf("%s left %s, under the guard's floor of %s: the job has lived this close to it for a minute, so a touch is let pass down to half the floor",
			Size(r.avail), of, Size(r.hard))
	case r.told&tellLowered != 0:
		n.Text = fmt.Sprintf("only %s %s was left before the job had taken any: the guard's floor is halved to %s", Size(r.avail), of, Size(r.hard))
	case r.told&tellWhole != 0:
		n.Text = fmt.Sprintf("memory has come back (%s left %s): the guard's floor is whole again, %s", Size(r.avail), of, Size(r.hard))
	case r.off:
		n.Kind = NoteNear
		n.Text = fmt.Sprintf("memory is low: only %s of %s %s left (the guard is off)", Size(r.avail), Size(r.total), of)
	default:
		n.Kind = NoteNear
		n.Text = fmt.Sprintf("only %s of %s %s left: the guard ends the training below %s", Size(r.avail), Size(r.total), of, Size(r.hard))
	}
	return n
}

// Size is an amount of memory in words: MiB below one GiB. The texts about one
// floor agree where all of them use it.
func Size(kib uint64) string {
	if kib < 1<<20 {
		return fmt.Sprintf("%d MiB", kib>>10)
	}
	return fmt.Sprintf("%.1f GiB", gib(kib))
}
