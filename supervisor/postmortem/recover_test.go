package postmortem

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/newprog"
	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
	"sparkrun/supervisor/runlog"
)

const otherBoot = "11111111-2222-3333-4444-555555555555"

// crashed says how a run is left behind.
type crashed struct {
	name, host, boot string
	state            runlog.State
	rows             []float64 // GiB left, one a second until the end
	output           string
	exit             string // exit.json
	argv             []string
	attempts         int  // -1 for none
	nulTail          bool // every file that was being written ends as a file system leaves it
	fresh            bool // written just now
}

// testPlaces are places of their own, with everything in a fresh folder.
func testPlaces(t *testing.T) runlog.Places {
	t.Helper()
	root := t.TempDir()
	p := runlog.Places{Home: filepath.Join(root, "home"), Cwd: filepath.Join(root, "project"), SocketRoot: root}
	for _, dir := range []string{p.Home, p.Cwd} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// leave makes a run directory as a crash leaves it an hour ago.
func leave(t *testing.T, p runlog.Places, c crashed) *runlog.Dir {
	t.Helper()
	if c.name == "" {
		c.name = "train"
	}
	if c.boot == "" {
		c.boot = otherBoot
	}
	if c.state == "" {
		c.state = runlog.StateRunning
	}
	if c.host == "" {
		c.host = thisMachine().host
	}
	if c.attempts == 0 {
		c.attempts = 1
	}
	if c.argv == nil {
		c.argv = []string{"python3", "train.py"}
	}
	wall := time.Now().Add(-2 * time.Hour).Truncate(time.Millisecond)
	clk := clock.Restore(wall, 50*time.Second)
	d, err := runlog.Create(p, "", c.name, wall)
	if err != nil {
		t.Fatal(err)
	}
	m := &runlog.Manifest{
		ID: d.ID, Name: c.name, Argv: c.argv, Cwd: p.Cwd, State: c.state,
		Host:  runlog.Host{Name: c.host, BootID: c.boot, MemTotalKiB: 120 * gibKiB},
		Start: runlog.StartOf(clk), SupervisorPID: 1 << 30, Version: "test",
		Pending: &runlog.Pending{Attempt: 1, Effect: "start"},
	}
	var rows []sample.Sample
	for i, avail := range c.rows {
		mono := time.Hour - time.Duration(len(c.rows)-1-i)*time.Second
		rows = append(rows, sample.Sample{
			T: wall.Add(mono), Mono: mono, Attempt: max(c.attempts, 0),
			Step: sample.Known(float64(100 + i)), MemAvailableKiB: sample.Known(avail * gibKiB),
		})
	}
	tail := ""
	if c.nulTail {
		tail = "2026-07-14T0" + strings.Repeat("\x00", 3000)
	}
	write(t, d.File("telemetry.csv"), append(csvOf(rows...), tail...))
	write(t, d.File(runlog.LogFile), []byte(clock.Format(wall)+" # run.start: begun\n"+tail))
	write(t, d.File(runlog.EventsFile), []byte(`{"t":"`+clock.Machine(wall)+`","kind":"run.start","msg":"begun"}`+"\n"+tail))
	for n := 1; n <= c.attempts; n++ {
		dir, err := d.MakeAttempt(n)
		if err != nil {
			t.Fatal(err)
		}
		log := filepath.Join(runlog.AttemptsDir, fmt.Sprint(n), "output.log")
		m.Attempts = append(m.Attempts, runlog.AttemptRecord{N: n, Log: log, Start: runlog.MomentOf(clk, wall.Add(time.Minute))})
		write(t, d.File(log), []byte(c.output+tail))
		if c.exit != "" && n == c.attempts {
			write(t, filepath.Join(dir, "exit.json"), []byte(c.exit))
		}
	}
	if err := d.Save(m); err != nil {
		t.Fatal(err)
	}
	if !c.fresh {
		age(t, d.Path)
	}
	return d
}

// age makes everything in a folder an hour old.
func age(t *testing.T, dir string) {
	t.Helper()
	then := time.Now().Add(-time.Hour)
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(path, then, then)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// recovered runs Recover with time enough for a loaded test machine.
func recovered(t *testing.T, p runlog.Places) []Recovered {
	t.Helper()
	m := thisMachine()
	m.wtmp = filepath.Join(t.TempDir(), "wtmp")
	return recoverOn(context.Background(), RecoverOptions{Places: p, look: 20 * time.Second}, m)
}

// noJournal leaves nothing on the PATH; fakeJournal puts a journalctl there.
func noJournal(t *testing.T) { t.Helper(); t.Setenv("PATH", t.TempDir()) }

func fakeJournal(t *testing.T, script string) (args string) {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("needs sh")
	}
	dir := t.TempDir()
	args = filepath.Join(dir, "args")
	path := filepath.Join(dir, "journalctl")
	write(t, path, []byte("#!"+sh+"\necho \"$@\" > "+args+"\n"+script))
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+filepath.Dir(sh))
	return args
}

