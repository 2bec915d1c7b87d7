package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// machine: this is the machine that the other checks count on.
func machine(*trial) (string, error) {
	var uts syscall.Utsname
	if err := syscall.Uname(&uts); err != nil {
		return "", err
	}
	word := func(f [65]int8) string {
		var b strings.Builder
		for _, c := range f {
			if c == 0 {
				break
			}
			b.WriteByte(byte(c))
		}
		return b.String()
	}
	if m := word(uts.Machine); m != "aarch64" {
		return "", fmt.Errorf("this is a %s", m)
	}
	b, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err != nil || !strings.Contains(string(b), "memory") {
		return "", wrong(err, "cgroup v2 has no memory controller: %s", b)
	}
	b, err = os.ReadFile("/proc/1/comm")
	if err != nil || strings.TrimSpace(string(b)) != "systemd" {
		return "", wrong(err, "process 1 is %q", b)
	}
	out, err := exec.Command(home+"/sparkrun", "version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("sparkrun version: %w: %s", err, out)
	}
	total, err := counter("/proc/meminfo", "MemTotal")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("kernel %s, %d MiB, %s", word(uts.Release), total>>10, strings.Join(strings.Fields(string(out)), " ")), nil
}

// psi: the kernel tells memory pressure, and telemetry.csv has it in every row.
func psi(t *trial) (string, error) {
	if _, err := os.Stat("/proc/pressure/memory"); err != nil {
		return "", err
	}
	r, status, err := t.call(job{name: "psi", args: []string{"--no-preflight", "--", home + "/start", "train", "-steps", "25"}})
	if err != nil || status != 0 {
		return "", wrong(err, "status %d", status)
	}
	rows, err := csv.NewReader(strings.NewReader(r.text("telemetry.csv"))).ReadAll()
	if err != nil || len(rows) < 2 {
		return "", wrong(err, "telemetry.csv has %d rows", len(rows))
	}
	for _, name := range []string{"psi_mem_some10", "psi_mem_full10", "mem_available_kib", "vm_oom_kill"} {
		col := -1
		for i, head := range rows[0] {
			if head == name {
				col = i
			}
		}
		if col < 0 {
			return "", fmt.Errorf("telemetry.csv has no column %s", name)
		}
		for _, row := range rows[1:] {
			if _, err := strconv.ParseFloat(row[col], 64); err != nil {
				return "", fmt.Errorf("telemetry.csv: %s is %q", name, row[col])
			}
		}
	}
	return fmt.Sprintf("%d rows", len(rows)-1), nil
}

const mib = 1 << 20

// cgroupOOM: the kernel kills the command at the limit of its v2 cgroup; the verdict is
// high, names the record and the group's own count, and the status is the child's.
func cgroupOOM(t *trial) (string, error) {
	cg, err := memoryCgroup("vm-oom", 150*mib)
	if err != nil {
		return "", err
	}
	defer os.Remove(cg)
	r, status, err := t.call(job{name: "cgroup-oom", args: []string{
		"--no-preflight", "--no-guard", "--no-retry", "--cgroup", cg, "--", home + "/start", "fill", "-units", "400",
	}})
	if err != nil {
		return "", err
	}
	v, err := r.verdict(1)
	if err != nil {
		return "", err
	}
	if err := v.expect("oom", "cgroup-oom", "high"); err != nil {
		return "", err
	}
	kills, err := counter(cg+"/memory.events", "oom_kill")
	switch {
	case err != nil:
		return "", err
	case kills == 0:
		return "", fmt.Errorf("the kernel counted no kill in %s", cg)
	case !strings.Contains(v.from("kernel"), "Killed process"):
		return "", fmt.Errorf("no kernel record among the evidence: %v", v)
	case v.from("cgroup") == "":
		return "", fmt.Errorf("memory.events is not among the evidence: %v", v)
	case status != 137:
		return "", fmt.Errorf("status %d, wanted 137", status)
	}
	return v.String(), nil
}

// cgroupKill: what stop order cannot reach by signals, cgroup.kill reaches: a tree that
// is deaf to them, daemons in sessions of their own, and a process that came into the
// group from elsewhere, as with docker exec.
func cgroupKill(t *trial) (string, error) {
	cg, err := memoryCgroup("vm-kill", 500*mib)
	if err != nil {
		return "", err
	}
	defer os.Remove(cg)
	r, err := t.begin(job{name: "cgroup-kill", args: []string{
		"--no-preflight", "--grace", "1s", "--cgroup", cg, "--", home + "/start", "deaf", "-children", "3",
	}})
	if err != nil {
		return "", err
	}
	procs := func() int {
		b, _ := os.ReadFile(cg + "/cgroup.procs")
		return strings.Count(string(b), "\n")
	}
	if err := until(time.Minute, "four processes in the group", func() bool { return procs() >= 4 }); err != nil {
		_ = r.cmd.Process.Kill()
		return "", err
	}
	guest := exec.Command(home+"/start", "as", "-cgroup", cg, "--", home+"/start", "deaf")
	if err := guest.Start(); err != nil {
		return "", err
	}
	reaped := make(chan struct{})
	go func() {
		_ = guest.Wait() // killed, is what it should be
		close(reaped)
	}()
	defer func() { _ = guest.Process.Kill() }()
	if err := until(time.Minute, "the fifth in the group", func() bool { return procs() >= 5 }); err != nil {
		_ = r.cmd.Process.Kill()
		return "", err
	}
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return "", err
	}
	status, err := r.wait()
	if err != nil {
		return "", err
	}
	if alive, err := populated(cg); err != nil || alive {
		return "", wrong(err, "the group is still populated after the stop (%d processes)", procs())
	}
	select {
	case <-reaped:
	case <-time.After(10 * time.Second):
		return "", fmt.Errorf("the process that came from elsewhere was not killed")
	}
	if status != 128+int(syscall.SIGTERM) {
		return "", fmt.Errorf("status %d, wanted 143", status)
	}
	return "five processes gone", nil
}

