package acting

import (
	"fmt"
	"math"
	"strings"
	"time"

	"sparkrun/internal/sample"
)

const (
	// inARow readings must agree before anything is done: one alone may be a glitch.
	inARow = 2
	// dieNear is how far below the pause's own limit a die still speaks for the heat
	// where the zone is further above it than PauseRule.DieBelowC.
	dieNear = 10.0
	// leastC and mostC: a temperature outside of these is none of a running machine.
	leastC, mostC = -40.0, 150.0
	// blindAfter is how long a machine may keep its temperatures from us before we say
	// that it does.
	blindAfter = 30 * time.Second
	// goneAfter is how long temperatures must be missing, in inARow looks at least, for a
	// pause to end: on a busy machine a reading is late now and then, and with a reading
	// each tenth of a second two late ones are none that is gone.
	goneAfter = 1500 * time.Millisecond
	// againAfter is how long a pause that could not be made is not tried again.
	againAfter = time.Minute
)

// PauseRule is when a command is paused for the machine's heat, and when it goes on.
type PauseRule struct {
	// PauseC and ResumeC are temperatures of the hottest zone in C.
	PauseC, ResumeC float64
	// Max is the longest pause.
	Max time.Duration
	// DieBelowC is how many C the die may be below a zone that is believed.
	DieBelowC float64
}

// Heat is one look at the temperatures.
type Heat struct {
	// T is a time that only goes forward, At the instant of the reading itself: two looks
	// at the same reading are one.
	T, At time.Duration
	// Zone is the hottest zone and Die the GPU's, both in C.
	Zone, Die sample.Num
}

// PauseState is what the rule remembers; the zero value is a command that runs.
type PauseState struct {
	// Paused is whether the command stands still, Since when, at which temperatures.
	Paused bool
	Since  time.Duration
	Begin  Heat

	at    time.Duration // of the last reading
	hot   int           // readings in a row that are too hot
	blind int           // looks in a row without both temperatures
	saw   time.Duration // the last look with both
	// known: both were there at least once; toldBlind: that they are not was told.
	known, toldBlind bool
	looked           bool
	first            time.Duration // look
	// holdOff is until when no pause begins, cool whether a zone at ResumeC ends it.
	holdOff time.Duration
	cool    bool
	// woken is when somebody else ended a pause last, 0 for never.
	woken time.Duration
}

// PauseDo is what is to be done.
type PauseDo int

// What to do: nothing, stop the tree, wake it, or tell that there is nothing to judge by.
const (
	Nothing PauseDo = iota
	Pause
	Continue
	TellBlind
)

// Why a pause ended, as data.why says. Only the first three are the rule's.
const (
	WhyCool   = "cooled"
	WhyLimit  = "limit"
	WhySensor = "sensor-gone"
	// WhyEnds: the attempt is over or being ended. WhyOther: it was continued by somebody
	// else, such as the holder or the memory guard.
	WhyEnds  = "ending"
	WhyOther = "continued-elsewhere"
)

// PauseAct is a decision and the reason for it.
type PauseAct struct {
	Do PauseDo
	// Why is set with Continue.
	Why string
}

// Next takes one look. What it decides is taken for done: a pause that could not be made
// is told with Failed.
func (r PauseRule) Next(s PauseState, h Heat) (PauseState, PauseAct) {
	h.Zone, h.Die = plausible(h.Zone), plausible(h.Die)
	fresh := !s.looked || h.At != s.at
	if !s.looked {
		s.looked, s.first = true, h.T
	}
	s.at = h.At
	if both := h.Zone.OK && h.Die.OK; both {
		s.blind, s.saw, s.known = 0, h.T, true
	} else {
		s.blind++
	}
	if s.Paused {
		var why string
		switch {
		case h.Zone.OK && h.Zone.V <= r.ResumeC:
			why = WhyCool
		case s.blind >= inARow && h.T-s.saw >= goneAfter:
			why = WhySensor
		case h.T-s.Since >= r.Max:
			why = WhyLimit
		default:
			return s, PauseAct{}
		}
		s = s.over()
		if why == WhyLimit {
			// It stays hot without us: another pause at once would let the command run for
			// two readings in each ten minutes.
			s.holdOff, s.cool = h.T+r.Max, true
		}
		return s, PauseAct{Do: Continue, Why: why}
	}
	if s.cool && h.Zone.OK && h.Zone.V <= r.ResumeC {
		s.holdOff, s.cool = 0, false
	}
	switch {
	case !r.hot(h):
		s.hot = 0
	case fresh:
		s.hot++
	}
	switch {
	case s.hot >= inARow && h.T >= s.holdOff:
		s.Paused, s.Since, s.Begin, s.hot, s.cool = true, h.T, h, 0, false
		return s, PauseAct{Do: Pause}
	case !s.known && !s.toldBlind && h.T-s.first >= blindAfter:
		s.toldBlind = true
		return s, PauseAct{Do: TellBlind}
	}
	return s, PauseAct{}
}

