package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// exhaust is a fill that no machine of these tests can hold.
func exhaust(rate int) []string {
	return []string{home + "/start", "fill", "-units", "65536", "-rate", strconv.Itoa(rate)}
}

// globalOOM: with the guard off the whole machine runs out, the kernel kills the
// training and not sparkrun, and the verdict quotes the kernel.
func globalOOM(t *trial) (string, error) {
	before, err := counter("/proc/vmstat", "oom_kill")
	if err != nil {
		return "", err
	}
	events, err := ownEvents()
	if err != nil {
		return "", err
	}
	r, status, err := t.call(job{name: "global-oom", limit: 10 * time.Minute, args: append([]string{"--no-preflight", "--no-guard", "--no-retry", "--"}, exhaust(0)...)})
	if err != nil {
		return "", err
	}
	v, err := r.verdict(1)
	if err != nil {
		return "", err
	}
	if err := v.expect("oom", "kernel-oom", "high"); err != nil {
		return "", err
	}
	after, err := counter("/proc/vmstat", "oom_kill")
	if err != nil {
		return "", err
	}
	now, err := ownEvents()
	switch {
	case err != nil:
		return "", err
	case after <= before:
		return "", fmt.Errorf("the kernel counts no kill")
	case now.kills <= events.kills || now.limit != events.limit:
		// What tells a kill for the machine's sake from one at the group's limit:
		// both count as oom_kill.
		return "", fmt.Errorf("memory.events: %+v before, %+v after", events, now)
	case !strings.Contains(v.from("kernel"), "Out of memory: Killed process"):
		return "", fmt.Errorf("the kernel's record is not among the evidence: %v", v)
	case status != 137:
		return "", fmt.Errorf("status %d, wanted 137", status)
	}
	return v.String(), nil
}

// events is what the memory.events of a cgroup count: kills, by whatever out-of-memory
// killer, and how often its own limit was the reason for one.
type events struct{ kills, limit int64 }

// ownEvents reads the group that the plan and all its runs are in.
func ownEvents() (e events, err error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return e, err
	}
	_, path, ok := strings.Cut(strings.TrimSpace(string(b)), "0::")
	if !ok {
		return e, fmt.Errorf("no cgroup of version 2: %s", b)
	}
	file := "/sys/fs/cgroup" + path + "/memory.events"
	if e.kills, err = counter(file, "oom_kill"); err != nil {
		return e, err
	}
	e.limit, err = counter(file, "oom")
	return e, err
}

// globalOOMUser: the same for an ordinary user, who cannot read the kernel log: the
// counters and the samples make it an oom, if not a certain one.
func globalOOMUser(t *trial) (string, error) {
	r, status, err := t.call(job{name: "global-oom-user", uid: worker, limit: 10 * time.Minute, args: append([]string{"--no-preflight", "--no-guard", "--no-retry", "--"}, exhaust(0)...)})
	if err != nil {
		return "", err
	}
	v, err := r.verdict(1)
	if err != nil {
		return "", err
	}
	if err := v.expect("oom", "", ""); err != nil {
		return "", err
	}
	if v.from("kernel") != "" || status != 137 {
		return "", fmt.Errorf("status %d, %v", status, v)
	}
	return v.String(), nil
}

// guarded runs a command that exhausts the whole machine under the guard and checks
// what must hold whatever its speed: the verdict, that memory never ran out, and that
// the kernel had to kill nobody.
func guarded(t *trial, j job, kind string, while func(*running) error) (string, error) {
	stayResident()
	before, err := counter("/proc/vmstat", "oom_kill")
	if err != nil {
		return "", err
	}
	w, err := watchMemory()
	if err != nil {
		return "", err
	}
	j.limit = 10 * time.Minute
	r, err := t.begin(j)
	if err != nil {
		w.end()
		return "", err
	}
	var werr error
	if while != nil {
		werr = while(r)
	}
	status, err := r.wait()
	low := w.end()
	if err == nil {
		err = werr
	}
	if err != nil {
		return "", err
	}
	v, err := r.verdict(1)
	if err != nil {
		return "", err
	}
	if err := v.expect("oom", kind, "high"); err != nil {
		return "", err
	}
	after, err := counter("/proc/vmstat", "oom_kill")
	switch {
	case err != nil:
		return "", err
	case after != before:
		return "", fmt.Errorf("the kernel had to kill %d processes: the guard came too late (lowest MemAvailable %d MiB)", after-before, low>>10)
	case low <= 0:
		return "", fmt.Errorf("MemAvailable was zero")
	case status != 76:
		return "", fmt.Errorf("status %d, wanted 76 (ended by the guard, no retry)", status)
	case r.text("attempts/1/guard.json") == "":
		return "", fmt.Errorf("there is no guard.json")
	case strings.Count(r.text("attempts/1/blackbox.csv"), "\n") < 3:
		return "", fmt.Errorf("blackbox.csv has not the last minute: %q", r.text("attempts/1/blackbox.csv"))
	}
	return fmt.Sprintf("lowest MemAvailable %d MiB, widest gap between two looks at it %s, %v", low>>10, time.Duration(w.slow.Load()).Round(time.Millisecond), v), nil
}

