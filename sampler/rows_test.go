package sampler

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

func TestThermalRow(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 14, 10, 0, 0, 123_999_999, time.FixedZone("", 7200))
	for _, c := range []struct {
		temp, power sample.Num
		want        string
	}{
		{sample.Known(68), sample.Known(97.31), "2026/07/14 10:00:00.123, 68, 97.31 W\n"},
		{sample.Known(35), sample.Known(11), "2026/07/14 10:00:00.123, 35, 11.00 W\n"},
		{sample.Known(0), sample.Known(0), "2026/07/14 10:00:00.123, 0, 0.00 W\n"},
		{sample.Num{}, sample.Known(4.52), "2026/07/14 10:00:00.123, [N/A], 4.52 W\n"},
		{sample.Num{}, sample.Num{}, "2026/07/14 10:00:00.123, [N/A], [N/A]\n"},
	} {
		if got := string(thermalRow(at, c.temp, c.power)); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestTelemetryGolden(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 14, 10, 0, 0, 123_000_000, time.FixedZone("", 7200))
	full := sample.Sample{
		T: at, Mono: 90*time.Second + 5*time.Millisecond, Attempt: 1, Step: sample.Known(12), StepTimeS: sample.Known(2.5),
		GPU: sample.GPU{
			TempC: sample.Known(68), PowerW: sample.Known(97.31), ClockSMMHz: sample.Known(2210), UtilPct: sample.Known(0),
			PState: sample.Known(0), ReasonBits: sample.Known(0x24), CtrSWPowerNS: sample.Known(5e13), EnergyJ: sample.Known(12.3456), CapSoCW: sample.Known(140),
		},
		MemAvailableKiB: sample.Known(121_000_000), Missed: 2,
		CPUBusyPct: sample.Known(41.52), PSICPUSome10: sample.Known(0.07), Tokens: sample.Known(4096),
	}
	want := "t,mono_s,attempt,step,step_time_s,temp_gpu_c,temp_zone_max_c,temp_nvme_c,power_gpu_w,power_sys_w,clock_sm_mhz,clock_mem_mhz,util_gpu_pct,pstate,reasons_hex," +
		"ctr_swpower_ns,ctr_swthermal_ns,ctr_hwthermal_ns,ctr_hwpower_ns,energy_j,mem_available_kib,mem_free_kib,cached_kib,shmem_kib,swap_free_kib,psi_mem_some10,psi_mem_full10," +
		"tree_rss_kib,tree_procs,gpu_tree_mib,gpu_other_mib,cgroup_current_kib,vm_oom_kill,load1,missed," +
		"cpu_busy_pct,cpu_mhz,psi_cpu_some10,psi_io_full10,tree_cpu_s,tree_read_b,tree_write_b,tree_net_b,swap_in_pages,swap_out_pages,tokens," +
		"power_cap_pl1_w,power_cap_sys_w,energy_soc_j\n" +
		"2026-07-14T10:00:00.123+02:00,90.005,1,12,2.5,68,,,97.31,,2210,,0,0,0x24,50000000000000,,,,12.346,121000000,,,,,,,,,,,,,,2,41.5,,0.07,,,,,,,,4096,140,,\n" +
		"2026-07-14T10:00:01.123+02:00,91.005,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,0,,,,,,,,,,,,,,\n"
	unknown := sample.Sample{T: at.Add(time.Second), Mono: full.Mono + time.Second}
	got := string(unknown.AppendRow(full.AppendRow(telemetryHeader())))
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestGPUMemoryIsSplitByTree(t *testing.T) {
	t.Parallel()
	mib := func(pid int, v float64) sample.GPUProcess {
		return sample.GPUProcess{PID: pid, UsedMiB: sample.Known(v)}
	}
	unknown := sample.Num{}
	for name, c := range map[string]struct {
		processes   []sample.GPUProcess
		tree        []int
		hasTree     bool
		mine, other sample.Num
	}{
		"not asked":         {nil, []int{1}, true, unknown, unknown},
		"nobody":            {[]sample.GPUProcess{}, []int{1}, true, sample.Known(0), sample.Known(0)},
		"both":              {[]sample.GPUProcess{mib(1, 10), mib(2, 20), mib(3, 30)}, []int{1, 3}, true, sample.Known(40), sample.Known(20)},
		"no tree":           {[]sample.GPUProcess{mib(1, 10)}, nil, false, unknown, sample.Known(10)},
		"mine is not known": {[]sample.GPUProcess{{PID: 1}, mib(2, 20)}, []int{1}, true, unknown, sample.Known(20)},
	} {
		row := sample.Sample{GPU: sample.GPU{Processes: c.processes}}
		splitGPUMemory(&row, c.tree, c.hasTree)
		if row.GPUTreeMiB != c.mine || row.GPUOtherMiB != c.other {
			t.Errorf("%s: %+v and %+v, want %+v and %+v", name, row.GPUTreeMiB, row.GPUOtherMiB, c.mine, c.other)
		}
	}
}

func TestCgroupMemoryOfBothVersions(t *testing.T) {
	t.Parallel()
	v2, v1 := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(v2, "memory.current"), "4096\n")
	writeFile(t, filepath.Join(v1, "memory.usage_in_bytes"), "8192\n")
	for dir, want := range map[string]sample.Num{v2: sample.Known(4), v1: sample.Known(8), t.TempDir(): {}, "": {}} {
		if got := cgroupKiB(dir); got != want {
			t.Errorf("%q: %+v, want %+v", dir, got, want)
		}
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	r := newRing(4)
	if _, ok := r.last(); ok {
		t.Error("a last sample of none")
	}
	t0 := time.Unix(1_800_000_000, 0)
	for i := range 6 {
		r.add(sample.Sample{T: t0.Add(time.Duration(i) * time.Second), Missed: i})
		if last, ok := r.last(); !ok || last.Missed != i {
			t.Errorf("last after %d: %d", i, last.Missed)
		}
	}
	for from, want := range map[int][]int{0: {2, 3, 4, 5}, 4: {4, 5}, 6: {}} {
		got := r.since(t0.Add(time.Duration(from) * time.Second))
		if len(got) != len(want) {
			t.Errorf("since %d: %d samples, want %v", from, len(got), want)
			continue
		}
		for i := range got {
			if got[i].Missed != want[i] {
				t.Errorf("since %d: sample %d is %d, want %v", from, i, got[i].Missed, want)
			}
		}
	}
}

func TestAReadingStandsInOneRowOnly(t *testing.T) {
	t.Parallel()
	r := startRun(t, Options{Tick: time.Hour, Interval: time.Hour})
	r.until("the first row", func(sample.Sample) bool { return true })
	r.hear(&record{GPU: &sample.GPU{T: r.opts.Clock.Boot + 1, TempC: sample.Known(68)}})
	r.tick(0)
	if s, _ := r.Last(); !s.TempC.OK || s.GPUAge <= 0 {
		t.Errorf("first row: %+v", s.GPU)
	}
	r.tick(0)
	if s, _ := r.Last(); s.TempC.OK {
		t.Errorf("an old reading looks fresh: %+v", s.GPU)
	}
	r.hear(&record{GPU: &sample.GPU{T: r.opts.Clock.Boot - maxAge, TempC: sample.Known(68)}})
	r.tick(0)
	if s, _ := r.Last(); s.TempC.OK {
		t.Errorf("a reading of %v ago stands in a row", maxAge)
	}
}

func TestFailuresAreToldWhenTheyBeginAndEnd(t *testing.T) {
	t.Parallel()
	r := startRun(t, Options{Tick: time.Hour, Interval: time.Hour})
	r.until("the first row", func(sample.Sample) bool { return true })
	for second, failed := range []map[string]string{
		{"temp_gpu_c": "timed out"},
		{"temp_gpu_c": "timed out"},
		{"nvml": "no answer for 2 s"},
		{"nvml": "no answer for 3 s"},
		// Seconds 4 to 8: everything answers.
		nil, nil, nil, nil, nil,
	} {
		at := r.opts.Clock.Boot + time.Duration(second-20)*time.Second
		r.hear(&record{GPU: &sample.GPU{T: at, Failed: failed}})
	}
	var got []string
	for _, e := range r.all(event.SensorGap) {
		got = append(got, r.opts.Clock.Mono(e.T).String()+" "+e.Msg)
	}
	want := []string{
		"-20s readings of temp_gpu_c stopped: timed out",
		"-18s GPU readings stopped: no answer for 2 s",
		"-13s GPU readings came back after 2 s",
		"-13s readings of temp_gpu_c came back after 4 s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAGPUThatComesLateIsTold(t *testing.T) {
	t.Parallel()
	r := startRun(t, Options{Tick: time.Hour, Interval: time.Hour})
	none := sample.Device{Source: "none", ErrKind: "no-driver", Err: "the NVIDIA kernel driver is not loaded"}
	for range 3 {
		r.hear(&record{Device: &none})
	}
	there := sample.Device{Source: "nvml", Name: "NVIDIA GB10", Absent: []string{"clock_mem_mhz"}}
	for range 3 {
		r.hear(&record{Device: &there})
	}
	var got []string
	for _, e := range r.all("") {
		if e.Data["absent"] == nil || strings.Contains(e.Msg, "this machine") {
			got = append(got, string(e.Kind)+" "+e.Msg)
		}
	}
	want := []string{
		"sensor.absent no GPU readings: the NVIDIA kernel driver is not loaded",
		"sensor.gap GPU readings began: NVIDIA GB10",
		"sensor.absent this machine does not report: clock_mem_mhz",
	}
	if !slices.Equal(got, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
