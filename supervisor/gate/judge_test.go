package gate

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const g = 1 << 20 // a GiB in KiB

// spark is a reading of a machine with 121 GiB of which lost are booked to nobody.
func spark(at time.Duration, avail, lost float64) Reading {
	return Reading{
		At: at, Known: true, TotalKiB: 121 * g, AvailKiB: uint64(avail * g), FreeKiB: uint64(avail * g),
		UnaccountedKiB: uint64(lost * g), UnaccountedKnown: true,
	}
}

// still are readings of the same value each second up to a time; the last has the
// holders.
func still(until time.Duration, avail, lost float64, gpu, others []Holder) []Reading {
	var rs []Reading
	for at := max(0, until-40*time.Second); at <= until; at += time.Second {
		rs = append(rs, spark(at, avail, lost))
	}
	last := &rs[len(rs)-1]
	last.Asked, last.GPUKnown, last.GPUOther, last.Others = true, true, gpu, others
	return rs
}

func holder(pid int, name, how string, gib, grew float64) Holder {
	return Holder{PID: pid, Comm: name, How: how, KiB: uint64(gib * g), GrewKiB: uint64(grew * g), Alive: true}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	goal := Goal{StartKiB: 118 * g, BestIdleKiB: 118 * g, PeakKiB: 100 * g, StartUnaccountedKiB: 1 * g}
	peak := func(gib uint64) Goal { q := goal; q.PeakKiB = gib * g; return q }
	blind := func(rs []Reading) []Reading { rs[len(rs)-1].GPUKnown = false; return rs }
	vllm := []Holder{holder(77, "vllm", "gpu", 60, 60)}
	desktop := []Holder{holder(5, "firefox", "rss", 6, 3.5), holder(6, "gnome-shell", "rss", 1, 0.2)}
	oursStuck := holder(9, "python", "gpu", 80, 80)
	oursStuck.Ours = true
	dead := holder(9, "python", "gpu", 80, 80)
	dead.Alive = false
	unsized := holder(88, "ollama", "gpu", 0, 0)
	server := []Holder{holder(77, "vllm", "gpu", 40, 0)} // there before attempt 1
	contextOnly := oursStuck
	contextOnly.KiB = 0
	sensors := holder(10, "sparkrun", "rss", 0.5, 0.5)
	sensors.Ours = true

	tests := []struct {
		name string
		goal Goal
		rs   []Reading
		want Verdict
		says string
	}{
		{"start unknown", Goal{BestIdleKiB: 118 * g}, []Reading{spark(0, 5, 0)}, Open, "not known"},
		{"nothing read yet", goal, nil, Waiting, ""},
		{"figures cannot be read once", goal, []Reading{{}}, Waiting, "just now"},
		{"figures cannot be read", goal, []Reading{{}, {At: 2 * time.Second}}, Open, "cannot be read"},
		{"one failed reading is no news", goal, []Reading{spark(0, 10, 100), {At: time.Second}}, Waiting, "10.0 GiB"},
		{"back at once", goal, []Reading{spark(0, 117, 1)}, Open, "memory is back"},
		{"2 GiB less is back", goal, []Reading{spark(0, 116, 1)}, Open, ""},
		{"more than 2 GiB less is not", goal, []Reading{spark(0, 115.9, 1)}, Waiting, "waiting for 116.0"},
		{"the boot's best counts when the start was poor", Goal{StartKiB: 90 * g, BestIdleKiB: 118 * g}, []Reading{spark(0, 95, 20)}, Waiting, "waiting for 116.0"},
		{
			"more than the machine has is not waited for",
			Goal{StartKiB: 200 * g, BestIdleKiB: 300 * g},
			[]Reading{spark(0, 119.5, 0)},
			Open, "",
		},
		{
			"8 GB: half a GiB missing is much",
			Goal{StartKiB: 7 * g},
			[]Reading{{Known: true, TotalKiB: 8 * g, AvailKiB: 6*g + g/2}},
			Waiting, "waiting for 6.6",
		},
		{"8 GB: within a twentieth", Goal{StartKiB: 7 * g}, []Reading{{Known: true, TotalKiB: 8 * g, AvailKiB: 6*g + 700<<10}}, Open, ""},

		{"first minute, whatever is known", goal, still(59*time.Second, 50, 61, vllm, nil), Waiting, ""},
		{"nothing alive holds it, but five minutes are not over", goal, still(4*time.Minute, 50, 70, []Holder{}, nil), Waiting, "retained"},
		{"retained, and the peak does not fit", goal, still(5*time.Minute, 40, 81, []Holder{}, nil), Stop, "reboot needed: 80.0 GiB retained"},
		{"retained, and the peak fits", peak(30), still(5*time.Minute, 40, 81, []Holder{}, nil), OpenTight, "the 30.0 GiB the last attempt used at most"},
		{"retained: NVML still names a dead process", goal, still(5*time.Minute, 40, 81, []Holder{dead}, nil), Stop, "reboot needed: 80.0"},
		{"retained, peak unknown: nine tenths of the start", Goal{StartKiB: 118 * g, StartUnaccountedKiB: g}, still(5*time.Minute, 105, 14, []Holder{}, nil), Stop, "taken as 106.2 GiB"},
		{"retained, peak unknown, nearly all there", Goal{StartKiB: 118 * g, StartUnaccountedKiB: g}, still(5*time.Minute, 107, 12, []Holder{}, nil), OpenTight, ""},

		{"a living outsider is waited for", goal, still(30*time.Minute, 57, 61, vllm, nil), Waiting, "vllm (pid 77): 60.0 GiB of GPU memory"},
		{"and not for ever", goal, still(60*time.Minute, 57, 61, vllm, nil), Stop, "vllm (pid 77)"},
		{"a shorter limit", Goal{StartKiB: 118 * g, PeakKiB: 100 * g, Limit: 10 * time.Minute}, still(10*time.Minute, 57, 61, vllm, nil), Stop, "vllm"},
		{"the outsider leaves enough for the last peak", peak(50), still(61*time.Second, 57, 61, vllm, nil), OpenTight, "vllm"},
		{"enough but for the reserve", Goal{StartKiB: 118 * g, PeakKiB: 55 * g, ReserveKiB: 4 * g, StartUnaccountedKiB: g}, still(20*time.Minute, 57, 61, vllm, nil), Waiting, ""},
		{"a desktop grew by 3 GiB and the peak fits: a minute, not an hour", peak(112), still(61*time.Second, 114.6, 1, []Holder{}, desktop), OpenTight, "firefox (pid 5)"},
		{"and less where the driver holds nothing", peak(112), still(20*time.Second, 114.6, 1, []Holder{}, desktop), OpenTight, "firefox (pid 5)"},
		{"which must be watched for 20 s", peak(112), still(19*time.Second, 114.6, 1, []Holder{}, desktop), Waiting, ""},
		{"the driver still holds something", peak(112), still(59*time.Second, 114.6, 4, []Holder{}, desktop), Waiting, ""},
		{"a desktop grew by 3 GiB, peak not known", Goal{StartKiB: 118 * g}, still(61*time.Second, 114.6, 1, []Holder{}, desktop), OpenTight, ""},
		{
			"a GPU with memory of its own: a server on it is not what is missing here", peak(30),
			still(15*time.Minute, 57, 1, vllm, nil), OpenTight, "enough for the 30.0 GiB the last attempt used at most: MemAvailable is 57.0 GiB",
		},
		{"and is no reason to wait for it", goal, still(15*time.Minute, 57, 1, vllm, nil), Stop, "nobody could be found"},
		{"the start is back, the boot's best is not: five minutes, not fifteen", Goal{StartKiB: 90 * g, BestIdleKiB: 118 * g, PeakKiB: 80 * g}, still(5*time.Minute, 95, 2, []Holder{}, nil), OpenTight, ""},
		{"NVML does not say how much ollama holds", goal, still(6*time.Minute, 57, 61, []Holder{unsized}, nil), Waiting, "does not say how much"},

		{"a server that was there before: only the boot's best is missing", Goal{StartKiB: 77 * g, BestIdleKiB: 118 * g, PeakKiB: 76 * g}, still(0, 77, 41, server, nil), Open, "held by vllm (pid 77)"},
		{"a server that was there before, and the rest is retained", Goal{StartKiB: 77 * g, BestIdleKiB: 118 * g, PeakKiB: 76 * g, StartUnaccountedKiB: 41 * g}, still(5*time.Minute, 50, 68, server, nil), Stop, "reboot needed: 27.0"},

		{"nobody found: ten minutes more", peak(30), still(14*time.Minute, 40, 1, []Holder{}, nil), Waiting, ""},
		{"nobody found, the peak fits", peak(30), still(15*time.Minute, 40, 1, []Holder{}, nil), OpenTight, ""},
		{"nobody found, it does not", goal, still(15*time.Minute, 40, 1, []Holder{}, nil), Stop, "nobody could be found"},
		{"the GPU cannot be asked: no quick word of a reboot", goal, blind(still(6*time.Minute, 40, 81, nil, nil)), Waiting, ""},
		{"the GPU cannot be asked, in the end", goal, blind(still(15*time.Minute, 40, 81, nil, nil)), Stop, "most likely"},
		{"one of ours that will not die", peak(30), still(20*time.Minute, 40, 81, []Holder{oursStuck}, nil), Waiting, "of this run"},
		{"one of ours on the GPU, NVML does not say with how much", peak(30), still(20*time.Minute, 40, 81, []Holder{contextOnly}, nil), Waiting, "of this run"},
		{"sparkrun itself is nobody", peak(30), still(5*time.Minute, 40, 81, []Holder{}, []Holder{sensors}), OpenTight, "retained by the GPU driver"},
		{"one of ours, at the limit", peak(30), still(60*time.Minute, 40, 81, []Holder{oursStuck}, nil), Stop, "python (pid 9): 80.0 GiB of GPU memory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := Judge(tt.goal, tt.rs)
			if d.Verdict != tt.want || !strings.Contains(d.Why, tt.says) {
				t.Errorf("%v: %s\nwant %v with %q", d.Verdict, d.Why, tt.want, tt.says)
			}
			if reboot := strings.HasPrefix(d.Why, "reboot needed"); reboot != (d.RebootGiB > 0) {
				t.Errorf("%q with RebootGiB %g", d.Why, d.RebootGiB)
			}
		})
	}
}

