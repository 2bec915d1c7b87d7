package preflight

import (
	"fmt"
	"strings"
)

// judgeCUDAABI is G1: a torch built for another CUDA major version than the
// platform's fails at import with an undefined symbol, crashes at the first
// kernel, or quietly computes on the CPU. What counts is what the torch was
// built against, never a cu130 tag in its name: NGC builds have none.
func judgeCUDAABI(f facts) Finding {
	if found, inside := inImage(f); inside {
		return found
	}
	t := f.torch
	want := f.stack.Spark.CUDAMajor
	evidence := torchEvidence(t)
	switch t.state {
	case torchNotAsked:
		return byDesign("the command is not a Python program")
	case torchNoPython, torchAbsent:
		return noTorch(f)
	case torchUndetermined:
		if !f.gpuHere() {
			return byDesign("no NVIDIA GPU on this machine")
		}
		reason := "could not tell which torch " + t.interp + " would import"
		if t.late {
			reason = fmt.Sprintf("no answer within %g s", f.limit.Seconds())
		}
		return Finding{
			Status: Skip, Detail: reason, Evidence: evidence,
			Fix: `python3 -c "import torch; print(torch.version.cuda)" must print ` + fmt.Sprint(want) + `.x, with the Python of the command`,
		}
	}
	if !f.gpuHere() {
		found := byDesign(t.name() + "; no NVIDIA GPU on this machine")
		found.Evidence = evidence
		return found
	}
	switch {
	case t.noCUDA:
		kind := "a CPU-only build"
		if t.hip != "" {
			kind = "built for ROCm " + t.hip
		}
		return Finding{
			Status: Fail, Evidence: evidence, Fix: wheelFix(f),
			Detail: fmt.Sprintf("%s is %s: it would train on the CPU without a word", t.name(), kind),
			Line:   fmt.Sprintf("G1 FAIL: torch built against CUDA none (need %d.x — see gotcha G1)", want),
		}
	case t.cuda == "":
		return Finding{
			Status: Skip, Evidence: evidence,
			Detail: t.name() + " is there, but nothing says which CUDA it was built against",
			Fix:    `python3 -c "import torch; print(torch.version.cuda)" must print ` + fmt.Sprint(want) + `.x, with the Python of the command`,
		}
	}
	got, ok := major(t.cuda)
	built := "torch built against CUDA " + t.cuda
	switch {
	case ok && got == want:
		return driverTooOld(f, got, Finding{Status: Pass, Detail: built, Line: "G1 PASS: " + built, Evidence: evidence})
	case f.spark():
		return Finding{
			Status: Fail, Evidence: evidence, Fix: wheelFix(f),
			Detail: fmt.Sprintf("%s is built against CUDA %s, this machine needs %d.x", t.name(), t.cuda, want),
			Line:   fmt.Sprintf("G1 FAIL: %s (need %d.x — see gotcha G1)", built, want),
		}
	}
	return driverTooOld(f, got, Finding{
		Status: Info, Evidence: evidence,
		Detail: fmt.Sprintf("%s (only a DGX Spark needs %d.x)", built, want),
	})
}

// driverTooOld turns a finding into a warning where the driver cannot serve the
// CUDA version that torch was built against.
func driverTooOld(f facts, cudaMajor int, found Finding) Finding {
	have := f.gpu.dev.CUDADriver / 1000
	if !f.gpu.ok() || have == 0 || have >= cudaMajor {
		return found
	}
	return Finding{
		Status: Warn, Evidence: append(found.Evidence, fmt.Sprintf("driver %s serves CUDA up to %d.%d", f.gpu.dev.DriverVersion, have, f.gpu.dev.CUDADriver%1000/10)),
		Detail: fmt.Sprintf("torch is built against CUDA %d, newer than the driver's CUDA %d", cudaMajor, have),
		Fix:    "update the NVIDIA driver, or install a torch built against the driver's CUDA version",
	}
}

// noTorch is the runbook's literal for a torch that is not there. It says
// something against the machine only where a Python command is about to train
// on a Spark: many commands on other machines use no torch, and without a
// command there is nothing to judge.
func noTorch(f facts) Finding {
	found := Finding{Status: Skip, Line: "G1 SKIP: torch not importable", Evidence: torchEvidence(f.torch)}
	switch {
	case f.job == nil:
		found.Detail, found.ByDesign = "torch not importable, and no command named that needs it (by design)", true
	case !f.spark():
		found.Detail, found.ByDesign = "torch not importable; this is no DGX Spark (by design)", true
	default:
		found.Detail = "torch not importable"
		found.Fix = "if the command needs torch:\n" + wheelFix(f)
	}
	return found
}

func torchEvidence(t torchBuild) []string {
	var out []string
	if t.interp != "" {
		out = append(out, "interpreter "+t.interp)
	}
	if t.from != "" {
		out = append(out, t.from)
	}
	return out
}

// wheelFix is the runbook's fix, with the interpreter that will really run.
func wheelFix(f facts) string {
	python := "python3"
	if f.torch.interp != "" {
		python = f.torch.interp
	}
	if strings.ContainsAny(python, " \t'\"$") {
		python = "'" + strings.ReplaceAll(python, "'", `'\''`) + "'"
	}
	s := f.stack.Spark
	if !f.spark() {
		return python + " -m pip install --force-reinstall torch, from the PyTorch index that matches your driver's CUDA version"
	}
	return fmt.Sprintf("%s -m pip install --force-reinstall torch --index-url %s\nor run in a container that matches, such as %s (as of %s)", python, s.WheelIndex, s.Image, f.stack.AsOf)
}
