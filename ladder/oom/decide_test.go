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
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 119.70 GiB of which 1.20 GiB is free. Process 77 has 70.00 GiB memory in use. Process 78 has 10.00 GiB memory in use. Of the allocated memory 30.00 GiB is allocated by PyTorch, and 8.00 GiB is reserved by PyTorch but unallocated.`

const k1 = "Out of memory: Killed process 4242 (python3) total-vm:53312244kB, anon-rss:31451456kB, file-rss:74816kB, shmem-rss:12296kB, UID:0 pgtables:69068kB oom_score_adj:500"

// fromOutside is evidence of which the output is only a part.
type fromOutside struct {
	ev   Evidence
	log  string
	want string
}

// outside are the values of outsideCases, read.
func outside(t testing.TB) []Evidence {
	var out []Evidence
	for _, c := range outsideCases() {
		c.ev.Output = scanText(loaded(t), c.log)
		out = append(out, c.ev)
	}
	return out
}

func outsideCases() map[string]fromOutside {
	killed := Exit{Known: true, Signal: "SIGKILL", T: t0}
	failed := Exit{Known: true, Code: 1, T: t0}
	tree := map[int]TreeProc{4242: {Comm: "python3"}, 4243: {Comm: "pt_data_worker"}}
	at := func(d time.Duration, text string) []KernelRecord { return []KernelRecord{{T: t0.Add(d), Text: text}} }
	return map[string]fromOutside{
		"the user wins over any text": {
			Evidence{Signals: []SignalSent{{Name: "SIGINT", By: "user", T: t0.Add(-time.Second)}}, Exit: failed},
			cudaDeath,
			"not-oom user high",
		},
		"ended for a loss that diverged": {
			Evidence{Signals: []SignalSent{{Name: "SIGTERM", By: "divergence", T: t0.Add(-time.Second)}}, Exit: Exit{Known: true, Signal: "SIGTERM", T: t0}},
			"{'loss': nan}",
			"not-oom divergence high",
		},
		"ended in the low-power wedge": {
			Evidence{Signals: []SignalSent{{Name: "SIGTERM", By: "power-wedge", T: t0.Add(-time.Second)}}, Exit: Exit{Known: true, Signal: "SIGTERM", T: t0}},
			"{'loss': 2.1}",
			"not-oom power-wedge high",
		},
		"a job over two machines, of which only the waiting is seen": {
			Evidence{Nodes: 2, Exit: failed},
			"[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006\n[rank0]: Watchdog caught collective operation timeout",
			"not-oom peer-lost medium",
		},
		"the same on one machine": {
			Evidence{Exit: failed},
			"[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006\n[rank0]: Watchdog caught collective operation timeout",
			"not-oom distributed low",
		},
		"a job over two machines with an error of its own": {
			Evidence{Nodes: 2, Exit: failed},
			"Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\ntorch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006",
			"oom cuda-allocator high",
		},
		"the user wins over a kernel record": {
			Evidence{Signals: []SignalSent{{Name: "SIGTERM", By: "sparkrun", T: t0.Add(-time.Second)}}, Exit: killed, Tree: tree, Kernel: at(0, k1)},
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
			Evidence{Exit: killed, Tree: tree, KernelReadable: true, Kernel: at(-time.Second, k1)},
			"step 3 loss 1",
			"oom kernel-oom high",
		},
		"the kernel killed a worker and the main process failed": {
			Evidence{Exit: failed, Tree: tree, KernelReadable: true, Kernel: at(-time.Second, "Memory cgroup out of memory: Killed process 4243 (pt_data_worker) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB")},
			"RuntimeError: DataLoader worker (pid 4243) is killed by signal: Killed.",
			"oom cgroup-oom high",
		},
		"the kernel killed somebody else": {
			Evidence{Exit: killed, Tree: map[int]TreeProc{7: {Comm: "python3"}}, KernelReadable: true, Kernel: at(-time.Second, k1), Samples: samples(t0, 60, 60, 60)},
			"step 3 loss 1",
			"not-oom killed high",
		},
		"by cgroup path": {
			Evidence{
				Exit: killed, Tree: map[int]TreeProc{7: {Comm: "python3"}}, CgroupPaths: []string{"/sparkrun/a1"}, KernelReadable: true,
				Kernel: at(-time.Second, "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/sparkrun/a1,task_memcg=/sparkrun/a1/x,task=python3,pid=99,uid=0"),
			},
			"",
			"oom cgroup-oom high",
		},
		"a path that only begins like ours": {
			Evidence{
				Exit: killed, Tree: map[int]TreeProc{7: {Comm: "python3"}}, CgroupPaths: []string{"/sparkrun/a1"}, KernelReadable: true, Samples: samples(t0, 60, 60),
				Kernel: at(-time.Second, "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/sparkrun/a12,task_memcg=/sparkrun/a12,task=python3,pid=99,uid=0"),
			},
			"",
			"not-oom killed high",
		},
		"a kill before the start": {
			Evidence{Exit: killed, Start: t0.Add(-time.Minute), Tree: tree, KernelReadable: true, Kernel: at(-time.Hour, k1)},
			"",
			"unsure needs-samples low",
		},
		"a kill long after the death": {
			Evidence{Exit: killed, Tree: tree, KernelReadable: true, Kernel: at(time.Hour, k1)},
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
				Exit: killed, Tree: map[int]TreeProc{18177: {Comm: "be_server"}}, KernelReadable: true,
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
			Evidence{Exit: Exit{Known: true, T: t0}, StepsDone: true, Tree: tree, Kernel: at(-time.Second, k1)},
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
				Exit: Exit{Known: true, Signal: "SIGTERM", T: t0}, Tree: tree,
				Kernel: at(-time.Second, `earlyoom[1295]: sending SIGTERM to process 4242 uid 1000 "python3": oom_score 1170, VmRSS 43912 MiB, cmdline "..."`),
			},
			"",
			"oom earlyoom high",
		},
		"systemd-oomd kills a unit above": {
			Evidence{
				Exit: killed, Tree: tree, CgroupPaths: []string{"/user.slice/a.scope/sparkrun"},
				Kernel: at(-time.Second, "Dec 18 19:34:56 host systemd-oomd[840]: Killed /user.slice/a.scope due to memory pressure for /user.slice being 51.07% > 50.00% for > 20s with reclaim activity"),
			},
			"",
			"oom systemd-oomd high",
		},
		"the guard's account": {
			Evidence{Guard: &GuardAction{T: t0.Add(-time.Second), Why: "predicted", AvailKiB: sample.Known(9 * gib), FloorKiB: sample.Known(15 * gib)}, Exit: killed},
			"step 3 loss 1",
			"oom guard high",
		},
		"the guard only warned": {
			Evidence{Guard: &GuardAction{T: t0.Add(-time.Second), Why: "hard-floor", Warned: true}, Exit: failed, Samples: samples(t0, 60, 60)},
			"Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'x'",
			"not-oom exception high",
		},
		"the user was before the guard": {
			Evidence{
				Signals: []SignalSent{{Name: "SIGKILL", By: "guard", T: t0.Add(-time.Second)}, {Name: "SIGINT", By: "user", T: t0.Add(-time.Minute)}},
				Guard:   &GuardAction{T: t0.Add(-time.Second), Why: "predicted"}, Exit: killed,
			},
			"",
			"not-oom user high",
		},
		"the guard ended it because of somebody else": {
			Evidence{Guard: &GuardAction{T: t0.Add(-time.Second), Why: "hard-floor", AvailKiB: sample.Known(3 * gib), Outsider: "ollama", OutsiderPID: 900, OutsiderGrewKiB: sample.Known(60 * gib), TreeGrewKiB: sample.Known(gib)}, Exit: killed},
			"step 3 loss 1",
			"oom co-tenant high",
		},
		"somebody else grew, but less": {
			Evidence{Guard: &GuardAction{T: t0.Add(-time.Second), Why: "hard-floor", Outsider: "ollama", OutsiderPID: 900, OutsiderGrewKiB: sample.Known(gib), TreeGrewKiB: sample.Known(60 * gib)}, Exit: killed},
			"step 3 loss 1",
			"oom guard high",
		},
		"a desktop that grew a little is not named": {
			Evidence{Guard: &GuardAction{T: t0.Add(-time.Second), Why: "swap-thrash", OutsiderGrewKiB: sample.Known(90 << 10)}, Exit: killed},
			"step 3 loss 1",
			"oom guard high",
		},
		"somebody whose growth is not known": {
			Evidence{Guard: &GuardAction{T: t0.Add(-time.Second), Why: "swap-thrash", Outsider: "ollama", OutsiderPID: 900}, Exit: killed},
			"step 3 loss 1",
			"oom guard high",
		},
		"a small machine, where a little is much": {
			Evidence{Guard: &GuardAction{T: t0.Add(-time.Second), Why: "hard-floor", Outsider: "ollama", OutsiderPID: 900, OutsiderGrewKiB: sample.Known(400 << 10), TreeGrewKiB: sample.Known(10 << 10)}, Exit: killed},
			"step 3 loss 1",
			"oom co-tenant high",
		},
		"a container that was killed for memory": {
			Evidence{Exit: killed, Container: &ContainerEnd{Engine: "docker", Known: true, OOMKilled: true, ExitCode: 137}},
			"step 3 loss 1",
			"oom cgroup-oom medium",
		},
		"the engine alone, against everything else": {
			Evidence{Exit: killed, KernelReadable: true, Samples: samples(t0, 60, 60), Container: &ContainerEnd{Engine: "docker", Known: true, OOMKilled: true, ExitCode: 137}},
			"step 3 loss 1",
			"unsure container-only low",
		},
		"a container in its own limit, the kernel log out of reach": {
			Evidence{Exit: Exit{Known: true, Code: 137, T: t0}, Samples: samples(t0, 60, 60), Container: &ContainerEnd{Engine: "docker", Known: true, OOMKilled: true, ExitCode: 137}},
			"step 3 loss 1",
			"oom cgroup-oom medium",
		},
		"the same, and counts of other cgroups that stand still": {
			Evidence{Exit: killed, Samples: samples(t0, 60, 60), CgroupOOMKillDelta: sample.Known(0), VMOOMKillDelta: sample.Known(0), Container: &ContainerEnd{Engine: "docker", Known: true, OOMKilled: true, ExitCode: 137}},
			"step 3 loss 1",
			"oom cgroup-oom medium",
		},
		"the same, and the launcher inside says it too": {
			Evidence{Exit: Exit{Known: true, Code: 137, T: t0}, Samples: samples(t0, 60, 60), CgroupOOMKillDelta: sample.Known(0), Container: &ContainerEnd{Engine: "docker", Known: true, OOMKilled: true, ExitCode: 137}},
			"trainer-1 exited with code 137",
			"oom cgroup-oom medium",
		},
		"the engine against a kernel log and a count that know better": {
			Evidence{Exit: killed, KernelReadable: true, Samples: samples(t0, 60, 60), CgroupOOMKillDelta: sample.Known(0), Container: &ContainerEnd{Engine: "docker", Known: true, OOMKilled: true, ExitCode: 137}},
			"step 3 loss 1",
			"not-oom killed high",
		},
		"an engine that did not answer": {
			Evidence{Exit: killed, Samples: samples(t0, 60, 60), Container: &ContainerEnd{Engine: "docker", OOMKilled: true}},
			"step 3 loss 1",
			"not-oom killed medium",
		},
		"the container lost a harmless child": {
			Evidence{Exit: failed, Container: &ContainerEnd{Engine: "docker", Known: true, OOMKilled: true, ExitCode: 1}},
			"Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'x'",
			"not-oom exception high",
		},
		"the engine denies what the kernel knows": {
			Evidence{Exit: killed, Tree: tree, Kernel: at(-time.Second, k1), Container: &ContainerEnd{Known: true, Error: "oci runtime error"}},
			"step 3 loss 1",
			"oom kernel-oom high",
		},
		"a container's cgroup under another parent": {
			Evidence{
				Exit: killed, Tree: map[int]TreeProc{7: {Comm: "docker"}}, CgroupPaths: []string{"/sparkrun/a1", "/system.slice/docker-" + strings.Repeat("4f2e", 16) + ".scope"},
				Kernel: at(-time.Second, "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/docker/"+strings.Repeat("4f2e", 16)+",task_memcg=/docker/"+strings.Repeat("4f2e", 16)+",task=python3,pid=99,uid=0"),
			},
			"",
			"oom cgroup-oom high",
		},
		"systemd names our unit": {
			Evidence{
				Exit: killed, Tree: map[int]TreeProc{7: {Comm: "python3"}}, CgroupPaths: []string{"/user.slice/run-u42.scope"},
				Kernel: at(-time.Second, "run-u42.scope: A process of this unit has been killed by the OOM killer."),
			},
			"",
			"oom kernel-oom high",
		},
		"systemd names a unit above": {
			Evidence{
				Exit: killed, Tree: map[int]TreeProc{7: {Comm: "python3"}}, CgroupPaths: []string{"/user.slice/session-2.scope/a1"}, KernelReadable: true, Samples: samples(t0, 60, 60),
				Kernel: at(-time.Second, "session-2.scope: A process of this unit has been killed by the OOM killer."),
			},
			"",
			"not-oom killed high",
		},
		"oomd and the name of a unit above": {
			Evidence{
				Exit: killed, Tree: map[int]TreeProc{7: {Comm: "python3"}}, CgroupPaths: []string{"/user.slice/session-2.scope/a1"},
				Kernel: at(-time.Second, "systemd[1]: session-2.scope: systemd-oomd killed 12 process(es) in this unit."),
			},
			"",
			"oom systemd-oomd high",
		},
		"the pid was used before": {
			Evidence{
				Exit: killed, KernelReadable: true, Samples: samples(t0, 60, 60),
				Tree:   map[int]TreeProc{4242: {Comm: "python3", First: t0.Add(-time.Minute), Last: t0}},
				Kernel: at(-2*time.Minute, k1),
			},
			"",
			"not-oom killed high",
		},
		"the pid is used again": {
			Evidence{
				Exit: killed, KernelReadable: true, Samples: samples(t0, 60, 60),
				Tree:   map[int]TreeProc{4242: {Comm: "python3", First: t0.Add(-time.Hour), Last: t0.Add(-10 * time.Minute)}},
				Kernel: at(-time.Minute, k1),
			},
			"",
			"not-oom killed high",
		},
		"another name on our pid soon after": {
			Evidence{
				Exit: killed, KernelReadable: true, Samples: samples(t0, 60, 60),
				Tree:   map[int]TreeProc{4242: {Comm: "git", First: t0.Add(-time.Minute), Last: t0.Add(-20 * time.Second)}},
				Kernel: at(-time.Second, k1),
			},
			"",
			"not-oom killed high",
		},
		"a thread's name on a process that was there": {
			Evidence{
				Exit: killed, KernelReadable: true,
				Tree:   map[int]TreeProc{4242: {Comm: "python3.12", First: t0.Add(-time.Minute), Last: t0.Add(-time.Second)}},
				Kernel: at(-time.Second, strings.Replace(k1, "python3", "pt_main_thread", 1)),
			},
			"",
			"oom kernel-oom high",
		},
		"a name longer than the kernel keeps": {
			Evidence{
				Exit: killed, KernelReadable: true, Tree: map[int]TreeProc{4242: {Comm: "torchrun_worker_main"}},
				Kernel: at(-time.Second, strings.Replace(k1, "python3", "torchrun_worker", 1)),
			},
			"",
			"oom kernel-oom high",
		},
		"a process of unknown life that renamed itself": {
			Evidence{Exit: killed, KernelReadable: true, Tree: map[int]TreeProc{4242: {Comm: "python"}}, Kernel: at(-time.Second, strings.Replace(k1, "python3", "VLLM::EngineCor", 1))},
			"",
			"oom kernel-oom high",
		},
		"another name, and it ended by itself": {
			Evidence{
				Exit: failed, KernelReadable: true, Samples: samples(t0, 60, 60), Tree: map[int]TreeProc{4242: {Comm: "git"}}, Reaped: []Reaped{{PID: 4242, Comm: "git"}},
				Kernel: at(-time.Second, k1),
			},
			"",
			"not-oom error medium",
		},
		"slurm counts another job's kills, an hour ago": {
			Evidence{Exit: failed, KernelReadable: true, Samples: samples(t0, 60, 60), Kernel: at(-time.Hour, "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.batch.")},
			"",
			"not-oom error medium",
		},
		"a helper was killed, steps followed, then a bug": {
			Evidence{Exit: failed, Tree: tree, KernelReadable: true, Kernel: at(-20*time.Second, k1)},
			"Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'x'",
			"oom kernel-oom high", // no step is known to have followed: see TestSurvivedKillIsNoVerdict
		},
		"xids beside a cause": {
			Evidence{Exit: failed, KernelReadable: true, Kernel: append(at(-time.Second, "NVRM: Xid (PCI:0000:0f:00): 31, pid=4242, name=python3, Ch 8"), at(0, "NVRM: Xid (PCI:0000:0f:00): 31, pid=4242, name=python3, Ch 9")...)},
			"RuntimeError: CUDA error: an illegal memory access was encountered",
			"not-oom cuda-error high",
		},
		"the machine was shut down": {
			Evidence{Lost: &Lost{BootChanged: true, CleanKnown: true, Clean: true}, Samples: samples(t0, 60, 60)},
			"step 3 loss 1",
			"not-oom reboot high",
		},
		"the machine froze": {
			Evidence{Lost: &Lost{BootChanged: true, CleanKnown: true}, Samples: samples(t0, 60, 20, 1.5)},
			"step 3 loss 1",
			"oom unified-driver medium",
		},
		"the machine went without a word, the driver had none": {
			Evidence{Lost: &Lost{BootChanged: true, CleanKnown: true, JournalTail: at(0, "kernel: NVRM: x: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)")}},
			"step 3 loss 1",
			"oom unified-driver medium",
		},
		"the driver had none long ago, and memory was clear": {
			Evidence{Lost: &Lost{BootChanged: true, CleanKnown: true, JournalTail: at(0, "kernel: NVRM: x: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)")}, Samples: samples(t0, 60, 60)},
			"step 3 loss 1",
			"unsure power-loss low",
		},
		"the previous journal has the kill": {
			Evidence{Tree: tree, Lost: &Lost{BootChanged: true, CleanKnown: true, JournalTail: at(0, k1)}},
			"step 3 loss 1",
			"oom kernel-oom high",
		},
		"the machine is another and nobody knows": {
			Evidence{Lost: &Lost{BootChanged: true}},
			"step 3 loss 1",
			"unsure machine-lost low",
		},
		"an out-of-memory before the machine went": {
			Evidence{Lost: &Lost{BootChanged: true, CleanKnown: true}, Samples: samples(t0, 60, 60)},
			cudaDeath,
			"oom cuda-allocator medium",
		},
		"its own limit and not the machine's": {
			Evidence{Exit: failed, AddressLimitKiB: sample.Known(8 * gib), Samples: samples(t0, 60, 60)},
			"Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nMemoryError",
			"oom host-alloc high",
		},
		"a full map table and a tree on the same gpu": {
			Evidence{Exit: failed, Tree: map[int]TreeProc{77: {}, 78: {}}},
			cudaDeath,
			"oom cuda-allocator high",
		},
	}
}

func TestEvidenceFromOutside(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	for name, c := range outsideCases() {
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
		Exit: Exit{Known: true, Code: 1, T: t0}, Tree: map[int]TreeProc{4242: {Comm: "python3"}}, KernelReadable: true,
		Kernel: []KernelRecord{{T: t0.Add(-10 * time.Minute), Text: k1}}, CgroupOOMKillDelta: sample.Known(1),
		Output: s.Output(),
	}
	if v := tab.Decide(ev); v.Answer != NotOOM || v.Reason != "exception" {
		t.Errorf("survived: %s %s", v.Answer, v.Reason)
	}
	// Three steps behind a kill of 20 s ago, then a bug: the kill was a helper's.
	s = tab.NewScanner()
	for i := range 3 {
		s.Feed(Line{N: 1 + i, T: t0.Add(time.Duration(i-10) * time.Second), Text: "step loss", Advance: true, Step: int64(i)})
	}
	for i, l := range []string{"Traceback (most recent call last):", `  File "a.py", line 1, in f`, "KeyError: 'x'"} {
		s.Feed(Line{N: 4 + i, T: t0, Text: l})
	}
	near := ev
	near.Output, near.Kernel = s.Output(), []KernelRecord{{T: t0.Add(-20 * time.Second), Text: k1}}
	if v := tab.Decide(near); v.Answer != NotOOM || v.Reason != "exception" {
		t.Errorf("survived by three steps: %s %s", v.Answer, v.Reason)
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
		"allocated": 30 << 30, "reserved_unallocated": 8 << 30,
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

// What only this death can say stands in its evidence and its advice.
func TestNumbersAndNamesAreTold(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	failed := Exit{Known: true, Code: 1, T: t0}
	const memoryError = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nMemoryError"
	for name, c := range map[string]struct {
		ev            Evidence
		log           string
		evidence, tip string
		lever, reason string
	}{
		"the command's own limit": {
			Evidence{Exit: failed, AddressLimitKiB: sample.Known(8 * gib), Samples: samples(t0, 60, 60)},
			memoryError,
			"8.0 GiB of address space", "own limit of 8.0 GiB", "address-limit", "",
		},
		"a limit on a machine that was full": {
			Evidence{Exit: failed, AddressLimitKiB: sample.Known(8 * gib), Samples: samples(t0, 60, 1)},
			memoryError,
			"MemoryError", "Host memory ran out", "workers", "",
		},
		"the outsider": {
			Evidence{Exit: failed, Guard: &GuardAction{T: t0.Add(-time.Second), Why: "hard-floor", AvailKiB: sample.Known(3 * gib), FloorKiB: sample.Known(4 * gib), Outsider: "ollama", OutsiderPID: 900, OutsiderGrewKiB: sample.Known(60 * gib), TreeGrewKiB: sample.Known(gib)}},
			"",
			"process ollama (900), which is not the job's, grew by 60.0 GiB", "ollama took the memory", "wait", "",
		},
		"the guard's numbers": {
			Evidence{Exit: failed, Guard: &GuardAction{T: t0.Add(-time.Second), Why: "predicted", AvailKiB: sample.Known(9 * gib), FloorKiB: sample.Known(15 * gib)}},
			"step 3 loss 1",
			"9.0 GiB available, floor 15.0 GiB", "shorter length", "micro-batch", "",
		},
		"xids, counted": {
			Evidence{Exit: failed, Kernel: []KernelRecord{{Text: "NVRM: Xid (PCI:0000:0f:00): 31, pid=1, name=python3, Ch 8"}, {Text: "NVRM: Xid (PCI:0000:0f:00): 31, pid=1, name=python3, Ch 9"}, {Text: "NVRM: Xid (PCI:0000:0f:00): 999, pid=1"}}},
			"KeyError: 1",
			"Xid 31 (2 times), a GPU memory page fault", "", "none", "exception",
		},
		"the machine froze": {
			Evidence{Lost: &Lost{BootChanged: true}, Samples: samples(t0, 60, 20, 1)},
			"step 3 loss 1",
			"lowest MemAvailable 1.0 GiB", "share one memory", "micro-batch", "freeze",
		},
		"a rank on the same gpu is no stranger": {
			Evidence{Exit: failed, Tree: map[int]TreeProc{77: {}, 78: {}}},
			cudaDeath,
			"CUDA out of memory", "", "expandable-segments", "",
		},
	} {
		c.ev.Output = scanText(tab, c.log)
		v := tab.Decide(c.ev)
		var all strings.Builder
		for _, it := range v.Evidence {
			all.WriteString(it.Text + "\n")
		}
		tips := strings.Join(v.Advice, "\n")
		if !strings.Contains(all.String(), c.evidence) || !strings.Contains(tips, c.tip) || v.Lever != c.lever || v.Reason != c.reason {
			t.Errorf("%s: lever %s, reason %q\n%s\n%s", name, v.Lever, v.Reason, all.String(), tips)
		}
	}
}
