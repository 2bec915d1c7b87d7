package gate

import "testing"

// TestRetainedPool: the figures of a GB10 whose driver had kept about 80 GiB with
// no process left that used the GPU.
func TestRetainedPool(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put(t, root, "proc/meminfo", `MemTotal:       127600816 kB
MemFree:         3139656 kB
MemAvailable:   40174336 kB
Buffers:           13252 kB
Cached:         37694160 kB
AnonPages:       1712244 kB
Shmem:              3028 kB
KReclaimable:     477572 kB
SUnreclaim:       520360 kB
Percpu:            27520 kB
Hugetlb:               0 kB
`)
	r := Read(root)
	if !r.Known || !r.UnaccountedKnown || r.AvailKiB != 40174336 || r.ShmemKiB != 3028 {
		t.Errorf("%+v", r)
	}
	if gib := r.UnaccountedKiB >> 20; gib < 79 || gib > 81 {
		t.Errorf("%d GiB unaccounted", gib)
	}
}

func TestReadThisMachine(t *testing.T) {
	t.Parallel()
	r := Read("/")
	if !r.Known || !r.UnaccountedKnown || r.AvailKiB == 0 || r.AvailKiB > r.TotalKiB || r.UnaccountedKiB > r.TotalKiB/2 {
		t.Errorf("%+v", r)
	}
}

func TestUnknownIsNotZero(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if r := Read(root); r.Known || r.UnaccountedKnown {
		t.Errorf("no file: %+v", r)
	}
	put(t, root, "proc/meminfo", "MemTotal: 100 kB\nMemFree: 50 kB\n")
	if r := Read(root); r.Known || r.UnaccountedKnown {
		t.Errorf("half the figures: %+v", r)
	}
	// The figures are read one after the other and may add up to too much.
	put(t, root, "proc/meminfo", "MemTotal: 100 kB\nMemFree: 50 kB\nMemAvailable: 60 kB\nCached: 60 kB\nAnonPages: 5 kB\nSlab: 1 kB\n")
	if r := Read(root); !r.Known || !r.UnaccountedKnown || r.UnaccountedKiB != 0 {
		t.Errorf("%+v", r)
	}
}
