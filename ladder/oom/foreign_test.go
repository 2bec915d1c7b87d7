package oom

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sparkrun/internal/sample"
)

// foreignRecords are about somebody else: no case names their pids, units or jobs.
var foreignRecords = []string{
	"[99100.1] Out of memory: Killed process 991 (chrome) total-vm:9000000kB, anon-rss:7000000kB, file-rss:0kB, shmem-rss:0kB, UID:1000",
	"Memory cgroup out of memory: Killed process 990017 (java) total-vm:9000000kB, anon-rss:7000000kB, file-rss:0kB, shmem-rss:0kB",
	"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice/user-7.slice,task=firefox,pid=990018,uid=7",
	"Jul 12 09:00:00 host systemd-oomd[840]: Killed /user.slice/user-7.slice/app-other-99.scope due to memory pressure for /user.slice being 61.07% > 50.00% for > 20s",
	"Jul 12 09:00:00 host systemd[2204]: app-other-99.scope: systemd-oomd killed 12 process(es) in this unit.",
	"slurmstepd: error: Detected 1 oom-kill event(s) in StepId=990019.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.",
	"slurmstepd: error: Job 990019 exceeded memory limit (67108900 > 67108864), being killed",
	"      Reason:       OOMKilled",
	`earlyoom[1295]: sending SIGTERM to process 990020 uid 7 "java": oom_score 1170, VmRSS 43912 MiB`,
	"nohang[612]: Sending SIGTERM to the victim, pid 990021",
	"slurmstepd: error: *** JOB 990019 ON node07 CANCELLED AT 2021-03-04T10:11:02 DUE TO TIME LIMIT ***",
	"[99100.1] Out of memory: Killed process 990022 (python3) total-vm:9000000kB, anon-rss:7000000kB, file-rss:0kB, shmem-rss:0kB, UID:1000",
}

// Whatever happened to others, a verdict that text and status decide stays.
func TestForeignRecordsNeverFlipWhatIsDecided(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	type known struct {
		reduced
		before Verdict
	}
	var cases []known
	for _, c := range reducedCases(t) {
		if c.system != "" {
			continue
		}
		// A death by SIGKILL or SIGTERM that the text does not explain is what records
		// are for.
		v := tab.Decide(c.evidence(tab))
		if sig := signalOf(c.evidence(tab).Exit); v.Answer == Unsure || (sig == "SIGKILL" || sig == "SIGTERM") && v.Confidence != High && v.Answer == NotOOM || word(v) == "no-sign" || word(v) == "terminated" {
			continue
		}
		cases = append(cases, known{c, v})
	}
	if len(cases) < 200 {
		t.Fatalf("only %d cases", len(cases))
	}
	check := func(c known, records []string) {
		t.Helper()
		ev := c.evidence(tab)
		SystemLines(&ev, records)
		if v := tab.Decide(ev); v.Answer != c.before.Answer || v.Kind != c.before.Kind || v.Reason != c.before.Reason {
			t.Errorf("%s: %s %s became %s %s by %q", c.name, c.before.Answer, word(c.before), v.Answer, word(v), records)
		}
	}
	for i, c := range cases {
		if raced && i%8 != 0 {
			continue // a pure function races with nobody
		}
		for _, r := range foreignRecords {
			check(c, []string{r})
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		check(rapid.SampledFrom(cases).Draw(rt, "case"), rapid.SliceOfN(rapid.SampledFrom(foreignRecords), 2, 6).Draw(rt, "records"))
	})
}

