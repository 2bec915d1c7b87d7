package postmortem

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/internal/clock"
	"sparkrun/ladder/oom"
	"sparkrun/supervisor/runlog"
)

const exited137 = `{"schema":"sparkrun.exit/1","reaped":true,"wait_status":9,"code":-1,"signal":"SIGKILL","t":"2026-07-14T03:00:00.000Z","boottime_ns":3650000000000}`

// An attempt without a verdict is judged from everything that its files hold.
func TestJudgeRunFromItsFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		run    crashed
		events string // %s is the time of the end
		guard  string
		want   oom.Answer
		kind   string
	}{
		"nothing known":    {run: crashed{exit: exited137}, want: oom.Unsure, kind: "kernel-oom"},
		"memory was clear": {run: crashed{exit: exited137, rows: []float64{61, 61}}, want: oom.NotOOM},
		"memory was low":   {run: crashed{exit: exited137, rows: []float64{9, 1}}, want: oom.OOM, kind: "kernel-oom"},
		"the kernel spoke": {
			run:    crashed{exit: exited137, rows: []float64{61, 61}},
			events: `{"t":"%s","attempt":1,"kind":"kernel.oom","level":"warn","msg":"kernel: Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB"}` + "\n",
			want:   oom.OOM, kind: "cgroup-oom",
		},
		"of somebody else": {
			run:    crashed{exit: exited137, rows: []float64{61, 61}},
			events: `{"t":"%s","attempt":1,"kind":"kernel.oom","level":"info","msg":"a process not known to be this job's was killed for memory: Out of memory: Killed process 4711 (python3) total-vm:1kB"}` + "\n",
			want:   oom.NotOOM,
		},
		"the guard acted": {
			run:   crashed{exit: exited137, rows: []float64{61, 5}},
			guard: `{"schema":"sparkrun.guard/1","action":{"t":"%s","why":"hard-floor","avail_kib":3500000,"floor_kib":3700000,"tree_grew_kib":90000000}}`,
			want:  oom.OOM, kind: "guard",
		},
		"the guard did nothing": {run: crashed{exit: exited137, rows: []float64{61, 61}}, guard: `{"action":null}`, want: oom.NotOOM},
		"damaged guard.json":    {run: crashed{exit: exited137, rows: []float64{61, 61}}, guard: "\x00\x00", want: oom.NotOOM},
		"damaged exit.json":     {run: crashed{exit: "\x00\x00\x00", rows: []float64{9, 1}}, want: oom.OOM, kind: "unified-driver"},
		"a user's stop": {
			run:  crashed{exit: strings.Replace(exited137, `"t"`, `"stops":[{"signal":"SIGTERM","to":"child","t":"2020-01-01T00:00:00Z"}],"t"`, 1), output: cudaDeath},
			want: oom.NotOOM,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := testPlaces(t)
			c.run.boot = bootID()
			d := leave(t, p, c.run)
			m, err := runlog.ReadManifest(d.Path)
			if err != nil {
				t.Fatal(err)
			}
			// exit.json says 3650 s of boot time; the run began at 50.
			end := clock.Machine(m.Start.Clock().At(3650e9))
			if c.events != "" {
				write(t, d.File(runlog.EventsFile), fmt.Appendf(nil, c.events, end))
			}
			if c.guard != "" {
				write(t, filepath.Join(d.Attempt(1), "guard.json"), []byte(strings.Replace(c.guard, "%s", end, 1)))
			}
			age(t, d.Path)
			a, err := JudgeRun(context.Background(), table(t), p, d.Path, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			v := a.Verdict
			if v.Answer != c.want || v.Kind != c.kind || a.Run.Judged || a.Run.Going || a.Run.Attempt != 1 {
				t.Errorf("%s (%s, %s), want %s (%s)\n%+v", v.Answer, v.Kind, v.Reason, c.want, c.kind, v.Evidence)
			}
		})
	}
}

