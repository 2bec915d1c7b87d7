package preflight

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

type limitsTable struct {
	OpenFiles       uint64 `yaml:"open_files"`
	ManyWorkers     int64  `yaml:"many_workers"`
	Processes       uint64 `yaml:"processes"`
	LockedGiB       uint64 `yaml:"locked_gib"`
	StackKiB        uint64 `yaml:"stack_kib"`
	AddressSpaceGiB uint64 `yaml:"address_space_gib"`
	MemoryPercent   uint64 `yaml:"memory_percent"`
}

// unlimited is a limit that is none.
const unlimited = 1<<64 - 1

// limitsSeen are the limits that the command inherits.
type limitsSeen struct {
	// soft and hard are /proc/self/limits by the kernel's names.
	soft, hard map[string]uint64
	err        error
	// cgroup is the tightest limit on memory among the groups that this shell lies in,
	// in bytes, and the file it stands in; unlimited where there is none.
	cgroup     uint64
	cgroupFile string
	// pids is the same for the number of tasks.
	pids     uint64
	pidsFile string
	loaders  loaders
	// corePattern is where the kernel writes a dump to.
	corePattern string
}

func lookLimits(_ context.Context, v view) limitsSeen {
	seen := limitsSeen{cgroup: unlimited, pids: unlimited, loaders: loadersOf(v)}
	text, err := v.file("/proc/self/limits")
	if err == nil {
		seen.soft, seen.hard = parseLimits(text)
	}
	seen.err = err
	seen.corePattern = v.root.word("/proc/sys/kernel/core_pattern")
	for _, g := range ownCgroups(v) {
		for _, file := range g.memory {
			if n, ok := cgroupLimit(v, file); ok && n < seen.cgroup {
				seen.cgroup, seen.cgroupFile = n, file
			}
		}
		if n, ok := cgroupLimit(v, g.pids); ok && n < seen.pids {
			seen.pids, seen.pidsFile = n, g.pids
		}
	}
	return seen
}

// parseLimits reads /proc/self/limits: a name, two numbers and a unit, in columns that
// are only apart by more than one space where the name ends.
func parseLimits(text string) (soft, hard map[string]uint64) {
	soft, hard = make(map[string]uint64), make(map[string]uint64)
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, "  ")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 {
			continue
		}
		for i, m := range []map[string]uint64{soft, hard} {
			if fields[i] == "unlimited" {
				m[name] = unlimited
			} else if n, err := strconv.ParseUint(fields[i], 10, 64); err == nil {
				m[name] = n
			}
		}
	}
	return soft, hard
}

// cgroupFiles are the files of limits of one group.
type cgroupFiles struct {
	memory []string
	pids   string
}

// ownCgroups are the groups that this shell lies in and all above them. Inside a
// container the path often starts at the container's own group.
func ownCgroups(v view) []cgroupFiles {
	text, err := v.root.read("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	var out []cgroupFiles
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") {
			continue
		}
		for dir := path.Clean(parts[2]); ; dir = path.Dir(dir) {
			switch {
			case parts[1] == "":
				for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
					at := filepath.Join(mount, dir)
					out = append(out, cgroupFiles{memory: []string{at + "/memory.max", at + "/memory.high"}, pids: at + "/pids.max"})
				}
			case strings.Contains(","+parts[1]+",", ",memory,"):
				at := filepath.Join("/sys/fs/cgroup/memory", dir)
				out = append(out, cgroupFiles{memory: []string{at + "/memory.limit_in_bytes"}})
			case strings.Contains(","+parts[1]+",", ",pids,"):
				out = append(out, cgroupFiles{pids: filepath.Join("/sys/fs/cgroup/pids", dir) + "/pids.max"})
			}
			if dir == "/" {
				break
			}
		}
	}
	return out
}

// cgroupLimit reads one limit; version 1 says "none" with a number of 2^63 less a page.
func cgroupLimit(v view, file string) (uint64, bool) {
	if file == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(v.root.word(file), 10, 64)
	return n, err == nil && n < 1<<62
}