// hot says that the hottest zone is too hot and the die agrees. A zone alone proves
// nothing: they have been seen to swap values and to invent them.
func (r PauseRule) hot(h Heat) bool {
	if !h.Zone.OK || !h.Die.OK || h.Zone.V < r.PauseC {
		return false
	}
	return h.Zone.V-h.Die.V <= r.DieBelowC || h.Die.V >= r.PauseC-dieNear
}

// Failed is the state after a pause that could not be made at t: it is not tried again
// for a while.
func (s PauseState) Failed(t time.Duration) PauseState {
	s = s.over()
	s.holdOff, s.cool = t+againAfter, false
	return s
}

// Woken is the state after a pause that another program ended at t. The machine is as hot
// as before, so the next one may come at once; but whoever wakes the command again and
// again has his way for a while, and then again is true.
func (s PauseState) Woken(t time.Duration) (after PauseState, again bool) {
	again = s.woken != 0 && t-s.woken < againAfter
	s = s.over()
	if s.woken = t; again {
		s.holdOff, s.cool = t+againAfter, false
	}
	return s, again
}

// Over is the state after a pause that has ended with its attempt.
func (s PauseState) Over() PauseState { return s.over() }

// ForAttempt is the state at the start of another attempt: it has been told what there is
// to tell, and the machine is as it was.
func (s PauseState) ForAttempt() PauseState {
	s = s.over()
	s.first, s.looked = 0, false
	return s
}

func (s PauseState) over() PauseState {
	s.Paused, s.Since, s.Begin, s.hot, s.blind = false, 0, Heat{}, 0, 0
	return s
}

func plausible(n sample.Num) sample.Num {
	if !n.OK || math.IsNaN(n.V) || n.V < leastC || n.V > mostC {
		return sample.Num{}
	}
	return n
}

const (
	// lateC: machines have turned themselves off at 91.2 C, and at 94 to 98, long before
	// the 104 C at which they should.
	lateC = 90.0
	// slowEvery is the longest time between readings that nothing needs to be said about.
	slowEvery = 5 * time.Second
	// collective is PyTorch's shortest timeout of what several processes do together, less
	// a minute for what they wait anyway.
	collective = 9 * time.Minute
)

// Late warns of pauses that may come too late, by their temperature or since readings come
// that seldom; nil where they do not.
func Late(pauseC float64, every time.Duration) (texts []string) {
	if pauseC > lateC {
		texts = append(texts, fmt.Sprintf("a pause at %g C may come too late: machines of this kind have turned themselves off at 91.2 C, and at 94 to 98 C; 88:84 leaves a margin", pauseC))
	}
	if every > slowEvery {
		texts = append(texts, fmt.Sprintf("with a reading every %s, two of which must agree, a pause comes up to %s after the machine got hot: set --telemetry-interval to 1s", shortly(every), shortly(2*every)))
	}
	return texts
}

// Uncounted says that a command asks for a process for each device without saying how
// many: torchrun --nproc_per_node gpu, accelerate launch --multi_gpu.
func Uncounted(argv []string) bool {
	words := strings.Fields(strings.NewReplacer("=", " ", "'", " ", `"`, " ").Replace(strings.Join(argv, " ")))
	for i, w := range words {
		switch strings.ReplaceAll(w, "_", "-") {
		case "--multi-gpu":
			return true
		case "--nproc-per-node":
			if i+1 < len(words) && (words[i+1] == "gpu" || words[i+1] == "auto") {
				return true
			}
		}
	}
	return false
}

// Timeouts warns of a pause that ends a job of several processes; empty for one process,
// and for a pause that such a job bears. procs counts them on this machine, nodes the
// machines, 0 for not told; uncounted is one process for each device, as Uncounted finds.
func Timeouts(procs, nodes int, uncounted bool, most time.Duration) string {
	var who string
	switch {
	case most < collective:
		return ""
	case nodes > 1:
		who = fmt.Sprintf("the %d machines of this command wait for each other, and only this one is paused", nodes)
	case procs > 1:
		who = fmt.Sprintf("the %d processes of this command wait for each other", procs)
	case procs == 0 && uncounted:
		who = "this command starts a process for each GPU, and several wait for each other"
	default:
		return ""
	}
	return who + fmt.Sprintf("; PyTorch ends a collective after 10 minutes with NCCL (others after 30), and a pause of %s counts in: raise the timeout of the job (init_process_group timeout, --ddp_timeout) above it, or set --max-pause below 9m", shortly(most))
}

// shortly is a duration without its zero units: 10m, not 10m0s.
func shortly(d time.Duration) string {
	d = d.Round(time.Second)
	switch {
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}
