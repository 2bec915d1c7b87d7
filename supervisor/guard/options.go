package guard

import (
	"errors"
	"fmt"
	"time"
)

// The built-in floors, in percent of a source's total (CONTRACTS section 6).
const (
	DefaultHardPct = 3
	DefaultSoftPct = 13
)

// The values of Options.OnCotenant.
const (
	// CotenantKill ends our tree although somebody else took the memory: the
	// machine would freeze otherwise, and nobody else's processes are ours to
	// end.
	CotenantKill = "kill"
	// CotenantWarn tells first, and acts only below half the hard floor.
	CotenantWarn = "warn"
)

// Options say how the guard of one attempt works. The zero value is the
// built-in floors with the guard on. It travels to the holder as JSON.
type Options struct {
	// Off turns acting off; the last minute is recorded all the same.
	Off bool `json:"off,omitempty"`
	// HardPct and SoftPct are the floors in percent of each source's own
	// total; 0 means 3 and 13.
	HardPct float64 `json:"hard_pct,omitempty"`
	SoftPct float64 `json:"soft_pct,omitempty"`
	// HardKiB and SoftKiB, where set, are used for the host in place of its
	// share. Memory limits of cgroups are always judged by their share.
	HardKiB uint64 `json:"hard_kib,omitempty"`
	SoftKiB uint64 `json:"soft_kib,omitempty"`
	// OnCotenant is CotenantKill ("" too) or CotenantWarn.
	OnCotenant string `json:"on_cotenant,omitempty"`
	// LoadDropCaches drops the page cache while the model loads and MemFree is
	// low (--load-drop-caches). It needs the privilege to write
	// /proc/sys/vm/drop_caches.
	LoadDropCaches bool `json:"load_drop_caches,omitempty"`
}

// Check says what is wrong with the options.
func (o Options) Check() error {
	hard, soft := o.pct()
	switch {
	case hard < 0 || hard > 50 || hard != hard:
		return fmt.Errorf("the guard's floor of %g %% makes no sense: give 0 to 50", o.HardPct)
	case soft < 0 || soft > 90 || soft != soft:
		return fmt.Errorf("the guard's soft floor of %g %% makes no sense: give 0 to 90", o.SoftPct)
	case o.OnCotenant != "" && o.OnCotenant != CotenantKill && o.OnCotenant != CotenantWarn:
		return fmt.Errorf("what to do about another process is %q: give kill or warn", o.OnCotenant)
	case o.HardKiB > 0 && o.SoftKiB > 0 && o.SoftKiB < o.HardKiB, o.HardKiB == 0 && o.SoftKiB == 0 && soft < hard:
		return errors.New("the guard's soft floor lies below its hard floor: raise the one or lower the other")
	}
	return nil
}

// CheckFor is Check on a machine of that much memory: shares and sizes can be
// held against each other there. A total of 0 is unknown, and only Check.
func (o Options) CheckFor(totalKiB uint64) error {
	if err := o.Check(); err != nil || totalKiB == 0 {
		return err
	}
	hard, soft := o.pct()
	hardKiB, softKiB := share(totalKiB, hard), share(totalKiB, soft)
	if o.HardKiB > 0 {
		hardKiB = o.HardKiB
	}
	if o.SoftKiB > 0 {
		softKiB = o.SoftKiB
	}
	// Who raises the floor alone means just that.
	softNamed := o.SoftKiB > 0 || o.SoftPct > 0 && o.SoftPct != DefaultSoftPct
	switch {
	case hardKiB >= totalKiB:
		return fmt.Errorf("the guard's floor of %s is all the memory there is (%s): the training would be ended at once; give a lower one",
			Size(hardKiB), Size(totalKiB))
	case softKiB > totalKiB:
		return fmt.Errorf("the guard's soft floor of %s is more than all the memory there is (%s): give a lower one", Size(softKiB), Size(totalKiB))
	case softNamed && softKiB < hardKiB:
		return fmt.Errorf("the guard's soft floor of %s lies below its hard floor of %s on this machine (%s): raise the one or lower the other",
			Size(softKiB), Size(hardKiB), Size(totalKiB))
	}
	return nil
}

func (o Options) pct() (hard, soft float64) {
	hard, soft = o.HardPct, o.SoftPct
	if hard == 0 {
		hard = DefaultHardPct
	}
	if soft == 0 {
		soft = DefaultSoftPct
	}
	return hard, soft
}

// floors returns the floors of a source in KiB; soft is never below hard.
func (o Options) floors(host bool, total uint64) (hard, soft uint64) {
	hp, sp := o.pct()
	hard, soft = share(total, hp), share(total, sp)
	if host && o.HardKiB > 0 {
		hard = min(o.HardKiB, total)
	}
	if host && o.SoftKiB > 0 {
		soft = min(o.SoftKiB, total)
	}
	return hard, max(soft, hard)
}

