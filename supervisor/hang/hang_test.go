package hang

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/sample"
)

func table(t testing.TB) Config {
	t.Helper()
	c, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// trained is an attempt that computed for two hours and has done 100 steps of 12 s.
func trained() Look {
	return Look{
		At: 2 * time.Hour, Boot: 30 * time.Hour, Age: 2 * time.Hour,
		Step: 100, Stepped: true, Median: 12 * time.Second, Printed: 5000, Tree: true,
		Work: Usage{CPU: time.Hour, Disk: Bytes{1 << 30, true}}, Reports: Usage{Disk: Bytes{1 << 20, true}},
		Sockets: Bytes{1000, true}, Inner: Bytes{1000, true}, Told: Bytes{1000, true}, Net: Bytes{1 << 30, true},
		GPUPct: sample.Known(0),
	}
}

// play feeds looks, one each ten seconds, made from the look before by change, and
// returns the states in order without repetition and the last verdict.
func play(t testing.TB, given time.Duration, first Look, lasting time.Duration, change func(n int, l *Look)) ([]State, Verdict) {
	t.Helper()
	w := New(table(t), given)
	l, every := first, Every(given)
	var states []State
	var v Verdict
	for n := 0; n <= int(lasting/every); n++ {
		if n > 0 {
			l.At, l.Boot, l.Age = l.At+every, l.Boot+every, l.Age+every
		}
		if change != nil {
			change(n, &l)
		}
		v = w.Look(l)
		if len(states) == 0 || states[len(states)-1] != v.State {
			states = append(states, v.State)
		}
	}
	return states, v
}

func TestWhatIsAHang(t *testing.T) {
	t.Parallel()
	with := func(change func(*Look)) Look {
		l := trained()
		change(&l)
		return l
	}
	local := func(talk Talk) Look {
		return with(func(l *Look) { l.Local, l.Received, l.Polled = talk, Bytes{7, true}, Bytes{9, true} })
	}
	for name, c := range map[string]struct {
		given  time.Duration
		first  Look
		change func(n int, l *Look)
		for_   time.Duration
		want   []State
	}{
		"nothing moves":                    {first: trained(), for_: 31 * time.Minute, want: []State{Moves, Hung}},
		"not long enough":                  {first: trained(), for_: 29 * time.Minute, want: []State{Moves}},
		"long steps have a longer limit":   {first: with(func(l *Look) { l.Median = 10 * time.Minute }), for_: 99 * time.Minute, want: []State{Moves}},
		"and hang in the end":              {first: with(func(l *Look) { l.Median = 10 * time.Minute }), for_: 101 * time.Minute, want: []State{Moves, Hung}},
		"the user's own limit":             {given: 5 * time.Minute, first: with(func(l *Look) { l.Median = 10 * time.Minute }), for_: 6 * time.Minute, want: []State{Moves, Hung}},
		"no step time is known":            {first: with(func(l *Look) { l.Median = 0 }), for_: 3 * time.Hour, want: []State{Moves, Warned}},
		"before the first step":            {first: with(func(l *Look) { l.Stepped, l.Step, l.Median = false, 0, 0 }), for_: 46 * time.Minute, want: []State{Moves, Warned}},
		"before the first step, 44 min":    {first: with(func(l *Look) { l.Stepped, l.Step, l.Median = false, 0, 0 }), for_: 44 * time.Minute, want: []State{Moves}},
		"the user's limit and no step yet": {given: time.Minute, first: with(func(l *Look) { l.Stepped, l.Step = false, 0 }), for_: 44 * time.Minute, want: []State{Moves}},
		"past the last step":               {first: with(func(l *Look) { l.Over = true }), for_: 9 * time.Hour, want: []State{Moves, Over}},
		"stopped":                          {first: with(func(l *Look) { l.Stopped = true }), for_: 9 * time.Hour, want: []State{Moves, Paused}},
		"the client of another machine":    {first: with(func(l *Look) { l.Work.CPU = 2 * time.Second }), for_: 9 * time.Hour, want: []State{Moves, Elsewhere}},
		"no GPU in the machine":            {first: with(func(l *Look) { l.NoGPU, l.GPUPct = true, sample.Num{} }), for_: 31 * time.Minute, want: []State{Moves, Hung}},
		"the GPU cannot be read":           {first: with(func(l *Look) { l.GPUPct = sample.Num{} }), for_: 31 * time.Minute, want: []State{Moves, Blind}},
		"the tree is unknown":              {first: with(func(l *Look) { l.Tree = false }), for_: 31 * time.Minute, want: []State{Moves, Blind}},
		"the bytes are hidden":             {first: with(func(l *Look) { l.Work.Disk.OK = false }), for_: 31 * time.Minute, want: []State{Moves, Blind}},
		"the reporter's bytes are hidden":  {first: with(func(l *Look) { l.Reports.Disk.OK = false }), for_: 31 * time.Minute, want: []State{Moves, Blind}},
		"the connections are hidden":       {first: with(func(l *Look) { l.Sockets.OK = false }), for_: 31 * time.Minute, want: []State{Moves, Blind}},
		"shared interfaces are unknown":    {first: with(func(l *Look) { l.Shared, l.Net.OK = true, false }), for_: 31 * time.Minute, want: []State{Moves, Blind}},
		"unknown for half of the time":     {first: trained(), for_: 31 * time.Minute, change: func(n int, l *Look) { l.GPUPct.OK = n%2 == 0 }, want: []State{Moves, Blind}},
		"a reading is lost now and then":   {first: trained(), for_: 31 * time.Minute, change: func(n int, l *Look) { l.GPUPct.OK = n%60 != 7 }, want: []State{Moves, Hung}},

		"a figure is lost now and then": {first: trained(), for_: 31 * time.Minute, change: func(n int, l *Look) {
			if l.Work.Disk = trained().Work.Disk; n%60 == 7 {
				l.Work.Disk = Bytes{}
			}
			if l.Sockets = trained().Sockets; n%60 == 8 {
				l.Sockets = Bytes{}
			}
		}, want: []State{Moves, Hung}},
		"it moved while it could not be seen": {first: trained(), for_: 31 * time.Minute, change: func(n int, l *Look) {
			if l.Work.Disk = trained().Work.Disk; n == 100 {
				l.Work.Disk = Bytes{}
			} else if n > 100 {
				l.Work.Disk.N++
			}
		}, want: []State{Moves}},

		"a GPU that computes":             {first: with(func(l *Look) { l.GPUPct = sample.Known(5) }), for_: 9 * time.Hour, want: []State{Moves}},
		"ranks that spin":                 {first: with(func(l *Look) { l.GPUPct = sample.Known(100) }), for_: 9 * time.Hour, want: []State{Moves}},
		"one percent of a core":           {first: trained(), for_: 9 * time.Hour, change: func(_ int, l *Look) { l.Work.CPU += 110 * time.Millisecond }, want: []State{Moves}},
		"half a percent of a core":        {first: trained(), for_: 31 * time.Minute, change: func(_ int, l *Look) { l.Work.CPU += 50 * time.Millisecond }, want: []State{Moves, Hung}},
		"two percent now and then":        {first: trained(), for_: 9 * time.Hour, change: func(n int, l *Look) { l.Work.CPU += time.Duration(n%90/89) * 200 * time.Millisecond }, want: []State{Moves}},
		"a byte read every 20 minutes":    {first: trained(), for_: 9 * time.Hour, change: func(n int, l *Look) { l.Work.Disk.N += uint64(n % 120 / 119) }, want: []State{Moves}},
		"a byte received every 20 min":    {first: trained(), for_: 9 * time.Hour, change: func(n int, l *Look) { l.Sockets.N += uint64(n % 120 / 119) }, want: []State{Moves}},
		"output every 20 minutes":         {first: trained(), for_: 9 * time.Hour, change: func(n int, l *Look) { l.Printed += int64(n % 120 / 119) }, want: []State{Moves}},
		"a step every 20 minutes":         {first: trained(), for_: 9 * time.Hour, change: func(n int, l *Look) { l.Step += int64(n % 120 / 119) }, want: []State{Moves}},
		"everybody's network":             {first: trained(), for_: 31 * time.Minute, change: func(_ int, l *Look) { l.Net.N += 10 << 20 }, want: []State{Moves, Hung}},
		"everybody's, and ours may be it": {first: with(func(l *Look) { l.Shared = true }), for_: 9 * time.Hour, change: func(_ int, l *Look) { l.Net.N += 10 << 20 }, want: []State{Moves}},
		"the noise of a network":          {first: with(func(l *Look) { l.Shared = true }), for_: 31 * time.Minute, change: func(_ int, l *Look) { l.Net.N += 3000 }, want: []State{Moves, Hung}},
		"heartbeats of a launcher":        {first: trained(), for_: 31 * time.Minute, change: func(_ int, l *Look) { l.Inner.N += 2000 }, want: []State{Moves, Hung}},
		"processes that exchange much":    {first: trained(), for_: 9 * time.Hour, change: func(_ int, l *Look) { l.Inner.N += 1 << 20 }, want: []State{Moves}},
		"local sockets, unknown":          {first: with(func(l *Look) { l.Local = Outside }), for_: 31 * time.Minute, want: []State{Moves, Blind}},
		"local sockets, silent":           {first: local(Outside), for_: 31 * time.Minute, want: []State{Moves, Hung}},
		"one wake from outside in 20 min": {first: local(Outside), for_: 9 * time.Hour, change: func(n int, l *Look) { l.Received.N += uint64(n % 120 / 119) }, want: []State{Moves}},
		"wakes of a poller, outside":      {first: local(Outside), for_: 31 * time.Minute, change: func(_ int, l *Look) { l.Polled.N++ }, want: []State{Moves, Blind}},
		"a message a minute, to a poller": {first: local(Outside), for_: 9 * time.Hour, change: func(n int, l *Look) { l.Polled.N += uint64(n % 6 / 5) }, want: []State{Moves, Blind}},
		"the last message, to a poller": {first: local(Outside), for_: 82 * time.Minute, change: func(n int, l *Look) {
			if n < 300 {
				l.Polled.N += uint64(n % 6 / 5)
			}
		}, want: []State{Moves, Blind, Hung}},
		"wakes of a poller, nobody there": {first: local(Nobody), for_: 31 * time.Minute, change: func(_ int, l *Look) { l.Polled.N += 1000 }, want: []State{Moves, Hung}},
		"heartbeats inside":               {first: local(Inside), for_: 31 * time.Minute, change: func(_ int, l *Look) { l.Received.N += 20 }, want: []State{Moves, Hung}},
		"talk inside":                     {first: local(Inside), for_: 9 * time.Hour, change: func(_ int, l *Look) { l.Received.N += 200 }, want: []State{Moves}},
		"a slow poller inside":            {first: local(Inside), for_: 31 * time.Minute, change: func(_ int, l *Look) { l.Polled.N += 20 }, want: []State{Moves, Hung}},
		"a fast poller inside":            {first: local(Inside), for_: 31 * time.Minute, change: func(_ int, l *Look) { l.Polled.N += 200 }, want: []State{Moves, Blind}},

		"a reporter that wakes up": {first: trained(), for_: 31 * time.Minute, change: func(_ int, l *Look) {
			l.Reports.CPU += 200 * time.Millisecond
			l.Reports.Disk.N += 100 << 10
		}, want: []State{Moves, Hung}},
		"a reporter that uploads":  {first: trained(), for_: 9 * time.Hour, change: func(_ int, l *Look) { l.Reports.Disk.N += 10 << 20 }, want: []State{Moves}},
		"a reporter that sends":    {first: trained(), for_: 9 * time.Hour, change: func(_ int, l *Look) { l.Told.N += 30 << 10 }, want: []State{Moves}},
		"a reporter's posts":       {first: trained(), for_: 31 * time.Minute, change: func(_ int, l *Look) { l.Told.N += 5 << 10 }, want: []State{Moves, Hung}},
		"a reporter that packs up": {first: trained(), for_: 9 * time.Hour, change: func(_ int, l *Look) { l.Reports.CPU += 3 * time.Second }, want: []State{Moves}},
		"an account begins anew":   {first: trained(), for_: 29 * time.Minute, change: func(n int, l *Look) { l.Work.Disk.N = uint64(1000 - n) }, want: []State{Moves}},
		"the CPU's account begins anew": {first: trained(), for_: 31 * time.Minute, change: func(n int, l *Look) {
			if n == 100 {
				l.Work.CPU = 0
			}
		}, want: []State{Moves}},
		"a pause in between": {first: trained(), for_: 50 * time.Minute, change: func(n int, l *Look) {
			l.Stopped = n >= 120 && n < 126
		}, want: []State{Moves, Paused, Moves}},
		"goes on, and is silent again": {first: trained(), for_: 62 * time.Minute, change: func(n int, l *Look) {
			if n == 182 {
				l.Printed++
			}
		}, want: []State{Moves, Hung, Moves, Hung}},
		"suspended in between": {first: trained(), for_: 40 * time.Minute, change: func(n int, l *Look) {
			if n == 100 {
				l.Boot += 8 * time.Hour
			}
		}, want: []State{Moves}},
		"we were stopped ourselves": {first: trained(), for_: 20 * time.Minute, change: func(n int, l *Look) {
			if n == 50 {
				l.At, l.Boot = l.At+8*time.Hour, l.Boot+8*time.Hour
			}
		}, want: []State{Moves}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, v := play(t, c.given, c.first, c.for_, c.change)
			if len(got) != len(c.want) {
				t.Fatalf("states %v, want %v (%+v)", got, c.want, v)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Fatalf("states %v, want %v (%+v)", got, c.want, v)
				}
			}
		})
	}
}

