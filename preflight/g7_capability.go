package preflight

import "fmt"

// judgeCapability is G7: the GPU's compute capability, from the driver. It is
// half an answer: which architecture a kernel was built for shows only in the
// build (NVFP4 is slower than FP8 unless built for sm_121a).
func judgeCapability(f facts) Finding {
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
	return Finding{
		Status: Pass, Evidence: evidence,
		Detail: "SM121 hardware capability confirmed; the kernels' own target (sm_121a) is not checked here",
		Line:   "G7 PASS: SM121 hardware capability confirmed (partial — verify the kernel target arch (sm_121a) manually, see gotcha-checks.md G7)",
	}
}
