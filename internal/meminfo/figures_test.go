package meminfo

import (
	"strings"
	"testing"
)

// spark is what matters of a DGX Spark at rest.
const spark = `MemTotal:       127600512 kB
MemFree:        98000000 kB
MemAvailable:   118000000 kB
Buffers:          500000 kB
Cached:         20000000 kB
SwapCached:            0 kB
AnonPages:       3000000 kB
Shmem:            200000 kB
KernelStack:       20000 kB
PageTables:        40000 kB
Slab:            1000000 kB
Percpu:            10000 kB
SwapTotal:      16777212 kB
SwapFree:       16777212 kB
HugePages_Total:       2
Hugepagesize:       2048 kB
`

func TestFiguresAgreeWithRead(t *testing.T) {
	t.Parallel()
	r, err := OpenReader(tree(t, "proc/meminfo", spark))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var f Figures
	if !r.Read(&f) || f.Total != 127600512 || f.Available != 118000000 || f.SwapFree != 16777212 || f.HugePages != 2 {
		t.Errorf("%+v", f)
	}
	if kib, ok := f.Unaccounted(); !ok || kib != 127600512-98000000-500000-20000000-3000000-20000-40000-1000000-10000-2*2048 {
		t.Errorf("unaccounted %d %v", kib, ok)
	}

	r, err = OpenReader("/")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	info, err := Read("/")
	if err != nil || !r.Read(&f) {
		t.Fatal(err)
	}
	if f.Total != info["MemTotal"] || f.SwapTotal != info["SwapTotal"] || f.HugePageKiB != info["Hugepagesize"] {
		t.Errorf("%+v against %v", f, info)
	}
	if f.Available == 0 || f.Available > f.Total {
		t.Errorf("available %d", f.Available)
	}
}

func TestUnknownFiguresAreNotZero(t *testing.T) {
	t.Parallel()
	r, err := OpenReader(tree(t, "proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 0 kB\nMemFree: much kB\nCached: 99999999999999999999999 kB\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var f Figures
	if !r.Read(&f) || f.Available != 0 || f.Free != Unknown || f.Cached != Unknown || f.SwapFree != Unknown {
		t.Errorf("%+v", f)
	}
	if kib, ok := f.Unaccounted(); ok {
		t.Errorf("unaccounted %d from nothing", kib)
	}
	for _, text := range []string{"", "MemTotal: 100 kB\n", "MemAvailable: 100 kB\n", "MemTotal: 0 kB\nMemAvailable: 0 kB\n", strings.Repeat("x", 10000)} {
		if r, err := OpenReader(tree(t, "proc/meminfo", text)); err == nil {
			r.Close()
			t.Errorf("%.40q was taken for memory figures", text)
		}
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	r, err := OpenReader("/")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var f Figures
	if n := testing.AllocsPerRun(100, func() { r.Read(&f) }); n != 0 {
		t.Errorf("%v allocations in a reading", n)
	}
}

func TestPressureAndLinesWithoutAllocating(t *testing.T) {
	t.Parallel()
	some, full, ok := ParsePressure([]byte("some avg10=1.50 avg60=0.00\nfull avg10=20.25 avg60=0\n"))
	if !ok || some != 150 || full != 2025 {
		t.Errorf("%d %d %v", some, full, ok)
	}
	for _, text := range []string{"", "some avg10=1.50\n", "some avg10=1\nfull avg10=2\n", "some avg10=x.10 \nfull avg10=2.00 \n", "some avg10=900.00\nfull avg10=0.00\n", "full avg10=2.5"} {
		if some, full, ok := ParsePressure([]byte(text)); ok {
			t.Errorf("%q read as %d %d", text, some, full)
		}
	}
	stat := []byte("inactive_file_x 9\ninactive_file 4096\nactive_file 1\n")
	if v, ok := Line(stat, "inactive_file"); !ok || v != 4096 {
		t.Errorf("%d %v", v, ok)
	}
	if v, ok := Line(stat, "file"); ok {
		t.Errorf("file is %d", v)
	}
}

func TestLongFilesAreReadToTheEnd(t *testing.T) {
	t.Parallel()
	want, err := OOMKills("/")
	if err != nil {
		t.Skip(err)
	}
	f, err := OpenFile("/proc/vmstat", 32<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, ok := Line(f.ReadLong(), "oom_kill"); !ok || got < want {
		t.Errorf("oom_kill %d %v, want at least %d", got, ok, want)
	}
}
