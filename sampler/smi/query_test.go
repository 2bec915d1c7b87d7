package smi

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/sample"
	"sparkrun/sampler/nvml"
)

// pick returns the fields of these readings, in this order.
func pick(t *testing.T, names ...string) []field {
	t.Helper()
	var of []field
	for _, name := range names {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 {
			t.Fatalf("no field %s", name)
		}
		of = append(of, fields[i])
	}
	return of
}

func TestRows(t *testing.T) {
	t.Parallel()
	known := sample.Known
	for name, c := range map[string]struct {
		fields  []string
		line    string
		want    sample.GPU
		missing []string
		ok      bool
	}{
		// Rows as GB10 machines printed them.
		"with units": {
			[]string{"util_gpu_pct", "power_gpu_w", "temp_gpu_c"},
			"0 %, 11.17 W, 35",
			sample.GPU{UtilPct: known(0), PowerW: known(11.17), TempC: known(35)},
			nil, true,
		},
		"without units": {
			[]string{"util_gpu_pct", "temp_gpu_c", "power_gpu_w", "clock_mem_mhz", "clock_sm_mhz"},
			"0, 52, 10.8, [N/A], 2405\r",
			sample.GPU{UtilPct: known(0), TempC: known(52), PowerW: known(10.8), ClockSMMHz: known(2405)},
			[]string{"clock_mem_mhz"},
			true,
		},
		"clocks with units": {
			[]string{"clock_sm_mhz", "temp_gpu_c", "power_gpu_w"},
			"2522 MHz, 50, 15.57 W",
			sample.GPU{ClockSMMHz: known(2522), TempC: known(50), PowerW: known(15.57)},
			nil, true,
		},
		"P-state": {
			[]string{"temp_gpu_c", "pstate"}, "55, P0", sample.GPU{TempC: known(55), PState: known(0)}, nil, true,
		},
		"reasons and counters": {
			[]string{"reasons_hex", "ctr_swpower_ns", "ctr_hwthermal_ns"},
			"0x0000000000000068, 50284000000, 1195000",
			sample.GPU{ReasonBits: known(0x68), CtrSWPowerNS: known(50284e9), CtrHWThermalNS: known(1195e6)},
			nil, true,
		},
		"words for what there is not": {
			[]string{"temp_gpu_c", "clock_mem_mhz", "pstate", "ctr_swpower_ns"},
			"47, [Not Supported], N/A, [Requested functionality has been deprecated]",
			sample.GPU{TempC: known(47)},
			[]string{"clock_mem_mhz", "pstate", "ctr_swpower_ns"},
			true,
		},
		"one that failed": {
			[]string{"temp_gpu_c", "power_gpu_w", "util_gpu_pct"},
			"47, [Unknown Error], ERR!",
			sample.GPU{TempC: known(47), Failed: map[string]string{
				"power_gpu_w": `nvidia-smi says "[Unknown Error]"`, "util_gpu_pct": `nvidia-smi says "ERR!"`,
			}},
			nil, true,
		},
		"absurd": {
			[]string{"temp_gpu_c", "power_gpu_w", "util_gpu_pct"},
			"47, 4294967.29, -1",
			sample.GPU{TempC: known(47), Failed: map[string]string{
				"power_gpu_w": `nvidia-smi says "4294967.29"`, "util_gpu_pct": `nvidia-smi says "-1"`,
			}},
			nil, true,
		},
	} {
		var g sample.GPU
		missing, ok := parseRow(c.line, pick(t, c.fields...), &g)
		if ok != c.ok || !slices.Equal(missing, c.missing) {
			t.Errorf("%s: %v, missing %v", name, ok, missing)
		}
		if diff := cmp.Diff(c.want, g); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestLinesThatAreNoRows(t *testing.T) {
	t.Parallel()
	of := pick(t, "util_gpu_pct", "power_gpu_w", "temp_gpu_c")
	for _, line := range []string{
		"utilization.gpu [%], power.draw [W], temperature.gpu",
		"[GPU is lost], [GPU is lost], [GPU is lost]",
		"No devices were found",
		"",
		"35, 11",
		"35, 11, 12, 13",
		"| 35%, 11W, 12 |",
		"this, has, commas",
		"[N/A], [N/A], [N/A]",
		"NaN, nan, inf",
	} {
		var g sample.GPU
		if _, ok := parseRow(line, of, &g); ok {
			t.Errorf("%q was read as %+v", line, g)
		}
	}
	if !isHeader("utilization.gpu [%], power.draw [W], temperature.gpu", of) || isHeader("35, 11, 12", of) {
		t.Error("the header is not known")
	}
}

func TestApps(t *testing.T) {
	t.Parallel()
	for out, want := range map[string][]sample.GPUProcess{
		"3150, 218\n6330, 96073\n":             {{PID: 3150, UsedMiB: sample.Known(218)}, {PID: 6330, UsedMiB: sample.Known(96073)}},
		"3150, 218 MiB\n":                      {{PID: 3150, UsedMiB: sample.Known(218)}},
		"3150, [N/A]\n":                        {{PID: 3150}},
		"":                                     {},
		"No running processes found\n":         {},
		"NVIDIA-SMI has failed":                nil,
		"3150, python3, 218\n":                 nil,
		"-1, 218\n":                            nil,
		"3150, 218\nUnable to determine, x, y": nil,
	} {
		if got := parseApps(out); !cmp.Equal(got, want) {
			t.Errorf("%q: %+v, want %+v", out, got, want)
		}
	}
}

func TestDevices(t *testing.T) {
	t.Parallel()
	d, ok := parseDevice("NVIDIA GB10, GPU-00000000-1111-2222-3333-444444444444, 580.142, 12.1, [N/A]\n")
	if !ok || d.Name != "NVIDIA GB10" || d.DriverVersion != "580.142" || d.CapMajor != 12 || d.CapMinor != 1 || d.MemoryTotalMiB.OK ||
		!slices.Equal(d.Absent, []string{"memory_total_mib"}) || d.Source != "nvidia-smi" {
		t.Errorf("%+v %v", d, ok)
	}
	if d, ok = parseDevice("NVIDIA H200, GPU-0, 570.1, 9.0, 143771"); !ok || d.MemoryTotalMiB != sample.Known(143771) || len(d.Absent) != 0 {
		t.Errorf("%+v %v", d, ok)
	}
	for _, line := range []string{"", "No devices were found", "[N/A], [N/A], [N/A], [N/A], [N/A]"} {
		if d, ok := parseDevice(line); ok {
			t.Errorf("%q is a device: %+v", line, d)
		}
	}
}

func TestWhatNvidiaSmiSaysInPlaceOfRows(t *testing.T) {
	t.Parallel()
	for said, kind := range map[string]nvml.Kind{
		"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that ...": nvml.NoDriver,
		"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95":         nvml.NoDriver,
		"No devices were found": nvml.NoDevice,
		"Unable to determine the device handle for GPU0000000F:01:00.0: GPU is lost.": nvml.Lost,
		"something": nvml.Other,
		"":          nvml.Other,
	} {
		e := errorFor(said)
		if e.Kind != kind || strings.Contains(e.Text, "\n") || said != "" && !strings.Contains(e.Text, strings.Fields(said)[0]) {
			t.Errorf("%q: %s, %s", said, e.Kind, e.Text)
		}
	}
	if e := errorFor(strings.Repeat("é", 1000)); len(e.Text) > 400 {
		t.Errorf("%d bytes", len(e.Text))
	}
}

func TestFieldsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	say := func(name string) string { return `Field "` + name + `" is not a valid field to query.` }
	of := pick(t, "temp_gpu_c", "reasons_hex", "ctr_swpower_ns")
	of, ok := without(of, say("clocks_event_reasons_counters.sw_power_cap"))
	if !ok || queries(of) != "temperature.gpu,clocks_event_reasons.active" {
		t.Errorf("%s %v", queries(of), ok)
	}
	if of, ok = without(of, say("clocks_event_reasons.active")); !ok || queries(of) != "temperature.gpu,clocks_throttle_reasons.active" {
		t.Errorf("%s %v", queries(of), ok)
	}
	if of, ok = without(of, say("clocks_throttle_reasons.active")); !ok || queries(of) != "temperature.gpu" {
		t.Errorf("%s %v", queries(of), ok)
	}
	for _, said := range []string{say("temperature.gpu"), say("fan.speed"), "No devices were found", `Field "`} {
		if _, ok := without(of, said); ok {
			t.Errorf("%q was cured", said)
		}
	}
	if fields[6].older == "" {
		t.Error("the table of all fields was changed")
	}
}
