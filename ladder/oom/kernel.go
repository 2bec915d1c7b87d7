package oom

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/lazyre"
	"sparkrun/internal/sample"
)

// The windows within which records count. Kernel and wall clock are set against
// each other with some error; ranks and launchers take a while to notice a death.
const (
	killWindow = 30 * time.Second
	clockSlack = 2 * time.Second
	// seenSlack is how much later than it was last seen a process may still be
	// taken for itself whatever its name: the tree is looked at every half second
	// to every few seconds.
	seenSlack = 3 * time.Second
)

// kill is one record of a kill, its lines merged.
type kill struct {
	pattern *kernelPattern
	t       time.Time
	text    string
	raw     string // with the time that its prefix may hold
	pid     int
	comm    string
	path    string // the victim's cgroup, or its unit
	limit   string // the cgroup whose limit was hit
	kind    string
	xid     int
	sizes   map[string]int64
	tie     tie // where the tree is not known
}

// kernelEvidence is what the kernel and daemon records say about this job.
type kernelEvidence struct {
	ours   []kill
	others []kill
	hints  []kill // the driver's lines, which mean something only beside other evidence
	engine []kill // a container engine's events: hints too
	// against are records that name another reason.
	against []kill
	xids    []xidCount
	// forGPU says that the allocation that started the kernel's killer came from
	// the NVIDIA driver: GPU memory, on a machine where that is host memory.
	forGPU bool
	// otherDay counts the kills whose times lie days away from those of the log.
	otherDay int
}

type xidCount struct {
	number, n int
	first     kill
}

// kernelEvidence reads the records. Of a log that somebody brought, what it says
// itself comes first.
func (d *decision) kernelEvidence() kernelEvidence {
	t, ev := d.t, d.ev
	var out kernelEvidence
	var kills []kill
	var task kill // an old kernel's line on the cgroup, before the one on the victim
	records := ev.Kernel
	if ev.Lost != nil && len(ev.Lost.JournalTail) > 0 {
		records = append(slices.Clip(records), ev.Lost.JournalTail...)
	}
	invoked, end := -1, ev.death()
	for i, r := range records {
		if !ev.Start.IsZero() && !r.T.IsZero() && r.T.Before(ev.Start.Add(-clockSlack)) {
			continue
		}
		if strings.Contains(r.Text, "invoked oom-killer") {
			invoked = i
		}
		if invoked >= 0 && i-invoked < 60 && strings.Contains(r.Text, "[nvidia") {
			out.forGPU = true
		}
		k, ok := t.kernelLine(r)
		switch {
		case !ok:
		case k.pattern.Kind == "xid":
			at := slices.IndexFunc(out.xids, func(x xidCount) bool { return x.number == k.xid })
			if at < 0 {
				out.xids = append(out.xids, xidCount{number: k.xid, first: k})
				at = len(out.xids) - 1
			}
			out.xids[at].n++
		case k.pattern.Hint && k.kind == "cgroup-oom":
			if ev.foreign() || k.ours(ev) {
				out.engine = append(out.engine, k)
			}
		case k.pattern.Hint:
			out.hints = append(out.hints, k)
		case k.pattern.Against:
			if ev.foreign() && ev.Exit.Known && signalOf(ev.Exit) != "SIGTERM" && signalOf(ev.Exit) != "SIGKILL" && k.tieTo(ev) != tiedByID {
				out.others = append(out.others, k)
				continue
			}
			out.against = append(out.against, k)
		case k.pattern.Kind == "kernel-oom" && k.pid == 0 && k.pattern.Begins:
			task = k
		default:
			if task.path != "" && k.path == "" && k.pattern.Kind == "kernel-oom" {
				k.path, k.limit, k.kind = task.path, task.limit, "cgroup-oom"
			}
			kills = mergeKill(kills, k)
		}
	}
	for _, k := range kills {
		if ev.foreign() {
			if k.otherDay(ev) {
				out.otherDay++
			}
			var counts bool
			if k.tie, counts = d.foreignTie(&k); counts && !k.late(end) {
				out.ours = append(out.ours, k)
			} else {
				out.others = append(out.others, k)
			}
			continue
		}
		switch {
		case k.pattern.Ours && !k.late(end) && k.near(ev), !k.pattern.Ours && k.ours(ev):
			out.ours = append(out.ours, k)
		default:
			out.others = append(out.others, k)
		}
	}
	byTie(out.ours)
	return out
}