func share(total uint64, pct float64) uint64 { return uint64(float64(total) * pct / 100) }

// The phases of an attempt.
const (
	// PhaseLoad is everything before the first optimizer step: memory rises
	// steeply and means to, so only the hard floor acts.
	PhaseLoad = "load"
	// PhaseRun begins with the first optimizer step.
	PhaseRun = "run"
)

// Why the guard acted.
const (
	// WhyHardFloor: what was left fell below the hard floor.
	WhyHardFloor = "hard-floor"
	// WhyPredicted: below the soft floor of the host, falling so fast that the
	// hard floor would have been too late. Never the reason of a cgroup.
	WhyPredicted = "predicted"
	// WhySwapThrash: everything stood still for memory while swap ran out.
	WhySwapThrash = "swap-thrash"
)

// SourceHost is the Source of an Action that the whole machine's memory caused.
const SourceHost = "host"

// Action is what the guard did: "action" of guard.json, Exit.Guard and
// Push.Guard.
type Action struct {
	// T is the reading that caused it: RFC 3339 with milliseconds. Boot is the
	// same instant of CLOCK_BOOTTIME.
	T    string        `json:"t"`
	Boot time.Duration `json:"boottime_ns"`
	// Why is WhyHardFloor, WhyPredicted or WhySwapThrash.
	Why string `json:"why"`
	// Source is SourceHost or the directory of the cgroup whose room ran out.
	Source string `json:"source"`
	// AvailKiB was left; FloorKiB is the hard floor it was held against and
	// TotalKiB what the source has in all.
	AvailKiB uint64 `json:"avail_kib"`
	FloorKiB uint64 `json:"floor_kib"`
	TotalKiB uint64 `json:"total_kib"`
	// SlopeKiBs is how fast it fell, in KiB a second; LeftS how many seconds
	// remained to the floor at that speed: 0 below it, negative for unknown.
	SlopeKiBs float64 `json:"slope_kib_s"`
	LeftS     float64 `json:"left_s"`
	// TreeGrewKiB is what the child's tree took within the last minute, GPU
	// memory included; Outsider the process outside it that grew most.
	TreeGrewKiB     int64  `json:"tree_grew_kib"`
	Outsider        string `json:"outsider,omitempty"`
	OutsiderPID     int    `json:"outsider_pid,omitempty"`
	OutsiderGrewKiB int64  `json:"outsider_grew_kib,omitempty"`
	// CoTenant is whether the outsider grew more than the tree.
	CoTenant bool `json:"co_tenant,omitempty"`
	// Warned is set where nothing was ended: --guard-on-cotenant warn.
	Warned bool `json:"warned,omitempty"`
	// First is the first signal: SIGTERM where time was left, else SIGKILL;
	// "" with Warned.
	First string `json:"first,omitempty"`
	// ReactionUS is the time from that reading to the signal sent, in
	// microseconds. SinceAboveUS counts from the last reading that gave no
	// reason: no crossing can be older than that.
	ReactionUS   int64 `json:"reaction_us"`
	SinceAboveUS int64 `json:"since_above_us"`
}

// Host is whether it was the whole machine's memory that ran out: what would
// have frozen it. False for a cgroup's limit, which freezes nothing.
func (a Action) Host() bool { return a.Source == "" || a.Source == SourceHost }

// The kinds of notes.
const (
	NoteMlock        = "mlock"         // how well the guard is protected
	NoteLoadDrop     = "load-drop"     // page cache was dropped, or could not be
	NoteSource       = "source"        // something the guard reads is missing
	NoteFloorLearned = "floor-learned" // a floor was lowered, or a touch tolerated
	NoteNear         = "near"          // below the soft floor
)

// Note is something worth telling that ended nothing.
type Note struct {
	T    string         `json:"t"`
	Boot time.Duration  `json:"boottime_ns"`
	Kind string         `json:"kind"`
	Text string         `json:"text"`
	Data map[string]any `json:"data,omitempty"`
}

// Floors is what the supervisor tells the guard of a running attempt. Zero
// fields leave things as they are.
type Floors struct {
	// Phase is PhaseLoad or PhaseRun.
	Phase string `json:"phase,omitempty"`
	// GPUTreeKiB and GPUOtherKiB are the GPU memory of the tree and of
	// everybody else, -1 for unknown; GPUOtherName is who holds most of the
	// latter. They hold until the next ones. Both zero without a name says
	// nothing.
	GPUTreeKiB   int64  `json:"gpu_tree_kib"`
	GPUOtherKiB  int64  `json:"gpu_other_kib"`
	GPUOtherName string `json:"gpu_other_name,omitempty"`
	// Options, if set, replace those of the start.
	Options *Options `json:"options,omitempty"`
}

// ContainerKiller ends a container through an engine connection that is open
// already.
type ContainerKiller interface {
	// Kill sends SIGKILL to everything in the container.
	Kill() error
	Close() error
}
