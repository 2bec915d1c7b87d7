package supervisor

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/sampler/energy"
	"sparkrun/sampler/throttle"
	"sparkrun/supervisor/holder"
	"sparkrun/supervisor/runlog"
)

func newAccount() *account {
	return &account{
		meter: energy.New(energyGap), hottest: map[int]sample.Num{}, heat: map[int]runlog.Heat{},
		causes: map[int]map[string]map[string]float64{},
	}
}

// TestHeatIsOfItsAttempt: the detector counts through the run; each attempt has its own part,
// and the steps that each lost are in its own pace.
func TestHeatIsOfItsAttempt(t *testing.T) {
	t.Parallel()
	k := sample.Known
	summary := func(observed, share float64, lost, base sample.Num, types map[string]throttle.TypeSummary) throttle.Summary {
		return throttle.Summary{ObservedS: observed, ThrottledShare: k(share), LostS: lost, Pace: throttle.PaceSummary{BaselineS: base}, ByType: types}
	}
	thermal := throttle.TypeSummary{Episodes: 1, Seconds: 60, ThrottledS: 50, LostS: k(20), LostSteps: k(10), Pulses: 4}
	slow := throttle.TypeSummary{Episodes: 1, Seconds: 100, LostS: k(30), LostSteps: k(15)}

	a := newAccount()
	a.attemptAt(0, summary(10, 0, sample.Num{}, sample.Num{}, nil))
	a.attemptAt(1, summary(10, 0, sample.Num{}, sample.Num{}, nil))
	a.attemptAt(1, summary(500, 0.1, k(20), k(2), map[string]throttle.TypeSummary{"thermal-throttle": thermal, "slowdown": slow}))
	// The next one's first sample: the slowdown is closed, and a wedge of the new attempt begins.
	late := slow
	late.Seconds, late.LostS = 110, k(33)
	a.told(event.Event{Attempt: 1, Kind: event.ThrottleEnd, Data: map[string]any{"type": "slowdown", "cause": "thermal-throttle", "lost_s": 33.0}})
	a.attemptAt(2, summary(501, 0.1, k(20), sample.Num{}, map[string]throttle.TypeSummary{
		"thermal-throttle": thermal, "slowdown": late, "power-wedge": {Episodes: 1},
	}))
	end := summary(1000, 0.2, k(120), k(50), map[string]throttle.TypeSummary{
		"thermal-throttle": thermal, "slowdown": late, "power-wedge": {Episodes: 1, Seconds: 150, ThrottledS: 150, LostS: k(100), LostSteps: k(2)},
	})
	end.Pace.Compared = throttle.ComparedNone
	a.finished(end)
	a.hottest[1], a.hottest[2] = k(84), k(60)

	one, _ := a.attempt(1)
	if diff := cmp.Diff(&runlog.Heat{
		HottestC: k(84), ObservedS: k(490), ThrottledS: k(50), ThrottledShare: k(0.10204), LostS: k(20), LostSteps: k(10), BaselineS: k(2),
		Types: map[string]runlog.HeatType{
			"thermal-throttle": {Episodes: 1, Seconds: k(60), ThrottledS: k(50), LostS: k(20), LostSteps: k(10), Pulses: 4},
			"slowdown":         {Episodes: 1, Seconds: k(110), LostS: k(33), LostSteps: k(15), Causes: map[string]float64{"thermal-throttle": 33}},
		},
	}, one); diff != "" {
		t.Errorf("attempt 1 (- wanted, + found):\n%s", diff)
	}
	two, _ := a.attempt(2)
	if diff := cmp.Diff(&runlog.Heat{
		HottestC: k(60), ObservedS: k(500), ThrottledS: k(150), ThrottledShare: k(0.3), LostS: k(100), LostSteps: k(2), BaselineS: k(50), Compared: "no baseline yet",
		Types: map[string]runlog.HeatType{"power-wedge": {Episodes: 1, Seconds: k(150), ThrottledS: k(150), LostS: k(100), LostSteps: k(2)}},
	}, two); diff != "" {
		t.Errorf("attempt 2 (- wanted, + found):\n%s", diff)
	}
	all, _ := a.total()
	if all.LostSteps != k(12) || all.LostS != k(120) || all.ThrottledS != k(200) || all.HottestC != k(84) || len(all.Types) != 3 || all.Types["slowdown"].Causes["thermal-throttle"] != 33 {
		t.Errorf("in all: %+v", all)
	}
}

