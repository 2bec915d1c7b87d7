package hygiene

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/newprog"
)

// TestShmOfTheAttemptGoes: one file of each library, made during the attempt and
// used by nobody.
func TestShmOfTheAttemptGoes(t *testing.T) {
	t.Parallel()
	root, shm := machine(t)
	o := attempt(t, root, dead)
	names := []string{
		fmt.Sprintf("torch_%d_123456_0", dead), "psm_a1b2c3d4", "sem.mp-x1y2z3", "nccl-AbC123", "nccl-shm-recv-1-2-0-1",
		fmt.Sprintf("cuda.shm.0.%x.1", dead), fmt.Sprintf("__KMP_REGISTERED_LIB_%d_0", dead), fmt.Sprintf("sem.loky-%d-abcd", dead),
	}
	for _, n := range names {
		write(t, filepath.Join(shm, n))
	}
	fs := Clean(t.Context(), o)
	for _, n := range names {
		if f := find(t, fs, "shm", n); !f.Removed || f.KiB != 8 || there(filepath.Join(shm, n)) {
			t.Errorf("%s: %+v, there: %v", n, f, there(filepath.Join(shm, n)))
		}
	}
	if len(fs) != len(names) {
		t.Errorf("%d findings: %+v", len(fs), fs)
	}
}

