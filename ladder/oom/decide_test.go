package oom

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/sample"
)

var t0 = time.Date(2026, 7, 14, 10, 0, 0, 0, time.UTC)

const gib = 1 << 20 // KiB

// samples makes a minute of samples that end at the given MemAvailable values, a
// second apart, on a machine of 120 GiB.
func samples(end time.Time, availGiB ...float64) []sample.Sample {
	var out []sample.Sample
	for i, v := range availGiB {
		out = append(out, sample.Sample{
			T:               end.Add(time.Duration(i-len(availGiB)) * time.Second),
			MemTotalKiB:     sample.Known(120 * gib),
			MemAvailableKiB: sample.Known(v * gib),
		})
	}
	return out
}

const cudaDeath = `Traceback (most recent call last):
  File "a.py", line 5, in training_step
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 119.70 GiB of which 1.20 GiB is free. Process 77 has 70.00 GiB memory in use. Process 78 has 10.00 GiB memory in use. Of the allocated memory 30.00 GiB is allocated by PyTorch, and 4.00 GiB is reserved by PyTorch but unallocated.`

const k1 = "Out of memory: Killed process 4242 (python3) total-vm:53312244kB, anon-rss:31451456kB, file-rss:74816kB, shmem-rss:12296kB, UID:0 pgtables:69068kB oom_score_adj:500"

