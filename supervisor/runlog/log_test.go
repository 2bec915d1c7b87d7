package runlog

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

func openTestLog(t *testing.T, d *Dir, clk clock.Clock) *Log {
	t.Helper()
	l, err := OpenLog(d, clk)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestLogWritesBothFiles(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	start := time.Date(2026, 7, 14, 10, 0, 0, 0, time.FixedZone("CEST", 7200))
	clk := clock.Restore(start, clock.Boottime())
	l := openTestLog(t, d, clk)
	var seen []event.Event
	l.Subscribe(func(e event.Event) { seen = append(seen, e) })

	l.Line(start.Add(500*time.Millisecond), []byte("step 2"))
	l.Event(event.Event{
		T: start.Add(250 * time.Millisecond), Attempt: 1, Kind: event.ThrottleStart, Level: event.Warn,
		Label: "thermal-throttle start", Msg: "91 C", Data: map[string]any{"temp_c": 91, "id": "t1"},
	})
	l.Line(start.Add(100*time.Millisecond).UTC(), []byte("step <1>"))
	l.Event(event.Event{T: start.Add(time.Second), Kind: event.RungAnnounce, Msg: "with\n\x1b[31mhf_abcdefghijKLMNOP0123"})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}

	want := `2026/07/14 10:00:00.100 | step <1>
2026/07/14 10:00:00.250 # thermal-throttle start: 91 C
2026/07/14 10:00:00.500 | step 2
2026/07/14 10:00:01.000 # rung.announce: with  [31m[redacted]
`
	if got := string(read(t, d.File(LogFile))); got != want {
		t.Errorf("run.log is\n%s\nwant\n%s", got, want)
	}
	want = `{"t":"2026-07-14T10:00:00.250+02:00","mono":0.25,"attempt":1,"kind":"throttle.start","level":"warn","msg":"91 C","data":{"id":"t1","temp_c":91}}
{"t":"2026-07-14T10:00:01.000+02:00","mono":1,"attempt":0,"kind":"rung.announce","level":"info","msg":"with  [31m[redacted]"}
`
	if got := string(read(t, d.File(EventsFile))); got != want {
		t.Errorf("events.jsonl is\n%s\nwant\n%s", got, want)
	}
	if len(seen) != 2 || seen[0].Label != "thermal-throttle start" {
		t.Errorf("the subscriber saw %v", seen)
	}
	if info, err := os.Stat(d.File(LogFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of run.log: %v, %v", info.Mode(), err)
	}
}

func TestEventIsOnDiskAtOnce(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	l := openTestLog(t, d, clock.Start())
	l.Event(event.Event{Kind: event.Hang, Msg: "no output"})
	eventually(t, "the event in the file", func() bool {
		b, _ := os.ReadFile(d.File(EventsFile))
		return bytes.Contains(b, []byte(`"msg":"no output"`))
	})
}

func TestEventSurvivesDataThatIsNoJSON(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	l := openTestLog(t, d, clock.Start())
	l.Event(event.Event{Kind: event.Divergence, Msg: "m", Data: map[string]any{
		"loss": math.NaN(), "c": make(chan int), "ok": 1.5,
	}})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got := decodeLines(t, read(t, d.File(EventsFile)))
	data, _ := got[0]["data"].(map[string]any)
	if v, has := data["loss"]; !has || v != nil {
		t.Errorf("loss is %v, want null", v)
	}
	if data["ok"] != 1.5 {
		t.Errorf("ok is %v", data["ok"])
	}
}

// A line older than the window is written without waiting for the end.
func TestRunLogIsWrittenWhileRunning(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	clk := clock.Start()
	l := openTestLog(t, d, clk)
	l.Line(clk.Now().Add(-3*time.Second), []byte("old"))
	l.Line(clk.Now().Add(time.Minute), []byte("young"))
	eventually(t, "the old line in the file", func() bool {
		b, _ := os.ReadFile(d.File(LogFile))
		return bytes.Contains(b, []byte("| old\n"))
	})
	if b := read(t, d.File(LogFile)); bytes.Contains(b, []byte("young")) {
		t.Error("a line inside the window was written before its time")
	}
}

func TestLogIsCarriedOnAfterACrash(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	clk := clock.Start()
	newest := clk.Now().Add(time.Hour)
	before := clock.Format(newest) + " | whole\n" + clock.Format(newest)[:9]
	if err := os.WriteFile(d.File(LogFile), []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.File(EventsFile), []byte(`{"kind":"a"}`+"\n"+`{"kin`), 0o600); err != nil {
		t.Fatal(err)
	}
	l := openTestLog(t, d, clk)
	l.Line(clk.Now(), []byte("after"))
	l.Event(event.Event{Kind: event.RunAdopt, Msg: "taken over"})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	want := before + "\n" + clock.Format(newest) + " | after\n" + clock.Format(newest) + " # run.adopt: taken over\n"
	if got := string(read(t, d.File(LogFile))); got != want {
		t.Errorf("run.log is\n%s\nwant\n%s", got, want)
	}
	lines := strings.Split(string(read(t, d.File(EventsFile))), "\n")
	if len(lines) != 4 || lines[1] != `{"kin` || !strings.Contains(lines[2], "taken over") {
		t.Errorf("events.jsonl is %q", lines)
	}
}

// Many writers at once, some late: sorted, whole, nothing lost. The volume is
// above what the window holds, so that it is flushed early too.
func TestLogUnderLoad(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	clk := clock.Start()
	l := openTestLog(t, d, clk)
	const writers, each = 4, 20000
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				at := clk.Now().Add(-time.Duration(i%100) * time.Millisecond)
				l.Line(at, fmt.Appendf(nil, "writer %d line %d, with some more text to make the volume", w, i))
				if i%5000 == 0 {
					l.Event(event.Event{T: at, Kind: event.Checkpoint, Msg: fmt.Sprintf("writer %d at %d", w, i)})
				}
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	data := read(t, d.File(LogFile))
	checkSorted(t, data, clk.Wall.Location())
	notes := each / 5000 * writers
	if n := bytes.Count(data, []byte("\n")); n != writers*each+notes {
		t.Errorf("%d lines, want %d", n, writers*each+notes)
	}
	if n := len(decodeLines(t, read(t, d.File(EventsFile)))); n != notes {
		t.Errorf("%d events, want %d", n, notes)
	}
}

func TestLogRotates(t *testing.T) {
	t.Parallel()
	zone := time.UTC
	path := filepath.Join(t.TempDir(), LogFile)
	// A file of that name that is there already must survive.
	if err := os.WriteFile(path+".1", []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	lf, _, err := openLogFile(path, zone)
	if err != nil {
		t.Fatal(err)
	}
	lf.rotate = 100
	line := []byte("2026/07/14 10:00:00.123 | " + strings.Repeat("x", 73) + "\n")
	for range 3 {
		if err := lf.append(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := lf.close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		path + ".1": "kept", path + ".2": string(line), path + ".3": string(line), path: string(line),
	} {
		if got := string(read(t, name)); got != want {
			t.Errorf("%s has %q, want %q", filepath.Base(name), got, want)
		}
	}
}

// The disk takes half a line and then nothing for a while: the line is finished
// first, notes are kept, and the child's lines that were dropped are counted.
func TestLogFileNeverTearsALine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), LogFile)
	lf, _, err := openLogFile(path, time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	lf.now = func() time.Time { return now }
	room := 40
	lf.write = func(f *os.File, b []byte) (int, error) {
		n, err := f.Write(b[:min(room, len(b))])
		if room -= n; err == nil && n < len(b) {
			err = unix.ENOSPC
		}
		return n, err
	}
	const stamp = "2026/07/14 10:00:00.123"
	if err := lf.append([]byte(stamp + " | aaaaaaaaaa\n" + stamp + " | bbbb\n" + stamp + " # note: 1\n")); !noSpace(err) {
		t.Fatalf("got %v", err)
	}
	// Not tried again at once, and only notes are kept.
	if err := lf.append([]byte(stamp + " | cccc\n" + stamp + " # note: 2\n")); err == nil {
		t.Fatal("no error while the disk is full")
	}
	now = now.Add(2 * retryAfter)
	room = 3 // a little came free, too little
	if err := lf.append(nil); !noSpace(err) {
		t.Fatalf("got %v", err)
	}
	now = now.Add(2 * retryAfter)
	room = 1 << 20
	if err := lf.append([]byte(stamp + " | dddd\n")); err != nil {
		t.Fatal(err)
	}
	if n := lf.missing(); n != 1 {
		t.Errorf("%d lines missing, want 1", n)
	}
	if err := lf.close(); err != nil {
		t.Fatal(err)
	}
	want := stamp + " | aaaaaaaaaa\n" + stamp + " | bbbb\n" + stamp + " # note: 1\n" + stamp + " # note: 2\n" + stamp + " | dddd\n"
	if got := string(read(t, path)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFullDiskKeepsEvents(t *testing.T) {
	t.Parallel()
	dir := mountTmpfs(t, "size=4m", 0)
	d := &Dir{Path: dir, ID: "x"}
	clk := clock.Start()
	l := openTestLog(t, d, clk)
	var mu sync.Mutex
	told := 0
	l.Subscribe(func(e event.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind == event.DiskFull {
			told++
		}
	})
	old := func() time.Time { return clk.Now().Add(-2 * reorderWindow) }
	l.Line(old(), []byte("before"))
	l.Event(event.Event{T: old(), Kind: event.AttemptStart, Msg: "before"})
	eventually(t, "the first lines", func() bool {
		a, _ := os.ReadFile(d.File(LogFile))
		b, _ := os.ReadFile(d.File(EventsFile))
		return len(a) > 0 && len(b) > 0
	})

	free := fillDisk(t, dir)
	// More than a page, which the file may still have room for.
	for i := range 200 {
		l.Line(old(), []byte(strings.Repeat("lost ", 100)))
		l.Event(event.Event{T: old(), Kind: event.Checkpoint, Msg: fmt.Sprintf("number %d", i)})
	}
	eventually(t, "the disk.full event", func() bool { mu.Lock(); defer mu.Unlock(); return told > 0 })
	l.mu.Lock()
	beat := l.beat
	l.mu.Unlock()
	eventually(t, "run.log to have tried", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.beat > beat+1 })
	free()
	l.Event(event.Event{T: old(), Kind: event.AttemptEnd, Msg: "after"})
	eventually(t, "writing to go on", func() bool {
		a, _ := os.ReadFile(d.File(LogFile))
		b, _ := os.ReadFile(d.File(EventsFile))
		return bytes.Contains(a, []byte("lines are missing above")) && bytes.Contains(b, []byte(`"after"`))
	})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if told != 1 {
		t.Errorf("disk.full was told %d times", told)
	}
	log := read(t, d.File(LogFile))
	checkSorted(t, log, clk.Wall.Location())
	events := decodeLines(t, read(t, d.File(EventsFile)))
	if want := 1 + 200 + 1 + 1; len(events) != want {
		t.Errorf("%d events on the disk, want %d", len(events), want)
	}
	if n := bytes.Count(log, []byte(" # checkpoint: ")); n != 200 {
		t.Errorf("%d checkpoint notes in run.log, want 200", n)
	}
}

func TestLinesAreLeftOutWhenSpaceIsShort(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	clk := clock.Start()
	l := openTestLog(t, d, clk)
	l.SetMinFree(1 << 62)
	l.Line(clk.Now().Add(-time.Minute), []byte("left out"))
	l.Event(event.Event{T: clk.Now().Add(-time.Minute), Kind: event.Checkpoint, Msg: "kept"})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got := string(read(t, d.File(LogFile)))
	if strings.Contains(got, "left out") || !strings.Contains(got, "kept") {
		t.Errorf("run.log is %q", got)
	}
	if !strings.Contains(string(read(t, d.File(EventsFile))), string(event.DiskFull)) {
		t.Error("nobody was told")
	}
}

// A disk that hangs in write holds Line up for a bounded time only, and Event not
// at all.
func TestHungDiskHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	clk := clock.Start()
	l := openTestLog(t, d, clk)
	release := make(chan struct{})
	entered := make(chan struct{})
	var once sync.Once
	l.mu.Lock() // the writer looks at file.write only after it has had mu
	l.file.write = func(f *os.File, b []byte) (int, error) {
		once.Do(func() { close(entered) })
		<-release
		return f.Write(b)
	}
	l.mu.Unlock()
	l.Line(clk.Now().Add(-time.Minute), []byte("stuck"))
	<-entered
	text := bytes.Repeat([]byte("x"), 64<<10)
	began := time.Now()
	n := 2*windowMax/len(text) + 2
	for range n {
		l.Line(clk.Now(), text)
	}
	took := time.Since(began)
	if took < lineWait || took > 3*lineWait {
		t.Errorf("the lines took %s, want about %s once", took, lineWait)
	}
	began = time.Now()
	l.Event(event.Event{Kind: event.Hang, Msg: "still told"})
	if took := time.Since(began); took > time.Second {
		t.Errorf("an event took %s", took)
	}
	close(release)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got := read(t, d.File(LogFile))
	checkSorted(t, got, clk.Wall.Location())
	kept := bytes.Count(got, []byte(" | xx"))
	if want := fmt.Sprintf("%d lines are missing above", n-kept); !bytes.Contains(got, []byte(want)) {
		t.Errorf("%d of %d lines are there, and run.log does not say %q", kept, n, want)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	start := time.Date(2026, 7, 14, 10, 0, 0, 0, time.FixedZone("CEST", 7200))
	clk := clock.Restore(start, clock.Boottime())
	p, err := OpenProgress(d, clk)
	if err != nil {
		t.Fatal(err)
	}
	num := sample.Known
	p.Add(Step{T: start, Attempt: 1, Step: num(340), Loss: num(0.812), LR: num(1.8e-4), MemGB: num(71), TempC: num(68)})
	p.Add(Step{T: start.UTC(), Attempt: 2, Step: num(341), Loss: num(math.NaN()), Tokens: num(1e6), StepTimeS: num(2.5), TokensPerS: num(4000), EtaS: num(90)})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p.Add(Step{Step: num(342)}) // late: ignored
	want := `{"step":340,"loss":0.812,"lr":0.00018,"mem_gb":71,"temp_c":68,"t":"2026-07-14T10:00:00.000+02:00","attempt":1}
{"step":341,"t":"2026-07-14T10:00:00.000+02:00","attempt":2,"tokens":1000000,"step_time_s":2.5,"tokens_per_s":4000,"eta_s":90}
`
	if got := string(read(t, d.File(ProgressFile))); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func BenchmarkLine(b *testing.B) {
	root := b.TempDir()
	l, err := OpenLog(&Dir{Path: root, ID: "x"}, clock.Start())
	if err != nil {
		b.Fatal(err)
	}
	text := bytes.Repeat([]byte("x"), 79)
	clk := l.clk
	b.SetBytes(int64(len(text) + 1))
	at := clk.Now()
	for i := 0; b.Loop(); i++ {
		if i%4096 == 0 {
			at = clk.Now()
		}
		l.Line(at, text)
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}