// TestShortLimit: with a limit of seconds a tick of the CPU's account is no work, and
// computing is.
func TestShortLimit(t *testing.T) {
	t.Parallel()
	one, _ := play(t, 3*time.Second, trained(), 4*time.Second, func(n int, l *Look) {
		if n == 5 {
			l.Work.CPU += tick
		}
	})
	if one[len(one)-1] != Hung {
		t.Errorf("one tick: %v", one)
	}
	all, _ := play(t, 3*time.Second, trained(), time.Minute, func(_ int, l *Look) { l.Work.CPU += tick })
	if len(all) != 1 || all[0] != Moves {
		t.Errorf("a tick at each look: %v", all)
	}
}

// TestNeverWithASignOfLife: whatever the looks are, nobody is called hung in whose last
// limit's time something moved, was unknown, stopped, or over.
func TestNeverWithASignOfLife(t *testing.T) {
	t.Parallel()
	cfg := table(t)
	rapid.Check(t, func(t *rapid.T) {
		given := time.Duration(rapid.IntRange(0, 40).Draw(t, "given")) * time.Minute
		w := New(cfg, given)
		l := trained()
		l.Stepped = rapid.Bool().Draw(t, "stepped")
		var last time.Duration // of a sign of life, or of something unknown
		for range rapid.IntRange(1, 500).Draw(t, "looks") {
			dt := time.Duration(rapid.IntRange(1, 60).Draw(t, "dt")) * time.Second
			l.At, l.Boot, l.Age = l.At+dt, l.Boot+dt, l.Age+dt
			l.GPUPct, l.Stopped, l.Tree, l.Work.Disk.OK = sample.Known(0), false, true, true
			switch rapid.IntRange(0, 400).Draw(t, "what") {
			case 0:
				l.Printed++
			case 1:
				l.Work.CPU += dt / 50
			case 2:
				l.Work.Disk.N++
			case 3:
				l.Sockets.N++
			case 4:
				l.GPUPct = sample.Known(50)
			case 5:
				l.Stopped = true
			case 6:
				l.Step++
			default:
				goto still
			}
			last = l.At
		still:
			v := w.Look(l)
			limit, ends := cfg.Limit(given, l.Median, l.Stepped)
			if v.State == Hung && (!ends || l.At-last < limit || v.Still < limit) {
				t.Fatalf("hung %s after a sign of life, limit %s (%+v)", l.At-last, limit, v)
			}
		}
	})
}