func TestEvidenceFromOutside(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	killed := Exit{Known: true, Signal: "SIGKILL", T: t0}
	failed := Exit{Known: true, Code: 1, T: t0}
	tree := map[int]string{4242: "python3", 4243: "pt_data_worker"}
	at := func(d time.Duration, text string) []KernelRecord { return []KernelRecord{{T: t0.Add(d), Text: text}} }
	for name, c := range map[string]struct {
		ev   Evidence
		log  string
		want string
	}{
		"the user wins over any text": {
			Evidence{Signals: []SignalSent{{Name: "SIGINT", By: "user", T: t0.Add(-time.Second)}}, Exit: failed},
			cudaDeath,
			"not-oom user high",
		},
		"the user wins over a kernel record": {
			Evidence{Signals: []SignalSent{{Name: "SIGTERM", By: "sparkrun", T: t0.Add(-time.Second)}}, Exit: killed, TreePIDs: tree, Kernel: at(0, k1)},
			"",
			"not-oom user high",
		},
		"a signal after the death is late": {
			Evidence{Signals: []SignalSent{{Name: "SIGTERM", By: "user", T: t0.Add(time.Second)}}, Exit: failed},
			cudaDeath,
			"oom cuda-allocator high",
		},
		"a window change ends nothing": {
			Evidence{Signals: []SignalSent{{Name: "SIGWINCH", By: "user", T: t0.Add(-time.Second)}}, Exit: failed},
			cudaDeath,
			"oom cuda-allocator high",
		},
		"the guard": {
			Evidence{Signals: []SignalSent{{Name: "SIGKILL", By: "guard", T: t0}}, Exit: killed},
			"step 3 loss 1",
			"oom guard high",
		},
		"a hang after an out-of-memory line": {
			Evidence{Signals: []SignalSent{{Name: "SIGKILL", By: "hang", T: t0}}, Exit: killed},
			cudaDeath,
			"oom cuda-allocator medium",
		},
		"a hang without one": {
			Evidence{Signals: []SignalSent{{Name: "SIGKILL", By: "hang", T: t0}}, Exit: killed},
			"step 3 loss 1",
			"not-oom hang high",
		},
		"the kernel killed one of ours": {
			Evidence{Exit: killed, TreePIDs: tree, KernelReadable: true, Kernel: at(-time.Second, k1)},
			"step 3 loss 1",
			"oom kernel-oom high",
		},
		"the kernel killed a worker and the main process failed": {
			Evidence{Exit: failed, TreePIDs: tree, KernelReadable: true, Kernel: at(-time.Second, "Memory cgroup out of memory: Killed process 4243 (pt_data_worker) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB")},
			"RuntimeError: DataLoader worker (pid 4243) is killed by signal: Killed.",
			"oom cgroup-oom high",
		},
		"the kernel killed somebody else": {
			Evidence{Exit: killed, TreePIDs: map[int]string{7: "python3"}, KernelReadable: true, Kernel: at(-time.Second, k1), Samples: samples(t0, 60, 60, 60)},
			"step 3 loss 1",
			"not-oom killed high",
		},
		"by cgroup path": {
			Evidence{
				Exit: killed, TreePIDs: map[int]string{7: "python3"}, CgroupPath: "/sparkrun/a1", KernelReadable: true,
				Kernel: at(-time.Second, "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/sparkrun/a1,task_memcg=/sparkrun/a1/x,task=python3,pid=99,uid=0"),
			},
			"",
			"oom cgroup-oom high",
		},
		"a path that only begins like ours": {
			Evidence{
				Exit: killed, TreePIDs: map[int]string{7: "python3"}, CgroupPath: "/sparkrun/a1", KernelReadable: true, Samples: samples(t0, 60, 60),
				Kernel: at(-time.Second, "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/sparkrun/a12,task_memcg=/sparkrun/a12,task=python3,pid=99,uid=0"),
			},
			"",
			"not-oom killed high",
		},
		"a kill before the start": {
			Evidence{Exit: killed, Start: t0.Add(-time.Minute), TreePIDs: tree, KernelReadable: true, Kernel: at(-time.Hour, k1)},
			"",
			"unsure needs-samples low",
		},
		"a kill long after the death": {
			Evidence{Exit: killed, TreePIDs: tree, KernelReadable: true, Kernel: at(time.Hour, k1)},
			"",
			"unsure needs-samples low",
		},
		"a limit": {
			Evidence{Signals: []SignalSent{{Name: "SIGTERM", By: "limit", T: t0}}, Exit: killed},
			cudaDeath,
			"not-oom limit high",
		},
		"old kernels name two processes": {
			Evidence{
				Exit: killed, TreePIDs: map[int]string{18177: "be_server"}, KernelReadable: true,
				Kernel: []KernelRecord{{T: t0, Text: "Memory cgroup out of memory: Kill process 24984 (be_server) score 968 or sacrifice child"}, {T: t0, Text: "Killed process 18177 (be_server), UID 0, total-vm:70347780kB, anon-rss:45563572kB, file-rss:0kB, shmem-rss:0kB"}},
			},
			"",
			"oom cgroup-oom high",
		},
		"counter of our own cgroup": {
			Evidence{Exit: killed, CgroupOOMKillDelta: sample.Known(1)},
			"",
			"oom cgroup-oom high",
		},
		"counter of the machine alone": {
			Evidence{Exit: failed, VMOOMKillDelta: sample.Known(1), KernelReadable: true},
			"something failed",
			"not-oom error medium",
		},
		"counter of the machine and a kill nobody can look up": {
			Evidence{Exit: killed, VMOOMKillDelta: sample.Known(1), KernelErr: "permission denied"},
			"",
			"oom kernel-oom medium",
		},
		"killed with memory low": {
			Evidence{Exit: killed, Samples: samples(t0, 60, 20, 2)},
			"",
			"oom kernel-oom medium",
		},
		"killed while it fell fast": {
			Evidence{Exit: killed, Samples: samples(t0, 34, 33, 13)},
			"",
			"oom kernel-oom medium",
		},
		"killed with plenty": {
			Evidence{Exit: killed, Samples: samples(t0, 60, 60, 60)},
			"Killed",
			"not-oom killed medium",
		},
		"killed while a model was loading with plenty left": {
			Evidence{Exit: killed, Samples: samples(t0, 110, 105, 100)},
			"",
			"not-oom killed medium",
		},
		"killed without samples": {
			Evidence{Exit: killed},
			"",
			"unsure needs-samples low",
		},
		"killed and in between": {
			Evidence{Exit: killed, Samples: samples(t0, 8.2, 8.1, 8)},
			"",
			"unsure needs-samples low",
		},
		"samples that stop too early": {
			Evidence{Exit: killed, Samples: samples(t0.Add(-time.Minute), 60, 60)},
			"",
			"unsure needs-samples low",
		},
		"memory is free again after the death": {
			Evidence{Exit: killed, Samples: append(samples(t0, 60, 2), samples(t0.Add(5*time.Second), 110)...)},
			"",
			"oom kernel-oom medium",
		},
		"deepspeed's status for signal 9": {
			Evidence{Exit: Exit{Known: true, Code: 247, T: t0}, Samples: samples(t0, 60, 2)},
			"exits with return code = -9",
			"oom kernel-oom medium",
		},
		"sys.exit(-1), ssh and many launchers": {
			Evidence{Exit: Exit{Known: true, Code: 255, T: t0}, KernelReadable: true, Samples: samples(t0, 60, 60)},
			"",
			"not-oom error medium",
		},
		"sys.exit(-2) is no Ctrl-C": {
			Evidence{Exit: Exit{Known: true, Code: 254, T: t0}},
			cudaDeath,
			"oom cuda-allocator high",
		},
		"sys.exit(-2) without a word": {
			Evidence{Exit: Exit{Known: true, Code: 254, T: t0}, KernelReadable: true, Samples: samples(t0, 60, 60)},
			"",
			"not-oom error medium",
		},
		"sys.exit(-3)": {
			Evidence{Exit: Exit{Known: true, Code: 253, T: t0}, KernelReadable: true, Samples: samples(t0, 60, 60)},
			"",
			"not-oom error medium",
		},
		"a launcher's status for signal 15": {
			Evidence{Exit: Exit{Known: true, Code: 241, T: t0}, KernelReadable: true, Samples: samples(t0, 60, 60)},
			"",
			"not-oom terminated medium",
		},
		"a launcher's status for signal 9 on a machine with room": {
			Evidence{Exit: Exit{Known: true, Code: 247, T: t0}, KernelReadable: true, Samples: samples(t0, 60, 60)},
			"",
			"not-oom killed medium",
		},
		"a shell's status for signal 15": {
			Evidence{Exit: Exit{Known: true, Code: 143, T: t0}, KernelReadable: true, Samples: samples(t0, 60, 60)},
			"",
			"not-oom terminated high",
		},
		"cublas with a full machine": {
			Evidence{Exit: failed, Samples: samples(t0, 60, 2)},
			"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
			"oom cuda-driver medium",
		},
		"bus error with a full /dev/shm": {
			Evidence{Exit: Exit{Known: true, Signal: "SIGBUS", T: t0}, ShmUsedPct: sample.Known(97)},
			"",
			"oom shm high",
		},
		"bus error with an empty /dev/shm": {
			Evidence{Exit: failed, ShmUsedPct: sample.Known(1)},
			"RuntimeError: DataLoader worker (pid 3912) is killed by signal: Bus error. It is possible",
			"not-oom bus-error medium",
		},
		"driver without memory and a machine that is gone": {
			Evidence{Kernel: at(0, "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from f(p) @ mem_desc.c:1359")},
			"prefill chunk 12/16",
			"oom unified-driver medium",
		},
		"driver without memory in a run that ended well": {
			Evidence{Exit: Exit{Known: true, T: t0}, StepsDone: true, Kernel: at(0, "NVRM: x [NV_ERR_NO_MEMORY] (0x00000051)")},
			"",
			"not-oom success high",
		},
		"status 0 after a caught one": {
			Evidence{Exit: Exit{Known: true, T: t0}, StepsDone: true, LastStep: 40},
			cudaDeath,
			"not-oom success high",
		},
		"status 0 with nothing done": {
			Evidence{Exit: Exit{Known: true, T: t0}},
			cudaDeath,
			"unsure swallowed low",
		},
		"a wrapper hides the kill": {
			Evidence{Exit: Exit{Known: true, T: t0}, StepsDone: true, TreePIDs: tree, Kernel: at(-time.Second, k1)},
			"",
			"unsure swallowed low",
		},
		"the machine went down in the middle of a line": {
			Evidence{},
			`{"doc_id": 42, "pred` + strings.Repeat("\x00", 40),
			"unsure machine-lost low",
		},
		"segmentation fault": {
			Evidence{Exit: Exit{Known: true, Signal: "SIGSEGV", T: t0}},
			"step 3 loss 1",
			"not-oom segfault medium",
		},
		"earlyoom begins with SIGTERM": {
			Evidence{
				Exit: Exit{Known: true, Signal: "SIGTERM", T: t0}, TreePIDs: tree,
				Kernel: at(-time.Second, `earlyoom[1295]: sending SIGTERM to process 4242 uid 1000 "python3": oom_score 1170, VmRSS 43912 MiB, cmdline "..."`),
			},
			"",
			"oom earlyoom high",
		},
		"systemd-oomd kills a unit above": {
			Evidence{
				Exit: killed, TreePIDs: tree, CgroupPath: "/user.slice/a.scope/sparkrun",
				Kernel: at(-time.Second, "Dec 18 19:34:56 host systemd-oomd[840]: Killed /user.slice/a.scope due to memory pressure for /user.slice being 51.07% > 50.00% for > 20s with reclaim activity"),
			},
			"",
			"oom systemd-oomd high",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ev := c.ev
			ev.Output = scanText(tab, c.log)
			v := tab.Decide(ev)
			if got := string(v.Answer) + " " + word(v) + " " + string(v.Confidence); got != c.want {
				t.Errorf("got %s, want %s\n%+v", got, c.want, v.Evidence)
			}
			if len(v.Evidence) == 0 {
				t.Error("no evidence at all")
			}
		})
	}
}