// TestShmThatStays is everything that must never be removed, in one attempt.
func TestShmThatStays(t *testing.T) {
	t.Parallel()
	root, shm := machine(t)
	at := func(name string) string { return filepath.Join(shm, name) }
	write(t, at("psm_0000000a")) // before the attempt, name and all
	alive := start(t, "live", "")
	knows(t, root, alive.pid)
	o := attempt(t, root, dead)

	stay := map[string]string{ // name -> word of the reason; "" is nothing told
		"psm_0000000a":                         "",
		"psm_0000000a.bak":                     "",
		"libpod_lock":                          "",
		"sem.app":                              "",
		"dataset.tar":                          "",
		"psm_xyz\nsem.mp-1":                    "",
		fmt.Sprintf("torch_%d_1_0", alive.pid): "was not seen in the attempt",
		fmt.Sprintf("torch_%d_1_0", dead+1):    "was not seen in the attempt",
		"torch_1_2_3":                          "was not seen in the attempt",
		"torch_99999999999999999999_2_3":       "",
		"torch_0_2_3":                          "",
	}
	for n := range stay {
		write(t, at(n))
	}
	// Written anew during the attempt, under a name from before.
	if err := os.Remove(at("psm_0000000a")); err != nil {
		t.Fatal(err)
	}
	write(t, at("psm_0000000a"))

	write(t, at("psm_0000000b"))
	if err := os.Link(at("psm_0000000b"), filepath.Join(root, "kept")); err != nil {
		t.Fatal(err)
	}
	stay["psm_0000000b"] = "another name"

	precious := filepath.Join(root, "precious")
	write(t, precious)
	if err := os.Symlink(precious, at("psm_0000000c")); err != nil {
		t.Fatal(err)
	}
	stay["psm_0000000c"] = "no plain file"
	if err := os.Mkdir(at("psm_0000000d"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, at("psm_0000000d/psm_0000000e"))
	stay["psm_0000000d"], stay["psm_0000000d/psm_0000000e"] = "no plain file", ""
	if err := unix.Mkfifo(at("psm_0000000f"), 0o600); err != nil {
		t.Fatal(err)
	}
	stay["psm_0000000f"] = "no plain file"

	write(t, at("psm_00000010"))
	mapper := start(t, "map", at("psm_00000010"))
	knows(t, root, mapper.pid)
	stay["psm_00000010"] = fmt.Sprintf("in use by hygiene.test (pid %d)", mapper.pid)
	write(t, at("sem.mp-open"))
	opener := start(t, "open", at("sem.mp-open"))
	knows(t, root, opener.pid)
	stay["sem.mp-open"] = fmt.Sprintf("in use by hygiene.test (pid %d)", opener.pid)

	// Large, and no name that a library gives.
	big, err := os.Create(at("big.npy"))
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Fallocate(int(big.Fd()), 0, 0, 65<<20)
	big.Close()
	if err != nil {
		t.Fatal(err)
	}
	stay["big.npy"] = "no name that a training library gives"

	fs := Clean(t.Context(), o)
	told := 0
	for n, why := range stay {
		if !there(at(n)) {
			t.Errorf("%q is gone", n)
		}
		if why == "" {
			continue
		}
		told++
		if f := find(t, fs, "shm", shown(n)); f.Removed || !strings.Contains(f.Why, why) {
			t.Errorf("%q: %+v, want %q", n, f, why)
		}
	}
	if !there(precious) || !there(filepath.Join(root, "kept")) {
		t.Error("what a link leads to is gone")
	}
	if len(fs) != told {
		t.Errorf("%d findings, want %d: %+v", len(fs), told, fs)
	}

	// Once nobody uses them any more, they may go.
	mapper.stop()
	opener.stop()
	fs = Clean(t.Context(), o)
	for _, n := range []string{"psm_00000010", "sem.mp-open"} {
		if !find(t, fs, "shm", n).Removed {
			t.Errorf("%s is used by nobody and stays", n)
		}
	}
}

// TestShmOutsideTheAttempt: made before it began, or after it ended.
func TestShmOutsideTheAttempt(t *testing.T) {
	t.Parallel()
	root, shm := machine(t)
	o := attempt(t, root, dead)
	early := filepath.Join(shm, "psm_00000001")
	write(t, early)
	o.Start = settled(t, shm)
	inside := filepath.Join(shm, "psm_00000002")
	write(t, inside)
	o.End = settled(t, shm)
	late := filepath.Join(shm, "psm_00000003")
	write(t, late)
	// Its content's time is not its birth.
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(inside, old, old); err != nil {
		t.Fatal(err)
	}
	fs := Clean(t.Context(), o)
	if !there(early) || !there(late) || there(inside) || len(fs) != 1 {
		t.Errorf("early %v, late %v, inside %v: %+v", there(early), there(late), there(inside), fs)
	}
}

// TestShmWithoutKnowledge: what is not known counts against removing.
func TestShmWithoutKnowledge(t *testing.T) {
	t.Parallel()
	root, shm := machine(t)
	good := attempt(t, root, dead)
	path := filepath.Join(shm, "psm_00000001")
	write(t, path)
	for name, change := range map[string]func(*Options){
		"nothing known of before": func(o *Options) { o.Before = Before{} },
		"start unknown":           func(o *Options) { o.Start = time.Time{} },
		"another user":            func(o *Options) { o.UID++ },
		"only looking":            func(o *Options) { o.DryRun = true },
		"no such root":            func(o *Options) { o.Root = filepath.Join(root, "none") },
	} {
		o := good
		change(&o)
		if fs := Clean(t.Context(), o); !there(path) {
			t.Fatalf("%s: removed, %+v", name, fs)
		} else if name == "another user" && len(fs) > 0 {
			t.Errorf("another user's business: %+v", fs)
		}
	}
	if !find(t, Clean(t.Context(), good), "shm", "psm_00000001").Removed {
		t.Error("with all that known it stays")
	}
	// Not in memory: nothing to gain.
	disk := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(disk, &fs); err == nil && fs.Type != unix.TMPFS_MAGIC {
		if err := os.MkdirAll(filepath.Join(disk, "dev/shm"), 0o755); err != nil {
			t.Fatal(err)
		}
		knows(t, disk, os.Getpid())
		o := attempt(t, disk, dead)
		write(t, filepath.Join(disk, "dev/shm/psm_00000001"))
		if fs := Clean(t.Context(), o); len(fs) != 0 || !there(filepath.Join(disk, "dev/shm/psm_00000001")) {
			t.Errorf("on a disk: %+v", fs)
		}
	}
}

// TestShmWithoutATree: a run taken over has no list of pids. The maker must be
// dead then.
func TestShmWithoutATree(t *testing.T) {
	t.Parallel()
	root, shm := machine(t)
	alive := start(t, "live", "")
	knows(t, root, alive.pid)
	o := attempt(t, root)
	gone, stays := filepath.Join(shm, fmt.Sprintf("torch_%d_1_0", dead)), filepath.Join(shm, fmt.Sprintf("torch_%d_1_0", alive.pid))
	write(t, gone)
	write(t, stays)
	fs := Clean(t.Context(), o)
	if there(gone) || !there(stays) || !strings.Contains(find(t, fs, "shm", strconv.Itoa(alive.pid)).Why, "is alive") {
		t.Errorf("%+v", fs)
	}
}

// TestShmOfAnotherRun: a run of the same user is alive, and a name without a pid
// may be its.
func TestShmOfAnotherRun(t *testing.T) {
	t.Parallel()
	root, shm := machine(t)
	other := start(t, "live", "", "SPARKRUN_RUN_ID=another-run")
	knows(t, root, other.pid)
	o := attempt(t, root, dead)
	theirs, ours := filepath.Join(shm, "psm_00000001"), filepath.Join(shm, fmt.Sprintf("torch_%d_1_0", dead))
	write(t, theirs)
	write(t, ours)
	fs := Clean(t.Context(), o)
	if f := find(t, fs, "shm", "psm_00000001"); f.Removed || !strings.Contains(f.Why, "may belong to run") || !there(theirs) {
		t.Errorf("%+v", f)
	}
	if there(ours) {
		t.Errorf("a file with a pid of the attempt stays: %+v", fs)
	}
	if p, ok := func() (proc, bool) {
		tab := newTable("/", o.Entry)
		tab.look()
		p, ok := tab.procs[other.pid]
		return p, ok
	}(); !ok || p.run != "another-run" {
		t.Errorf("%+v", p)
	}
}

// TestShmAcrossUsers: as a user without rights, whose look at other processes is
// barred, a file that one of them has mapped stays; the lease tells.
func TestShmAcrossUsers(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to be two users")
	}
	const nobody = 65534
	root, shm := machine(t)
	exe := filepath.Join(root, "hygiene.test")
	b, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = newprog.Write(exe, b)
	}
	if err == nil {
		err = os.Chmod(exe, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	o := attempt(t, root, dead)
	o.UID = nobody
	give := func(name string) string {
		path := filepath.Join(shm, name)
		write(t, path)
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		return path
	}
	used, free := give("psm_00000001"), give("psm_00000002")
	rooted := filepath.Join(shm, "psm_00000003")
	write(t, rooted)
	knows(t, root, start(t, "map", used).pid) // as root: its maps are not for nobody to read

	cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", exe)
	o.Tree = map[int]string{dead: "python3"}
	what, err := json.Marshal(map[string]any{"Start": o.Start, "UID": nobody, "Entry": o.Entry, "Root": root, "Tree": o.Tree, "Seen": o.Seen})
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "ROLE=clean", "WHAT="+string(what))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var fs []Finding
	if err := json.Unmarshal(out, &fs); err != nil {
		t.Fatal(err)
	}
	if f := find(t, fs, "shm", "psm_00000001"); f.Removed || !strings.Contains(f.Why, "cannot be seen from here") || !there(used) {
		t.Errorf("mapped by root: %+v", f)
	}
	if !find(t, fs, "shm", "psm_00000002").Removed || there(free) {
		t.Errorf("used by nobody: %+v", fs)
	}
	if !there(rooted) {
		t.Error("another user's file is gone")
	}
}

