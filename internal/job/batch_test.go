package job

import "testing"

func TestEffectiveBatch(t *testing.T) {
	t.Parallel()
	set := func(pairs ...string) Knobs {
		k := Knobs{}
		for i := 0; i < len(pairs); i += 2 {
			k[Knob(pairs[i])] = Setting{Value: pairs[i+1]}
		}
		return k
	}
	for name, c := range map[string]struct {
		j    Job
		want int64 // 0 is unknown
	}{
		"micro x accumulation":         {Job{Knobs: set("micro_batch", "8", "accumulation", "2")}, 16},
		"over the devices":             {Job{Knobs: set("micro_batch", "8", "accumulation", "2"), Procs: 2}, 32},
		"over the machines":            {Job{Knobs: set("micro_batch", "8", "accumulation", "2"), Procs: 2, Nodes: 2}, 64},
		"no accumulation known":        {Job{Knobs: set("micro_batch", "8")}, 0},
		"a global batch":               {Job{Family: "global", Knobs: set("micro_batch", "8", "global_batch", "256")}, 256},
		"global, but not known":        {Job{Family: "global", Knobs: set("micro_batch", "8", "accumulation", "2")}, 0},
		"a global batch that is unset": {Job{Family: "global", Knobs: set("micro_batch", "8", "global_batch", "-1")}, 0},
		"numbers that overflow":        {Job{Knobs: set("micro_batch", "4000000000000", "accumulation", "4000000000000")}, 0},
		"a word":                       {Job{Knobs: set("micro_batch", "auto", "accumulation", "2")}, 0},
	} {
		got := c.j.EffectiveBatch()
		switch {
		case got == nil && c.want != 0:
			t.Errorf("%s: unknown, want %d", name, c.want)
		case got != nil && *got != c.want:
			t.Errorf("%s: %d, want %d", name, *got, c.want)
		}
	}
}

func TestTrainingMethod(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"full": "full", "lora": "lora", "qlora": "qlora", "": "unknown", "dora": "unknown"} {
		j := Job{Knobs: Knobs{Method: {Value: value}}}
		if got := j.TrainingMethod(); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}
