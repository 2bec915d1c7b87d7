package preflight

import (
	"fmt"
	"sync"

	"sparkrun/configs"
)

// hostTable is configs/host_driver.yaml.
type hostTable struct {
	AsOf   string `yaml:"as_of"`
	Driver struct {
		Nodes       []string `yaml:"nodes"`
		MayBeAbsent []string `yaml:"may_be_absent"`
		Libraries   []string `yaml:"libraries"`
	} `yaml:"driver"`
	Kernel struct {
		KnownBad []badKernel `yaml:"known_bad"`
	} `yaml:"kernel"`
	Clock struct {
		EarliestYear int      `yaml:"earliest_year"`
		Synchronised string   `yaml:"synchronised"`
		Services     []string `yaml:"services"`
		SettleS      float64  `yaml:"settle_s"`
	} `yaml:"clock"`
	Boot struct {
		NewsH     float64 `yaml:"news_h"`
		Often     int     `yaml:"often"`
		OftenDays float64 `yaml:"often_days"`
	} `yaml:"boot"`
	PowerCaps struct {
		FloorW map[string]float64 `yaml:"floor_w"`
	} `yaml:"power_caps"`
	Watch struct {
		EnoughS float64    `yaml:"enough_s"`
		LoadPct float64    `yaml:"load_pct"`
		LowCap  lowCapRule `yaml:"low_cap"`
	} `yaml:"watch"`
}

// badKernel is a kernel that is known to be bad on GB10.
type badKernel struct {
	Release string `yaml:"release"`
	What    string `yaml:"what"`
	Source  string `yaml:"source"`
	Fix     string `yaml:"fix"`
}

type lowCapRule struct {
	UtilPct  float64 `yaml:"util_pct"`
	MinW     float64 `yaml:"min_w"`
	MaxW     float64 `yaml:"max_w"`
	ClockMHz float64 `yaml:"clock_mhz"`
	ForS     float64 `yaml:"for_s"`
}

// loadHostTable reads the built-in table once. It cannot fail in a binary whose tests
// passed.
var loadHostTable = sync.OnceValues(func() (hostTable, error) {
	var t hostTable
	if err := configs.BuiltIn("host_driver.yaml", &t); err != nil {
		return hostTable{}, fmt.Errorf("reading the built-in table of driver and kernel: %w", err)
	}
	return t, nil
})

// aboutHost is the table; a test reads it.
func aboutHost() hostTable {
	t, _ := loadHostTable()
	return t
}

// thermalTable is what preflight takes of configs/thermal.yaml, so that an observation is
// judged by the figures that a run is judged by. What it has besides is package throttle's.
type thermalTable struct {
	GapS      float64  `yaml:"gap_s"`
	Platforms []string `yaml:"platforms"`
	Thermal   struct {
		CounterMS   float64        `yaml:"counter_ms"`
		WarnShare   float64        `yaml:"warn_share"`
		ShareFloorS float64        `yaml:"share_floor_s"`
		Rest        map[string]any `yaml:",inline"`
	} `yaml:"thermal"`
	Signature struct {
		PlateauS  float64        `yaml:"plateau_s"`
		WindowS   float64        `yaml:"window_s"`
		UtilPct   float64        `yaml:"util_pct"`
		PowerDrop float64        `yaml:"power_drop"`
		TempC     float64        `yaml:"temp_c"`
		RiseC     float64        `yaml:"rise_c"`
		ForS      float64        `yaml:"for_s"`
		Rest      map[string]any `yaml:",inline"`
	} `yaml:"signature"`
	PowerCap struct {
		MinW     float64        `yaml:"min_w"`
		MaxW     float64        `yaml:"max_w"`
		UtilPct  float64        `yaml:"util_pct"`
		ClockMHz float64        `yaml:"clock_mhz"`
		ForS     float64        `yaml:"for_s"`
		Rest     map[string]any `yaml:",inline"`
	} `yaml:"power_cap"`
	Wedge struct {
		UtilPct  float64        `yaml:"util_pct"`
		ClockMHz float64        `yaml:"clock_mhz"`
		PowerW   float64        `yaml:"power_w"`
		ForS     float64        `yaml:"for_s"`
		Rest     map[string]any `yaml:",inline"`
	} `yaml:"power_wedge"`
	Rest map[string]any `yaml:",inline"`
}

var loadThermalTable = sync.OnceValues(func() (thermalTable, error) {
	var t thermalTable
	if err := configs.BuiltIn("thermal.yaml", &t); err != nil {
		return thermalTable{}, fmt.Errorf("reading the built-in thermal thresholds: %w", err)
	}
	return t, nil
})

// aboutHeat is the table; a test reads it.
func aboutHeat() thermalTable {
	t, _ := loadThermalTable()
	return t
}