// TestSharedMemoryIsCountedOnce: ten processes that have the same 5 GiB mapped
// hold 5 GiB, not the 50 that are missing.
func TestSharedMemoryIsCountedOnce(t *testing.T) {
	t.Parallel()
	var hs []Holder
	for i := range 10 {
		hs = append(hs, holder(100+i, "postgres", "shmem", 5, 5))
	}
	rs := still(15*time.Minute, 67, 1, []Holder{}, hs)
	for i := range rs {
		rs[i].ShmemKiB = 6 * g
	}
	d := Judge(Goal{StartKiB: 118 * g, PeakKiB: 100 * g, StartShmemKiB: g, StartUnaccountedKiB: g}, rs)
	if d.Verdict != Stop || !strings.Contains(d.Why, "nobody could be found") {
		t.Errorf("%v: %s", d.Verdict, d.Why)
	}
}

// TestOrphanedSharedMemory: it does not come back by waiting nor by a reboot's
// advice; a person can remove it.
func TestOrphanedSharedMemory(t *testing.T) {
	t.Parallel()
	goal := Goal{StartKiB: 118 * g, PeakKiB: 100 * g, StartShmemKiB: g, StartUnaccountedKiB: g}
	rs := still(15*time.Minute, 57, 1, []Holder{}, nil)
	for i := range rs {
		rs[i].ShmemKiB = 61 * g
	}
	d := Judge(goal, rs)
	if d.Verdict != Stop || !strings.Contains(d.Why, "60.0 GiB are shared memory that no process has mapped") || d.RebootGiB != 0 {
		t.Errorf("%+v", d)
	}
	if n := len(d.Holders); n != 1 || d.Holders[0].KiB != 60*g || d.Holders[0].PID != 0 {
		t.Errorf("holders %+v", d.Holders)
	}
	// The same memory, mapped by many who count it each.
	rs[len(rs)-1].Others = []Holder{holder(3, "postgres", "shmem", 60, 60), holder(4, "postgres", "shmem", 60, 60)}
	if d := Judge(goal, rs); d.Verdict != Waiting || !strings.Contains(d.Why, "postgres (pid 3): 60.0 GiB shared") {
		t.Errorf("%+v", d)
	}
}

