package preflight

import "fmt"

// judgeDriver is H1: does the NVIDIA driver answer. A training on a machine
// whose driver cannot work fails at its first CUDA call, or trains on the CPU,
// so this is the one host check that blocks.
func judgeDriver(f facts) Finding {
	a, hw := f.gpu, f.hardware
	var evidence []string
	if hw.moduleVersion != "" {
		evidence = append(evidence, "/proc/driver/nvidia/version: "+hw.moduleVersion)
	} else if hw.pciGPU {
		evidence = append(evidence, "an NVIDIA GPU on the PCI bus, no /proc/driver/nvidia/version")
	}
	const triage = "sudo dmesg | grep -i nvidia\nlsmod | grep nvidia\ncat /proc/driver/nvidia/version\n"
	switch {
	case driverDead(hw, a):
		found := Finding{Status: Fail, Evidence: evidence, Detail: "the NVIDIA driver does not work: " + a.why()}
		switch a.dev.ErrKind {
		case "lost", "reset-required":
			found.Fix = triage + "then reboot; if it comes back, power the machine off and unplug it for a minute"
		default:
			found.Fix = triage + "usually the kernel or the driver was updated and the loaded module is of another version: reboot, and reinstall the driver for the running kernel if that does not help"
		}
		return found
	case a.ok():
		return Finding{Status: Pass, Evidence: evidence, Detail: fmt.Sprintf("driver %s answers for %s", orUnknown(a.dev.DriverVersion), orUnknown(a.dev.Name))}
	case !f.gpuHere() && hw.pciGPU:
		found := byDesign("an NVIDIA GPU is here, but no NVIDIA driver: it is taken for a machine without one")
		found.Evidence = evidence
		return found
	case !f.gpuHere():
		return byDesign("no NVIDIA GPU on this machine")
	case a.late:
		return Finding{
			Status: Warn, Evidence: evidence,
			Detail: fmt.Sprintf("the driver gave no answer within %g s: a wedged machine makes it wait for minutes", f.limit.Seconds()),
			Fix:    "timeout 20 nvidia-smi, and reboot if that hangs too",
		}
	}
	return Finding{
		Status: Warn, Evidence: evidence, Detail: "the GPU could not be asked: " + a.why(),
		Fix: "nvidia-smi must work; in a container start it with --gpus all",
	}
}

func orUnknown(s string) string {
	if s == "" {
		return "(unknown)"
	}
	return s
}
