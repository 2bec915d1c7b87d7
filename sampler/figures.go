package sampler

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"sparkrun/internal/meminfo"
	"sparkrun/internal/proctree"
	"sparkrun/internal/sample"
)

// figures reads what the kernel says about memory and load.
type figures struct {
	root string
	// absent is nil before the first reading, and told empty after missing has
	// returned it.
	absent []string
	looked bool
}

func (f *figures) read(row *sample.Sample) {
	var absent []string
	if info, err := meminfo.Read(f.root); err == nil {
		for _, c := range []struct {
			key string
			to  *sample.Num
		}{
			{"MemTotal", &row.MemTotalKiB},
			{"MemAvailable", &row.MemAvailableKiB},
			{"MemFree", &row.MemFreeKiB},
			{"Cached", &row.CachedKiB},
			{"Shmem", &row.ShmemKiB},
			{"SwapTotal", &row.SwapTotalKiB},
			{"SwapFree", &row.SwapFreeKiB},
		} {
			if v, ok := info[c.key]; ok {
				*c.to = sample.Known(float64(v))
			}
		}
	}
	if !row.MemAvailableKiB.OK {
		absent = append(absent, "mem_available_kib")
	}
	if p, err := meminfo.ReadPressure(f.root); err == nil {
		row.PSIMemSome10, row.PSIMemFull10 = sample.Known(p.Some10), sample.Known(p.Full10)
	} else {
		absent = append(absent, "psi_mem_some10", "psi_mem_full10")
	}
	if n, err := meminfo.OOMKills(f.root); err == nil {
		row.VMOOMKill = sample.Known(float64(n))
	} else {
		absent = append(absent, "vm_oom_kill")
	}
	row.Load1 = load1(f.root)
	if !f.looked {
		f.looked, f.absent = true, absent
	}
}

// missing returns, once, what the first reading did not find.
func (f *figures) missing() []string {
	names := f.absent
	f.absent = nil
	return names
}

func load1(root string) sample.Num {
	b, err := os.ReadFile(filepath.Join(root, "proc/loadavg"))
	if err != nil {
		return sample.Num{}
	}
	first, _, _ := bytes.Cut(b, []byte(" "))
	v, err := strconv.ParseFloat(string(first), 64)
	if err != nil {
		return sample.Num{}
	}
	return sample.Known(v)
}

// readTree adds up the resident memory of the training's processes. Pages that
// they share are counted once per process, as top does.
func readTree(row *sample.Sample, pids []int) {
	var kib, n uint64
	for _, pid := range pids {
		if v, ok := proctree.RSSKiB(pid); ok {
			kib += v
			n++
		}
	}
	row.TreeRSSKiB, row.TreeProcs = sample.Known(float64(kib)), sample.Known(float64(n))
}

// splitGPUMemory divides the GPU's memory between the training and everybody
// else. One process of unknown size makes its side unknown.
func splitGPUMemory(row *sample.Sample, tree []int, hasTree bool) {
	if row.Processes == nil {
		return
	}
	mine, others := sample.Known(0), sample.Known(0)
	for _, p := range row.Processes {
		side := &others
		if slices.Contains(tree, p.PID) {
			side = &mine
		}
		side.V += p.UsedMiB.V
		side.OK = side.OK && p.UsedMiB.OK
	}
	if hasTree {
		row.GPUTreeMiB = known(mine)
	}
	row.GPUOtherMiB = known(others)
}

// known drops the value of an unknown number.
func known(n sample.Num) sample.Num {
	if !n.OK {
		return sample.Num{}
	}
	return n
}

// cgroupKiB reads how much memory a cgroup uses, v2 or v1.
func cgroupKiB(dir string) sample.Num {
	if dir == "" {
		return sample.Num{}
	}
	for _, name := range []string{"memory.current", "memory.usage_in_bytes"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
		if err != nil {
			continue
		}
		return sample.Known(float64(n / 1024))
	}
	return sample.Num{}
}