func TestClimbing(t *testing.T) {
	t.Parallel()
	goal := Goal{StartKiB: 118 * g, PeakKiB: 100 * g, StartUnaccountedKiB: g}
	climb := func(from time.Duration, perSecond float64) []Reading {
		var rs []Reading
		for i := range 40 {
			rs = append(rs, spark(from+time.Duration(i)*time.Second, 40+float64(i)*perSecond, 60))
		}
		rs[len(rs)-1].Asked, rs[len(rs)-1].GPUKnown = true, true
		return rs
	}
	if d := Judge(goal, climb(10*time.Minute, 0.1)); d.Verdict != Waiting {
		t.Errorf("it climbs by 2 GiB in 20 s and was ended: %s", d.Why)
	}
	if d := Judge(goal, climb(10*time.Minute, 0.01)); d.Verdict != Stop {
		t.Errorf("it creeps by 0.2 GiB in 20 s: %v, %s", d.Verdict, d.Why)
	}
	if d := Judge(goal, climb(60*time.Minute, 0.1)); d.Verdict != Stop {
		t.Errorf("it climbs past the limit: %v, %s", d.Verdict, d.Why)
	}
	// The very first readings of a wait that began late say nothing yet.
	if d := Judge(goal, climb(10*time.Minute, 0)[:5]); d.Verdict != Waiting {
		t.Errorf("judged after 5 s of watching: %v", d.Verdict)
	}
}

