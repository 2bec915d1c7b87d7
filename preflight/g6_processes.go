package preflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sparkrun/internal/lazyre"
)

// process is one process, as far as G6 judges it. Its command line is kept only while it
// is looked at: it may hold secrets.
type process struct {
	pid, ppid int
	comm      string
	// rss is its resident memory in bytes; shared the part of it that other processes may
	// have too (files, shared memory).
	rss, shared int64
	// program is what it is known as; nil where it is not known.
	program *program
	// label is what a person calls it: the script where an interpreter runs one.
	label string
	// caps are what its command line and environment say of its memory.
	caps caps
	// container is the ID of the container it runs in, with the engine; unit the systemd
	// unit that owns it. Empty where it has none.
	container, engine, unit string
	// run is the ID of the run of sparkrun that it belongs to; holder tells that it is
	// the holder of that run.
	run    string
	holder bool
	// uid is the user it runs as, -1 where that was not looked at.
	uid int
}

// processTable is every process at about one instant.
type processTable struct {
	byPID map[int]*process
	// self is our own process; 0 where it cannot be told.
	self int
	// uid is our user, -1 where it cannot be told.
	uid int
	// hostPIDs tells that the numbers are those of the machine itself: its kernel threads
	// are seen.
	hostPIDs bool
	// hidden counts processes that may not be looked at; cut tells that time ran out.
	hidden int
	cut    bool
	// err is why there is no table.
	err error
}

const (
	// maxArgvWords bounds how much of a command line is looked at.
	maxArgvWords = 4096
	// detailBytes is the resident memory from which on a process of no known name is
	// looked at more closely.
	detailBytes = 128 << 20
)

// detailed adds to the list of processes what their command lines tell.
func detailed(ctx context.Context, r root, t servers, stats processStats) processTable {
	tab := processTable{byPID: make(map[int]*process, len(stats.rows)), uid: -1, hidden: stats.hidden, cut: stats.cut, err: stats.err}
	base, err := r.resolve("/proc")
	if tab.err == nil {
		tab.err = err
	}
	if tab.err != nil {
		return tab
	}
	files := procFiles{base: r.host(base), buf: make([]byte, maxRead)}
	if b, err := r.read("/proc/self/stat"); err == nil {
		if p, ok := parseProcess(b, stats.page); ok {
			tab.self = p.pid
		}
	}
	if b, err := r.read("/proc/self/status"); err == nil {
		tab.uid = userOf(b)
	}
	for _, row := range stats.rows {
		if !row.known {
			continue
		}
		if ctx.Err() != nil {
			tab.cut = true
			break
		}
		p := row.process
		tab.byPID[p.pid] = &p
		// kthreadd is process 2 of the machine and of no container.
		if p.pid == 2 && p.ppid == 0 && p.comm == "kthreadd" {
			tab.hostPIDs = true
		}
		argv, err := readArgv(files, row.name)
		if err != nil && errors.Is(err, fs.ErrPermission) {
			tab.hidden++
		}
		if len(argv) == 0 {
			continue // a kernel thread, or one that has ended
		}
		p.recognise(files, argv, t)
		if p.program != nil || p.holder || p.rss >= detailBytes {
			p.detail(files, argv, t)
		}
	}
	return tab
}

// procFiles reads files of /proc/PID with as few system calls as that takes: it is done
// for every process of the machine. What it returns is overwritten by the next reading.
type procFiles struct {
	base string
	buf  []byte
}

func (f procFiles) path(pid, file string) string { return f.base + "/" + pid + "/" + file }