// TestAccountOfNothing: no readings make no record, and no account no trouble.
func TestAccountOfNothing(t *testing.T) {
	t.Parallel()
	var none *account
	none.finished(throttle.Summary{})
	for _, a := range []*account{none, newAccount()} {
		if h, e := a.attempt(1); h != nil || e != nil {
			t.Errorf("%+v %+v", h, e)
		}
		if h, f := a.total(); h != nil || f.Known() {
			t.Errorf("%+v %+v", h, f)
		}
	}
	a := newAccount()
	a.attemptAt(1, throttle.Summary{})
	a.attemptAt(2, throttle.Summary{})
	if h, _ := a.attempt(1); h != nil {
		t.Errorf("%+v", h)
	}
	for _, e := range []event.Event{
		{Kind: event.ThrottleStart, Data: map[string]any{"type": "slowdown", "cause": "unknown", "lost_s": 3.0}},
		{Kind: event.ThrottleEnd, Data: map[string]any{"type": "hot"}},
		{Kind: event.ThrottleEnd},
	} {
		a.told(e)
	}
	if len(a.causes) != 0 {
		t.Errorf("%v", a.causes)
	}
}

func TestEnergyRecord(t *testing.T) {
	t.Parallel()
	k := sample.Known
	got := runlog.EnergyOf(energy.Figures{
		GPU: energy.Amount{J: k(1234.56789), KnownS: 100, EstimatedS: 40}, Ratio: k(1.41421),
		Steps: 3, StepsJ: 1000, Tokens: 7e6, TokensJ: 1000,
	})
	want := &runlog.Energy{
		GPUJ: k(1234.568), GPUSource: runlog.FromBoth, GPUEstimate: true, GPUKnownS: k(100), GPUFirmwareRatio: k(1.414),
		PerStepJ: k(333.333), PerTokenJ: k(0.00014286),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := runlog.EnergyOf(energy.Figures{Steps: 1, StepsJ: 1}); got != nil {
		t.Errorf("%+v", got)
	}
}

// TestAwaitingAReadingEnds: with the reading, with the patience of whoever ends the run, and
// in time; and where no reading is to be had it does not begin.
func TestAwaitingAReadingEnds(t *testing.T) {
	t.Parallel()
	none, open := make(chan struct{}), make(chan struct{})
	close(none)
	ended := func(ago time.Duration, read bool, tick time.Duration) *account {
		r := &run{clk: clock.Start()}
		r.o.TelemetryInterval = tick
		now := r.clk.Now()
		at := &attempt{n: 1, start: now.Add(-time.Minute), end: now.Add(-ago)}
		at.exit.Store(&holder.Exit{Boot: r.clk.Boot - ago})
		r.live.Store(at)
		a := newAccount()
		a.r = r
		if read {
			s := sample.Sample{T: at.end.Add(-10 * time.Millisecond), Attempt: 1}
			s.EnergyJ, s.PowerW = sample.Known(100), sample.Known(50)
			a.meter.Sample(&s)
		}
		return a
	}
	var nobody *account
	nobody.awaitReading(open)
	for name, a := range map[string]*account{
		"no reading ever": ended(0, false, time.Second), "readings minutes apart": ended(0, true, time.Minute),
		"long over": ended(readingMost, true, time.Second),
	} {
		begun := time.Now()
		a.awaitReading(open)
		if d := time.Since(begun); d > readingMost/2 {
			t.Errorf("%s: waited %v", name, d)
		}
	}
	begun := time.Now()
	ended(0, true, readingMost).awaitReading(none)
	if d := time.Since(begun); d > readingMost/2 {
		t.Errorf("somebody in a hurry waited %v", d)
	}
	// None comes: it waits, and not for ever.
	begun = time.Now()
	a := ended(0, true, 100*time.Millisecond)
	a.awaitReading(open)
	if d := time.Since(begun); d < 300*time.Millisecond {
		t.Errorf("waited only %v for the next reading", d)
	}
	// It comes.
	a, done := ended(0, true, readingMost), make(chan struct{})
	go func() {
		a.awaitReading(open)
		close(done)
	}()
	s := sample.Sample{T: a.r.clk.Now(), Attempt: 1}
	s.EnergyJ, s.PowerW = sample.Known(101), sample.Known(50)
	a.mu.Lock()
	a.follow(a.r.live.Load())
	a.meter.Sample(&s)
	a.mu.Unlock()
	if <-done; time.Since(a.r.clk.Wall) > readingMost*3/4 {
		t.Error("the reading came, and was waited for all the same")
	}
	if _, e := a.attempt(1); e == nil || !e.GPUJ.OK {
		t.Errorf("%+v", e)
	}
}
