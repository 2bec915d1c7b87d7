package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// judgeCUDAABI is G1: a torch built for another CUDA major version than the
// platform's fails at import with an undefined symbol, crashes at the first
// kernel, or quietly computes on the CPU. What counts is what the torch was
// built against, never a cu130 tag in its name: NGC builds have none. For a command
// that starts a container it is the torch in the image; the host's decides nothing.
func judgeCUDAABI(f facts) Finding {
	t := f.torch
	want := f.stack.Spark.CUDAMajor
	evidence := torchEvidence(f)
	if inside, ok := inImage(f); ok && t.state != torchFound {
		if t.state == torchAbsent && pythonCommand(f) {
			return noTorch(f)
		}
		inside.Evidence = evidence
		return inside
	}
	switch t.state {
	case torchNotAsked:
		return notSeen(f)
	case torchElsewhere:
		return unseenTorch(f)
	case torchNoPython, torchAbsent:
		return noTorch(f)
	case torchUndetermined:
		if !f.gpuHere() {
			return byDesign("no NVIDIA GPU on this machine")
		}
		reason := "could not tell which torch " + t.interp + " would import"
		if t.late {
			reason = f.noAnswerWithin()
		}
		return Finding{
			Status: Skip, Detail: reason, Evidence: evidence,
			Fix: `python3 -c "import torch; print(torch.version.cuda)" must print ` + fmt.Sprint(want) + `.x, with the Python of the command`,
		}
	case torchFound:
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
		return driverTooOld(f, got, judgeRuntimes(f, Finding{Status: Pass, Detail: built + t.where, Line: "G1 PASS: " + built, Evidence: evidence}))
	case f.spark() && t.guessed:
		// What an image was made from may have been replaced in it.
		return Finding{
			Status: Warn, Evidence: evidence, Fix: "`sparkrun preflight --probe-image -- COMMAND` to ask the image itself\n" + wheelFix(f),
			Detail: fmt.Sprintf("%s seems to be built against CUDA %s, this machine needs %d.x", t.name(), t.cuda, want),
		}
	case f.spark():
		return Finding{
			Status: Fail, Evidence: evidence, Fix: wheelFix(f),
			Detail: fmt.Sprintf("%s is built against CUDA %s, this machine needs %d.x", t.name(), t.cuda, want),
			Line:   fmt.Sprintf("G1 FAIL: %s (need %d.x — see gotcha G1)", built, want),
		}
	}
	return driverTooOld(f, got, Finding{
		Status: Info, Evidence: evidence,
		Detail: fmt.Sprintf("%s%s (only a DGX Spark needs %d.x)", built, t.where, want),
	})
}

// notSeen is the finding of a check of packages where the command is no Python program, or
// may start one that is not seen: a shell script, make.
func notSeen(f facts) Finding {
	why := ""
	if f.job != nil {
		why = cmp.Or(f.job.Opaque, f.job.Unsure)
	}
	if why == "" || !f.gpuHere() {
		return byDesign("the command is not a Python program")
	}
	return Finding{
		Status: Info, Detail: "cannot be told: " + why,
		Fix: "sparkrun preflight -- COMMAND, with the command that trains (python, torchrun, accelerate) itself, checks its Python",
	}
}

// pythonCommand tells that a Python program stands in the command itself, and not in
// the text of a shell, which may install what it needs first.
func pythonCommand(f facts) bool {
	return f.job.Script != "" && f.job.Opaque == "" && !slices.ContainsFunc(f.job.Launchers, func(l string) bool { return strings.HasSuffix(l, "sh") })
}

// unseenTorch is the finding where the environment of the command cannot be seen. A
// broken one is worth a word: the command will fail, or another Python runs it.
func unseenTorch(f facts) Finding {
	if f.python.broken == "" {
		found := byDesign(f.torch.why)
		found.Evidence = torchEvidence(f)
		return found
	}
	return Finding{
		Status: Skip, Detail: f.python.broken, Evidence: torchEvidence(f),
		Fix: "make the environment anew, with the tool that made it (python3 -m venv, uv venv, uv sync), and install its packages again",
	}
}

