package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/sampler/throttle"
	"sparkrun/supervisor/acting"
	"sparkrun/supervisor/runlog"
)

// smiScript is an nvidia-smi for a test, in a folder of its own.
func smiScript(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-smi")
	writeProgram(t, path, "#!/bin/sh\n"+body+"\n")
	return path
}

func TestNvidiaSMI(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		body, said, err string
		refused         bool
	}{
		"does it":         {`echo "GPU clocks set to $1 $2"; echo "All done."`, "GPU clocks set to -lgc 300,2000 All done.", "", false},
		"refuses":         {"echo The current user does not have permission; exit 4", "", "nvidia-smi refuses (status 4): The current user does not have permission", true},
		"says nothing":    {"exit 3", "", "nvidia-smi refuses (status 3): it says nothing", true},
		"dies":            {"kill -SEGV $$", "", "nvidia-smi refuses (SIGSEGV)", true},
		"talks too much":  {"yes y | head -c 1000000", "y y y", "", false},
		"leaves a daemon": {"sleep 30 & echo done", "done", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said, err := nvidiaSMI(t.Context(), smiScript(t, tt.body), 20*time.Second, "-lgc", "300,2000")
			if tt.err == "" && (err != nil || !strings.HasPrefix(said, tt.said) || len(said) > 210) {
				t.Errorf("%q, %v", said, err)
			}
			if tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("%q, %v", said, err)
			}
			var refused *smiRefused
			if errors.As(err, &refused) != tt.refused {
				t.Errorf("refused is not %v: %v", tt.refused, err)
			}
		})
	}
}

// One that hangs is killed with all that it has started.
func TestNvidiaSMIHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	exe := smiScript(t, "sleep 600 & echo $! >"+dir+"/new; mv "+dir+"/new "+dir+"/child; wait")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for !exists(filepath.Join(dir, "child")) {
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
	}()
	start := time.Now()
	_, err := nvidiaSMI(ctx, exe, time.Minute, "-rgc")
	var refused *smiRefused
	if err == nil || errors.As(err, &refused) || time.Since(start) > 20*time.Second {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "child"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); !isGone(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d of nvidia-smi lives on", pid)
		}
	}
	if _, err := nvidiaSMI(t.Context(), exe, 50*time.Millisecond, "-rgc"); err == nil || !strings.Contains(err.Error(), "in time") {
		t.Errorf("its limit: %v", err)
	}
	if _, err := nvidiaSMI(t.Context(), filepath.Join(dir, "none"), time.Second, "-rgc"); !errors.As(err, &refused) {
		t.Errorf("one that is not there: %v", err)
	}
}

// isGone says that a process is no more, or only waits to be reaped by somebody else.
func isGone(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(b), ") Z ")
}

func TestCanCapClocks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mhz, euid int
		why       string
	}{
		{2000, 1000, "needs root"}, {500, 0, "below 600"}, {2412, 0, "above 2411"},
	} {
		if exe, why := canCapClocks(tt.mhz, tt.euid); !strings.Contains(why, tt.why) || exe != "" {
			t.Errorf("%d MHz as %d: %q %q", tt.mhz, tt.euid, exe, why)
		}
	}
}

