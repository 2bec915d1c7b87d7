package smi

import (
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/sample"
	"sparkrun/sampler/nvml"
)

// field is one field of --query-gpu.
type field struct {
	// query is its name for nvidia-smi, older what drivers before 535 call it.
	query, older string
	// name is the reading's name in telemetry.csv.
	name string
	// max is the highest value that can be true.
	max float64
	// set stores the value.
	set func(*sample.GPU, float64)
}

// fields are the readings that nvidia-smi gives. What NVML has beyond them (the
// energy counter) stays unknown. Counters are printed in microseconds.
var fields = []field{
	{query: "temperature.gpu", name: "temp_gpu_c", max: 200, set: func(g *sample.GPU, v float64) { g.TempC = sample.Known(v) }},
	{query: "power.draw", name: "power_gpu_w", max: 5000, set: func(g *sample.GPU, v float64) { g.PowerW = sample.Known(v) }},
	{query: "clocks.sm", name: "clock_sm_mhz", max: 20_000, set: func(g *sample.GPU, v float64) { g.ClockSMMHz = sample.Known(v) }},
	{query: "clocks.mem", name: "clock_mem_mhz", max: 50_000, set: func(g *sample.GPU, v float64) { g.ClockMemMHz = sample.Known(v) }},
	{query: "utilization.gpu", name: "util_gpu_pct", max: 100, set: func(g *sample.GPU, v float64) { g.UtilPct = sample.Known(v) }},
	{query: "pstate", name: "pstate", max: 15, set: func(g *sample.GPU, v float64) { g.PState = sample.Known(v) }},
	{
		query: "clocks_event_reasons.active", older: "clocks_throttle_reasons.active",
		name: "reasons_hex", max: 1 << 32, set: func(g *sample.GPU, v float64) { g.ReasonBits = sample.Known(v) },
	},
	{
		query: "clocks_event_reasons_counters.sw_power_cap",
		name:  "ctr_swpower_ns", max: 4e15, set: func(g *sample.GPU, v float64) { g.CtrSWPowerNS = sample.Known(v * 1000) },
	},
	{
		query: "clocks_event_reasons_counters.sw_thermal_slowdown",
		name:  "ctr_swthermal_ns", max: 4e15, set: func(g *sample.GPU, v float64) { g.CtrSWThermalNS = sample.Known(v * 1000) },
	},
	{
		query: "clocks_event_reasons_counters.hw_thermal_slowdown",
		name:  "ctr_hwthermal_ns", max: 4e15, set: func(g *sample.GPU, v float64) { g.CtrHWThermalNS = sample.Known(v * 1000) },
	},
	{
		query: "clocks_event_reasons_counters.hw_power_brake_slowdown",
		name:  "ctr_hwpower_ns", max: 4e15, set: func(g *sample.GPU, v float64) { g.CtrHWPowerNS = sample.Known(v * 1000) },
	},
}

// energy is the reading that NVML has and nvidia-smi does not.
const energy = "energy_j"

// cell is what stands in one cell of nvidia-smi's CSV.
type cell int

const (
	number cell = iota
	// absent is a reading this GPU does not have, failed one that it did not
	// give this time.
	absent
	failed
)

var units = []string{"W", "MHz", "%", "MiB", "us", "C"}

// parseCell reads a cell. Units are tolerated: some versions print them in spite
// of nounits.
func parseCell(s string) (float64, cell) {
	s = strings.TrimSpace(s)
	switch strings.ToLower(strings.Trim(s, "[]")) {
	case "n/a", "not supported", "not available", "unsupported", "function not found", "deprecated", "requested functionality has been deprecated":
		return 0, absent
	}
	s, unit, _ := strings.Cut(s, " ")
	if unit != "" && !slices.Contains(units, unit) {
		return 0, failed
	}
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		v, err := strconv.ParseUint(hex, 16, 64)
		if err != nil {
			return 0, failed
		}
		return float64(v), number
	}
	if n, ok := strings.CutPrefix(s, "P"); ok {
		s = n
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || v < 0 || v != v {
		return 0, failed
	}
	return v, number
}

