package preflight

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sparkrun/internal/lazyre"
)

// upgradesSeen is what the package manager does by itself.
type upgradesSeen struct {
	// apt tells that this is a system with apt at all, installed that the program for
	// unattended upgrades is there.
	apt, installed bool
	// on says in which file they are switched on; timerOff why they never run all the
	// same.
	on, timerOff string
	// reboot is the file that makes it restart the machine, rebootAt when.
	reboot, rebootAt string
	// pending tells that a package already asks for a restart.
	pending bool
	// kept are expressions for packages that are left alone.
	kept []string
	// driver are packages of the driver and the kernel that are installed, held those of
	// them that apt leaves alone; asked tells that they could be listed.
	driver, held []string
	asked        error
	// did names packages of the driver or the kernel that the upgrades have replaced by
	// themselves, and when, in words; "" for none that is noted.
	did string
	// restart is how needrestart treats services after an upgrade: "a" restarts them.
	restart string
}

// driverPackages are the packages that a running training stands on.
var driverPackages = []string{"nvidia-driver-*", "nvidia-dkms-*", "linux-image-nvidia*", "linux-modules-nvidia-*", "linux-image-generic*"}

// packageName is what Debian allows; these names become part of a command.
var packageName = lazyre.New(`^[a-z0-9][a-z0-9+.:-]*$`)

var needrestartMode = lazyre.New(`(?m)^[ \t]*\$nrconf\{restart\}[ \t]*=[ \t]*['"]?([a-z])`)

func lookUpgrades(ctx context.Context, v view) upgradesSeen {
	var seen upgradesSeen
	files := inFolder(v, "/etc/apt/apt.conf.d")
	if seen.apt = len(files) > 0; !seen.apt {
		return seen
	}
	seen.installed, _ = v.root.exists("/usr/bin/unattended-upgrade")
	if !seen.installed {
		return seen
	}
	conf := make(map[string]aptValue)
	for _, file := range append(files, "/etc/apt/apt.conf") {
		// As apt does, names with other endings are left out.
		if ext := filepath.Ext(file); ext != "" && ext != ".conf" && file != "/etc/apt/apt.conf" {
			continue
		}
		if b, err := v.root.read(file); err == nil {
			parseApt(string(b), file, conf)
		}
	}
	if on := conf["apt::periodic::unattended-upgrade"]; on.text() != "" && on.text() != "0" {
		seen.on = on.file
	}
	if all := conf["apt::periodic::enable"]; all.text() == "0" {
		seen.on = ""
	}
	if reboot := conf["unattended-upgrade::automatic-reboot"]; isTrue(reboot.text()) {
		seen.reboot, seen.rebootAt = reboot.file, conf["unattended-upgrade::automatic-reboot-time"].text()
	}
	seen.kept = conf["unattended-upgrade::package-blacklist"].items
	seen.pending, _ = v.root.exists("/run/reboot-required")
	switch wanted, err := v.root.exists("/etc/systemd/system/timers.target.wants/apt-daily-upgrade.timer"); {
	case unitMasked(v, "apt-daily-upgrade.timer"), unitMasked(v, "apt-daily-upgrade.service"):
		seen.timerOff = "apt-daily-upgrade.timer is masked"
	case err == nil && !wanted && firstUnit(v, "apt-daily-upgrade.timer") != "":
		seen.timerOff = "apt-daily-upgrade.timer is not enabled"
	}
	for _, file := range append([]string{"/etc/needrestart/needrestart.conf"}, inFolder(v, "/etc/needrestart/conf.d")...) {
		if b, err := v.root.read(file); err == nil {
			if m := needrestartMode.FindSubmatch(b); m != nil {
				seen.restart = string(m[1])
			}
		}
	}
	if seen.on == "" || seen.timerOff != "" {
		return seen
	}
	if text, err := v.root.tail(upgradesLog, 64<<10, 1); err == nil {
		seen.did = replaced(string(text))
	}
	// No file that is small enough to read tells which packages are held.
	text, err := v.output(ctx, append([]string{"dpkg-query", "-W", `-f=${db:Status-Want} ${Package}\n`}, driverPackages...)...)
	if text == "" {
		seen.asked = err
	}
	for line := range strings.Lines(text) {
		want, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !packageName.MatchString(name) {
			continue
		}
		switch want {
		case "hold":
			seen.held = append(seen.held, name)
		case "install":
			seen.driver = append(seen.driver, name)
		}
	}
	return seen
}