func TestClockLeases(t *testing.T) {
	t.Parallel()
	f := clockFolder{filepath.Join(t.TempDir(), "state", "clocks")}
	if f.any() || f.find() != nil {
		t.Fatal("leases in no folder")
	}
	unlock, err := f.lock(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.lock(t.Context(), 10*time.Millisecond); err == nil {
		t.Fatal("two at once")
	}
	unlock()
	if unlock, err = f.lock(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if f.any() {
		t.Fatal("the lock is taken for a lease")
	}

	want := acting.Lease{Schema: acting.LeaseSchema, Run: "r1", PID: 7, Boot: "b", MHz: 2000, T: "t"}
	held, err := f.take(want)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.find(); len(got) != 1 || !got[0].Live || got[0].Broken || got[0].Lease != want {
		t.Errorf("held: %+v", got)
	}
	if got := f.findBut("r1"); len(got) != 0 {
		t.Errorf("but its own: %+v", got)
	}
	if second, err := f.take(want); err == nil {
		second.Close()
		t.Error("a lease was taken twice")
	}
	held.Close() // as the kernel does when its process is gone
	if got := f.find(); len(got) != 1 || got[0].Live || got[0].Lease != want {
		t.Errorf("left: %+v", got)
	}
	// Torn by a crash of the machine; no lease of ours; a link to somebody's file.
	own := filepath.Join(t.TempDir(), "own.json")
	for name, text := range map[string]string{filepath.Join(f.dir, "torn.json"): `{"schema":"spark`, filepath.Join(f.dir, "other.json"): `{"schema":"x","run":"y"}`, own: "{}"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(own, filepath.Join(f.dir, "link.json")); err != nil {
		t.Fatal(err)
	}
	broken := 0
	for _, l := range f.find() {
		if l.Broken {
			broken++
			if l.Lease != (acting.Lease{}) {
				t.Errorf("something is believed of it: %+v", l)
			}
		}
	}
	if broken != 2 {
		t.Errorf("%d are broken: %+v", broken, f.find())
	}
}

// toldOf collects what a run tells.
type toldOf struct {
	mu  sync.Mutex
	all []event.Event
}

func (l *toldOf) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, e := range l.all {
		out = append(out, string(e.Level)+" "+e.Msg)
	}
	return strings.Join(out, "\n")
}

// coolRun is a run with what a clock cap needs, whose state lies in a folder.
func coolRun(t *testing.T, state string) (*run, *toldOf) {
	t.Helper()
	dir := &runlog.Dir{Path: t.TempDir(), ID: "20260101-000000-x-beef"}
	log, err := runlog.OpenLog(dir, clock.Start())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	heat, err := throttle.Load()
	if err != nil {
		t.Fatal(err)
	}
	seen := &toldOf{}
	log.Subscribe(func(e event.Event) {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		seen.all = append(seen.all, e)
	})
	return &run{
		log: log, diag: hclog.NewNullLogger(), dir: dir, clk: clock.Start(), detector: throttle.New(heat),
		places: runlog.Places{Home: state, Getenv: func(n string) string { return map[string]string{"XDG_STATE_HOME": state}[n] }},
	}, seen
}

func coolClocks(t *testing.T, r *run, exe string) *capClocks {
	t.Helper()
	c := &capClocks{r: r, mhz: 1800, exe: exe, folder: r.clockFolder(), limit: undoLimit}
	c.device = func() (sample.Device, error) { return sample.Device{Source: "nvml", Count: 1}, nil }
	c.life, c.giveUp = context.WithCancel(t.Context())
	t.Cleanup(c.giveUp)
	return c
}

// calls are those that were written down.
func calls(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.ReplaceAll(strings.TrimSpace(string(b)), "\n", "; ")
}

func TestCapClocksIsUndone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		body        string
		calls       string
		left        int // leases after the end
		says, noted string
	}{
		"as it should be":        {"", "-lgc 300,1800; -rgc", 0, "is capped at 1800 MHz (it worked at 2300)", "is free again"},
		"refused":                {"[ $1 = -rgc ] || exit 4", "-lgc 300,1800", 0, "could not be capped at 1800 MHz", ""},
		"cannot be freed":        {"[ $1 = -lgc ] || exit 4", "-lgc 300,1800; -rgc", 1, "is capped at 1800", "error the GPU's clock is still capped at 1800 MHz: nvidia-smi refuses (status 4)"},
		"may be set, may not be": {"[ $1 = -rgc ] || { exec sleep 600; }", "-lgc 300,1800; -rgc", 0, "did not end in time", "is free again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "calls")
			r, seen := coolRun(t, t.TempDir())
			c := coolClocks(t, r, smiScript(t, "echo $* >>"+log+"\n"+tt.body))
			set := make(chan struct{})
			go func() {
				defer close(set)
				c.set("thermal throttling came back (2 times)", 2300)
			}()
			if strings.Contains(tt.body, "sleep 600") {
				// The end of the run comes while it hangs.
				for calls(t, log) == "" {
					time.Sleep(5 * time.Millisecond)
				}
			} else {
				<-set
			}
			start := time.Now()
			c.stop()
			<-set
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("the end took %v", took)
			}
			if got := calls(t, log); got != tt.calls {
				t.Errorf("nvidia-smi was called: %s", got)
			}
			left := c.folder.find()
			if len(left) != tt.left {
				t.Errorf("leases %+v", left)
			}
			if len(left) > 0 && !acting.Restore(left, bootID()).Lift {
				t.Error("the next start would not free it")
			}
			for _, want := range []string{tt.says, tt.noted} {
				if !strings.Contains(seen.text(), want) {
					t.Errorf("nothing is said of %q: %s", want, seen.text())
				}
			}
			c.set("again", 2300)
			if got := calls(t, log); got != tt.calls {
				t.Errorf("after the end nvidia-smi was called: %s", got)
			}
		})
	}
}

