package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// check is one statement about the machine and sparkrun on it. What it returns beside
// an error is told with the result.
type check struct {
	name string
	run  func(t *trial) (string, error)
}

// trial is what a check leaves to be looked at when it fails.
type trial struct {
	runs []*running
}

// begin and call are those of the package, remembered.
func (t *trial) begin(j job) (*running, error) {
	r, err := begin(j)
	if r != nil {
		t.runs = append(t.runs, r)
	}
	return r, err
}

func (t *trial) call(j job) (*running, int, error) {
	r, status, err := call(j)
	if r != nil {
		t.runs = append(t.runs, r)
	}
	return r, status, err
}

// plans are named on the kernel command line. Each is one boot; the plan reset, which is
// several, is in reset.go.
var plans = map[string][]check{
	"smoke": {
		{"machine", machine},
		{"psi", psi},
		{"cgroup-oom", cgroupOOM},
		{"cgroup-kill", cgroupKill},
		{"kmsg-restricted", kmsgRestricted},
		{"drop-caches-root", dropCachesRoot},
		{"drop-caches-user", dropCachesUser},
		{"guard", guardSmoke},
	},
	"memory": {
		{"machine", machine},
		{"global-oom", globalOOM},
		{"global-oom-user", globalOOMUser},
		{"guard-slow", guardAt(50)},
		{"guard-fast", guardAt(200)},
		{"guard-full-speed", guardAt(0)},
		{"guard-supervisor-stopped", guardAlone},
		{"guard-user", guardUser},
		{"guard-fits", guardFits},
		{"guard-cotenant", guardCotenant},
		{"global-oom-again", globalOOM},
	},
}

// console is written by the plan and by nobody else at a time.
var console sync.Mutex

// say writes one line to the console at one stroke.
func say(format string, args ...any) {
	console.Lock()
	defer console.Unlock()
	line := strings.NewReplacer("\n", " | ", "\r", "").Replace(fmt.Sprintf(format, args...))
	_, _ = os.Stdout.WriteString(line + "\n")
}

// wrong is an error in words of its own, with the cause where there is one.
func wrong(cause error, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if cause != nil {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// carryOut carries out the plan that the kernel command line names.
func carryOut() error {
	b, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	m := regexp.MustCompile(`\bsparkrun\.plan=([a-z]+)`).FindStringSubmatch(string(b))
	if m == nil {
		return fmt.Errorf("the kernel command line names no plan: %s", b)
	}
	up, _ := os.ReadFile("/proc/uptime")
	say("PLAN %s, up for %s s", m[1], strings.Fields(string(up) + " ?")[0])
	if m[1] == "reset" {
		return resets()
	}
	checks, ok := plans[m[1]]
	if !ok {
		return fmt.Errorf("there is no plan %q", m[1])
	}
	carry(checks)
	say("DONE %d", len(checks))
	return nil
}

// carry makes the checks and tells what came of them.
func carry(checks []check) {
	for _, ch := range checks {
		began := time.Now()
		t := &trial{}
		detail, err := ch.run(t)
		took := time.Since(began).Round(100 * time.Millisecond)
		if err != nil {
			say("RESULT %s fail %v (%s)", ch.name, err, took)
			t.dump(ch.name)
			sweep()
		} else {
			say("RESULT %s pass %s (%s)", ch.name, detail, took)
		}
	}
}

// dump puts on the console what is left of a failed check.
func (t *trial) dump(name string) {
	for _, r := range t.runs {
		logTail(name+" stdout", r.out.String())
		logTail(name+" stderr", r.err.String())
		for _, pattern := range []string{"run.log", "attempts/*/verdict.json", "attempts/*/exit.json", "attempts/*/guard.json"} {
			files, _ := filepath.Glob(r.file(pattern))
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					b = []byte(err.Error())
				}
				logTail(name+" "+filepath.Base(filepath.Dir(f))+"/"+filepath.Base(f), string(b))
			}
		}
	}
	b, _ := exec.Command("dmesg").CombinedOutput()
	logTail(name+" dmesg", string(b))
}

// sweep ends what a failed check has left running, so that the next one has the machine
// to itself.
func sweep() {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		exe, err := os.Readlink(link)
		if err != nil || exe != home+"/start" && exe != home+"/sparkrun" {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func logTail(what, b string) {
	const most = 6000
	if len(b) > most {
		b = b[len(b)-most:]
	}
	for line := range strings.Lines(b) {
		say("LOG %s: %s", what, strings.TrimRight(line, "\r\n"))
	}
}
