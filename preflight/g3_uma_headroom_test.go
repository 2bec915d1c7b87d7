package preflight

import (
	"strings"
	"testing"
	"time"

	"sparkrun/internal/meminfo"
	"sparkrun/internal/modelsize"
	"sparkrun/internal/sample"
	"sparkrun/preflight/headroom"
)

// Figures of machines as people have published them, in KiB.
const (
	retainedPool = `MemTotal:       127600816 kB
MemFree:         3139656 kB
MemAvailable:   40174336 kB
Buffers:           13252 kB
Cached:         37694160 kB
Unevictable:       24640 kB
Mlocked:           24640 kB
AnonPages:       1712244 kB
Shmem:              3028 kB
KReclaimable:     477572 kB
SUnreclaim:       520360 kB
NFS_Unstable:          0 kB
VmallocUsed:      101620 kB
Percpu:            27520 kB
CmaTotal:         131072 kB
CmaFree:           69320 kB
HugePages_Total:       0
Hugetlb:               0 kB
`
	loadTight = `MemTotal:       127600792 kB
MemFree:         3911832 kB
MemAvailable:    8853964 kB
Cached:          8653888 kB
SwapCached:      1273248 kB
AnonPages:       3572592 kB
SwapTotal:      16777212 kB
SwapFree:       13868284 kB
HugePages_Total:       0
Hugepagesize:       2048 kB
`
	swapped = `MemTotal:       127600524 kB
MemFree:         4024100 kB
MemAvailable:   28904408 kB
Buffers:         4726312 kB
SwapTotal:      16777212 kB
SwapFree:       10853772 kB
`
	// A Spark that idles, with all that its kernel counts.
	idle = `MemTotal:       127600600 kB
MemFree:        118200000 kB
MemAvailable:   120900000 kB
Buffers:          120000 kB
Cached:          2600000 kB
SwapCached:            0 kB
AnonPages:       1900000 kB
Shmem:             21000 kB
SReclaimable:     210000 kB
SUnreclaim:       480000 kB
Slab:             690000 kB
KernelStack:       18000 kB
PageTables:        35000 kB
Percpu:            27000 kB
SwapTotal:      16777212 kB
SwapFree:       16777212 kB
HugePages_Total:       0
HugePages_Free:        0
Hugepagesize:       2048 kB
`
)

func gb10With(processes []sample.GPUProcess) ask {
	return answers(gb10Device, sample.GPU{Processes: processes})
}

func TestMemoryThatTheDriverKeeps(t *testing.T) {
	t.Parallel()
	holds := func(mib float64) []sample.GPUProcess {
		return []sample.GPUProcess{{PID: 4711, UsedMiB: sample.Known(mib)}}
	}
	for _, c := range []struct {
		name    string
		meminfo string
		device  ask
		status  Status
		want    string // in detail and fix
	}{
		{"kept, and nobody has it", retainedPool, gb10With([]sample.GPUProcess{}), Warn, "86.0 GB of memory is held by the GPU driver and no process on the GPU has it"},
		{"the fix", retainedPool, gb10With([]sample.GPUProcess{}), Warn, "sudo reboot"},
		{"a small process does not account for it", retainedPool, gb10With(holds(900)), Warn, "85.1 GB of memory is held by the GPU driver and the processes on the GPU do not account for it"},
		{"a server has it", retainedPool, gb10With(holds(80000)), Info, ""},
		{"who has it is not known", retainedPool, gb10With(nil), Info, ""},
		{"how much a process has is not known", retainedPool, gb10With([]sample.GPUProcess{{PID: 1}}), Info, ""},
		{"no answer of the driver", retainedPool, noLibrary, Info, ""},
		{"idle", idle, gb10With([]sample.GPUProcess{}), Info, ""},
		{"not all figures recorded", loadTight, gb10With([]sample.GPUProcess{}), Info, ""},
		{"another GPU", retainedPool, answers(sample.Device{Source: "nvml", Name: "NVIDIA RTX 4070", Count: 1}, sample.GPU{Processes: []sample.GPUProcess{}}), Info, ""},
	} {
		f := find(t, Run(t.Context(), Input{Root: copyTree(t, "spark", map[string]string{"proc/meminfo": c.meminfo}), Device: c.device}), "G3")
		if f.Status != c.status || !strings.Contains(f.Detail+"\n"+f.Fix, c.want) {
			t.Errorf("%s: %s %q, fix %q", c.name, f.Status, f.Detail, f.Fix)
		}
		if f.Status == Info && !strings.HasPrefix(f.Line, "G3 INFO: free/used (GB): ") {
			t.Errorf("%s: the runbook's line is %q", c.name, f.Line)
		}
		if f.Status == Warn && (!strings.HasPrefix(f.Line, "G3 WARN: ") || !strings.Contains(strings.Join(f.Evidence, "\n"), "free/used (GB): 2 83")) {
			t.Errorf("%s: line %q, evidence %q", c.name, f.Line, f.Evidence)
		}
	}
}

