package ladder

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/job"
	"sparkrun/ladder/oom"
)

// outcomes says what the ladder makes of every word that a verdict can have as its
// lever: "rung", "again" (the same settings) or "stop". A word may stand with a cause,
// or with a cause and a kind; the longest one counts.
var outcomes = map[string]string{
	"length":      "rung",
	"micro-batch": "rung",
	"eval-batch":  "rung",
	"optimizer":   "rung",
	"drop-caches": "stop", // a death in loading, and the caches held nothing

	// Better than a rung, for somebody who is awake.
	"expandable-segments": "rung",
	"pin-memory":          "rung",
	"offload":             "rung",
	"memory-growth":       "rung",
	"memory-fraction":     "rung",
	"address-limit":       "rung",

	"workers":                   "rung",
	"workers fork":              "stop",
	"workers worker host-alloc": "stop",
	"workers worker cgroup-oom": "stop",
	"workers worker kernel-oom": "rung",

	"wait": "again",

	"no-expandable-segments": "stop",
	"overcommit":             "stop",
	"dataset":                "stop",
	"map-count":              "stop",
	"shm":                    "stop",
	"disk":                   "stop",
	"max-jobs":               "stop",
	"vllm-utilisation-up":    "stop",
	"vllm-utilisation-down":  "stop",
	"fewer-actors":           "stop",
	"kernel-config":          "stop",
	"install":                "stop",
	"resume":                 "stop",
	"none":                   "stop", // of a death that is not memory
}

// causesOf are the words that the verdict has as causes and that lead to no lever of
// their own: what the ladder does then is what it does for the kind.
var causesOf = []string{"broken-allocator"}

// A lever or a cause that the table of the verdict has gets an outcome here, or this
// fails: none is forgotten.
func TestEveryLeverHasItsOutcome(t *testing.T) {
	t.Parallel()
	tab, err := oom.Load()
	if err != nil {
		t.Fatal(err)
	}
	// Words for deaths that are not memory, and the kinds that a cause goes with.
	notMemory, kindsOf, causes := map[string]bool{}, map[string][]string{}, map[string]bool{}
	for i := range tab.Patterns {
		p := &tab.Patterns[i]
		if p.Reason != "" {
			notMemory[p.Reason] = true
		}
		if p.Cause != "" {
			kindsOf[p.Cause] = append(kindsOf[p.Cause], p.Kind)
			causes[p.Cause] = true
		}
	}
	for i := range tab.Patterns {
		delete(notMemory, tab.Patterns[i].Kind)
	}
	for _, f := range tab.CauseFrames {
		kindsOf[f.Cause] = append(kindsOf[f.Cause], f.Kinds...)
		causes[f.Cause] = true
	}
	// Those that code finds.
	for cause, kinds := range map[string][]string{
		"worker":        {"host-alloc", "cgroup-oom", "kernel-oom"},
		"driver-memory": {"kernel-oom", "cgroup-oom"},
		"address-limit": {"host-alloc"},
	} {
		kindsOf[cause] = append(kindsOf[cause], kinds...)
	}
	for _, a := range tab.Advice {
		for _, c := range a.Causes {
			causes[c] = true
		}
	}
	l := spark(t)
	used, levered := map[string]bool{"none": true}, map[string]bool{}
	for _, e := range tab.Levers {
		for _, cause := range orOne(e.Causes, "") {
			levered[cause] = true
			kinds := e.Kinds
			if len(kinds) == 0 {
				kinds = orOne(kindsOf[cause], "cuda-allocator")
			}
			for _, kind := range kinds {
				key, want := e.Lever, ""
				for _, k := range []string{e.Lever + " " + cause + " " + kind, e.Lever + " " + cause, e.Lever} {
					if w, ok := outcomes[k]; ok {
						key, want = k, w
						break
					}
				}
				used[key] = true
				phase := string(e.Phase)
				if phase == "" {
					phase = "train"
				}
				if got := outcome(t, l, Past{Lever: e.Lever, Cause: cause, Kind: kind, Phase: phase}, notMemory[kind]); got != want {
					t.Errorf("lever %s, cause %q, kind %s, phase %s: %s, want %q", e.Lever, cause, kind, phase, got, want)
				}
			}
		}
	}
	for key := range outcomes {
		if !used[key] {
			t.Errorf("no verdict has %q as its lever any more", key)
		}
	}
	for c := range causes {
		if levered[c] == slices.Contains(causesOf, c) {
			t.Errorf("cause %s: either it has a lever or it stands in causesOf", c)
		}
	}
	if got := outcome(t, l, Past{Lever: "none", Phase: "train"}, true); got != outcomes["none"] {
		t.Errorf("none: %s", got)
	}
	// Every lever that bars the ladder is one that a verdict can have.
	for _, n := range l.rules.NoRungLevers {
		if _, ok := outcomes[n.Lever]; !ok {
			t.Errorf("no verdict has the lever %s", n.Lever)
		}
	}
}

func orOne(list []string, one string) []string {
	if len(list) == 0 {
		return []string{one}
	}
	return list
}

// outcome is what follows the first death of a job with every setting, where dropping
// caches freed nothing to speak of.
func outcome(t *testing.T, l Ladder, p Past, notMemory bool) string {
	t.Helper()
	s := deaths("seq_len=4096 micro_batch=8 accumulation=1 eval_batch=8 num_workers=4 method=lora", func(q *Past) {
		q.Lever, q.Cause, q.Kind, q.Phase, q.Duration = p.Lever, p.Cause, p.Kind, p.Phase, time.Minute
		if notMemory {
			q.Answer, q.Reason, q.Kind = AnswerNotOOM, p.Kind, ""
		}
	})
	d := l.Next(s)
	switch {
	case d.Act == "stop":
		if strings.TrimSpace(d.Why) == "" {
			t.Errorf("%s: a stop without a reason", p.Lever)
		}
		return "stop"
	case len(d.Step) > 0:
		if d.Step[0].Knob == job.MicroBatch {
			t.Errorf("%s: batch first", p.Lever)
		}
		return "rung"
	}
	return "again"
}
