package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"sparkrun/internal/lazyre"
)

type toolkitSeen struct {
	// nvcc is the compiler that a build would find, "" for none; its version "" where
	// that cannot be told. cuda is the toolkit at /usr/local/cuda.
	nvcc, nvccVersion string
	cuda              string
	// ptxas tells that the ptxas of stack.yaml is there, ptxasVersion of which CUDA.
	ptxas        bool
	ptxasVersion string
	// path is TRITON_PTXAS_PATH as the trainer gets it, pathThere that there is
	// such a program, and pathVersion of which CUDA.
	path        string
	pathThere   bool
	pathVersion string
	client      clientFlags
}

func lookToolkit(ctx context.Context, v view) toolkitSeen {
	seen := toolkitSeen{client: readClient(v), path: v.trainer("TRITON_PTXAS_PATH")}
	seen.cuda = toolkitVersion(v.root, "/usr/local/cuda")
	seen.ptxas = v.root.executable(v.stack.Triton.Ptxas)
	seen.ptxasVersion = toolkitOf(v.root, v.stack.Triton.Ptxas)
	if path, ok := v.onHost(seen.path); ok {
		seen.pathThere, seen.pathVersion = v.root.executable(path), toolkitOf(v.root, path)
	}
	if seen.nvcc = findProgram(v.root, "nvcc", v.getenv); seen.nvcc == "" && v.root.executable("/usr/local/cuda/bin/nvcc") {
		seen.nvcc = "/usr/local/cuda/bin/nvcc"
	}
	if seen.nvcc == "" {
		return seen
	}
	if seen.nvccVersion = toolkitOf(v.root, seen.nvcc); seen.nvccVersion == "" {
		// Such as Ubuntu's own package, which is older than this GPU.
		out, err := v.output(ctx, seen.nvcc, "--version")
		if m := nvccRelease.FindStringSubmatch(out); err == nil && m != nil {
			seen.nvccVersion = m[1]
		}
	}
	return seen
}

var (
	nvccRelease = lazyre.New(`release (\d+\.\d+)`)
	// ngcBuild is the local tag of the torch in NVIDIA's images.
	ngcBuild      = lazyre.New(`\bnv\d\d\.\d\d\b`)
	toolkitFolder = lazyre.New(`^cuda-(\d+(?:\.\d+)?)$`)
)

// toolkitOf is the CUDA version of the toolkit that a program in a bin folder belongs to.
func toolkitOf(r root, program string) string {
	real, err := r.resolve(program)
	if err != nil {
		return ""
	}
	return toolkitVersion(r, filepath.Dir(filepath.Dir(real)))
}

// toolkitVersion reads version.json of a toolkit, else takes the version from the name of
// its folder; "" where neither tells.
func toolkitVersion(r root, dir string) string {
	if b, err := r.read(filepath.Join(dir, "version.json")); err == nil {
		var file struct {
			CUDA struct {
				Version string `json:"version"`
			} `json:"cuda"`
		}
		if json.Unmarshal(b, &file) == nil && file.CUDA.Version != "" {
			return file.CUDA.Version
		}
	}
	if real, err := r.resolve(dir); err == nil {
		if m := toolkitFolder.FindStringSubmatch(filepath.Base(real)); m != nil {
			if ok, _ := r.exists(real); ok {
				return m[1]
			}
		}
	}
	return ""
}

// judgeToolkit is H16: what compiles at run time. Triton brings a ptxas of its own, and
// older releases one that does not know this GPU.
func judgeToolkit(seen toolkitSeen, f facts) Finding {
	if !f.spark() {
		return notHere(f)
	}
	evidence := seen.evidence()
	if found, ok := judgePtxas(seen, f); ok {
		found.Evidence = append(evidence, found.Evidence...)
		return found
	}
	want := f.stack.Spark.CUDAMajor
	found := Finding{Status: Pass, Evidence: evidence}
	switch got, ok := major(seen.nvccVersion); {
	case f.clientRuns():
		found.Detail = "the image brings its own CUDA toolkit"
	case seen.nvcc == "":
		found.Detail = "no nvcc, which only builds from source need"
	case !ok:
		found.Detail = seen.nvcc + ", of a CUDA version that is not told"
	case got < want:
		found.Status = Info
		found.Detail = fmt.Sprintf("nvcc is of CUDA %s, and this machine's is %d: it does not build for this GPU", seen.nvccVersion, want)
		if have, ok := major(seen.cuda); ok && have >= want {
			found.Fix = "export PATH=/usr/local/cuda/bin:$PATH, before something is built from source"
		} else {
			found.Fix = fmt.Sprintf("install the CUDA %d toolkit before something is built from source", want)
		}
	default:
		found.Detail = "nvcc of CUDA " + seen.nvccVersion
	}
	return found
}