func TestAContainerDoesNotSeeTheProcessesOfOthers(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "spark", map[string]string{"proc/meminfo": retainedPool, ".dockerenv": ""})
	f := find(t, Run(t.Context(), Input{Root: dir, Device: gb10With([]sample.GPUProcess{})}), "G3")
	if f.Status != Warn || !strings.HasPrefix(f.Fix, "look on the host too") {
		t.Errorf("%s, fix %q", f.Status, f.Fix)
	}
}

func TestSwapIsToldAndNeverCounts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ meminfo, want string }{
		{loadTight, "swap in use 3.0 GB of 17.2 GB (does not count)"},
		{swapped, "swap in use 6.1 GB of 17.2 GB (does not count)"},
	} {
		r := Run(t.Context(), Input{Root: copyTree(t, "spark", map[string]string{"proc/meminfo": c.meminfo}), Device: gb10})
		f := find(t, r, "G3")
		if f.Status != Info || !strings.Contains(strings.Join(f.Evidence, "\n"), c.want) {
			t.Errorf("%s %q", f.Status, f.Evidence)
		}
		if strings.Contains(c.meminfo, "28904408") && *r.HeadroomGB != 25 {
			t.Errorf("headroom %d of 28.9 GB less 4 GiB", *r.HeadroomGB)
		}
	}
}

