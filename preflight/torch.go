package preflight

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/lazyre"
)

// torchState says how much is known of the torch an interpreter would import.
type torchState int

const (
	torchNotAsked     torchState = iota // the command is no Python program
	torchNoPython                       // no interpreter was found
	torchAbsent                         // the interpreter would find none
	torchUndetermined                   // only running the interpreter could tell, and it did not
	torchFound                          // version file or package metadata read
	torchElsewhere                      // in an environment that does not exist yet or cannot be seen
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
	// where is the image it lies in (" in image X"), told how that is known.
	where, told string
	// guessed: the source describes what the torch came with, and another one may have
	// been installed over it.
	guessed bool
	// why says, of torchElsewhere, why it cannot be told.
	why  string
	late bool
}

var (
	versionLine = lazyre.New(`(?m)^__version__\s*(?::[^=\n]*)?=\s*['"]([^'"\n]+)['"]`)
	cudaLine    = lazyre.New(`(?m)^cuda\s*(?::[^=\n]*)?=\s*(?:['"]([^'"\n]*)['"]|(None))`)
	hipLine     = lazyre.New(`(?m)^hip\s*(?::[^=\n]*)?=\s*['"]([^'"\n]+)['"]`)
)

// findTorch looks for torch in the folders of a venue.
func findTorch(r tree, v venue) torchBuild {
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
func readTorch(r tree, dir string) (b torchBuild, ok bool) {
	if there, _ := r.exists(filepath.Join(dir, "__init__.py")); !there {
		return torchBuild{}, false
	}
	b = torchBuild{state: torchFound, from: dir}
	path := filepath.Join(dir, "version.py")
	if text, err := r.read(path); err == nil {
		b.fromVersionFile(path, text)
	}
	if b.cuda == "" && !b.noCUDA {
		b.fromMetadata(r, filepath.Dir(dir))
	}
	if b.cuda == "" && !b.noCUDA {
		b.fromLibraries(r, dir)
	}
	return b, true
}

// fromVersionFile reads torch/version.py, which the build has written.
func (b *torchBuild) fromVersionFile(path string, text []byte) {
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

// fromLibraries is the last source, for a torch whose version file and metadata say
// nothing or are missing: a build for CUDA has libtorch_cuda.so, and brings the runtime
// of one major version, or none.
func (b *torchBuild) fromLibraries(r tree, dir string) {
	lib := filepath.Join(dir, "lib")
	names := r.names(lib)
	cuda, cpu := slices.Contains(names, "libtorch_cuda.so"), slices.Contains(names, "libtorch_cpu.so")
	switch {
	case cpu && !cuda && !slices.Contains(names, "libtorch_hip.so"):
		b.noCUDA, b.from = true, lib+": no libtorch_cuda.so"
	case cuda:
		found := map[int]string{}
		for _, folder := range bundleFolders(r, filepath.Dir(dir)) {
			for _, name := range r.names(folder) {
				if n, ok := cudartMajor(name); ok {
					found[n] = filepath.Join(folder, name)
				}
			}
		}
		if len(found) == 1 {
			for n, path := range found {
				b.cuda, b.from = strconv.Itoa(n), path+" beside libtorch_cuda.so"
			}
		}
	}
}

var (
	metaVersion = lazyre.New(`(?m)^Version:\s*(\S+)`)
	// localCUDA is the tag of wheels from PyTorch's own index; NGC builds have
	// none, and a missing tag says nothing.
	localCUDA = lazyre.New(`\+(?:\S*\.)?cu(\d{2,4})\b`)
	localCPU  = lazyre.New(`\+(?:\S*\.)?cpu\b`)
	// requiresCUDA is the runtime package that wheels on PyPI ask for.
	requiresCUDA = lazyre.New(`(?m)^Requires-Dist:\s*(?:nvidia-cuda-runtime(?:-cu\d+)?|cuda-toolkit\[[^\]\n]*\])\s*\(?\s*==\s*(\d+\.\d+)`)
)

// fromMetadata is the second-best source: the wheel's own metadata.
func (b *torchBuild) fromMetadata(r tree, site string) {
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
		if b.fromTag(path) {
			return
		}
		if m := requiresCUDA.FindSubmatch(text); m != nil {
			b.cuda = string(m[1])
			b.from = path + ": " + string(m[0])
		}
		return
	}
}

// fromTag takes the CUDA version out of the tag of a wheel from PyTorch's own index:
// 2.9.0+cu130. NGC builds have no tag, and a missing one says nothing.
func (b *torchBuild) fromTag(path string) bool {
	if m := localCUDA.FindStringSubmatch(b.version); m != nil {
		digits := m[1]
		b.cuda = digits[:len(digits)-1] + "." + digits[len(digits)-1:]
	} else if b.noCUDA = localCPU.MatchString(b.version); !b.noCUDA {
		return false
	}
	b.from = path + ": Version: " + b.version
	return true
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
		return "torch" + b.where
	}
	return "torch " + b.version + b.where
}
