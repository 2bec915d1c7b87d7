// Package sample holds the values that sensors produce: one Sample is one
// reading of everything at one instant. It imports nothing of ours and touches
// no file, so that the sampler, the throttle rules, the verdict and preflight
// can all speak of the same reading.
package sample

import (
	"bytes"
	"encoding/json"
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
func (n Num) CSV(prec int) string {
	if !n.OK {
		return ""
	}
	s := strconv.FormatFloat(n.V, 'f', prec, 64)
	if prec > 0 {
		for s[len(s)-1] == '0' {
			s = s[:len(s)-1]
		}
		if s[len(s)-1] == '.' {
			s = s[:len(s)-1]
		}
	}
	return s
}

// MarshalJSON writes null for an unknown number.
func (n Num) MarshalJSON() ([]byte, error) {
	if !n.OK {
		return []byte("null"), nil
	}
	return json.Marshal(n.V)
}

// UnmarshalJSON reads null as unknown.
func (n *Num) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*n = Num{}
		return nil
	}
	if err := json.Unmarshal(b, &n.V); err != nil {
		return err
	}
	n.OK = true
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

	// Processes lists GPU memory per process; nil means unknown.
	Processes []GPUProcess `json:"processes"`
	// Failed names readings that failed this time, with the reason.
	Failed map[string]string `json:"failed,omitempty"`
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
	// Missed counts ticks that could not be taken on time since the last row.
	Missed int
}

// Row returns the telemetry.csv cells in the order of Header.
func (s *Sample) Row() []string {
	reasons := ""
	if s.ReasonBits.OK {
		reasons = "0x" + strconv.FormatUint(uint64(s.ReasonBits.V), 16)
	}
	attempt := ""
	if s.Attempt > 0 {
		attempt = strconv.Itoa(s.Attempt)
	}
	return []string{
		s.T.Format("2006-01-02T15:04:05.000Z07:00"),
		strconv.FormatFloat(s.Mono.Seconds(), 'f', 3, 64),
		attempt,
		s.Step.CSV(0), s.StepTimeS.CSV(3),
		s.TempC.CSV(1), s.ZoneMaxC.CSV(1), s.NVMeC.CSV(1),
		s.PowerW.CSV(2), s.PowerSys.CSV(2),
		s.ClockSMMHz.CSV(0), s.ClockMemMHz.CSV(0), s.UtilPct.CSV(0), s.PState.CSV(0),
		reasons,
		s.CtrSWPowerNS.CSV(0), s.CtrSWThermalNS.CSV(0), s.CtrHWThermalNS.CSV(0), s.CtrHWPowerNS.CSV(0),
		s.EnergyJ.CSV(3),
		s.MemAvailableKiB.CSV(0), s.MemFreeKiB.CSV(0), s.CachedKiB.CSV(0), s.ShmemKiB.CSV(0), s.SwapFreeKiB.CSV(0),
		s.PSIMemSome10.CSV(2), s.PSIMemFull10.CSV(2),
		s.TreeRSSKiB.CSV(0), s.TreeProcs.CSV(0), s.GPUTreeMiB.CSV(0), s.GPUOtherMiB.CSV(0),
		s.CgroupKiB.CSV(0), s.VMOOMKill.CSV(0), s.Load1.CSV(2),
		strconv.Itoa(s.Missed),
	}
}

// Header names the columns of telemetry.csv and blackbox.csv, schema
// sparkrun.telemetry/1. New columns are only ever added at the end.
var Header = []string{
	"t", "mono_s", "attempt", "step", "step_time_s",
	"temp_gpu_c", "temp_zone_max_c", "temp_nvme_c",
	"power_gpu_w", "power_sys_w",
	"clock_sm_mhz", "clock_mem_mhz", "util_gpu_pct", "pstate", "reasons_hex",
	"ctr_swpower_ns", "ctr_swthermal_ns", "ctr_hwthermal_ns", "ctr_hwpower_ns", "energy_j",
	"mem_available_kib", "mem_free_kib", "cached_kib", "shmem_kib", "swap_free_kib",
	"psi_mem_some10", "psi_mem_full10",
	"tree_rss_kib", "tree_procs", "gpu_tree_mib", "gpu_other_mib",
	"cgroup_current_kib", "vm_oom_kill", "load1", "missed",
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
