package preflight

import (
	"context"
	"fmt"
	"math"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/job"
	"sparkrun/internal/lazyre"
)

type killersTable struct {
	GuardPercent float64      `yaml:"guard_percent"`
	Programs     []killerRule `yaml:"programs"`
	OOMD         struct {
		PressurePercent float64 `yaml:"pressure_percent"`
		PressureSeconds float64 `yaml:"pressure_seconds"`
		SwapPercent     float64 `yaml:"swap_percent"`
	} `yaml:"oomd"`
}

// killerRule is a program that ends others when memory is short.
type killerRule struct {
	Name string `yaml:"name"`
	// Comm is its name in /proc/PID/comm; Words are names in its command line, for
	// scripts.
	Comm    string   `yaml:"comm"`
	Words   []string `yaml:"words"`
	Service string   `yaml:"service"`
	Config  string   `yaml:"config"`
	// Where its settings say nothing it acts below these.
	MemoryPercent float64 `yaml:"memory_percent"`
	MemoryGB      float64 `yaml:"memory_gb"`
	SwapPercent   float64 `yaml:"swap_percent"`
}

// killer is one that runs.
type killer struct {
	name, service string
	pid           int
	// It acts when less memory is left than percent of all or bytes, whichever is less
	// (NaN and 0 are not set), and no more swap than swapPercent.
	percent, swapPercent float64
	bytes                uint64
	// prefer, avoid and ignore are expressions for the names of processes.
	prefer, avoid, ignore string
	// from says where the numbers come from.
	from string
}

// killersSeen are the programs and settings that decide who dies when memory is short.
type killersSeen struct {
	running []killer
	// oomd tells that systemd-oomd runs; managed are the units around the command that
	// it may end, swapLimit the share of swap in use beyond which it acts.
	oomd      bool
	managed   []managedUnit
	swapLimit float64
	// blind is why the processes of others are not seen; nil where they are.
	blind error
	// vm are settings under /proc/sys/vm; one that cannot be read is not in it.
	vm map[string]string
}

// managedUnit is a unit whose processes systemd-oomd may end.
type managedUnit struct {
	unit, file string
	// pressure and swap tell which of the two makes it act; percent and seconds are the
	// limit of the first.
	pressure, swap   bool
	percent, seconds float64
}

// vmSettings are those that matter to a machine whose GPU takes its memory from the
// same pool.
var vmSettings = []string{"swappiness", "min_free_kbytes", "watermark_scale_factor", "overcommit_memory", "overcommit_ratio", "panic_on_oom"}

func lookKillers(ctx context.Context, v view) killersSeen {
	seen := killersSeen{vm: make(map[string]string)}
	for _, name := range vmSettings {
		if text := v.root.word("/proc/sys/vm/" + name); text != "" {
			seen.vm[name] = text
		}
	}
	_, seen.blind = v.file("/proc/1/comm")
	t := rulesOfHost().Killers
	for _, p := range v.processes(ctx).rows {
		if ctx.Err() != nil {
			break
		}
		dir, comm, pid := "/proc/"+p.name, p.comm, p.pid
		if comm == "systemd-oomd" {
			seen.oomd = true
			continue
		}
		if rule, argv, ok := recogniseKiller(v, t, dir, comm); ok {
			seen.running = append(seen.running, readKiller(v, rule, pid, argv))
		}
	}
	if there, _ := v.root.exists("/sys/fs/cgroup/system.slice/systemd-oomd.service"); there {
		seen.oomd = true
	}
	if seen.oomd {
		conf := confSettings(v, "oomd.conf")
		seen.swapLimit = percentOr(conf["SwapUsedLimit"].value, t.OOMD.SwapPercent)
		percent := percentOr(conf["DefaultMemoryPressureLimit"].value, t.OOMD.PressurePercent)
		seconds := secondsOr(conf["DefaultMemoryPressureDurationSec"].value, t.OOMD.PressureSeconds)
		seen.managed = managedUnits(v, percent, seconds)
	}
	return seen
}

// interpreters run scripts, whose names are in the command line alone.
var interpreters = lazyre.New(`^(python[0-9.]*|bash|sh|dash|zsh|perl)$`)

func recogniseKiller(v view, t killersTable, dir, comm string) (killerRule, []string, bool) {
	script := interpreters.MatchString(comm)
	var argv []string
	for _, rule := range t.Programs {
		byName := comm != "" && (comm == rule.Comm || slices.ContainsFunc(rule.Words, func(w string) bool { return comm == w[:min(len(w), 15)] }))
		if !byName && !script {
			continue
		}
		if argv == nil {
			b, err := v.root.read(dir + "/cmdline")
			if err != nil && !byName {
				return killerRule{}, nil, false
			}
			argv = strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
		}
		if byName {
			return rule, argv, true
		}
		// An editor or a search for the word is not the program: it is the script itself.
		for _, word := range argv[min(1, len(argv)):] {
			if strings.HasPrefix(word, "-") {
				continue
			}
			if slices.Contains(rule.Words, path.Base(word)) {
				return rule, argv, true
			}
			break
		}
	}
	return killerRule{}, nil, false
}