// judgeRuntimes looks, on a Spark whose torch is built for its CUDA, at the runtimes that
// it would find. One for an older CUDA beside it does no harm to this torch. None at all
// for its own is a gap of the installation, not of the wheel: only a torch that brings no
// runtime of its own needs the loader to find one.
func judgeRuntimes(f facts, found Finding) Finding {
	r, want := f.python.cuda, f.stack.Spark.CUDAMajor
	if !f.spark() {
		return found
	}
	own := r.loader[want] != "" || r.bundled[want] != "" || r.toolkit[want] != ""
	older := r.loader[want-1]
	switch {
	case own && older != "":
		found.Detail += fmt.Sprintf("; libcudart.so.%d lies beside it, which this torch does not use", want-1)
	case !own && r.cached && f.python.exact && !f.torch.guessed:
		return Finding{
			Status: Warn, Evidence: found.Evidence,
			Detail: fmt.Sprintf("torch is built against CUDA %s, but libcudart.so.%d is neither beside it nor known to the loader: a gap in the CUDA installation, not in the wheel", f.torch.cuda, want),
			Fix:    fmt.Sprintf("ls /usr/local/cuda/lib64/libcudart.so.%d && sudo ldconfig /usr/local/cuda/lib64\nif it is not there: install the CUDA %d runtime (cuda-cudart-%d-0); a new torch would not help", want, want, want),
		}
	}
	return found
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
	found := Finding{Status: Skip, Line: "G1 SKIP: torch not importable", Evidence: torchEvidence(f)}
	switch {
	case f.job == nil:
		found.Detail, found.ByDesign = "torch not importable, and no command named that needs it (by design)", true
	case !f.spark():
		found.Detail, found.ByDesign = "torch not importable; this is no DGX Spark (by design)", true
	case f.torch.where != "":
		found.Detail = "torch not importable" + f.torch.where
		found.Fix = "if the command needs torch:\n" + wheelFix(f)
	default:
		found.Detail = "torch not importable"
		found.Fix = "if the command needs torch:\n" + wheelFix(f)
	}
	return found
}

// torchEvidence is what the finding rests on.
func torchEvidence(f facts) []string {
	var out []string
	t, p := f.torch, f.python
	for _, e := range []string{t.told, p.broken} {
		if e != "" {
			out = append(out, e)
		}
	}
	if f.job != nil && f.job.From != "" {
		out = append(out, "the command that "+f.job.From+" starts")
	}
	if t.interp != "" {
		out = append(out, "interpreter "+t.interp)
	}
	if t.from != "" {
		out = append(out, t.from)
	}
	if t.state == torchElsewhere && t.why != "" && t.why != p.broken {
		out = append(out, t.why)
	}
	if !f.spark() {
		return out
	}
	// Where the job's torch could take a runtime from.
	for _, n := range []int{f.stack.Spark.CUDAMajor - 1, f.stack.Spark.CUDAMajor} {
		for _, where := range []map[int]string{p.cuda.loader, p.cuda.bundled, p.cuda.toolkit} {
			if path := where[n]; path != "" {
				out = append(out, fmt.Sprintf("libcudart.so.%d: %s", n, path))
				break
			}
		}
	}
	for _, path := range p.cuda.stale {
		out = append(out, "the loader's cache names "+path+", which is gone")
	}
	return out
}

// wheelFix is the runbook's fix, with the interpreter that will really run.
func wheelFix(f facts) string {
	s := f.stack.Spark
	if i := f.python.image; i.ref != "" || i.container != "" {
		if !f.spark() {
			return "take an image whose torch matches your driver's CUDA version"
		}
		return fmt.Sprintf("take an image that matches, such as %s (as of %s)\nor in its Dockerfile: RUN python3 -m pip install --force-reinstall torch --index-url %s", s.Image, f.stack.AsOf, s.WheelIndex)
	}
	if !f.spark() {
		return f.installs() + " --force-reinstall torch, from the PyTorch index that matches your driver's CUDA version"
	}
	return fmt.Sprintf("%s --force-reinstall torch --index-url %s\nor run in a container that matches, such as %s (as of %s)", f.installs(), s.WheelIndex, s.Image, f.stack.AsOf)
}
