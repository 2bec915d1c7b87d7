package postmortem

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
	"sparkrun/supervisor/runlog"
)

// lostNight is a run of two attempts, readings and all, whose sparkrun died in the second.
type lostNight struct {
	p    runlog.Places
	d    *runlog.Dir
	m    *runlog.Manifest
	wall time.Time
	clk  clock.Clock
	rows []sample.Sample
}

// newLostNight has a row a second for 400 s: attempt 1 from 20 to 120, attempt 2 from 150 on.
// Attempts draw 90 W and the time between them 10 W; attempt 1 gets 84 C, attempt 2 gets 92 C.
func newLostNight(t *testing.T) *lostNight {
	t.Helper()
	p := testPlaces(t)
	d := leave(t, p, crashed{rows: []float64{61}, attempts: 2, fresh: true, boot: bootID()})
	m, err := runlog.ReadManifest(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	n := &lostNight{p: p, d: d, m: m, clk: m.Start.Clock()}
	n.wall = n.clk.Wall
	at := func(s float64) runlog.Moment {
		return runlog.MomentOf(n.clk, n.wall.Add(time.Duration(s*float64(time.Second))))
	}
	end := at(120)
	m.Attempts[0].Start, m.Attempts[0].End = at(20), &end
	m.Attempts[0].EndKind, m.Attempts[0].Pauses, m.Attempts[0].PausedS = runlog.EndExited, 1, 7
	m.Attempts[0].Heat = &runlog.Heat{HottestC: sample.Known(84), ThrottledS: sample.Known(3)}
	m.Attempts[1].Start = at(150)
	// As it was last written: just after the beginning.
	m.Attempts[1].Heat = &runlog.Heat{HottestC: sample.Known(80), ObservedS: sample.Known(1), ThrottledS: sample.Known(0), Compared: "normal"}
	m.Attempts[1].Energy = &runlog.Energy{GPUJ: sample.Known(4), GPUKnownS: sample.Known(0.1)}
	joules := 5e5
	for s := range 400 {
		x := sample.Sample{Mono: time.Duration(s) * time.Second, MemAvailableKiB: sample.Known(61 * gibKiB)}
		x.T = n.wall.Add(x.Mono)
		x.TempC, x.ZoneMaxC, x.PowerW, x.UtilPct = sample.Known(60), sample.Known(62), sample.Known(10), sample.Known(0)
		switch {
		case s > 20 && s <= 120:
			x.Attempt, x.ZoneMaxC, x.PowerW = 1, sample.Known(84), sample.Known(90)
		case s > 150:
			x.Attempt, x.TempC, x.PowerW = 2, sample.Known(88), sample.Known(90)
			x.Step = sample.Known(float64(s))
		}
		if s == 300 {
			x.ZoneMaxC, x.MemAvailableKiB = sample.Known(92), sample.Known(7*gibKiB)
		}
		if x.Attempt > 0 {
			x.UtilPct = sample.Known(95)
		}
		joules += x.PowerW.V
		x.EnergyJ = sample.Known(joules)
		n.rows = append(n.rows, x)
	}
	return n
}

func (n *lostNight) telemetry(t *testing.T, text []byte) {
	t.Helper()
	write(t, n.d.File("telemetry.csv"), text)
}

// event adds a line to events.jsonl, s seconds after the start of the run.
func (n *lostNight) event(t *testing.T, s float64, kind string, attempt int, data string) {
	t.Helper()
	f, err := os.OpenFile(n.d.File(runlog.EventsFile), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := clock.Machine(n.wall.Add(time.Duration(s * float64(time.Second))))
	if _, err := fmt.Fprintf(f, `{"t":"%s","attempt":%d,"kind":"%s","level":"warn","msg":"x","data":{%s}}`+"\n", at, attempt, kind, data); err != nil {
		t.Fatal(err)
	}
}

// recover saves run.json, lets the next start find the run, and reads it again.
func (n *lostNight) recover(t *testing.T) *runlog.Manifest {
	t.Helper()
	if err := n.d.Save(n.m); err != nil {
		t.Fatal(err)
	}
	age(t, n.d.Path)
	if got := recovered(t, n.p); len(got) != 1 {
		t.Fatalf("%d runs found", len(got))
	}
	m, err := runlog.ReadManifest(n.d.Path)
	if err != nil {
		t.Fatal(err)
	}
	if m.State != runlog.StateLost || len(m.Attempts) != 2 {
		t.Fatalf("%s, %d attempts", m.State, len(m.Attempts))
	}
	return m
}

func close1(t *testing.T, what string, got sample.Num, want float64) {
	t.Helper()
	if !got.OK || math.Abs(got.V-want) > 0.01*want {
		t.Errorf("%s: %+v, want about %v", what, got, want)
	}
}

// TestRecoverReckonsHeatAndEnergy: what run.json says after sparkrun's own death is of the
// whole attempt, wherever its rows lie.
func TestRecoverReckonsHeatAndEnergy(t *testing.T) {
	noJournal(t)
	for name, lay := range map[string]func(n *lostNight){
		"one file": func(n *lostNight) { n.telemetry(t, csvOf(n.rows...)) },
		"torn": func(n *lostNight) {
			// A row cut short in the middle of the file, one of NULs, and a last one that was cut
			// in its last number: it has all its cells and says 149 C.
			rows, last := csvOf(n.rows...), n.rows[399]
			last.ZoneMaxC, last.EnergySoCJ = sample.Known(149), sample.Known(123456)
			torn := bytes.TrimSuffix(csvOf(last)[len(csvOf()):], []byte("\n"))
			cut := append(rows[:len(rows):len(rows)], torn[:len(torn)/2]...)
			cut = append(cut, "\n2026-07-14T0"+strings.Repeat("\x00", 3000)+"\n"...)
			n.telemetry(t, append(cut, torn[:len(torn)-3]...))
		},
		"parts": func(n *lostNight) {
			write(t, n.d.File("telemetry.001.csv"), csvOf(n.rows[:100]...))
			write(t, n.d.File("telemetry.002.csv"), csvOf(n.rows[100:310]...))
			write(t, n.d.File("telemetry.notes.csv"), []byte("mono_s,attempt,temp_gpu_c\n1,2,149\n"))
			n.telemetry(t, csvOf(n.rows[310:]...))
		},
		"a part alone": func(n *lostNight) {
			write(t, n.d.File("telemetry.001.csv"), csvOf(n.rows...))
			if err := os.Remove(n.d.File("telemetry.csv")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newLostNight(t)
			lay(n)
			m := n.recover(t)
			if diff := cmp.Diff(n.m.Attempts[0].Heat, m.Attempts[0].Heat); diff != "" || m.Attempts[0].Pauses != 1 || m.Attempts[0].Energy != nil {
				t.Errorf("attempt 1 was written down by the run itself: %+v %s", m.Attempts[0], diff)
			}
			a := m.Attempts[1]
			if diff := cmp.Diff(&runlog.Heat{HottestC: sample.Known(92)}, a.Heat); diff != "" {
				t.Error(diff)
			}
			if a.Energy == nil || m.Summary.Energy == nil || m.Summary.Heat == nil {
				t.Fatalf("%+v, in all %+v", a, m.Summary)
			}
			close1(t, "attempt 2", a.Energy.GPUJ, 90*249)
			close1(t, "known for", a.Energy.GPUKnownS, 249)
			close1(t, "a step", a.Energy.PerStepJ, 90)
			close1(t, "idle", a.Energy.IdleW, 10)
			close1(t, "both", m.Summary.Energy.GPUJ, 90*349)
			if a.Energy.GPUSource != runlog.FromCounter || a.Energy.CounterResets != 0 || a.Pauses != 0 || a.PausedS != 0 {
				t.Errorf("%+v", a)
			}
			s := m.Summary
			if s.HottestC != sample.Known(92) || s.Heat.HottestC != s.HottestC || s.Heat.ThrottledS.OK || s.ThrottleS.OK || s.LostS.OK || s.LowestMemAvailableKiB != sample.Known(7*gibKiB) {
				t.Errorf("in all: %+v", s)
			}
		})
	}
}

// TestRecoverKeepsNoStaleFigure: where the sensors' file tells nothing, or nothing sane,
// neither does run.json.
func TestRecoverKeepsNoStaleFigure(t *testing.T) {
	noJournal(t)
	header := strings.Join(sample.Header, ",") + "\n"
	hostile := func(cell string) []byte {
		var b strings.Builder
		b.WriteString(header)
		for i := range 20 {
			cells := make([]string, len(sample.Header))
			for c, name := range sample.Header {
				switch name {
				case "t", "step": // (steps are for the verdict)
				case "mono_s":
					cells[c] = fmt.Sprint(155 + i)
				case "attempt":
					cells[c] = "2"
				default:
					cells[c] = cell
				}
			}
			b.WriteString(strings.Join(cells, ",") + "\n")
		}
		return []byte(b.String())
	}
	for name, text := range map[string][]byte{
		"none": nil, "empty": {}, "only a header": []byte(header), "garbage": bytes.Repeat([]byte{0, 7, 'x', ','}, 9000),
		"infinite": hostile("inf"), "no number": hostile("nan"), "beyond all": hostile("1e308"), "below all": hostile("-1e308"),
		"no GPU": hostile(""), "a line without an end": append([]byte(header), bytes.Repeat([]byte("1,"), 1<<20)...),
	} {
		t.Run(name, func(t *testing.T) {
			n := newLostNight(t)
			n.m.Attempts[0].Energy = nil
			if text == nil {
				if err := os.Remove(n.d.File("telemetry.csv")); err != nil {
					t.Fatal(err)
				}
			} else {
				n.telemetry(t, text)
			}
			m := n.recover(t)
			if a := m.Attempts[1]; a.Heat != nil || a.Energy != nil || a.Pauses != 0 {
				t.Errorf("heat %+v, energy %+v, %d pauses", a.Heat, a.Energy, a.Pauses)
			}
			if s := m.Summary; s.HottestC.OK || s.Heat != nil || s.Energy != nil {
				t.Errorf("in all: %+v", s)
			}
		})
	}
	t.Run("no time", func(t *testing.T) {
		n := newLostNight(t)
		n.telemetry(t, csvOf(n.rows...))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		f := &attemptFiles{man: n.m, run: n.d.Path, n: 2}
		r := f.reckon(ctx, time.Time{})
		r.into(n.m, 2, false)
		if a := n.m.Attempts[1]; a.Heat != nil || a.Energy != nil || n.m.Summary.HottestC.OK {
			t.Errorf("%+v", a)
		}
	})
}

// TestRecoverCountsPauses: those of the attempt that was lost, the one it died in included,
// whose end stands in the log then.
func TestRecoverCountsPauses(t *testing.T) {
	noJournal(t)
	const hot = `"temp_zone_max_c":94.5,"temp_gpu_c":86`
	for _, c := range []struct {
		name   string
		events func(n *lostNight)
		exit   string
		n      int
		s      float64
		cut    bool
	}{
		{"whole ones", func(n *lostNight) {
			n.event(t, 200, "pause", 2, hot)
			n.event(t, 220, "continue", 2, `"paused_s":20.5`)
			n.event(t, 260, "pause", 2, hot)
			n.event(t, 270, "continue", 2, `"why":"cooled"`)
		}, "", 2, 30.5, false},
		{"died in one", func(n *lostNight) {
			n.event(t, 30, "pause", 1, hot)
			n.event(t, 37, "continue", 1, `"paused_s":7`)
			n.event(t, 200, "pause", 2, hot)
			n.event(t, 220, "continue", 2, `"paused_s":20`)
			n.event(t, 389, "pause", 2, hot)
		}, "", 2, 30, true},
		{"the command ended in one", func(n *lostNight) {
			n.event(t, 380, "pause", 2, hot)
		}, `{"schema":"sparkrun.exit/1","reaped":true,"code":1,"wait_status":256,"t":"2026-07-14T03:00:00.000Z","boottime_ns":436000000000}`, 1, 6, true},
		{"an end that nobody saw", func(n *lostNight) {
			n.event(t, 389, "pause", 2, hot)
		}, `{"schema":"sparkrun.exit/1","reaped":false,"code":-1}`, 1, 10, true},
		{"the command lived on for hours", func(n *lostNight) {
			n.event(t, 389, "pause", 2, hot)
		}, `{"schema":"sparkrun.exit/1","reaped":true,"code":0,"wait_status":0,"t":"2026-07-14T03:00:00.000Z","boottime_ns":5000000000000}`, 1, 10, true},
		{"after the last row", func(n *lostNight) { n.event(t, 500, "pause", 2, hot) }, "", 1, 0, true},
		{"of another attempt", func(n *lostNight) { n.event(t, 30, "pause", 1, hot) }, "", 0, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newLostNight(t)
			n.telemetry(t, csvOf(n.rows...))
			if c.exit != "" {
				write(t, filepath.Join(n.d.Attempt(2), "exit.json"), []byte(c.exit))
			}
			n.m.Attempts[1].Pauses, n.m.Attempts[1].PausedS = 5, 500 // stale
			c.events(n)
			m := n.recover(t)
			a := m.Attempts[1]
			if a.Pauses != c.n || math.Abs(a.PausedS-c.s) > 0.01 {
				t.Errorf("%d pauses of %v s, want %d of %v", a.Pauses, a.PausedS, c.n, c.s)
			}
			if a.Energy == nil || a.Energy.GPUKnownS.V < 200 {
				t.Errorf("energy %+v", a.Energy)
			}
			if want := map[bool]float64{true: 94.5, false: 92}[c.n > 0]; a.Heat == nil || a.Heat.HottestC != sample.Known(want) {
				t.Errorf("hottest %+v, want %v", a.Heat, want)
			}
			b, err := os.ReadFile(n.d.File(runlog.EventsFile))
			if err != nil {
				t.Fatal(err)
			}
			told := fmt.Sprintf(`"paused_s":%v,"why":"ending"`, c.s)
			switch c.name {
			case "died in one", "an end that nobody saw":
				told = `"paused_s":10,"why":"ending"`
			case "the command lived on for hours":
				told = `"paused_s":10,"why":"continued-elsewhere"`
			}
			if bytes.Contains(b, []byte(told)) != c.cut || m.Attempts[0].Pauses != 1 {
				t.Errorf("want %v in the log: %v\n%s", told, c.cut, b)
			}
		})
	}
}

// TestRecoverKeepsWhatAnEndedAttemptKnew: an attempt that was over when sparkrun died has
// its figures, of which the files do not tell all.
func TestRecoverKeepsWhatAnEndedAttemptKnew(t *testing.T) {
	noJournal(t)
	n := newLostNight(t)
	n.telemetry(t, csvOf(n.rows...))
	end := runlog.MomentOf(n.clk, n.wall.Add(390*time.Second))
	a := &n.m.Attempts[1]
	a.End, a.EndKind, a.DurationS = &end, runlog.EndExited, sample.Known(240)
	a.Heat = &runlog.Heat{HottestC: sample.Known(91), ThrottledS: sample.Known(12)}
	a.Energy = &runlog.Energy{GPUJ: sample.Known(21000), GPUFirmwareJ: sample.Known(30000)}
	m := n.recover(t)
	if diff := cmp.Diff(&runlog.Heat{HottestC: sample.Known(92), ThrottledS: sample.Known(12)}, m.Attempts[1].Heat); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(a.Energy, m.Attempts[1].Energy); diff != "" {
		t.Error(diff)
	}
	close1(t, "both", m.Summary.Energy.GPUJ, 90*(100+240))
}
