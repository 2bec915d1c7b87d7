package preflight

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"sparkrun/internal/sample"
)

// hardware is what the machine says of itself without any driver's help.
type hardware struct {
	// pciGPU: a display or 3D controller of NVIDIA's is on the PCI bus.
	pciGPU bool
	// sparkPCI: it is the Spark's; sparkDMI: the maker's name says so.
	sparkPCI, sparkDMI bool
	// module: the NVIDIA kernel module is loaded.
	module bool
	// moduleVersion is the first line of /proc/driver/nvidia/version.
	moduleVersion string
}

const (
	pciVendorNVIDIA = "0x10de"
	// pciClassDisplay is the class of VGA (0x0300) and 3D (0x0302) controllers.
	pciClassDisplay = "0x03"
)

// readHardware reads sysfs and procfs only: nothing in it can hang.
func readHardware(r root, s stack) hardware {
	var hw hardware
	const bus = "/sys/bus/pci/devices"
	for _, name := range r.names(bus) {
		dev := filepath.Join(bus, name)
		if r.word(dev+"/vendor") != pciVendorNVIDIA || !strings.HasPrefix(r.word(dev+"/class"), pciClassDisplay) {
			continue
		}
		hw.pciGPU = true
		if strings.EqualFold(r.word(dev+"/device"), s.Spark.PCIDevice) {
			hw.sparkPCI = true
		}
	}
	product := strings.ReplaceAll(r.word("/sys/class/dmi/id/product_name"), "_", " ")
	hw.sparkDMI = strings.Contains(product, "DGX Spark")
	if b, err := r.read("/proc/driver/nvidia/version"); err == nil {
		hw.module = true
		hw.moduleVersion, _, _ = strings.Cut(strings.TrimSpace(string(b)), "\n")
	}
	return hw
}

// word returns a file's text without the white space around it, or "".
func (r root) word(path string) string {
	b, err := r.read(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// gpuAnswer is what the driver said when it was asked.
type gpuAnswer struct {
	dev sample.Device
	gpu sample.GPU
	// asked: there was a way to ask. late: it had not answered in time.
	asked, late bool
	err         error
}

// ok tells that a GPU answered.
func (a gpuAnswer) ok() bool {
	return a.asked && !a.late && a.err == nil && a.dev.ErrKind == "" &&
		(a.dev.Source == "nvml" || a.dev.Source == "nvidia-smi") && (a.dev.Name != "" || a.dev.Count > 0)
}

// why says in a few words why there is no answer.
func (a gpuAnswer) why() string {
	switch {
	case !a.asked:
		return "there is no way to ask the driver"
	case a.late:
		return "the driver did not answer in time"
	case a.err != nil:
		return a.err.Error()
	case a.dev.Err != "":
		return a.dev.Err
	case a.dev.ErrKind != "":
		return a.dev.ErrKind
	}
	return "no source of readings"
}

func askDevice(ctx context.Context, ask func(context.Context) (sample.Device, sample.GPU, error)) gpuAnswer {
	if ask == nil {
		return gpuAnswer{}
	}
	dev, gpu, err := ask(ctx)
	return gpuAnswer{dev: dev, gpu: gpu, asked: true, err: err, late: errors.Is(err, context.DeadlineExceeded)}
}

// platformOf decides which machine this is. The GPU's own name is the best
// witness; only when the driver does not answer do PCI id and DMI count.
func platformOf(hw hardware, a gpuAnswer, s stack) string {
	switch {
	case a.ok() && a.dev.Name != "":
		if strings.Contains(a.dev.Name, s.Spark.GPUName) {
			return DGXSpark
		}
		return GenericNVIDIA
	case hw.sparkPCI:
		return DGXSpark
	case a.ok(), hw.module:
		if hw.sparkDMI {
			return DGXSpark
		}
		return GenericNVIDIA
	case hw.pciGPU && driverDead(hw, a):
		if hw.sparkDMI {
			return DGXSpark
		}
		return GenericNVIDIA
	}
	// An NVIDIA card without NVIDIA's driver, as on many laptops, is no GPU that
	// a training could use.
	return Generic
}

// driverDead tells that there is a GPU and a driver for it that cannot work. A
// driver that was never installed is not dead, nor is one that is merely slow.
func driverDead(hw hardware, a gpuAnswer) bool {
	if !hw.pciGPU && !hw.module || !a.asked || a.late {
		return false
	}
	switch a.dev.ErrKind {
	case "no-driver", "lost", "reset-required":
		return true
	case "other":
		// Library and module of different versions, as an unattended upgrade
		// leaves them: nothing works until the next reboot.
		return strings.Contains(strings.ToLower(a.dev.Err), "mismatch")
	}
	return false
}

// tuple writes a capability as Python would.
func tuple(major, minor int) string { return fmt.Sprintf("(%d, %d)", major, minor) }