func (s toolkitSeen) evidence() []string {
	var out []string
	if s.nvcc != "" {
		out = append(out, strings.TrimSpace("nvcc: "+s.nvcc+" "+s.nvccVersion))
	}
	if s.cuda != "" {
		out = append(out, "/usr/local/cuda: "+s.cuda)
	}
	return out
}

// judgePtxas judges the ptxas that Triton will start; ok is false where nothing is wrong
// with it, or nothing is known.
func judgePtxas(seen toolkitSeen, f facts) (Finding, bool) {
	t := f.stack.Triton
	version := f.python.packages["triton"]
	if version == "" {
		version = f.python.packages["pytorch_triton"]
	}
	// NVIDIA's images build Triton for the ptxas beside it.
	if !t.OldPtxas.contains(version) || ngcBuild.MatchString(f.torch.version) {
		return Finding{}, false
	}
	const cost = "The first kernel that Triton compiles (torch.compile, Unsloth, Liger) ends the training with a PTXASError."
	export := "export TRITON_PTXAS_PATH=" + t.Ptxas
	evidence := []string{"triton " + version + ", whose own ptxas does not know sm_121a"}
	path, where, known := trainerEnvOf(f, seen.client).get("TRITON_PTXAS_PATH")
	if f.clientRuns() {
		switch {
		case path != "":
			return Finding{}, false
		case !known:
			return Finding{Status: Info, Evidence: evidence, Detail: "triton " + version + " in the image needs TRITON_PTXAS_PATH, which the image may set"}, true
		}
		return Finding{
			Status: Warn, Cost: cost, Evidence: evidence, Detail: "triton " + version + " in the image does not know sm_121a, and TRITON_PTXAS_PATH is not set",
			Fix: fmt.Sprintf("add behind `%s`: -e TRITON_PTXAS_PATH=%s, where the image has that", seen.client.words(), t.Ptxas),
		}, true
	}
	old := func(cuda string) bool {
		have, ok1 := parsePEP440(cuda)
		from, ok2 := parsePEP440(t.PtxasFrom)
		return ok1 && ok2 && have.compare(from) < 0
	}
	switch {
	case path != "" && !seen.pathThere:
		return Finding{
			Status: Warn, Cost: cost, Evidence: evidence, Fix: export,
			Detail: fmt.Sprintf("TRITON_PTXAS_PATH is %s in %s, and no program is there", path, where),
		}, true
	case path != "" && old(seen.pathVersion):
		return Finding{
			Status: Warn, Cost: cost, Evidence: evidence, Fix: export,
			Detail: fmt.Sprintf("TRITON_PTXAS_PATH is a ptxas of CUDA %s, which does not know sm_121a", seen.pathVersion),
		}, true
	case path != "":
		return Finding{}, false
	case !seen.ptxas, old(seen.ptxasVersion):
		return Finding{
			Status: Warn, Cost: cost, Evidence: evidence, Detail: "triton " + version + " does not know sm_121a, and there is no newer ptxas at " + t.Ptxas,
			Fix: fmt.Sprintf("install the CUDA %d toolkit, then\n%s\nor run in a container, such as %s", f.stack.Spark.CUDAMajor, export, f.stack.Spark.Image),
		}, true
	}
	return Finding{Status: Warn, Cost: cost, Evidence: evidence, Detail: "triton " + version + " does not know sm_121a, and TRITON_PTXAS_PATH is not set", Fix: export}, true
}
