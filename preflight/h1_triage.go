package preflight

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// fault is the first thing in the runbook's order that explains a GPU which is not seen.
// alive tells that the driver itself is in order.
type fault struct {
	what, fix string
	alive     bool
}

// fault goes through the runbook's order: flags of the container, visibility, permission,
// then the driver itself.
func (d driver) fault(f facts) fault {
	if !f.gpuHere() {
		return fault{}
	}
	for _, look := range []func(facts) fault{d.flags, d.visibility, d.permission, d.loaded, d.age} {
		if found := look(f); found != (fault{}) {
			return found
		}
	}
	return fault{}
}

// inContainer tells that this process runs in one.
func (f facts) inContainer() bool { return f.container.marker != "" || f.container.cgroup != "" }

// flags: a container that was started without the GPU sees the host's module and no device.
func (d driver) flags(f facts) fault {
	if !f.inContainer() || f.gpu.ok() {
		return fault{}
	}
	const fix = "start the container with the GPU: docker run --runtime=nvidia --gpus all ...\non the host, where that is refused: sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
	absent := slices.ContainsFunc(d.nodes, func(n deviceNode) bool { return !n.there && n.err == nil && !n.spare })
	switch {
	case d.nvidiaVisible.set && slices.Contains([]string{"void", "none"}, d.nvidiaVisible.value):
		return fault{"NVIDIA_VISIBLE_DEVICES=" + d.nvidiaVisible.value + " keeps the GPU out of this container", "start the container with --gpus all and without NVIDIA_VISIBLE_DEVICES=" + d.nvidiaVisible.value, true}
	case absent && f.hardware.module:
		return fault{"this container was started without the GPU", fix, true}
	case f.gpu.dev.ErrKind == "no-library":
		return fault{"this container was started without the driver's library, as without --gpus", fix, true}
	}
	return fault{}
}

// visibility: variables that hide the GPU from a driver that works.
func (d driver) visibility(f facts) fault {
	// The driver itself does not follow CUDA_VISIBLE_DEVICES: it explains no silence.
	if !f.gpu.ok() {
		return fault{}
	}
	if why := hiddenGPUs(d.cudaVisible, f.gpu.dev.Count, f.gpu.dev.UUID); why != "" {
		fix := "unset CUDA_VISIBLE_DEVICES"
		if d.cudaVisible.where == "the command" {
			fix = "leave CUDA_VISIBLE_DEVICES out of the command"
		}
		return fault{why, fix + "\nor set it to 0: CUDA_VISIBLE_DEVICES=0", true}
	}
	if f.job != nil && f.job.Container != nil && d.nvidiaVisible.set && slices.Contains([]string{"void", "none", ""}, d.nvidiaVisible.value) {
		return fault{fmt.Sprintf("NVIDIA_VISIBLE_DEVICES=%q keeps the GPU out of the container", d.nvidiaVisible.value), "leave NVIDIA_VISIBLE_DEVICES out of the command, or set it to all", true}
	}
	return fault{}
}

// hiddenGPUs says why CUDA sees no GPU with this CUDA_VISIBLE_DEVICES; "" where it does or
// where that cannot be told. CUDA takes the entries up to the first that names no GPU.
func hiddenGPUs(s envSetting, count int, uuid string) string {
	if !s.set {
		return ""
	}
	first, _, _ := strings.Cut(s.value, ",")
	first = strings.TrimSpace(first)
	n, err := strconv.Atoi(first)
	switch {
	case strings.TrimSpace(s.value) == "":
		return "CUDA_VISIBLE_DEVICES is set but empty, which hides every GPU"
	case err == nil && n < 0, first == "", first == "NoDevFiles":
		return fmt.Sprintf("CUDA_VISIBLE_DEVICES=%s hides every GPU", s.value)
	case err == nil && count > 0 && n >= count:
		have := "the only GPU is 0"
		if count > 1 {
			have = fmt.Sprintf("the GPUs are 0 to %d", count-1)
		}
		return fmt.Sprintf("CUDA_VISIBLE_DEVICES=%s names a GPU that is not there (%s), which hides every GPU", s.value, have)
	case err == nil:
		return ""
	case strings.HasPrefix(first, "MIG-"):
		return ""
	case strings.HasPrefix(first, "GPU-"):
		// Any beginning of the UUID will do.
		if count == 1 && uuid != "" && !strings.HasPrefix(strings.ToLower(uuid), strings.ToLower(first)) {
			return fmt.Sprintf("CUDA_VISIBLE_DEVICES=%s names a GPU that is not there, which hides every GPU", s.value)
		}
		return ""
	case first == "all":
		return "CUDA_VISIBLE_DEVICES=all is no index and no UUID, which hides every GPU (all is a word of NVIDIA_VISIBLE_DEVICES)"
	}
	return ""
}

