package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// ending is one way for the machine to go down in the middle of a run, and what the
// next boot has to find.
type ending struct {
	name string
	// args is the run that is under way, and ready says when the machine may go.
	args  []string
	ready func(*running) error
	// down takes the machine down; it does not come back.
	down func() error
	// after are the checks of the next boot, in their order.
	after []func(*trial, before) (string, error)
	names []string
}

// before is what a boot leaves for the next one.
type before struct {
	Ending  int // index of the ending that is due or was carried out
	Results int // given so far
	Boot    string
	Run     string
	// Ready is when the machine could go, by its own clock.
	Ready time.Time
}

const stageFile = home + "/reset.json"

func endings() []ending {
	training := []string{"--no-preflight", "--", home + "/start", "train", "-steps", "100000", "-each", "200ms"}
	return []ending{
		{
			name: "reset", args: training, ready: tenRows, down: pullPlug,
			names: []string{"boot", "telemetry", "told", "told-once"},
			after: []func(*trial, before) (string, error){cutOff, keptRows, tells("lost power", "unsure"), toldOnce},
		},
		{
			name: "freeze", args: nil, ready: lowMemory, down: pullPlug,
			names: []string{"boot", "telemetry", "told"},
			after: []func(*trial, before) (string, error){cutOff, keptRows, tells("low memory", "oom")},
		},
		{
			name: "reboot", args: training, ready: tenRows, down: func() error { return exec.Command("systemctl", "reboot").Run() },
			names: []string{"ended"},
			after: []func(*trial, before) (string, error){orderly},
		},
	}
}

