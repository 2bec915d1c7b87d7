package preflight

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// loginSeen is what of the memory stays with the login when it is short.
type loginSeen struct {
	// v2 tells that the machine has the cgroups that can protect anything.
	v2 bool
	// user is MemoryMin of user.slice in bytes, ssh that of the ssh daemon, as far as
	// the groups above let it through; a nil one is not known.
	user, ssh *uint64
	// sshOwn is what is set for the daemon itself.
	sshOwn *uint64
	// service is the daemon's unit, "" where there is none; score its oom_score_adj, ""
	// where it does not run.
	service, score string
	// planned is a setting of user.slice that stands in a file but is not in force.
	planned unitSetting
	// boots tell whether the machine has had to be switched off lately.
	boots bootSeen
}

func lookLogin(ctx context.Context, v view) loginSeen {
	seen := loginSeen{boots: lookBoot(ctx, v)}
	const root = "/sys/fs/cgroup"
	seen.v2, _ = v.root.exists(root + "/cgroup.controllers")
	if !seen.v2 {
		return seen
	}
	seen.user = memoryMin(v, root+"/user.slice")
	for _, name := range []string{"ssh.service", "sshd.service"} {
		if firstUnit(v, name) != "" {
			seen.service = name
			break
		}
	}
	if seen.service != "" {
		at := root + "/system.slice/" + seen.service
		if seen.sshOwn = memoryMin(v, at); seen.sshOwn == nil {
			// It is started by its socket, with the first login.
			if n, ok := systemdSize(unitSettings(v, seen.service)["MemoryMin"].value); ok {
				seen.sshOwn = &n
			}
		}
		if above := memoryMin(v, path.Dir(at)); above != nil && seen.sshOwn != nil {
			n := min(*above, *seen.sshOwn)
			seen.ssh = &n
		}
		if pid, _, _ := strings.Cut(v.root.word(at+"/cgroup.procs"), "\n"); pid != "" {
			if _, err := strconv.Atoi(pid); err == nil {
				seen.score = v.root.word("/proc/" + pid + "/oom_score_adj")
			}
		}
	}
	if s := unitSettings(v, "user.slice")["MemoryMin"]; s.value != "" {
		seen.planned = s
	}
	return seen
}

// memoryMin reads what is kept for one group.
func memoryMin(v view, group string) *uint64 {
	n, ok := systemdSize(v.root.word(group + "/memory.min"))
	if !ok {
		return nil
	}
	return &n
}

// judgeLogin is H12: on unified memory a training that takes too much leaves nothing to
// the login, and the machine can only be switched off. No machine is delivered with memory
// kept for it, so that this alone is no hint, which would be told at every start of a run;
// what is one is an end without a shutdown lately, or a setting that does not do what it
// was made for.
func judgeLogin(seen loginSeen, f facts) Finding {
	if !f.spark() {
		return notHere(f)
	}
	if found, hidden := hostHidden(f); hidden {
		return found
	}
	if !seen.v2 {
		return byDesign("no cgroup version 2 on this machine: nothing can be kept for the login")
	}
	t := rulesOfHost().Login
	var a advice
	a.saw("user.slice MemoryMin: %s", minWords(seen.user))
	if seen.service != "" {
		a.saw("%s MemoryMin: %s, of which the groups above let through %s", seen.service, minWords(seen.sshOwn), minWords(seen.ssh))
		if seen.score != "" {
			a.saw("%s oom_score_adj: %s", seen.service, seen.score)
		}
	}
	enough := func(n *uint64, mib uint64) bool { return n != nil && *n >= mib<<20 }
	switch {
	case enough(seen.user, t.UserSliceMiB):
		return a.finding(Pass, fmt.Sprintf("%s stays with whoever is logged in", sizeWords(*seen.user)))
	case seen.user == nil:
		return a.finding(Info, "what is kept for the login could not be read (/sys/fs/cgroup/user.slice/memory.min)")
	}
	command := fmt.Sprintf("systemctl set-property user.slice MemoryMin=%s", t.UserSliceAdvised)
	undo := "systemctl set-property user.slice MemoryMin=0"
	if seen.service != "" && !enough(seen.ssh, t.SSHMiB) {
		command += fmt.Sprintf(" && systemctl set-property system.slice MemoryMin=%[1]s && systemctl set-property %[2]s MemoryMin=%[1]s", t.SSHAdvised, seen.service)
		undo += fmt.Sprintf("; the same with system.slice and %s", seen.service)
	}
	fix := "sudo " + strings.ReplaceAll(command, " && ", "\nsudo ")
	repair := Repair{Command: command, Root: true, Effect: fmt.Sprintf("keeps %s of the memory for logins, at once and after every boot; undo: %s", t.UserSliceAdvised, undo)}
	const cost = "when a training takes too much, ssh and the shell are the first to stand still, and only the power button is left"
	switch {
	case enough(seen.sshOwn, t.SSHMiB):
		a.warn(fmt.Sprintf("memory is kept for %s alone: the shell behind the login lies in user.slice, which has none", seen.service), cost, fix, repair)
	case seen.planned.value != "" && seen.planned.value != "0":
		a.warn(fmt.Sprintf("user.slice is to keep MemoryMin=%s (%s), but that is not in force", seen.planned.value, seen.planned.file), cost,
			"sudo systemctl daemon-reload, or reboot", Repair{Command: "systemctl daemon-reload", Root: true, Effect: "makes systemd read its files again; nothing to undo"})
	default:
		t := aboutHost().Boot
		if cut, all := seen.boots.cutOff(f.now, t.OftenDays); cut > 0 {
			a.warn(fmt.Sprintf("no memory is kept for the login, and %d of the %d boots of the last %g days came without a shutdown before them", cut, all, t.OftenDays), cost, fix, repair)
			break
		}
		return Finding{
			Status: Info, Detail: "no memory is kept for the login, as on every machine that is delivered", Evidence: a.evidence,
			Cost: cost, Fix: fix, Repairs: []Repair{repair},
		}
	}
	return a.finding(Pass, "")
}

func minWords(n *uint64) string {
	if n == nil {
		return "not known"
	}
	if *n == unlimited {
		return "all"
	}
	return sizeWords(*n)
}
