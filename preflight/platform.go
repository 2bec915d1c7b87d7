package preflight

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

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
	// product is the maker's name of the machine, release what /etc/dgx-release says.
	product string
	release dgxRelease
	// capsW are the caps of the power firmware by label, in watts, where the spbm driver
	// is loaded.
	capsW map[string]float64
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
	hw.product = strings.ReplaceAll(r.word("/sys/class/dmi/id/product_name"), "_", " ")
	hw.sparkDMI = strings.Contains(hw.product, "DGX Spark")
	hw.release = readRelease(r)
	hw.capsW = powerCaps(r)
	if b, err := r.read("/proc/driver/nvidia/version"); err == nil {
		hw.module = true
		hw.moduleVersion, _, _ = strings.Cut(strings.TrimSpace(string(b)), "\n")
	}
	return hw
}

// dgxRelease is what /etc/dgx-release says of the system; empty elsewhere.
type dgxRelease struct {
	name, build, ota string
}

func readRelease(r root) (rel dgxRelease) {
	b, err := r.read("/etc/dgx-release")
	if err != nil {
		return dgxRelease{}
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "DGX_NAME":
			rel.name = value
		case "DGX_SWBUILD_VERSION":
			rel.build = value
		case "DGX_OTA_VERSION":
			rel.ota = value
		}
	}
	return rel
}

// powerCaps reads what the spbm driver gives of the power firmware's caps. The numbers in
// the file names say nothing: they move between boots and versions.
func powerCaps(r root) map[string]float64 {
	const all = "/sys/class/hwmon"
	for _, chip := range r.names(all) {
		dir := filepath.Join(all, chip)
		if r.word(dir+"/name") != "spbm" {
			continue
		}
		caps := make(map[string]float64)
		for _, name := range r.names(dir) {
			number, ok := strings.CutSuffix(name, "_label")
			if !ok || !strings.HasPrefix(number, "power") {
				continue
			}
			uw, err := strconv.ParseUint(r.word(filepath.Join(dir, number+"_cap")), 10, 64)
			// All ones in 32 bits is the driver's "no value".
			if err == nil && uw < 0xFFFFFFFF {
				caps[r.word(filepath.Join(dir, name))] = float64(uw) / 1e6
			}
		}
		return caps
	}
	return nil
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
	// installed: the driver's library is; only known where late.
	installed bool
	// named is the file that the user's setting names in place of the driver's library.
	named string
	err   error
}

// ok tells that a GPU answered.
func (a gpuAnswer) ok() bool {
	return a.asked && !a.late && a.err == nil && a.dev.ErrKind == "" &&
		(a.dev.Source == "nvml" || a.dev.Source == "nvidia-smi") && (a.dev.Name != "" || a.dev.Count > 0)
}

// hangs tells that there is a driver that keeps its caller waiting, rather than none that
// could be asked: then the library is not there, and that is said at once.
func (a gpuAnswer) hangs() bool { return a.late && a.installed }

// nvmlLibraryEnv names the driver's library in place of the system's own, for the sensors.
const nvmlLibraryEnv = "SPARKRUN_NVML_LIBRARY"

// libraryThere tells whether the driver's library is installed.
func libraryThere(r root, getenv func(string) string) bool {
	paths := aboutHost().Driver.Libraries
	if named := getenv(nvmlLibraryEnv); filepath.IsAbs(named) {
		paths = []string{named}
	}
	for _, path := range paths {
		if there, _ := r.exists(path); there {
			return true
		}
	}
	return false
}

// misnamed tells that the driver could not be asked because a setting of the user's names
// another library than there is.
func (a gpuAnswer) misnamed() bool { return a.named != "" && a.dev.ErrKind == "no-library" }

// noGPU is the finding of what needs a GPU, on a machine that seems to have none.
func (f facts) noGPU() Finding {
	why := "no NVIDIA GPU on this machine"
	if f.gpu.misnamed() {
		why += " that can be asked: " + f.gpu.why()
	}
	return byDesign(why)
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
	case a.misnamed():
		return nvmlLibraryEnv + " names " + a.named + ", which cannot be loaded (" + a.dev.Err + ")"
	case a.dev.Err != "":
		return a.dev.Err
	case a.dev.ErrKind != "":
		return a.dev.ErrKind
	}
	return "no source of readings"
}

func askDevice(ctx context.Context, limit time.Duration, ask func(context.Context) (sample.Device, sample.GPU, error)) gpuAnswer {
	if ask == nil {
		return gpuAnswer{}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
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
	case a.ok(), hw.module, a.hangs():
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
		return strings.Contains(strings.ToLower(a.dev.Err), "mismatch") || strings.Contains(a.dev.Err, "different versions")
	}
	return false
}

// tuple writes a capability as Python would.
func tuple(major, minor int) string { return fmt.Sprintf("(%d, %d)", major, minor) }
