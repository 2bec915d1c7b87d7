package hang

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sparkrun/configs"
)

// Config holds the thresholds; the built-in ones and the reason for each stand in
// configs/hang.yaml.
type Config struct {
	// Steps and FloorS are the limit once there was a step: median steps, and seconds at
	// least.
	Steps  float64 `yaml:"steps"`
	FloorS float64 `yaml:"floor_s"`
	// StartS is after how many seconds it is told before the first step.
	StartS float64 `yaml:"start_s"`
	// CPUShare of one core is work, WorkedShare the least that a training used so far.
	CPUShare    float64 `yaml:"cpu_share"`
	WorkedShare float64 `yaml:"worked_share"`
	// GPUPct is the utilisation from which on the GPU computes.
	GPUPct float64 `yaml:"gpu_pct"`
	// NetBPS and InnerBPS are what shared interfaces and the tree's own connections carry
	// without a meaning, in bytes per second.
	NetBPS   float64 `yaml:"net_bps"`
	InnerBPS float64 `yaml:"inner_bps"`
	// LocalWPS is how often in a second threads that wait in a unix socket, or in UDP over
	// loopback, between the tree's own processes are woken without a meaning; Pollers are
	// threads that wake up whether something came or not.
	LocalWPS float64  `yaml:"local_wps"`
	Pollers  []string `yaml:"pollers"`
	// FileWaits are the kernel functions in which a thread waits for a file system though
	// a signal could reach it.
	FileWaits []string `yaml:"file_waits"`
	// Reporters are programs that only report on the training.
	Reporters struct {
		Names    []string `yaml:"names"`
		CPUShare float64  `yaml:"cpu_share"`
		BPS      float64  `yaml:"bps"`
		NetBPS   float64  `yaml:"net_bps"`
	} `yaml:"reporters"`
}

// Load returns the built-in thresholds.
func Load() (Config, error) {
	var c Config
	if err := configs.BuiltIn("hang.yaml", &c); err != nil {
		return Config{}, fmt.Errorf("reading the built-in thresholds of a hang: %w", err)
	}
	return c, c.check("configs/hang.yaml")
}

func (c Config) check(name string) error {
	for _, f := range []struct {
		key   string
		v     float64
		share bool
	}{
		{"steps", c.Steps, false},
		{"floor_s", c.FloorS, false},
		{"start_s", c.StartS, false},
		{"cpu_share", c.CPUShare, true},
		{"worked_share", c.WorkedShare, true},
		{"gpu_pct", c.GPUPct, false},
		{"net_bps", c.NetBPS, false},
		{"inner_bps", c.InnerBPS, false},
		{"local_wps", c.LocalWPS, false},
		{"reporters.cpu_share", c.Reporters.CPUShare, true},
		{"reporters.bps", c.Reporters.BPS, false},
		{"reporters.net_bps", c.Reporters.NetBPS, false},
	} {
		switch {
		case !(f.v > 0): // NaN too
			return fmt.Errorf("%s: %s is missing or not above 0", name, f.key)
		case f.share && f.v >= 1:
			return fmt.Errorf("%s: %s is a share of one core, below 1", name, f.key)
		}
	}
	return nil
}

// Reporter says of a process's name whether it is a program that only reports.
func (c Config) Reporter(comm string) bool {
	return slices.ContainsFunc(c.Reporters.Names, func(n string) bool { return strings.HasPrefix(comm, n) })
}

// Poller says of a thread's name whether it wakes up whether something came or not.
func (c Config) Poller(comm string) bool {
	return slices.ContainsFunc(c.Pollers, func(n string) bool { return strings.HasPrefix(comm, n) })
}

// Limit is how long nothing may move. Without a step (stepped is false) or, where it
// comes from the step time, without that, the attempt is never ended and ends is false:
// the limit is then when it is told. given is the user's own limit, 0 for none.
func (c Config) Limit(given, median time.Duration, stepped bool) (limit time.Duration, ends bool) {
	switch {
	case !stepped, given <= 0 && median <= 0:
		return time.Duration(c.StartS * float64(time.Second)), false
	case given > 0:
		return given, true
	}
	return max(time.Duration(c.Steps*float64(median)), time.Duration(c.FloorS*float64(time.Second))), true
}

// Every is the time between two looks: ten for a limit, and never more than ten seconds.
func Every(given time.Duration) time.Duration {
	if given <= 0 {
		return most
	}
	return min(max(given/10, 200*time.Millisecond), most)
}

// most is the longest time between two looks.
const most = 10 * time.Second
