package preflight

import (
	"context"
)

// check is one numbered check: a look, which may touch disk and processes and is
// given a deadline, and a judgement, a function of what was seen.
type check struct {
	id, title string
	// look gathers what this check alone needs; nil where the shared facts are enough.
	look func(context.Context, view) any
	// judge is given what look returned. It is not called where look was late.
	judge func(any, facts) Finding
	// optional tells that a look which was late is no matter: whatever it had seen, the
	// finding would be for information, or by design on this machine and for this
	// command. Nil is never.
	optional func(facts) bool
}

// unless makes the lateness of a check's look no matter in some cases.
func (c check) unless(optional func(facts) bool) check {
	c.optional = optional
	return c
}

func always(facts) bool       { return true }
func withoutGPU(f facts) bool { return !f.gpuHere() }
func notOnSpark(f facts) bool { return !f.spark() }

// onOneMachine: nothing of the command says that it spans several.
func onOneMachine(f facts) bool { return f.job == nil || f.job.Nodes <= 1 || !f.spark() }

// looked makes a check with a look of its own. look runs beside all others, and must
// return soon after its context is done where it can.
func looked[T any](id, title string, look func(context.Context, view) T, judge func(T, facts) Finding) check {
	return check{
		id: id, title: title,
		look:  func(ctx context.Context, v view) any { return look(ctx, v) },
		judge: func(seen any, f facts) Finding { return judge(seen.(T), f) },
	}
}

// judged makes a check of the shared facts.
func judged(id, title string, judge func(facts) Finding) check {
	return check{id: id, title: title, judge: func(_ any, f facts) Finding { return judge(f) }}
}

// checks lists the gotchas in order; hostChecks those of our own. A number once given
// is never given to anything else.
var (
	checks = []check{
		judged("G1", "CUDA 12/13 ABI", judgeCUDAABI),
		looked("G2", "flash-attn and Unsloth", lookAttention, judgeAttention).unless(withoutGPU),
		looked("G3", "UMA headroom", lookHeadroom, judgeHeadroom),
		judged("G4", "temperature and power", judgeThermal),
		looked("G5", "memory bandwidth", lookBandwidth, judgeBandwidth).unless(always),
		looked("G6", "who else uses the memory", lookContention, judgeContention),
		looked("G7", "SM121 capability", lookCapability, judgeCapability).unless(notOnSpark),
		looked("G8", "known playbook issues", lookPlaybooks, judgePlaybooks).unless(always),
		judged("G9", "container or bare pip", judgeContainer),
		looked("G10", "parallelism of two Sparks", lookParallelism, judgeParallelism).unless(onOneMachine),
	}
	hostChecks = []check{
		looked("H1", "NVIDIA driver", lookDriver, judgeDriver),
		looked("H2", "identity", lookIdentity, judgeIdentity),
		looked("H3", "disk space for checkpoints", lookDisk, judgeDisk),
		looked("H4", "file system and inodes", lookFileSystem, judgeFileSystem),
		looked("H5", "shared memory for data loaders", lookShm, judgeShm),
		looked("H6", "limits of the shell", lookLimits, judgeLimits),
		looked("H7", "flags of the container", lookContainerFlags, judgeContainerFlags),
		looked("H8", "kernel", lookKernel, judgeKernel),
		looked("H9", "other out-of-memory killers", lookKillers, judgeKillers),
		looked("H10", "suspend", lookSuspend, judgeSuspend),
		looked("H11", "unattended upgrades", lookUpgrades, judgeUpgrades),
		looked("H12", "login under memory pressure", lookLogin, judgeLogin),
		looked("H13", "clock", lookClock, judgeClock),
		looked("H14", "last boot", lookBoot, judgeBoot),
		looked("H15", "another sparkrun", lookNamesake, judgeNamesake),
		looked("H16", "CUDA toolkit and Triton", lookToolkit, judgeToolkit),
		looked("H17", "environment variables", lookVariables, judgeVariables),
		looked("H18", "fragile software", lookFragile, judgeFragile),
		judged("H19", "what torch itself says", judgeTorch),
		judged("H20", "the command's own words", judgeCommand),
	}
)
