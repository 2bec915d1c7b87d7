package throttle

import (
	"fmt"
	"math"

	"go.yaml.in/yaml/v3"

	"sparkrun/configs"
)

// Config holds the thresholds; the built-in ones and the source of each stand
// in configs/thermal.yaml.
type Config struct {
	// GapS is after how many seconds without a known reading pulses that are open end as
	// "unknown" (other types after their QuietS, if that is longer), and what is longer
	// than this between two readings counts for nothing.
	GapS Limit `yaml:"gap_s"`
	// MergeS: signs of one type closer together than this are one episode.
	MergeS Limit `yaml:"merge_s"`
	// Platforms are words of GPU names that PowerCap, PowerWedge and LowCap describe.
	Platforms []string `yaml:"platforms"`
	// OwnCapPart: a clock at this part of our own limit, or above it, is our doing.
	OwnCapPart Limit        `yaml:"own_cap_part"`
	Thermal    ThermalRule  `yaml:"thermal"`
	Signature  SignRule     `yaml:"signature"`
	PowerCap   PowerCapRule `yaml:"power_cap"`
	Wedge      WedgeRule    `yaml:"power_wedge"`
	LowCap     LowCapRule   `yaml:"low_cap"`
	Hot        HotRule      `yaml:"hot"`
	Pace       PaceRule     `yaml:"pace"`

	Slowdown  SlowdownRule  `yaml:"slowdown"`
	SlowStart SlowStartRule `yaml:"slow_start"`
}

// ThermalRule is about the reason bits and counters.
type ThermalRule struct {
	// CounterMS is by how many milliseconds a counter must have advanced.
	CounterMS Limit `yaml:"counter_ms"`
	// WarnShare is the part of the observed time above which it is a warning,
	// judged over at least ShareFloorS seconds.
	WarnShare   Limit `yaml:"warn_share"`
	ShareFloorS Limit `yaml:"share_floor_s"`
	// ReportS is how far apart lines about pulses that go on are.
	ReportS Limit `yaml:"report_s"`
}

// SignRule is the runbook's G4 made testable: power below the attempt's own
// plateau while hot, for long, with the pace down.
type SignRule struct {
	PlateauS  Limit `yaml:"plateau_s"`
	WindowS   Limit `yaml:"window_s"`
	UtilPct   Limit `yaml:"util_pct"`
	PowerDrop Limit `yaml:"power_drop"`
	// ClockDrop is by which part the clock must be below the plateau's: a lower power
	// at the same clock is other work, or work that waits.
	ClockDrop Limit `yaml:"clock_drop"`
	TempC     Limit `yaml:"temp_c"`
	RiseC     Limit `yaml:"rise_c"`
	ForS      Limit `yaml:"for_s"`
}

// PowerCapRule is the plateau at the platform's own limit.
type PowerCapRule struct {
	MinW     Limit `yaml:"min_w"`
	MaxW     Limit `yaml:"max_w"`
	UtilPct  Limit `yaml:"util_pct"`
	ClockMHz Limit `yaml:"clock_mhz"`
	ForS     Limit `yaml:"for_s"`
	QuietS   Limit `yaml:"quiet_s"`
}

// WedgeRule is the low-power wedge.
type WedgeRule struct {
	// In every sample for ForS.
	UtilPct  Limit `yaml:"util_pct"`
	ClockMHz Limit `yaml:"clock_mhz"`
	PowerW   Limit `yaml:"power_w"`
	ForS     Limit `yaml:"for_s"`
	// Or by means over MeanForS: utilisation at MeanUtilPct or more, of which the samples
	// that are themselves as busy are below MeanClockMHz, or below ClockMHz where they
	// are at UtilPct.
	MeanForS     Limit `yaml:"mean_for_s"`
	MeanUtilPct  Limit `yaml:"mean_util_pct"`
	MeanClockMHz Limit `yaml:"mean_clock_mhz"`
	// QuietS is for how long it must not have been seen to be over; being idle proves
	// nothing.
	QuietS Limit `yaml:"quiet_s"`
}