const (
	worker = 1000 // an ordinary user of the image
)

// kmsgRestricted: an ordinary user may not read the kernel log; sparkrun says so, and
// the count of the user's own cgroup decides.
func kmsgRestricted(t *trial) (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/dmesg_restrict")
	if err != nil || strings.TrimSpace(string(b)) != "1" {
		return "", wrong(err, "the kernel log is not restricted here: %q", b)
	}
	host, cg, err := ownCgroup("vm-worker", worker, 150*mib)
	if err != nil {
		return "", err
	}
	r, status, err := t.call(job{name: "kmsg", uid: worker, cgroup: host, args: []string{
		"--no-preflight", "--no-guard", "--no-retry", "--cgroup", cg, "--", home + "/start", "fill", "-units", "400",
	}})
	if err != nil {
		return "", err
	}
	v, err := r.verdict(1)
	if err != nil {
		return "", err
	}
	if err := v.expect("oom", "cgroup-oom", "high"); err != nil {
		return "", err
	}
	switch {
	case v.from("kernel") != "":
		return "", fmt.Errorf("an ordinary user has read the kernel log: %v", v)
	case !strings.Contains(strings.Join(v.Unreadable, "; "), "kernel log"):
		return "", fmt.Errorf("the verdict does not say that the kernel log was unreadable: %q", v.Unreadable)
	case !strings.Contains(r.text("run.log"), "kernel log cannot be followed"):
		return "", fmt.Errorf("run.log does not say that the kernel log cannot be followed")
	case status != 137:
		return "", fmt.Errorf("status %d, wanted 137", status)
	}
	return v.String(), nil
}

// shrinks is a command whose first attempt does not fit its cgroup and whose second,
// half as long, does. It maps a file first, as a trainer maps its weights.
func shrinks(dir, cg string, uid int) (args []string, weights string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, "", err
	}
	weights = filepath.Join(dir, "weights.bin")
	if err := os.WriteFile(weights, make([]byte, 32*mib), 0o644); err != nil {
		return nil, "", err
	}
	if err := os.Chown(weights, uid, uid); err != nil {
		return nil, "", err
	}
	return []string{
		"--no-preflight", "--no-guard", "--cgroup", cg, "--knob", "seq_len=4096", "--",
		home + "/start", "fill", "-map", weights, "-rate", "60", "-units", "{seq_len}", "-per", "100",
	}, weights, nil
}

var dropped = regexp.MustCompile(`drop-caches: [^\n]*`)

// dropCachesRoot: with the privilege the page cache of the whole machine goes, before
// the second attempt, which is shorter and fits.
func dropCachesRoot(t *trial) (string, error) {
	cg, err := memoryCgroup("vm-drop", 300*mib)
	if err != nil {
		return "", err
	}
	defer os.Remove(cg)
	args, _, err := shrinks(filepath.Join(home, "work", "drop-root"), cg, 0)
	if err != nil {
		return "", err
	}
	before, err := counter("/proc/vmstat", "drop_pagecache")
	if err != nil {
		return "", err
	}
	r, status, err := t.call(job{name: "drop-root", args: args})
	if err != nil {
		return "", err
	}
	after, err := counter("/proc/vmstat", "drop_pagecache")
	if err != nil {
		return "", err
	}
	notes := strings.Join(dropped.FindAllString(r.text("run.log"), -1), "; ")
	switch {
	case status != 0:
		return "", fmt.Errorf("status %d, wanted 0: the shorter attempt fits", status)
	case after <= before:
		return "", fmt.Errorf("the kernel counts no drop: %d before, %d after; run.log: %s", before, after, notes)
	case !strings.Contains(notes, "whole machine"):
		return "", fmt.Errorf("run.log does not say that the whole machine's cache was dropped: %s", notes)
	}
	return notes, nil
}

// dropCachesUser: without the privilege only what the job itself had mapped is evicted,
// and that is said.
func dropCachesUser(t *trial) (string, error) {
	host, cg, err := ownCgroup("vm-drop-worker", worker, 300*mib)
	if err != nil {
		return "", err
	}
	args, weights, err := shrinks(filepath.Join(home, "work", "drop-user"), cg, worker)
	if err != nil {
		return "", err
	}
	before, err := counter("/proc/vmstat", "drop_pagecache")
	if err != nil {
		return "", err
	}
	r, status, err := t.call(job{name: "drop-user", uid: worker, cgroup: host, args: args})
	if err != nil {
		return "", err
	}
	after, err := counter("/proc/vmstat", "drop_pagecache")
	if err != nil {
		return "", err
	}
	notes := strings.Join(dropped.FindAllString(r.text("run.log"), -1), "; ")
	switch {
	case status != 0:
		return "", fmt.Errorf("status %d, wanted 0: the shorter attempt fits", status)
	case after != before:
		return "", fmt.Errorf("an ordinary user has dropped the machine's page cache")
	case !strings.Contains(notes, "files this job had mapped"):
		return "", fmt.Errorf("run.log does not say that only the job's own files were evicted: %s", notes)
	case strings.Contains(notes, "of 0 files"):
		return "", fmt.Errorf("%s was mapped and is not among the files evicted: %s", weights, notes)
	}
	return notes, nil
}
