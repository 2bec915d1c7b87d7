// Package fakenvml builds a libnvidia-ml.so.1 that plays a scenario file over
// time and answers as a GB10 does (no memory figures, no fan, no limits). The
// real go-nvml loads it, so that tests cover the way through cgo and the
// dynamic loader. fakenvml.c describes the scenario language.
package fakenvml

import (
	"crypto/sha256"
	_ "embed" // for the C source
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

//go:embed fakenvml.c
var source string

// Minimal is a library that has only what it takes to find a GPU, its name and
// its temperature, as a very old driver might.
const Minimal = "minimal"

var minimal = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetName", "nvmlDeviceGetTemperature",
}

// Omit is the variant that lacks one symbol.
func Omit(symbol string) string { return "omit:" + symbol }

// module is the folder of go-nvml, whose nvml.h is needed. It is asked for once: the go
// command takes its time on a busy machine, and tests ask for the library by the dozen.
var module = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		return "", fmt.Errorf("finding go-nvml, whose nvml.h is needed: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
})

var building sync.Mutex

// Build compiles the library and returns its path. Variants are Minimal and
// Omit(symbol). The result is kept in the system's folder for temporary files
// under a name made of its source, so that a test run compiles it once.
func Build(t testing.TB, variant ...string) (libPath string) {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	path, err := build(variant)
	if err != nil {
		t.Fatalf("building the fake NVML: %v", err)
	}
	return path
}

func build(variant []string) (string, error) {
	nvml, err := module()
	if err != nil {
		return "", err
	}
	include := filepath.Join(nvml, "pkg", "nvml")
	script, err := versionScript(variant)
	if err != nil {
		return "", err
	}
	cc := strings.Fields(os.Getenv("CC"))
	if len(cc) == 0 {
		cc = []string{"cc"}
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{source, include, script, strings.Join(cc, " ")}, "\x00")))
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("sparkrun-fakenvml-%d-%s", os.Getuid(), hex.EncodeToString(sum[:8])))
	lib := filepath.Join(dir, "libnvidia-ml.so.1")
	if _, err := os.Stat(lib); err == nil {
		return lib, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	src, exports, out := filepath.Join(work, "fakenvml.c"), filepath.Join(work, "exports"), filepath.Join(work, "lib")
	if err := os.WriteFile(src, []byte(source), 0o600); err != nil {
		return "", err
	}
	if err := os.WriteFile(exports, []byte(script), 0o600); err != nil {
		return "", err
	}
	args := slices.Concat(cc[1:], []string{
		"-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations",
		"-DNVML_NO_UNVERSIONED_FUNC_DEFS", "-I", include,
		"-Wl,-soname,libnvidia-ml.so.1", "-Wl,--version-script=" + exports,
		"-o", out, src, "-lpthread",
	})
	if b, err := exec.Command(cc[0], args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cc[0], err, b)
	}
	// The rename makes it whole or absent, whoever else builds it meanwhile.
	if err := os.Rename(out, lib); err != nil {
		return "", err
	}
	return lib, nil
}

// versionScript says which symbols the library shows. What is local to it is,
// to the dynamic loader, not there.
func versionScript(variant []string) (string, error) {
	global, local := []string{"nvml*"}, []string{"*"}
	for _, v := range variant {
		symbol, omit := strings.CutPrefix(v, "omit:")
		switch {
		case v == Minimal:
			global = minimal
		case omit && strings.Contains(source, symbol):
			local = append(local, symbol)
		default:
			return "", fmt.Errorf("unknown variant %q", v)
		}
	}
	return fmt.Sprintf("{ global: %s; local: %s; };\n", strings.Join(global, "; "), strings.Join(local, "; ")), nil
}