// readKiller finds out when a killer acts.
func readKiller(v view, rule killerRule, pid int, argv []string) killer {
	k := killer{name: rule.Name, service: rule.Service, pid: pid, percent: math.NaN(), swapPercent: 100, from: "what it does unless told otherwise"}
	if rule.MemoryPercent > 0 {
		k.percent = rule.MemoryPercent
	}
	k.bytes = uint64(rule.MemoryGB * 1e9)
	if rule.SwapPercent > 0 {
		k.swapPercent = rule.SwapPercent
	}
	switch {
	case rule.Config != "":
		readNohang(v, &k, rule.Config, argv)
	case rule.Comm == "earlyoom":
		readEarlyoom(&k, argv)
	}
	return k
}

// readEarlyoom reads the words of earlyoom: -m and -s are percentages, -M and -S KiB,
// each with the point of SIGKILL behind a comma.
func readEarlyoom(k *killer, argv []string) {
	percent, ok := math.NaN(), false
	for i := 1; i < len(argv); i++ {
		name, value := argv[i], ""
		if before, after, glued := strings.Cut(name, "="); glued && strings.HasPrefix(name, "--") {
			name, value = before, after
		} else if len(name) > 2 && name[0] == '-' && name[1] != '-' {
			name, value = name[:2], name[2:]
		}
		switch name {
		case "-m", "-M", "-s", "-S", "--prefer", "--avoid", "--ignore":
			if value == "" {
				if i++; i == len(argv) {
					break
				}
				value = argv[i]
			}
		default:
			continue
		}
		first, _, _ := strings.Cut(value, ",")
		n, err := strconv.ParseFloat(first, 64)
		switch {
		case name == "--prefer":
			k.prefer = value
		case name == "--avoid":
			k.avoid = value
		case name == "--ignore":
			k.ignore = value
		case err != nil || n < 0 || n > 1<<40:
		case name == "-m":
			percent, ok = n, true
		case name == "-M":
			k.bytes, ok = uint64(n)<<10, true
		case name == "-s":
			k.swapPercent = n
		}
	}
	if ok {
		k.percent, k.from = percent, "its command line"
	}
}

// readNohang reads the thresholds of nohang: percent, or MiB with an M.
func readNohang(v view, k *killer, config string, argv []string) {
	for i, word := range argv {
		if value, ok := strings.CutPrefix(word, "--config="); ok {
			config = value
		} else if (word == "--config" || word == "-c") && i+1 < len(argv) {
			config = argv[i+1]
		}
	}
	settings := make(map[string]unitSetting)
	readIni(v, config, settings)
	if s, ok := settings["soft_threshold_min_mem"]; ok {
		if n, unit, ok := numberWithUnit(s.value); ok {
			k.from = config
			switch unit {
			case "%":
				k.percent, k.bytes = n, 0
			case "M":
				k.percent, k.bytes = math.NaN(), uint64(n)<<20
			}
		}
	}
	if s, ok := settings["soft_threshold_min_swap"]; ok {
		if n, unit, ok := numberWithUnit(s.value); ok && unit == "%" {
			k.swapPercent = n
		}
	}
}

func numberWithUnit(s string) (n float64, unit string, ok bool) {
	s = strings.TrimSpace(s)
	i := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if i < 0 {
		i = len(s)
	}
	n, err := strconv.ParseFloat(s[:i], 64)
	return n, strings.TrimSpace(s[i:]), err == nil && n >= 0 && n < 1<<30
}

// managedUnits are the units around the command that systemd-oomd watches.
func managedUnits(v view, percent, seconds float64) []managedUnit {
	units := []string{"-.slice"}
	if v.job != nil && v.job.Container != nil {
		// The engine's daemon starts it, not this shell.
		units = append(units, "system.slice")
	} else {
		for line := range strings.Lines(v.root.word("/proc/self/cgroup")) {
			if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/"); ok && group != "" {
				units = append(units, strings.Split(group, "/")...)
			}
		}
	}
	var out []managedUnit
	for _, unit := range units {
		s := unitSettings(v, unit, templates(unit)...)
		m := managedUnit{unit: unit, percent: percent, seconds: seconds}
		if p := s["ManagedOOMMemoryPressure"]; p.value == "kill" {
			m.pressure, m.file = true, p.file
			if limit := percentOr(s["ManagedOOMMemoryPressureLimit"].value, 0); limit > 0 {
				m.percent = limit
			}
			m.seconds = secondsOr(s["ManagedOOMMemoryPressureDurationSec"].value, seconds)
		}
		if p := s["ManagedOOMSwap"]; p.value == "kill" {
			m.swap, m.file = true, p.file
		}
		if m.pressure || m.swap {
			out = append(out, m)
		}
	}
	return out
}

