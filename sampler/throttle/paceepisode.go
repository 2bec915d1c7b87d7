package throttle

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// paceEpisode is one stretch of slow steps.
type paceEpisode struct {
	typ, id string
	attempt int
	level   event.Level
	// since is when it began, until when the latest slow block ended.
	since, until time.Time
	// base is the seconds of a step it is measured against, baseTokens the tokens a
	// second; byToken says that those were compared.
	base, baseTokens sample.Num
	byToken          bool

	// steps took sec seconds and should have taken want; now is the latest ratio,
	// worst the highest.
	steps, sec, want float64
	now, worst       float64
	// Blocks in which the pace was back: they count only if it was not for good.
	good                      int
	tail                      bool // the block in which it ended is in it
	goodSteps, goodSec, goodW float64

	causes causeTally
	told   finding // the cause named at the start
	// muted: the same as before, which is counted and not told.
	muted bool
	// stalls: it is made of long steps that stand alone, spikes of them at its start.
	stalls bool
	spikes int
	// slowSec is for how long blocks have been slow without a break, beyond how many of
	// them in a row no mark explains; noMarks says that none explains any.
	slowSec float64
	beyond  int
	noMarks bool
	// runs and from are where the base comes from, for a slow start.
	runs int
	from string
}

func episodeID(typ string, t time.Time) string {
	return typ + "-" + strconv.FormatInt(t.UnixMilli(), 10)
}

// add takes a slow block that should have taken want seconds.
func (e *paceEpisode) add(k *block, ratio, want float64) {
	e.steps += k.n
	e.sec += k.all()
	e.want += want
	e.now, e.worst = ratio, max(e.worst, ratio)
}

// wait keeps a block in which the pace was back.
func (e *paceEpisode) wait(k *block, ratio, want float64) {
	e.good++
	e.goodSteps += k.n
	e.goodSec += k.all()
	e.goodW += want
	e.now = ratio
}

// resume takes what waited in: it goes on after all.
func (e *paceEpisode) resume() {
	e.steps, e.sec, e.want = e.steps+e.goodSteps, e.sec+e.goodSec, e.want+e.goodW
	e.good, e.goodSteps, e.goodSec, e.goodW = 0, 0, 0, 0
}

// lost is the seconds that it cost.
func (e *paceEpisode) lost() float64 { return max(0, e.sec-e.want) }

// lostSteps is how many steps could have been made in that time.
func (e *paceEpisode) lostSteps() sample.Num {
	if !e.base.OK || e.base.V <= 0 {
		return sample.Num{}
	}
	return sample.Known(e.lost() / e.base.V)
}

func (e *paceEpisode) perStep() sample.Num {
	if e.steps <= 0 {
		return sample.Num{}
	}
	return sample.Known(e.sec / e.steps)
}

func (e *paceEpisode) data() map[string]any {
	data := map[string]any{"type": e.typ, "id": e.id, "since": clock.Machine(e.since)}
	put(data, "baseline_step_time_s", e.base)
	put(data, "baseline_tokens_per_s", e.baseTokens)
	if e.typ == SlowStart {
		data["runs"] = e.runs
		if e.from != "" {
			data["newest_run"] = e.from
		}
	}
	return data
}

func (e *paceEpisode) startEvent(r reading) event.Event {
	return event.Event{
		T: r.t, Attempt: e.attempt, Kind: event.ThrottleStart, Level: e.level,
		Label: e.typ + " start", Msg: e.startWords(), Data: e.nowData(r),
	}
}

// updateEvent tells that it is graver than its start said.
func (e *paceEpisode) updateEvent(r reading) event.Event {
	return event.Event{
		T: r.t, Attempt: e.attempt, Kind: event.ThrottleUpdate, Level: e.level,
		Label: e.typ + " update", Msg: "it goes on for " + short(r.t.Sub(e.since).Seconds()) + ", longer than what was thought first explains: " + e.startWords(), Data: e.nowData(r),
	}
}

func (e *paceEpisode) nowData(r reading) map[string]any {
	data := e.data()
	put(data, "temp_c", r.temp)
	put(data, "power_w", r.power)
	put(data, "clock_sm_mhz", r.clock)
	put(data, "util_gpu_pct", r.util)
	if r.bits.OK {
		data["reasons"] = hex(sample.Reasons(r.bits.V))
	}
	put(data, "step", r.step)
	put(data, "step_time_s", e.nowS())
	put(data, "slower_pct", sample.Known(100*(e.now-1)))
	e.putCause(data, e.told)
	return data
}

// nowS is the seconds of a step in the latest block; of all, where tokens are compared.
func (e *paceEpisode) nowS() sample.Num {
	if e.byToken || !e.base.OK {
		return e.perStep()
	}
	return sample.Known(e.base.V * e.now)
}