// A helper that the kernel killed long ago explains nothing if the job went on.
func TestSurvivedKillIsNoVerdict(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	s := tab.NewScanner()
	s.Feed(Line{N: 1, T: t0.Add(-time.Minute), Text: "step 5 loss 1", Advance: true, Step: 5})
	for i, l := range []string{"Traceback (most recent call last):", `  File "a.py", line 1, in f`, "KeyError: 'x'"} {
		s.Feed(Line{N: 2 + i, T: t0, Text: l})
	}
	ev := Evidence{
		Exit: Exit{Known: true, Code: 1, T: t0}, TreePIDs: map[int]string{4242: "x"}, KernelReadable: true,
		Kernel: []KernelRecord{{T: t0.Add(-10 * time.Minute), Text: k1}}, CgroupOOMKillDelta: sample.Known(1),
		Output: s.Output(),
	}
	if v := tab.Decide(ev); v.Answer != NotOOM || v.Reason != "exception" {
		t.Errorf("survived: %s %s", v.Answer, v.Reason)
	}
	ev.Output = scanText(tab, "KeyError: 'x'") // nothing moved after the kill
	if v := tab.Decide(ev); v.Answer != OOM || v.Confidence != Medium {
		t.Errorf("not survived: %s %s", v.Answer, v.Confidence)
	}
}