// templates are the units whose drop-ins count for a unit as well: user@.service for
// user@1000.service, user-.slice for user-1000.slice.
func templates(unit string) []string {
	ext := filepath.Ext(unit)
	name := strings.TrimSuffix(unit, ext)
	if i := strings.IndexByte(name, '@'); i > 0 {
		return []string{name[:i+1] + ext}
	}
	var out []string
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '-' {
			out = append(out, name[:i+1]+ext)
		}
	}
	return out
}

func percentOr(text string, otherwise float64) float64 {
	n, unit, ok := numberWithUnit(text)
	switch {
	case ok && unit == "%":
		return n
	case ok && unit == "‰":
		return n / 10
	case ok && unit == "‱":
		return n / 100
	}
	return otherwise
}

func secondsOr(text string, otherwise float64) float64 {
	n, unit, ok := numberWithUnit(text)
	if !ok {
		return otherwise
	}
	switch unit {
	case "", "s", "sec":
		return n
	case "ms":
		return n / 1000
	case "min", "m":
		return n * 60
	}
	return otherwise
}

// judgeKillers is H9: other programs that end processes when memory is short. They
// matter where they act before the guard of sparkrun does, and take the training, or
// where they would leave nothing to be guarded.
func judgeKillers(seen killersSeen, f facts) Finding {
	if found, hidden := hostHidden(f); hidden {
		return found
	}
	var a advice
	judgeVM(&a, seen, f)
	for _, k := range seen.running {
		judgeKiller(&a, k, f)
	}
	judgeOOMD(&a, seen, f)
	if seen.blind != nil && len(a.details) == 0 && len(seen.running) == 0 {
		found := unreadable("what other users run", seen.blind)
		found.Evidence = a.evidence
		return found
	}
	calm := "nobody ends the training before the guard of sparkrun does"
	if len(seen.running) > 0 {
		names := make([]string, 0, len(seen.running))
		for _, k := range seen.running {
			names = append(names, k.name)
		}
		calm = strings.Join(names, ", ") + " acts later than the guard of sparkrun"
	}
	return forSparks(f, a.finding(Pass, calm))
}

// judgeKiller compares one killer with the guard.
func judgeKiller(a *advice, k killer, f facts) {
	total := f.memory.num("MemTotal")
	floor := rulesOfHost().Killers.GuardPercent
	at, known := k.percent, !math.IsNaN(k.percent)
	if k.bytes > 0 && total.OK && total.V > 0 {
		if p := 100 * float64(k.bytes) / (total.V * 1024); !known || p < at {
			at, known = p, true
		}
	}
	if !known {
		a.saw("%s (pid %d): when it acts is not known", k.name, k.pid)
		return
	}
	when := fmt.Sprintf("%g %% of the memory", math.Round(at*10)/10)
	if total.OK {
		when += fmt.Sprintf(" (%s)", gb(total.V*at/100))
	}
	a.saw("%s (pid %d) acts below %s and %g %% of free swap, by %s", k.name, k.pid, when, k.swapPercent, k.from)
	for _, spared := range [][2]string{{"--ignore", k.ignore}, {"--avoid", k.avoid}} {
		if spared[1] != "" && takes(spared[1], f.job) {
			a.saw("%s %s: it passes a training over", spared[0], spared[1])
			return
		}
	}
	swapTotal, swapFree := f.memory.num("SwapTotal"), f.memory.num("SwapFree")
	// Both must be low. Without swap there is none to be used up.
	waits := swapTotal.OK && swapFree.OK && swapTotal.V > 0 && 100*swapFree.V/swapTotal.V > k.swapPercent
	switch {
	case at <= floor:
		return
	case waits:
		a.saw("it waits until %g %% of the swap is free: the guard acts first", k.swapPercent)
		return
	}
	detail := fmt.Sprintf("%s ends processes below %s, before the guard of sparkrun (%g %%)", k.name, when, floor)
	if k.prefer != "" && takes(k.prefer, f.job) {
		detail += ", trainings first (--prefer)"
	}
	fix, repairs := fmt.Sprintf("let it act below %g %% (earlyoom -m 2), or stop it for the night", floor), []Repair(nil)
	if k.service != "" {
		fix = fmt.Sprintf("sudo systemctl stop %[1]s      # for the night; sudo systemctl start %[1]s afterwards\nor let it act below %[2]g %% (earlyoom: EARLYOOM_ARGS=\"-m 2\" in /etc/default/earlyoom)", k.service, floor)
		repairs = []Repair{{
			Command: "systemctl stop " + k.service, Root: true,
			Effect: fmt.Sprintf("stops %s until the next boot; undo: systemctl start %s", k.name, k.service),
		}}
	}
	a.warn(detail, "the training is ended with memory left, without a verdict and at no checkpoint; memory of the GPU is in nobody's books, so it may be anybody who is ended", fix, repairs...)
}

