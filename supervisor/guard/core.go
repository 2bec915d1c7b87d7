package guard

import "time"

// maxSources bounds what is watched: the host and the cgroups above the child.
const maxSources = 8

const (
	// hostRate is the fastest fall that the next poll is planned for, in KiB a
	// second: 30 GiB/s is twice what has been seen on a GB10. Memory of cgroups
	// is charged by the CPU as it clears pages, which is slower.
	hostRate   = 30 << 20
	cgroupRate = 10 << 20
	minPoll    = 20 * time.Millisecond
	maxPoll    = 500 * time.Millisecond
	// lowPoll is the longest wait below the soft floor: how deep a short dip
	// goes must be seen to be learned.
	lowPoll = 100 * time.Millisecond
	// horizon is how soon half the hard floor must be reached for a SIGTERM to
	// have no time left.
	horizon = time.Second
	// react is how long memory may go on falling after a reading, at most: the
	// wait for the next one, the way to the signal, and until the tree takes no
	// more; doubled, for a machine that is busy. A fall that reaches half the
	// hard floor within it must be ended before the hard floor, any other can be
	// ended there.
	react = 300 * time.Millisecond
	// settleAfter is how long a job must have lived within twice the hard
	// floor for a brief touch of it to be tolerated, nearGap how long it may
	// have left that band meanwhile, touch how long a touch may last.
	settleAfter = time.Minute
	nearGap     = 15 * time.Second
	touch       = 10 * time.Second
	// backAfter is how long twice the hard floor must have been left for a floor
	// that was halved at the start to be whole again.
	backAfter = 5 * time.Second
	// thrashPSI is the share of ten seconds in which everything waited for
	// memory, in hundredths of a percent; thrashFor is how long it has to last.
	thrashPSI = 2000
	thrashFor = 5 * time.Second
	// killAgain is how often the kill is repeated while the tree is there.
	killAgain = 100 * time.Millisecond
	// tellAgain is the least distance of two notes that memory is low.
	tellAgain = 5 * time.Minute
	// noiseKiB is the least growth that makes anybody a co-tenant; on large
	// machines it is one percent of the total.
	noiseKiB = 64 << 10
)

// Level is what one source has left and in all.
type Level struct {
	AvailKiB, TotalKiB uint64
	// OK is whether it could be read.
	OK bool
}

// Growth is who took memory within the last minute.
type Growth struct {
	Known bool
	// TreeKiB is the child's tree, GPU memory and what the kernel counts for
	// nobody included.
	TreeKiB int64
	// OutsiderKiB, PID and Name are the process outside it that grew most.
	OutsiderKiB int64
	PID         int
	Name        string
	// AvailKiB was left on the host then. What has gone since may be anybody's.
	AvailKiB uint64
	// In has bit i set where the outsider lives in source i; everybody lives
	// on the host.
	In uint8
}

// Reading is everything the decision rests on, at one instant.
type Reading struct {
	// At is CLOCK_BOOTTIME.
	At time.Duration
	// Levels are the host, first, and the cgroups above the child.
	Levels [maxSources]Level
	// SwapTotalKiB and SwapFreeKiB are meminfo.Unknown where not given.
	SwapTotalKiB, SwapFreeKiB uint64
	// PSIFull is the share of the last ten seconds in which every task waited
	// for memory, in hundredths of a percent.
	PSIFull uint32
	HasPSI  bool
	// Run is whether the first optimizer step is over.
	Run    bool
	Growth Growth
}

// What a Decision says.
type do uint8

const (
	doNothing do = iota
	// doWarn tells of a co-tenant and ends nothing.
	doWarn
	// doTerm sends SIGTERM, doKill SIGKILL, to the whole tree.
	doTerm
	doKill
)

// told is something worth a note.
type told uint8

const (
	tellNear    told = 1 << iota // below the soft floor
	tellTouch                    // below the hard floor, and tolerated
	tellLowered                  // the hard floor was halved from the start
	tellWhole                    // it is whole again
)

// Decision is what to do now and when to look again.
type Decision struct {
	do do
	// Again marks the repetition of a kill.
	Again bool
	Why   string
	// Source is the index of the level that decided; Avail, Floor, Total in
	// KiB, Slope in KiB/s and Left in seconds belong to it.
	Source              int
	Avail, Floor, Total uint64
	Slope, Left         float64
	CoTenant            bool
	// Since is the last reading that gave no reason to act.
	Since time.Duration
	// Wait is how long until the next reading.
	Wait time.Duration
	// Tell are notes to make of each source.
	Tell [maxSources]told
}

// Policy is the rules of the decision.
type Policy struct{ Options }

// State is what the decision remembers. The zero value is the start.
type State struct {
	src    [maxSources]memory
	begun  bool
	run    bool
	thrash thrash
	acted  do
	killAt time.Duration
	warned bool
	// quiet is the last reading that gave no reason to act.
	quiet time.Duration
}

// memory is what is remembered of one source.
type memory struct {
	seen bool
	// lowered is whether the job was started so close to the hard floor that
	// only half of it can mean anything: until memory has come back, which is
	// since plentyAt.
	lowered  bool
	plenty   bool
	plentyAt time.Duration
	recent   window
	swing    swing

	near                bool
	nearSince, nearLast time.Duration
	below               bool
	belowSince          time.Duration
	told                bool
	toldAt              time.Duration
	toldTouch           bool
}

type thrash struct {
	on    bool
	since time.Duration
	swap  uint64
}

// opinion is what one source has to say.
type opinion struct {
	act    bool
	why    string
	hard   uint64
	soft   uint64
	slope  float64
	toHard float64 // seconds, negative for never
	toHalf float64 // the same to half the hard floor, at the speed of a second
	// urgent is whether half the hard floor is reached, or will be within the
	// horizon by all that is known of this job; late whether there is no time
	// for a SIGTERM to go on working.
	urgent, late bool
}