func (e *paceEpisode) putCause(data map[string]any, f finding) {
	if f.cause == "" {
		return
	}
	data["cause"], data["evidence"] = f.cause, f.why
	if f.pid != 0 {
		data["gpu_pid"] = f.pid
		if f.name != "" {
			data["gpu_process"] = f.name
		}
	}
}

func (e *paceEpisode) endEvent(t time.Time, how string) event.Event {
	data := e.data()
	data["until"], data["ended"] = clock.Machine(e.until), how
	put(data, "duration_s", sample.Known(e.until.Sub(e.since).Seconds()))
	data["steps"] = int(e.steps)
	put(data, "step_time_s", e.perStep())
	put(data, "worst_slower_pct", sample.Known(100*(e.worst-1)))
	put(data, "lost_s", sample.Known(e.lost()))
	put(data, "lost_steps", e.lostSteps())
	f, share := e.cause()
	e.putCause(data, f)
	if len(e.causes.seconds) > 0 {
		put(data, "cause_share", sample.Known(share))
		if e.told.cause != "" && e.told.cause != f.cause {
			data["cause_at_start"] = e.told.cause
		}
	}
	return event.Event{
		T: t, Attempt: e.attempt, Kind: event.ThrottleEnd, Level: e.level,
		Label: e.typ + " end", Msg: e.endWords(how), Data: data,
	}
}

// cause is what explains it best by now.
func (e *paceEpisode) cause() (finding, float64) {
	if len(e.causes.seconds) == 0 {
		return e.told, 0
	}
	return e.causes.top()
}

func (e *paceEpisode) startWords() string {
	what := "a step takes"
	if e.byToken {
		what = "a token takes"
	}
	slower := fmt.Sprintf("%s %.0f %% longer than", what, 100*(e.now-1))
	if e.typ == SlowStart {
		runs := fmt.Sprintf("in the %d earlier runs of this job on this machine", e.runs)
		if e.runs == 1 {
			runs = "in the earlier run of this job on this machine"
		}
		out := slower + " " + runs + e.figures()
		if f := e.told; f.cause != "" && f.cause != CauseUnknown {
			out += "; likely cause: " + f.cause + " (" + f.why + ")"
		}
		return out
	}
	out := slower + " before" + e.figures()
	switch {
	case e.stalls && e.spikes < stallsLeast:
		out = fmt.Sprintf("in stretches that come and go, for %s, a step takes %.0f %% longer than before on average%s", short(e.until.Sub(e.since).Seconds()), 100*(e.now-1), e.figures())
	case e.stalls:
		out = fmt.Sprintf("with %d long steps in %s, a step takes %.0f %% longer than before on average%s", e.spikes, short(e.until.Sub(e.since).Seconds()), 100*(e.now-1), e.figures())
	}
	if e.told.cause == CauseUnknown {
		return out + "; cause unknown, " + e.told.why
	}
	return out + "; likely cause: " + e.told.cause + " (" + e.told.why + ")"
}

// figures are the two step times, where those were compared.
func (e *paceEpisode) figures() string {
	now := e.nowS()
	if e.byToken || !now.OK || !e.base.OK {
		return ""
	}
	return fmt.Sprintf(" (%s against %s)", stepWords(now.V), stepWords(e.base.V))
}

func stepWords(s float64) string {
	switch {
	case s < 0.1:
		return strconv.FormatFloat(s*1000, 'f', 1, 64) + " ms"
	case s < 10:
		return strconv.FormatFloat(s, 'f', 2, 64) + " s"
	}
	return short(s)
}

func (e *paceEpisode) endWords(how string) string {
	out := fmt.Sprintf("slower for %s, at worst by %.0f %%, about %s lost", short(e.until.Sub(e.since).Seconds()), 100*(e.worst-1), short(e.lost()))
	if n := e.lostSteps(); n.OK && n.V >= 1 {
		out += fmt.Sprintf(" (%.0f steps)", n.V)
	}
	if e.typ == SlowStart {
		out = "since the start " + strings.Replace(out, "slower for", "slower than earlier runs for", 1)
	}
	if f, share := e.cause(); f.cause != "" {
		switch {
		case f.cause == CauseUnknown:
			out += "; the cause is unknown"
		case share > 0 && share < 0.9:
			out += fmt.Sprintf("; cause for %.0f %% of it: %s (%s)", 100*share, f.cause, f.why)
		default:
			out += fmt.Sprintf("; cause: %s (%s)", f.cause, f.why)
		}
	}
	switch how {
	case EndedRecovered:
		out += "; the pace is back"
	case EndedAttempt:
		out += "; it lasted to the end of the attempt"
	case EndedRun:
		out += "; it lasted to the end of the run"
	}
	return out
}
