package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"sparkrun/internal/lazyre"
)

// driver is what H1 sees of the way to the GPU, in the order of the runbook's triage.
type driver struct {
	// modules are the loaded kernel modules that matter; listed tells that the list could
	// be read.
	modules map[string]bool
	listed  bool
	// release is the running kernel; built tells that an nvidia module lies in its folder
	// of modules, foldered that there is such a folder.
	release         string
	foldered, built bool
	// installed is the version of the driver's library.
	installed string
	nodes     []deviceNode
	// secureBoot: the firmware lets only signed modules in.
	secureBoot bool
	// cudaVisible and nvidiaVisible are the variables that hide GPUs.
	cudaVisible, nvidiaVisible envSetting
	// containerCUDA is the CUDA version of the image or container that the command runs
	// in, with where that is said.
	containerCUDA, containerCUDAFrom string
}

// envSetting is a variable of the command's environment, and where it is set.
type envSetting struct {
	value, where string
	set          bool
}

type deviceNode struct {
	path string
	// there is false for a node that does not exist, err why that is not known.
	there bool
	err   error
	stat  fileStat
	// spare: CUDA makes it itself when it needs it.
	spare bool
}

const secureBootVar = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

func lookDriver(_ context.Context, v view) driver {
	t := aboutHost()
	d := driver{modules: map[string]bool{}, release: v.root.word("/proc/sys/kernel/osrelease")}
	if b, err := v.root.read("/proc/modules"); err == nil {
		d.listed = true
		for line := range strings.Lines(string(b)) {
			name, _, _ := strings.Cut(line, " ")
			if name == "nouveau" || strings.HasPrefix(name, "nvidia") {
				d.modules[name] = true
			}
		}
	}
	d.foldered, d.built = moduleBuilt(v.root, d.release)
	d.installed = libraryVersion(v.root, t.Driver.Libraries)
	for _, path := range t.Driver.Nodes {
		d.nodes = append(d.nodes, lookAtNode(v.root, path, false))
	}
	for _, path := range t.Driver.MayBeAbsent {
		d.nodes = append(d.nodes, lookAtNode(v.root, path, true))
	}
	// Four bytes of attributes, then the value.
	if b, err := v.root.read(secureBootVar); err == nil && len(b) >= 5 {
		d.secureBoot = b[4] == 1
	}
	d.cudaVisible = v.variable("CUDA_VISIBLE_DEVICES")
	d.nvidiaVisible = v.variable("NVIDIA_VISIBLE_DEVICES")
	if v.job == nil || v.job.Container == nil {
		if s := v.variable("CUDA_VERSION"); s.set {
			d.containerCUDA, d.containerCUDAFrom = s.value, "CUDA_VERSION of this container"
		}
	}
	return d
}

// variable is a variable as the trainer gets it: from the command itself ("env NAME=value",
// "docker run -e NAME=value", an export in a shell's text), else from the environment.
// What an engine starts gets nothing of ours.
func (v view) variable(name string) envSetting {
	value, set, told := v.job.LookupEnv(name)
	switch {
	case set:
		return envSetting{value: value, set: true, where: inCommand}
	case told, v.job != nil && v.job.Container != nil:
		return envSetting{}
	}
	value, set = v.lookupEnv(name)
	return envSetting{value: value, set: set, where: inShell}
}

func lookAtNode(r root, path string, spare bool) deviceNode {
	st, err := r.stat(path)
	switch {
	case err == nil:
		return deviceNode{path: path, there: true, stat: st, spare: spare}
	case errors.Is(err, fs.ErrNotExist):
		return deviceNode{path: path, spare: spare}
	}
	return deviceNode{path: path, err: err, spare: spare}
}

// moduleBuilt tells whether there is a folder of modules for a kernel and an nvidia module
// in it, where distributions put one: kernel/nvidia-BRANCH, updates/dkms, extra.
func moduleBuilt(r root, release string) (foldered, built bool) {
	if release == "" || strings.Contains(release, "/") {
		return false, false
	}
	dir := "/lib/modules/" + release
	if foldered, _ = r.exists(dir); !foldered {
		return false, false
	}
	is := func(name string) bool { return strings.HasPrefix(name, "nvidia.ko") }
	for _, sub := range []string{"updates/dkms", "updates", "extra", "extra/nvidia", "weak-updates", "kernel/drivers/video"} {
		if slices.ContainsFunc(r.names(filepath.Join(dir, sub)), is) {
			return true, true
		}
	}
	for _, name := range r.names(dir + "/kernel") {
		if strings.HasPrefix(name, "nvidia") && slices.ContainsFunc(r.names(filepath.Join(dir, "kernel", name)), is) {
			return true, true
		}
	}
	return true, false
}

var libraryFile = lazyre.New(`\.so\.(\d+\.\d[\d.]*)$`)