const cleanJournal = `cat <<'X'
1783990000.100000 spark systemd[1]: Reached target shutdown.target - System Shutdown.
1783990000.200000 spark systemd-journald[411]: Journal stopped
X
`

const crashJournal = `cat <<'X'
1783990000.100000 spark kernel: usb 1-1: new device
1783990001.100000 spark CRON[99]: a job
X
`

const nvrmJournal = `cat <<'X'
1783990000.100000 spark kernel: NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)
X
`

func TestRecoverClassifies(t *testing.T) {
	for _, c := range []struct {
		name    string
		run     crashed
		journal string // "" for none
		what    string
		answer  oom.Answer
		text    string
	}{
		{"power loss", crashed{rows: []float64{61, 60, 61}}, crashJournal, PowerLoss, oom.Unsure, "lost power, was reset or froze"},
		{"power loss, no journal", crashed{rows: []float64{61, 60, 61}}, "", PowerLoss, oom.Unsure, "61.0 of 120.0 GiB"},
		{"low memory", crashed{rows: []float64{20, 9, 1.5}}, crashJournal, FreezeLowMemory, oom.OOM, "froze with low memory"},
		{"low memory, no journal", crashed{rows: []float64{20, 9, 1.5}}, "", FreezeLowMemory, oom.OOM, "1.5 of 120.0 GiB"},
		{"a steep fall", crashed{rows: []float64{80, 60, 20}}, "", FreezeLowMemory, oom.OOM, "froze"},
		{"driver without memory", crashed{rows: []float64{14, 9, 8}}, nvrmJournal, FreezeLowMemory, oom.OOM, "froze"},
		{"clean reboot", crashed{rows: []float64{61, 60}}, cleanJournal, Reboot, oom.NotOOM, "rebooted in order"},
		{"torn files", crashed{rows: []float64{20, 9, 1.5}, nulTail: true, output: "step 7\n"}, "", FreezeLowMemory, oom.OOM, "attempt 1, step 102"},
		{"second attempt", crashed{rows: []float64{50, 50}, attempts: 2}, "", PowerLoss, oom.Unsure, "attempt 2"},
		{"never started", crashed{attempts: -1, state: runlog.StatePreflight}, "", PowerLoss, oom.NotOOM, "not started yet"},
		{"killed", crashed{rows: []float64{61, 60}, boot: bootID()}, "", Killed, oom.NotOOM, "were killed"},
		{"killed, a container's client", crashed{rows: []float64{61, 60}, boot: bootID(), argv: []string{"sudo", "docker", "run", "--gpus", "all", "trainer", "python", "train.py"}}, "", Killed, oom.NotOOM, "docker client were killed, and the container may go on"},
		{"killed, a script that is called docker.py", crashed{rows: []float64{61, 60}, boot: bootID(), argv: []string{"python3", "docker.py"}}, "", Killed, oom.NotOOM, "what it had started were killed"},
		{"killed when memory was low", crashed{rows: []float64{9, 1}, boot: bootID()}, "", Killed, oom.OOM, "were killed"},
		{
			"killed, and the command ended by itself",
			crashed{rows: []float64{61, 60}, boot: bootID(), output: cudaDeath, exit: `{"schema":"sparkrun.exit/1","reaped":true,"code":1,"wait_status":256,"t":"2026-07-14T03:00:00.000Z","boottime_ns":3500000000000}`},
			"", Killed, oom.OOM, "(exit 1)",
		},
		{"journal of another user", crashed{rows: []float64{61, 60}}, "echo '1783990000.1 spark sshd[1]: bye'\n", PowerLoss, oom.Unsure, ""},
		{"journal that fails", crashed{rows: []float64{61, 60}}, "echo nothing of that boot >&2; exit 1\n", PowerLoss, oom.Unsure, ""},
		{"journal that hangs", crashed{rows: []float64{61, 60}}, "exec sleep 60\n", PowerLoss, oom.Unsure, ""},
		{"journal of garbage", crashed{rows: []float64{61, 60}}, "head -c 3000000 /dev/zero\n", PowerLoss, oom.Unsure, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.journal == "" {
				noJournal(t)
			} else {
				fakeJournal(t, c.journal)
			}
			p := testPlaces(t)
			d := leave(t, p, c.run)
			before, err := os.ReadFile(d.File(runlog.LogFile))
			if err != nil {
				t.Fatal(err)
			}
			got := recovered(t, p)
			if len(got) != 1 {
				t.Fatalf("%d runs found", len(got))
			}
			r := got[0]
			if r.ID != d.ID || r.Dir != d.Path || r.What != c.what || r.Verdict.Answer != c.answer || !strings.Contains(r.Text, c.text) || !strings.Contains(r.Text, d.ID) {
				t.Errorf("%s, verdict %s (%s%s): %s", r.What, r.Verdict.Answer, r.Verdict.Kind, r.Verdict.Reason, r.Text)
			}
			if n := len(c.run.rows); n > 0 && r.LastAvailKiB != sample.Known(c.run.rows[n-1]*gibKiB) {
				t.Errorf("last row says %+v at %v", r.LastAvailKiB, r.LastRow)
			}
			checkWritten(t, d, r, string(before))
			if again := recovered(t, p); len(again) != 0 {
				t.Errorf("found again: %+v", again)
			}
		})
	}
}