// read reads the head of a file. A pipe or link in its place is not waited for or followed.
func (f procFiles) read(pid, file string) ([]byte, error) {
	fd, err := unix.Open(f.path(pid, file), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n := 0
	for n < len(f.buf) {
		got, err := unix.Read(fd, f.buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if got == 0 {
			break
		}
		n += got
	}
	return f.buf[:n], nil
}

// readArgv returns the words of a command line; none for a kernel thread.
func readArgv(f procFiles, pid string) ([]string, error) {
	b, err := f.read(pid, "cmdline")
	if err != nil {
		return nil, err
	}
	// A process that names itself leaves the rest of the words empty.
	text := strings.TrimRight(string(b), "\x00")
	if text == "" {
		return nil, nil
	}
	words := strings.SplitN(text, "\x00", maxArgvWords+1)
	return words[:min(len(words), maxArgvWords)], nil
}

// parseProcess parses /proc/PID/stat. The name stands in parentheses and may hold any
// character, so the last ")" ends it.
func parseProcess(b []byte, page int64) (process, bool) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return process{}, false
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	// Behind the name: state, parent, ... resident pages are field 24 of the line.
	f := bytes.Fields(b[end+1:])
	if err != nil || len(f) < 22 {
		return process{}, false
	}
	ppid, err := strconv.Atoi(string(f[1]))
	if err != nil {
		return process{}, false
	}
	p := process{pid: pid, ppid: ppid, uid: -1, comm: string(b[open+1 : end])}
	if pages, err := strconv.ParseInt(string(f[21]), 10, 64); err == nil && pages > 0 && pages < 1<<50/page {
		p.rss = pages * page
	}
	p.label = p.comm
	return p, true
}

// recognise finds out what a process is by its command line.
func (p *process) recognise(f procFiles, argv []string, t servers) {
	c := t.parse(argv)
	if c.label != "" {
		p.label = c.label
	}
	// The holder of a run: "sparkrun __hold RUN-ID ATTEMPT", whatever the binary is called.
	if len(argv) == 4 && argv[1] == "__hold" && runIDForm.MatchString(argv[2]) {
		p.holder, p.run, p.label = true, argv[2], "sparkrun"
		return
	}
	p.program = t.find(c, func() string { return linkTarget(f.path(strconv.Itoa(p.pid), "cwd")) })
}

// detail reads what costs more, for the few that matter.
func (p *process) detail(f procFiles, argv []string, t servers) {
	pid := strconv.Itoa(p.pid)
	b, err := f.read(pid, "status")
	if err == nil {
		p.uid = userOf(b)
	}
	anon, ok1 := statusBytes(b, "RssAnon")
	file, ok2 := statusBytes(b, "RssFile")
	shmem, ok3 := statusBytes(b, "RssShmem")
	if err == nil && ok1 && ok2 && ok3 {
		p.rss, p.shared = anon+file+shmem, file+shmem
	}
	if b, err := f.read(pid, "cgroup"); err == nil {
		p.engine, p.container, p.unit = owner(string(b))
	}
	env, err := readEnviron(f, pid, t.variables())
	if id := env["SPARKRUN_RUN_ID"]; p.run == "" && runIDForm.MatchString(id) {
		p.run = id
	}
	p.caps = t.capsOf(p.program, argv, env)
	p.caps.envUnread = err != nil && p.program.capsInEnv()
}

// runIDForm is the form of the ID of a run.
var runIDForm = lazyre.New(`^\d{8}-\d{6}-[a-z0-9-]{1,40}$`)

// readEnviron returns the variables asked for; any user may read only their own
// processes'.
func readEnviron(f procFiles, pid string, names []string) (map[string]string, error) {
	b, err := f.read(pid, "environ")
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for entry := range strings.SplitSeq(string(b), "\x00") {
		name, value, ok := strings.Cut(entry, "=")
		if ok && len(value) < 4096 && (name == "SPARKRUN_RUN_ID" || slices.Contains(names, name)) {
			found[name] = value
		}
	}
	return found, nil
}

// userOf reads the effective user of /proc/PID/status, -1 where it is not there.
func userOf(status []byte) int {
	_, rest, ok := bytes.Cut(status, []byte("\nUid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	fields := bytes.Fields(line)
	if !ok || len(fields) < 2 {
		return -1
	}
	n, err := strconv.Atoi(string(fields[1]))
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// others tells that a process is another user's, so that ending it needs root.
func (t processTable) others(p *process) bool {
	return p.uid >= 0 && t.uid > 0 && p.uid != t.uid
}

// statusBytes reads a figure of /proc/PID/status, which gives KiB.
func statusBytes(b []byte, name string) (int64, bool) {
	_, rest, ok := bytes.Cut(b, []byte("\n"+name+":"))
	if !ok {
		return 0, false
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	n, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(line), []byte("kB")))), 10, 64)
	if err != nil || n < 0 || n > 1<<50 {
		return 0, false
	}
	return n << 10, true
}

var (
	// The last part of a cgroup's path, as engines and Kubernetes name it.
	containerForm = lazyre.New(`(?:^|[/:-])(docker|libpod|crio|cri-containerd|containerd)[-/](?:[^/]*/)?([0-9a-f]{64})(?:\.scope)?(?:/|$)`)
	podForm       = lazyre.New(`kubepods.*?([0-9a-f]{64})(?:\.scope)?(?:/|$)`)
	unitForm      = lazyre.New(`^[A-Za-z0-9@._:-]+\.service$`)
)

// owner tells from /proc/PID/cgroup who started a process: an engine with the ID of its
// container, or a unit of systemd.
func owner(text string) (engine, container, unit string) {
	for line := range strings.Lines(text) {
		// hierarchy:controllers:path
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if m := podForm.FindStringSubmatch(parts[2]); m != nil {
			return "kubernetes", m[1], ""
		}
		if m := containerForm.FindStringSubmatch(parts[2]); m != nil {
			engine := "docker"
			switch m[1] {
			case "libpod":
				engine = "podman"
			case "crio", "cri-containerd":
				engine = "kubernetes"
			case "containerd":
				engine = "containerd"
			}
			return engine, m[2], ""
		}
		if unit == "" {
			unit = unitOf(parts[2])
		}
	}
	return "", "", unit
}

// unitOf returns the innermost service of a cgroup's path, that of a user's own systemd
// with "--user " before it.
func unitOf(cgroup string) string {
	var user bool
	unit := ""
	for elem := range strings.SplitSeq(cgroup, "/") {
		switch {
		case strings.HasPrefix(elem, "user@"):
			user, unit = true, ""
		case unitForm.MatchString(elem):
			unit = elem
		}
	}
	// A shell of a desktop runs in the service of its terminal: ending that would end more
	// than what is meant.
	if unit == "" || strings.HasPrefix(unit, "gnome-terminal") || strings.HasPrefix(unit, "ssh") || strings.HasPrefix(unit, "org.gnome") || strings.HasPrefix(unit, "dbus") {
		return ""
	}
	if user {
		return "--user " + unit
	}
	return unit
}

// linkTarget returns what a link of /proc points to, as its owner names it: the folder of
// a process in a container exists there only.
func linkTarget(link string) string {
	target, err := os.Readlink(link)
	if err != nil {
		return ""
	}
	return path.Clean(target)
}

// tree returns a process and everything below it, itself first.
func (t processTable) tree(pid int, children map[int][]int) []int {
	out := []int{pid}
	seen := map[int]bool{pid: true}
	for i := 0; i < len(out); i++ {
		for _, c := range children[out[i]] {
			if !seen[c] {
				seen[c] = true
				out = append(out, c)
			}
		}
	}
	return out
}

// children lists the processes by their parent, in order of their number.
func (t processTable) children() map[int][]int {
	out := make(map[int][]int)
	for pid, p := range t.byPID {
		out[p.ppid] = append(out[p.ppid], pid)
	}
	for _, list := range out {
		slices.Sort(list)
	}
	return out
}

// ancestors returns the processes above one, the nearest first.
func (t processTable) ancestors(pid int) []int {
	var out []int
	for range 256 { // a table read while processes come and go may have a ring
		p := t.byPID[pid]
		if p == nil || p.ppid <= 0 {
			break
		}
		pid = p.ppid
		out = append(out, pid)
	}
	return out
}

// words names a process for a person.
func (p *process) words() string {
	if p == nil {
		return "?"
	}
	return fmt.Sprintf("%s (pid %d)", p.label, p.pid)
}
