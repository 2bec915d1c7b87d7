package gate

import (
	"slices"
	"time"
)

// cause says what keeps the memory away.
type cause int

const (
	byNobody cause = iota // could not be told
	byLiving
	byDriver
	byOrphans
)

// state is what the readings amount to.
type state struct {
	want, need, big uint64
	fits            bool
	// ourStartIsBack: what there was before attempt 1 is there again.
	// idleElsewhere: what is missing to the boot's best is held by the living.
	ourStartIsBack, idleElsewhere bool
	// explained: with what living outsiders took since the start, all of it is
	// back, so nothing of the dead attempt is outstanding.
	explained bool
	// driverClear: nothing to speak of is booked to nobody, so the driver has
	// given everything back.
	driverClear bool
	cause       cause
	living      []Holder // worth naming, those that grew most first
	culprits    []Holder // those of them whose memory is what is missing
	ours        *Holder
	retained    uint64 // held by the driver for nobody who lives
	orphans     uint64 // shared memory that no process has mapped
}

// reckon draws up who holds what. The holders may be from an earlier reading
// than the figures: they are looked up less often.
func reckon(g Goal, rs []Reading, last Reading) state {
	total := max(last.TotalKiB, last.AvailKiB)
	slack := min(slackKiB, uint64(float64(total)*slackShare))
	// A machine can shrink (a balloon, memory set aside): more than there is
	// cannot be waited for.
	start := min(g.StartKiB, total)
	base := max(start, min(g.BestIdleKiB, total))
	s := state{want: less(base, slack), need: g.PeakKiB, big: max(1, uint64(float64(total)*bigShare))}
	if s.need == 0 {
		s.need = uint64(float64(start) * unknownPeak)
	}
	s.fits = last.AvailKiB >= s.need+g.ReserveKiB
	s.ourStartIsBack = last.AvailKiB+slack >= start

	var asked Reading
	for i := len(rs) - 1; i >= 0; i-- {
		if rs[i].Asked {
			asked = rs[i]
			break
		}
	}
	if !asked.Asked {
		return s
	}
	var gpu, gpuGrew, deadGPU, anon, anonGrew, mapped, mappedGrew uint64
	unsized := false // a living GPU process of which NVML does not say how much it holds
	for _, h := range slices.Concat(asked.GPUOther, asked.Others) {
		if h.Ours && h.Alive {
			// sparkrun's own few MiB are nothing to wait for.
			if h.KiB >= s.big || h.How == "gpu" && h.KiB == 0 {
				if s.ours == nil || h.KiB > s.ours.KiB {
					s.ours = &h
				}
			}
			continue
		}
		switch {
		case h.How == "gpu" && !h.Alive:
			deadGPU += h.KiB
			continue
		case h.How == "gpu":
			gpu += h.KiB
			gpuGrew += h.GrewKiB
			unsized = unsized || h.KiB == 0
		case h.How == "shmem":
			mapped += h.KiB
			mappedGrew += h.GrewKiB
		default:
			anon += h.KiB
			anonGrew += h.GrewKiB
		}
		if h.KiB >= s.big || h.How == "gpu" && h.KiB == 0 {
			s.living = append(s.living, h)
		}
	}
	// Those that grew came after the start and are the news; the rest was there.
	slices.SortStableFunc(s.living, func(a, b Holder) int {
		if a.GrewKiB != b.GrewKiB {
			return cmpDesc(a.GrewKiB, b.GrewKiB)
		}
		return cmpDesc(a.KiB, b.KiB)
	})

	// No sum may be larger than what the kernel says there is of its kind: memory
	// mapped by many is counted by each, and on a machine whose GPU has memory of
	// its own that memory is not missing here.
	if last.UnaccountedKnown {
		newUnaccounted := last.UnaccountedKiB
		if g.StartUnaccountedKiB > 0 {
			newUnaccounted = less(newUnaccounted, g.StartUnaccountedKiB)
		}
		s.driverClear = newUnaccounted <= slack
		if unsized {
			// It may be all of it, and then waiting for it is right.
			gpu, gpuGrew = last.UnaccountedKiB, newUnaccounted
		}
		gpu, gpuGrew = min(gpu, last.UnaccountedKiB), min(gpuGrew, newUnaccounted)
		s.retained = less(newUnaccounted, gpuGrew)
		if g.StartUnaccountedKiB == 0 {
			s.retained = less(newUnaccounted, gpu)
		}
	} else {
		s.retained = deadGPU
	}
	mapped = min(mapped, last.ShmemKiB)
	newShmem := last.ShmemKiB
	if g.StartShmemKiB > 0 {
		newShmem = less(newShmem, g.StartShmemKiB)
	}
	mappedGrew = min(mappedGrew, newShmem)
	s.orphans = less(newShmem, mappedGrew)
	if g.StartShmemKiB == 0 {
		s.orphans = less(newShmem, mapped)
	}

	grew := gpuGrew + anonGrew + mappedGrew
	missing := less(start, last.AvailKiB)
	held := grew
	s.culprits = slices.DeleteFunc(slices.Clone(s.living), func(h Holder) bool { return h.KiB > 0 && h.GrewKiB < s.big })
	if s.ourStartIsBack {
		// Only this boot's best is missing: then it counts what others hold
		// altogether, for they may have come between that time and the start.
		missing = less(base, last.AvailKiB)
		held, s.culprits = 0, s.living
		for _, h := range s.living {
			if h.How != "gpu" {
				held += h.KiB
			}
		}
		held = min(held, anon+mapped) + gpu
	}
	s.explained = held+slack >= missing
	s.idleElsewhere = s.explained && len(s.living) > 0
	switch half := missing / 2; {
	case held > 0 && held >= half:
		s.cause = byLiving
	case asked.GPUKnown && s.retained >= half && s.retained >= s.big:
		s.cause = byDriver
	case s.orphans >= half && s.orphans >= s.big:
		s.cause = byOrphans
	}
	return s
}

func cmpDesc(a, b uint64) int {
	switch {
	case a > b:
		return -1
	case a < b:
		return 1
	}
	return 0
}

// waits says whether to wait on at this time, the limit not reached.
func (s *state) waits(now time.Duration, climbs bool) bool {
	if climbs || s.ours != nil {
		return true // never a second attempt beside a living process of the first
	}
	if s.explained && s.fits && (s.driverClear || now >= settle) {
		return false // all that was the dead attempt's is back, and it is enough
	}
	if now < patience {
		return true
	}
	switch {
	case s.fits && (s.cause != byNobody && s.cause != byOrphans || s.ourStartIsBack):
		return false
	case s.cause == byLiving:
		return true // it may end
	case s.cause == byDriver:
		return false // only a reboot brings it back
	}
	return now < patience+longer
}

// holders are those to name with a decision.
func (s *state) holders() []Holder {
	var out []Holder
	if s.ours != nil {
		out = append(out, *s.ours)
	}
	out = append(out, s.living...)
	if s.orphans >= s.big {
		out = append(out, Holder{Comm: "shared memory that no process has mapped", KiB: s.orphans, GrewKiB: s.orphans, How: "shmem"})
	}
	return out
}

// heldBy is the part of a sentence that names who holds the memory.
func (s *state) heldBy() string {
	switch {
	case s.ours != nil:
		return "; held by " + oneName(*s.ours) + " of this run, which is still there"
	case s.cause == byLiving:
		return "; held by " + names(s.culprits)
	case s.cause == byDriver:
		return "; " + gib(s.retained) + " GiB are retained by the GPU driver"
	case s.cause == byOrphans:
		return "; " + gib(s.orphans) + " GiB are shared memory that no process has mapped"
	}
	return ""
}