// Two runs at once: the lower cap is in force, and the last one frees the clocks.
func TestCapClocksOfTwoRuns(t *testing.T) {
	t.Parallel()
	state, log := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	exe := smiScript(t, "echo $* >>"+log)
	r1, _ := coolRun(t, state)
	r2, seen := coolRun(t, state)
	r2.dir.ID = "20260101-000000-y-cafe"
	first, second := coolClocks(t, r1, exe), coolClocks(t, r2, exe)
	first.mhz = 1700
	first.set("hot", 2300)
	second.set("hot", 2300)
	if got := calls(t, log); got != "-lgc 300,1700" || !strings.Contains(seen.text(), "another run has capped it at 1700 MHz") {
		t.Errorf("calls %s; %s", got, seen.text())
	}
	first.stop()
	if got := calls(t, log); got != "-lgc 300,1700; -lgc 300,1800" {
		t.Errorf("not left as the other one asks for it: %s", got)
	}
	r1.restoreClocks(t.Context())
	second.stop()
	if got := calls(t, log); got != "-lgc 300,1700; -lgc 300,1800; -rgc" || second.folder.any() {
		t.Errorf("calls %s, leases %v", got, second.folder.find())
	}
}

// One of two runs has set the lower cap and ends first: the other one's is set then.
func TestCapClocksAreLeftAsAskedFor(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		body, calls, says string
		inForce           int64
	}{
		"set":     {"", "-lgc 300,1800; -lgc 300,1500; -lgc 300,1800", "the clock stays capped for run", 1800},
		"refused": {`[ "$*" != "-lgc 300,1800" ] || [ ! -e $0.later ] || exit 4`, "-lgc 300,1800; -lgc 300,1500; -lgc 300,1800", "stays capped at 1500 MHz, although run", 1500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state, log := t.TempDir(), filepath.Join(t.TempDir(), "calls")
			exe := smiScript(t, "echo $* >>"+log+"\n"+tt.body)
			r1, _ := coolRun(t, state)
			r2, seen := coolRun(t, state)
			r2.dir.ID = "20260101-000000-y-cafe"
			first, second := coolClocks(t, r1, exe), coolClocks(t, r2, exe)
			second.mhz = 1500
			first.set("hot", 2300)
			second.set("hot", 2300)
			if err := os.WriteFile(exe+".later", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			second.stop()
			r1.lookCaps()
			if got := calls(t, log); got != tt.calls || !strings.Contains(seen.text(), tt.says) || r1.caps.mhz.Load() != tt.inForce {
				t.Errorf("calls %s, in force %d; %s", got, r1.caps.mhz.Load(), seen.text())
			}
			first.stop()
			if got := calls(t, log); got != tt.calls+"; -rgc" || first.folder.any() {
				t.Errorf("calls %s, leases %+v", got, first.folder.find())
			}
		})
	}
}

