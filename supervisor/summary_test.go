package supervisor

import (
	"strings"
	"testing"
	"time"

	"sparkrun/internal/sample"
)

func TestSummaryFitsEightLines(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 14, 3, 4, 5, 0, time.UTC)
	f := Facts{
		State: Exhausted, Status: 75, FirstStep: 1, LastStep: 40, StepTotal: 100,
		FirstLoss: sample.Known(2.5), LastLoss: sample.Known(1.25), Checkpoint: "out/checkpoint-40",
		Gate: time.Minute, Throttled: 90 * time.Second, LowestKiB: sample.Known(3 << 20), LowestAt: at, HottestC: sample.Known(83),
		RunDir: "/runs/x", Next: "something", Advice: "do this", Took: 5 * time.Hour,
	}
	for n := 1; n <= 9; n++ {
		f.Attempts = append(f.Attempts, AttemptFacts{N: n, End: at, Took: time.Minute, Died: true, How: "exit 1", Verdict: "oom (cuda-allocator)", Quote: strings.Repeat("long ", 100)})
		lines := Summary(f)
		if len(lines) > MaxSummaryLines {
			t.Fatalf("%d attempts: %d lines\n%s", n, len(lines), strings.Join(lines, "\n"))
		}
		all := strings.Join(lines, "\n")
		for _, want := range []string{"status 75", "loss 2.5 to 1.25", "checkpoint-40", "waiting for memory", "throttled", "lowest MemAvailable 3.0 GiB", "hottest 83 C", "/runs/x", "next: something", "attempt " + string(rune('0'+n)) + " died 03:04:05 (exit 1): oom (cuda-allocator): long"} {
			if !strings.Contains(all, want) {
				t.Errorf("%d attempts: %q is missing in\n%s", n, want, all)
			}
		}
	}
}

func TestSummarySaysWhetherItIsStillTheExperiment(t *testing.T) {
	t.Parallel()
	f := Facts{State: SucceededChanged, Attempts: []AttemptFacts{{N: 1, Died: true}, {N: 2}}, Changes: []string{"length 4096 -> 2048"}}
	if got := Summary(f)[0]; !strings.Contains(got, "succeeded in 2 attempts, but not as asked: length 4096 -> 2048") {
		t.Error(got)
	}
	f.State = Succeeded
	if got := Summary(f)[0]; !strings.Contains(got, "exactly as asked") {
		t.Error(got)
	}
}

func TestSummaryWithoutReadings(t *testing.T) {
	t.Parallel()
	all := strings.Join(Summary(Facts{State: Failed, Status: 1, Attempts: []AttemptFacts{{N: 1, Died: true}}}), "\n")
	for _, never := range []string{"MemAvailable", "hottest", "loss", "0 C"} {
		if strings.Contains(all, never) {
			t.Errorf("%q although nothing was read:\n%s", never, all)
		}
	}
}
