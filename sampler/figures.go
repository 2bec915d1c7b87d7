package sampler

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"sparkrun/internal/meminfo"
	"sparkrun/internal/proctree"
	"sparkrun/internal/sample"
)

// kernelFile is a small file of the kernel's that stays open from row to row. One that is
// not there is looked for again now and then, one that no longer answers is opened anew.
type kernelFile struct {
	path string
	size int
	// long says that the kernel hands it over in several pieces.
	long  bool
	f     *meminfo.File
	tries int
}

// lookAgain is after how many rows a file that was not there is looked for again.
const lookAgain = 60

// text returns what the file says, nil for nothing; it is valid until the next call.
func (k *kernelFile) text() []byte {
	if k.f == nil {
		if k.tries++; k.tries%lookAgain != 1 {
			return nil
		}
		f, err := meminfo.OpenFile(k.path, k.size)
		if err != nil {
			return nil
		}
		k.f = f
	}
	var b []byte
	if k.long {
		b = k.f.ReadLong()
	} else {
		b = k.f.Read()
	}
	if len(b) == 0 {
		k.close()
		return nil
	}
	return b
}

func (k *kernelFile) close() {
	if k.f != nil {
		k.f.Close()
	}
	k.f, k.tries = nil, 0
}

// figures reads what the kernel says about memory, load and pressure.
type figures struct {
	meminfo, vmstat, stat, loadavg kernelFile
	psiMem, psiCPU, psiIO          kernelFile
	// busy and all are the ticks of all processors at the last row.
	busy, all uint64
	// absent is nil before the first reading, and empty after missing has returned it.
	absent []string
	looked bool
}

func newFigures(root string) figures {
	at := func(name string, size int) kernelFile {
		return kernelFile{path: filepath.Join(root, "proc", name), size: size}
	}
	f := figures{
		meminfo: at("meminfo", 8<<10), vmstat: at("vmstat", 32<<10), loadavg: at("loadavg", 128),
		// Only the first line of stat is of interest.
		stat:   at("stat", 512),
		psiMem: at("pressure/memory", 512), psiCPU: at("pressure/cpu", 512), psiIO: at("pressure/io", 512),
	}
	f.vmstat.long = true
	return f
}

func (f *figures) close() {
	for _, k := range []*kernelFile{&f.meminfo, &f.vmstat, &f.stat, &f.loadavg, &f.psiMem, &f.psiCPU, &f.psiIO} {
		k.close()
	}
}

func (f *figures) read(row *sample.Sample) {
	f.memory(row)
	row.PSIMemSome10, row.PSIMemFull10 = pressure(f.psiMem.text())
	row.PSICPUSome10, _ = pressure(f.psiCPU.text())
	_, row.PSIIOFull10 = pressure(f.psiIO.text())
	vm := f.vmstat.text()
	row.VMOOMKill = line(vm, "oom_kill")
	row.SwapInPages, row.SwapOutPages = line(vm, "pswpin"), line(vm, "pswpout")
	row.Load1 = load1(f.loadavg.text())
	row.CPUBusyPct = f.cpu(f.stat.text())
	if f.looked {
		return
	}
	f.looked = true
	for _, c := range []struct {
		name  string
		known bool
	}{
		{"mem_available_kib", row.MemAvailableKiB.OK},
		{"psi_mem_some10", row.PSIMemSome10.OK},
		{"psi_mem_full10", row.PSIMemFull10.OK},
		{"vm_oom_kill", row.VMOOMKill.OK},
		{"psi_cpu_some10", row.PSICPUSome10.OK},
		{"psi_io_full10", row.PSIIOFull10.OK},
		{"swap_in_pages", row.SwapInPages.OK},
		{"swap_out_pages", row.SwapOutPages.OK},
		// The first row has no share yet.
		{"cpu_busy_pct", f.all > 0},
	} {
		if !c.known {
			f.absent = append(f.absent, c.name)
		}
	}
}

// missing returns, once, what the first reading did not find.
func (f *figures) missing() []string {
	names := f.absent
	f.absent = nil
	return names
}

