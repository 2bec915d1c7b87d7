package supervisor

import (
	"context"
	"encoding/json"
	"os/exec"
	"strings"

	"sparkrun/internal/leash"
	"sparkrun/preflight"
)

// torchQuestion is the runbook's verification, as JSON behind a marker that keeps it apart
// from what a library prints. Errors of CUDA's start are warnings of Python's.
const torchQuestion = `import sys
sys.path[:] = [p for p in sys.path if p]  # -c puts the working folder first
import json, warnings
said = {}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        import torch
        said["torch"] = torch.__version__
        said["cuda"] = torch.version.cuda or ""
        said["available"] = torch.cuda.is_available()
        if said["available"]:
            said["device"] = torch.cuda.get_device_name(0)
    except Exception as e:
        said["error"] = type(e).__name__ + ": " + str(e)
    if caught and not said.get("available"):
        said["problem"] = str(caught[-1].message)
print("\nsparkrun-torch:" + json.dumps(said), flush=True)
`

const torchMarker = "\nsparkrun-torch:"

// AskTorch imports the torch of the command's own Python, in a process whose whole group
// is gone when it returns, and asks whether it reaches the GPU. in is what preflight.Run
// is given as well; env is the environment around the command, which may change it. It
// never fails: Refused or Failed says why there is no answer.
func AskTorch(ctx context.Context, in preflight.Input, env []string) *preflight.TorchAnswer {
	return askTorch(ctx, preflight.PlanTorch(ctx, in), in.Job.Environ(env))
}

func askTorch(ctx context.Context, p preflight.TorchPlan, env []string) *preflight.TorchAnswer {
	a := &preflight.TorchAnswer{Interpreter: p.Interpreter, Refused: p.Refused}
	if p.Refused != "" {
		return a
	}
	ctx, cancel := context.WithTimeout(ctx, p.Limit)
	defer cancel()
	cmd := exec.Command(p.Interpreter, "-c", torchQuestion)
	cmd.Dir, cmd.Env = p.Dir, append([]string{}, env...)
	var out, errs textTail
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := leash.Run(ctx, cmd)
	var said struct {
		Torch     string `json:"torch"`
		CUDA      string `json:"cuda"`
		Available bool   `json:"available"`
		Device    string `json:"device"`
		Problem   string `json:"problem"`
		Error     string `json:"error"`
	}
	text := out.String()
	if i := strings.LastIndex(text, torchMarker); i >= 0 {
		line, _, whole := strings.Cut(text[i+len(torchMarker):], "\n")
		if whole && json.Unmarshal([]byte(line), &said) == nil {
			a.Torch, a.CUDA, a.Available, a.Device, a.Problem, a.Broken = said.Torch, said.CUDA, said.Available, said.Device, said.Problem, said.Error
			return a
		}
	}
	a.Refused, a.Failed = noAnswerOf(ctx, err, p.Interpreter, p.Limit, errs.String())
	return a
}