// libraryVersion is the version in the name of the file behind libnvidia-ml.so.1.
func libraryVersion(r root, paths []string) string {
	for _, path := range paths {
		if there, _ := r.exists(path); !there {
			continue
		}
		real, err := r.resolve(path)
		if err != nil {
			continue
		}
		if m := libraryFile.FindStringSubmatch(real); m != nil {
			return m[1]
		}
	}
	return ""
}

var moduleVersionWord = lazyre.New(`\b(\d{3}\.\d+(?:\.\d+)?)\b`)

// judgeDriver is H1: does the NVIDIA driver answer, and will the command see the GPU. A
// training on a machine whose driver cannot work fails at its first CUDA call, or trains
// on the CPU, so this is the one host check about the GPU that blocks.
func judgeDriver(d driver, f facts) Finding {
	a, hw := f.gpu, f.hardware
	found := Finding{Evidence: d.evidence(f)}
	fault := d.fault(f)
	dead := driverDead(hw, a)
	switch {
	case fault.what != "" && fault.alive && dead:
		found.Status, found.Detail, found.Fix = Warn, "the GPU cannot be used: "+fault.what, fault.fix
		found.Cost = "the training fails at its first CUDA call, or runs on the CPU"
	case dead:
		found.Status, found.Detail = Fail, "the NVIDIA driver does not work: "+a.why()
		if fault.what != "" {
			found.Detail += "; " + fault.what
		}
		found.Fix = triage + fault.fix
		found.Cost = "the training fails at its first CUDA call, or runs on the CPU"
	case a.ok():
		found.Status = Pass
		found.Detail = fmt.Sprintf("driver %s answers for %s", orUnknown(a.dev.DriverVersion), orUnknown(a.dev.Name))
		if fault.what != "" {
			found.Status, found.Detail, found.Fix = Warn, found.Detail+", but "+fault.what, fault.fix
			found.Cost = "the training does not see the GPU: it fails at its first CUDA call, or runs on the CPU"
		}
	case !f.gpuHere() && hw.pciGPU:
		by := byDesign("an NVIDIA GPU is here, but no NVIDIA driver: it is taken for a machine without one")
		by.Evidence = found.Evidence
		return by
	case !f.gpuHere():
		return f.noGPU()
	case a.late:
		found.Status = Warn
		found.Detail = fmt.Sprintf("the driver gave no answer within %g s: a wedged machine makes it wait for minutes", f.limit.Seconds())
		found.Fix = "timeout 20 nvidia-smi, and reboot if that hangs too"
		found.Cost = "a training that starts now may hang before its first step"
	default:
		found.Status, found.Detail = Warn, "the GPU could not be asked: "+a.why()
		found.Fix, found.Cost = fault.fix, "the training may not see the GPU"
		switch {
		case a.misnamed():
			found.Fix = "unset " + nvmlLibraryEnv + ", or let it name the driver's libnvidia-ml.so.1"
		case fault.what != "":
			found.Detail += "; " + fault.what
		case a.dev.ErrKind == "no-library":
			found.Fix = "nvidia-smi must work: reinstall the driver's packages (dpkg -l 'libnvidia-compute-*' 'nvidia-utils-*'); in a container start it with --gpus all"
		default:
			found.Fix = "nvidia-smi must work; in a container start it with --gpus all"
		}
	}
	return found
}

// triage is the runbook's order of looking.
const triage = "sudo dmesg | grep -i nvidia\nlsmod | grep nvidia\ncat /proc/driver/nvidia/version\n"

func (d driver) evidence(f facts) []string {
	var out []string
	if f.hardware.moduleVersion != "" {
		out = append(out, "/proc/driver/nvidia/version: "+f.hardware.moduleVersion)
	} else if f.hardware.pciGPU {
		out = append(out, "an NVIDIA GPU on the PCI bus, no /proc/driver/nvidia/version")
	}
	if !f.gpuHere() {
		return out
	}
	if d.listed && !d.modules["nvidia"] {
		out = append(out, "/proc/modules: no nvidia")
	}
	if d.modules["nouveau"] {
		out = append(out, "/proc/modules: nouveau")
	}
	if d.installed != "" {
		out = append(out, "driver library "+d.installed)
	}
	for _, n := range d.nodes {
		switch {
		case n.err != nil:
			out = append(out, n.path+": "+reason(n.err))
		case !n.there && !n.spare:
			out = append(out, n.path+": not there")
		case n.there && !n.stat.usable:
			out = append(out, n.denied())
		}
	}
	for _, s := range []struct {
		name string
		envSetting
	}{{"CUDA_VISIBLE_DEVICES", d.cudaVisible}, {"NVIDIA_VISIBLE_DEVICES", d.nvidiaVisible}} {
		if s.set {
			out = append(out, fmt.Sprintf("%s=%q in %s", s.name, s.value, s.where))
		}
	}
	return out
}

func (n deviceNode) denied() string {
	return fmt.Sprintf("%s: %s, owner %d, group %d: not for this user", n.path, n.stat.mode.Perm(), n.stat.uid, n.stat.gid)
}

func orUnknown(s string) string {
	if s == "" {
		return "(unknown)"
	}
	return s
}