// deadLease leaves one of a run that is gone.
func deadLease(t *testing.T, f clockFolder, name string, l acting.Lease) {
	t.Helper()
	b, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.dir, name+leaseSuffix), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// What a run that died has left is undone with the cap of one that lives, and costs no call
// of its own later, which would lift a lock of the user's.
func TestCapClocksUndoesWhatOthersLeft(t *testing.T) {
	t.Parallel()
	dead := acting.Lease{Schema: acting.LeaseSchema, Run: "dead", Boot: bootID(), MHz: 900}
	for name, tt := range map[string]struct {
		body                 string
		before               bool // it lies there before the cap, or comes after it
		calls                string
		afterSet, afterwards int // leases
	}{
		"before":             {"", true, "-lgc 300,1800; -rgc", 1, 0},
		"after":              {"", false, "-lgc 300,1800; -rgc", 2, 0},
		"cap refused":        {"[ $1 != -lgc ] || exit 4", true, "-lgc 300,1800", 1, 1},
		"cannot be set free": {"[ $1 != -rgc ] || exit 4", false, "-lgc 300,1800; -rgc", 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "calls")
			r, _ := coolRun(t, t.TempDir())
			c := coolClocks(t, r, smiScript(t, "echo $* >>"+log+"\n"+tt.body))
			if tt.before {
				deadLease(t, c.folder, "dead", dead)
			}
			c.set("hot", 2300)
			if !tt.before {
				deadLease(t, c.folder, "dead", dead)
			}
			if n := len(c.folder.find()); n != tt.afterSet {
				t.Errorf("%d leases beside the cap", n)
			}
			c.stop()
			if got, n := calls(t, log), len(c.folder.find()); got != tt.calls || n != tt.afterwards {
				t.Errorf("calls %s, %d leases", got, n)
			}
		})
	}
}

// Where it is not known that there is one GPU alone, nothing is called.
func TestCapClocksForOneGPU(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		d    sample.Device
		err  error
		says string
	}{
		"two":                 {sample.Device{Source: "nvml", Count: 2}, nil, "there are 2 GPUs"},
		"not in time":         {sample.Device{Source: "none"}, context.DeadlineExceeded, "how many GPUs there are is not known"},
		"none":                {sample.Device{Source: "none"}, nil, "how many GPUs there are is not known"},
		"one asked of others": {sample.Device{Source: "nvidia-smi", Count: 1}, nil, "how many GPUs there are is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "calls")
			r, seen := coolRun(t, t.TempDir())
			c := coolClocks(t, r, smiScript(t, "echo $* >>"+log))
			c.device = func() (sample.Device, error) { return tt.d, tt.err }
			c.set("hot", 2300)
			c.stop()
			if got := calls(t, log); got != "" || !strings.Contains(seen.text(), tt.says) || c.folder.any() {
				t.Errorf("calls %q; %s", got, seen.text())
			}
		})
	}
	r, _ := coolRun(t, t.TempDir())
	if _, err := coolClocks(t, r, "").askDevice(); err == nil {
		t.Error("GPUs were counted without any sampling")
	}
}

// Whatever holds up the end of it: the last word is that the clock is free, or that it is not.
func TestCapClocksLastWord(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		capped bool
		says   string
	}{
		"capped": {true, "error the GPU's clock is still capped at 1800 MHz: setting it free was not done after"},
		"never":  {false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "calls")
			r, seen := coolRun(t, t.TempDir())
			c := coolClocks(t, r, smiScript(t, "echo $* >>"+log))
			c.limit = 50 * time.Millisecond
			if tt.capped {
				c.set("hot", 2300)
			}
			before := seen.text()
			c.doing.Lock() // as a disk that hangs under somebody
			c.stop()
			if got := strings.TrimSpace(strings.TrimPrefix(seen.text(), before)); !strings.HasPrefix(got, tt.says) || tt.says == "" && got != "" {
				t.Errorf("said %q", got)
			}
			c.doing.Unlock()
			for tt.capped && c.folder.any() { // late, but done
				time.Sleep(5 * time.Millisecond)
			}
			if strings.Contains(seen.text(), "free again") {
				t.Errorf("two last words: %s", seen.text())
			}
		})
	}
}