// upgradesLog is what unattended-upgrades writes; users of the group adm may read it.
const upgradesLog = "/var/log/unattended-upgrades/unattended-upgrades.log"

// replaced finds the last time that the upgrades took a package of the driver or the
// kernel, in the log's own words: DATE TIME,MS INFO Packages that will be upgraded: ...
func replaced(log string) string {
	did := ""
	for line := range strings.Lines(log) {
		head, list, ok := strings.Cut(line, "Packages that will be upgraded:")
		day, _, dated := strings.Cut(head, " ")
		if !ok || !dated {
			continue
		}
		var names []string
		for _, name := range strings.Fields(list) {
			if packageName.MatchString(name) && slices.ContainsFunc(driverPackages, func(p string) bool { fits, _ := path.Match(p, name); return fits }) {
				names = append(names, name)
			}
		}
		if _, err := time.Parse(time.DateOnly, day); err == nil && len(names) > 0 {
			did = few(names) + " on " + day
		}
	}
	return did
}

// aptValue is a setting of apt: a value is a list of one.
type aptValue struct {
	items []string
	file  string
}

func (a aptValue) text() string {
	if len(a.items) == 0 {
		return ""
	}
	return a.items[len(a.items)-1]
}

func isTrue(value string) bool {
	return slices.Contains([]string{"true", "yes", "1", "on", "with", "enable"}, strings.ToLower(value))
}

// parseApt adds the settings of one file of apt's: NAME "VALUE"; and NAME { ... };
// with // and # and /* */ comments. Names are made lower case. What is torn ends the
// reading.
func parseApt(text, file string, out map[string]aptValue) {
	var scope []string
	var words []string
	quoted := false
	finish := func() {
		prefix := strings.Join(scope, "::")
		switch {
		case len(words) == 1 && quoted && prefix != "":
			v := out[prefix]
			out[prefix] = aptValue{append(slices.Clip(v.items), words[0]), file}
		case len(words) == 2:
			name, list := strings.CutSuffix(strings.ToLower(words[0]), "::")
			name = strings.Join(append(slices.Clone(scope), name), "::")
			if list {
				out[name] = aptValue{append(slices.Clip(out[name].items), words[1]), file}
			} else {
				out[name] = aptValue{[]string{words[1]}, file}
			}
		}
		words, quoted = nil, false
	}
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
		case c == '#' || strings.HasPrefix(text[i:], "//"):
			if i = aptNext(text, i, "\n"); i < 0 {
				return
			}
		case strings.HasPrefix(text[i:], "/*"):
			if i = aptNext(text, i+2, "*/"); i < 0 {
				return
			}
		case c == '"':
			end := aptNext(text, i+1, `"`)
			if end < 0 {
				return
			}
			words, quoted = append(words, text[i+1:end-1]), len(words) == 0
			i = end
		case c == '{':
			if len(words) == 0 {
				return
			}
			scope = append(scope, strings.ToLower(words[0]))
			words, quoted = nil, false
			i++
		case c == '}':
			if len(scope) == 0 {
				return
			}
			scope = scope[:len(scope)-1]
			words, quoted = nil, false
			i++
		case c == ';':
			finish()
			i++
		default:
			end := i
			for end < len(text) && !strings.ContainsRune(" \t\r\n\"{};", rune(text[end])) {
				end++
			}
			words = append(words, text[i:end])
			i = end
		}
	}
}

// aptNext is the place behind the next mark, -1 where there is none.
func aptNext(text string, from int, mark string) int {
	if from > len(text) {
		return -1
	}
	i := strings.Index(text[from:], mark)
	if i < 0 {
		return -1
	}
	return from + i + len(mark)
}

