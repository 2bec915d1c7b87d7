// Package gate owns the wait between two attempts: when enough memory is back
// to start again, who holds it if it does not come back, and what is dropped
// from the page cache meanwhile.
//
// On a machine whose GPU shares the system's memory the driver gives a dead
// process's memory back 30 to 60 s after its exit (facts: gb10 3.6), and now and
// then never. So MemAvailable is waited for, not the exit, and a retry that
// cannot fit is not started: failed starts are known to cost memory each time.
//
// Judge is the whole decision and pure; Wait reads the machine and asks it.
package gate

import "time"

// Holder is a process, or a heap of shared memory without one, that holds memory.
type Holder struct {
	// PID is 0 for shared memory that no process has mapped.
	PID int `json:"pid"`
	// Comm is what a person calls it: the model server or the script where argv
	// tells, else the kernel's name of the process. Control characters are gone.
	Comm string `json:"name"`
	// KiB is what it holds; 0 with "gpu": NVML names the process but not how
	// much it holds.
	KiB uint64 `json:"kib"`
	// GrewKiB is the part of KiB that came after the attempt was started. For a
	// process that was not there, or where nothing is known of that time, it is
	// all of it.
	GrewKiB uint64 `json:"grew_kib"`
	// How says where the figure comes from: "gpu" (NVML, per process), "rss"
	// (anonymous memory), "shmem" (shared memory).
	How string `json:"how"`
	// Alive says that the process is there. What a dead one holds has not been
	// given back by the driver.
	Alive bool `json:"alive"`
	// Ours says that it is a process of this run, which should be gone.
	Ours bool `json:"ours"`
}

// Reading is one look at the machine's memory, in KiB.
type Reading struct {
	// At is the time since the gate was entered.
	At time.Duration
	// AvailKiB is MemAvailable, FreeKiB MemFree, TotalKiB MemTotal and ShmemKiB
	// Shmem of /proc/meminfo. They mean something only where Known.
	AvailKiB, FreeKiB, TotalKiB, ShmemKiB uint64
	// UnaccountedKiB is the memory the kernel books under no heading, where
	// UnaccountedKnown: on GB10 what the GPU driver holds (facts: gb10 3.2).
	UnaccountedKiB   uint64
	UnaccountedKnown bool
	// Known is false where /proc/meminfo could not be read or has no
	// MemAvailable.
	Known bool
	// Asked says that the holders were looked up at this reading, which is done
	// less often; GPUKnown that the GPU could be asked too.
	Asked, GPUKnown bool
	// GPUOther are the processes NVML names, Others those with memory of their
	// own (anonymous and shared, never file pages), largest first.
	GPUOther, Others []Holder
}

// Goal is what the gate waits for, in KiB; 0 is unknown.
type Goal struct {
	// StartKiB is MemAvailable before attempt 1. Without it the gate opens at
	// once.
	StartKiB uint64
	// BestIdleKiB is the best value seen on this boot (LoadIdle).
	BestIdleKiB uint64
	// PeakKiB is the most the last attempt used: MemAvailable at its start less
	// the least during it, where nothing better is known.
	PeakKiB uint64
	// ReserveKiB is to stay free above the peak for it to count as fitting. 0 is
	// right where the next attempt uses less than the last one did; an attempt
	// resumed unchanged needs the guard's floor on top, or the guard ends it
	// again.
	ReserveKiB uint64
	// StartShmemKiB and StartUnaccountedKiB are those figures before attempt 1.
	StartShmemKiB, StartUnaccountedKiB uint64
	// Limit ends the wait (--gate-limit); 0 is DefaultLimit.
	Limit time.Duration
}

// DefaultLimit is how long the gate waits for a living outsider.
const DefaultLimit = 60 * time.Minute

// Verdict is what the gate says after a reading.
type Verdict int

// The verdicts.
const (
	// Waiting: not yet.
	Waiting Verdict = iota
	// Open: memory is back.
	Open
	// OpenTight: it is not, but what the last attempt used at most is there.
	OpenTight
	// Stop: it is not and will not be; another attempt would be useless.
	Stop
)

// String returns the verdict as events carry it.
func (v Verdict) String() string {
	switch v {
	case Open:
		return "open"
	case OpenTight:
		return "open-tight"
	case Stop:
		return "stop"
	}
	return "waiting"
}

// Decision is a verdict with its reasons.
type Decision struct {
	Verdict Verdict
	// WantKiB is the MemAvailable that opens the gate.
	WantKiB uint64
	// Why is one sentence without a final stop.
	Why string
	// Holders are those to name, the one that matters most first.
	Holders []Holder
	// RebootGiB is what only a reboot brings back, where that is why the gate
	// stops; else 0.
	RebootGiB float64
}
