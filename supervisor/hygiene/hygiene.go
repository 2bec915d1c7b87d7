// Package hygiene owns what a dead attempt leaves on the machine: POSIX shared
// memory in /dev/shm, System V segments, processes that left the holder's reach,
// and the ports they hold. Snapshot is taken before the attempt, Clean after its
// death and before the gate.
//
// Whatever it removes is gone for good, so everything has to be proven ours, and
// what is only likely is told and left alone.
package hygiene

import (
	"context"
	"time"
)

// Before is what was there before the attempt. The zero value knows nothing, and
// then nothing in shared memory counts as the attempt's.
type Before struct {
	shm  map[string]bool // names in /dev/shm; nil is unknown
	sysv map[int]bool    // ids; nil is unknown
}

// Snapshot notes what lies in shared memory now. It reads two lists of names and
// looks at nothing twice.
func Snapshot() Before { return snapshot("/") }

// Finding is one thing the attempt left, or one that stands in the way of the
// next.
type Finding struct {
	// Kind is "shm", "sysv", "process" or "port".
	Kind string
	// What names it, fit for a terminal: control characters are escaped.
	What string
	// KiB is the memory it holds; 0 where it holds none or it is not known.
	KiB uint64
	// PID is the process, for a port the one that holds it; 0 where there is none.
	PID int
	// Removed says that it is gone: removed, ended, or free.
	Removed bool
	// Why says why it was left, or, where it was removed, why it was ours.
	Why string
}

// Options says whose leftovers to look for.
type Options struct {
	// Before is the Snapshot taken before the attempt.
	Before Before
	// Start and End bound the attempt by the machine's wall clock, which the times
	// of files are told by, not by the run's own. Start is taken after Before. A
	// zero End is now; a zero Start leaves all shared memory alone.
	Start, End time.Time
	// UID is the user the job ran as.
	UID int
	// Entry is the line of the environment that every process of the run has:
	// "SPARKRUN_RUN_ID=...".
	Entry string
	// Root is "/" for this machine; "" is the same. System V segments are looked
	// at with "/" only.
	Root string
	// Protect says which pids are never to be ended; sparkrun itself, its parent
	// and process 1 never are.
	Protect func(pid int) bool
	// Tree is every pid the attempt was seen to have, with its kernel name.
	Tree map[int]string
	// Seen are the paths under /dev/shm that processes of the attempt were seen to
	// have mapped or open (Held). A file whose name holds no pid is removed only
	// if it is among them.
	Seen map[string]bool
	// Ports are those the job itself listens on, such as MASTER_PORT: a stranger
	// that holds one is told.
	Ports []int
	// Grace is how long a leftover process has between SIGTERM and SIGKILL; 0 is
	// 2 s. The wait for processes ends after 5 s, or Grace and 2.5 s if that is
	// longer.
	Grace time.Duration
	// DryRun finds and reports, and touches nothing.
	DryRun bool
}

// Clean finds what the dead attempt left, removes what is provably its own and
// reports both. It ends at the latest some seconds after ctx or its own bounds.
func Clean(ctx context.Context, o Options) []Finding {
	return clean(ctx, o)
}
