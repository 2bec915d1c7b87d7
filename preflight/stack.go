package preflight

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"sparkrun/configs"
)

// stack is configs/stack.yaml: what the platform needs from the software on it.
type stack struct {
	AsOf    string `yaml:"as_of"`
	Refresh string `yaml:"refresh"`
	Spark   struct {
		GPUName    string `yaml:"gpu_name"`
		PCIDevice  string `yaml:"pci_device"`
		Machine    string `yaml:"machine"`
		CUDAMajor  int    `yaml:"cuda_major"`
		Capability [2]int `yaml:"capability"`
		WheelIndex string `yaml:"wheel_index"`
		Image      string `yaml:"image"`
	} `yaml:"spark"`
	Packages []string       `yaml:"packages"`
	Images   []stackImage   `yaml:"images"`
	Pins     []pin          `yaml:"pins"`
	Install  []installLine  `yaml:"install"`
	KnownBad []combination  `yaml:"known_bad"`
	Triton   tritonFacts    `yaml:"triton"`
	NVFP4    nvfp4Facts     `yaml:"nvfp4"`
	Client   containerWants `yaml:"container"`
	// Variables and Fragile are judged in the order of the table.
	Variables []variableRule `yaml:"variables"`
	Fragile   []fragileRule  `yaml:"fragile"`
}

// stackImage is a repository of images that the runbook speaks of.
type stackImage struct {
	Name string `yaml:"name"`
	// Accept is how tags begin that are taken without having been looked at.
	Accept string `yaml:"accept"`
	// Tags says of each tag that was looked at what is known.
	Tags   map[string]string `yaml:"tags"`
	Moving []string          `yaml:"moving"`
}

// pin is a version that was seen to work.
type pin struct {
	Name    string `yaml:"name"`
	Version string `yaml:"version"`
	// Image is the build in the image of stack.Spark.Image.
	Image string `yaml:"image"`
}

// installLine is one call of pip.
type installLine struct {
	Options  []string `yaml:"options"`
	Packages []string `yaml:"packages"`
}

// combination is a set of versions that do not work together.
type combination struct {
	Packages map[string]versionRange `yaml:"packages"`
	Anywhere bool                    `yaml:"anywhere"`
	Why      string                  `yaml:"why"`
	Cure     []string                `yaml:"cure"`
}

type tritonFacts struct {
	OldPtxas  versionRange `yaml:"old_ptxas"`
	PtxasFrom string       `yaml:"ptxas_from"`
	Ptxas     string       `yaml:"ptxas"`
}

type nvfp4Facts struct {
	Arch          []string `yaml:"arch"`
	Target        string   `yaml:"target"`
	SlowerPercent int      `yaml:"slower_percent"`
	Extensions    []string `yaml:"extensions"`
	ReadOneMiB    int64    `yaml:"read_one_mib"`
	ReadAllMiB    int64    `yaml:"read_all_mib"`
}

type containerWants struct {
	GPU           string   `yaml:"gpu"`
	GPUPodman     string   `yaml:"gpu_podman"`
	SharedMemory  string   `yaml:"shared_memory"`
	Limits        []string `yaml:"limits"`
	DefaultShmMiB int64    `yaml:"default_shm_mib"`
	MovingTags    []string `yaml:"moving_tags"`
}

type variableRule struct {
	Name       string                  `yaml:"name"`
	Is         []string                `yaml:"is"`
	Not        []string                `yaml:"not"`
	With       map[string]versionRange `yaml:"with"`
	AbsentWith map[string]versionRange `yaml:"absent_with"`
	Status     Status                  `yaml:"status"`
	Why        string                  `yaml:"why"`
	Cost       string                  `yaml:"cost"`
	Fix        string                  `yaml:"fix"`
}

type fragileRule struct {
	What     string   `yaml:"what"`
	Profiles []string `yaml:"profiles"`
	Packages []string `yaml:"packages"`
	Bare     bool     `yaml:"bare"`
	Final    bool     `yaml:"final"`
	Why      string   `yaml:"why"`
	Instead  string   `yaml:"instead"`
}

// loadStack reads the built-in table once. It cannot fail in a binary whose
// tests passed; a caller that sees the error has a broken build.
var loadStack = sync.OnceValues(func() (stack, error) {
	var s stack
	if err := configs.BuiltIn("stack.yaml", &s); err != nil {
		return stack{}, fmt.Errorf("reading the built-in stack table: %w", err)
	}
	return s, nil
})

// installLines are the lines of pip that install the pinned versions, for the packages
// of only, or all where that is empty. installs is how that is done (facts.installs).
func (s stack) installLines(installs string, only ...string) []string {
	var out []string
	for _, l := range s.Install {
		words := append([]string{installs}, l.Options...)
		named := false
		for _, name := range l.Packages {
			if len(only) > 0 && !slices.Contains(only, name) {
				continue
			}
			named = true
			words = append(words, fmt.Sprintf(`"%s==%s"`, name, s.pin(name).Version))
		}
		if named {
			out = append(out, strings.Join(words, " "))
		}
	}
	return out
}

func (s stack) pin(name string) pin {
	for _, p := range s.Pins {
		if p.Name == name {
			return p
		}
	}
	return pin{}
}

// matches tells whether all packages are installed in versions of their ranges.
func matches(want map[string]versionRange, have map[string]string) bool {
	for name, r := range want {
		if !r.contains(have[name]) {
			return false
		}
	}
	return len(want) > 0
}

// versionsOf is "torchao 0.13.0 and peft 0.19.1", in order of the names.
func versionsOf(want map[string]versionRange, have map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		out = append(out, name+" "+have[name])
	}
	return strings.Join(out, " and ")
}

// shellWord quotes a word for a POSIX shell where it needs that.
func shellWord(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_", c)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
