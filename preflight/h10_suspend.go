package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// suspendSeen is what would put the machine to sleep.
type suspendSeen struct {
	// states is /sys/power/state; empty where the kernel cannot sleep or does not say.
	states    string
	statesErr error
	// stopped says what keeps it awake for good: masked targets, sleep.conf.
	stopped string
	// slept is how often it has gone to sleep since it was started.
	slept int
	// greeter tells that GNOME's power daemon runs for the login screen, desktop that it
	// does for somebody who is logged in.
	greeter, desktop bool
	// greeterOff is the file that keeps the login screen from suspending; greeterSays what
	// a file says to the contrary.
	greeterOff, greeterSays string
	// desktopSays and desktopOff are the same for everybody's desktop.
	desktopOff, desktopSays string
	// idle is logind's IdleAction where that sleeps, lid what it does when a lid that the
	// machine has is closed.
	idle, lid unitSetting
}

// sleepTargets are the ways to sleep; all go through the first.
var sleepTargets = []string{"sleep.target", "suspend.target", "hibernate.target", "hybrid-sleep.target"}

func lookSuspend(ctx context.Context, v view) suspendSeen {
	var seen suspendSeen
	text, err := v.file("/sys/power/state")
	seen.states, seen.statesErr = strings.TrimSpace(text), err
	if v.live() && errors.Is(err, fs.ErrNotExist) {
		seen.statesErr = nil // a kernel that was built without it
	}
	switch {
	case unitMasked(v, "sleep.target"):
		seen.stopped = "sleep.target is masked"
	case unitMasked(v, "suspend.target"):
		seen.stopped = "suspend.target is masked"
	default:
		if s := confSettings(v, "sleep.conf")["AllowSuspend"]; saysNo(s.value) {
			seen.stopped = "AllowSuspend=" + s.value + " in " + s.file
		}
	}
	seen.slept, _ = strconv.Atoi(v.root.word("/sys/power/suspend_stats/success"))
	logind := confSettings(v, "logind.conf")
	if s := logind["IdleAction"]; slices.Contains([]string{"suspend", "hibernate", "hybrid-sleep", "suspend-then-hibernate", "sleep", "poweroff", "reboot", "halt"}, s.value) {
		seen.idle = s
		if after := logind["IdleActionSec"]; after.value != "" {
			seen.idle.value += " after " + after.value
		}
	}
	if len(v.root.names("/proc/acpi/button/lid")) > 0 {
		seen.lid = unitSetting{"suspend", "the default"}
		if s := logind["HandleLidSwitch"]; s.value != "" {
			seen.lid = s
		}
	}
	if seen.stopped == "" {
		seen.greeter, seen.desktop = powerDaemons(ctx, v)
		if seen.greeter {
			seen.greeterOff, seen.greeterSays = gnomeSleep(v, greeterFiles(v))
		}
		if seen.desktop {
			seen.desktopOff, seen.desktopSays = gnomeSleep(v, desktopFiles(v))
		}
	}
	return seen
}

func saysNo(value string) bool {
	return slices.Contains([]string{"no", "false", "0", "off"}, strings.ToLower(value))
}

// powerDaemons looks for GNOME's power daemon, which is what suspends an idle machine,
// and whose it is.
func powerDaemons(ctx context.Context, v view) (greeter, desktop bool) {
	for _, p := range v.processes(ctx).rows {
		if ctx.Err() != nil {
			break
		}
		if p.comm != "gsd-power" {
			continue
		}
		// Ordinary users start at 1000; the login screen belongs to gdm, or to a user that
		// was made for it alone.
		switch uid := statusUID(v, p.name); {
		case uid >= 1000 && uid < 60000:
			desktop = true
		case uid >= 0:
			greeter = true
		}
	}
	return greeter, desktop
}

// statusUID is the user a process runs as, -1 where that cannot be told.
func statusUID(v view, pid string) int {
	for line := range strings.Lines(v.root.word("/proc/" + pid + "/status")) {
		if value, ok := strings.CutPrefix(line, "Uid:"); ok {
			if fields := strings.Fields(value); len(fields) > 0 {
				if n, err := strconv.Atoi(fields[0]); err == nil {
					return n
				}
			}
		}
	}
	return -1
}

// greeterFiles are the texts that the login screen's settings are compiled from, weakest
// first.
func greeterFiles(v view) []string {
	files := []string{"/etc/gdm3/greeter.dconf-defaults", "/etc/gdm/greeter.dconf-defaults"}
	return append(files, inFolder(v, "/etc/dconf/db/gdm.d")...)
}

