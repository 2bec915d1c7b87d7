package preflight

import (
	"context"
	"fmt"
	"strings"
)

type identitySeen struct{}

// All of it is among the shared facts.
func lookIdentity(context.Context, view) identitySeen { return identitySeen{} }

// verify is what the runbook has a person run inside the environment, and its answer.
const verify = `inside the environment of the training, python -c "import torch; print(torch.cuda.is_available(), torch.version.cuda)" must print: True %d.0`

// judgeIdentity is H2: is this the machine that all the other checks are about. It comes
// first in the runbook: a mismatch invalidates every downstream check.
func judgeIdentity(_ identitySeen, f facts) Finding {
	hw, dev, want := f.hardware, f.gpu.dev, f.stack.Spark
	machine := f.machine
	if machine == "" {
		machine = "machine type unknown"
	}
	name := systemName(hw)
	if !f.spark() {
		found := Finding{Status: Info, Detail: "not a DGX Spark: " + machine}
		if name != "" {
			found.Detail += ", " + name
		}
		if f.gpu.ok() {
			found.Detail += ", " + gpuWords(f.gpu)
		} else if !f.gpuHere() {
			found.Detail += ", no NVIDIA GPU"
		}
		found.Detail += "; checks of the Spark alone are left out"
		if hw.sparkDMI || strings.Contains(hw.release.name, "DGX Spark") {
			found.Status = Warn
			found.Detail = fmt.Sprintf("the maker says DGX Spark, yet the GPU is %s: checks of the Spark are left out", orUnknown(dev.Name))
			found.Fix = "nvidia-smi -L\nlspci -nn | grep -i nvidia"
			found.Cost = "what the runbook says of the Spark may not hold here"
		}
		return found
	}
	found := Finding{Status: Pass, Evidence: f.identityEvidence()}
	var wrong, fix []string
	if f.machine != "" && f.machine != want.Machine {
		wrong = append(wrong, fmt.Sprintf("this machine is %s, not %s", f.machine, want.Machine))
		fix = append(fix, "uname -m\nuse a system, and a build of this program, for "+want.Machine)
	}
	if f.gpu.ok() {
		if dev.CUDADriver > 0 && dev.CUDADriver/1000 != want.CUDAMajor {
			wrong = append(wrong, fmt.Sprintf("driver %s supports CUDA %s, not %d", orUnknown(dev.DriverVersion), cudaWords(dev.CUDADriver), want.CUDAMajor))
			fix = append(fix, "put the driver of DGX OS back, from apt and not from a .run file: sudo apt update && sudo apt full-upgrade && sudo reboot")
		}
		if dev.CapMajor > 0 && (dev.CapMajor != want.Capability[0] || dev.CapMinor != want.Capability[1]) {
			wrong = append(wrong, fmt.Sprintf("the GPU has capability %s, not %s", tuple(dev.CapMajor, dev.CapMinor), tuple(want.Capability[0], want.Capability[1])))
			fix = append(fix, "nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv")
		}
	}
	if name == "" {
		name = "a machine with the GPU of a DGX Spark"
	}
	if len(wrong) > 0 {
		found.Status = Warn
		found.Detail = strings.Join(wrong, "; ") + ": this invalidates every check below"
		found.Fix = strings.Join(fix, "\n")
		found.Cost = "the other checks may pass what will fail in the training"
		return found
	}
	found.Detail = machine + ", " + name
	if f.gpu.ok() {
		found.Detail += ", " + gpuWords(f.gpu)
	} else {
		found.Status = Info
		found.Detail += ", told by PCI and DMI only, since the driver does not answer (H1)"
	}
	return found
}

// systemName is what the machine calls itself.
func systemName(hw hardware) string {
	name := hw.release.name
	if name == "" {
		name = hw.product
	}
	if v := hw.release.ota; v != "" {
		name += ", DGX OS " + v
	} else if v := hw.release.build; v != "" {
		name += ", DGX OS " + v
	}
	return name
}

func gpuWords(a gpuAnswer) string {
	out := []string{orUnknown(a.dev.Name)}
	if a.dev.DriverVersion != "" {
		out = append(out, "driver "+a.dev.DriverVersion)
	}
	if a.dev.CUDADriver > 0 {
		out = append(out, "CUDA "+cudaWords(a.dev.CUDADriver))
	}
	if a.dev.CapMajor > 0 {
		out = append(out, "capability "+tuple(a.dev.CapMajor, a.dev.CapMinor))
	}
	return strings.Join(out, ", ")
}

func (f facts) identityEvidence() []string {
	hw := f.hardware
	var out []string
	for _, v := range [][2]string{
		{"uname -m", f.machine},
		{"DMI product", hw.product},
		{"/etc/dgx-release", hw.release.name},
		{"software build", hw.release.build},
		{"OTA version", hw.release.ota},
	} {
		if v[1] != "" {
			out = append(out, v[0]+": "+v[1])
		}
	}
	return append(out, fmt.Sprintf(verify, f.stack.Spark.CUDAMajor))
}
