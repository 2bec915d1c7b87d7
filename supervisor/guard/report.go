package guard

import "time"

// ReportSchema is the schema of guard.json.
const ReportSchema = "sparkrun.guard/1"

// Report is the content of guard.json: what the guard did, what it was held
// against, and how well it worked.
type Report struct {
	Schema  string `json:"schema"`
	RunID   string `json:"run_id"`
	Attempt int    `json:"attempt"`
	// Action is nil when the guard ended nothing and warned of nothing.
	Action *Action `json:"action"`
	Notes  []Note  `json:"notes"`
	// Error says why there was no guard; "" when there was.
	Error   string         `json:"error,omitempty"`
	Options Options        `json:"options"`
	Phase   string         `json:"phase"`
	Sources []SourceReport `json:"sources"`
	// Polls is the number of readings; LatePolls of them came more than 20 ms
	// later than planned. SlowestPollUS is the longest, in microseconds.
	Polls         int64 `json:"polls"`
	LatePolls     int64 `json:"late_polls"`
	SlowestPollUS int64 `json:"slowest_poll_us"`
	Protection
}

// SourceReport is one thing that can run out.
type SourceReport struct {
	Name     string `json:"name"`
	TotalKiB uint64 `json:"total_kib"`
	HardKiB  uint64 `json:"hard_kib"`
	SoftKiB  uint64 `json:"soft_kib"`
	// Lowered is whether the hard floor is still halved because the job was started
	// close to it.
	Lowered bool `json:"lowered,omitempty"`
	// LowestKiB is the least that was left, LowestT when.
	LowestKiB  uint64        `json:"lowest_kib"`
	LowestT    string        `json:"lowest_t"`
	LowestBoot time.Duration `json:"lowest_boottime_ns"`
}

// Report returns the report without its action, its notes and the times in
// words, which the holder has. Only after Stop has returned true.
func (g *Guard) Report() Report {
	r := Report{
		Schema: ReportSchema, Notes: []Note{}, Sources: []SourceReport{}, Options: *g.opts.Load(), Phase: PhaseLoad,
		Polls: g.polls, LatePolls: g.late, SlowestPollUS: g.slowest.Microseconds(), Protection: g.protected,
	}
	if g.run.Load() {
		r.Phase = PhaseRun
	}
	if g.failed != nil {
		r.Error = g.failed.Error()
		return r
	}
	for i, l := range g.low {
		if !l.OK {
			continue
		}
		hard, soft := r.Options.floors(i == 0, l.TotalKiB)
		lowered := g.state.src[i].lowered
		if lowered {
			hard /= 2
		}
		r.Sources = append(r.Sources, SourceReport{
			Name: g.src.name(i), TotalKiB: l.TotalKiB, HardKiB: hard, SoftKiB: soft, Lowered: lowered,
			LowestKiB: l.AvailKiB, LowestBoot: g.lowAt[i],
		})
	}
	return r
}

// Minute returns the readings of the last minute, the oldest first. Only after
// Stop has returned true, and once.
func (g *Guard) Minute() []Sample {
	if g.failed != nil {
		return nil
	}
	defer g.ring.free()
	return g.ring.last()
}