// resets carries out the plan over all its boots.
func resets() error {
	var was before
	b, err := os.ReadFile(stageFile)
	switch {
	case err == nil:
		if err := json.Unmarshal(b, &was); err != nil {
			return err
		}
		e := endings()[was.Ending]
		var checks []check
		for i, f := range e.after {
			checks = append(checks, check{e.name + "-" + e.names[i], func(t *trial) (string, error) { return f(t, was) }})
		}
		carry(checks)
		was.Results += len(checks)
		was.Ending++
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	all := endings()
	if was.Ending == len(all) {
		say("DONE %d", was.Results)
		return nil
	}
	e := all[was.Ending]
	if err := prepare(e, was); err != nil {
		return fmt.Errorf("%s: %w", e.name, err)
	}
	if err := e.down(); err != nil {
		return fmt.Errorf("%s: %w", e.name, err)
	}
	time.Sleep(10 * time.Minute)
	return fmt.Errorf("%s: the machine is still there", e.name)
}

// pullPlug asks the test outside to press the reset button.
func pullPlug() error {
	say("RESET")
	return nil
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// prepare starts the run that goes down with the machine, and leaves word of it.
func prepare(e ending, was before) error {
	args := e.args
	if args == nil {
		// Below the 3 % that count as low, above what the kernel would kill for.
		units, err := leaving(2)
		if err != nil {
			return err
		}
		args = []string{"--no-preflight", "--no-guard", "--", home + "/start", "fill", "-units", fmt.Sprint(units), "-rate", "60", "-hold", "1h"}
	}
	latest := filepath.Join(home, "work/reset/sparkrun-runs/latest")
	old, _ := os.Readlink(latest) // none before the first run
	r, err := begin(job{name: "reset", limit: time.Hour, args: args})
	if err != nil {
		return err
	}
	if err := until(2*time.Minute, "a run folder", func() bool {
		now, err := os.Readlink(latest)
		return err == nil && now != old
	}); err != nil {
		return fmt.Errorf("%w; stderr: %s", err, r.err.String())
	}
	if err := e.ready(r); err != nil {
		return fmt.Errorf("%w; stderr: %s", err, r.err.String())
	}
	run, err := os.Readlink(latest)
	if err != nil {
		return err
	}
	was.Boot, was.Run, was.Ready = bootID(), filepath.Base(run), time.Now()
	b, err := json.Marshal(was)
	if err != nil {
		return err
	}
	// Only this file and its name are synced: what sparkrun promises about its own
	// files must hold without help.
	return writeSynced(stageFile, b)
}

func writeSynced(name string, b []byte) error {
	f, err := os.Create(name + ".new")
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(name+".new", name); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// leaving returns how many MiB a fill may take to leave a share of the memory.
func leaving(percent int64) (int64, error) {
	free, err := counter("/proc/meminfo", "MemAvailable")
	if err != nil {
		return 0, err
	}
	total, err := counter("/proc/meminfo", "MemTotal")
	if err != nil {
		return 0, err
	}
	return (free - total*percent/100) >> 10, nil
}

func tenRows(r *running) error {
	return until(2*time.Minute, "ten rows of telemetry", func() bool { return strings.Count(r.text("telemetry.csv"), "\n") > 10 })
}

// lowMemory waits until the job has what it wants, and some rows of telemetry more.
func lowMemory(r *running) error {
	if err := until(3*time.Minute, "the fill's end", func() bool { return strings.Contains(r.text("attempts/1/output.log"), "took") }); err != nil {
		return err
	}
	rows := func() int { return strings.Count(r.text("telemetry.csv"), "\n") }
	full := rows()
	return until(2*time.Minute, "five rows of telemetry more", func() bool { return rows() > full+5 })
}

func runFolder(was before) string {
	return filepath.Join(home, "work/reset/sparkrun-runs", was.Run)
}

func runState(was before) (string, error) {
	b, err := os.ReadFile(filepath.Join(runFolder(was), "run.json"))
	if err != nil {
		return "", err
	}
	var m struct{ State string }
	if err := json.Unmarshal(b, &m); err != nil {
		return "", fmt.Errorf("run.json is torn: %w", err)
	}
	return m.State, nil
}

// cutOff: it was a reset and not a clean end, and run.json survived it whole.
func cutOff(_ *trial, was before) (string, error) {
	if bootID() == was.Boot {
		return "", errors.New("the machine was not started anew")
	}
	state, err := runState(was)
	if err != nil {
		return "", err
	}
	if state != "running" {
		return "", fmt.Errorf("run.json says %q before anybody has looked", state)
	}
	return "state " + state, nil
}

// keptRows: what telemetry.csv holds reaches to about a second before the end; a torn
// last line is allowed, a lost minute is not.
func keptRows(_ *trial, was before) (string, error) {
	b, err := os.ReadFile(filepath.Join(runFolder(was), "telemetry.csv"))
	if err != nil {
		return "", err
	}
	whole, _, _ := strings.Cut(string(b), "\x00")
	whole = whole[:strings.LastIndexByte(whole, '\n')+1]
	rows, err := csv.NewReader(strings.NewReader(whole)).ReadAll()
	if err != nil || len(rows) < 6 {
		return "", wrong(err, "telemetry.csv has %d rows left", len(rows))
	}
	last, err := time.Parse("2006-01-02T15:04:05.000Z07:00", rows[len(rows)-1][0])
	if err != nil {
		return "", err
	}
	// A row a second, a second to its sync, and what an emulated disk adds.
	if lost := was.Ready.Sub(last); lost > 5*time.Second {
		return "", fmt.Errorf("the last row is %s older than the reset", lost)
	}
	return fmt.Sprintf("%d rows, the last at %s of the moment when the run was ready", len(rows)-1, last.Sub(was.Ready).Round(time.Millisecond)), nil
}

// next runs sparkrun again on the same machine, in the folder of the dead run, for long
// enough to look around while its command runs.
func next(t *trial) (string, error) {
	r, status, err := t.call(job{name: "reset", args: []string{"--no-preflight", "--", home + "/start", "train", "-steps", "80"}})
	if err != nil || status != 0 {
		return "", wrong(err, "status %d", status)
	}
	return r.err.String(), nil
}

// tells: the next sparkrun finds the run without an end, says what became of it, and
// writes its verdict.
func tells(words, answer string) func(*trial, before) (string, error) {
	return func(t *trial, was before) (string, error) {
		text, err := next(t)
		if err != nil {
			return "", err
		}
		told := ""
		for line := range strings.Lines(text) {
			if strings.Contains(line, was.Run) {
				told += strings.TrimSpace(line) + " "
			}
		}
		if !strings.Contains(told, words) {
			return "", fmt.Errorf("of %s it is not said: %q: %q", was.Run, words, text)
		}
		b, err := os.ReadFile(filepath.Join(runFolder(was), "attempts/1/verdict.json"))
		if err != nil {
			return "", err
		}
		var v verdict
		if err := json.Unmarshal(b, &v); err != nil {
			return "", err
		}
		if v.Verdict != answer {
			return "", fmt.Errorf("verdict %v; wanted %s", v, answer)
		}
		return told + "(" + v.Verdict + ")", nil
	}
}

// toldOnce: the run has its end now, and the one after that is silent about it.
func toldOnce(t *trial, was before) (string, error) {
	text, err := next(t)
	if err != nil {
		return "", err
	}
	if strings.Contains(text, was.Run) {
		return "", fmt.Errorf("it is said again: %q", text)
	}
	state, err := runState(was)
	if err != nil {
		return "", err
	}
	if state == "running" {
		return "", errors.New("run.json still says it is running")
	}
	return "state " + state, nil
}

// orderly: an orderly reboot is a stop like any other. The run has an end, and it is no
// loss of power.
func orderly(t *trial, was before) (string, error) {
	if bootID() == was.Boot {
		return "", errors.New("the machine was not started anew")
	}
	text, err := next(t)
	if err != nil {
		return "", err
	}
	state, err := runState(was)
	if err != nil {
		return "", err
	}
	if state == "running" || strings.Contains(text, "lost power") || strings.Contains(text, "froze") {
		return "", fmt.Errorf("state %s, %q", state, text)
	}
	return "state " + state, nil
}