func TestJudgeRunAttempts(t *testing.T) {
	t.Parallel()
	p := testPlaces(t)
	d := leave(t, p, crashed{attempts: 2, boot: bootID()})
	v := blank(oom.OOM, "", oom.High)
	v.Kind = "guard"
	if err := writeVerdict(d, 1, v); err != nil {
		t.Fatal(err)
	}
	a, err := JudgeRun(context.Background(), table(t), p, d.Path, 1, nil)
	if err != nil || !a.Run.Judged || a.Verdict.Kind != "guard" {
		t.Errorf("attempt 1: %+v, %v", a.Verdict, err)
	}
	if got := a.Run.Attempts; len(got) != 2 || got[0].Verdict != "oom (guard)" || got[1].Verdict != "" || got[1].End != "no end" {
		t.Errorf("attempts %+v", got)
	}
	if _, err := JudgeRun(context.Background(), table(t), p, d.Path, 3, nil); err == nil || !strings.Contains(err.Error(), "attempts 1 to 2") {
		t.Errorf("attempt 3: %v", err)
	}
	// A verdict that cannot be read is made anew, and that is said.
	write(t, filepath.Join(d.Attempt(1), "verdict.json"), []byte("\x00\x00"))
	a, err = JudgeRun(context.Background(), table(t), p, d.Path, 1, nil)
	if err != nil || a.Run.Judged || len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "damaged") {
		t.Errorf("damaged: notes %q, %v", a.Notes, err)
	}
	write(t, d.File(runlog.ManifestFile), []byte("{"))
	if _, err := JudgeRun(context.Background(), table(t), p, d.Path, 0, nil); err == nil || !strings.Contains(err.Error(), "output.log") {
		t.Errorf("a damaged run.json: %v", err)
	}
}

// Of a long output only the end is read at a start, and its lines still count from
// the beginning.
func TestGatherReadsTheEnd(t *testing.T) {
	t.Parallel()
	p := testPlaces(t)
	lead := strings.Repeat("a line of nothing\n", 100000)
	d := leave(t, p, crashed{output: lead + cudaDeath})
	m, err := runlog.ReadManifest(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, most := range []int64{0, 1000, 1 << 20} {
		f := &attemptFiles{man: m, run: d.Path, dir: d.Attempt(1), n: 1, outputMost: most}
		g, err := f.gather(context.Background(), table(t))
		if err != nil {
			t.Fatal(err)
		}
		g.ev.Exit = died(1)
		v := table(t).Decide(g.ev)
		g.unnumber(&v)
		if v.Answer != oom.OOM || v.Evidence[0].Line != 100006 {
			t.Errorf("%d bytes: %s, line %d", most, v.Answer, v.Evidence[0].Line)
		}
		if off := g.ev.Output.Hits[0].Offset; off < int64(len(lead)) {
			t.Errorf("%d bytes: the first hit is at %d", most, off)
		}
	}
	if err := os.Remove(filepath.Join(d.Attempt(1), "output.log")); err != nil {
		t.Fatal(err)
	}
	g, err := (&attemptFiles{man: m, run: d.Path, dir: d.Attempt(1), n: 1}).gather(context.Background(), table(t))
	if err != nil || len(g.ev.Unreadable) == 0 {
		t.Errorf("no output at all: %v, %q", err, g.ev.Unreadable)
	}
}

// What is left of a run whose attempts were removed is what run.json has kept.
func TestJudgeRunWithoutItsFiles(t *testing.T) {
	t.Parallel()
	man := &runlog.Manifest{Attempts: []runlog.AttemptRecord{{N: 2, Verdict: &runlog.VerdictSummary{Verdict: "oom", Kind: "guard", Confidence: "high", Quote: "the memory guard ended it"}}}}
	v, ok := recorded(man, 2)
	if !ok || v.Answer != oom.OOM || v.Kind != "guard" || v.Confidence != oom.High || len(v.Evidence) != 1 {
		t.Errorf("got %+v, %v", v, ok)
	}
	if _, ok := recorded(man, 1); ok {
		t.Error("a verdict for an attempt that has none")
	}
}
