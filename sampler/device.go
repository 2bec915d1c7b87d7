package sampler

import (
	"errors"

	"sparkrun/internal/sample"
	"sparkrun/sampler/nvml"
)

// noDevice is the device record of a machine whose GPU cannot be read.
func noDevice(err error) sample.Device {
	d := sample.Device{Source: "none", Err: err.Error(), ErrKind: string(nvml.Other)}
	var e *nvml.Error
	if errors.As(err, &e) {
		d.ErrKind = string(e.Kind)
	}
	return d
}
