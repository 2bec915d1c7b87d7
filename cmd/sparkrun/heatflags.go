package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"sparkrun/supervisor"
)

// longestPause bounds --max-pause: a machine that is too hot for a day is broken.
const longestPause = 24 * time.Hour

// heatFlags are the settings of a run about heat, power, pace and hangs.
type heatFlags struct {
	maxPause                              time.Duration
	maxTemp, onWedge, maxSlowdown, onHang string
	onEvent                               string
	capClocks                             int
	hangRestart                           bool
}

func (f *heatFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.maxTemp, "max-temp", "", "pause the command at this temperature of the machine and go on at a lower one, as 88:84 (C)")
	set.DurationVar(&f.maxPause, "max-pause", 10*time.Minute, "longest pause of --max-temp, 24h at most")
	set.StringVar(&f.onWedge, "on-wedge", "warn", "in the low-power wedge, which only pulling the plug cures: warn, or stop the run")
	set.IntVar(&f.capClocks, "cap-clocks", 0, "lock the GPU's clock to so many MHz when thermal throttling persists (needs root; undone at the end); 0 never")
	set.StringVar(&f.maxSlowdown, "max-slowdown", "", "stop and go on from the checkpoint when a step takes F times as long for MIN minutes, as 1.5:30")
	set.StringVar(&f.onHang, "hang-timeout", "auto", "time without step, output, computing, disk and network before the command is ended: auto (from its own step time, 30 min at least), a time, or never")
	set.BoolVar(&f.hangRestart, "hang-restart", false, "after a hang start once again from the newest checkpoint")
	set.StringVar(&f.onEvent, "on-event", "", "shell command that is given each warning and error, pause, throttle and end as JSON on its standard input")
}

// apply puts the settings into o.
func (f *heatFlags) apply(o *supervisor.Options) error {
	o.OnEvent, o.HangRestart = f.onEvent, f.hangRestart
	h := &o.Heat
	if f.maxTemp != "" {
		pause, resume, ok := strings.Cut(f.maxTemp, ":")
		var err1, err2 error
		h.PauseC, err1 = number(pause)
		h.ResumeC, err2 = number(resume)
		switch {
		case !ok || err1 != nil || err2 != nil:
			return fmt.Errorf("--max-temp %s: two temperatures in C, as 88:84", f.maxTemp)
		case h.PauseC < 50 || h.PauseC > 105:
			return fmt.Errorf("--max-temp %s: a pause at %g C makes no sense; machines of this kind run at 70 to 86 C and have turned themselves off from 91 C on", f.maxTemp, h.PauseC)
		case h.ResumeC > h.PauseC-2 || h.ResumeC < 30:
			return fmt.Errorf("--max-temp %s: it goes on at least 2 C below the pause, and not below 30 C", f.maxTemp)
		}
	}
	if h.MaxPause = f.maxPause; h.MaxPause < time.Second {
		return fmt.Errorf("--max-pause %s: at least 1s", f.maxPause)
	}
	if h.MaxPause > longestPause {
		return fmt.Errorf("--max-pause %s: 24h at most; a pause that does not help in minutes does not help", f.maxPause)
	}
	switch f.onWedge {
	case "warn", "stop":
		h.StopOnWedge = f.onWedge == "stop"
	default:
		return fmt.Errorf("--on-wedge %s: warn or stop", f.onWedge)
	}
	if h.CapClocksMHz = f.capClocks; h.CapClocksMHz != 0 && (h.CapClocksMHz < 600 || h.CapClocksMHz > 2411) {
		return fmt.Errorf("--cap-clocks %d: MHz, 600 to 2411 (0 never)", f.capClocks)
	}
	if f.maxSlowdown != "" {
		factor, minutes, ok := strings.Cut(f.maxSlowdown, ":")
		x, err1 := number(factor)
		m, err2 := number(minutes)
		if !ok || err1 != nil || err2 != nil || x < 1.1 || x > 100 || m <= 0 || m > 7*24*60 {
			return fmt.Errorf("--max-slowdown %s: a factor of 1.1 at least and minutes, as 1.5:30", f.maxSlowdown)
		}
		h.SlowFactor, h.SlowFor = x, time.Duration(m*float64(time.Minute))
	}
	switch f.onHang {
	case "auto":
	case "never", "0":
		o.HangTimeout = -1
	default:
		d, err := time.ParseDuration(f.onHang)
		if err != nil || d < time.Second {
			return fmt.Errorf("--hang-timeout %s: auto, never, or a time of 1s at least, as 45m", f.onHang)
		}
		o.HangTimeout = d
	}
	return nil
}

// number reads a plain positive number.
func number(s string) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err == nil && (math.IsNaN(v) || math.IsInf(v, 0) || v < 0) {
		err = errors.New("no plain number")
	}
	return v, err
}
