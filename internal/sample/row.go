package sample

import (
	"strconv"
	"strings"
	"time"
)

// Row returns the telemetry.csv cells in the order of Header.
func (s *Sample) Row() []string {
	return strings.Split(string(s.appendCells(nil)), ",")
}

// AppendRow appends the line of telemetry.csv, with its newline, without allocating where
// b has the room. No cell needs quoting.
func (s *Sample) AppendRow(b []byte) []byte { return append(s.appendCells(b), '\n') }

func (s *Sample) appendCells(b []byte) []byte {
	b = s.T.AppendFormat(b, "2006-01-02T15:04:05.000Z07:00")
	b = append(b, ',')
	b = strconv.AppendFloat(b, float64(s.Mono/time.Millisecond)/1000, 'f', 3, 64)
	b = append(b, ',')
	if s.Attempt > 0 {
		b = strconv.AppendInt(b, int64(s.Attempt), 10)
	}
	b = cells(b, 0, s.Step)
	b = cells(b, 3, s.StepTimeS)
	b = cells(b, 1, s.TempC, s.ZoneMaxC, s.NVMeC)
	b = cells(b, 2, s.PowerW, s.PowerSys)
	b = cells(b, 0, s.ClockSMMHz, s.ClockMemMHz, s.UtilPct, s.PState)
	b = append(b, ',')
	if s.ReasonBits.OK {
		b = append(b, "0x"...)
		b = strconv.AppendUint(b, uint64(s.ReasonBits.V), 16)
	}
	b = cells(b, 0, s.CtrSWPowerNS, s.CtrSWThermalNS, s.CtrHWThermalNS, s.CtrHWPowerNS)
	b = cells(b, 3, s.EnergyJ)
	b = cells(b, 0, s.MemAvailableKiB, s.MemFreeKiB, s.CachedKiB, s.ShmemKiB, s.SwapFreeKiB)
	b = cells(b, 2, s.PSIMemSome10, s.PSIMemFull10)
	b = cells(b, 0, s.TreeRSSKiB, s.TreeProcs, s.GPUTreeMiB, s.GPUOtherMiB, s.CgroupKiB, s.VMOOMKill)
	b = cells(b, 2, s.Load1)
	b = append(b, ',')
	b = strconv.AppendInt(b, int64(s.Missed), 10)
	b = cells(b, 1, s.CPUBusyPct)
	b = cells(b, 0, s.CPUMHz)
	b = cells(b, 2, s.PSICPUSome10, s.PSIIOFull10, s.TreeCPUS)
	b = cells(b, 0, s.TreeReadB, s.TreeWriteB, s.TreeNetB, s.SwapInPages, s.SwapOutPages, s.Tokens)
	b = cells(b, 1, s.CapSoCW, s.CapSysW)
	return cells(b, 3, s.EnergySoCJ)
}

// cells appends a comma and a number each, with at most prec decimals.
func cells(b []byte, prec int, nums ...Num) []byte {
	for _, n := range nums {
		b = n.appendCSV(append(b, ','), prec)
	}
	return b
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
	"cpu_busy_pct", "cpu_mhz", "psi_cpu_some10", "psi_io_full10",
	"tree_cpu_s", "tree_read_b", "tree_write_b", "tree_net_b", "swap_in_pages", "swap_out_pages", "tokens",
	"power_cap_pl1_w", "power_cap_sys_w", "energy_soc_j",
}