// judgeLimits is H6: what this shell may use ends a training that needs more, some of it
// only hours later.
func judgeLimits(seen limitsSeen, f facts) Finding {
	if f.job != nil && f.job.Container != nil {
		return byDesign("the command's container has limits of its own: see H7")
	}
	t := rulesOfHost().Limits
	var a advice
	judgeCgroup(&a, seen, f)
	if seen.err != nil {
		if len(a.details) == 0 {
			return unreadable("/proc/self/limits", seen.err)
		}
		a.saw("/proc/self/limits could not be read: %v", seen.err)
	}
	for _, l := range []struct{ name, flag, unit string }{
		{"Max open files", "-n", ""},
		{"Max locked memory", "-l", " bytes"},
		{"Max stack size", "-s", " bytes"},
		{"Max processes", "-u", ""},
		{"Max core file size", "-c", " bytes"},
	} {
		if n, ok := seen.soft[l.name]; ok {
			a.saw("ulimit %s: %s%s (hard %s)", l.flag, limitWords(n), l.unit, limitWords(seen.hard[l.name]))
		}
	}
	workers := seen.loaders.n
	if f.job != nil {
		workers = saturated(workers, int64(max(f.job.Procs, 1)))
	}
	if n, ok := seen.soft["Max open files"]; ok && n < t.OpenFiles && (workers >= t.ManyWorkers || n < 256) {
		a.warn(fmt.Sprintf("%d open files are allowed, for %d data loader workers", n, workers),
			"\"Too many open files\" or \"received 0 items of ancdata\" ends the run, often hours later",
			raise(seen, "Max open files", "-n", "65536"))
	}
	if n, ok := seen.soft["Max processes"]; ok && n < t.Processes {
		a.warn(fmt.Sprintf("%d processes and threads are allowed for this user, all programs together", n),
			"workers and compilers cannot be started: \"Resource temporarily unavailable\"",
			raise(seen, "Max processes", "-u", "unlimited"))
	}
	judgeKilling(&a, seen, f)
	if n, ok := seen.soft["Max locked memory"]; ok && n < t.LockedGiB<<30 && f.job != nil && f.job.Nodes > 1 {
		a.warn(fmt.Sprintf("only %s may be locked, and the command spans %d machines", sizeWords(n), f.job.Nodes),
			"buffers for RDMA must be locked: NCCL fails, or falls back to the slow network",
			raise(seen, "Max locked memory", "-l", "unlimited"))
	}
	// No hint: it costs something only where a program crashes.
	if n := seen.soft["Max core file size"]; n == unlimited && seen.corePattern != "" && !strings.HasPrefix(seen.corePattern, "|") {
		a.saw("a crash writes all of the process's memory to a file (%s): ulimit -c 0 leaves that out", seen.corePattern)
	}
	return a.finding(Pass, "the limits of this shell do not stand in the way")
}

// judgeKilling looks at limits with which the kernel ends a process.
func judgeKilling(a *advice, seen limitsSeen, f facts) {
	t := rulesOfHost().Limits
	if n, ok := seen.soft["Max stack size"]; ok && n < t.StackKiB<<10 {
		a.warn("the stack may have only "+sizeWords(n), "a deep recursion, as in compiling a model, ends in a segmentation fault", raise(seen, "Max stack size", "-s", "8192"))
	}
	for _, l := range []struct{ name, flag string }{{"Max address space", "-v"}, {"Max data size", "-d"}} {
		if n, ok := seen.soft[l.name]; ok && n < t.AddressSpaceGiB<<30 {
			a.warn(fmt.Sprintf("%s is limited to %s (ulimit %s)", strings.ToLower(strings.TrimPrefix(l.name, "Max ")), sizeWords(n), l.flag),
				"CUDA reserves more than that at its first call and says \"out of memory\" on an empty machine",
				raise(seen, l.name, l.flag, "unlimited"))
		}
	}
	if n, ok := seen.soft["Max cpu time"]; ok && n < unlimited {
		a.warn(fmt.Sprintf("%d s of CPU time are allowed for one process (ulimit -t)", n),
			"the kernel ends the training with SIGXCPU when it has used them up",
			raise(seen, "Max cpu time", "-t", "unlimited"))
	}
	size, how, known := f.plan.checkpoint()
	if n, ok := seen.soft["Max file size"]; ok && n < unlimited && (!known || n < uint64(size)) {
		detail := fmt.Sprintf("a file may have only %s (ulimit -f)", sizeWords(n))
		if known {
			detail += fmt.Sprintf(", and a checkpoint about %s (%s)", sizeWords(uint64(size)), how)
		}
		a.warn(detail, "the kernel ends the training with SIGXFSZ in the middle of a checkpoint", raise(seen, "Max file size", "-f", "unlimited"))
	}
}

