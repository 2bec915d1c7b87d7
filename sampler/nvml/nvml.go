// Package nvml reads one NVIDIA GPU through the driver's management library.
//
// It owns everything that is awkward about that library: symbols the installed
// driver lacks (see internal/trampoline), readings a machine does not have, and
// telling apart the ways in which a GPU is not there. Calls may block for
// minutes while a machine is in trouble and cannot be interrupted, so a Reader
// belongs to one goroutine of a process whose loss costs readings only.
package nvml

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"sparkrun/internal/sample"
)

// LibraryEnv names the environment variable that gives the absolute path of
// the management library, for a driver that is installed in an unusual place.
const LibraryEnv = "SPARKRUN_NVML_LIBRARY"

// DefaultLibrary is looked up by the dynamic loader when LibraryEnv is not set.
const DefaultLibrary = "libnvidia-ml.so.1"

// Library returns the library that Open is to load, from the environment.
func Library() (string, error) {
	path := os.Getenv(LibraryEnv)
	if path == "" {
		return DefaultLibrary, nil
	}
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s=%q is not an absolute path", LibraryEnv, path)
	}
	return path, nil
}

// Kind says in which way NVML does not answer; the values are those of
// sample.Device.ErrKind.
type Kind string

// The kinds of failure that call for different actions.
const (
	NoLibrary     Kind = "no-library"
	NoDriver      Kind = "no-driver"
	NoDevice      Kind = "no-device"
	Lost          Kind = "lost"
	ResetRequired Kind = "reset-required"
	Other         Kind = "other"
)

// Error is a failure of NVML. Its text is our own: the library's error strings
// need a symbol that may be missing and memory that may be unmapped.
type Error struct {
	Kind Kind
	// Code is the nvmlReturn_t, 0 where no call was made.
	Code int
	Text string
}

func (e *Error) Error() string { return e.Text }

// The nvmlReturn_t values that are told apart (nvml.h).
const (
	codeNotSupported     = 3
	codeNoPermission     = 4
	codeNotFound         = 6
	codeDriverNotLoaded  = 9
	codeTimeout          = 10
	codeLibraryNotFound  = 12
	codeFunctionNotFound = 13
	codeLost             = 15
	codeResetRequired    = 16
	codeOperatingSystem  = 17
	codeVersionMismatch  = 18
	codeGPUNotFound      = 28
	codeUninitialized    = 1
	codeUnknown          = 999
)

// errorFor turns a status into an Error a person can act on.
func errorFor(code int) *Error {
	e := &Error{Kind: Other, Code: code}
	switch code {
	case codeLibraryNotFound:
		e.Kind, e.Text = NoLibrary, "no NVIDIA driver library ("+DefaultLibrary+") found"
	case codeDriverNotLoaded:
		e.Kind, e.Text = NoDriver, "the NVIDIA kernel driver is not loaded"
	case codeVersionMismatch:
		e.Kind, e.Text = NoDriver, "the NVIDIA library and the loaded kernel driver have different versions: reboot after a driver update"
	case codeNotFound, codeGPUNotFound:
		e.Kind, e.Text = NoDevice, "the NVIDIA driver sees no GPU"
	case codeLost:
		e.Kind, e.Text = Lost, "the GPU has fallen off the bus: shut down and power-cycle the machine"
	case codeResetRequired:
		e.Kind, e.Text = ResetRequired, "the GPU needs a reset before it can be used again: reboot"
	case codeNoPermission:
		e.Text = "no permission to use the NVIDIA driver: check /dev/nvidiactl and the groups of this user"
	case codeOperatingSystem:
		e.Text = "the operating system blocks the GPU's control device (a container without the GPU?)"
	case codeTimeout:
		e.Text = "the NVIDIA driver timed out"
	case codeUninitialized:
		e.Text = "the NVIDIA library is not initialised"
	case codeUnknown:
		e.Text = "the NVIDIA driver reports an internal error"
	case codeNotSupported:
		e.Text = "not supported by this GPU"
	case codeFunctionNotFound:
		e.Text = "not in this version of the NVIDIA library"
	default:
		e.Text = fmt.Sprintf("NVML error %d", code)
	}
	return e
}

// absent reports whether a status means that this machine will never have the
// reading, as opposed to a failure that may pass.
func absent(code int) bool { return code == codeNotSupported || code == codeFunctionNotFound }

// wholeDevice reports whether a status concerns the GPU or the driver and not
// the one reading that was asked for.
func wholeDevice(code int) bool {
	switch code {
	case codeLost, codeResetRequired, codeDriverNotLoaded, codeUninitialized, codeVersionMismatch, codeOperatingSystem:
		return true
	}
	return false
}

// unified are words in the names of GPUs that have no memory of their own. NVML
// does not support the question there; where it does answer, what it says is the
// machine's memory or, on a sister chip, some other figure.
var unified = []string{"GB10", "N1X"}

// Unified reports whether a GPU of that name shares the machine's memory.
func Unified(name string) bool {
	for _, word := range unified {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// memoryTotal is the GPU's own memory in MiB, unknown where the figure cannot be
// that: on a GPU known to have none, or when it is the machine's memory (in MiB,
// 0 if unknown) to within one part in a hundred.
func memoryTotal(name string, total, machine float64) sample.Num {
	if Unified(name) || total <= 0 || machine > 0 && math.Abs(total-machine) <= machine/100 {
		return sample.Num{}
	}
	return sample.Known(total)
}

// The highest values that can be true. NVML says "not available" in several
// ways, among them all ones, which would be taken for a reading.
const (
	maxTempC    = 200
	maxWatts    = 5000
	maxClockMHz = 50_000
	maxPercent  = 100
	maxReasons  = 1 << 32
	// Less than all ones, by which NVML says that there is no counter.
	maxNS     = 4e18
	maxJoules = 1e12
)
