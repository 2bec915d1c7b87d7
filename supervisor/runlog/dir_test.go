package runlog

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ argv, flag, want string }{
		{"python train.py --lr 1", "", "train"},
		{"python3 -u src/SFT_Run.py", "", "sft-run"},
		{"python -m trl.scripts.sft --x", "", "sft"},
		{"torchrun --nproc-per-node 2 train.py config.yaml", "", "train"},
		{"env A=b.py bash ./run.sh", "", "run"},
		{"trl sft --config a.yaml", "", "trl"},
		{"python3.12 -c print('a.py')", "", "python3"},
		{"nohup /opt/bin/My.Trainer", "", "my"},
		{"python train.py", "  Ünïcode Night #3!", "n-code-night-3"},
		{"python train.py", "___", "run"},
		{"python train.py", strings.Repeat("ab-", 20), "ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab"},
		{"", "", "run"},
	} {
		got := Name(strings.Fields(c.argv), c.flag)
		if got != c.want {
			t.Errorf("%q, %q: got %q, want %q", c.argv, c.flag, got, c.want)
		}
		if id := NewID(time.Now(), got); !idShape.MatchString(id) {
			t.Errorf("%q is no ID", id)
		}
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	p := testPlaces(t)
	now := time.Date(2026, 7, 14, 10, 0, 0, 0, time.UTC)
	d, err := Create(p, "", "train", now)
	if err != nil {
		t.Fatal(err)
	}
	runs := filepath.Join(p.Cwd, RunsFolder)
	if filepath.Dir(d.Path) != runs || !regexp.MustCompile(`^20260714-100000-train-[0-9a-f]{4}$`).MatchString(d.ID) || d.Note != "" {
		t.Errorf("got %+v", d)
	}
	info, err := os.Stat(d.Path)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if got := string(read(t, filepath.Join(runs, ".gitignore"))); got != "*\n" {
		t.Errorf(".gitignore is %q", got)
	}
	if to, err := os.Readlink(filepath.Join(runs, "latest")); err != nil || to != d.ID {
		t.Errorf("latest points at %q, %v", to, err)
	}
	info, err = os.Stat(d.File(reserveFile))
	if err != nil {
		t.Fatal(err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Blocks*512 < ReserveBytes {
		t.Errorf("the reserve has %d blocks, which is less than 1 MiB", st.Blocks)
	}
	if got := Runs(p); len(got) != 1 || got[0].Path != d.Path || !got[0].Start.Equal(now) {
		t.Errorf("the index has %+v", got)
	}

	second, err := Create(p, "", "train", now)
	if err != nil {
		t.Fatal(err)
	}
	if to, _ := os.Readlink(filepath.Join(runs, "latest")); to != second.ID || second.ID == d.ID {
		t.Errorf("latest points at %q, want %q", to, second.ID)
	}
	if path, err := d.MakeAttempt(1); err != nil || path != filepath.Join(d.Path, "attempts", "1") {
		t.Errorf("got %q, %v", path, err)
	}
	if _, err := d.MakeAttempt(1); !errors.Is(err, os.ErrExist) {
		t.Errorf("an attempt folder was taken twice: %v", err)
	}
	d.ReleaseReserve()
	d.ReleaseReserve()
	if _, err := os.Stat(d.File(reserveFile)); !errors.Is(err, os.ErrNotExist) {
		t.Error("the reserve is still there")
	}
	if got := blocks(t, d.File(lastFile)); got < LastBytes {
		t.Errorf("the last reserve has %d bytes on the disk", got)
	}
	d.ReleaseLast()
	d.ReleaseLast()
	if left, _ := filepath.Glob(d.File(".*")); len(left) > 0 {
		t.Errorf("left in the run directory: %v", left)
	}
}

// blocks is how many bytes of the disk a file takes.
func blocks(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

func TestCreateFallsBackAndSaysSo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		set  func(t *testing.T, p *Places)
		note string
	}{
		{"home", func(_ *testing.T, p *Places) { p.Cwd = p.Home }, "is your home folder"},
		{"home through a link", func(t *testing.T, p *Places) {
			link := filepath.Join(filepath.Dir(p.Home), "link")
			if err := os.Symlink(p.Home, link); err != nil {
				t.Fatal(err)
			}
			p.Cwd = link
		}, "is your home folder"},
		{"root", func(_ *testing.T, p *Places) { p.Cwd = "/" }, "is the root"},
		{"removed", func(t *testing.T, p *Places) {
			if err := os.Remove(p.Cwd); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p.Cwd, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "cannot be written"},
		{"unknown cwd", func(_ *testing.T, p *Places) { p.Cwd = "" }, "is gone"},
		{"remote", func(_ *testing.T, p *Places) { p.Local = func(dir string) bool { return dir != p.Cwd } }, "not a local file system"},
		{"read-only", func(t *testing.T, p *Places) { p.Cwd = mountTmpfs(t, "size=1m", unix.MS_RDONLY) }, "read-only file system"},
		{"no home", func(_ *testing.T, p *Places) { p.Cwd, p.Home = "/", "" }, "is the root"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := testPlaces(t)
			c.set(t, &p)
			d, err := Create(p, "", "train", time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(d.Path, p.State()+"/") || !strings.Contains(d.Note, c.note) || !strings.Contains(d.Note, p.State()) {
				t.Errorf("path %s, note %q", d.Path, d.Note)
			}
			if got := Runs(p); len(got) != 1 || got[0].Path != d.Path {
				t.Errorf("the index has %+v", got)
			}
		})
	}
}

func TestCreateInFolderOfTheUser(t *testing.T) {
	t.Parallel()
	p := testPlaces(t)
	own := filepath.Join(p.Cwd, "own")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "latest"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Create(p, "own", "train", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(d.Path) != own {
		t.Errorf("the run is in %s", d.Path)
	}
	if _, err := os.Stat(filepath.Join(own, ".gitignore")); err == nil {
		t.Error("a .gitignore was put into a folder of the user's, which hides their files")
	}
	if got := string(read(t, filepath.Join(own, "latest"))); got != "mine" {
		t.Errorf("the user's file reads %q", got)
	}

	for name, dir := range map[string]string{
		"a file":    filepath.Join(own, "latest"),
		"read-only": mountTmpfs(t, "size=1m", unix.MS_RDONLY),
	} {
		if _, err := Create(p, dir, "train", time.Now()); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestCreateOnFullDiskLeavesNothing(t *testing.T) {
	t.Parallel()
	p := testPlaces(t)
	disk := mountTmpfs(t, "size=1m", 0) // the reserve alone needs that
	_ = os.WriteFile(filepath.Join(disk, "x"), make([]byte, 64<<10), 0o600)
	for _, dir := range []string{filepath.Join(disk, "runs"), disk} {
		_, err := Create(p, dir, "train", time.Now())
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "no space left in "+dir+", nothing was started") {
			t.Errorf("got %v", err)
		}
	}
	left, err := os.ReadDir(disk)
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if got := Runs(p); len(got) != 0 {
		t.Errorf("the index has %+v", got)
	}
}

// The default folder on a full disk is an error, not a silent move elsewhere.
func TestCreateInFullWorkingDirectory(t *testing.T) {
	t.Parallel()
	p := testPlaces(t)
	p.Cwd = mountTmpfs(t, "size=512k", 0)
	if _, err := Create(p, "", "train", time.Now()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
}

func TestSaveOnFullDiskUsesTheReserve(t *testing.T) {
	t.Parallel()
	p := testPlaces(t)
	disk := mountTmpfs(t, "size=4m", 0)
	d, err := Create(p, disk, "train", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m := &Manifest{ID: d.ID, State: StateRunning, Result: strings.Repeat("x", 100<<10)}
	if err := d.Save(m); err != nil {
		t.Fatal(err)
	}
	fillDisk(t, disk)
	m.State = StateFailed
	m.Result = strings.Repeat("y", 200<<10)
	if err := d.Save(m); err != nil {
		t.Fatal(err)
	}
	got, err := ReadManifest(d.Path)
	if err != nil || got.State != StateFailed {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := os.Stat(d.File(reserveFile)); err == nil {
		t.Error("the reserve is still there")
	}
	// Without reserve and in the middle of a run: an error, the old file whole, no
	// temp file left.
	fillMore := filepath.Join(disk, "more")
	if err := os.Mkdir(fillMore, 0o700); err != nil {
		t.Fatal(err)
	}
	fillDisk(t, fillMore)
	m.State = StateRunning
	if err := d.Save(m); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
	if got, err := ReadManifest(d.Path); err != nil || got.State != StateFailed {
		t.Errorf("got %v, %v", got, err)
	}
	if left, _ := filepath.Glob(d.File(".run.json*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The last run.json gets through on a disk that has no byte free and gets none:
// whatever the reserve gives back is taken by another writer at once.
func TestLastSaveNeedsNoFreeByte(t *testing.T) {
	t.Parallel()
	p := testPlaces(t)
	disk := mountTmpfs(t, "size=4m", 0)
	d, err := Create(p, disk, "train", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m := &Manifest{ID: d.ID, State: StateRunning}
	if err := d.Save(m); err != nil {
		t.Fatal(err)
	}
	d.ReleaseReserve()
	fillDisk(t, disk)
	// In the middle of the run the last reserve is not for the taking.
	m.Result = strings.Repeat("x", 20<<10)
	if err := d.Save(m); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
	// Larger than the last reserve: refused, and nothing is half written.
	m.State, m.Result = StateFailed, strings.Repeat("x", LastBytes)
	if err := d.Save(m); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
	if got, err := ReadManifest(d.Path); err != nil || got.State != StateRunning {
		t.Errorf("got %v, %v", got, err)
	}
	if got := blocks(t, d.File(lastFile)); got < LastBytes {
		t.Errorf("the last reserve has %d bytes on the disk", got)
	}
	m.Result = strings.Repeat("y", 20<<10)
	if err := d.Save(m); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadManifest(d.Path); err != nil || got.State != StateFailed || got.Result != m.Result {
		t.Errorf("got %v, %v", got, err)
	}
	if info, err := os.Stat(d.File(ManifestFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	d.ReleaseLast()
	if left, _ := filepath.Glob(d.File(".*")); len(left) > 0 {
		t.Errorf("left in the run directory: %v", left)
	}
}

// A verdict needs no free byte either, and takes nothing from the last run.json.
func TestVerdictNeedsNoFreeByte(t *testing.T) {
	t.Parallel()
	p := testPlaces(t)
	disk := mountTmpfs(t, "size=4m", 0)
	d, err := Create(p, disk, "train", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m := &Manifest{ID: d.ID, State: StateRunning}
	if err := d.Save(m); err != nil {
		t.Fatal(err)
	}
	dir, err := d.MakeAttempt(1)
	if err != nil {
		t.Fatal(err)
	}
	d.ReleaseReserve()
	fillDisk(t, disk)
	path := filepath.Join(dir, "verdict.json")
	if err := d.WriteVerdict(path, []byte("{}\n")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "{}\n" {
		t.Errorf("got %q, %v", b, err)
	}
	// What its blocks gave back is taken too; a second one has none, and says so.
	fillMore := filepath.Join(disk, "more")
	if err := os.Mkdir(fillMore, 0o700); err != nil {
		t.Fatal(err)
	}
	free := fillDisk(t, fillMore)
	if err := d.WriteVerdict(filepath.Join(dir, "second.json"), []byte("{}\n")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
	m.State = StateFailed
	if err := d.Save(m); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadManifest(d.Path); err != nil || got.State != StateFailed {
		t.Errorf("got %v, %v", got, err)
	}
	// With room again the next attempt has its own.
	free()
	d.RefillReserve()
	if got := blocks(t, d.File(verdictFile)); got < LastBytes {
		t.Errorf("the reserve of the verdict has %d bytes on the disk", got)
	}
	d.ReleaseReserve()
	d.ReleaseLast()
	if left, _ := filepath.Glob(d.File(".*")); len(left) > 0 {
		t.Errorf("left in the run directory: %v", left)
	}
}

func TestReserveIsRefilled(t *testing.T) {
	t.Parallel()
	p := testPlaces(t)
	disk := mountTmpfs(t, "size=4m", 0)
	d, err := Create(p, disk, "train", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	d.RefillReserve() // there is one
	if got := blocks(t, d.File(reserveFile)); got != ReserveBytes {
		t.Errorf("the reserve has %d bytes on the disk", got)
	}
	d.ReleaseReserve()
	free := fillDisk(t, disk)
	d.RefillReserve() // no room: not half a one either
	if _, err := os.Stat(d.File(reserveFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a reserve was made on a full disk: %v", err)
	}
	free()
	d.RefillReserve()
	if got := blocks(t, d.File(reserveFile)); got != ReserveBytes {
		t.Errorf("the reserve has %d bytes on the disk", got)
	}
	if err := os.RemoveAll(d.Path); err != nil {
		t.Fatal(err)
	}
	d.RefillReserve()
	if _, err := os.Stat(d.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that was removed is back: %v", err)
	}
}

func TestReserveIsWrittenWhereItCannotBeAllocated(t *testing.T) {
	t.Parallel()
	// ramfs has no fallocate.
	dir := t.TempDir()
	if err := unix.Mount("ramfs", dir, "ramfs", 0, ""); err != nil {
		t.Skipf("needs root to mount a ramfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "r")
	if err := makeReserve(path, 64<<10); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 64<<10 {
		t.Errorf("got %v, %v", info, err)
	}
}

func TestSocketDir(t *testing.T) {
	t.Parallel()
	uid := os.Getuid()
	fresh := filepath.Join(t.TempDir(), "s")
	for range 2 {
		if got, err := privateDir(fresh, uid); err != nil || got != fresh {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if info, err := os.Stat(fresh); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := privateDir(fresh, uid+1); err == nil || !strings.Contains(err.Error(), "belongs to user") {
		t.Errorf("owner: got %v", err)
	}
	link := filepath.Join(t.TempDir(), "l")
	if err := os.Symlink(fresh, link); err != nil {
		t.Fatal(err)
	}
	if _, err := privateDir(link, uid); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("link: got %v", err)
	}
	if err := os.Chmod(fresh, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := privateDir(fresh, uid); err == nil || !strings.Contains(err.Error(), "0755") {
		t.Errorf("mode: got %v", err)
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	release, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Open(d.places, d.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Lock(); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "process") {
		t.Errorf("got %v", err)
	}
	release()
	release, err = again.Lock()
	if err != nil {
		t.Fatal(err)
	}
	release()
}

func TestRunning(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	p := d.places
	sockets := p.socketDirPath()
	asks := func() bool { return Running(p, d.ID) }
	if asks() {
		t.Error("running without a lock")
	}
	if _, err := os.Stat(sockets); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("asking has made the socket folder: %v", err)
	}
	release, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first question must not take the lock away
		if !asks() {
			t.Error("a run under a supervisor does not count as running")
		}
	}
	if Running(p, "20260101-000000-other-beef") || Running(p, "") || Running(p, "../"+d.ID) {
		t.Error("another run counts as running")
	}
	release()
	if asks() {
		t.Error("running after the release")
	}
	// A supervisor that was killed leaves the file, not the lock.
	lock := filepath.Join(sockets, d.ID+".lock")
	if err := os.WriteFile(lock, []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if asks() {
		t.Error("a file without a lock counts as running")
	}
	if _, err := os.Stat(lock); err != nil {
		t.Errorf("asking has removed the file: %v", err)
	}
	// Nobody's word counts in a folder that others may write to.
	release, err = d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := os.Chmod(sockets, 0o777); err != nil {
		t.Fatal(err)
	}
	if asks() {
		t.Error("a lock in a folder that is open to others was believed")
	}
}

// Asking at any moment never makes a supervisor believe that it is the second
// one, nor two askers that the run is running.
func TestRunningDisturbsNobody(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	release, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					Running(d.places, d.ID)
				}
			}
		})
	}
	for range 100 {
		release()
		if release, err = d.Lock(); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	asking.Wait()
	if err == nil {
		release()
	}
	if Running(d.places, d.ID) {
		t.Error("running after the release")
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	p := testPlaces(t)
	mk := func(day int, name string) *Dir {
		d, err := Create(p, "", name, time.Date(2026, 7, day, 10, 0, 0, 0, time.UTC))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Save(&Manifest{ID: d.ID}); err != nil {
			t.Fatal(err)
		}
		return d
	}
	a, b, c := mk(14, "train"), mk(15, "train"), mk(15, "eval")
	if err := os.WriteFile(filepath.Join(p.indexDir(), "torn.json"), []byte(`{"id":"x`), 0o600); err != nil {
		t.Fatal(err)
	}
	// A folder of that name here is not a run.
	if err := os.Mkdir(filepath.Join(p.Cwd, "train"), 0o700); err != nil {
		t.Fatal(err)
	}
	suffix := a.ID[len(a.ID)-4:]
	for run, want := range map[string]string{
		a.ID: a.Path, a.ID[:12]: a.Path, "20260715-100000-e": c.Path, "train": b.Path, "eval": c.Path,
		a.Path: a.Path, filepath.Join(RunsFolder, a.ID): a.Path, a.File(ManifestFile): a.Path,
		filepath.Join(RunsFolder, "latest"): c.Path,
	} {
		if got, err := Resolve(p, run); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", run, got, err, want)
		}
	}
	if b.ID[len(b.ID)-4:] != suffix && c.ID[len(c.ID)-4:] != suffix {
		if got, err := Resolve(p, suffix); err != nil || got != a.Path {
			t.Errorf("%s: got %q, %v", suffix, got, err)
		}
	}
	// Two runs began at that second: either may be the latest.
	if got, err := Resolve(p, "latest"); err != nil || got == a.Path {
		t.Errorf("latest: got %q, %v", got, err)
	}
	var amb *AmbiguousError
	if _, err := Resolve(p, "20260715"); !errors.As(err, &amb) || len(amb.Candidates) != 2 || !strings.Contains(err.Error(), b.ID) {
		t.Errorf("got %v", err)
	}
	for _, run := range []string{"nosuch", "", "./nosuch", "train/x"} {
		if _, err := Resolve(p, run); !errors.Is(err, ErrNoRun) {
			t.Errorf("%q: got %v", run, err)
		}
	}
	// From elsewhere the index still knows them; a run whose folder is gone is
	// not offered.
	p.Cwd = p.Home
	if err := os.RemoveAll(b.Path); err != nil {
		t.Fatal(err)
	}
	if got, err := Resolve(p, "train"); err != nil || got != a.Path {
		t.Errorf("got %q, %v", got, err)
	}
}