// checkWritten demands what Recover leaves in a run.
func checkWritten(t *testing.T, d *runlog.Dir, r Recovered, logBefore string) {
	t.Helper()
	m, err := runlog.ReadManifest(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	if m.State != runlog.StateLost || m.ExitStatus == nil || *m.ExitStatus != 125 || m.EndedBy != runlog.BySparkrun || m.End == nil || m.Pending != nil || m.Result != "lost" {
		t.Errorf("run.json: %s %v %s %v %v", m.State, m.ExitStatus, m.EndedBy, m.End, m.Pending)
	}
	if r.Attempt > 0 {
		a := m.Attempts[r.Attempt-1]
		if a.End == nil || a.EndKind == "" || a.Verdict == nil || a.Verdict.Verdict != string(r.Verdict.Answer) || a.DurationS.Or(-1) < 0 {
			t.Errorf("attempt: %+v", a)
		}
		if (a.Exit == nil) != (a.EndKind == runlog.EndLost) {
			t.Errorf("end %s with exit %v", a.EndKind, a.Exit)
		}
		v, err := readVerdict(d.Attempt(r.Attempt))
		if err != nil || v.Answer != r.Verdict.Answer {
			t.Errorf("verdict.json: %s, %v", v.Answer, err)
		}
	}
	log, err := os.ReadFile(d.File(runlog.LogFile))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(log), logBefore) {
		t.Error("something of run.log was taken away")
	}
	if !strings.Contains(string(log), "\n") || !strings.Contains(string(log), "# run.end: "+r.Text+"\n") {
		t.Errorf("run.log does not say it:\n%q", log)
	}
	events, err := os.ReadFile(d.File(runlog.EventsFile))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(events)) {
		var e struct {
			Kind event.Kind
			Data map[string]any
		}
		if json.Unmarshal([]byte(line), &e) == nil && e.Kind == event.RunEnd && e.Data["what"] == r.What {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%d events of the end in events.jsonl", found)
	}
	for _, name := range []string{".reserve", ".reserve-end", ".reserve-verdict"} {
		if _, err := os.Lstat(d.File(name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
}

// The journal is asked for the boot of the run, not for the one before this.
func TestRecoverAsksForTheBoot(t *testing.T) {
	args := fakeJournal(t, cleanJournal)
	p := testPlaces(t)
	leave(t, p, crashed{rows: []float64{61}})
	if got := recovered(t, p); len(got) != 1 {
		t.Fatalf("%d runs found", len(got))
	}
	b, err := os.ReadFile(args)
	if err != nil || !strings.Contains(string(b), "--boot="+strings.ReplaceAll(otherBoot, "-", "")) {
		t.Errorf("asked with %q, %v", b, err)
	}
}

// Runs that are somebody's, or of which that is not known, stay as they are.
func TestRecoverLeavesAlone(t *testing.T) {
	noJournal(t)
	for name, prepare := range map[string]func(t *testing.T, p runlog.Places){
		"another host": func(t *testing.T, p runlog.Places) { leave(t, p, crashed{host: "elsewhere"}) },
		"no host": func(t *testing.T, p runlog.Places) {
			d := leave(t, p, crashed{})
			edit(t, d, func(m *runlog.Manifest) { m.Host.Name = "" })
		},
		"an ended one":   func(t *testing.T, p runlog.Places) { leave(t, p, crashed{state: runlog.StateFailed}) },
		"written to now": func(t *testing.T, p runlog.Places) { leave(t, p, crashed{fresh: true}) },
		"with a supervisor": func(t *testing.T, p runlog.Places) {
			release, err := leave(t, p, crashed{}).Lock()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(release)
		},
		"supervisor without a lock": func(t *testing.T, p runlog.Places) {
			d := leave(t, p, crashed{boot: bootID()})
			edit(t, d, func(m *runlog.Manifest) {
				m.SupervisorPID = os.Getpid()
				m.Start.BootNS = int64(clock.Boottime())
			})
		},
		"with a holder": func(t *testing.T, p runlog.Places) {
			d := leave(t, p, crashed{boot: bootID()})
			start(t, nil, "__hold", d.ID, "1")
		},
		"with a command": func(t *testing.T, p runlog.Places) {
			d := leave(t, p, crashed{boot: bootID()})
			start(t, []string{"SPARKRUN_RUN_ID=" + d.ID})
		},
		"damaged run.json": func(t *testing.T, p runlog.Places) {
			d := leave(t, p, crashed{})
			write(t, d.File(runlog.ManifestFile), make([]byte, 4096))
			age(t, d.Path)
		},
		"no run.json": func(t *testing.T, p runlog.Places) {
			if err := os.Remove(leave(t, p, crashed{}).File(runlog.ManifestFile)); err != nil {
				t.Fatal(err)
			}
		},
		"a folder where run.json should be": func(t *testing.T, p runlog.Places) {
			d := leave(t, p, crashed{})
			if err := os.Remove(d.File(runlog.ManifestFile)); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(d.File(runlog.ManifestFile), 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"a torn index": func(t *testing.T, p runlog.Places) {
			dir := filepath.Join(p.State(), "runs")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "20260714-100000-train-abcd.json"), []byte(`{"path":"/no`))
			write(t, filepath.Join(dir, "20260714-100000-train-abce.json"), []byte(`{"path":"relative"}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := testPlaces(t)
			prepare(t, p)
			if got := recovered(t, p); len(got) != 0 {
				t.Errorf("found %+v", got)
			}
		})
	}
}

func edit(t *testing.T, d *runlog.Dir, f func(*runlog.Manifest)) {
	t.Helper()
	m, err := runlog.ReadManifest(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	f(m)
	if err := d.Save(m); err != nil {
		t.Fatal(err)
	}
	age(t, d.Path)
}

// TestMain makes the test binary a process that waits, with whatever arguments and
// environment a test wants to see in /proc.
func TestMain(m *testing.M) {
	if os.Getenv("POSTMORTEM_TEST_WAIT") != "" {
		_, _ = os.Stdout.WriteString("ready\n")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test is over
		return
	}
	os.Exit(m.Run())
}

func start(t *testing.T, env []string, args ...string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(append(os.Environ(), "POSTMORTEM_TEST_WAIT=1"), env...)
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
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// A supervisor that was killed leaves its lock behind, and then nothing has to be
// waited for.
func TestRecoverAtOnceWhereTheLockIsFree(t *testing.T) {
	noJournal(t)
	p := testPlaces(t)
	d := leave(t, p, crashed{fresh: true, rows: []float64{61}})
	sockets, err := p.SocketDir()
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(sockets, d.ID+".lock"), []byte("4711\n"))
	if got := recovered(t, p); len(got) != 1 {
		t.Errorf("%d runs found", len(got))
	}
}

// The verdict that a run came to itself is not made anew.
func TestRecoverKeepsAVerdict(t *testing.T) {
	noJournal(t)
	p := testPlaces(t)
	d := leave(t, p, crashed{rows: []float64{61}, boot: bootID(), exit: `{"schema":"sparkrun.exit/1","reaped":true,"code":1,"t":"2026-07-14T03:00:00.000Z","boottime_ns":60000000000}`})
	v := blank(oom.OOM, "", oom.High)
	v.Kind = "guard"
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	path := write(t, filepath.Join(d.Attempt(1), "verdict.json"), b)
	got := recovered(t, p)
	if len(got) != 1 || got[0].Verdict.Kind != "guard" {
		t.Fatalf("%+v", got)
	}
	after, err := os.ReadFile(path)
	if err != nil || string(after) != string(b) {
		t.Errorf("verdict.json was changed: %s, %v", after, err)
	}
}

// Hundreds of runs with an end cost little, and one without is found among them,
// also where the index lacks it.
func TestRecoverAmongHundreds(t *testing.T) {
	noJournal(t)
	p := testPlaces(t)
	first := leave(t, p, crashed{state: runlog.StateSucceeded, rows: []float64{50}})
	data, err := os.ReadFile(first.File(runlog.ManifestFile))
	if err != nil {
		t.Fatal(err)
	}
	runs, index := filepath.Dir(first.Path), filepath.Join(p.State(), "runs")
	for i := range 600 {
		id := fmt.Sprintf("20250101-%06d-train-%04x", i, i)
		dir := filepath.Join(runs, id)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, runlog.ManifestFile), []byte(strings.ReplaceAll(string(data), first.ID, id)))
		write(t, filepath.Join(index, id+".json"), []byte(`{"schema":"sparkrun.index/1","id":"`+id+`","path":"`+dir+`"}`))
	}
	began := time.Now()
	if got := recovered(t, p); len(got) != 0 {
		t.Fatalf("found %+v", got)
	}
	t.Logf("nothing to do among 601 runs: %v", time.Since(began))
	lost := leave(t, p, crashed{rows: []float64{61}})
	if err := os.Remove(filepath.Join(index, lost.ID+".json")); err != nil {
		t.Fatal(err)
	}
	if got := recovered(t, p); len(got) != 1 || got[0].ID != lost.ID {
		t.Errorf("found %+v", got)
	}
}

// More than one start can look at once; one of them has it.
func TestRecoverOnce(t *testing.T) {
	noJournal(t)
	p := testPlaces(t)
	for range 3 {
		leave(t, p, crashed{rows: []float64{61}, boot: bootID()})
	}
	m := thisMachine()
	m.wtmp = "/nonexistent"
	all := make(chan []Recovered)
	for range 4 {
		go func() {
			all <- recoverOn(context.Background(), RecoverOptions{Places: p, look: 20 * time.Second}, m)
		}()
	}
	var ids []string
	for range 4 {
		for _, r := range <-all {
			ids = append(ids, r.ID)
		}
	}
	slices.Sort(ids)
	if len(ids) != 3 || len(slices.Compact(ids)) != 3 {
		t.Errorf("found %q", ids)
	}
}

// Where the run cannot be written to it is told all the same.
func TestRecoverReadOnly(t *testing.T) {
	if os.Getuid() == 0 {
		asNobody(t)
		return
	}
	noJournal(t)
	p := testPlaces(t)
	d := leave(t, p, crashed{rows: []float64{61}})
	if err := os.Chmod(d.Path, 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(d.Path, 0o700) })
	got := recovered(t, p)
	if len(got) != 1 || !strings.Contains(got[0].Text, "could not be written") {
		t.Errorf("%+v", got)
	}
}

// asNobody runs the test that calls it once more as a user without rights: root may
// write everywhere.
func asNobody(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	// The folder that go test builds in is closed to others.
	dir, err := os.MkdirTemp("", "nobody")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	exe := filepath.Join(dir, "test")
	if err := newprog.Write(exe, b); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(exe, 0o755), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", exe, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir, "XDG_STATE_HOME="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("as an ordinary user: %v\n%s", err, out)
	}
}

func TestRecoverGivesUpInTime(t *testing.T) {
	noJournal(t)
	p := testPlaces(t)
	leave(t, p, crashed{rows: []float64{61}})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if got := Recover(ctx, RecoverOptions{Places: p}); len(got) != 0 {
		t.Errorf("found %+v without time", got)
	}
}

// utmp is one record as the C library of this machine writes it.
func utmp(kind uint16, user string, at time.Time) []byte {
	size, timeAt := 384, 340
	if runtime.GOARCH == "arm64" {
		size, timeAt = 400, 344
	}
	b := make([]byte, size)
	binary.NativeEndian.PutUint16(b, kind)
	copy(b[44:76], user)
	if runtime.GOARCH == "arm64" {
		binary.NativeEndian.PutUint64(b[timeAt:], uint64(at.Unix()))
	} else {
		binary.NativeEndian.PutUint32(b[timeAt:], uint32(at.Unix()))
	}
	return b
}

func TestWtmp(t *testing.T) {
	t.Parallel()
	last := time.Date(2026, 7, 14, 3, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return last.Add(d) }
	boot, down, login := uint16(2), uint16(1), uint16(7)
	for name, c := range map[string]struct {
		records      [][]byte
		clean, known bool
	}{
		"nothing":               {nil, false, false},
		"no boot since":         {[][]byte{utmp(boot, "reboot", at(-time.Hour))}, false, false},
		"crash":                 {[][]byte{utmp(boot, "reboot", at(-time.Hour)), utmp(login, "u", at(-time.Minute)), utmp(boot, "reboot", at(time.Hour))}, false, true},
		"shutdown":              {[][]byte{utmp(boot, "reboot", at(-time.Hour)), utmp(down, "shutdown", at(time.Second)), utmp(boot, "reboot", at(time.Minute))}, true, true},
		"shutdown long before":  {[][]byte{utmp(down, "shutdown", at(-2*time.Hour)), utmp(boot, "reboot", at(-time.Hour)), utmp(boot, "reboot", at(time.Hour))}, false, true},
		"crash, later shutdown": {[][]byte{utmp(boot, "reboot", at(time.Hour)), utmp(down, "shutdown", at(2*time.Hour)), utmp(boot, "reboot", at(3*time.Hour))}, false, true},
		"torn":                  {[][]byte{utmp(down, "shutdown", at(time.Second)), utmp(boot, "reboot", at(time.Minute)), make([]byte, 100)}, true, true},
	} {
		path := write(t, filepath.Join(t.TempDir(), "wtmp"), slices.Concat(c.records...))
		if clean, known := wtmp(path, last); clean != c.clean || known != c.known {
			t.Errorf("%s: clean %v, known %v", name, clean, known)
		}
	}
	if _, known := wtmp(filepath.Join(t.TempDir(), "missing"), last); known {
		t.Error("a missing wtmp tells something")
	}
}