// late tells that the record was made well after the job's death: it is about
// somebody else.
func (k *kill) late(end time.Time) bool {
	return !end.IsZero() && !k.t.IsZero() && k.t.Sub(end) > killWindow
}

func (t *Table) kernelLine(r KernelRecord) (kill, bool) {
	text, _ := t.Clean(r.Text)
	if !t.kernelPre.scanAny(text) {
		return kill{}, false
	}
	for i := range t.Kernel {
		p := &t.Kernel[i]
		m := p.Re.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		k := kill{pattern: p, t: r.T, text: text, raw: r.Text, kind: p.Kind, sizes: map[string]int64{}}
		for i, name := range p.Re.SubexpNames() {
			if m[i] == "" {
				continue
			}
			n, err := strconv.ParseInt(m[i], 10, 52)
			switch name {
			case "pid":
				k.pid = int(n)
			case "xid":
				k.xid = int(n)
			case "comm":
				k.comm = m[i]
			case "path":
				k.path = m[i]
			case "limit":
				k.limit = m[i]
			case "constraint":
				if strings.HasSuffix(m[i], "_MEMCG") {
					k.kind = "cgroup-oom"
				}
			case "memcg":
				if strings.HasPrefix(m[i], "Memory cgroup") {
					k.kind = "cgroup-oom"
				}
			case "vm", "anon", "file", "shmem":
				if err == nil {
					k.sizes[map[string]string{"vm": "total_vm", "anon": "anon_rss", "file": "file_rss", "shmem": "shmem_rss"}[name]] = n << 10
				}
			case "rssmib":
				if err == nil {
					k.sizes["vmrss"] = n << 20
				}
			}
		}
		return k, true
	}
	return kill{}, false
}

// mergeKill adds k, or completes the record that the kernel began with another
// line: it writes the cgroup and the sizes of one victim on two lines, and old
// kernels name a thread's group first and the process afterwards.
func mergeKill(kills []kill, k kill) []kill {
	if k.pattern.Kind == "kernel-oom" {
		for i := len(kills) - 1; i >= 0 && i >= len(kills)-8; i-- {
			last := &kills[i]
			same := last.pid == k.pid && k.pid != 0
			old := i == len(kills)-1 && k.pattern.ID == "K1o" && last.comm == k.comm
			near := last.t.IsZero() || k.t.IsZero() || k.t.Sub(last.t) < killWindow
			if last.pattern.Kind != "kernel-oom" || !near || (!same && !old) {
				continue
			}
			last.pid = k.pid
			if k.path != "" {
				last.path = k.path
			}
			if k.limit != "" {
				last.limit = k.limit
			}
			if k.kind == "cgroup-oom" {
				last.kind = k.kind
			}
			for name, v := range k.sizes {
				last.sizes[name] = v
			}
			if len(k.sizes) > 0 {
				last.text = k.text
			}
			return kills
		}
	}
	return append(kills, k)
}

// ours tells whether the victim was one of the job's processes.
func (k *kill) ours(ev *Evidence) bool {
	if len(ev.CgroupPaths) > 0 && k.inCgroup(ev) {
		return !k.late(ev.death())
	}
	if k.pid != 0 {
		if p, ok := ev.Tree[k.pid]; ok {
			return k.is(p, ev)
		}
		for _, r := range ev.Reaped {
			if r.PID == k.pid {
				return k.is(TreeProc{Comm: r.Comm}, ev)
			}
		}
	}
	return false
}

// is tells whether the victim is p: the same pid may belong to another process
// before and after. While p was seen alive nobody else had its pid, whatever the
// names say: threads and setproctitle change them.
func (k *kill) is(p TreeProc, ev *Evidence) bool {
	if !k.t.IsZero() {
		last := p.Last
		if last.IsZero() {
			last = ev.death()
		}
		if !p.First.IsZero() && k.t.Before(p.First.Add(-clockSlack)) || !last.IsZero() && k.t.Sub(last) > killWindow {
			return false
		}
		if !p.First.IsZero() && !p.Last.IsZero() && !k.t.Before(p.First) && k.t.Sub(p.Last) <= seenSlack {
			return true
		}
	}
	if k.comm == "" || p.Comm == "" || sameComm(k.comm, p.Comm) {
		return true
	}
	// Where nobody knows how long it lived, a death by SIGKILL speaks for it.
	return p.First.IsZero() && p.Last.IsZero() && k.confirmed(ev)
}

