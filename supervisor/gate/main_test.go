package gate

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// The test binary is also the process that holds memory: with HOLD_MIB set it
// maps that much, fills it, says so on stdout and waits for the end of stdin.
func TestMain(m *testing.M) {
	if mib, err := strconv.Atoi(os.Getenv("HOLD_MIB")); err == nil {
		how := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
		if os.Getenv("HOLD_SHARED") != "" {
			how = unix.MAP_SHARED | unix.MAP_ANONYMOUS
		}
		b, err := unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, how)
		if err != nil {
			os.Exit(1)
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		fmt.Println("held")
		_, _ = os.Stdin.Read(make([]byte, 1))
		b[0] = 2
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// put writes a file below root.
func put(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	// By rename, so that a reader never sees half of it.
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// putProcess writes what is read of a process.
func putProcess(t *testing.T, root string, pid int, comm, argv string, anonKiB, shmemKiB uint64) {
	t.Helper()
	dir := "proc/" + strconv.Itoa(pid) + "/"
	put(t, root, dir+"stat", fmt.Sprintf("%d (%s) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0", pid, comm))
	put(t, root, dir+"status", fmt.Sprintf("Name:\t%s\nState:\tS (sleeping)\nVmRSS:\t%d kB\nRssAnon:\t%d kB\nRssFile:\t999999 kB\nRssShmem:\t%d kB\n", comm, anonKiB, anonKiB, shmemKiB))
	put(t, root, dir+"comm", comm+"\n")
	put(t, root, dir+"cmdline", argv)
}

// putMemory writes /proc/meminfo of a machine of total GiB of which avail are
// available and lost under no heading.
func putMemory(t *testing.T, root string, total, avail, lost float64) {
	t.Helper()
	k := func(g float64) uint64 { return uint64(g * (1 << 20)) }
	put(t, root, "proc/meminfo", fmt.Sprintf("MemTotal: %d kB\nMemFree: %d kB\nMemAvailable: %d kB\nBuffers: 0 kB\nCached: 0 kB\nAnonPages: %d kB\nShmem: 0 kB\nSlab: 0 kB\n",
		k(total), k(avail), k(avail), k(total-avail-lost)))
}
