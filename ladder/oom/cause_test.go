package oom

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/sample"
)

// A kill is blamed on the data only where a data worker was the victim.
func TestTheVictimWasADataWorker(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	failed := Exit{Known: true, Code: 1, T: t0}
	killed := Exit{Known: true, Signal: "SIGKILL", T: t0}
	memcg := func(pid int, comm string) []KernelRecord {
		line := fmt.Sprintf("Memory cgroup out of memory: Killed process %d (%s) total-vm:53312244kB, anon-rss:31451456kB, file-rss:74816kB, shmem-rss:12296kB", pid, comm)
		return []KernelRecord{{T: t0.Add(-time.Second), Text: line}}
	}
	global := []KernelRecord{{T: t0.Add(-time.Second), Text: strings.Replace(k1, "python3", "pt_data_worker", 1)}}
	byDriver := append([]KernelRecord{
		{T: t0.Add(-time.Second), Text: "python3 invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0"},
		{T: t0.Add(-time.Second), Text: " nv_alloc_system_pages+0x1 [nvidia]"},
	}, memcg(4242, "pt_data_worker")...)
	tree := map[int]TreeProc{4242: {}, 4243: {}} // names unknown: the record has them
	const says = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nRuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed."
	const gone = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nRuntimeError: DataLoader worker (pid(s) 4240, 4242) exited unexpectedly"
	for name, c := range map[string]struct {
		ev          Evidence
		log         string
		kind, cause string
	}{
		"the output names it":               {Evidence{Exit: failed, Tree: tree, Kernel: memcg(4242, "python3")}, says, "cgroup-oom", causeWorker},
		"one of several":                    {Evidence{Exit: failed, Tree: tree, Kernel: memcg(4242, "python3")}, gone, "cgroup-oom", causeWorker},
		"the output names another":          {Evidence{Exit: failed, Tree: tree, Kernel: memcg(4243, "python3")}, says, "cgroup-oom", ""},
		"its name":                          {Evidence{Exit: failed, Tree: tree, Kernel: memcg(4243, "pt_data_worker")}, "step 3 loss 1", "cgroup-oom", causeWorker},
		"no data worker's name":             {Evidence{Exit: failed, Tree: tree, Kernel: memcg(4242, "pt_main_thread")}, "step 3 loss 1", "cgroup-oom", ""},
		"a thread of the command":           {Evidence{Exit: killed, Tree: tree, Kernel: memcg(4242, "pt_data_pin")}, "step 3 loss 1", "cgroup-oom", ""},
		"a worker, and the command too":     {Evidence{Exit: killed, Tree: tree, Kernel: memcg(4243, "pt_data_worker"), Reaped: []Reaped{{PID: 4243, Signal: "SIGKILL"}}}, "step 3 loss 1", "cgroup-oom", causeWorker},
		"the whole machine":                 {Evidence{Exit: failed, Tree: tree, Kernel: global}, says, "kernel-oom", causeWorker},
		"only a count, and the output":      {Evidence{Exit: failed, Tree: tree, CgroupOOMKillDelta: sample.Known(1)}, says, "cgroup-oom", causeWorker},
		"only a count, and a loss":          {Evidence{Exit: failed, Tree: tree, CgroupOOMKillDelta: sample.Known(1)}, gone, "cgroup-oom", ""},
		"the driver's memory, and a worker": {Evidence{Exit: failed, Tree: tree, Kernel: byDriver}, says, "cgroup-oom", causeDriverMemory},
		"a worker that was survived":        {Evidence{Exit: failed, Tree: tree, CgroupOOMKillDelta: sample.Known(1)}, says + "\nstep 1 loss 1\nstep 2 loss 1\nstep 3 loss 1\nstep 4 loss 1\nstep 5 loss 1", "cgroup-oom", ""},
	} {
		c.ev.Output = scanText(tab, c.log)
		v := tab.Decide(c.ev)
		want := "workers"
		if c.cause == causeDriverMemory {
			want = "micro-batch"
		}
		if v.Answer != OOM || v.Kind != c.kind || v.Cause != c.cause || v.Lever != want {
			t.Errorf("%s: %s %s, cause %q, lever %s\n%+v", name, v.Answer, v.Kind, v.Cause, v.Lever, v.Evidence)
		}
		if tips := strings.Join(v.Advice, "\n"); (c.cause == causeWorker) != strings.Contains(tips, "A data worker was the victim") {
			t.Errorf("%s: %s", name, tips)
		}
	}
	// A worker shares the command's limit, which is told beside its cause.
	v := tab.Decide(Evidence{
		Exit: failed, AddressLimitKiB: sample.Known(512 << 10), Samples: samples(t0, 60, 60),
		Output: scanText(tab, "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nMemoryError: Caught MemoryError in DataLoader worker process 0."),
	})
	if v.Cause != causeWorker || !strings.Contains(v.Advice[0], "its own limit of 512 MiB") {
		t.Errorf("cause %q, %q", v.Cause, v.Advice)
	}
}

func TestExpandableSegmentsAreNotAdvisedTwice(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	const alone = "step 1 loss 1\nTraceback (most recent call last):\n  File \"a.py\", line 5, in training_step\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 1.20 GiB is free. Of the allocated memory 68.15 GiB is allocated by PyTorch, and 7.49 GiB is reserved by PyTorch but unallocated."
	for conf, lever := range map[string]string{
		"":                             "expandable-segments",
		"max_split_size_mb:512":        "expandable-segments",
		"expandable_segments:False":    "expandable-segments",
		"x:1,expandable_segments:True": "micro-batch",
	} {
		v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, AllocConf: conf, Output: scanText(tab, alone)})
		tips := strings.Join(v.Advice, "\n")
		if v.Lever != lever || strings.Contains(tips, "expandable_segments") != (lever == "expandable-segments") || v.Sizes["reserved_unallocated"] == 0 {
			t.Errorf("%q: %s, %s", conf, v.Lever, tips)
		}
	}
	warned := "[W901 21:14:02.5 CUDACachingAllocator.cpp:508] expandable_segments: memory mapping failed with OOM on device 0 while trying to map 20971520 bytes (free: 62598, total: 12878086144).\n"
	if v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, Output: scanText(tab, warned+alone)}); v.Lever != "micro-batch" {
		t.Errorf("the allocator says that it is on: %s %s", v.Lever, v.Cause)
	}
}

func TestSizesBelowAGiBAreRead(t *testing.T) {
	t.Parallel()
	for kib, want := range map[float64]string{0: "0 MiB", 1: "1 KiB", 1 << 10: "1 MiB", 40<<10 + 512: "40 MiB", 1<<20 - 1: "1024 MiB", 1 << 20: "1.0 GiB", 9.25 * (1 << 20): "9.2 GiB"} {
		if got := sizeText(kib); got != want {
			t.Errorf("%.0f KiB is %s, want %s", kib, got, want)
		}
	}
	v := loaded(t).Decide(Evidence{
		Exit: Exit{Known: true, Signal: "SIGKILL", T: t0}, Samples: samples(t0, 60, 0.03),
		Guard: &GuardAction{T: t0, Why: "hard-floor", AvailKiB: sample.Known(40 << 10), FloorKiB: sample.Known(200 << 10)},
	})
	all := fmt.Sprint(v.Evidence)
	if !strings.Contains(all, "40 MiB available, floor 200 MiB") || !strings.Contains(all, "31 MiB") || strings.Contains(all, "0.0 GiB") {
		t.Error(all)
	}
}
