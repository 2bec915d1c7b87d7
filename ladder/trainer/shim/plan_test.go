package shim

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/job"
)

func TestPlansThatTheShimCannotDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		clamp Clamp
		want  string
	}{
		{Clamp{Knob: job.LearningRate, To: "1"}, "cannot turn learning_rate"},
		{Clamp{Knob: job.Method, To: "lora"}, "cannot turn method"},
		{Clamp{Knob: job.SeqLen}, "either a value to go to or a number of halvings"},
		{Clamp{Knob: job.SeqLen, To: "2048", Halve: 1}, "either a value"},
		{Clamp{Knob: job.SeqLen, To: "2k"}, "not a whole number"},
		{Clamp{Knob: job.SeqLen, To: "0"}, "not a whole number of 1 or more"},
		{Clamp{Knob: job.MicroBatch, To: "-1"}, "not a whole number"},
		{Clamp{Knob: job.SeqLen, Halve: -1}, "negative"},
		{Clamp{Knob: job.SeqLen, Halve: 1, Floor: -1}, "negative"},
		{Clamp{Knob: job.Packing, Halve: 1}, "cannot be halved"},
		{Clamp{Knob: job.Accumulation, Halve: 1}, "cannot be halved"},
		{Clamp{Knob: job.Packing, To: "no"}, "neither true nor false"},
		{Clamp{Knob: job.LoadIn4Bit, To: "true"}, "only takes 4-bit loading away"},
	} {
		p := Plan{Clamps: []Clamp{c.clamp}}
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.clamp, err, c.want)
		}
		if files, err := p.Files("/run/attempts/2"); err == nil || files != nil {
			t.Errorf("%+v: files without an error", c.clamp)
		}
	}
	twice := Plan{Clamps: []Clamp{{Knob: job.SeqLen, To: "1"}, {Knob: job.SeqLen, To: "2"}}}
	if err := twice.Check(); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Error(err)
	}
	if err := (Plan{Clamps: []Clamp{{Knob: job.NumWorkers, To: "0"}}}).Check(); err != nil {
		t.Error(err)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	files, err := shorter().Files("/run/attempts/2")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		rel, err := filepath.Rel("/run/attempts/2/shim", f.Path)
		if err != nil || strings.HasPrefix(rel, "..") || len(f.Content) == 0 || f.Mode != 0o644 {
			t.Errorf("%s %v: %v", f.Path, f.Mode, err)
		}
		names = append(names, rel)
		if rel != "plan.json" {
			continue
		}
		var got Plan
		if err := json.Unmarshal(f.Content, &got); err != nil {
			t.Fatal(err)
		}
		want := shorter()
		want.Schema = PlanSchema
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	for _, want := range []string{"plan.json", "sitecustomize.py", "sparkrun_shim/__init__.py", "sparkrun_shim/hook.py"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %q", want, names)
		}
	}
}

func TestEnv(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ path, want string }{
		{"", "/in/shim"},
		{"/a:/b", "/in/shim:/a:/b"},
		{":/a:", "/in/shim::/a:"},
	} {
		env, err := Plan{}.Env("/in", c.path)
		if diff := cmp.Diff([]string{"PYTHONPATH=" + c.want, "SPARKRUN_SHIM_PLAN=/in/shim/plan.json"}, env); diff != "" || err != nil {
			t.Error(diff, err)
		}
	}
	for _, dir := range []string{"/with:colon/attempts/2", "relative"} {
		if env, err := (Plan{}).Env(dir, ""); err == nil {
			t.Errorf("%s: %q", dir, env)
		}
		if err := CanUse(dir); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := CanUse("/run/attempts/2"); err != nil {
		t.Error(err)
	}
}

// The decisions of plan.py, over all small batches.
func TestTheProductNeverChanges(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, Plan{})
	got := a.run(false, "-c", `
import sys
sys.path.insert(0, sys.argv[1])
from sparkrun_shim.plan import Plan
plans = [{"to": str(to)} for to in (1, 2, 3, 4, 6, 8)] + [{"halve": h} for h in (1, 2, 3)] + [{"halve": 2, "floor": 2}]
plans += [{"from": "8", "to": "4"}]
count = 0
for clamp in plans:
    for more in ([], [{"knob": "accumulation", "from": "1", "to": "2"}]):
        for m in range(1, 65):
            for a in range(1, 6):
                p = Plan({"clamps": [dict(clamp, knob="micro_batch")] + more})
                m2, a2 = p.batch(m, a)
                assert m2 * a2 == m * a, (clamp, m, a, m2, a2)
                assert m2 <= m and m % m2 == 0
                if "to" in clamp: assert m2 <= int(clamp["to"])
                if m2 != m: assert p.batch(m2, a2) == (m2, a2), (clamp, m, a)
                count += 1
for value in (None, True, "x", 0, -1, 2.5, float("nan"), float("inf"), [], object()):
    p = Plan({"clamps": [{"knob": "seq_len", "to": "5"}, {"knob": "micro_batch", "halve": 1}]})
    assert p.size("seq_len", value) is value and p.batch(value, 1) == (value, 1)
for n in range(1, 9000, 7):
    p = Plan({"clamps": [{"knob": "seq_len", "halve": 2, "floor": 1024}]})
    v = p.size("seq_len", n)
    assert v <= n and (v == n or v >= 1024) and v >= n // 4 and p.size("seq_len", v) == v
print(count)
`, filepath.Join(a.dir, CodeDir))
	if strings.TrimSpace(got.stdout) != "7040" || got.stderr != "" {
		t.Errorf("%+v", got)
	}
}