// An advance of another rank does not mean that the dead one went on.
func TestOtherRankStepsOnce(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	s := tab.NewScanner()
	n := 0
	feed := func(text string, step int64) {
		n++
		s.Feed(Line{N: n, Text: text, Advance: step > 0, Step: step})
	}
	feed("[rank0]: step 1 loss 1", 1)
	for _, l := range strings.Split(cudaDeath, "\n") {
		feed("[rank3]: "+l, 0)
	}
	feed("[rank0]: step 2 loss 1", 2)
	ev := Evidence{Exit: Exit{Known: true, Code: 1}, Output: s.Output()}
	if v := tab.Decide(ev); v.Answer != OOM || v.Confidence != High {
		t.Errorf("%s %s", v.Answer, v.Confidence)
	}
	for i := int64(3); i < 8; i++ {
		feed("[rank0]: step loss", i)
	}
	ev.Output = s.Output()
	if v := tab.Decide(ev); v.Answer != NotOOM {
		t.Errorf("after many steps: %s", v.Answer)
	}
}

func TestPhases(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	for name, c := range map[string]struct {
		frame string
		step  int64
		want  Phase
	}{
		"load":            {`File "/v/transformers/modeling_utils.py", line 1, in from_pretrained`, 0, PhaseLoad},
		"load safetensor": {`File "/v/safetensors/torch.py", line 1, in g`, 0, PhaseLoad},
		"eval in train":   {`File "/v/trainer.py", line 1, in evaluation_loop`, 200, PhaseEval},
		"save":            {`File "/v/trainer.py", line 1, in save_model`, 200, PhaseSave},
		"optimizer":       {`File "/v/torch/optim/adamw.py", line 1, in _init_group`, 1, PhaseOptimizer},
		"optimizer later": {`File "/v/torch/optim/adamw.py", line 1, in step`, 900, PhaseTrain},
		"train":           {`File "/v/x.py", line 1, in g`, 3, PhaseTrain},
		"unknown":         {`File "/v/x.py", line 1, in g`, 0, PhaseUnknown},
	} {
		log := "Traceback (most recent call last):\n  File \"t.py\", line 9, in main\n  " + c.frame + "\n    source line\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."
		v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, LastStep: c.step, Output: scanText(tab, log)})
		if v.Phase != c.want {
			t.Errorf("%s: %s", name, v.Phase)
		}
	}
	log := "Loading checkpoint shards:  50%|##  | 1/2 [00:01<00:01]\nError out of memory at line 380 in file /s/ops.cu"
	if v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, Output: scanText(tab, log)}); v.Phase != PhaseLoad {
		t.Errorf("from lines: %s", v.Phase)
	}
}

