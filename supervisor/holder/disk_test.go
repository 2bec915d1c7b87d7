package holder

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func asNobody(t *testing.T, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return cmd
}

// smallDisk mounts a file system of the given size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := shortDir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("a small file system needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmounting: %v", err)
		}
	})
	return dir
}

// rebuild puts output.log back to logical offsets: lost bytes are 0xff.
func rebuild(t *testing.T, a *attempt, size int64) []byte {
	t.Helper()
	gaps, err := ReadGaps(a.dir)
	if err != nil {
		t.Fatal(err)
	}
	log := a.log()
	out := make([]byte, 0, size)
	for _, g := range gaps {
		n := g.Offset - int64(len(out))
		if n < 0 || n > int64(len(log)) {
			t.Fatalf("gap %+v does not fit at %d with %d bytes left", g, len(out), len(log))
		}
		out = append(out, log[:n]...)
		log = log[n:]
		out = append(out, bytes.Repeat([]byte{0xff}, int(g.Bytes))...)
	}
	return append(out, log...)
}

// checkRebuilt compares all but the lost bytes with what was printed.
func checkRebuilt(t *testing.T, got []byte, size int, wantLoss bool) {
	t.Helper()
	want := make([]byte, 0, size)
	for len(want) < size {
		b := floodBlock()
		want = append(want, b[:min(len(b), size-len(want))]...)
	}
	if len(got) != size {
		t.Fatalf("%d bytes, want %d", len(got), size)
	}
	lost := 0
	for i := range got {
		if got[i] != want[i] {
			if got[i] != 0xff {
				t.Fatalf("byte %d is %#x, want %#x", i, got[i], want[i])
			}
			lost++
		}
	}
	if (lost > 0) != wantLoss {
		t.Errorf("%d bytes lost", lost)
	}
}

func TestFullDiskHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "4m")
	dir := filepath.Join(disk, "a")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	reserve := filepath.Join(disk, "reserve")
	if err := os.WriteFile(reserve, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	const size = 40 << 20
	spec := baseSpec(dir, self(t), "fake-flood", strconv.Itoa(size))
	spec.PTY, spec.Stdin, spec.Reserve = false, StdinNull, reserve
	spec.Socket = filepath.Join(shortDir(t), "s")
	spec.Waits.Linger = 10 * time.Second
	a := start(t, spec, nil)
	c, err := Dial(spec.Socket, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var exited Push
	for p := range c.Pushes() {
		if p.Kind == PushExited {
			exited = p
			break
		}
	}
	if exited.Exit == nil || exited.Exit.Status() != 0 {
		t.Fatalf("exited push %+v", exited)
	}
	// The last MiB is served from memory.
	var tail []byte
	for from := int64(size - 1<<20); ; {
		off, b, err := c.Read(from)
		if err != nil {
			t.Fatal(err)
		}
		if off != from {
			t.Fatalf("asked for %d, got %d", from, off)
		}
		if len(b) == 0 {
			break
		}
		tail = append(tail, b...)
		from += int64(len(b))
	}
	c.Close()
	e := a.end()
	if e.Offset != size || e.Written != size || e.GapBytes == 0 {
		t.Errorf("exit %+v", e)
	}
	got := rebuild(t, a, size)
	checkRebuilt(t, got, size, true)
	whole := make([]byte, 0, size)
	for len(whole) < size {
		whole = append(whole, floodBlock()...)
	}
	if !bytes.Equal(tail, whole[size-1<<20:size]) {
		t.Errorf("the tail from memory (%d bytes) is not what was printed", len(tail))
	}
	if _, err := os.Lstat(reserve); !notExist(err) {
		t.Errorf("the reserve was kept: %v", err)
	}
	gaps, _ := ReadGaps(dir)
	if len(gaps) == 0 || gaps[len(gaps)-1].Errno != unix.ENOSPC || gaps[0].Error == "" || gaps[0].T0 > gaps[0].T1 {
		t.Errorf("gaps %+v", gaps)
	}
}

func TestOutputGoesOnWhenTheDiskHasRoomAgain(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "4m")
	ballast := filepath.Join(disk, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := baseSpec(disk, "sh", "-c", self(t)+" fake-flood 16000000; echo flooded; read x; printf tail")
	spec.Socket = filepath.Join(shortDir(t), "s")
	a := start(t, spec, nil)
	c, err := Dial(spec.Socket, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pushes := collect(c)
	var st Status
	until(t, "the flood is over and the disk refuses", func() bool {
		st, err = c.Status()
		return err == nil && st.Offset == 16000000+8 && st.DiskError != ""
	})
	if st.Written >= st.Offset || !strings.Contains(st.DiskError, "no space") {
		t.Errorf("status %+v", st)
	}
	// A disk of 4 MiB cannot take the 8 MiB of the ring: make it larger.
	if err := unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	until(t, "the disk has caught up", func() bool {
		st, err = c.Status()
		return err == nil && st.Written == st.Offset && st.DiskError == ""
	})
	if g, ok := pushes.last(PushGap); !ok || g.Gap == nil || g.Gap.Bytes == 0 {
		t.Errorf("gap push %+v", g)
	}
	if err := c.Stdin([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	e := a.end()
	got := rebuild(t, a, e.Offset)
	checkRebuilt(t, got[:16000000], 16000000, true)
	if !bytes.HasSuffix(got, []byte("tail")) || int64(len(got)) != e.Offset {
		t.Errorf("%d of %d bytes, ends in %q", len(got), e.Offset, got[len(got)-10:])
	}
	gaps, _ := ReadGaps(a.dir)
	var sum int64
	for _, g := range gaps {
		sum += g.Bytes
	}
	if sum == 0 || sum != e.GapBytes {
		t.Errorf("gaps of %d bytes, exit says %d", sum, e.GapBytes)
	}
}

func TestMinFreeStopsTheLog(t *testing.T) {
	t.Parallel()
	a, e := runSh(t, "echo never written", func(s *Spec) { s.MinFree = 1 << 60 })
	if e.Offset != 14 || e.GapBytes != 14 {
		t.Errorf("exit %+v", e)
	}
	// The gap says whose limit it was; the number stays that of a full disk.
	gaps, err := ReadGaps(a.dir)
	if err != nil || len(gaps) != 1 || gaps[0].Errno != unix.ENOSPC || e.Written != 14 {
		t.Fatalf("%+v %v, written %d", gaps, err, e.Written)
	}
	if ok, _ := regexp.MatchString(`^only \d+ MiB free, less than the 1099511627776 MiB that are kept free \(--min-free\)$`, gaps[0].Error); !ok {
		t.Errorf("the gap says %q", gaps[0].Error)
	}
	a, e = runSh(t, "echo written", func(s *Spec) { s.MinFree = 1 })
	if e.GapBytes != 0 || string(a.log()) != "written\n" {
		t.Errorf("exit %+v", e)
	}
}

// What fits into the reserve is not lost: the newest output of a run that ends on
// a full disk, or all of it where little is left.
func TestTheReserveTakesTheLastOutput(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		size    int
		minFree uint64
		loss    bool
	}{
		{"all of it", 100 << 10, 0, false},
		{"the newest of it", 600 << 10, 0, true},
		{"more than the ring", 20 << 20, 0, true},
		{"less than is kept free", 100 << 10, 1 << 60, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			disk := smallDisk(t, "4m")
			reserve := filepath.Join(disk, "reserve")
			if err := os.WriteFile(reserve, make([]byte, 1<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			spec := baseSpec(disk, self(t), "fake-flood", strconv.Itoa(c.size))
			spec.PTY, spec.Stdin, spec.Reserve, spec.MinFree = false, StdinNull, reserve, c.minFree
			if c.minFree == 0 {
				if err := os.WriteFile(filepath.Join(disk, "ballast"), make([]byte, 4<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
					t.Fatalf("filling: %v", err)
				}
			}
			a := start(t, spec, nil)
			e := a.end()
			size := int64(c.size)
			if e.Offset != size || e.Written != size || (e.GapBytes > 0) != c.loss {
				t.Errorf("offset %d written %d gap %d", e.Offset, e.Written, e.GapBytes)
			}
			got := rebuild(t, a, size)
			checkRebuilt(t, got, c.size, c.loss)
			gaps, err := ReadGaps(a.dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range gaps {
				if g.Offset+g.Bytes > size-rescueBytes {
					t.Errorf("some of the last %d bytes are lost: %+v", rescueBytes, g)
				}
			}
			if kept := int64(len(a.log())); kept+e.GapBytes != size {
				t.Errorf("%d bytes in the log and %d lost of %d", kept, e.GapBytes, size)
			}
			ix, err := OpenIndex(a.dir)
			if err != nil {
				t.Fatal(err)
			}
			defer ix.Close()
			if _, ok := ix.RealAt(size - 1); !ok {
				t.Error("it is not told when the last byte came")
			}
		})
	}
}

func TestFileSizeLimitIsAFullDisk(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	cmd := exec.Command("sh", "-c", `ulimit -f 4; exec "$0" fake-supervisor "$1" "$2"`, self(t), dir, self(t)+" fake-flood 100000; echo; echo ended")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := make([]byte, 16)
	if _, err := out.Read(pid); err != nil {
		t.Fatal(err)
	}
	until(t, "the attempt is over", func() bool { _, err := ReadExit(dir); return err == nil })
	e, _ := ReadExit(dir)
	if e.Status() != 0 || e.Offset != 100007 || e.GapBytes == 0 {
		t.Errorf("exit %+v", e)
	}
	gaps, _ := ReadGaps(dir)
	if len(gaps) != 1 || gaps[0].Errno != unix.EFBIG {
		t.Errorf("gaps %+v", gaps)
	}
}

// A writer that does not come back from the disk: the ring goes on, and what
// it overwrote is exactly what is reported.
func TestRingDropsOldestWhenTheDiskHangs(t *testing.T) {
	t.Parallel()
	r := testRing(t)
	fill := func(n int, v byte) {
		for n > 0 {
			b := r.reserve()
			b = b[:min(len(b), n)]
			for i := range b {
				b[i] = v
			}
			r.commit(len(b))
			n -= len(b)
		}
	}
	fill(100, 'a')
	buf := make([]byte, 1000)
	n, idx := r.next(buf, nil)
	if n != 100 || len(idx) != 1 || idx[0].off != 0 {
		t.Fatalf("next = %d, %v", n, idx)
	}
	// The write of those 100 bytes hangs; the disk is asked for patience once.
	began := time.Now()
	fill(len(r.buf), 'b')
	fill(2*len(r.buf), 'c')
	if took := time.Since(began); took < patience || took > 20*patience {
		t.Errorf("the filler was held up for %s, want about %s", took, patience)
	}
	if off, lost, since := r.lost(); off != 0 || lost != 100+2*int64(len(r.buf)) || since.IsZero() {
		t.Errorf("lost %d from %d since %v", lost, off, since)
	}
	// It comes back: its bytes were in its own copy.
	r.advance(n)
	off, lost, since := r.lost()
	if off != 100 || lost != 2*int64(len(r.buf)) || since.IsZero() {
		t.Errorf("lost %d from %d since %v", lost, off, since)
	}
	if n, _ := r.next(buf, nil); n != 0 {
		t.Errorf("%d bytes were handed out before the loss was dealt with", n)
	}
	r.skip(off + lost)
	if n, _ := r.next(buf, nil); n != len(buf) || bytes.Count(buf, []byte("c")) != len(buf) {
		t.Errorf("next = %d %q", n, buf[:10])
	}
}

func TestRingRefusedNeverWaits(t *testing.T) {
	t.Parallel()
	r := testRing(t)
	r.refuse(true)
	began := time.Now()
	for range 200 {
		r.commit(len(r.reserve()))
	}
	if took := time.Since(began); took > patience {
		t.Errorf("50 MB took %s with a disk that refuses", took)
	}
	if _, lost, _ := r.lost(); lost == 0 {
		t.Error("nothing was lost")
	}
}

func TestRingWaitsForABusyDisk(t *testing.T) {
	t.Parallel()
	r := testRing(t)
	go func() {
		buf := make([]byte, writeMax)
		for !r.finished() {
			n, _ := r.next(buf, nil)
			time.Sleep(time.Millisecond) // slower than the filler
			r.advance(n)
		}
	}()
	for range 100 {
		r.commit(len(r.reserve()))
	}
	if _, lost, _ := r.lost(); lost != 0 {
		t.Errorf("%d bytes lost with a disk that works", lost)
	}
	r.finish()
}

func testRing(t *testing.T) *ring {
	t.Helper()
	r, err := newRing()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRingReads(t *testing.T) {
	t.Parallel()
	r := testRing(t)
	b := r.reserve()
	copy(b, "hello world")
	r.commit(11)
	buf := make([]byte, 100)
	for from, want := range map[int64]string{0: "hello world", 6: "world", 11: "", 99: ""} {
		off, n := r.read(buf, from)
		if string(buf[:n]) != want || off != min(from, 11) {
			t.Errorf("read(%d) = %d %q", from, off, buf[:n])
		}
	}
}

func TestPersistGivesTheReserveFirst(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "64k")
	reserve := filepath.Join(disk, "reserve")
	if err := os.WriteFile(reserve, make([]byte, 32<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(disk, "fill"), make([]byte, 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling: %v", err)
	}
	e := Exit{Schema: ExitSchema, RunID: "x"}
	if named, saved := persist(disk, "", nil, e, 0, nil); !named || saved {
		t.Fatal("exit.json was written to a full disk")
	}
	if names, _ := filepath.Glob(filepath.Join(disk, "exit.json*")); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
	lost := newGap(5, 7, time.Now(), refusal{errno: unix.ENOSPC, why: "full"})
	if named, saved := persist(disk, "", &lost, e, 0, nil); named || saved {
		t.Fatal("a gap was named on a full disk")
	}
	if named, saved := persist(disk, reserve, &lost, e, 0, nil); !named || !saved {
		t.Fatal("exit.json was not written in spite of the reserve")
	}
	if got, err := ReadExit(disk); err != nil || got.RunID != "x" {
		t.Errorf("%+v %v", got, err)
	}
	if gaps, err := ReadGaps(disk); err != nil || len(gaps) != 1 || gaps[0] != lost {
		t.Errorf("%+v %v", gaps, err)
	}
	if _, saved := persist(filepath.Join(disk, "removed"), "", nil, e, time.Hour, nil); saved {
		t.Error("written to a directory that does not exist")
	}
}

// TestAFullDiskHidesNoEnd: clients hear of the end although exit.json cannot be written,
// long before the holder gives the file up; it is there once the disk has room.
func TestAFullDiskHidesNoEnd(t *testing.T) {
	t.Parallel()
	for _, talks := range []bool{false, true} {
		t.Run(map[bool]string{false: "silent", true: "output lost too"}[talks], func(t *testing.T) {
			t.Parallel()
			disk := smallDisk(t, "1m")
			gate, last := filepath.Join(t.TempDir(), "go"), ""
			if talks {
				last = self(t) + " fake-flood 100000; "
			}
			spec := baseSpec(disk, "sh", "-c", "while [ ! -e "+gate+" ]; do sleep 0.01; done; "+last+"exit 3")
			spec.Socket = filepath.Join(shortDir(t), "s")
			a := start(t, spec, nil)
			c, err := Dial(spec.Socket, "test")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			pushes := collect(c)
			ballast := filepath.Join(disk, "ballast")
			if err := os.WriteFile(ballast, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("filling: %v", err)
			}
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			var told Push
			until(t, "the end is told", func() (ok bool) {
				told, ok = pushes.last(PushExited)
				return ok
			})
			if took := time.Since(began); took > persistLimit/2 {
				t.Errorf("the end was told after %v", took)
			}
			if told.Saved || told.Exit == nil || told.Exit.Status() != 3 || told.Written > told.Offset || (told.Written < told.Offset) != talks {
				t.Errorf("told %+v, exit %+v", told, told.Exit)
			}
			if e, err := ReadExit(disk); err == nil {
				t.Errorf("on a full disk: %+v", e)
			}
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			until(t, "exit.json", func() bool { _, err := ReadExit(disk); return err == nil })
			c.Close()
			if e := a.end(); e.Status() != 3 || e.Written != e.Offset || (e.GapBytes > 0) != talks {
				t.Errorf("exit %+v", e)
			}
		})
	}
}

func TestReadGapsTolerates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if gaps, err := ReadGaps(dir); err != nil || gaps != nil {
		t.Errorf("%v %v", gaps, err)
	}
	text := `{"offset":1,"bytes":2,"t0":"","t1":"","errno":28,"error":"x"}` + "\n\n" + `{"offset":9,"byt`
	if err := os.WriteFile(filepath.Join(dir, gapsName), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	gaps, err := ReadGaps(dir)
	if err != nil || len(gaps) != 1 || gaps[0].Offset != 1 || gaps[0].Bytes != 2 || gaps[0].Errno != unix.ENOSPC {
		t.Errorf("%+v %v", gaps, err)
	}
}

func TestReadExitRefusesWhatIsNone(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"torn": `{"schema":"sparkrun.ex`, "other schema": `{"schema":"other/1"}`, "empty": ""} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, exitName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadExit(dir); err == nil || notExist(err) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}
