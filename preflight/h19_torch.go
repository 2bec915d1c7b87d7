package preflight

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// TorchAnswer is what the command's own torch said of the GPU (`--torch`), or why it was
// not asked.
type TorchAnswer struct {
	// Refused says why it was not asked; Failed what became of the Python that was asked
	// and did not answer. Both are empty where there is an answer.
	Refused, Failed string
	// Available is torch.cuda.is_available(), CUDA torch.version.cuda ("" for None).
	Available bool
	CUDA      string
	// Device is the GPU as torch names it, Torch the version of that torch.
	Device, Torch string
	// Problem is what torch said when it could not reach the GPU.
	Problem string
	// Broken is the exception with which importing or asking it ended.
	Broken      string
	Interpreter string
}

// TorchPlan is how the command's torch can be asked, or why it cannot.
type TorchPlan struct {
	Refused          string
	Interpreter, Dir string
	// Limit is when the question is given up: an import from a cold disk takes long.
	Limit time.Duration
}

// torchLimit is some times what importing torch takes from a cold disk.
const torchLimit = 90 * time.Second

// PlanTorch finds the Python whose torch is to be asked.
func PlanTorch(ctx context.Context, in Input) TorchPlan {
	f, _ := gather(ctx, in)
	p := TorchPlan{Limit: torchLimit, Interpreter: f.torch.real, Dir: f.shell("PWD")}
	if p.Interpreter == "" {
		p.Interpreter = f.torch.interp
	}
	if f.job != nil {
		p.Dir = f.job.Dir
	}
	switch {
	case f.job != nil && f.job.Container != nil:
		p.Refused = "the command's torch lies inside an image: ask it in there"
	case f.torch.state == torchNoPython, f.torch.state == torchNotAsked, !filepath.IsAbs(p.Interpreter):
		p.Refused = "the command has no Python that could be asked"
	case f.torch.state == torchAbsent:
		p.Refused = "no torch in " + f.torch.interp
	}
	return p
}

// judgeTorch is H19: the runbook's last word on an environment. Everything else was read
// from files; here torch itself is imported, which takes seconds, so it is asked for.
func judgeTorch(f facts) Finding {
	const by = `python -c "import torch; print(torch.cuda.is_available(), torch.version.cuda)"`
	a := f.in.Torch
	if a == nil {
		return byDesign("torch is not imported: only with --torch")
	}
	if a.Refused == Interrupted {
		return Finding{Status: Info, Detail: "interrupted before torch had answered: nothing is known"}
	}
	if a.Refused != "" {
		return byDesign("torch was not asked: " + a.Refused)
	}
	if a.Failed != "" {
		return Finding{
			Status: Warn, Detail: "torch was asked and gave no answer: " + a.Failed,
			Evidence: []string{"import torch and torch.cuda.is_available(): " + a.Failed},
			Cost:     "the training fails or hangs at the same place, at its first line",
			Fix: fmt.Sprintf("by hand, it says more: %s -X faulthandler -c \"import torch; print(torch.cuda.is_available(), torch.version.cuda)\"\n", shellWord(a.Interpreter)) +
				"a crash at the import or at the first CUDA call is how a torch for another CUDA shows (G1): " + wheelFix(f) +
				"\nif it hangs: does the driver answer? timeout 20 nvidia-smi (H1)",
		}
	}
	if a.Broken != "" {
		return Finding{
			Status: Warn, Detail: "torch cannot be used: " + a.Broken, Evidence: []string{"import torch, by " + a.Interpreter + ": " + a.Broken},
			Cost: "the training fails at its first line",
			Fix:  wheelFix(f),
		}
	}
	cuda := a.CUDA
	if cuda == "" {
		cuda = "None"
	}
	word := "False"
	if a.Available {
		word = "True"
	}
	found := Finding{
		Evidence: []string{by + " of " + a.Interpreter + " says: " + word + " " + cuda},
		Detail:   fmt.Sprintf("torch %s says %s %s", orUnknown(a.Torch), word, cuda),
	}
	if a.Device != "" {
		found.Evidence = append(found.Evidence, "torch names the GPU "+a.Device)
	}
	if a.Problem != "" {
		found.Evidence = append(found.Evidence, "torch said: "+a.Problem)
	}
	got, _ := major(a.CUDA)
	switch {
	case a.Available && (!f.spark() || got == f.stack.Spark.CUDAMajor):
		found.Status = Pass
	case a.Available:
		found.Status = Warn
		found.Detail += fmt.Sprintf(", a DGX Spark needs True %d.0", f.stack.Spark.CUDAMajor)
		found.Cost = "kernels built for another CUDA fail at the first call, or run several times slower"
		found.Fix = wheelFix(f)
	case !f.gpuHere():
		found.Status = Info
		found.Detail += "; no NVIDIA GPU on this machine"
	default:
		found.Status = Warn
		found.Cost = "the training fails at its first CUDA call, or runs on the CPU all night"
		// The runbook's order: the ABI comes last, and only it is cured by another wheel.
		found.Fix = "in this order:\n" +
			"1. in a container: start it with --runtime=nvidia --gpus all (H7)\n" +
			"2. unset CUDA_VISIBLE_DEVICES: set but empty it hides every GPU (H1)\n" +
			"3. ls -l /dev/nvidia*: may you use them? (H1)\n" +
			"4. again in a fresh shell or container: a CUDA start that went wrong stays wrong\n" +
			"5. only then the wheel (G1): " + wheelFix(f)
	}
	return found
}