// confirmed tells that the process with the victim's pid, or the command itself, was
// ended by the signal that the kernel's killer sends.
func (k *kill) confirmed(ev *Evidence) bool {
	for _, r := range ev.Reaped {
		if r.PID == k.pid {
			return r.Signal == "SIGKILL"
		}
	}
	return ev.Exit.Signal == "SIGKILL"
}

// sameComm compares process names as the kernel keeps them: 15 bytes.
func sameComm(a, b string) bool {
	cut := func(s string) string { return s[:min(len(s), 15)] }
	return cut(a) == cut(b)
}

// inCgroup tells whether the record is about one of the job's own cgroups, by
// path, by a container's id, or by the name of the unit.
func (k *kill) inCgroup(ev *Evidence) bool {
	if k.path == "" {
		return false
	}
	for _, own := range ev.CgroupPaths {
		switch {
		case own == "" || own == "/":
		case under(k.path, own):
			return true
		case k.pattern.Unit && k.path == path.Base(own):
			return true
		// systemd-oomd kills a whole unit, which may lie above.
		case k.pattern.Above && (under(own, k.path) || slices.Contains(strings.Split(own, "/"), k.path)):
			return true
		case containerID(k.path) != "" && containerID(k.path) == containerID(own):
			return true
		case k.pattern.Hint && len(k.path) >= 12 && strings.HasPrefix(containerID(own), k.path):
			return true
		}
	}
	return false
}

var hexID = lazyre.New(`[0-9a-f]{64}`)

// containerID returns the engine's id in a cgroup path: the same container lies
// under other parents in cgroup v1 and v2.
func containerID(p string) string { return hexID.FindString(p) }

// under tells whether the cgroup path lies in the cgroup dir or is it.
func under(path, dir string) bool {
	if path == "" || dir == "" || dir == "/" {
		return false
	}
	return path == dir || strings.HasPrefix(path, dir+"/")
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// survived tells that the job went on after the kill: it was a helper's.
func (k *kill) survived(ev *Evidence) bool {
	return !k.t.IsZero() && ev.Output.LastAdvance.T.After(k.t) && !k.near(ev)
}

// near tells that the kill lies close enough to the death to have caused it, as
// far as the times are known.
func (k *kill) near(ev *Evidence) bool {
	end := ev.death()
	return k.t.IsZero() || end.IsZero() || end.Sub(k.t) <= killWindow
}

func (k *kill) source() string {
	if s := k.pattern.Source; s != "" {
		return s
	}
	return "kernel"
}

func (k *kill) item(w Weight) Item {
	text := k.text
	if w == Note && (k.pid != 0 || k.path != "") {
		text = "not ours: " + text
	}
	return Item{Source: k.source(), Weight: w, Text: short(text), T: k.t}
}

// xidItems are the driver's errors, one line for each number.
func (e *kernelEvidence) xidItems(t *Table) []Item {
	var out []Item
	for _, x := range e.xids {
		what := t.xidText[x.number]
		if what == "" {
			what = "see NVIDIA's list of Xid errors"
		}
		text := fmt.Sprintf("Xid %d, %s: %s", x.number, what, x.first.text)
		if x.n > 1 {
			text = fmt.Sprintf("Xid %d (%d times), %s: %s", x.number, x.n, what, x.first.text)
		}
		out = append(out, Item{Source: "kernel", Weight: Weak, Text: short(text), T: x.first.t})
	}
	return out
}

var oomKilled = lazyre.New(`"?OOMKilled"?\s*[:=]\s*"?(true|false)\b`)

// SystemLines adds lines that somebody brings along from outside the process:
// kernel log, daemons, what docker inspect or what df says about /dev/shm. Their
// times are not known.
func SystemLines(ev *Evidence, lines []string) {
	for _, l := range lines {
		f := strings.Fields(l)
		if n := len(f); n >= 5 && f[n-1] == "/dev/shm" {
			if pct, err := strconv.ParseFloat(strings.TrimSuffix(f[n-2], "%"), 64); err == nil {
				ev.ShmUsedPct = sample.Known(pct)
				continue
			}
		}
		if m := oomKilled.FindStringSubmatch(l); m != nil {
			ev.Container = &ContainerEnd{Engine: "docker", Known: true, OOMKilled: m[1] == "true"}
			continue
		}
		if strings.TrimSpace(l) != "" {
			ev.Kernel = append(ev.Kernel, KernelRecord{Text: l})
			ev.KernelReadable = true
		}
	}
}