// A disk that takes nothing, no throttling, or a single reading: nothing is
// called.
func TestCapClocksIsNotSet(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "calls")
	exe := smiScript(t, "echo $* >>"+log)
	r, seen := coolRun(t, t.TempDir())
	c := coolClocks(t, r, exe)
	if err := os.MkdirAll(r.stateDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.folder.dir, nil, 0o600); err != nil { // a file where the folder would be
		t.Fatal(err)
	}
	c.set("hot", 2300)
	c.stop()
	if got := calls(t, log); got != "" || !strings.Contains(seen.text(), "could not be capped at 1800 MHz") {
		t.Errorf("calls %q; %s", got, seen.text())
	}

	r, seen = coolRun(t, t.TempDir())
	c = coolClocks(t, r, exe)
	warn := func(id string) event.Event {
		return event.Event{Kind: event.ThrottleStart, Level: event.Warn, Data: map[string]any{"type": "thermal-throttle", "id": id}}
	}
	s := &sample.Sample{T: time.Now()}
	c.sampled(s, []event.Event{warn("a"), warn("b")})
	c.sampled(s, []event.Event{warn("c")})
	c.stop()
	if got := calls(t, log); got != "" || strings.Count(seen.text(), "not known") != 1 {
		t.Errorf("calls %q; %s", got, seen.text())
	}
}

func TestRestoreClocks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("freeing clocks takes root")
	}
	log := filepath.Join(t.TempDir(), "calls")
	leave := func(r *run, l acting.Lease) clockFolder {
		f := clockFolder{filepath.Join(r.stateDir(), clocksDir)}
		if err := os.MkdirAll(f.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(f.dir, "dead.json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	dead := acting.Lease{Schema: acting.LeaseSchema, Run: "dead", Boot: bootID(), MHz: 1900}
	for name, tt := range map[string]struct {
		lease acting.Lease
		body  string // "" for no nvidia-smi at all
		calls string
		left  bool
		says  string
	}{
		"freed":         {dead, "true", "-rgc", false, "warn run dead died and left the GPU's clock capped at 1900 MHz; it is free again"},
		"refused":       {dead, "exit 4", "-rgc", true, "could not be set free: nvidia-smi refuses (status 4): it says nothing; do it by hand: sudo nvidia-smi -rgc"},
		"no nvidia-smi": {dead, "", "", true, "could not be set free: nvidia-smi not found"},
		"of before":     {acting.Lease{Schema: acting.LeaseSchema, Run: "dead", Boot: "another", MHz: 1900}, "true", "", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(log)
			path := t.TempDir()
			if tt.body != "" {
				path = filepath.Dir(smiScript(t, "echo $* >>"+log+"\n"+tt.body))
			}
			t.Setenv("PATH", path)
			r, seen := coolRun(t, t.TempDir())
			f := leave(r, tt.lease)
			r.restoreClocks(t.Context())
			if got := calls(t, log); got != tt.calls || f.any() != tt.left {
				t.Errorf("calls %q, leases %+v", got, f.find())
			}
			if got := seen.text(); tt.says == "" && got != "" || !strings.Contains(got, tt.says) {
				t.Errorf("said %q", got)
			}
		})
	}
	t.Run("nothing there", func(t *testing.T) {
		r, _ := coolRun(t, t.TempDir())
		r.restoreClocks(t.Context())
		if exists(r.stateDir()) {
			t.Error("something was made for it")
		}
	})
}