func TestSwapActivity(t *testing.T) {
	t.Parallel()
	count := func(in, out string) swapCounts {
		return parseSwapCounts([]byte("nr_free_pages 1\npswpin " + in + "\npswpout " + out + "\noom_kill 0\n"))
	}
	for _, c := range []struct {
		name          string
		before, after swapCounts
		want          float64 // -1 is unknown
	}{
		{"none", count("10", "20"), count("10", "20"), 0},
		{"in and out", count("10", "20"), count("110", "70"), 3000},
		{"counters that went back", count("10", "20"), count("9", "20"), -1},
		{"no counters", count("10", "20"), parseSwapCounts([]byte("nr_free_pages 1\n")), -1},
	} {
		got := c.after.since(c.before, 0.05)
		if got.Or(-1) != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	// A few pages between two readings that lie close together are a few, and of those that
	// lie far apart the whole time counts.
	began := time.Now()
	for after, want := range map[time.Duration]float64{time.Millisecond: 3000, 100 * time.Millisecond: 1500} {
		before := SwapReading{count("10", "20"), began}
		if got := (SwapReading{count("110", "70"), began.Add(after)}).since(before, 50*time.Millisecond); got.Or(-1) != want {
			t.Errorf("150 pages in %s: %v, want %v", after, got, want)
		}
	}
	if got := readSwap("/").since(SwapReading{}, 50*time.Millisecond); got.OK {
		t.Errorf("a rate from one reading: %v", got)
	}
	table, err := loadMemoryTable()
	if err != nil {
		t.Fatal(err)
	}
	seen := headroomSeen{table: table, swapRate: sample.Known(3000)}
	spark := facts{platform: DGXSpark, memory: memory{info: meminfo.Info{"MemTotal": 100 << 20, "MemFree": 50 << 20, "MemAvailable": 60 << 20}}}
	if f := judgeHeadroom(seen, spark); f.Status != Warn || !strings.Contains(f.Detail, "swapping now, 3000 pages in a second") || f.Fix == "" {
		t.Errorf("%s %q %q", f.Status, f.Detail, f.Fix)
	}
	laptop := spark
	laptop.platform = Generic
	if f := judgeHeadroom(seen, laptop); f.Status != Info || !strings.Contains(f.Detail, "swapping now") {
		t.Errorf("a laptop: %s %q", f.Status, f.Detail)
	}
	seen.swapRate = sample.Known(100)
	if f := judgeHeadroom(seen, spark); f.Status != Info {
		t.Errorf("a few pages: %s %q", f.Status, f.Detail)
	}
}

func TestFragmentation(t *testing.T) {
	t.Parallel()
	const whole = `Node 0, zone      DMA      1      1      1      1      1      1      1      1      0      1      3
Node 0, zone    DMA32      6      5      6      7      5      6      6      6      7      6    500
Node 0, zone   Normal    211    180     90     44     21     11      6      3      1      0  27000
`
	if b := parseBuddy(whole); b != (blocks{true, 10, 27503, 7}) {
		t.Errorf("%+v", b)
	}
	for _, text := range []string{
		"", "what\n", "Node 0, zone Normal\n", "Node 0, zone Normal 1 x 3\n", "Node 0, zone Normal 1 2 -3\n",
		"Node 0, zone DMA 1 2 3\nNode 0, zone Normal 1 2\n", "Node 0, zone Normal 1 99999999999999999999 3\n",
	} {
		if b := parseBuddy(text); b.known {
			t.Errorf("%q read as %+v", text, b)
		}
	}
	const pieces = "Node 0, zone   Normal  90211  80180  70090  60044  50021  40011  30006  2003  101  0  0\n"
	for _, c := range []struct {
		name, buddy, meminfo string
		told                 bool
	}{
		{"large blocks", whole, idle, false},
		{"small pieces of much", pieces, idle, true},
		{"small pieces of little: not strange", pieces, loadTight, false},
		{"not readable", "torn", idle, false},
	} {
		f := find(t, Run(t.Context(), Input{Root: copyTree(t, "spark", map[string]string{"proc/meminfo": c.meminfo, "proc/buddyinfo": c.buddy}), Device: gb10}), "G3")
		if told := strings.Contains(f.Detail, "in small pieces (no free block of order 10)"); f.Status != Info || told != c.told {
			t.Errorf("%s: %s %q", c.name, f.Status, f.Detail)
		}
	}
}

func TestHugePagesAreTakenFromOthers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pages string
		told  bool
	}{{"512", false}, {"8192", true}} {
		text := strings.Replace(idle, "HugePages_Total:       0", "HugePages_Total:    "+c.pages, 1)
		f := find(t, Run(t.Context(), Input{Root: copyTree(t, "spark", map[string]string{"proc/meminfo": text}), Device: gb10}), "G3")
		if told := strings.Contains(f.Detail, "set aside as huge pages"); f.Status != Info || told != c.told {
			t.Errorf("%s pages: %s %q", c.pages, f.Status, f.Detail)
		}
	}
}

func TestWhoMayDropTheCache(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]dropRight{
		"Name:\tx\nUid:\t1000\t1000\t1000\t1000\n": dropRefused,
		"Uid:\t1000\t0\t0\t0\n":                    dropAllowed,
		"Uid:\t0\n":                                dropUnknown,
		"Name:\tx\n":                               dropUnknown,
	} {
		v := view{root: rootOf(copyTree(t, "", map[string]string{"proc/self/status": status}))}
		if got := readDropRight(v); got != want {
			t.Errorf("%q: %v, want %v", status, got, want)
		}
	}
	if got := readDropRight(view{root: rootOf(t.TempDir())}); got != dropUnknown {
		t.Errorf("without a file: %v", got)
	}
}

// The unit of a plan's sizes in these tests.
const testGB = int64(1e9)

func estimated(weights, peak int64) headroom.Estimate {
	return headroom.Estimate{
		Spec:  headroom.Spec{Method: headroom.LoRA},
		Terms: []headroom.Term{{Name: headroom.TermWeights, Bytes: weights, How: "reckoned"}},
		Peak:  peak, Steady: peak, Low: peak * 9 / 10, High: peak * 11 / 10, Weights: weights,
	}
}

