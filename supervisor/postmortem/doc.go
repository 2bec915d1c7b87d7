// Package postmortem answers why something died after the fact: from a log that
// somebody has, from the files of one of our runs, and, after a crash of the
// machine, from what a run without an end has left behind.
//
// It owns the reading of these files, in a stream and in bounded memory, and what
// is made of them for a person; the decision itself is that of ladder/oom. Every
// file may be torn, endless, full of NULs or still being written to.
package postmortem
