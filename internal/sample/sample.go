// Package sample holds the values that sensors produce: one Sample is one
// reading of everything at one instant. It imports nothing of ours and touches
// no file, so that the sampler, the throttle rules, the verdict and preflight
// can all speak of the same reading.
package sample

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Num is a number that may be unknown. Unknown is never zero: it is written as
// an empty CSV cell and as JSON null.
type Num struct {
	V  float64
	OK bool
}

// Known returns a known number.
func Known(v float64) Num { return Num{V: v, OK: true} }

// Or returns the number, or def where it is unknown.
func (n Num) Or(def float64) float64 {
	if n.OK {
		return n.V
	}
	return def
}

// CSV writes the number with at most prec decimals, or nothing when unknown.
// Trailing zeros are dropped.
func (n Num) CSV(prec int) string { return string(n.appendCSV(nil, prec)) }

func (n Num) appendCSV(b []byte, prec int) []byte {
	if !n.OK {
		return b
	}
	if n.V == math.Trunc(n.V) && math.Abs(n.V) < 1<<53 && (n.V != 0 || !math.Signbit(n.V)) {
		return strconv.AppendInt(b, int64(n.V), 10)
	}
	b = strconv.AppendFloat(b, n.V, 'f', prec, 64)
	if prec > 0 {
		b = bytes.TrimRight(b, "0")
		b = bytes.TrimSuffix(b, []byte("."))
	}
	return b
}

// MarshalJSON writes null for an unknown number.
func (n Num) MarshalJSON() ([]byte, error) {
	if !n.OK {
		return []byte("null"), nil
	}
	if math.IsNaN(n.V) || math.IsInf(n.V, 0) {
		return nil, fmt.Errorf("a reading of %v has no form in JSON", n.V)
	}
	// There are dozens of them in each reading: this is json.Marshal without its detours.
	format := byte('f')
	if a := math.Abs(n.V); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(make([]byte, 0, 24), n.V, format, -1, 64), nil
}

// UnmarshalJSON reads null as unknown.
func (n *Num) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*n = Num{}
		return nil
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return fmt.Errorf("%.40q is no number: %w", b, err)
	}
	*n = Known(v)
	return nil
}

// Reasons is NVML's clocks event reasons bit mask.
type Reasons uint64

// The bits, from NVML's header (nvmlClocksEventReason*).
const (
	ReasonIdle            Reasons = 0x1
	ReasonAppClocks       Reasons = 0x2
	ReasonSWPowerCap      Reasons = 0x4
	ReasonHWSlowdown      Reasons = 0x8
	ReasonSyncBoost       Reasons = 0x10
	ReasonSWThermal       Reasons = 0x20
	ReasonHWThermal       Reasons = 0x40
	ReasonHWPowerBrake    Reasons = 0x80
	ReasonDisplayClocks   Reasons = 0x100
	ReasonAnyThermal              = ReasonSWThermal | ReasonHWThermal
	ReasonAnyHardwareStop         = ReasonHWSlowdown | ReasonHWThermal | ReasonHWPowerBrake
)

// GPU is what the sensors process reads, one record per tick.
type GPU struct {
	// T is the run-independent time of the reading: CLOCK_BOOTTIME.
	T time.Duration `json:"boot_ns"`
	// Took is how long the whole reading lasted.
	Took time.Duration `json:"took_ns"`

	TempC       Num `json:"temp_gpu_c"`
	PowerW      Num `json:"power_gpu_w"`
	ClockSMMHz  Num `json:"clock_sm_mhz"`
	ClockMemMHz Num `json:"clock_mem_mhz"`
	UtilPct     Num `json:"util_gpu_pct"`
	// PState is the performance state, 0 (fastest) to 15.
	PState Num `json:"pstate"`
	// ReasonBits is the mask as NVML gave it; see Reasons.
	ReasonBits Num `json:"reasons"`
	// The counters are nanoseconds spent in each state since the driver was
	// loaded (NVML field ids 74, 269, 270, 271).
	CtrSWPowerNS   Num `json:"ctr_swpower_ns"`
	CtrSWThermalNS Num `json:"ctr_swthermal_ns"`
	CtrHWThermalNS Num `json:"ctr_hwthermal_ns"`
	CtrHWPowerNS   Num `json:"ctr_hwpower_ns"`
	EnergyJ        Num `json:"energy_j"`

	ZoneMaxC Num `json:"temp_zone_max_c"`
	NVMeC    Num `json:"temp_nvme_c"`
	PowerSys Num `json:"power_sys_w"`

	// Zones are all thermal zones that count, Chips the temperatures of other chips
	// (drives, network cards), Powers what a power driver says, each in a fixed order;
	// nil means unknown.
	Zones  []Temperature `json:"zones,omitempty"`
	Chips  []Temperature `json:"chips,omitempty"`
	Powers []Power       `json:"powers,omitempty"`
	// CapSoCW and CapSysW are the power firmware's present caps of the SoC (pl1) and of
	// the whole machine (syspl1); EnergySoCJ is the SoC's energy counter.
	CapSoCW    Num `json:"power_cap_pl1_w"`
	CapSysW    Num `json:"power_cap_sys_w"`
	EnergySoCJ Num `json:"energy_soc_j"`
	// CPUMHz is the mean clock of all processors.
	CPUMHz Num `json:"cpu_mhz"`
	// Fallback says that the readings are nvidia-smi's, since NVML could not be loaded.
	Fallback bool `json:"fallback,omitempty"`

	// Processes lists GPU memory per process; nil means unknown.
	Processes []GPUProcess `json:"processes"`
	// Failed names readings that failed this time, with the reason.
	Failed map[string]string `json:"failed,omitempty"`
}