func TestForeignTies(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	k := func(pid, comm string) string {
		return "Out of memory: Killed process " + pid + " (" + comm + ") total-vm:9kB, anon-rss:7kB, file-rss:0kB, shmem-rss:0kB"
	}
	const step = "step 4 loss 1.0\n"
	for name, c := range map[string]struct {
		log, record string
		exit        Exit
		want        string
	}{
		"interrupted":                  {step + "^C", k("991", "chrome"), Exit{Known: true, Code: 130}, "not-oom user high"},
		"a crash":                      {step, k("991", "chrome"), Exit{Known: true, Signal: "SIGSEGV"}, "not-oom segfault medium"},
		"an abort":                     {step, k("991", "python3"), Exit{Known: true, Code: 134}, "not-oom abort medium"},
		"a failure":                    {step, k("991", "python3"), Exit{Known: true, Code: 1}, "not-oom error medium"},
		"a success":                    {step, k("991", "python3"), Exit{Known: true}, "not-oom success high"},
		"killed, by another name":      {step, k("991", "chrome"), Exit{Known: true, Code: 137}, "oom kernel-oom medium"},
		"killed, as interpreters are":  {step, k("991", "python3.12"), Exit{Known: true, Code: 137}, "oom kernel-oom high"},
		"killed, by the log's name":    {"/opt/bin/onmt_train --x\n" + step, k("991", "onmt_train"), Exit{Known: true, Signal: "SIGKILL"}, "oom kernel-oom high"},
		"the log names the pid":        {"RuntimeError: DataLoader worker (pid 629) is killed by signal: Killed.", k("629", "x"), Exit{Known: true, Code: 1}, "oom kernel-oom high"},
		"a step is no pid":             {"step 629 loss 1.0\n", k("629", "chrome"), Exit{Known: true, Code: 1}, "not-oom error medium"},
		"a launcher saw a kill":        {"E0411 api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 803) of binary: python", k("991", "chrome"), Exit{Known: true, Code: 1}, "oom kernel-oom medium"},
		"nobody saw the end":           {step, k("991", "chrome"), Exit{}, "unsure needs-samples low"},
		"nobody saw a trainer's end":   {step, k("991", "python3"), Exit{}, "unsure needs-samples low"},
		"a container by its id":        {"container 4f2e5d0c9b8a7766 started\n" + step, "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/docker/4f2e5d0c9b8a7766aa,task_memcg=/docker/4f2e5d0c9b8a7766aa,task=x,pid=9,uid=0", Exit{Known: true, Code: 1}, "oom cgroup-oom high"},
		"a unit by its name":           {"Running scope as unit: run-u42.scope\n" + step, "run-u42.scope: systemd-oomd killed 12 process(es) in this unit.", Exit{Known: true, Code: 1}, "oom systemd-oomd high"},
		"a job with zeros in front":    {"/var/spool/slurmd/job00191/slurm_script\n" + step, "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup. Some", Exit{Known: true, Code: 1}, "oom cgroup-oom high"},
		"another job":                  {"/var/spool/slurmd/job01911/slurm_script\n" + step, "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup. Some", Exit{Known: true, Code: 1}, "not-oom error medium"},
		"a limit of another job":       {step, "slurmstepd: error: *** JOB 37120 ON node07 CANCELLED AT 2021-03-04T10:11:02 DUE TO TIME LIMIT ***", Exit{Known: true, Code: 1}, "not-oom error medium"},
		"two days before":              {"2026-07-16 10:00:00 " + step, "Jul 14 09:00:00 host kernel: " + k("991", "python3"), Exit{Known: true, Code: 137}, "unsure needs-samples low"},
		"over a new year":              {"2026-01-01 00:30:00 " + step, "Dec 31 23:59:00 host kernel: " + k("991", "python3"), Exit{Known: true, Code: 137}, "oom kernel-oom high"},
		"another zone":                 {"2026-07-16 10:00:00 " + step, "Jul 15 21:00:00 host kernel: " + k("991", "python3"), Exit{Known: true, Code: 137}, "oom kernel-oom high"},
		"tied, and two days before":    {"2026-07-16 10:00:00 worker (pid 629) is killed by signal: Killed.\n", "Jul 14 09:00:00 host kernel: " + k("629", "x"), Exit{Known: true, Code: 1}, "oom kernel-oom medium"},
		"earlyoom ends with a SIGTERM": {step, `earlyoom[1295]: sending SIGTERM to process 906175 uid 1000 "java": oom_score 1170, VmRSS 43912 MiB`, Exit{Known: true, Code: 143}, "oom earlyoom medium"},
		"the kernel does not":          {step, k("991", "python3"), Exit{Known: true, Code: 143}, "not-oom terminated medium"},
	} {
		ev := Evidence{Exit: c.exit, Output: scanText(tab, c.log)}
		SystemLines(&ev, []string{c.record})
		v := tab.Decide(ev)
		if got := string(v.Answer) + " " + word(v) + " " + string(v.Confidence); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		noted := slices.ContainsFunc(v.Evidence, func(it Item) bool { return strings.Contains(it.Text, "days away") })
		if noted != strings.Contains(name, "two days") {
			t.Errorf("%s: the other day is noted: %v", name, noted)
		}
	}
}

