package oom

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/sample"
)

// killWindow is how long before the death a kill may lie and still have caused
// it without further evidence: ranks and launchers take a while to notice.
const killWindow = 30 * time.Second

// kill is one record of a kill, its lines merged.
type kill struct {
	pattern *kernelPattern
	t       time.Time
	text    string
	pid     int
	comm    string
	path    string // the victim's cgroup
	kind    string
	sizes   map[string]int64
}

// kernelEvidence is what the kernel and daemon records say about this job.
type kernelEvidence struct {
	ours   []kill
	others []kill
	hints  []kill // NVRM lines
	// against are records that name another reason.
	against []kill
}

func (t *Table) kernelEvidence(ev *Evidence) kernelEvidence {
	var out kernelEvidence
	var kills []kill
	for _, r := range ev.Kernel {
		if !ev.Start.IsZero() && !r.T.IsZero() && r.T.Before(ev.Start) {
			continue
		}
		k, ok := t.kernelLine(r)
		switch {
		case !ok:
		case k.pattern.Hint:
			out.hints = append(out.hints, k)
		case k.pattern.Against:
			out.against = append(out.against, k)
		default:
			kills = mergeKill(kills, k)
		}
	}
	end := ev.death()
	for _, k := range kills {
		// A pid is used again: a kill well after the death is of somebody else.
		late := !end.IsZero() && k.t.Sub(end) > killWindow
		if !late && k.ours(ev) {
			out.ours = append(out.ours, k)
		} else {
			out.others = append(out.others, k)
		}
	}
	return out
}

func (t *Table) kernelLine(r KernelRecord) (kill, bool) {
	text, _ := t.Clean(r.Text)
	for i := range t.Kernel {
		p := &t.Kernel[i]
		m := p.Re.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		k := kill{pattern: p, t: r.T, text: text, kind: p.Kind, sizes: map[string]int64{}}
		for i, name := range p.Re.SubexpNames() {
			if m[i] == "" {
				continue
			}
			n, _ := strconv.ParseInt(m[i], 10, 62)
			switch name {
			case "pid":
				k.pid = int(n)
			case "comm":
				k.comm = m[i]
			case "path":
				k.path = m[i]
			case "constraint":
				if strings.HasSuffix(m[i], "_MEMCG") {
					k.kind = "cgroup-oom"
				}
			case "memcg":
				if strings.HasPrefix(m[i], "Memory cgroup") {
					k.kind = "cgroup-oom"
				}
			case "vm":
				k.sizes["total_vm"] = n << 10
			case "anon":
				k.sizes["anon_rss"] = n << 10
			case "file":
				k.sizes["file_rss"] = n << 10
			case "shmem":
				k.sizes["shmem_rss"] = n << 10
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
	if n := len(kills); n > 0 && k.pattern.Kind == "kernel-oom" {
		last := &kills[n-1]
		same := last.pid == k.pid
		old := k.pattern.ID == "K1o" && last.comm == k.comm
		if last.pattern.Kind == "kernel-oom" && (same || old) {
			last.pid = k.pid
			if k.path != "" {
				last.path = k.path
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
	if k.pattern.Ours {
		return true
	}
	if k.pid != 0 {
		if _, ok := ev.TreePIDs[k.pid]; ok {
			return true
		}
		for _, r := range ev.Reaped {
			if r.PID == k.pid {
				return true
			}
		}
		// A log that somebody brought: nobody knows the tree. The pid may stand
		// in the output; else the status must look like a kill, or be unknown.
		if ev.TreePIDs == nil && ev.CgroupPath == "" {
			return mentionsPID(&ev.Output, k.pid) || !ev.Exit.Known || signalOf(ev.Exit) != ""
		}
	}
	return under(k.path, ev.CgroupPath) || (k.pattern.Kind == "systemd-oomd" && k.oomdOurs(ev))
}

// oomdOurs: systemd-oomd kills a whole unit, which may lie above the job's own
// cgroup.
func (k *kill) oomdOurs(ev *Evidence) bool {
	if ev.CgroupPath == "" || ev.CgroupPath == "/" {
		return ev.TreePIDs == nil
	}
	return under(ev.CgroupPath, k.path)
}

// under tells whether the cgroup path lies in the cgroup dir or is it.
func under(path, dir string) bool {
	if path == "" || dir == "" || dir == "/" {
		return false
	}
	return path == dir || strings.HasPrefix(path, dir+"/")
}

func mentionsPID(o *Output, pid int) bool {
	want := strconv.Itoa(pid)
	for i := range o.Hits {
		text := o.Hits[i].Text
		for at := strings.Index(text, want); at >= 0; {
			end := at + len(want)
			if (at == 0 || !digit(text[at-1])) && (end == len(text) || !digit(text[end])) {
				return true
			}
			next := strings.Index(text[end:], want)
			if next < 0 {
				break
			}
			at = end + next
		}
	}
	return false
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

func (k *kill) item(w Weight) Item {
	source := "kernel"
	switch k.pattern.Kind {
	case "systemd-oomd", "earlyoom":
		source = k.pattern.Kind
	}
	text := k.text
	if w == Note && k.pid != 0 {
		text = fmt.Sprintf("not ours: %s", text)
	}
	return Item{Source: source, Weight: w, Text: short(text), T: k.t}
}

// SystemLines adds lines that somebody brings along from outside the process:
// kernel log, daemons, or what df says about /dev/shm. Their times are not known.
func SystemLines(ev *Evidence, lines []string) {
	for _, l := range lines {
		f := strings.Fields(l)
		if n := len(f); n >= 6 && f[n-1] == "/dev/shm" {
			if pct, err := strconv.ParseFloat(strings.TrimSuffix(f[n-2], "%"), 64); err == nil {
				ev.ShmUsedPct = sample.Known(pct)
				continue
			}
		}
		if strings.TrimSpace(l) != "" {
			ev.Kernel = append(ev.Kernel, KernelRecord{Text: l})
		}
	}
	ev.KernelReadable = true
}
