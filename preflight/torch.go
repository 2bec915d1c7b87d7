package preflight

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// torchState says how much is known of the torch an interpreter would import.
type torchState int

const (
	torchNotAsked     torchState = iota // the command is no Python program
	torchNoPython                       // no interpreter was found
	torchAbsent                         // the interpreter would find none
	torchUndetermined                   // only running the interpreter could tell, and it did not
	torchFound                          // version file or package metadata read
)

// torchBuild is the torch an interpreter would import.
type torchBuild struct {
	state torchState
	// interp is the interpreter as the command names it, real the one behind a
	// pyenv shim.
	interp  string
	real    string
	version string
	// cuda is the CUDA version it was built for, "" when it could not be told.
	cuda string
	// noCUDA: it was built without CUDA; hip then is its ROCm version, if any.
	noCUDA bool
	hip    string
	// from is the file that says so, with the words it says it in.
	from string
	late bool
}

var (
	versionLine = regexp.MustCompile(`(?m)^__version__\s*(?::[^=\n]*)?=\s*['"]([^'"\n]+)['"]`)
	cudaLine    = regexp.MustCompile(`(?m)^cuda\s*(?::[^=\n]*)?=\s*(?:['"]([^'"\n]*)['"]|(None))`)
	hipLine     = regexp.MustCompile(`(?m)^hip\s*(?::[^=\n]*)?=\s*['"]([^'"\n]+)['"]`)
)

// findTorch looks for torch in the folders of a venue.
func findTorch(r root, v venue) torchBuild {
	for _, site := range v.sites {
		if b, ok := readTorch(r, filepath.Join(site, "torch")); ok {
			return b
		}
	}
	if v.exact {
		return torchBuild{state: torchAbsent}
	}
	return torchBuild{state: torchUndetermined}
}

// readTorch reads the package folder dir; ok is false when there is no torch.
// A folder without __init__.py is what an uninstall left behind.
func readTorch(r root, dir string) (b torchBuild, ok bool) {
	if there, _ := r.exists(filepath.Join(dir, "__init__.py")); !there {
		return torchBuild{}, false
	}
	b = torchBuild{state: torchFound, from: dir}
	path := filepath.Join(dir, "version.py")
	if text, err := r.read(path); err == nil {
		if m := versionLine.FindSubmatch(text); m != nil {
			b.version = string(m[1])
		}
		if m := cudaLine.FindSubmatch(text); m != nil {
			b.cuda, b.noCUDA = string(m[1]), len(m[1]) == 0
			b.from = path + ": " + strings.TrimSpace(string(m[0]))
		}
		if m := hipLine.FindSubmatch(text); m != nil {
			b.hip = string(m[1])
		}
	}
	if b.cuda == "" && !b.noCUDA {
		b.fromMetadata(r, filepath.Dir(dir))
	}
	return b, true
}

var (
	metaVersion = regexp.MustCompile(`(?m)^Version:\s*(\S+)`)
	// localCUDA is the tag of wheels from PyTorch's own index; NGC builds have
	// none, and a missing tag says nothing.
	localCUDA = regexp.MustCompile(`\+(?:\S*\.)?cu(\d{2,4})\b`)
	localCPU  = regexp.MustCompile(`\+(?:\S*\.)?cpu\b`)
	// requiresCUDA is the runtime package that wheels on PyPI ask for.
	requiresCUDA = regexp.MustCompile(`(?m)^Requires-Dist:\s*nvidia-cuda-runtime(?:-cu(\d+))?\s*\(?\s*==\s*(\d+\.\d+)`)
)

// fromMetadata is the second-best source: the wheel's own metadata.
func (b *torchBuild) fromMetadata(r root, site string) {
	for _, name := range r.names(site) {
		if !strings.HasPrefix(name, "torch-") {
			continue
		}
		var file string
		switch {
		case strings.HasSuffix(name, ".dist-info"):
			file = "METADATA"
		case strings.HasSuffix(name, ".egg-info"):
			file = "PKG-INFO"
		default:
			continue
		}
		path := filepath.Join(site, name, file)
		text, err := r.read(path)
		if err != nil {
			continue
		}
		if m := metaVersion.FindSubmatch(text); m != nil && b.version == "" {
			b.version = string(m[1])
		}
		if m := localCUDA.FindStringSubmatch(b.version); m != nil {
			digits := m[1]
			b.cuda = digits[:len(digits)-1] + "." + digits[len(digits)-1:]
			b.from = path + ": Version: " + b.version
		} else if localCPU.MatchString(b.version) {
			b.noCUDA = true
			b.from = path + ": Version: " + b.version
		} else if m := requiresCUDA.FindSubmatch(text); m != nil {
			b.cuda = string(m[2])
			b.from = path + ": " + string(m[0])
		}
		return
	}
}

// major returns the leading number of a version: 13 for 13.0, 130 for 130.1.
func major(version string) (int, bool) {
	head, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(head)
	return n, err == nil
}

// name is what a person calls this build.
func (b torchBuild) name() string {
	if b.version == "" {
		return "torch"
	}
	return "torch " + b.version
}
