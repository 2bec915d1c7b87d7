package preflight

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// kernelSeen is the running kernel and those that are installed.
type kernelSeen struct {
	release string
	// installed are the kernels in /boot.
	installed []string
	// foldered tells that the running kernel's modules are there, folders that any are.
	foldered, folders bool
	// reboot tells that the system asks for one, for the sake of the packages in pending.
	reboot  bool
	pending []string
}

func lookKernel(_ context.Context, v view) kernelSeen {
	k := kernelSeen{release: v.root.word("/proc/sys/kernel/osrelease")}
	for _, name := range v.root.names("/boot") {
		if release, ok := strings.CutPrefix(name, "vmlinuz-"); ok && release != "" {
			k.installed = append(k.installed, release)
		}
	}
	slices.SortFunc(k.installed, compareReleases)
	modules := v.root.names("/lib/modules")
	k.folders, k.foldered = len(modules) > 0, slices.Contains(modules, k.release)
	k.reboot, _ = v.root.exists("/run/reboot-required")
	if b, err := v.root.read("/run/reboot-required.pkgs"); err == nil {
		k.pending = strings.Fields(string(b))
		slices.Sort(k.pending)
		k.pending = slices.Compact(k.pending)
	}
	return k
}

// judgeKernel is H8: a kernel known to be bad, or one whose modules an upgrade has pulled
// away under it.
func judgeKernel(k kernelSeen, f facts) Finding {
	if k.release == "" {
		return Finding{Status: Skip, Detail: "the running kernel cannot be told: /proc/sys/kernel/osrelease is not readable"}
	}
	found := Finding{Status: Pass, Detail: "kernel " + k.release}
	if f.spark() {
		for _, bad := range aboutHost().Kernel.KnownBad {
			if isRelease(k.release, bad.Release) {
				found.Status = Warn
				found.Detail = fmt.Sprintf("kernel %s %s", k.release, bad.What)
				found.Evidence = []string{bad.Source, "as of " + aboutHost().AsOf}
				found.Fix = bad.Fix
				found.Cost = "the machine may stop in the middle of the training, and nothing since the last checkpoint is left"
				return found
			}
		}
	}
	if f.inContainer() {
		found.Detail += ", of the host"
		return found
	}
	newest := newestOf(k.installed, k.release)
	switch {
	case !k.foldered && k.folders && f.hardware.module:
		found.Status = Warn
		found.Detail = fmt.Sprintf("kernel %s is running, and its modules are no longer there: an upgrade removed them", k.release)
		found.Evidence = []string{"/lib/modules/" + k.release + " is missing"}
		found.Fix = "sudo reboot"
		found.Cost = "what is not loaded yet cannot be loaded: nvidia-uvm, a file system, a USB device fail in the middle of the night"
	case newest != "":
		found.Status = Info
		found.Detail = fmt.Sprintf("kernel %s is running, %s is installed: it starts at the next boot", k.release, newest)
	case k.reboot:
		found.Status = Info
		found.Detail = fmt.Sprintf("kernel %s; the system asks for a reboot", k.release)
	}
	if k.reboot {
		found.Evidence = append(found.Evidence, "/run/reboot-required: "+strings.Join(first(k.pending, 6), " "))
	}
	return found
}

// first returns at most n elements, and says that there are more.
func first(list []string, n int) []string {
	if len(list) <= n {
		return list
	}
	return append(slices.Clone(list[:n]), fmt.Sprintf("and %d more", len(list)-n))
}

// isRelease tells whether a release is the one of the table, whatever its flavour.
func isRelease(release, bad string) bool {
	rest, ok := strings.CutPrefix(release, bad)
	return ok && (rest == "" || rest[0] == '-' || rest[0] == '+' || rest[0] == '.')
}

// newestOf returns the newest kernel of the running one's flavour, if it is newer.
func newestOf(sorted []string, running string) string {
	for _, r := range slices.Backward(sorted) {
		if flavour(r) == flavour(running) {
			if compareReleases(r, running) > 0 {
				return r
			}
			return ""
		}
	}
	return ""
}

// flavour is the part of a release behind its numbers: "-nvidia", "-nvidia-64k".
func flavour(release string) string {
	i := strings.IndexFunc(release, func(c rune) bool { return (c < '0' || c > '9') && c != '.' && c != '-' })
	if i <= 0 {
		return ""
	}
	return strings.TrimLeft(release[i:], "-")
}

// compareReleases compares number by number: 6.17.0-1014 is after 6.17.0-1008, and
// 6.17 after 6.8.
func compareReleases(a, b string) int {
	x, y := numbers(a), numbers(b)
	if c := slices.Compare(x, y); c != 0 {
		return c
	}
	return strings.Compare(a, b)
}

func numbers(s string) []int {
	var out []int
	for _, w := range strings.FieldsFunc(s, func(c rune) bool { return c < '0' || c > '9' }) {
		n, err := strconv.Atoi(w)
		if err != nil {
			break
		}
		out = append(out, n)
	}
	return out
}
