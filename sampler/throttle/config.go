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
	// GapS is after how many seconds without a known reading an open episode
	// ends as "unknown", and what is longer than this between two readings
	// counts for nothing.
	GapS Limit `yaml:"gap_s"`
	// MergeS: signs of one type closer together than this are one episode.
	MergeS Limit `yaml:"merge_s"`
	// Platforms are words of GPU names that PowerCap and PowerWedge describe.
	Platforms []string     `yaml:"platforms"`
	Thermal   ThermalRule  `yaml:"thermal"`
	Signature SignRule     `yaml:"signature"`
	PowerCap  PowerCapRule `yaml:"power_cap"`
	Wedge     WedgeRule    `yaml:"power_wedge"`
	Pace      PaceRule     `yaml:"pace"`
}

// ThermalRule is about the reason bits and counters.
type ThermalRule struct {
	// CounterMS is by how many milliseconds a counter must have advanced.
	CounterMS Limit `yaml:"counter_ms"`
	// WarnShare is the part of the observed time above which it is a warning,
	// judged over at least ShareFloorS seconds.
	WarnShare   Limit `yaml:"warn_share"`
	ShareFloorS Limit `yaml:"share_floor_s"`
}

// SignRule is the runbook's G4 made testable: power below the attempt's own
// plateau while hot, for long, with the pace down.
type SignRule struct {
	PlateauS  Limit `yaml:"plateau_s"`
	WindowS   Limit `yaml:"window_s"`
	UtilPct   Limit `yaml:"util_pct"`
	PowerDrop Limit `yaml:"power_drop"`
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
	UtilPct  Limit `yaml:"util_pct"`
	ClockMHz Limit `yaml:"clock_mhz"`
	PowerW   Limit `yaml:"power_w"`
	ForS     Limit `yaml:"for_s"`
}

// PaceRule says when steps count as slower.
type PaceRule struct {
	// Steps is how many step times make a baseline, and Up by which part a step
	// must be slower than it.
	Steps Limit `yaml:"steps"`
	Up    Limit `yaml:"up"`
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
		"signature.plateau_s": c.Signature.PlateauS, "signature.window_s": c.Signature.WindowS, "signature.util_pct": c.Signature.UtilPct,
		"signature.power_drop": c.Signature.PowerDrop, "signature.temp_c": c.Signature.TempC, "signature.rise_c": c.Signature.RiseC, "signature.for_s": c.Signature.ForS,
		"power_cap.min_w": c.PowerCap.MinW, "power_cap.max_w": c.PowerCap.MaxW, "power_cap.util_pct": c.PowerCap.UtilPct,
		"power_cap.clock_mhz": c.PowerCap.ClockMHz, "power_cap.for_s": c.PowerCap.ForS, "power_cap.quiet_s": c.PowerCap.QuietS,
		"power_wedge.util_pct": c.Wedge.UtilPct, "power_wedge.clock_mhz": c.Wedge.ClockMHz, "power_wedge.power_w": c.Wedge.PowerW, "power_wedge.for_s": c.Wedge.ForS,
		"pace.steps": c.Pace.Steps, "pace.up": c.Pace.Up,
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
	case c.Signature.PowerDrop >= 1:
		return fmt.Errorf("%s: signature.power_drop is a part of the power, below 1, not %g", name, c.Signature.PowerDrop)
	case c.Thermal.WarnShare > 1:
		return fmt.Errorf("%s: thermal.warn_share is a part of the time, at most 1, not %g", name, c.Thermal.WarnShare)
	}
	return nil
}
