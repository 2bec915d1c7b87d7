//go:build linux && cgo && (amd64 || arm64)

package nvml

import (
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"

	"sparkrun/internal/meminfo"
	"sparkrun/internal/sample"
	"sparkrun/sampler/nvml/internal/trampoline"
)

// Built says whether this build can read NVML at all.
const Built = true

// The names of the readings, as in telemetry.csv.
const (
	rTemp      = "temp_gpu_c"
	rPower     = "power_gpu_w"
	rClockSM   = "clock_sm_mhz"
	rClockMem  = "clock_mem_mhz"
	rUtil      = "util_gpu_pct"
	rPState    = "pstate"
	rReasons   = "reasons_hex"
	rEnergy    = "energy_j"
	rProcesses = "processes"
	rMemTotal  = "memory_total_mib"
)

// counters are the field ids of nanoseconds spent in each state
// (NVML_FI_DEV_CLOCKS_EVENT_REASON_*; nvml.h gives their unit as ns).
var counters = [...]struct {
	id   uint32
	name string
}{
	{nv.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, "ctr_swpower_ns"},
	{nv.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, "ctr_swthermal_ns"},
	{nv.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, "ctr_hwthermal_ns"},
	{nv.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, "ctr_hwpower_ns"},
}

// Reader reads the first GPU that the driver shows. It is not safe for use by
// several goroutines, and there is one per process: go-nvml keeps its symbol
// table in package variables.
type Reader struct {
	lib    nv.Interface
	gpu    nv.Device
	device sample.Device
	// absent holds the readings this machine does not have. They are found
	// out once and not asked for again: on unified memory a warning per poll
	// would be a warning per second, for ever.
	absent map[string]bool
	fields []nv.FieldValue
	// answered are the readings that there has been an answer to: of those "not
	// supported" is a failure that passes, as while a driver is busy with itself.
	answered map[string]bool
	// oldReasons is set where only the deprecated call exists.
	oldReasons bool
	// dead is why the device as a whole did not answer the last Read.
	dead *Error
}

// Open loads the library, initialises it and takes one reading to learn what
// this machine has. Its errors are *Error. It may block as long as the driver
// likes.
func Open() (*Reader, error) {
	path, err := Library()
	if err != nil {
		return nil, &Error{Kind: NoLibrary, Text: err.Error()}
	}
	if err := trampoline.Load(path); err != nil {
		e := errorFor(codeLibraryNotFound)
		if filepath.IsAbs(path) {
			e.Text = err.Error()
		}
		return nil, e
	}
	lib := nv.New(nv.WithLibraryPath(path))
	if ret := lib.Init(); ret != nv.SUCCESS {
		return nil, errorFor(int(ret))
	}
	r := &Reader{lib: lib, absent: make(map[string]bool), answered: make(map[string]bool)}
	if err := r.identify(); err != nil {
		_ = lib.Shutdown() // the first error is the one to tell
		return nil, err
	}
	var g sample.GPU
	r.Read(&g)
	return r, nil
}

// identify fills the device record. Only the handle must be had; everything
// else may be missing.
func (r *Reader) identify() error {
	count, ret := r.lib.DeviceGetCount()
	if ret != nv.SUCCESS {
		return errorFor(int(ret))
	}
	if count == 0 {
		return errorFor(codeGPUNotFound)
	}
	gpu, ret := r.lib.DeviceGetHandleByIndex(0)
	if ret != nv.SUCCESS {
		return errorFor(int(ret))
	}
	r.gpu = gpu
	d := sample.Device{Source: "nvml", Count: count}
	if s, ret := gpu.GetName(); ret == nv.SUCCESS {
		d.Name = s
	}
	if s, ret := gpu.GetUUID(); ret == nv.SUCCESS {
		d.UUID = s
	}
	if s, ret := r.lib.SystemGetDriverVersion(); ret == nv.SUCCESS {
		d.DriverVersion = s
	}
	if v, ret := r.lib.SystemGetCudaDriverVersion(); ret == nv.SUCCESS {
		d.CUDADriver = v
	}
	if major, minor, ret := gpu.GetCudaComputeCapability(); ret == nv.SUCCESS {
		d.CapMajor, d.CapMinor = major, minor
	}
	m, ret := gpu.GetMemoryInfo()
	if ret == nv.SUCCESS {
		machine := 0.0
		if info, err := meminfo.Read("/"); err == nil {
			machine = float64(info["MemTotal"]) / 1024
		}
		d.MemoryTotalMiB = memoryTotal(d.Name, float64(m.Total)/(1<<20), machine)
	}
	if absent(int(ret)) || ret == nv.SUCCESS && !d.MemoryTotalMiB.OK {
		r.absent[rMemTotal] = true
	}
	r.device = d
	return nil
}