// LowCapRule is a limit below the platform's own.
type LowCapRule struct {
	UtilPct  Limit `yaml:"util_pct"`
	MinW     Limit `yaml:"min_w"`
	MaxW     Limit `yaml:"max_w"`
	ClockMHz Limit `yaml:"clock_mhz"`
	// WindowS is over how long readings are averaged, the busy ones of them if they are
	// this part; ForS how long it must last, pauses not counted.
	WindowS   Limit `yaml:"window_s"`
	BusyShare Limit `yaml:"busy_share"`
	ForS      Limit `yaml:"for_s"`
	// CapW is the firmware's cap of the SoC and SysCapW that of the machine below which
	// it is certain, after CapForS under load. CapUsed is the part of a normal cap in use from which the processors
	// take what the GPU lacks; without that figure, CPUPct how busy they must be.
	CapW    Limit `yaml:"cap_w"`
	SysCapW Limit `yaml:"sys_cap_w"`
	CapForS Limit `yaml:"cap_for_s"`
	CapUsed Limit `yaml:"cap_used"`
	CPUPct  Limit `yaml:"cpu_pct"`
	// QuietS is for how long it must not have been seen to be over.
	QuietS Limit `yaml:"quiet_s"`
}

// HotRule is how hot is too hot.
type HotRule struct {
	// The hottest zone begins it at ZoneC and ends it below ZoneOffC. The die agrees
	// from DieC on and speaks against it where it is DieBelowC cooler, if not three zones
	// are at ZoneOffC or above; another zone agrees from ZoneOffC on.
	ZoneC     Limit `yaml:"zone_c"`
	ZoneOffC  Limit `yaml:"zone_off_c"`
	DieC      Limit `yaml:"die_c"`
	DieBelowC Limit `yaml:"die_below_c"`
	// DieAloneC is enough by itself after DieForS, where no zone speaks against it.
	DieAloneC Limit `yaml:"die_alone_c"`
	DieForS   Limit `yaml:"die_for_s"`
	QuietS    Limit `yaml:"quiet_s"`
}

// PaceRule says when steps count as slower.
type PaceRule struct {
	// Steps is how many step times make a baseline, and Up by which part a step
	// must be slower than it.
	Steps Limit `yaml:"steps"`
	Up    Limit `yaml:"up"`
}

// SlowdownRule says when a training has become slower than it was, and by which
// signs the likely cause is told.
type SlowdownRule struct {
	// A block is what is judged: steps over at least WindowS seconds, Steps steps
	// and three of their times as printed.
	WindowS Limit `yaml:"window_s"`
	Steps   Limit `yaml:"steps"`
	// Sigmas: a block counts as slow only above so many standard deviations of the
	// attempt's own blocks, and above PaceRule.Up and half as many.
	Sigmas Limit `yaml:"sigmas"`
	// QuietS is for how long the pace must be back before it is over.
	QuietS Limit `yaml:"quiet_s"`

	// PSIMemPct is the memory pressure (some, 10 s average) in percent, SwapPagesS
	// pages a second to and from swap, MemLowShare the part of the memory left, from
	// which memory is short.
	PSIMemPct   Limit `yaml:"psi_mem_pct"`
	SwapPagesS  Limit `yaml:"swap_pages_s"`
	MemLowShare Limit `yaml:"mem_low_share"`
	// GPUOtherMiB is by how many MiB what others hold on the GPU must have grown.
	GPUOtherMiB Limit `yaml:"gpu_other_mib"`
	// ClockDrop is by which part the GPU's clock must have fallen under load to be the
	// cause.
	ClockDrop Limit `yaml:"clock_drop"`
	// UtilDrop is by which part the GPU's utilisation must have fallen for it to wait
	// for its input; PSIIOPct and PSICPUPct are pressures that explain it.
	UtilDrop  Limit `yaml:"util_drop"`
	PSIIOPct  Limit `yaml:"psi_io_pct"`
	PSICPUPct Limit `yaml:"psi_cpu_pct"`
	// MarkS is for how many seconds behind a checkpoint or an evaluation a slow step
	// may be its doing.
	MarkS Limit `yaml:"mark_s"`
	// Long steps that stand alone are judged over StallS seconds of steps: slow from
	// StallUp more time a step on.
	StallS  Limit `yaml:"stall_s"`
	StallUp Limit `yaml:"stall_up"`
}

// SlowStartRule compares the first steady steps with earlier runs of the same job.
type SlowStartRule struct {
	// SettleSteps are left out (compiling, warming up), Steps steady ones compared.
	SettleSteps Limit `yaml:"settle_steps"`
	Steps       Limit `yaml:"steps"`
	// Speed is the part of the earlier runs' speed below which a start is slow.
	Speed Limit `yaml:"speed"`
}