// left is what unattended upgrades may replace of the driver and the kernel.
func (s upgradesSeen) left() []string {
	var out []string
	for _, name := range s.driver {
		kept := slices.ContainsFunc(s.kept, func(expression string) bool {
			// Python's match: at the beginning.
			re, err := regexp.Compile("^(?:" + expression + ")")
			return err == nil && re.MatchString(name)
		})
		if !kept {
			out = append(out, name)
		}
	}
	return out
}

// judgeUpgrades is H11: what the machine does to itself at six in the morning. That the
// upgrades are on and nothing is held is how machines are delivered, and no hint, which
// would be told at every start of a run; that they restart the machine is one, and that
// they have replaced the driver or the kernel of this machine before.
func judgeUpgrades(seen upgradesSeen, f facts) Finding {
	if found, hidden := hostHidden(f); hidden {
		return found
	}
	switch {
	case !seen.apt:
		return byDesign("no apt on this machine")
	case !seen.installed:
		return Finding{Status: Pass, Detail: "unattended-upgrades is not installed"}
	case seen.on == "":
		return Finding{Status: Pass, Detail: "unattended upgrades are switched off"}
	case seen.timerOff != "":
		return Finding{Status: Pass, Detail: "unattended upgrades never run: " + seen.timerOff}
	}
	var a advice
	a.saw("switched on in %s", seen.on)
	if len(seen.held) > 0 {
		a.saw("held: %s", strings.Join(seen.held, " "))
	}
	if seen.restart == "a" {
		a.saw("needrestart restarts services after an upgrade; a restarted container engine takes its containers along")
	}
	if seen.reboot != "" {
		detail := "unattended upgrades restart the machine by themselves"
		if seen.rebootAt != "" {
			detail += " at " + seen.rebootAt
		}
		if seen.pending {
			detail += ", and one package already asks for it"
		}
		const off = "/etc/apt/apt.conf.d/99sparkrun-no-reboot"
		a.saw("%s: Automatic-Reboot", seen.reboot)
		a.warn(detail, "the run ends at that hour, wherever it is",
			fmt.Sprintf(`echo 'Unattended-Upgrade::Automatic-Reboot "false";' | sudo tee %s`, off)+"\nor for one night: sudo systemctl stop apt-daily-upgrade.timer",
			Repair{Command: fmt.Sprintf(`echo 'Unattended-Upgrade::Automatic-Reboot "false";' > %s`, off), Root: true, Effect: "upgrades no longer restart the machine; undo: rm " + off})
	}
	switch left := seen.left(); {
	case seen.asked != nil:
		a.saw("which packages are held could not be asked: %v", seen.asked)
		if len(a.details) == 0 {
			return Finding{Status: Info, Detail: "unattended upgrades are on; whether they may replace the driver could not be told", Evidence: a.evidence}
		}
	case len(left) > 0:
		const cost = "new processes then find a library and a module of different versions: the next attempt, or the next evaluation, has no GPU until a reboot"
		names := strings.Join(left, " ")
		command := "apt-mark hold " + names
		detail := "unattended upgrades may replace the driver or the kernel under a running training: " + few(left)
		fix := "sudo " + command + "      # before a long run; sudo apt-mark unhold the same afterwards\nor for one night: sudo systemctl stop apt-daily-upgrade.timer"
		repair := Repair{Command: command, Root: true, Effect: "apt leaves them at their version, security updates included; undo: apt-mark unhold " + names}
		switch {
		case seen.did != "":
			a.saw("%s: %s", upgradesLog, seen.did)
			a.warn(detail+"; they replaced "+seen.did, cost, fix, repair)
		case len(a.details) == 0:
			return forSparks(f, Finding{Status: Info, Detail: detail, Evidence: a.evidence, Cost: cost, Fix: fix, Repairs: []Repair{repair}})
		default:
			a.warn(detail, cost, fix, repair)
		}
	}
	calm := "unattended upgrades leave the driver and the kernel alone"
	if len(seen.driver)+len(seen.held) == 0 {
		calm = "unattended upgrades are on; no package of the driver is theirs to replace"
	}
	return forSparks(f, a.finding(Pass, calm))
}

// few is the first of several names.
func few(names []string) string {
	if len(names) <= 2 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s, %s and %d more", names[0], names[1], len(names)-2)
}
