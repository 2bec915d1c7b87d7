package runlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sparkrun/internal/sample"
)

func pacePlaces(t *testing.T) Places {
	t.Helper()
	state := t.TempDir()
	return Places{Getenv: func(n string) string { return map[string]string{"XDG_STATE_HOME": state}[n] }, Cwd: t.TempDir()}
}

func paceRun(n int) PaceRun {
	return PaceRun{ID: fmt.Sprintf("20260714-2200%02d-train-0000", n), T: time.Unix(int64(n), 0).UTC(), StepTimeS: sample.Known(1 + float64(n)), Steps: 100}
}

func TestPaceIsKeptByJob(t *testing.T) {
	t.Parallel()
	p := pacePlaces(t)
	a, b := PaceKey{"model": "a", "seq_len": "4096"}, PaceKey{"model": "a", "seq_len": "2048"}
	if runs, err := p.PaceRuns(a); runs != nil || err != nil {
		t.Fatalf("%v %v before there is anything", runs, err)
	}
	for n := range 25 {
		if err := p.AddPace(a, paceRun(n)); err != nil {
			t.Fatal(err)
		}
	}
	tokens := PaceRun{ID: "x", TokensPerS: sample.Known(5000), Steps: 60}
	if err := p.AddPace(b, tokens); err != nil {
		t.Fatal(err)
	}
	runs, err := p.PaceRuns(PaceKey{"seq_len": "4096", "model": "a"})
	if err != nil || len(runs) != PaceRunsKept || runs[0].StepTimeS.V != 6 || runs[19].StepTimeS.V != 25 {
		t.Errorf("%v %v", runs, err)
	}
	// A run that ends twice (it was taken over) counts once.
	if err := p.AddPace(b, tokens); err != nil {
		t.Fatal(err)
	}
	if runs, err := p.PaceRuns(b); err != nil || len(runs) != 1 || runs[0].TokensPerS.V != 5000 || runs[0].StepTimeS.OK {
		t.Errorf("%v %v", runs, err)
	}
	info, err := os.Stat(filepath.Join(p.paceDir(), a.name()))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

func TestBadPaceFiles(t *testing.T) {
	t.Parallel()
	key := PaceKey{"model": "a"}
	good := `{"schema":"sparkrun.pace/1","key":{"model":"a"},"runs":[{"id":"x","t":"2026-07-14T00:00:00Z","step_time_s":2,"tokens_per_s":null,"steps":60}]}`
	for name, c := range map[string]struct {
		text string
		err  string
		// kept: adding a run leaves the file alone.
		kept bool
	}{
		"torn":            {good[:60], "unexpected end", false},
		"empty":           {"", "unexpected end", false},
		"no json":         {"\x00\x00\x00\x00", "invalid character", false},
		"a later version": {strings.Replace(good, "pace/1", "pace/2", 1), `schema "sparkrun.pace/2", this version reads "sparkrun.pace/1"`, true},
		"another job":     {strings.Replace(good, `"a"`, `"b"`, 1), "about another job", false},
		"a word":          {strings.Replace(good, ":2,", `:"fast",`, 1), "is no number", false},
	} {
		p := pacePlaces(t)
		path := filepath.Join(p.paceDir(), key.name())
		if err := os.MkdirAll(p.paceDir(), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if runs, err := p.PaceRuns(key); runs != nil || err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %v; want %q", name, runs, err, c.err)
		}
		err := p.AddPace(key, paceRun(1))
		if c.kept != errors.Is(err, ErrOtherPace) || !c.kept && err != nil {
			t.Errorf("%s: adding: %v", name, err)
		}
		now, errRead := os.ReadFile(path)
		if errRead != nil || c.kept != (string(now) == c.text) {
			t.Errorf("%s: the file is now %q (%v)", name, now, errRead)
		}
		if runs, _ := p.PaceRuns(key); !c.kept && len(runs) != 1 {
			t.Errorf("%s: %v after adding one", name, runs)
		}
	}
	// Figures that are none are as good as missing.
	p := pacePlaces(t)
	if err := os.MkdirAll(p.paceDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"0", "-1", "null"} {
		if err := os.WriteFile(filepath.Join(p.paceDir(), key.name()), []byte(strings.Replace(good, ":2,", ":"+v+",", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if runs, err := p.PaceRuns(key); len(runs) != 0 || err != nil {
			t.Errorf("%s: %v %v", v, runs, err)
		}
	}
}

func TestPaceWhereNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	p := pacePlaces(t)
	key := PaceKey{"model": "a"}
	// A file where the folder should be: root may write everywhere else.
	if err := os.MkdirAll(filepath.Dir(p.paceDir()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.paceDir(), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.PaceRuns(key); err == nil {
		t.Error("read without an error")
	}
	if err := p.AddPace(key, paceRun(1)); err == nil {
		t.Error("written without an error")
	}
	if b, _ := os.ReadFile(p.paceDir()); string(b) != "mine" {
		t.Errorf("the file is now %q", b)
	}
	// A folder in the file's place.
	p = pacePlaces(t)
	if err := os.MkdirAll(filepath.Join(p.paceDir(), key.name(), "mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.AddPace(key, paceRun(1)); err == nil {
		t.Error("a folder was written over")
	}
}

func TestPaceOfRunsThatEndTogether(t *testing.T) {
	t.Parallel()
	p := pacePlaces(t)
	key := PaceKey{"model": "a"}
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	readers.Add(1)
	go func() {
		defer readers.Done()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := p.PaceRuns(key); err != nil {
				t.Errorf("half a file was seen: %v", err)
				return
			}
		}
	}()
	for n := range 12 {
		writers.Add(1)
		go func() {
			defer writers.Done()
			if err := p.AddPace(key, paceRun(n)); err != nil {
				t.Error(err)
			}
		}()
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	runs, err := p.PaceRuns(key)
	if err != nil || len(runs) == 0 {
		t.Fatalf("%v %v", runs, err)
	}
	names, err := os.ReadDir(p.paceDir())
	if err != nil || len(names) != 2 { // the file and the lock
		t.Errorf("left behind: %v %v", names, err)
	}
}

func TestPaceOfManyJobs(t *testing.T) {
	t.Parallel()
	p := pacePlaces(t)
	dir := p.paceDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-1000 * time.Hour)
	put := func(name string, t0 time.Time) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, t0, t0); err != nil {
			t.Fatal(err)
		}
	}
	for n := range paceJobsKept + 3 {
		put(PaceKey{"n": fmt.Sprint(n)}.name(), long.Add(time.Duration(n)*time.Minute))
	}
	put("notes.txt", long)
	put("."+PaceKey{"torn": "1"}.name()+"-123", long)
	if err := p.AddPace(PaceKey{"model": "a"}, paceRun(1)); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]bool{0: false, 3: false, 4: true, paceJobsKept + 2: true} {
		_, err := os.Stat(filepath.Join(dir, PaceKey{"n": fmt.Sprint(n)}.name()))
		if (err == nil) != want {
			t.Errorf("job %d is there: %v, want %v", n, err == nil, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "notes.txt")); err != nil {
		t.Error("a file that is not ours was removed")
	}
	if list, _ := filepath.Glob(filepath.Join(dir, ".*-123")); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
	if runs, err := p.PaceRuns(PaceKey{"model": "a"}); err != nil || len(runs) != 1 {
		t.Errorf("%v %v", runs, err)
	}
}