// TestMovesWithoutConnections: a look that has a sign of life already is told from one for
// which the connections have to be looked at.
func TestMovesWithoutConnections(t *testing.T) {
	t.Parallel()
	w := New(table(t), 0)
	l := trained()
	if w.Moves(l) {
		t.Error("the first look")
	}
	w.Look(l)
	l.At, l.Boot = l.At+10*time.Second, l.Boot+10*time.Second
	bare := l
	bare.Sockets, bare.Inner, bare.Told, bare.Net = Bytes{}, Bytes{}, Bytes{}, Bytes{}
	if w.Moves(bare) {
		t.Error("nothing moved")
	}
	bare.Work.CPU += time.Second
	if !w.Moves(bare) {
		t.Error("it computes")
	}
	if v := w.Look(bare); v.Moved != "its processes compute" {
		t.Errorf("%+v", v)
	}
	// What the connections had carried before is not taken for news.
	l.Work = bare.Work
	l.At, l.Boot = l.At+10*time.Second, l.Boot+10*time.Second
	if v := w.Look(l); v.Moved != "" || v.Still == 0 {
		t.Errorf("%+v", v)
	}
}

// TestWords: what is told names each figure and never a number that is not known.
func TestWords(t *testing.T) {
	t.Parallel()
	_, v := play(t, 0, trained(), 31*time.Minute, func(_ int, l *Look) { l.GPUPct = sample.Known(3) })
	if got := v.Words(); !strings.Contains(got, "for 31 min neither") || !strings.Contains(got, "GPU at 3 %") || !strings.Contains(got, "0.0 % of one core") || !strings.Contains(got, "limit is 30 min") {
		t.Error(got)
	}
	first := trained()
	first.NoGPU, first.GPUPct = true, sample.Num{}
	_, v = play(t, 0, first, 31*time.Minute, nil)
	if got := v.Words(); strings.Contains(got, "GPU at") {
		t.Error(got)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	good := table(t)
	for key, spoil := range map[string]func(*Config){
		"floor_s":         func(c *Config) { c.FloorS = 0 },
		"cpu_share":       func(c *Config) { c.CPUShare = 1 },
		"reporters.bps":   func(c *Config) { c.Reporters.BPS = -1 },
		"steps":           func(c *Config) { c.Steps = 0 },
		"worked_share is": func(c *Config) { c.WorkedShare = 2 },
	} {
		c := good
		spoil(&c)
		if err := c.check("x.yaml"); err == nil || !strings.Contains(err.Error(), "x.yaml: "+key) {
			t.Errorf("%s: %v", key, err)
		}
	}
	if !good.Reporter("wandb-core") || good.Reporter("python3") {
		t.Error("who reports")
	}
	if !good.Poller("cuda-EvtHandlr") || !good.Poller("pt_nccl_watchdg") || good.Poller("python3") || good.Poller("pt_main_thread") {
		t.Error("who polls")
	}
	for given, want := range map[time.Duration]time.Duration{0: 10 * time.Second, time.Second: 200 * time.Millisecond, 3 * time.Second: 300 * time.Millisecond, time.Hour: 10 * time.Second} {
		if got := Every(given); got != want {
			t.Errorf("every for %s: %s", given, got)
		}
	}
}