// countedPlan is a plan for a model in bfloat16 whose files were counted.
func countedPlan(t *testing.T, params int64) planned {
	t.Helper()
	p := planned{known: true, spec: headroom.Spec{
		Model:  modelsize.Size{Params: params, Bytes: 2 * params, TensorBytes: 2 * params, Exact: true, DType: "BF16", Path: "/models/x", From: "counted"},
		Method: headroom.LoRA, MicroBatch: 1, SeqLen: 256,
	}}
	var err error
	if p.est, err = p.spec.Estimate(); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPlanAgainstTheBudget: the rules for what a plan may make of G3.
func TestPlanAgainstTheBudget(t *testing.T) {
	t.Parallel()
	table, err := loadMemoryTable()
	if err != nil {
		t.Fatal(err)
	}
	// 124 GB available, 51 GB free.
	mem := memory{info: meminfo.Info{"MemTotal": 127600600, "MemFree": 50000000, "MemAvailable": 121000000, "Cached": 70000000}}
	busy := memory{info: meminfo.Info{"MemTotal": 127600600, "MemFree": 20000000, "MemAvailable": 30000000, "Cached": 10000000}}
	two := countedPlan(t, 70e9)
	two.nodes = 2
	gpu := gpuAnswer{asked: true, dev: sample.Device{Source: "nvml", Name: "NVIDIA RTX 4070", Count: 1, MemoryTotalMiB: sample.Known(12282)}}
	for _, c := range []struct {
		name     string
		plan     planned
		memory   memory
		platform string
		drop     dropRight
		status   Status
		want     string
	}{
		{"no plan", planned{why: "no command"}, mem, DGXSpark, dropRefused, Info, ""},
		{"fits what is free", planned{known: true, est: estimated(20*testGB, 30*testGB)}, mem, DGXSpark, dropRefused, Info, "the plan takes about 30.0 GB (27.0 GB to 33.0 GB) of a budget of 120 GB"},
		{"fits what is available, as root", planned{known: true, est: estimated(40*testGB, 70*testGB)}, mem, DGXSpark, dropAllowed, Info, "only 51.2 GB are free"},
		{"fits what is available, not root", planned{known: true, est: estimated(40*testGB, 70*testGB)}, mem, DGXSpark, dropRefused, Warn, "drop_caches"},
		{"the same, and who this is is not known", planned{known: true, est: estimated(40*testGB, 70*testGB)}, mem, DGXSpark, dropUnknown, Info, "only 51.2 GB are free"},
		{"the same on a laptop", planned{known: true, est: estimated(40*testGB, 70*testGB)}, mem, Generic, dropRefused, Info, "the plan takes about 70.0 GB"},
		{"over by the estimate", planned{known: true, est: estimated(40*testGB, 150*testGB)}, mem, DGXSpark, dropRefused, Warn, "sparkrun plan -- COMMAND"},
		{"over, and the weights are an estimate", planned{known: true, est: estimated(140*testGB, 150*testGB)}, mem, DGXSpark, dropRefused, Warn, "sparkrun plan -- COMMAND"},
		{"the weights cannot fit", countedPlan(t, 70e9), mem, DGXSpark, dropRefused, Fail, "sparkrun plan -- COMMAND"},
		{"the weights do not fit now", countedPlan(t, 20e9), busy, DGXSpark, dropRefused, Fail, "free memory first"},
		{"two machines", two, mem, DGXSpark, dropRefused, Info, "how 2 machines share it is not known"},
		{"a GPU of its own never blocks", countedPlan(t, 8e9), mem, GenericNVIDIA, dropRefused, Warn, "sparkrun plan -- COMMAND"},
		{"a GPU of its own fits", planned{known: true, est: estimated(2*testGB, 4*testGB)}, mem, GenericNVIDIA, dropRefused, Info, "of a budget of 12.9 GB"},
		{"torn files", planned{why: "x", broken: "model-00002.safetensors is missing"}, mem, DGXSpark, dropRefused, Warn, "model-00002.safetensors is missing"},
	} {
		f := facts{platform: c.platform, memory: c.memory, plan: c.plan}
		if c.platform == GenericNVIDIA {
			f.gpu = gpu
		}
		got := judgeHeadroom(headroomSeen{table: table, drop: c.drop}, f)
		if got.Status != c.status || !strings.Contains(got.Detail+"\n"+got.Fix, c.want) {
			t.Errorf("%s: %s %q, fix %q", c.name, got.Status, got.Detail, got.Fix)
		}
		if (got.Status == Warn || got.Status == Fail) && got.Fix == "" {
			t.Errorf("%s: no fix", c.name)
		}
	}
}
