package sampler

import (
	"errors"
	"os"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
	"sparkrun/sampler/nvml"
	"sparkrun/sampler/smi"
)

// reopen is how soon NVML is tried again, quietly, after a GPU has gone or where
// there is none.
const reopen = time.Minute

// gpuReader keeps a reader of the GPU open: NVML, or nvidia-smi where NVML
// cannot be loaded.
type gpuReader struct {
	// interval is the time between readings, wait how long one may wait for a
	// row of nvidia-smi.
	interval, wait time.Duration
	reopen         time.Duration
	// smiPath is the nvidia-smi to use, "off" for none, empty for the one on
	// the PATH.
	smiPath string

	nvml *nvml.Reader
	smi  *smi.Reader
	// device is what was said last about a GPU that cannot be read.
	device sample.Device
	tried  time.Time
	// worked is set once there was a GPU: from then on one that is gone is a
	// failure and not a machine without a GPU.
	worked bool
	// gone is set while a GPU that was there cannot be read, failing since when
	// it does not answer.
	gone    bool
	failing time.Time
	// why is why nvidia-smi is read.
	why string
}

func (r *gpuReader) read() answer {
	start := time.Now()
	if (r.gone || r.nvml == nil && r.smi == nil) && (r.tried.IsZero() || start.Sub(r.tried) >= r.reopen) {
		r.open()
	}
	a := answer{gpu: sample.GPU{T: clock.Boottime()}}
	switch {
	case r.gone || r.nvml == nil && r.smi == nil:
		if r.worked {
			a.gpu.Failed = map[string]string{"nvml": r.device.Err}
		}
		a.device = r.device
	case r.smi != nil:
		r.smi.Read(&a.gpu, r.wait)
		a.device = r.smi.Device()
		a.device.Err = r.why
	default:
		r.nvml.Read(&a.gpu)
		a.gpu.Took = time.Since(start)
		a.device = r.nvml.Device()
		if r.lost(start, a.device) {
			a.device = r.device
		}
	}
	return a
}

// lost notes whether the device as a whole has stopped answering: for one that
// has fallen off the bus at once, for one that may come back, a driver that is
// loaded anew, after some time. It is then asked no more, until it is opened.
func (r *gpuReader) lost(now time.Time, was sample.Device) bool {
	dead := r.nvml.Dead()
	if dead == nil {
		r.failing = time.Time{}
		return false
	}
	if r.failing.IsZero() {
		r.failing = now
	}
	if !final(dead) && now.Sub(r.failing) < r.reopen {
		return false
	}
	r.giveUp(now, was, dead)
	return true
}

func (r *gpuReader) giveUp(now time.Time, was sample.Device, dead *nvml.Error) {
	r.gone, r.tried, r.failing = true, now, time.Time{}
	was.Source, was.Err, was.ErrKind = "none", dead.Text, string(dead.Kind)
	r.device = was
}

// final reports whether a GPU does not come back by itself.
func final(e *nvml.Error) bool { return e.Kind == nvml.Lost || e.Kind == nvml.ResetRequired }

func (r *gpuReader) open() {
	r.tried = time.Now()
	if r.nvml != nil {
		// Only now: with a GPU that is lost this may take its time.
		r.nvml.Close()
		r.nvml = nil
	}
	was := r.device
	reader, err := nvml.Open()
	if err != nil {
		r.device = noDevice(err)
		if r.gone {
			// It is still the same machine.
			was.Err, was.ErrKind = r.device.Err, r.device.ErrKind
			r.device = was
		}
		r.openSMI(err)
		return
	}
	r.nvml, r.gone, r.worked = reader, false, true
	if dead := reader.Dead(); dead != nil && final(dead) {
		r.giveUp(r.tried, reader.Device(), dead)
	}
}

// openSMI falls back on nvidia-smi, where NVML cannot be loaded at all. A
// library that was asked for by name is not replaced.
func (r *gpuReader) openSMI(err error) {
	exe := r.smiPath
	var e *nvml.Error
	if !errors.As(err, &e) || e.Kind != nvml.NoLibrary || exe == "off" || exe == "" && os.Getenv(nvml.LibraryEnv) != "" {
		return
	}
	if exe == "" {
		var ferr error
		if exe, ferr = smi.Find(); ferr != nil {
			return
		}
	}
	reader, serr := smi.Open(exe, r.interval)
	if serr != nil {
		r.device = noDevice(serr)
		r.device.Err = err.Error() + "; " + serr.Error()
		return
	}
	r.smi, r.worked, r.gone = reader, true, false
	r.why = err.Error() + "; the readings are those of nvidia-smi"
}

// noDevice is the device record of a machine whose GPU cannot be read.
func noDevice(err error) sample.Device {
	d := sample.Device{Source: "none", Err: err.Error(), ErrKind: string(nvml.Other)}
	var e *nvml.Error
	if errors.As(err, &e) {
		d.ErrKind = string(e.Kind)
	}
	return d
}