func TestVerdictJSON(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	ev := Evidence{Exit: Exit{Known: true, Code: 1, T: t0}, LastStep: 41, KernelErr: "permission denied", Output: scanText(tab, cudaDeath)}
	v := tab.Decide(ev)
	want := map[string]int64{
		"requested": 2 << 30, "free": 1288490188, "total": 128526896332, "other_processes": 80 << 30,
		"allocated": 30 << 30, "reserved_unallocated": 4 << 30,
	}
	for name, n := range want {
		if v.Sizes[name] != n {
			t.Errorf("%s is %d, want %d", name, v.Sizes[name], n)
		}
	}
	if len(v.Advice) < 3 || !strings.Contains(v.Advice[0], "Another process") || !strings.Contains(v.Advice[1], "expandable_segments") {
		t.Errorf("advice %q", v.Advice)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	order := []string{`{"schema":"sparkrun.verdict/1"`, `"verdict":"oom"`, `"kind":"cuda-allocator"`, `"phase":"train"`, `"confidence":"high"`, `"evidence":[{"source":"output","weight":"decides"`, `"line":3`, `"sizes":{"allocated"`, `"advice":[`, `"unreadable":["kernel log: permission denied"`, `"quote":"torch.OutOfMemoryError`, `"step":41`}
	at := 0
	for _, o := range order {
		i := strings.Index(string(b)[at:], o)
		if i < 0 {
			t.Fatalf("no %s behind byte %d of %s", o, at, b)
		}
		at += i
	}
	again, err := json.Marshal(tab.Decide(ev))
	if err != nil || string(again) != string(b) {
		t.Errorf("the same evidence gives another text: %v\n%s", err, again)
	}
	b, err = json.Marshal(tab.Decide(Evidence{}))
	if err != nil || !strings.Contains(string(b), `"sizes":{},"advice":[`) || strings.Contains(string(b), "null") {
		t.Errorf("empty evidence: %s %v", b, err)
	}
}
