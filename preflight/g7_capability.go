package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

type capability struct {
	// nvfp4 is where the command asks for NVFP4; unread what could not be looked at.
	nvfp4  string
	unread []string
	// archs are TORCH_CUDA_ARCH_LIST and the like in the command's own files.
	archs  []setting
	client clientFlags
	// built is an extension that has code for the target by name, looked how many were
	// searched for it. In an image none is.
	built  string
	looked int
}

// lookCapability looks at kernels only where NVFP4 is asked for.
func lookCapability(ctx context.Context, v view) capability {
	var seen capability
	seen.nvfp4, seen.unread = nvfp4Asked(v)
	if seen.nvfp4 == "" {
		return seen
	}
	for _, s := range asked(v, "cuda_archs") {
		if !strings.HasPrefix(s.where, "variable ") { // a container has another environment
			seen.archs = append(seen.archs, s)
		}
	}
	seen.client = readClient(v)
	if v.job.Container == nil {
		seen.built, seen.looked = builtFor(ctx, v.root, readHostPython(v).sites, v.stack.NVFP4)
	}
	return seen
}

// judgeCapability is G7: the GPU's compute capability, from the driver. It is
// half an answer: which architecture a kernel was built for shows only in the
// build (NVFP4 is slower than FP8 unless built for sm_121a), and is looked at
// where NVFP4 is asked for.
func judgeCapability(seen capability, f facts) Finding {
	if !f.spark() {
		return notHere(f)
	}
	var evidence []string
	if want := f.stack.Spark.Machine; f.machine != "" && f.machine != want {
		evidence = append(evidence, fmt.Sprintf("this machine is %s, a DGX Spark is %s: distrust what follows from the GPU's name", f.machine, want))
	}
	a := f.gpu
	switch {
	case a.late:
		return Finding{Status: Skip, Evidence: evidence, Detail: fmt.Sprintf("no answer within %g s", f.limit.Seconds())}
	case !a.ok():
		return Finding{Status: Skip, Evidence: evidence, Detail: "capability not readable: " + a.why()}
	case a.dev.CapMajor == 0:
		return Finding{Status: Skip, Evidence: evidence, Detail: "the driver does not give the capability"}
	}
	want := f.stack.Spark.Capability
	got := tuple(a.dev.CapMajor, a.dev.CapMinor)
	evidence = append(evidence, a.dev.Name+", capability "+got)
	if a.dev.CapMajor != want[0] || a.dev.CapMinor != want[1] {
		return Finding{
			Status: Warn, Evidence: evidence,
			Detail: "unexpected capability " + got + ", a DGX Spark has " + tuple(want[0], want[1]),
			Line:   "G7 WARN: unexpected capability " + got,
			Fix:    "nvidia-smi --query-gpu=name,compute_cap --format=csv, to see which GPU answers; other checks assume a GB10",
		}
	}
	if seen.nvfp4 != "" {
		return judgeNVFP4(seen, f, append(evidence, "NVFP4 is asked for: "+seen.nvfp4))
	}
	if len(seen.unread) > 0 {
		evidence = append(evidence, "whether NVFP4 is asked for is not told by "+strings.Join(seen.unread, ", "))
	}
	return capable(evidence)
}

// capable is the runbook's literal of a GPU that is the right one.
func capable(evidence []string) Finding {
	return Finding{
		Status: Pass, Evidence: evidence,
		Detail: "SM121 hardware capability confirmed; the kernels' own target (sm_121a) is not checked here",
		Line:   "G7 PASS: SM121 hardware capability confirmed (partial — verify the kernel target arch (sm_121a) manually, see gotcha-checks.md G7)",
	}
}

// judgeNVFP4 judges the kernels' target.
func judgeNVFP4(seen capability, f facts, evidence []string) Finding {
	n := f.stack.NVFP4
	if seen.built != "" {
		found := capable(append(evidence, n.Target+" is named in "+seen.built))
		found.Detail = "SM121 hardware capability confirmed, and kernels for " + n.Target + " are there"
		return found
	}
	list, where := "", ""
	if value, from, _ := trainerEnvOf(f, seen.client).get("TORCH_CUDA_ARCH_LIST"); value != "" {
		list, where = value, "TORCH_CUDA_ARCH_LIST="+value+" in "+from
	}
	if len(seen.archs) > 0 && !seen.archs[0].computed {
		list, where = seen.archs[0].value, seen.archs[0].said()
	}
	if seen.looked > 0 {
		evidence = append(evidence, fmt.Sprintf("%d built extensions do not name %s, which proves nothing: code may lie there compressed", seen.looked, n.Target))
	} else {
		evidence = append(evidence, "no built extension was looked at")
	}
	found := Finding{
		Status: Info, Evidence: evidence,
		Detail: fmt.Sprintf("NVFP4 is asked for, and it is not told whether its kernels are built for %s; FP8 does not depend on that", n.Target),
		Fix: fmt.Sprintf("use FP8, unless you know that the kernels are built for %s (TORCH_CUDA_ARCH_LIST=%s): others were %d %% slower than FP8 (as of %s)",
			n.Target, n.Arch[0], n.SlowerPercent, f.stack.AsOf),
	}
	if list == "" {
		return found
	}
	found.Evidence = append(found.Evidence, where)
	words := strings.FieldsFunc(list, func(c rune) bool { return c == ' ' || c == ';' || c == ',' })
	if slices.ContainsFunc(words, func(w string) bool { return slices.Contains(n.Arch, w) }) {
		found.Detail, found.Fix = fmt.Sprintf("NVFP4 is asked for, and what is built here is built for %s", n.Target), ""
		return found
	}
	found.Status = Warn
	found.Detail = fmt.Sprintf("NVFP4 is asked for, and TORCH_CUDA_ARCH_LIST (%s) does not build for %s: about %d %% slower than FP8", list, n.Target, n.SlowerPercent)
	return found
}
