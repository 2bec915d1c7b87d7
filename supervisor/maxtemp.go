package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/proctree"
	"sparkrun/internal/sample"
	"sparkrun/supervisor/acting"
	"sparkrun/supervisor/holder"
)

const (
	// pauseLook is how often a paused tree is looked at: somebody else may have woken or
	// ended it, and samples may stay away.
	pauseLook = time.Second
	// holderMore is how much longer than the longest pause the holder waits before it
	// wakes the tree by itself: we tell why, it cannot.
	holderMore = 10 * time.Second
	// holderLate is how long the holder may take to wake the tree before that is done
	// without it.
	holderLate = time.Second
	// treeFirst and treeAgain are when the tree is looked at before any heat: whether it
	// could be paused. What a script starts is not known from its command.
	treeFirst, treeAgain = 2 * time.Second, time.Minute
)

// maxTemp is the actor of --max-temp. Its goroutine alone decides and speaks with the
// holder, so that neither the sampler nor the loop ever waits for a pause.
type maxTemp struct {
	r       *run
	rule    acting.PauseRule
	clients acting.Clients
	heat    chan acting.Heat // the newest look, for the goroutine
	quit    context.CancelFunc
	done    chan struct{}
	// paused is whether the tree stands still by our doing, its clocks not yet set right
	// again included.
	paused atomic.Bool

	// These are the goroutine's own.
	state    acting.PauseState
	last     acting.Heat
	att      *attempt
	began    time.Time // of the pause
	toldFail bool      // that this attempt was not paused
	toldTree bool      // that this run's tree cannot be paused
	treeAt   time.Duration
	woke     []proctree.Proc // those that another program has woken
	waker    *holder.Waker   // nil outside of a pause

	mu   sync.Mutex
	past map[int]pauseSum // by attempt
}

// pauseSum is what an attempt was paused in all.
type pauseSum struct {
	n int
	d time.Duration
}

// newMaxTemp makes the actor of --max-temp.
func (r *run) newMaxTemp(life context.Context) actor {
	h := r.o.Heat
	if h.PauseC <= 0 {
		return nil
	}
	warn := func(text string) {
		r.log.Event(event.Event{Kind: event.Hygiene, Level: event.Warn, Msg: text, Data: map[string]any{"pause_c": h.PauseC, "resume_c": h.ResumeC, "max_pause_s": h.MaxPause.Seconds()}})
	}
	if r.asked.Container != nil {
		// The work is no child of the holder, and a frozen one would need somebody to
		// thaw it when we die.
		warn("--max-temp does nothing in this run: a command in a container is not paused; run sparkrun inside of the container")
		return nil
	}
	clients, err := acting.LoadClients()
	if err != nil { // a broken binary: what a pause would not stop is not known
		warn("--max-temp does nothing in this run: " + err.Error())
		return nil
	}
	texts := acting.Late(h.PauseC, r.o.TelemetryInterval)
	if text := acting.Timeouts(r.asked.Procs, r.asked.Nodes, acting.Uncounted(r.asked.Argv), h.MaxPause); text != "" {
		texts = append(texts, text)
	}
	for _, text := range texts {
		warn("--max-temp: " + text)
	}
	ctx, quit := context.WithCancel(life)
	m := &maxTemp{
		r: r, clients: clients, quit: quit, done: make(chan struct{}), heat: make(chan acting.Heat, 1), past: map[int]pauseSum{},
		rule: acting.PauseRule{PauseC: h.PauseC, ResumeC: h.ResumeC, Max: h.MaxPause, DieBelowC: float64(r.heat.Hot.DieBelowC)},
	}
	go m.loop(ctx)
	return m
}

// theMaxTemp is the actor, nil in a run without.
func (r *run) theMaxTemp() *maxTemp {
	for _, a := range r.actors {
		if m, ok := a.(*maxTemp); ok {
			return m
		}
	}
	return nil
}

