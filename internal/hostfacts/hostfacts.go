// Package hostfacts reads what does not change while a machine is up: its
// operating system, kernel and processor. It is the only user of gopsutil, whose version 3 can
// panic on a /proc it does not understand and says 0 for what it could not read;
// here a panic is an error and a missing fact is empty. Memory, sensors and
// processes are never read through it.
package hostfacts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/shirou/gopsutil/v3/cpu"
	"github.com/shirou/gopsutil/v3/host"
)

// Facts are empty where unknown.
type Facts struct {
	OS     string // distribution and version, as "Ubuntu 24.04.3 LTS"
	Kernel string
	CPU    string // model of the first processor
	CPUs   int    // logical processors
	// Virtual is the kind of virtual machine or container, as "kvm".
	Virtual string
}

// Read gathers the facts. What could be read is returned also with an error.
func Read(ctx context.Context) (f Facts, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("reading facts about the host: %v", p)
		}
	}()
	if f.Kernel, err = host.KernelVersionWithContext(ctx); err != nil {
		return f, fmt.Errorf("reading the kernel's version: %w", err)
	}
	system, role, err := host.VirtualizationWithContext(ctx)
	if err == nil && role == "guest" {
		f.Virtual = system
	}
	// gopsutil would run lsb_release, a shell script that costs more than the
	// rest of our start.
	f.OS = osName("/")
	if f.CPUs, err = cpu.CountsWithContext(ctx, true); err != nil {
		return f, fmt.Errorf("counting processors: %w", err)
	}
	if f.CPUs == 0 {
		return f, errors.New("counting processors: /proc names none")
	}
	cpus, err := cpu.InfoWithContext(ctx)
	if err != nil {
		return f, fmt.Errorf("reading the processor's name: %w", err)
	}
	if len(cpus) > 0 {
		f.CPU = strings.TrimSpace(cpus[0].ModelName)
	}
	return f, nil
}

// osName returns the name of the distribution from os-release, where the system
// says it.
func osName(root string) string {
	for _, name := range []string{"etc/os-release", "usr/lib/os-release"} {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				return strings.Trim(v, `"'`)
			}
		}
	}
	return ""
}