// TestLease: the kernel grants it only for a file that nobody else has open, and
// never to a name that changed meanwhile.
func TestLease(t *testing.T) {
	t.Parallel()
	_, shm := machine(t)
	path := filepath.Join(shm, "psm_00000001")
	write(t, path)
	ask := func() leased {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return lease(int(f.Fd()))
	}
	if got := ask(); got != leaseFree {
		t.Errorf("nobody has it open: %v", got)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := ask(); got != leaseBusy {
		t.Errorf("open for reading: %v", got)
	}
	if got := lease(1 << 20); got != leaseUnknown {
		t.Errorf("no descriptor: %v", got)
	}
}

// TestRemoveLooksLast: between the look and the removal the name came to stand
// for another file.
func TestRemoveLooksLast(t *testing.T) {
	t.Parallel()
	root, shm := machine(t)
	c := &cleaner{o: attempt(t, root, dead), tab: newTable(root, ""), lease: lease}
	c.o.End = time.Now().Add(time.Hour)
	path := filepath.Join(shm, "psm_00000001")
	write(t, path)
	dir, err := unix.Open(shm, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	cand, ok := c.candidate(dir, "psm_00000001")
	if !ok {
		t.Fatal("no candidate")
	}
	if err := os.Rename(path, filepath.Join(root, "old")); err != nil {
		t.Fatal(err)
	}
	write(t, path)
	if removed, why := c.remove(dir, cand, usage{}); removed || !strings.Contains(why, "changed") || !there(path) {
		t.Errorf("%v %s", removed, why)
	}
}

// TestWithoutALease: on a file system that knows none, whatever cannot be looked
// at counts against removing.
func TestWithoutALease(t *testing.T) {
	t.Parallel()
	root, shm := machine(t)
	c := &cleaner{o: attempt(t, root, dead), tab: newTable(root, ""), lease: func(int) leased { return leaseUnknown }}
	dir, err := unix.Open(shm, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	path := filepath.Join(shm, "psm_00000001")
	for _, tt := range []struct {
		name string
		use  usage
		mode os.FileMode
		goes bool
	}{
		{"all can be looked at", usage{}, 0o666, true},
		{"one of the same user cannot", usage{unreadable: "x (pid 1)"}, 0o600, false},
		{"this is a container", usage{outside: true}, 0o600, false},
		{"others cannot, and the file is private", usage{foreign: true}, 0o600, true},
		{"others cannot, and the file is not", usage{foreign: true}, 0o660, false},
	} {
		write(t, path)
		if err := os.Chmod(path, tt.mode); err != nil {
			t.Fatal(err)
		}
		c.o.End = time.Now()
		cand, ok := c.candidate(dir, "psm_00000001")
		if !ok {
			t.Fatal("no candidate")
		}
		if removed, why := c.remove(dir, cand, tt.use); removed != tt.goes || there(path) == tt.goes || why == "" {
			t.Errorf("%s: %v, %s", tt.name, removed, why)
		}
	}
}

// TestInUse is the look through /proc alone, without the lease.
func TestInUse(t *testing.T) {
	t.Parallel()
	root, shm := machine(t)
	path := filepath.Join(shm, "psm_00000001")
	write(t, path)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	cand := []candidate{{name: "psm_00000001", dev: st.Dev, ino: st.Ino}}
	ask := func() usage {
		tab := newTable(root, entry(t))
		tab.look()
		return tab.inUse(cand, os.Getuid())
	}
	if u := ask(); len(u.by) != 0 {
		t.Errorf("used by nobody: %+v", u)
	}
	m := start(t, "map", path)
	knows(t, root, m.pid)
	if u := ask(); !strings.Contains(u.by["psm_00000001"], strconv.Itoa(m.pid)) {
		t.Errorf("mapped: %+v", u)
	}
	m.stop()
	// Renamed after it was opened: the inode tells.
	p := start(t, "open", path)
	knows(t, root, p.pid)
	if err := os.Rename(path, filepath.Join(shm, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	if u := ask(); !strings.Contains(u.by["psm_00000001"], strconv.Itoa(p.pid)) {
		t.Errorf("open under another name: %+v", u)
	}
}

// TestRealSharedMemory is the one test against the machine's own /dev/shm.
func TestRealSharedMemory(t *testing.T) {
	t.Parallel()
	const shm = "/dev/shm"
	mine := filepath.Join(shm, fmt.Sprintf("torch_%d_%d_0", dead, os.Getpid()))
	kept := filepath.Join(shm, fmt.Sprintf("sparkrun-hygiene-%d", os.Getpid()))
	t.Cleanup(func() { _ = os.Remove(mine); _ = os.Remove(kept) })
	o := Options{Before: Snapshot(), UID: os.Getuid(), Entry: entry(t), Tree: map[int]string{dead: "python3"}}
	if o.Before.shm == nil {
		t.Skip("no /dev/shm that can be listed")
	}
	o.Start = settled(t, shm)
	write(t, mine)
	write(t, kept)
	fs := Clean(t.Context(), o)
	if f := find(t, fs, "shm", filepath.Base(mine)); !f.Removed || there(mine) || !there(kept) {
		t.Errorf("%+v; the other is there: %v", f, there(kept))
	}
}
