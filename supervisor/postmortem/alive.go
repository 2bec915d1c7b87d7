package postmortem

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/proctree"
	"sparkrun/supervisor/runlog"
)

// life is what is known of a run that says it goes on.
type life int

const (
	// lifeUnknown: another machine's, or nothing speaks for either. It is left
	// alone.
	lifeUnknown life = iota
	living
	dead
)

// quietFor is how long nothing may have been written into a run that has left no
// lock here, before it counts as dead. A living one writes every second.
const quietFor = time.Minute

// machine is the machine this process runs on.
type machine struct {
	host, boot string
	// up is when it was started, by the wall clock.
	up  time.Time
	now time.Time
	// wtmp is where the system notes its starts and shutdowns.
	wtmp string
}

func thisMachine() machine {
	m := machine{boot: bootID(), now: time.Now(), wtmp: "/var/log/wtmp"}
	m.up = m.now.Add(-clock.Boottime())
	m.host, _ = os.Hostname() // empty matches no run
	return m
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// sameBoot says whether a run was started since the machine was; false also where
// one of the two is not known.
func (m machine) sameBoot(man *runlog.Manifest) bool {
	return m.boot != "" && man.Host.BootID == m.boot
}

// rebooted says whether the machine was started anew since the run was started.
func (m machine) rebooted(man *runlog.Manifest) bool {
	return m.boot != "" && man.Host.BootID != "" && man.Host.BootID != m.boot
}

// lifeOf says whether anybody still cares for a run. A run is called dead only for
// a reason: its supervisor's lock lies here and is free, or nothing was written
// into it since this machine was started or for a minute; and no process of it is
// left.
func lifeOf(p runlog.Places, man *runlog.Manifest, dir string, m machine, ps *processes) life {
	if man.Host.Name == "" || man.Host.Name != m.host || m.boot == "" {
		return lifeUnknown
	}
	if runlog.Running(p, man.ID) {
		return living
	}
	sockets, err := p.SocketDir()
	if err != nil {
		sockets = ""
	}
	if sockets != "" && answers(sockets, man) {
		return living
	}
	if !m.rebooted(man) && ps.of(man, dir, m) {
		return living
	}
	// A lock is left behind only by a supervisor of this machine: another one that
	// shares the folder and goes by the same name keeps its own.
	if sockets != "" {
		if _, err := os.Lstat(filepath.Join(sockets, man.ID+".lock")); err == nil {
			return dead
		}
	}
	last := lastWrite(dir, man)
	if last.IsZero() || last.After(m.now.Add(quietFor)) {
		return lifeUnknown // no file, or clocks that do not agree
	}
	if m.rebooted(man) && last.Before(m.up) || m.now.Sub(last) > quietFor {
		return dead
	}
	return lifeUnknown
}

// answers says whether a holder of the run listens.
func answers(sockets string, man *runlog.Manifest) bool {
	for n := len(man.Attempts) + 1; n > 0 && n >= len(man.Attempts)-1; n-- {
		conn, err := net.DialTimeout("unix", filepath.Join(sockets, man.ID+"."+strconv.Itoa(n)+".sock"), 50*time.Millisecond)
		if err == nil {
			_ = conn.Close()
			return true
		}
	}
	return false
}

// processes knows the runs that processes of this machine belong to. It looks
// once, when it is first asked.
type processes struct {
	looked bool
	holds  map[string]bool // a holder of the run lives
	tree   map[string]bool // something the run's command has started lives
}

func (ps *processes) look() {
	if ps.looked {
		return
	}
	ps.looked, ps.holds, ps.tree = true, map[string]bool{}, map[string]bool{}
	const name = "SPARKRUN_RUN_ID="
	for _, p := range proctree.All() {
		if p.State == 'Z' {
			continue
		}
		dir := "/proc/" + strconv.Itoa(p.PID)
		if cmd, err := os.ReadFile(dir + "/cmdline"); err == nil {
			if _, rest, ok := bytes.Cut(cmd, []byte("\x00__hold\x00")); ok {
				id, _, _ := bytes.Cut(rest, []byte{0})
				ps.holds[string(id)] = true
			}
		}
		// Only those of this user can be read, and those are what counts.
		env, err := os.ReadFile(dir + "/environ")
		if err != nil || !bytes.Contains(env, []byte(name)) {
			continue
		}
		for _, e := range bytes.Split(env, []byte{0}) {
			if id, ok := bytes.CutPrefix(e, []byte(name)); ok {
				ps.tree[string(id)] = true
			}
		}
	}
}

// of says whether a process of the run lives: its supervisor, a holder, or what
// its command has started, as long as the end of its last attempt was not seen.
func (ps *processes) of(man *runlog.Manifest, dir string, m machine) bool {
	if p, ok := proctree.Read(man.SupervisorPID); ok && p.State != 'Z' && m.sameBoot(man) && startedBefore(p, man) {
		return true
	}
	ps.look()
	if ps.holds[man.ID] {
		return true
	}
	exit := filepath.Join(dir, runlog.AttemptsDir, strconv.Itoa(lastAttempt(man, dir)), "exit.json")
	if _, err := os.Stat(exit); err == nil {
		return false // what is left over does not make it go on
	}
	return ps.tree[man.ID]
}

// startedBefore says whether a process is older than the run, as its supervisor
// is: a pid is used again. The kernel counts starts in hundredths of a second.
func startedBefore(p proctree.Proc, man *runlog.Manifest) bool {
	return time.Duration(p.Start)*10*time.Millisecond <= time.Duration(man.Start.BootNS)+time.Second
}

// lastWrite is when anything was last written into a run that a living one writes
// all the time. The files are opened for it: a network file system then asks the
// server.
func lastWrite(dir string, man *runlog.Manifest) time.Time {
	names := []string{"telemetry.csv", runlog.EventsFile, runlog.LogFile, runlog.ManifestFile}
	for _, a := range man.Attempts {
		names = append(names, a.Log)
	}
	var last time.Time
	for _, name := range names {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		if info, err := f.Stat(); err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
		_ = f.Close()
	}
	return last
}
