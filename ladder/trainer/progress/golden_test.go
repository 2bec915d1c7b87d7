package progress

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/sample"
)

// tally is what a run of lines came to.
type tally struct {
	steps    int
	last     Step // the newest N and Total
	loss     string
	t, rate  sample.Num
	saving   string
	finished bool
	evals    int
}

func (a *tally) add(s Step) {
	a.last.N, a.last.Total = s.N, s.Total
	if s.Advance {
		a.steps++
		a.t = s.StepTimeS
	}
	switch {
	case s.NonFinite:
		a.loss = "nan"
	case s.Loss.OK:
		a.loss = fmt.Sprintf("%.6g", s.Loss.V)
	}
	if s.TokensPerS.OK {
		a.rate = s.TokensPerS
	}
	if s.Checkpoint != "" {
		a.saving = s.Checkpoint
	}
	a.finished = a.finished || s.Finished
	if s.Eval {
		a.evals++
	}
}

func (a *tally) String() string {
	num := func(n sample.Num) string {
		if !n.OK {
			return "none"
		}
		return fmt.Sprintf("%.6g", n.V)
	}
	loss := a.loss
	if loss == "" {
		loss = "none"
	}
	out := fmt.Sprintf("steps=%d last=%d/%d loss=%s t=%s", a.steps, a.last.N, a.last.Total, loss, num(a.t))
	if a.rate.OK {
		out += " tok/s=" + num(a.rate)
	}
	if a.saving != "" {
		out += " saving=" + a.saving
	}
	if a.finished {
		out += " finished"
	}
	return out
}

// TestGoldens plays the files of testdata: one for each trainer, of runs that begin
// with their options ("% set=hf trusted every=5": seconds between lines) and end with
// what they come to.
func TestGoldens(t *testing.T) {
	t.Parallel()
	sets, err := Sets()
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range sets {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(filepath.Join("testdata", set+".txt"))
			if err != nil {
				t.Fatal(err)
			}
			runs := 0
			var (
				p      *Progress
				sum    tally
				record bool
				every  time.Duration
				at     time.Time
			)
			for i, line := range strings.Split(string(data), "\n") {
				switch {
				case line == "" || p == nil && strings.HasPrefix(line, "#"):
				case strings.HasPrefix(line, "% "):
					o := Options{}
					sum, record, every, at = tally{}, false, time.Second, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
					for _, word := range strings.Fields(line[2:]) {
						key, v, _ := strings.Cut(word, "=")
						n, _ := strconv.ParseInt(v, 10, 64)
						switch key {
						case "set":
							o.Set = v
						case "trusted":
							o.Trusted = true
						case "record":
							record = true
						case "every":
							every = time.Duration(n) * time.Second
						case "perlog":
							o.PerLog = n
						case "total":
							o.Total = n
						case "epochs":
							o.Epochs = n
						case "accumulation":
							o.Accumulation = n
						default:
							t.Fatalf("line %d: option %s", i+1, key)
						}
					}
					if o.Set != set {
						t.Fatalf("line %d: set %s", i+1, o.Set)
					}
					p = New(o)
				case strings.HasPrefix(line, "= "):
					runs++
					if got := sum.String(); got != line[2:] {
						t.Errorf("line %d:\ngot  %s\nwant %s", i+1, got, line[2:])
					}
					p = nil
				default:
					at = at.Add(every)
					read := func() (Step, bool) { return p.Line(line, at) }
					if record {
						read = func() (Step, bool) { return p.Record([]byte(line), at) }
					}
					st, ok := read()
					if testing.Verbose() {
						t.Logf("%d: %v %s | %.50s", i+1, ok, show(st), line)
					}
					if ok {
						check(t, st)
						sum.add(st)
					}
				}
			}
			if runs == 0 || p != nil {
				t.Errorf("%d runs, the last one without an end: %v", runs, p != nil)
			}
		})
	}
}

// check fails for a step that cannot be.
func check(t interface{ Errorf(string, ...any) }, s Step) {
	for _, n := range []sample.Num{s.Loss, s.LR, s.GradNorm, s.StepTimeS, s.Tokens, s.TokensPerS} {
		if math.IsNaN(n.V) || math.IsInf(n.V, 0) || n.V != 0 && !n.OK {
			t.Errorf("a number that is none: %+v", s)
		}
	}
	if s.N < 0 || s.Total < 0 || s.Total != 0 && s.Total < s.N || s.StepTimeS.V < 0 || s.Eval && (s.Advance || s.Loss.OK || s.NonFinite) {
		t.Errorf("a step that cannot be: %+v", s)
	}
}