// parseRow reads one line into g and returns the readings this GPU does not
// have. ok is false for a line that is no row: nvidia-smi prints what goes wrong
// where rows are expected.
func parseRow(line string, of []field, g *sample.GPU) (missing []string, ok bool) {
	cells := strings.Split(strings.TrimSpace(line), ",")
	if len(cells) != len(of) {
		return nil, false
	}
	known := 0
	for i, f := range of {
		text := strings.TrimSpace(cells[i])
		v, kind := parseCell(text)
		switch {
		case kind == absent:
			missing = append(missing, f.name)
		case kind == number && v <= f.max:
			f.set(g, v)
			known++
		default:
			if g.Failed == nil {
				g.Failed = make(map[string]string)
			}
			g.Failed[f.name] = "nvidia-smi says " + strconv.Quote(text)
		}
	}
	// A row without any number is a header, a sentence with commas, or that of
	// a GPU that does not answer.
	return missing, known > 0
}

// isHeader tells the line of names that some versions print in spite of noheader.
func isHeader(line string, of []field) bool { return strings.HasPrefix(line, of[0].query) }

// parseApps reads the rows of --query-compute-apps=pid,used_memory; nil for
// anything that is no such row.
func parseApps(out string) []sample.GPUProcess {
	apps := []sample.GPUProcess{}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		// Nothing runs: some versions print a sentence, none a row.
		if line == "" || strings.HasPrefix(line, "No running processes") {
			continue
		}
		cells := strings.Split(line, ",")
		pid, err := strconv.Atoi(strings.TrimSpace(cells[0]))
		if err != nil || pid <= 0 || len(cells) != 2 {
			return nil
		}
		p := sample.GPUProcess{PID: pid}
		if v, kind := parseCell(cells[1]); kind == number {
			p.UsedMiB = sample.Known(v)
		}
		apps = append(apps, p)
	}
	return apps
}

// deviceQuery is asked once; its order is that of parseDevice.
const deviceQuery = "name,uuid,driver_version,compute_cap,memory.total"

func parseDevice(line string) (d sample.Device, ok bool) {
	cells := strings.Split(strings.TrimSpace(line), ",")
	if len(cells) != 5 {
		return d, false
	}
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
		if _, kind := parseCell(cells[i]); kind == absent {
			cells[i] = ""
		}
	}
	d = sample.Device{Source: "nvidia-smi", Name: cells[0], UUID: cells[1], DriverVersion: cells[2], Count: 1}
	if major, minor, ok := strings.Cut(cells[3], "."); ok {
		d.CapMajor, _ = strconv.Atoi(major)
		d.CapMinor, _ = strconv.Atoi(minor)
	}
	if v, kind := parseCell(cells[4]); cells[4] != "" && kind == number && !nvml.Unified(d.Name) {
		d.MemoryTotalMiB = sample.Known(v)
	} else {
		d.Absent = []string{"memory_total_mib"}
	}
	return d, d.Name != ""
}

// failures are the beginnings of what nvidia-smi says in place of rows.
var failures = []struct {
	has  string
	kind nvml.Kind
}{
	{"couldn't communicate with the NVIDIA driver", nvml.NoDriver},
	{"Driver/library version mismatch", nvml.NoDriver},
	{"No devices were found", nvml.NoDevice},
	{"GPU is lost", nvml.Lost},
	{"GPU requires reset", nvml.ResetRequired},
	{"shared library", nvml.NoLibrary},
}

// errorFor makes an error of nvidia-smi's own words.
func errorFor(said string) *nvml.Error {
	said = strings.Join(strings.Fields(said), " ")
	if len(said) > 300 {
		said = strings.ToValidUTF8(said[:300], "") + "..."
	}
	e := &nvml.Error{Kind: nvml.Other, Text: "nvidia-smi says: " + said}
	for _, f := range failures {
		if strings.Contains(said, f.has) {
			e.Kind = f.kind
		}
	}
	if said == "" {
		e.Text = "nvidia-smi says nothing"
	}
	return e
}

// without returns the fields that are left when nvidia-smi does not know one,
// from what it says about it ('Field "x" is not a valid field to query.'); ok is
// false where it says something else.
func without(of []field, said string) (left []field, ok bool) {
	_, rest, found := strings.Cut(said, `Field "`)
	name, rest, quoted := strings.Cut(rest, `"`)
	if !found || !quoted || !strings.Contains(rest, "not a valid field") {
		return of, false
	}
	i := slices.IndexFunc(of, func(f field) bool { return f.query == name })
	if i < 0 || len(of) == 1 {
		return of, false
	}
	left = slices.Clone(of)
	if older := left[i].older; older != "" {
		left[i].query, left[i].older = older, ""
		return left, true
	}
	return slices.Delete(left, i, i+1), true
}

func queries(of []field) string {
	names := make([]string, len(of))
	for i, f := range of {
		names[i] = f.query
	}
	return strings.Join(names, ",")
}