// TestJudgeAlwaysEnds: whatever the values, the limit ends the wait, more memory
// never closes an open gate, and a tight opening always fits.
func TestJudgeAlwaysEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		kib := rapid.OneOf(rapid.Uint64Range(0, 200*g), rapid.Just(uint64(0)), rapid.Uint64())
		goal := Goal{
			StartKiB: kib.Draw(t, "start"), BestIdleKiB: kib.Draw(t, "idle"), PeakKiB: kib.Draw(t, "peak"),
			StartShmemKiB: kib.Draw(t, "shmem0"), StartUnaccountedKiB: kib.Draw(t, "lost0"),
			Limit: time.Duration(rapid.IntRange(0, 7200).Draw(t, "limit")) * time.Second,
		}
		var hs [2][]Holder
		for range rapid.IntRange(0, 4).Draw(t, "holders") {
			h := Holder{
				PID: rapid.IntRange(1, 9).Draw(t, "pid"), KiB: kib.Draw(t, "kib"), GrewKiB: kib.Draw(t, "grew"),
				How: rapid.SampledFrom([]string{"gpu", "rss", "shmem"}).Draw(t, "how"), Alive: rapid.Bool().Draw(t, "alive"), Ours: rapid.Bool().Draw(t, "ours"),
			}
			i := 1
			if h.How == "gpu" {
				i = 0
			}
			hs[i] = append(hs[i], h)
		}
		at := time.Duration(rapid.IntRange(0, 8000).Draw(t, "at")) * time.Second
		rs := still(at, 0, 0, hs[0], hs[1])
		for i := range rs {
			rs[i].TotalKiB, rs[i].AvailKiB = 121*g, rapid.Uint64Range(0, 121*g).Draw(t, "avail")
			rs[i].ShmemKiB, rs[i].UnaccountedKiB = kib.Draw(t, "shmem"), kib.Draw(t, "lost")
		}
		d := Judge(goal, rs)
		if at >= limit(goal) && d.Verdict == Waiting {
			t.Fatalf("waits at %v with a limit of %v: %+v", at, limit(goal), d)
		}
		last := &rs[len(rs)-1]
		if d.Verdict == OpenTight && goal.PeakKiB > last.AvailKiB {
			t.Fatalf("opens for a peak of %d with %d: %s", goal.PeakKiB, last.AvailKiB, d.Why)
		}
		if d.Why == "" {
			t.Fatalf("%v without a word", d.Verdict)
		}
		if d.Verdict == Open {
			last.AvailKiB = 121 * g
			if more := Judge(goal, rs); more.Verdict != Open {
				t.Fatalf("open with less, %v with all: %s", more.Verdict, more.Why)
			}
		}
	})
}