// permission: nodes that this user may not use.
func (d driver) permission(facts) fault {
	for _, n := range d.nodes {
		if n.there && !n.stat.usable {
			return fault{
				"this user may not use " + n.path, fmt.Sprintf("ls -l /dev/nvidia*\nthey are open to everybody unless NVreg_DeviceFileMode says otherwise: grep -r NVreg_DeviceFile /etc/modprobe.d\nelse join the group that owns them (sudo usermod -aG GROUP $USER; it has the number %d) and log in again", n.stat.gid), true,
			}
		}
	}
	return fault{}
}

// loaded: the kernel module, and why it is not there or does not fit.
func (d driver) loaded(f facts) fault {
	a := f.gpu
	if a.ok() || a.late || !a.asked || a.err != nil {
		return fault{}
	}
	inside := f.hardware.module || d.modules["nvidia"]
	text := strings.ToLower(a.dev.Err)
	switch {
	case a.dev.ErrKind == "lost", a.dev.ErrKind == "reset-required":
		return fault{"the GPU itself is gone", "then reboot; if it comes back, power the machine off and unplug it for a minute", false}
	case strings.Contains(text, "mismatch"), strings.Contains(text, "different versions"), d.tornBy(f) != "":
		what := "library and loaded module are of different versions"
		if torn := d.tornBy(f); torn != "" {
			what += " (" + torn + ")"
		}
		if f.inContainer() {
			return fault{what, "the driver of the host was updated under this container: restart the container, and reboot the host if nvidia-smi fails there too", false}
		}
		return fault{what, "the driver was updated and the old module is still loaded: sudo reboot", false}
	case inside && a.dev.ErrKind == "no-library":
		return fault{}
	case inside:
		return fault{"", "usually the kernel or the driver was updated and the loaded module is of another version: reboot, and reinstall the driver for the running kernel if that does not help", false}
	case !d.listed:
		return fault{"", "sudo modprobe nvidia\nif that fails, reinstall the driver for the running kernel, and reboot", false}
	case d.modules["nouveau"]:
		return fault{"nouveau is loaded in its place", "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf\nsudo update-initramfs -u && sudo reboot", false}
	case f.inContainer():
		return fault{"its module is not loaded on the host", "on the host: sudo modprobe nvidia, then start the container again", false}
	case d.release != "" && !d.foldered:
		return fault{"the modules of the running kernel " + d.release + " are no longer there: an upgrade removed them", "sudo reboot, which starts the kernel that has modules", false}
	case d.foldered && !d.built:
		return fault{"there is no nvidia module for the running kernel " + d.release, d.reinstall(), false}
	case d.secureBoot:
		return fault{"its module is not loaded, and Secure Boot is on: an unsigned module is refused", "sudo modprobe nvidia (\"Key was rejected by service\" is Secure Boot)\nmokutil --sb-state\nsudo mokutil --import /var/lib/shim-signed/mok/MOK.der, then reboot and enrol the key at the console", false}
	}
	return fault{"its module is not loaded", "sudo modprobe nvidia\nif that fails, the reason is in: sudo dmesg | grep -iE 'nvidia|nvrm'", false}
}

// reinstall is how the module of this kernel is put back: from the distribution, never
// from a .run file, and the open one, since no other works on GB10.
func (d driver) reinstall() string {
	if branch, _, ok := strings.Cut(d.installed, "."); ok {
		return fmt.Sprintf("sudo apt install --reinstall linux-modules-nvidia-%s-open-%s\nif there is no such package: sudo apt install --reinstall nvidia-dkms-%s-open\nsudo reboot", branch, d.release, branch)
	}
	return "install the driver's open module for this kernel (linux-modules-nvidia-BRANCH-open-" + d.release + ", or nvidia-dkms-BRANCH-open), then reboot"
}

// tornBy says which versions differ, where both are known.
func (d driver) tornBy(f facts) string {
	m := moduleVersionWord.FindString(f.hardware.moduleVersion)
	if m == "" || d.installed == "" || m == d.installed {
		return ""
	}
	return "module " + m + ", library " + d.installed
}

// age: software for a newer CUDA than the driver supports.
func (d driver) age(f facts) fault {
	have := f.gpu.dev.CUDADriver
	if !f.gpu.ok() || have <= 0 {
		return fault{}
	}
	need, from := d.containerCUDA, d.containerCUDAFrom
	if f.job != nil && f.job.Container != nil {
		if need = f.image.facts.Env["CUDA_VERSION"]; need != "" {
			from = "image " + f.job.Container.Image
		}
	}
	if need == "" && f.torch.state == torchFound && f.torch.cuda != "" {
		need, from = f.torch.cuda, "torch "+f.torch.version
	}
	word, _, _ := strings.Cut(need, ".")
	major, err := strconv.Atoi(word)
	// Within one major version an older driver serves newer software.
	if err != nil || major <= have/1000 {
		return fault{}
	}
	return fault{
		fmt.Sprintf("%s is for CUDA %s and this driver supports CUDA %s at most", from, need, cudaWords(have)),
		fmt.Sprintf("update the driver: sudo apt update && sudo apt full-upgrade && sudo reboot\nor take software for CUDA %d", have/1000), true,
	}
}

// cudaWords writes 13000 as 13.0.
func cudaWords(n int) string { return fmt.Sprintf("%d.%d", n/1000, n%1000/10) }
