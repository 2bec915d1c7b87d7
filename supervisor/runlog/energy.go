package runlog

import (
	"math"

	"sparkrun/internal/sample"
	"sparkrun/sampler/energy"
)

// EnergyOf is run.json's form of what was used, nil where nothing is known.
func EnergyOf(f energy.Figures) *Energy {
	if !f.Known() {
		return nil
	}
	e := &Energy{
		GPUJ: milli(f.GPU.J), GPUFirmwareJ: milli(f.GPUFirmware.J), GPUFirmwareRatio: milli(f.Ratio),
		SoCJ: milli(f.SoC.J), MachineJ: milli(f.Machine.J), IdleW: milli(f.IdleW), AboveIdleJ: milli(f.AboveIdleJ),
		PerStepJ: milli(f.PerStep()), PerTokenJ: f.PerToken(), CounterResets: f.Resets,
	}
	if f.GPU.J.OK {
		e.GPUKnownS, e.GPUEstimate = milli(sample.Known(f.GPU.KnownS)), !f.GPU.Counted()
		e.GPUSource = EnergySource(f.GPU)
	}
	if e.PerTokenJ.OK { // small: by digits, not decimals
		p := math.Pow(10, 4-math.Floor(math.Log10(e.PerTokenJ.V)))
		e.PerTokenJ.V = math.Round(e.PerTokenJ.V*p) / p
	}
	return e
}

// EnergySource is what told an amount: FromCounter, FromPower or FromBoth.
func EnergySource(a energy.Amount) string {
	switch {
	case a.Counted():
		return FromCounter
	case a.EstimatedS >= 0.95*a.KnownS:
		return FromPower
	}
	return FromBoth
}

// milli leaves three decimals.
func milli(n sample.Num) sample.Num {
	if n.OK {
		n.V = math.Round(n.V*1000) / 1000
	}
	return n
}