// takes tells whether an expression of a killer means a training by its name.
func takes(expression string, j *job.Job) bool {
	re, err := regexp.Compile(expression)
	if err != nil {
		return false
	}
	names := []string{"python", "python3", "pt_main_thread"}
	if j != nil && j.Interpreter != "" {
		names = append(names, path.Base(j.Interpreter))
	}
	return slices.ContainsFunc(names, re.MatchString)
}

// judgeOOMD looks at what systemd-oomd would end.
func judgeOOMD(a *advice, seen killersSeen, f facts) {
	if !seen.oomd {
		return
	}
	if len(seen.managed) == 0 {
		a.saw("systemd-oomd runs and watches no group that the command will be in")
	}
	for _, m := range seen.managed {
		if m.pressure {
			cost := "data that streams through the page cache is pressure enough: the training is ended with memory left"
			command := fmt.Sprintf("systemctl set-property --runtime %s ManagedOOMMemoryPressure=auto", shellWord(m.unit))
			a.saw("%s: ManagedOOMMemoryPressure=kill", m.file)
			a.warn(fmt.Sprintf("systemd-oomd ends what this shell starts when memory stalls for %g %% of the time, %g s long (%s)", m.percent, m.seconds, m.unit),
				cost, "sudo "+command+"\nor start the run from an ssh login, which lies outside "+m.unit,
				Repair{Command: command, Root: true, Effect: "systemd-oomd leaves " + m.unit + " alone until the next boot; undo: the same with ManagedOOMMemoryPressure=kill"})
		}
		if m.swap {
			a.saw("%s: ManagedOOMSwap=kill for %s: systemd-oomd acts when memory and swap are both %g %% in use", m.file, m.unit, seen.swapLimit)
			total, free := f.memory.num("SwapTotal"), f.memory.num("SwapFree")
			if total.OK && free.OK && total.V > 0 && 100*(1-free.V/total.V) > seen.swapLimit {
				command := fmt.Sprintf("systemctl set-property --runtime %s ManagedOOMSwap=auto", shellWord(m.unit))
				a.warn(fmt.Sprintf("%.0f %% of the swap is in use, and systemd-oomd ends processes of %s once %g %% of the memory is too", 100*(1-free.V/total.V), m.unit, seen.swapLimit),
					"the training is ended with memory left", "sudo "+command,
					Repair{Command: command, Root: true, Effect: "systemd-oomd does not look at the swap of " + m.unit + " until the next boot; undo: the same with ManagedOOMSwap=kill"})
			}
		}
	}
}

// judgeVM looks at the kernel's own settings.
func judgeVM(a *advice, seen killersSeen, f facts) {
	var said []string
	for _, name := range vmSettings {
		if value, ok := seen.vm[name]; ok {
			said = append(said, "vm."+name+" "+value)
		}
	}
	if len(said) > 0 {
		a.saw("%s", strings.Join(said, ", "))
	}
	if swap := f.memory.num("SwapTotal"); swap.OK && swap.V == 0 {
		a.saw("no swap: what is not used stays in memory, and a shortage comes without warning")
	}
	if seen.vm["overcommit_memory"] == "2" {
		a.warn("vm.overcommit_memory is 2: memory is refused that nobody has used yet",
			"CUDA and data loaders reserve far more than they use, and fail on an empty machine",
			"sudo sysctl vm.overcommit_memory=0",
			Repair{Command: "sysctl vm.overcommit_memory=0", Root: true, Effect: "until the next boot; undo: sysctl vm.overcommit_memory=2"})
	}
	if p := seen.vm["panic_on_oom"]; p == "1" || p == "2" {
		a.warn("vm.panic_on_oom is "+p+": the machine stops where one process would have been ended",
			"one shortage of memory ends everything on the machine and needs a power cycle",
			"sudo sysctl vm.panic_on_oom=0",
			Repair{Command: "sysctl vm.panic_on_oom=0", Root: true, Effect: "until the next boot; undo: sysctl vm.panic_on_oom=" + p})
	}
}