// desktopFiles are those for everybody's desktop. What a user has chosen lies in a
// database and is not seen.
func desktopFiles(v view) []string {
	return append(inFolder(v, "/etc/dconf/db/local.d"), inFolder(v, "/etc/dconf/db/site.d")...)
}

func inFolder(v view, dir string) []string {
	var out []string
	names := v.root.names(dir)
	slices.Sort(names)
	for _, name := range names {
		out = append(out, filepath.Join(dir, name))
	}
	return out
}

// gnomeSleep reads whether texts of dconf keep an idle machine awake on mains power.
func gnomeSleep(v view, files []string) (off, says string) {
	for _, file := range files {
		b, err := v.root.read(file)
		if err != nil {
			continue
		}
		section := ""
		for line := range strings.Lines(string(b)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "[") {
				section = strings.Trim(line, "[]")
				continue
			}
			name, value, ok := strings.Cut(line, "=")
			if !ok || strings.HasPrefix(line, "#") || section != "org/gnome/settings-daemon/plugins/power" {
				continue
			}
			name, value = strings.TrimSpace(name), strings.Trim(strings.TrimSpace(value), `'"`)
			switch name {
			case "sleep-inactive-ac-type":
				off, says = "", ""
				if value == "suspend" || value == "hibernate" || value == "shutdown" || value == "logout" {
					says = file + ": " + name + "=" + value
				} else {
					off = file
				}
			case "sleep-inactive-ac-timeout":
				if value == "0" {
					off, says = file, ""
				}
			}
		}
	}
	return off, says
}

// judgeSuspend is H10: a machine that goes to sleep ends the night. The login screen of
// GNOME does so after 15 to 20 minutes without a key, whatever runs behind it.
func judgeSuspend(seen suspendSeen, f facts) Finding {
	if found, hidden := hostHidden(f); hidden {
		return found
	}
	var a advice
	if seen.slept > 0 {
		a.saw("it has gone to sleep %d times since it was started", seen.slept)
	}
	if seen.lid.value != "" && seen.lid.value != "ignore" {
		a.saw("closing the lid: %s (%s)", seen.lid.value, seen.lid.file)
	}
	switch {
	case seen.stopped != "":
		return a.finding(Pass, "the machine does not go to sleep: "+seen.stopped)
	case seen.statesErr == nil && seen.states == "":
		return a.finding(Pass, "the kernel of this machine cannot sleep")
	}
	targets := strings.Join(sleepTargets, " ")
	mask := Repair{
		Command: "systemctl mask " + targets, Root: true,
		Effect: "the machine cannot go to sleep any more, by nobody's doing; undo: systemctl unmask " + targets,
	}
	const cost = "the training stands still while the machine sleeps, and CUDA has been seen not to survive it"
	fix := "sudo systemctl mask " + targets + "\nundo: sudo systemctl unmask " + targets
	if seen.idle.value != "" {
		a.warn(fmt.Sprintf("logind does %s without a key (IdleAction in %s)", seen.idle.value, seen.idle.file), cost, fix, mask)
	}
	if seen.greeter && seen.greeterOff == "" {
		detail := "the login screen is up and suspends the machine after 15 to 20 minutes without a key"
		if seen.greeterSays != "" {
			detail += " (" + seen.greeterSays + ")"
		}
		a.warn(detail, cost, fix, mask)
	}
	if seen.desktop && seen.desktopSays != "" {
		a.warn("the desktop suspends the machine when nobody types ("+seen.desktopSays+")", cost, fix, mask)
	}
	if len(a.details) == 0 && seen.slept > 0 {
		a.warn(fmt.Sprintf("the machine has gone to sleep %d times since it was started, and nothing keeps it from doing so", seen.slept), cost, fix, mask)
	}
	if len(a.repairs) > 1 {
		a.repairs = a.repairs[:1]
	}
	switch {
	case seen.desktop && len(a.details) == 0:
		return forSparks(f, a.finding(Info, "a desktop session may suspend the machine; its own settings cannot be read from outside"))
	case seen.statesErr != nil && len(a.details) == 0:
		return unreadable("/sys/power/state", seen.statesErr)
	}
	return forSparks(f, a.finding(Pass, "nothing that is running puts the machine to sleep"))
}