// pausedNow says whether the command stands still because we have paused it. What
// measures silence stops its clock for so long.
func (r *run) pausedNow() bool {
	m := r.theMaxTemp()
	return m != nil && m.paused.Load()
}

// pausesOf is how often an attempt was paused, and for how many seconds in all.
func (r *run) pausesOf(attempt int) (n int, s float64) {
	m := r.theMaxTemp()
	if m == nil {
		return 0, 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.past[attempt]
	return p.n, p.d.Seconds()
}

func (m *maxTemp) sampled(s *sample.Sample, _ []event.Event) {
	h := acting.Heat{T: s.Mono, At: s.GPU.T, Zone: s.ZoneMaxC, Die: s.TempC}
	select {
	case <-m.heat: // it is behind, and the newest look is the one that counts
	default:
	}
	select {
	case m.heat <- h:
	default:
	}
}

func (m *maxTemp) stop() {
	m.quit()
	<-m.done
}

func (m *maxTemp) loop(ctx context.Context) {
	defer close(m.done)
	var lookAt time.Time // an instant: readings that come more often must not put it off
	for {
		var look <-chan time.Time
		switch {
		case !m.state.Paused:
			lookAt = time.Time{}
		case lookAt.IsZero():
			lookAt = time.Now().Add(clock.Beat(pauseLook))
			fallthrough
		default:
			look = time.After(time.Until(lookAt))
		}
		select {
		case <-ctx.Done():
			if m.state.Paused {
				m.goOn(acting.WhyEnds)
			}
			return
		case h := <-m.heat:
			m.judge(h)
		case <-look:
			lookAt = time.Time{}
			m.look()
		}
	}
}

// judge takes one look at the temperatures.
func (m *maxTemp) judge(h acting.Heat) {
	m.last = h
	if a := m.r.live.Load(); a != m.att {
		if m.state.Paused {
			m.over(acting.WhyEnds, nil)
		}
		m.att, m.toldFail, m.state, m.treeAt = a, false, m.state.ForAttempt(), h.T+treeFirst
	}
	if m.att == nil || m.att.exit.Load() != nil || m.att.asked.Load() > 0 {
		if m.state.Paused {
			m.goOn(acting.WhyEnds)
		}
		return
	}
	m.foresee(h)
	var act acting.PauseAct
	before := m.state
	m.state, act = m.rule.Next(m.state, h)
	switch act.Do {
	case acting.Pause:
		m.pause(h)
	case acting.Continue:
		after := m.state
		m.state = before // with what the pause began at
		m.goOn(act.Why)
		m.state = after
	case acting.TellBlind:
		m.r.log.Event(event.Event{
			Attempt: m.att.n, Kind: event.SensorAbsent, Level: event.Warn,
			Msg: fmt.Sprintf("--max-temp does nothing so far: it needs the temperature of a thermal zone (%s) and of the GPU (%s) at the same time", degrees(h.Zone), degrees(h.Die)),
		})
	}
}

// foresee tells once that the tree cannot be paused, before it gets hot.
func (m *maxTemp) foresee(h acting.Heat) {
	if m.state.Paused || m.toldTree || m.toldFail || m.att.client == nil || h.T < m.treeAt {
		return
	}
	m.treeAt = h.T + treeAgain
	why := m.cannot()
	if why == "" {
		return
	}
	m.toldTree = true
	m.r.log.Event(event.Event{Attempt: m.att.n, Kind: event.Hygiene, Level: event.Warn, Msg: "--max-temp does nothing as long as this is so: " + why, Data: m.data(h)})
}

// cannot says why a pause would not take hold, "" where nothing speaks against it.
func (m *maxTemp) cannot() string {
	st, err := m.att.client.Status()
	if err != nil {
		return "" // the holder says so itself
	}
	for _, p := range st.Tree {
		if p.State == 'Z' || p.State == 'X' {
			continue
		}
		if what := m.clients.Elsewhere(argvOf(p.PID), m.r.asked.Nodes); what != "" {
			return fmt.Sprintf("%s (pid %d) only waits for work that is no child of the command and would go on (inside of the container, or where the work is, --max-temp works)", what, p.PID)
		}
		if p.State != 'T' && errors.Is(unix.Kill(p.PID, 0), unix.EPERM) {
			return fmt.Sprintf("%s (pid %d) belongs to another user and cannot be stopped; where sudo starts it, start sparkrun with sudo instead", p.Comm, p.PID)
		}
	}
	return ""
}

// argvOf is what a process was started with; nil where that is not to be seen.
func argvOf(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
}

// pause stops the tree.
func (m *maxTemp) pause(h acting.Heat) {
	a := m.att
	err := errors.New("there is no socket to the holder")
	if a.client != nil {
		if why := m.cannot(); why != "" {
			err = errors.New(why)
		} else if err = a.client.PauseFor(m.rule.Max + holderMore); err != nil && !errors.Is(err, holder.ErrLost) {
			_ = a.client.Continue() // it may have come through all the same
		}
	}
	now := m.r.clk.Now()
	if err != nil {
		m.state = m.state.Failed(h.T)
		if a.exit.Load() == nil && a.asked.Load() == 0 && !m.toldFail {
			m.toldFail = true
			m.r.log.Event(event.Event{
				Attempt: a.n, Kind: event.Internal, Level: event.Warn,
				Msg:  fmt.Sprintf("the command is not paused although the hottest zone has %s (GPU %s): %v", degrees(h.Zone), degrees(h.Die), err),
				Data: m.data(h),
			})
		}
		return
	}
	m.startWaker()
	// Only now: the clocks stand still for a pause that is one.
	m.paused.Store(true)
	m.tellPace(true)
	m.began = now
	m.mu.Lock()
	p := m.past[a.n]
	p.n++
	m.past[a.n] = p
	m.mu.Unlock()
	m.r.log.Event(event.Event{
		T: now, Attempt: a.n, Kind: event.Pause, Level: event.Warn,
		Msg:  fmt.Sprintf("paused: the hottest zone has %s, the GPU %s; it goes on at %g C, after %s at the latest", degrees(h.Zone), degrees(h.Die), m.rule.ResumeC, human(m.rule.Max)),
		Data: m.data(h),
	})
}

// startWaker sees to it that the tree does not stand still for ever when we and the holder
// die together. A pause without it is as good as long as one of us lives.
func (m *maxTemp) startWaker() {
	st, err := m.att.client.Status()
	if err == nil {
		m.waker, err = holder.StartWaker(st, m.rule.Max+holderMore)
	}
	if err != nil {
		m.r.diag.Warn("a pause without a waker", "err", err)
	}
}

// look sees whether a pause still is one.
func (m *maxTemp) look() {
	a := m.att
	if a.exit.Load() != nil || a.asked.Load() > 0 || m.r.live.Load() != a {
		m.goOn(acting.WhyEnds)
		return
	}
	st, err := a.client.Status()
	switch {
	case errors.Is(err, holder.ErrLost):
		m.over(acting.WhyOther, err)
	case err == nil && !st.Paused && st.Stopping == "":
		m.over(acting.WhyOther, nil)
	case err == nil && !st.Paused:
		m.over(acting.WhyEnds, nil)
	case err == nil && len(st.Awake) > 0:
		m.woke = st.Awake
		m.goOn(acting.WhyOther) // the others as well
	default:
		h := m.last
		if err != nil { // the holder hangs, and what came meanwhile is judged before it is asked again
			select {
			case h = <-m.heat:
				m.judge(h)
			default:
			}
			if !m.state.Paused {
				return
			}
		}
		h.T = m.r.clk.Mono(m.r.clk.Now())
		if h.T-m.state.Since >= m.rule.Max {
			m.judge(h)
		}
	}
}

// goOn wakes the tree.
func (m *maxTemp) goOn(why string) {
	var err error
	if a := m.att; a.exit.Load() == nil && a.client != nil {
		if m.waker != nil { // one that hangs takes ten seconds to fail
			defer time.AfterFunc(holderLate, m.waker.Wake).Stop()
		}
		// Also where it ends: the holder wakes what it signals, and twice does no harm.
		err = a.client.Continue()
	}
	m.over(why, err)
}

// over keeps account of a pause that has ended.
func (m *maxTemp) over(why string, failed error) {
	a, began := m.att, m.began
	now := m.r.clk.Now()
	without := m.waker != nil && failed != nil // the tree is woken without the holder
	if m.waker != nil {
		if without {
			m.waker.Wake()
		} else {
			m.waker.Release()
		}
		m.waker = nil
	}
	begin := m.state.Begin
	again := false
	if m.state = m.state.Over(); why == acting.WhyOther {
		m.state, again = m.state.Woken(m.r.clk.Mono(now))
	}
	woke := m.woke
	m.woke = nil
	took := now.Sub(began)
	m.mu.Lock()
	p := m.past[a.n]
	p.d += took
	m.past[a.n] = p
	m.mu.Unlock()
	a.quiet.resumed(began, now)
	m.tellPace(false)
	m.paused.Store(false)

	h := m.last
	data := m.data(h)
	data["why"], data["paused_s"], data["began_temp_zone_max_c"], data["began_temp_gpu_c"] = why, took.Seconds(), begin.Zone, begin.Die
	data["pauses"], data["paused_total_s"] = p.n, p.d.Seconds()
	level := event.Warn
	var text string
	switch why {
	case acting.WhyCool:
		level, text = event.Info, "goes on at "+degrees(h.Zone)
	case acting.WhyLimit:
		text = fmt.Sprintf("goes on although the hottest zone still has %s: the pause did not help, so something else heats the machine (or nothing cools it: airflow, fan, room); no other pause for %s unless it comes down to %g C", degrees(h.Zone), human(m.rule.Max), m.rule.ResumeC)
	case acting.WhySensor:
		text = fmt.Sprintf("goes on since a sensor does not answer any more (zone %s, GPU %s)", degrees(h.Zone), degrees(h.Die))
	case acting.WhyEnds:
		level, text = event.Info, "the pause is over since the attempt ends"
	default:
		text = "the holder or another program has continued the command"
		if len(woke) > 0 {
			text = fmt.Sprintf("another program has woken %s (pid %d)", woke[0].Comm, woke[0].PID)
			if len(woke) > 1 {
				text += fmt.Sprintf(" and %d more", len(woke)-1)
			}
			data["awake"] = woke[0].PID
		}
		if again {
			text += ", and not for the first time: no other pause for a minute"
		}
	}
	msg := fmt.Sprintf("%s, after %s of pause", text, human(took))
	if failed != nil && a.exit.Load() == nil && !errors.Is(failed, holder.ErrLost) {
		level = event.Error
		how := fmt.Sprintf("and wakes the command by itself %s after the pause began", human(m.rule.Max+holderMore))
		if without {
			how = "and the command was woken without it"
		}
		msg += fmt.Sprintf("; the holder did not take the order (%v) %s", failed, how)
	}
	m.r.log.Event(event.Event{T: now, Attempt: a.n, Kind: event.Continue, Level: level, Msg: msg, Data: data})
}

// tellPace tells the detector that steps stand still, or go on.
func (m *maxTemp) tellPace(paused bool) {
	m.r.mu.Lock()
	defer m.r.mu.Unlock()
	m.r.detector.Paused(paused)
}

func (m *maxTemp) data(h acting.Heat) map[string]any {
	return map[string]any{
		"temp_zone_max_c": h.Zone, "temp_gpu_c": h.Die,
		"pause_c": m.rule.PauseC, "resume_c": m.rule.ResumeC, "max_pause_s": m.rule.Max.Seconds(),
	}
}

// degrees is a temperature in words.
func degrees(n sample.Num) string {
	if !n.OK {
		return "unknown"
	}
	return fmt.Sprintf("%.1f C", n.V)
}