func guardJob(name string, rate int) job {
	return job{name: name, args: append([]string{"--no-preflight", "--no-retry", "--"}, exhaust(rate)...)}
}

// guardSmoke: one exhaustion of the machine.
func guardSmoke(t *trial) (string, error) { return guarded(t, guardJob("guard", 150), "guard", nil) }

// guardAt is an exhaustion at a speed in MiB a second.
func guardAt(rate int) func(*trial) (string, error) {
	return func(t *trial) (string, error) {
		return guarded(t, guardJob(fmt.Sprintf("guard-%d", rate), rate), "guard", nil)
	}
}

// guardUser: the guard needs no privilege.
func guardUser(t *trial) (string, error) {
	j := guardJob("guard-user", 150)
	j.uid = worker
	return guarded(t, j, "guard", nil)
}

// guardAlone: the supervisor stands still while memory runs out; the guard does not ask
// it. The training's end is seen while the supervisor is stopped.
func guardAlone(t *trial) (string, error) {
	return guarded(t, guardJob("guard-alone", 100), "guard", func(r *running) error {
		if err := until(time.Minute, "the child's first words", func() bool { return strings.Contains(r.text("attempts/1/output.log"), "taking") }); err != nil {
			return err
		}
		if err := r.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		defer func() { _ = r.cmd.Process.Signal(syscall.SIGCONT) }()
		return until(3*time.Minute, "the end of the attempt, with the supervisor stopped", func() bool { return r.text("attempts/1/exit.json") != "" })
	})
}

// guardFits: a load that peaks above the floor and then fits is left alone.
func guardFits(t *trial) (string, error) {
	// The hard floor is 3 % of the total.
	units, err := leaving(9)
	if err != nil {
		return "", err
	}
	w, err := watchMemory()
	if err != nil {
		return "", err
	}
	r, status, err := t.call(job{name: "guard-fits", args: []string{"--no-preflight", "--no-retry", "--", home + "/start", "fill", "-units", fmt.Sprint(units), "-rate", "100", "-hold", "5s"}})
	low := w.end()
	if err != nil {
		return "", err
	}
	if status != 0 || !strings.Contains(r.out.String(), "fits") {
		return "", fmt.Errorf("status %d: a job that leaves %d MiB was ended", status, low>>10)
	}
	return fmt.Sprintf("lowest MemAvailable %d MiB", low>>10), nil
}

// guardCotenant: somebody else's process takes the memory; the verdict names it, and
// no blame falls on the training.
func guardCotenant(t *trial) (string, error) {
	j := job{name: "guard-cotenant", args: []string{"--no-preflight", "--no-retry", "--", home + "/start", "train", "-steps", "6000"}}
	var other *exec.Cmd
	defer func() {
		if other != nil {
			_ = other.Process.Kill()
			_ = other.Wait()
		}
	}()
	return guarded(t, j, "co-tenant", func(r *running) error {
		if err := until(time.Minute, "the training's first steps", func() bool { return strings.Count(r.text("attempts/1/output.log"), "loss") > 3 }); err != nil {
			return err
		}
		// It stops short of what the kernel would kill for: below the hard floor of
		// 3 %, and still there when the training is gone.
		units, err := leaving(2)
		if err != nil {
			return err
		}
		other = exec.Command(home+"/start", "as", "-adj", "0", "--", home+"/start", "fill", "-units", fmt.Sprint(units), "-rate", "60", "-hold", "10m")
		other.Stderr = os.Stderr
		if err := other.Start(); err != nil {
			return err
		}
		err = until(3*time.Minute, "the guard's act", func() bool { return r.text("attempts/1/guard.json") != "" })
		_ = other.Process.Kill()
		return err
	})
}