// Limit is a threshold: a finite number above zero.
type Limit float64

// UnmarshalYAML refuses anything else, naming the line.
func (l *Limit) UnmarshalYAML(n *yaml.Node) error {
	var v float64
	if err := n.Decode(&v); err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v <= 0 {
		return fmt.Errorf("line %d: %q is no threshold: a number above zero is needed", n.Line, n.Value)
	}
	*l = Limit(v)
	return nil
}

// Load returns the built-in thresholds.
func Load() (Config, error) {
	var cfg Config
	if err := configs.BuiltIn("thermal.yaml", &cfg); err != nil {
		return Config{}, fmt.Errorf("reading the built-in thermal thresholds: %w", err)
	}
	return cfg, cfg.check("configs/thermal.yaml")
}

// Parse returns the built-in thresholds with those of a user's file in their
// place; the file may name only some. Errors read "NAME:LINE: what is wrong".
func Parse(name string, data []byte) (Config, error) {
	cfg, err := Load()
	if err != nil {
		return Config{}, err
	}
	if err := configs.Decode(name, data, &cfg); err != nil {
		return Config{}, err
	}
	return cfg, cfg.check(name)
}

// check finds thresholds that are missing or contradict each other.
func (c Config) check(name string) error {
	missing := ""
	for key, l := range map[string]Limit{
		"gap_s": c.GapS, "merge_s": c.MergeS,
		"thermal.counter_ms": c.Thermal.CounterMS, "thermal.warn_share": c.Thermal.WarnShare, "thermal.share_floor_s": c.Thermal.ShareFloorS,
		"thermal.report_s": c.Thermal.ReportS, "own_cap_part": c.OwnCapPart,
		"signature.plateau_s": c.Signature.PlateauS, "signature.window_s": c.Signature.WindowS, "signature.util_pct": c.Signature.UtilPct,
		"signature.power_drop": c.Signature.PowerDrop, "signature.clock_drop": c.Signature.ClockDrop, "signature.temp_c": c.Signature.TempC, "signature.rise_c": c.Signature.RiseC, "signature.for_s": c.Signature.ForS,
		"power_cap.min_w": c.PowerCap.MinW, "power_cap.max_w": c.PowerCap.MaxW, "power_cap.util_pct": c.PowerCap.UtilPct,
		"power_cap.clock_mhz": c.PowerCap.ClockMHz, "power_cap.for_s": c.PowerCap.ForS, "power_cap.quiet_s": c.PowerCap.QuietS,
		"power_wedge.util_pct": c.Wedge.UtilPct, "power_wedge.clock_mhz": c.Wedge.ClockMHz, "power_wedge.power_w": c.Wedge.PowerW, "power_wedge.for_s": c.Wedge.ForS,
		"power_wedge.mean_for_s": c.Wedge.MeanForS, "power_wedge.mean_util_pct": c.Wedge.MeanUtilPct, "power_wedge.mean_clock_mhz": c.Wedge.MeanClockMHz, "power_wedge.quiet_s": c.Wedge.QuietS,
		"low_cap.util_pct": c.LowCap.UtilPct, "low_cap.min_w": c.LowCap.MinW, "low_cap.max_w": c.LowCap.MaxW, "low_cap.clock_mhz": c.LowCap.ClockMHz,
		"low_cap.busy_share": c.LowCap.BusyShare, "low_cap.sys_cap_w": c.LowCap.SysCapW,
		"low_cap.window_s": c.LowCap.WindowS, "low_cap.for_s": c.LowCap.ForS, "low_cap.cap_w": c.LowCap.CapW, "low_cap.cap_for_s": c.LowCap.CapForS,
		"low_cap.cap_used": c.LowCap.CapUsed, "low_cap.cpu_pct": c.LowCap.CPUPct, "low_cap.quiet_s": c.LowCap.QuietS,
		"hot.zone_c": c.Hot.ZoneC, "hot.zone_off_c": c.Hot.ZoneOffC, "hot.die_c": c.Hot.DieC, "hot.die_below_c": c.Hot.DieBelowC, "hot.quiet_s": c.Hot.QuietS,
		"hot.die_alone_c": c.Hot.DieAloneC, "hot.die_for_s": c.Hot.DieForS,
		"pace.steps": c.Pace.Steps, "pace.up": c.Pace.Up,
		"slowdown.window_s": c.Slowdown.WindowS, "slowdown.steps": c.Slowdown.Steps, "slowdown.sigmas": c.Slowdown.Sigmas, "slowdown.quiet_s": c.Slowdown.QuietS,
		"slowdown.psi_mem_pct": c.Slowdown.PSIMemPct, "slowdown.swap_pages_s": c.Slowdown.SwapPagesS, "slowdown.mem_low_share": c.Slowdown.MemLowShare,
		"slowdown.gpu_other_mib": c.Slowdown.GPUOtherMiB, "slowdown.util_drop": c.Slowdown.UtilDrop, "slowdown.psi_io_pct": c.Slowdown.PSIIOPct,
		"slowdown.psi_cpu_pct": c.Slowdown.PSICPUPct, "slowdown.mark_s": c.Slowdown.MarkS,
		"slowdown.clock_drop": c.Slowdown.ClockDrop, "slowdown.stall_s": c.Slowdown.StallS, "slowdown.stall_up": c.Slowdown.StallUp,
		"slow_start.settle_steps": c.SlowStart.SettleSteps, "slow_start.steps": c.SlowStart.Steps, "slow_start.speed": c.SlowStart.Speed,
	} {
		if l <= 0 && (missing == "" || key < missing) {
			missing = key
		}
	}
	switch {
	case missing != "":
		return fmt.Errorf("%s: %s is missing", name, missing)
	case c.PowerCap.MinW >= c.PowerCap.MaxW:
		return fmt.Errorf("%s: power_cap.min_w (%g) must be below power_cap.max_w (%g)", name, c.PowerCap.MinW, c.PowerCap.MaxW)
	case c.LowCap.MinW >= c.LowCap.MaxW:
		return fmt.Errorf("%s: low_cap.min_w (%g) must be below low_cap.max_w (%g)", name, c.LowCap.MinW, c.LowCap.MaxW)
	case c.Hot.ZoneOffC >= c.Hot.ZoneC:
		return fmt.Errorf("%s: hot.zone_off_c (%g) must be below hot.zone_c (%g), or it would begin and end all the time", name, c.Hot.ZoneOffC, c.Hot.ZoneC)
	case c.OwnCapPart > 1:
		return fmt.Errorf("%s: own_cap_part is a part of the clock, at most 1, not %g", name, c.OwnCapPart)
	case c.LowCap.BusyShare > 1:
		return fmt.Errorf("%s: low_cap.busy_share is a part of the readings, at most 1, not %g", name, c.LowCap.BusyShare)
	case c.LowCap.CapUsed > 1:
		return fmt.Errorf("%s: low_cap.cap_used is a part of the cap, at most 1, not %g", name, c.LowCap.CapUsed)
	case c.Signature.PowerDrop >= 1:
		return fmt.Errorf("%s: signature.power_drop is a part of the power, below 1, not %g", name, c.Signature.PowerDrop)
	case c.Signature.ClockDrop >= 1:
		return fmt.Errorf("%s: signature.clock_drop is a part of the clock, below 1, not %g", name, c.Signature.ClockDrop)
	case c.Slowdown.ClockDrop >= 1:
		return fmt.Errorf("%s: slowdown.clock_drop is a part of the clock, below 1, not %g", name, c.Slowdown.ClockDrop)
	case c.SlowStart.Speed >= 1:
		return fmt.Errorf("%s: slow_start.speed is a part of the earlier speed, below 1, not %g", name, c.SlowStart.Speed)
	case c.Slowdown.UtilDrop >= 1:
		return fmt.Errorf("%s: slowdown.util_drop is a part of the utilisation, below 1, not %g", name, c.Slowdown.UtilDrop)
	case c.Slowdown.MemLowShare >= 1:
		return fmt.Errorf("%s: slowdown.mem_low_share is a part of the memory, below 1, not %g", name, c.Slowdown.MemLowShare)
	case c.Thermal.WarnShare > 1:
		return fmt.Errorf("%s: thermal.warn_share is a part of the time, at most 1, not %g", name, c.Thermal.WarnShare)
	}
	return nil
}
