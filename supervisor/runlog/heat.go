package runlog

import "sparkrun/internal/sample"

// Heat is what held the GPU back in an attempt, or in the whole run, and what that cost.
type Heat struct {
	// HottestC is the hottest reading of the GPU's die or of a zone.
	HottestC sample.Num `json:"hottest_c"`
	// ObservedS is for how many seconds the GPU's state was known, ThrottledS for how many
	// of them it was held back, whatever by, ThrottledShare the second as a part of the
	// first, 0 to 1. The platform's own power cap is none of it.
	ObservedS      sample.Num `json:"observed_s"`
	ThrottledS     sample.Num `json:"throttled_s"`
	ThrottledShare sample.Num `json:"throttled_share"`
	// LostS is what steps took longer while the GPU was held back than at the attempt's own
	// pace, LostSteps how many steps that would have been. Unknown without a pace.
	LostS     sample.Num `json:"lost_s"`
	LostSteps sample.Num `json:"lost_steps"`
	// Types has the episodes by type, data.type of their events.
	Types map[string]HeatType `json:"types,omitempty"`
	// BaselineS is the attempt's own seconds a step. Compared is what the comparison with
	// this machine's earlier runs gave: "normal", "slow" or "no baseline yet"; empty where
	// there were too few steps. Both are of the last attempt in the whole run's.
	BaselineS sample.Num `json:"baseline_step_time_s"`
	Compared  string     `json:"compared,omitempty"`
}

// HeatType adds up the episodes of one type.
type HeatType struct {
	Episodes int `json:"episodes"`
	// Seconds is how long they were, ThrottledS the part in which the GPU was held back,
	// null for those that are not that (slowdown, slow-start, hot, power-cap); LostS and LostSteps what they cost. Types overlap: no sum of them means anything.
	Seconds    sample.Num `json:"seconds"`
	ThrottledS sample.Num `json:"throttled_s"`
	LostS      sample.Num `json:"lost_s"`
	LostSteps  sample.Num `json:"lost_steps"`
	Pulses     int        `json:"pulses,omitempty"`
	// Causes has the seconds lost by likely cause, for a slowdown or a slow start.
	Causes map[string]float64 `json:"lost_s_by_cause,omitempty"`
}

// Where GPUJ of Energy comes from.
const (
	FromCounter = "counter"
	FromPower   = "power" // power times time: an estimate
	FromBoth    = "counter and power"
)

// Energy is what an attempt, or all attempts of a run, have used. The rails are different
// things and are never summed.
type Energy struct {
	// GPUJ is joules of the GPU as NVML counts them, GPUSource what told, GPUEstimate that
	// power times time is more than a small part of it, GPUKnownS for how many seconds it
	// is known.
	GPUJ        sample.Num `json:"gpu_j"`
	GPUSource   string     `json:"gpu_source,omitempty"`
	GPUEstimate bool       `json:"gpu_estimate,omitempty"`
	GPUKnownS   sample.Num `json:"gpu_known_s"`
	// GPUFirmwareJ is the power firmware's figure of the GPU (power times time),
	// GPUFirmwareRatio that as a multiple of GPUJ: NVML reads low on a GB10.
	GPUFirmwareJ     sample.Num `json:"gpu_firmware_j"`
	GPUFirmwareRatio sample.Num `json:"gpu_firmware_ratio"`
	// SoCJ is processors and GPU by the firmware's counter, MachineJ the whole machine on
	// the DC side (power times time).
	SoCJ     sample.Num `json:"soc_j"`
	MachineJ sample.Num `json:"machine_j"`
	// IdleW is the GPU's power in the seconds before the attempt, AboveIdleJ what it used
	// beyond that.
	IdleW      sample.Num `json:"gpu_idle_w"`
	AboveIdleJ sample.Num `json:"gpu_above_idle_j"`
	// PerStepJ and PerTokenJ are of the GPU, from the first step seen to the last.
	PerStepJ  sample.Num `json:"gpu_j_per_step"`
	PerTokenJ sample.Num `json:"gpu_j_per_token"`
	// CounterResets is how often NVML's counter began anew.
	CounterResets int `json:"counter_resets,omitempty"`
}