func (f *figures) memory(row *sample.Sample) {
	b := f.meminfo.text()
	if b == nil {
		return
	}
	fig := meminfo.Parse(b)
	for _, c := range [...]struct {
		v  uint64
		to *sample.Num
	}{
		{fig.Total, &row.MemTotalKiB},
		{fig.Available, &row.MemAvailableKiB},
		{fig.Free, &row.MemFreeKiB},
		{fig.Cached, &row.CachedKiB},
		{fig.Shmem, &row.ShmemKiB},
		{fig.SwapTotal, &row.SwapTotalKiB},
		{fig.SwapFree, &row.SwapFreeKiB},
	} {
		if c.v != meminfo.Unknown {
			*c.to = sample.Known(float64(c.v))
		}
	}
}

// cpu returns the share of all processors' time since the last row in which they were
// neither idle nor waiting for a disk, in percent.
func (f *figures) cpu(stat []byte) sample.Num {
	busy, all, ok := cpuTicks(stat)
	if !ok {
		return sample.Num{}
	}
	was, wasAll := f.busy, f.all
	f.busy, f.all = busy, all
	// iowait may run backwards, as the kernel's documents say.
	if wasAll == 0 || all <= wasAll || busy < was {
		return sample.Num{}
	}
	return sample.Known(min(100*float64(busy-was)/float64(all-wasAll), 100))
}

// cpuTicks reads the first line of /proc/stat: user, nice, system, idle, iowait, irq,
// softirq, steal. Guests' time is in user and nice already.
func cpuTicks(b []byte) (busy, all uint64, ok bool) {
	b, found := bytes.CutPrefix(b, []byte("cpu "))
	if !found {
		return 0, 0, false
	}
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[:i]
	}
	for n := 0; n < 8; n++ {
		for len(b) > 0 && b[0] == ' ' {
			b = b[1:]
		}
		v, is := meminfo.Number(b)
		if !is {
			return busy, all, n >= 4
		}
		all += v
		if n != 3 && n != 4 {
			busy += v
		}
		for len(b) > 0 && b[0] != ' ' {
			b = b[1:]
		}
	}
	return busy, all, true
}

// pressure reads the two averages of a pressure file.
func pressure(b []byte) (some, full sample.Num) {
	if v, ok := meminfo.Some10(b); ok {
		some = sample.Known(float64(v) / 100)
	}
	if v, ok := meminfo.Full10(b); ok {
		full = sample.Known(float64(v) / 100)
	}
	return some, full
}

func line(b []byte, name string) sample.Num {
	v, ok := meminfo.Line(b, name)
	if !ok {
		return sample.Num{}
	}
	return sample.Known(float64(v))
}

func load1(b []byte) sample.Num {
	first, _, _ := bytes.Cut(b, []byte(" "))
	v, err := strconv.ParseFloat(string(first), 64)
	if err != nil {
		return sample.Num{}
	}
	return sample.Known(v)
}

// treeFigures reads what the training's processes hold and have used.
type treeFigures struct {
	account proctree.Account
	net     proctree.NetAccount
	next    time.Time
	// took holds how long the last readings lasted.
	took [4]time.Duration
	n    int
}

// A tree of many processes costs time: it is looked at so seldom that it takes one part in
// a thousand of a core, but at least every treeMost. Rows between have no figures of it.
const (
	treeShare = 1000
	treeMost  = 10 * time.Second
)

func (f *treeFigures) read(row *sample.Sample, pids []int) {
	began := time.Now()
	if began.Before(f.next) {
		return
	}
	t := f.account.Read(pids)
	row.TreeRSSKiB, row.TreeProcs = sample.Known(float64(t.RSSKiB)), sample.Known(float64(t.Procs))
	row.TreeCPUS = sample.Known(t.CPU.Seconds())
	if t.IOKnown {
		row.TreeReadB, row.TreeWriteB = sample.Known(float64(t.ReadB)), sample.Known(float64(t.WriteB))
	}
	if b, ok := f.net.Read(pids); ok {
		row.TreeNetB = sample.Known(float64(b))
	}
	f.took[f.n%len(f.took)] = time.Since(began)
	f.n++
	// The quickest of them: one in which somebody else had the processor says nothing. The
	// readings are on a schedule, so a little early is on time.
	cost := slices.Min(f.took[:min(f.n, len(f.took))])
	f.next = began.Add(min(treeShare*cost, treeMost) * 9 / 10)
}

func (f *treeFigures) close() {
	f.account.Close()
	f.net.Close()
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