// Device returns what does not change while the driver is loaded, and which
// readings this machine has been found not to have.
func (r *Reader) Device() sample.Device {
	d := r.device
	d.Absent = make([]string, 0, len(r.absent))
	for name := range r.absent {
		d.Absent = append(d.Absent, name)
	}
	slices.Sort(d.Absent)
	return d
}

// Read fills the GPU readings of g. What this machine does not have stays
// unknown; what fails this time stays unknown and is named in g.Failed. When
// the GPU or the driver as a whole does not answer, the rest is not asked and
// g.Failed has the single key "nvml".
func (r *Reader) Read(g *sample.GPU) {
	r.dead = nil
	t := tick{r: r, g: g}
	t.number(rTemp, &g.TempC, maxTempC, func() (float64, nv.Return) {
		v, ret := r.gpu.GetTemperature(nv.TEMPERATURE_GPU)
		return float64(v), ret
	})
	t.number(rPower, &g.PowerW, maxWatts, func() (float64, nv.Return) {
		mw, ret := r.gpu.GetPowerUsage()
		return float64(mw) / 1000, ret
	})
	t.number(rClockSM, &g.ClockSMMHz, maxClockMHz, func() (float64, nv.Return) {
		v, ret := r.gpu.GetClockInfo(nv.CLOCK_SM)
		return float64(v), ret
	})
	t.number(rClockMem, &g.ClockMemMHz, maxClockMHz, func() (float64, nv.Return) {
		v, ret := r.gpu.GetClockInfo(nv.CLOCK_MEM)
		return float64(v), ret
	})
	t.number(rUtil, &g.UtilPct, maxPercent, func() (float64, nv.Return) {
		v, ret := r.gpu.GetUtilizationRates()
		return float64(v.Gpu), ret
	})
	t.number(rPState, &g.PState, float64(nv.PSTATE_15), r.pstate)
	t.number(rReasons, &g.ReasonBits, maxReasons, r.reasons)
	t.number(rEnergy, &g.EnergyJ, maxJoules, func() (float64, nv.Return) {
		mj, ret := r.gpu.GetTotalEnergyConsumption()
		return float64(mj) / 1000, ret
	})
	t.counters()
	t.processes()
	t.nothing()
}

// nothing takes a device of which every reading fails, with whatever status, for one
// that does not answer as a whole: that is what a driver looks like which was loaded anew
// under an open library.
func (t *tick) nothing() {
	if t.dead || t.answers > 0 || len(t.g.Failed) < 2 {
		return
	}
	t.dead = true
	t.r.dead = errorFor(t.code)
	t.g.Failed = map[string]string{"nvml": t.r.dead.Text}
}

// Dead returns why the GPU or the driver as a whole did not answer the last Read,
// nil when it did.
func (r *Reader) Dead() *Error { return r.dead }

// Close shuts NVML down. The library stays mapped.
func (r *Reader) Close() { _ = r.lib.Shutdown() }

func (r *Reader) pstate() (float64, nv.Return) {
	// NVML_PSTATE_UNKNOWN is 32: an answer, but no number.
	v, ret := r.gpu.GetPerformanceState()
	return float64(v), ret
}

// reasons asks the current call, and the one of drivers before 535 where the
// library does not have it.
func (r *Reader) reasons() (float64, nv.Return) {
	if !r.oldReasons {
		v, ret := r.gpu.GetCurrentClocksEventReasons()
		if !absent(int(ret)) {
			return float64(v), ret
		}
		r.oldReasons = true
	}
	v, ret := r.gpu.GetCurrentClocksThrottleReasons()
	return float64(v), ret
}

// tick is one pass over all readings.
type tick struct {
	r    *Reader
	g    *sample.GPU
	dead bool
	// answers counts the readings that there was an answer to, a value or that there is
	// none; code is the status of the last that failed.
	answers, code int
}