// A death without a word has a phase too.
func TestPhaseWithoutAHit(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	guard := &GuardAction{T: t0, Why: "hard-floor", AvailKiB: sample.Known(1 << 20)}
	killed := Exit{Known: true, Signal: "SIGKILL", T: t0}
	const steps = "step 4 loss 1.0\nstep 5 loss 1.0\n"
	for name, c := range map[string]struct {
		log, guardPhase string
		ev              Evidence
		want            Phase
	}{
		"the guard saw no step":        {"config read\n", "load", Evidence{Guard: guard}, PhaseLoad},
		"the text says more":           {"***** Running training *****\n", "load", Evidence{Guard: guard}, PhaseTrain},
		"the guard saw steps":          {"config read\n", "run", Evidence{Guard: guard}, PhaseTrain},
		"weights were being read":      {"Loading checkpoint shards:  50%|##  | 1/2 [00:01<00:01]\n", "", Evidence{Guard: guard}, PhaseLoad},
		"steps were made":              {steps, "", Evidence{Guard: guard}, PhaseTrain},
		"a profile saw them":           {"x\n", "load", Evidence{Guard: guard, StepsDone: true, LastStep: 7}, PhaseTrain},
		"evaluation had begun":         {steps + "***** Running Evaluation *****\n  Num examples = 9\n", "run", Evidence{Guard: guard}, PhaseEval},
		"its bar moves":                {steps + "***** Running Evaluation *****\n  4%|4  | 1/25 [00:01<00:30,  1.20s/it]\n  8%|8  | 2/25 [00:02<00:30,  1.20s/it]\n", "run", Evidence{Guard: guard}, PhaseEval},
		"a bar with a name":            {steps + "Validation DataLoader 0:  21%|##  | 5/24 [00:01<00:03,  8.10it/s]\nValidation DataLoader 0:  25%|##  | 6/24 [00:01<00:03,  8.10it/s]\n", "run", Evidence{Guard: guard}, PhaseEval},
		"a bar cut short":              {steps + "Validation:   1%", "run", Evidence{Guard: guard}, PhaseEval},
		"evaluating":                   {steps + "Evaluating:   1%|   | 1/99 [00:01<00:03]", "run", Evidence{Guard: guard}, PhaseEval},
		"it was over":                  {steps + "***** Running Evaluation *****\n{'eval_loss': 1.2, 'epoch': 1}\n", "run", Evidence{Guard: guard}, PhaseTrain},
		"a checkpoint was written":     {steps + "Saving model checkpoint to out/checkpoint-5\n", "run", Evidence{Guard: guard}, PhaseSave},
		"the kernel's kill":            {steps, "", Evidence{Tree: map[int]TreeProc{4242: {Comm: "python3"}}, Kernel: []KernelRecord{{T: t0, Text: k1}}}, PhaseTrain},
		"the kernel's kill in loading": {"config\n", "load", Evidence{Tree: map[int]TreeProc{4242: {Comm: "python3"}}, Kernel: []KernelRecord{{T: t0, Text: k1}}}, PhaseLoad},
		"nobody knows":                 {"config\n", "", Evidence{Guard: guard}, PhaseUnknown},
		"a success has none":           {steps, "run", Evidence{Exit: Exit{Known: true}}, PhaseUnknown},
	} {
		ev := c.ev
		if !ev.Exit.Known {
			ev.Exit = killed
		}
		ev.GuardPhase, ev.Output = c.guardPhase, scanText(tab, c.log)
		if v := tab.Decide(ev); v.Phase != c.want {
			t.Errorf("%s: %s, want %s", name, v.Phase, c.want)
		}
	}
}

// A kill in the job's cgroup that hit no limit of its own was the machine's.
func TestCgroupKillWithoutItsLimit(t *testing.T) {
	t.Parallel()
	for want, events := range map[string]sample.Num{"kernel-oom": sample.Known(0), "cgroup-oom": sample.Known(2)} {
		v := loaded(t).Decide(Evidence{Exit: Exit{Known: true, Signal: "SIGKILL"}, Tree: map[int]TreeProc{}, CgroupOOMKillDelta: sample.Known(1), CgroupOOMEvents: events})
		if v.Kind != want || v.Confidence != High {
			t.Errorf("%s %s, want %s", v.Kind, v.Confidence, want)
		}
	}
	v := loaded(t).Decide(Evidence{Exit: Exit{Known: true, Signal: "SIGKILL"}, Tree: map[int]TreeProc{}, CgroupOOMKillDelta: sample.Known(1)})
	if v.Kind != "cgroup-oom" {
		t.Errorf("where the events are not known: %s", v.Kind)
	}
}

// The coarse samples never speak against the guard, which looks more often.
func TestSamplesDoNotContradictTheGuard(t *testing.T) {
	t.Parallel()
	for _, avail := range []sample.Num{sample.Known(3 << 20), {}} {
		g := &GuardAction{T: t0, Why: "predicted", AvailKiB: avail}
		v := loaded(t).Decide(Evidence{Exit: Exit{Known: true, Signal: "SIGKILL", T: t0}, Guard: g, Samples: samples(t0, 60, 55, 40)})
		for _, it := range v.Evidence {
			if it.Source == "memory" && (it.Weight == Against || avail.OK && !strings.Contains(it.Text, "3.0 GiB")) {
				t.Errorf("%s: %s", it.Weight, it.Text)
			}
		}
	}
}

// The quote is what decided, never what happened to be printed last.
func TestQuoteIsNoOrdinaryLine(t *testing.T) {
	t.Parallel()
	const steps = "step 4 loss 1.0\nstep 5 loss 1.0\n"
	for want, ev := range map[string]Evidence{
		"ended by SIGKILL":         {Exit: Exit{Known: true, Signal: "SIGKILL", T: t0}},
		"exited with status 1":     {Exit: Exit{Known: true, Code: 1}},
		"it exited with status 0":  {Exit: Exit{Known: true}},
		"SIGINT was sent by user":  {Exit: Exit{Known: true, Code: 130, T: t0}, Signals: []SignalSent{{Name: "SIGINT", By: "user"}}},
		"lowest MemAvailable 60.0": {Samples: samples(t0, 70, 60)},
		"":                         {},
	} {
		ev.Output = scanText(loaded(t), steps)
		if v := loaded(t).Decide(ev); !strings.HasPrefix(v.Quote, want) || want == "" && v.Quote != "" {
			t.Errorf("%q, want %q", v.Quote, want)
		}
	}
}