// Temperature is one sensor.
type Temperature struct {
	// Name is the zone or chip (thermal_zone3, nvme), Label what it says of the sensor.
	Name  string `json:"name"`
	Label string `json:"label,omitempty"`
	C     Num    `json:"c"`
	// CritC is the temperature at which the machine turns itself off.
	CritC Num `json:"crit_c"`
}

// Power is one channel of a power driver.
type Power struct {
	Label string `json:"label"`
	W     Num    `json:"w"`
	CapW  Num    `json:"cap_w"`
}

// GPUProcess is one process that holds GPU memory.
type GPUProcess struct {
	PID     int `json:"pid"`
	UsedMiB Num `json:"used_mib"`
}

// Device is what does not change while the driver is loaded. It is the first
// record of the sensors process.
type Device struct {
	// Source is "nvml", "nvidia-smi" or "none".
	Source string `json:"source"`
	// Err says why Source is "none", or why something is missing.
	Err string `json:"err,omitempty"`
	// ErrKind is "no-library", "no-driver", "no-device", "lost",
	// "reset-required" or "other"; empty when the source works.
	ErrKind       string `json:"err_kind,omitempty"`
	Name          string `json:"name,omitempty"`
	UUID          string `json:"uuid,omitempty"`
	DriverVersion string `json:"driver_version,omitempty"`
	// CUDADriver is the newest CUDA version the driver supports, as 13000.
	CUDADriver int `json:"cuda_driver,omitempty"`
	// CapMajor and CapMinor are the compute capability, 12 and 1 on GB10.
	CapMajor int `json:"cap_major,omitempty"`
	CapMinor int `json:"cap_minor,omitempty"`
	Count    int `json:"count"`
	// MemoryTotalMiB is unknown on unified memory (NVML answers not supported).
	MemoryTotalMiB Num `json:"memory_total_mib"`
	// Absent lists readings this machine does not have. They stay empty and are
	// noted once.
	Absent []string `json:"absent,omitempty"`
}

// Sample is one row of telemetry: everything known at one instant.
type Sample struct {
	// T is the run's time of the sample (clock.Clock), Mono the time since run
	// start.
	T    time.Time
	Mono time.Duration
	// Attempt counts from 1; 0 is before the first.
	Attempt int
	// Step is the last optimizer step seen; StepTimeS its duration.
	Step      Num
	StepTimeS Num
	// StepT is when the trainer told of that step, zero where it is not known.
	StepT time.Time

	GPU
	// GPUAge is how old the GPU reading is; a reading that is too old is left
	// out of GPU altogether.
	GPUAge time.Duration

	MemTotalKiB     Num
	MemAvailableKiB Num
	MemFreeKiB      Num
	CachedKiB       Num
	ShmemKiB        Num
	SwapTotalKiB    Num
	SwapFreeKiB     Num
	PSIMemSome10    Num
	PSIMemFull10    Num
	TreeRSSKiB      Num
	TreeProcs       Num
	GPUTreeMiB      Num
	GPUOtherMiB     Num
	CgroupKiB       Num
	VMOOMKill       Num
	Load1           Num
	// CPUBusyPct is the share of all processors' time that was not idle since the last
	// row, PSICPUSome10 and PSIIOFull10 the pressure averages over 10 s.
	CPUBusyPct   Num
	PSICPUSome10 Num
	PSIIOFull10  Num
	// TreeCPUS is the CPU time of the training's tree in seconds, TreeReadB and
	// TreeWriteB what it read and wrote (storage and pipes, as /proc/PID/io counts),
	// TreeNetB what its network namespace moved; all so far, never falling.
	TreeCPUS   Num
	TreeReadB  Num
	TreeWriteB Num
	TreeNetB   Num
	// SwapInPages and SwapOutPages count since boot.
	SwapInPages  Num
	SwapOutPages Num
	// Tokens are those trained on in this attempt so far.
	Tokens Num
	// Missed counts ticks that could not be taken on time since the last row.
	Missed int
}

// KernelLine is one record of the kernel log.
type KernelLine struct {
	// Boot is the record's own stamp. The kernel counts it on CLOCK_MONOTONIC,
	// which differs from CLOCK_BOOTTIME by the time spent suspended; the reader
	// has already added that.
	Boot time.Duration
	Text string
	// Source is "kmsg" or "journal".
	Source string
}