// judgeCgroup looks at the group of processes that this shell is in.
func judgeCgroup(a *advice, seen limitsSeen, f facts) {
	t := rulesOfHost().Limits
	if seen.cgroup < unlimited {
		a.saw("%s: %s", seen.cgroupFile, sizeWords(seen.cgroup))
	}
	if seen.pids < unlimited {
		a.saw("%s: %d tasks", seen.pidsFile, seen.pids)
	}
	total := f.memory.num("MemTotal")
	if total.OK && total.V > 0 && float64(seen.cgroup) < total.V*1024*float64(t.MemoryPercent)/100 {
		cost := "the kernel ends the training when it reaches that, with memory left on the machine"
		if f.spark() {
			cost += "; memory of the GPU is not counted there, the rest of the training and its page cache are"
		}
		a.warn(fmt.Sprintf("this shell may only use %s of %s (%s)", sizeWords(seen.cgroup), gb(total.V), path.Base(seen.cgroupFile)), cost,
			cgroupFix(seen.cgroupFile, "MemoryMax=infinity MemoryHigh=infinity", "docker run without --memory"))
	}
	if seen.pids < t.Processes/8 {
		a.warn(fmt.Sprintf("this shell may only have %d processes and threads", seen.pids),
			"workers and compilers cannot be started: \"Resource temporarily unavailable\"",
			cgroupFix(seen.pidsFile, "TasksMax=infinity", "docker run --pids-limit=-1"))
	}
}

// cgroupFix names the unit of systemd where the limit stands, or the engine's flag.
func cgroupFix(file, properties, flag string) string {
	unit := path.Base(path.Dir(file))
	if strings.HasSuffix(unit, ".slice") || strings.HasSuffix(unit, ".scope") || strings.HasSuffix(unit, ".service") {
		manager := "sudo systemctl"
		// Below user@.service the user's own systemd rules.
		if strings.Contains(path.Dir(path.Dir(file)), "/user@") {
			manager = "systemctl --user"
		}
		return fmt.Sprintf("%[3]s show %[1]s shows who set it\n%[3]s set-property --runtime %[1]s %[2]s", shellWord(unit), properties, manager)
	}
	return "cat " + shellWord(file) + "\nin a container: " + flag
}

// raise is how a limit is raised: in this shell where the hard limit allows it.
func raise(seen limitsSeen, name, flag, to string) string {
	if hard := seen.hard[name]; hard == unlimited {
		return "ulimit " + flag + " " + to
	}
	n, err := strconv.ParseUint(to, 10, 64)
	// Sizes are given in KiB.
	if err == nil && (flag == "-s" && n<<10 <= seen.hard[name] || flag == "-n" && n <= seen.hard[name]) {
		return "ulimit " + flag + " " + to
	}
	item := map[string]string{"-n": "nofile", "-u": "nproc", "-l": "memlock", "-s": "stack", "-v": "as", "-d": "data", "-t": "cpu", "-f": "fsize"}[flag]
	return fmt.Sprintf("echo \"$USER - %s %s\" | sudo tee -a /etc/security/limits.d/sparkrun.conf\nthen log in again (in a container: --ulimit %s=...)", item, to, item)
}

func limitWords(n uint64) string {
	if n == unlimited {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}
