package sampler

import (
	"time"

	"sparkrun/internal/sample"
)

// What sampler/standalone shares with the sampler of a run: the forms of the two files and
// the reading of the kernel's figures.

// ThermalHeader returns the first line of thermal.csv, with its newline.
func ThermalHeader() []byte { return []byte(thermalHeader) }

// ThermalRow returns a line of thermal.csv as nvidia-smi writes it: t in its own zone,
// degrees Celsius, watts.
func ThermalRow(t time.Time, tempC, powerW sample.Num) []byte { return thermalRow(t, tempC, powerW) }

// TelemetryHeader returns the first line of telemetry.csv, with its newline.
func TelemetryHeader() []byte { return telemetryHeader() }

// Kernel reads what the kernel says about memory, load and pressure, for rows of telemetry
// outside any run. It belongs to one goroutine.
type Kernel struct{ figures figures }

// NewKernel returns a reader of the machine whose /proc is below root.
func NewKernel(root string) *Kernel { return &Kernel{newFigures(root)} }

// Read fills in what the kernel says now, and from the reading that the row has already
// the GPU memory that processes hold.
func (k *Kernel) Read(row *sample.Sample) {
	k.figures.read(row)
	splitGPUMemory(row, nil, false)
}

// Close gives the files back.
func (k *Kernel) Close() { k.figures.close() }