// number takes one reading; a value beyond most is none.
func (t *tick) number(name string, to *sample.Num, most float64, read func() (float64, nv.Return)) {
	if t.dead || t.r.absent[name] {
		return
	}
	v, ret := read()
	if t.ok(name, int(ret)) {
		*to = upTo(most, v)
	}
}

func upTo(most, v float64) sample.Num {
	if v < 0 || v > most {
		return sample.Num{}
	}
	return sample.Known(v)
}

// ok files a status: nothing to say, absent for good, failed this time, or the
// whole device gone.
func (t *tick) ok(name string, code int) bool {
	switch {
	case code == int(nv.SUCCESS):
		t.r.answered[name] = true
		t.answers++
		return true
	case absent(code) && !t.r.answered[name]:
		t.r.absent[name] = true
	case code == int(nv.ERROR_NO_DATA):
		// Nothing measured yet: unknown, and no failure.
		t.answers++
	case wholeDevice(code):
		t.dead = true
		t.r.dead = errorFor(code)
		t.g.Failed = map[string]string{"nvml": t.r.dead.Text}
	default:
		t.code = code
		if t.g.Failed == nil {
			t.g.Failed = make(map[string]string)
		}
		t.g.Failed[name] = errorFor(code).Text
	}
	return false
}

func (t *tick) counters() {
	if t.dead {
		return
	}
	r, fields := t.r, t.r.fields[:0]
	for _, c := range counters {
		if !r.absent[c.name] {
			fields = append(fields, nv.FieldValue{FieldId: c.id})
		}
	}
	r.fields = fields
	if len(fields) == 0 {
		return
	}
	code := int(r.gpu.GetFieldValues(fields))
	for _, c := range counters {
		i := slices.IndexFunc(fields, func(f nv.FieldValue) bool { return f.FieldId == c.id })
		if i < 0 || t.dead {
			continue
		}
		status := code
		if status == int(nv.SUCCESS) {
			status = int(fields[i].NvmlReturn)
		}
		if !t.ok(c.name, status) {
			continue
		}
		v, err := fieldValue(nv.ValueType(fields[i].ValueType), fields[i].Value)
		if err != nil {
			r.absent[c.name] = true
			continue
		}
		*counter(t.g, c.id) = upTo(maxNS, v)
	}
}

func counter(g *sample.GPU, id uint32) *sample.Num {
	switch id {
	case nv.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP:
		return &g.CtrSWPowerNS
	case nv.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN:
		return &g.CtrSWThermalNS
	case nv.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN:
		return &g.CtrHWThermalNS
	default:
		return &g.CtrHWPowerNS
	}
}

// fieldValue reads nvmlValue_t, a union that the type says how to read. The
// supported machines are all little endian.
func fieldValue(kind nv.ValueType, b [8]byte) (float64, error) {
	bits := binary.LittleEndian.Uint64(b[:])
	switch kind {
	case nv.VALUE_TYPE_DOUBLE:
		v := math.Float64frombits(bits)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return 0, fmt.Errorf("NVML field value is %v", v)
		}
		return v, nil
	case nv.VALUE_TYPE_UNSIGNED_INT:
		return float64(uint32(bits)), nil
	case nv.VALUE_TYPE_UNSIGNED_LONG, nv.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return float64(bits), nil
	case nv.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(bits)), nil
	case nv.VALUE_TYPE_SIGNED_INT:
		return float64(int32(bits)), nil
	case nv.VALUE_TYPE_UNSIGNED_SHORT:
		return float64(uint16(bits)), nil
	}
	return 0, fmt.Errorf("NVML field value of unknown type %d", kind)
}

func (t *tick) processes() {
	if t.dead || t.r.absent[rProcesses] {
		return
	}
	infos, ret := t.r.gpu.GetComputeRunningProcesses()
	if !t.ok(rProcesses, int(ret)) {
		return
	}
	t.g.Processes = make([]sample.GPUProcess, 0, len(infos))
	for _, p := range infos {
		proc := sample.GPUProcess{PID: int(p.Pid)}
		// NVML_VALUE_NOT_AVAILABLE is all ones.
		if p.UsedGpuMemory != math.MaxUint64 {
			proc.UsedMiB = sample.Known(float64(p.UsedGpuMemory) / (1 << 20))
		}
		t.g.Processes = append(t.g.Processes, proc)
	}
}
