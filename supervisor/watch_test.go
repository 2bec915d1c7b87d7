package supervisor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
)

func TestQuiet(t *testing.T) {
	t.Parallel()
	t0 := time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	type line struct {
		s                int
		advance, pending bool
	}
	tests := []struct {
		name   string
		lines  []line
		steps  []float64
		offset []int64 // what was printed by each look, one a minute from 0 on
		hung   int     // the look at which it counts as hung, -1 never
	}{
		{"nothing printed", nil, nil, []int64{0, 0, 0, 0, 0, 0}, -1},
		{"silence without an out-of-memory line", []line{{1, true, false}}, nil, []int64{9, 9, 9, 9, 9, 9}, -1},
		{"silence after one", []line{{1, true, false}, {2, false, true}}, nil, []int64{9, 9, 9, 9, 9, 9}, 4},
		{"a line without an end is output", []line{{2, false, true}}, nil, []int64{9, 9, 9, 10, 10, 10, 10}, 6},
		{"a step after it", []line{{2, false, true}, {3, true, false}}, nil, []int64{9, 9, 9, 9, 9, 9}, -1},
		{"the line was vetoed by another", []line{{2, false, true}, {3, false, false}}, nil, []int64{9, 9, 9, 9, 9, 9}, -1},
		{"slow steps take longer to count as hung", []line{{1, true, false}, {2, false, true}}, []float64{90, 100, 95, 2000}, []int64{9, 9, 9, 9, 9, 9, 9, 9}, 6},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var q quiet
			for _, l := range tt.lines {
				q.line(at(l.s), l.advance, l.pending)
			}
			for _, s := range tt.steps {
				q.step(sample.Known(s))
			}
			got := -1
			for i, off := range tt.offset {
				if hung, _ := oom.Hung(q.at(at(i*60), t0, off)); hung {
					got = i
					break
				}
			}
			if got != tt.hung {
				t.Errorf("hung at look %d, want %d", got, tt.hung)
			}
		})
	}
}

func TestQuietMedianForgetsTheFirstSteps(t *testing.T) {
	t.Parallel()
	var q quiet
	for range stepsKept {
		q.step(sample.Known(100))
	}
	for range stepsKept {
		q.step(sample.Known(1))
	}
	q.step(sample.Num{})
	q.step(sample.Known(-1))
	if m := q.at(time.Now(), time.Now(), 0).MedianStep; m != time.Second {
		t.Errorf("median %s, want 1s", m)
	}
}

func TestAddressLimitOfTheCommand(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		limit string
		want  sample.Num
	}{
		{"none", "unlimited", sample.Num{}},
		{"one", "4194304", sample.Known(4194304)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// Ready says that the limit is in force.
			cmd := exec.Command("sh", "-c", "ulimit -v "+tt.limit+" && echo ready && read x")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 16)); err != nil {
				t.Fatal(err)
			}
			var l limits
			l.read(cmd.Process.Pid)
			in.Close()
			_ = cmd.Wait()
			l.read(cmd.Process.Pid) // gone: what is known stays
			if got := l.addressKiB(); got != tt.want {
				t.Errorf("address limit %v, want %v", got, tt.want)
			}
		})
	}
}

func TestSpaceKeepsTheWorst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var s space
	s.lookDisks([]string{filepath.Join(dir, "missing")})
	if _, free := s.worst(); free.OK {
		t.Fatalf("free space %v of a folder that is not there", free)
	}
	s.lookDisks([]string{dir})
	_, before := s.worst()
	if !before.OK {
		t.Fatal("free space is not known")
	}
	// A file that is gone again by the time somebody asks.
	f, err := os.Create(filepath.Join(dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 64<<20); err != nil {
		t.Skipf("no fallocate on this file system: %v", err)
	}
	s.lookDisks([]string{dir})
	f.Close()
	os.Remove(f.Name())
	s.lookDisks([]string{dir})
	if _, worst := s.worst(); worst.V > before.V-60<<10 {
		t.Errorf("least free space %.0f KiB, want at least 60 MiB below %.0f", worst.V, before.V)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.watch(ctx, []string{dir}) // returns
	if shm, _ := s.worst(); !shm.OK {
		t.Error("the use of /dev/shm is not known")
	}
}

func TestTreeRemembersLifetimes(t *testing.T) {
	t.Parallel()
	t0 := time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
	a := &attempt{tree: map[int]oom.TreeProc{}, starts: map[int]uint64{}}
	see := func(s int, comm string, start uint64) {
		a.saw(proctree.Proc{PID: 7, Comm: comm, Start: start}, t0.Add(time.Duration(s)*time.Second))
	}
	see(0, "sh", 100)
	see(1, "python3", 100) // exec
	see(9, "python3", 100)
	if got, want := a.tree[7], (oom.TreeProc{Comm: "python3", First: t0, Last: t0.Add(9 * time.Second)}); got != want {
		t.Errorf("after exec: %v, want %v", got, want)
	}
	see(100, "python3", 10100) // the number came again
	if got, want := a.tree[7], (oom.TreeProc{Comm: "python3", First: t0.Add(100 * time.Second), Last: t0.Add(100 * time.Second)}); got != want {
		t.Errorf("used again: %v, want %v", got, want)
	}
}

func TestPeak(t *testing.T) {
	t.Parallel()
	a := &attempt{baseKiB: 100}
	if p := a.peakKiB(); p.OK {
		t.Errorf("peak %v without a sample", p)
	}
	for _, avail := range []float64{90, 30, 70} {
		a.sampled(&sample.Sample{MemAvailableKiB: sample.Known(avail)})
	}
	a.sampled(&sample.Sample{})
	if p := a.peakKiB(); p != sample.Known(70) {
		t.Errorf("peak %v, want 70", p)
	}
	// Somebody else gave memory back: nothing is known of the job's own use.
	b := &attempt{baseKiB: 100}
	b.sampled(&sample.Sample{MemAvailableKiB: sample.Known(120)})
	if p := b.peakKiB(); p.OK {
		t.Errorf("peak %v where more was left than before", p)
	}
}
