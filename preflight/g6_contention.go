package preflight

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"sparkrun/internal/sample"
)

// contention is what G6 looks at: every process.
type contention struct{ table processTable }

func lookContention(ctx context.Context, v view) contention {
	t, err := loadServers()
	if err != nil {
		return contention{table: processTable{err: err}}
	}
	return contention{table: detailed(ctx, v.root, t, v.processes(ctx))}
}

// judgeContention is G6: who else holds the one pool of memory. Eviction on this machine
// is silent on both sides, so that it must be found beforehand. Not that there is a server
// counts, but what it holds and may still take: its cap.
func judgeContention(c contention, f facts) Finding {
	t, _ := loadServers() // the look has told if it is broken
	if c.table.err != nil {
		return Finding{Status: Skip, Detail: "who else uses the memory cannot be told: " + c.table.err.Error()}
	}
	s := c.survey(f, t)
	found := Finding{Evidence: s.evidence()}
	matter := s.mattering()
	switch {
	case len(matter) > 0:
		found.Status = Warn
		found.Detail = matter[0].short(s) + others(len(matter)-1)
		if s.room.OK {
			found.Detail += "; " + s.roomWords()
		}
		for i, h := range matter {
			if i == 3 {
				found.Fix += fmt.Sprintf("\nand %d more: see the evidence in env-report.json", len(matter)-3)
				break
			}
			found.Fix += "\n" + h.fix(s)
		}
		found.Fix = strings.TrimPrefix(found.Fix, "\n")
	case len(c.table.byPID) == 0 || c.table.cut:
		found.Status, found.Detail = Skip, fmt.Sprintf("no answer within %g s: only %d processes were looked at", f.lookLimit().Seconds(), len(c.table.byPID))
		if len(c.table.byPID) == 0 {
			found.Detail = "no process can be seen: is /proc mounted?"
		}
	case !slices.ContainsFunc(s.holders, func(h holder) bool { return h.server() || h.kind() == kindTrainer }):
		found.Status, found.Detail = Pass, fmt.Sprintf("no server or training of anybody else%s", s.where())
	case s.servers():
		found.Status = Info
		h := s.holders[slices.IndexFunc(s.holders, holder.server)]
		found.Detail = h.short(s) + others(len(s.holders)-1)
		if s.room.OK {
			found.Detail += "; " + s.roomWords()
		}
	default:
		found.Status = Info
		found.Detail = s.holders[0].short(s) + others(len(s.holders)-1) + ", which is little"
	}
	return found
}

func others(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// holder is one program with all its processes, or one process of no known name.
type holder struct {
	root    *process
	program *program
	pids    []int
	// rss is their resident memory in bytes with what they share counted once, gpu their
	// GPU memory. noGPU tells that the driver does not say how much that is.
	rss, gpu int64
	noGPU    bool
	caps     caps
	run      string
	// foreign tells that the driver names a process which cannot be seen from here.
	foreign bool
	// sudo tells that it is another user's.
	sudo bool
	// small tells that it holds so little that nobody has to act.
	small bool
	// beside tells that its cap lets the command run beside it.
	beside bool
}

// survey is who holds the memory, and what of it is left.
type survey struct {
	table servers
	// holders are all that are worth naming, the largest first.
	holders []holder
	// total is all memory of the pool in bytes, room what stays for the command when every
	// capped server has taken what it may; gpuPool tells that the pool is a GPU's own.
	total int64
	room  sample.Num
	// lacks is what the capped servers may take beyond what there is.
	lacks int64
	// share is the part of the pool that the servers with a cap may take together.
	share   float64
	gpuPool bool
	need    sample.Num
	notes   []string
	// count is how many processes were looked at; inside that this is a container.
	count  int
	inside bool
}

// survey finds the holders among the processes.
func (c contention) survey(f facts, t servers) survey {
	s := survey{table: t, count: len(c.table.byPID), gpuPool: f.platform == GenericNVIDIA}
	b := f.budget()
	s.total = b.Total
	if bytes, ok := f.plan.need(); ok {
		s.need = sample.Known(float64(bytes))
	}
	s.inside = !c.table.hostPIDs && (f.container.marker != "" || f.container.cgroup != "")
	s.holders = c.holders(f, s.inside)
	// What is no server and holds next to nothing is not worth a line.
	s.holders = slices.DeleteFunc(s.holders, func(h holder) bool { return !h.worthALine() })
	for i := range s.holders {
		h := &s.holders[i]
		h.small = h.isSmall(f, t, c.total(f))
	}
	room := b.Bytes
	for _, h := range s.holders {
		if reserved, ok := s.reserved(h); ok && h.server() {
			room -= reserved - s.held(h)
			share, _ := h.caps.share(s.total, s.held(h)-h.gpu, h.gpu)
			s.share += share
		}
	}
	if b.Known {
		s.room, s.lacks = sample.Known(float64(max(0, room))), max(0, -room)
	}
	for i := range s.holders {
		s.holders[i].beside = s.coexists(s.holders[i], f.platform)
	}
	s.describe(c, f)
	return s
}

// total is the machine's memory in bytes, 0 where it is not known.
func (c contention) total(f facts) int64 {
	if n := f.memory.num("MemTotal"); f.memory.err == nil && n.OK {
		return bytesOf(n)
	}
	return 0
}

// held is what a holder has of the pool: on this platform the GPU's memory is the
// machine's, and no process's resident memory counts it.
func (s survey) held(h holder) int64 {
	if s.gpuPool {
		return h.gpu
	}
	return h.rss + h.gpu
}

// reserved is the most that a holder may come to have of the pool; ok is false where
// nothing caps it.
func (s survey) reserved(h holder) (bytes int64, ok bool) {
	return h.caps.reserves(s.total, s.held(h)-h.gpu, h.gpu)
}

// describe notes what limits the survey.
func (s *survey) describe(c contention, f facts) {
	if s.inside {
		s.notes = append(s.notes, "inside a container: of processes outside it nothing is seen but their GPU memory")
	}
	if c.table.hidden > 0 {
		s.notes = append(s.notes, fmt.Sprintf("%d processes may not be looked at by this user", c.table.hidden))
	}
	if f.gpuHere() && f.gpu.ok() && f.gpu.gpu.Processes == nil {
		s.notes = append(s.notes, "the driver does not tell which processes hold GPU memory")
	}
	if c.table.cut {
		s.notes = append(s.notes, fmt.Sprintf("time ran out after %d processes", s.count))
	}
}

// holders groups the processes by program: workers belong to the server or launcher that
// started them. Our own tree and what started it are left out.
func (c contention) holders(f facts, inside bool) []holder {
	tab := c.table
	children := tab.children()
	own := c.own(f, children)
	roots := map[int]int{} // of each process that is known, the one its program began with
	marked := func(pid int) *process {
		if p := tab.byPID[pid]; p != nil && !own[pid] && (p.program != nil || p.holder) {
			return p
		}
		return nil
	}
	for pid := range tab.byPID {
		p := marked(pid)
		if p == nil {
			continue
		}
		top := pid
		for _, up := range tab.ancestors(pid) {
			if a := marked(up); a != nil && takesIn(a, p) {
				top = up
			}
		}
		roots[pid] = top
	}
	// Whatever the driver names and nobody knows belongs to the nearest known program
	// above it, or stands for itself.
	used, unseen := map[int]sample.Num{}, map[int]sample.Num{}
	for _, g := range f.gpu.gpu.Processes {
		if own[g.PID] && !inside {
			continue
		}
		p := tab.byPID[g.PID]
		if p == nil || inside {
			unseen[g.PID] = addNum(unseen, g)
			continue
		}
		used[g.PID] = addNum(used, g)
		if _, known := roots[g.PID]; known {
			continue
		}
		roots[g.PID] = g.PID
		for _, up := range tab.ancestors(g.PID) {
			if marked(up) != nil {
				roots[g.PID] = roots[up]
				break
			}
		}
	}
	// So does one that is large.
	if total := c.total(f); total > 0 {
		t, _ := loadServers()
		for _, pid := range sortedInts(tab.byPID) {
			p := tab.byPID[pid]
			if _, known := roots[pid]; !known && !own[pid] && float64(p.rss) >= t.large(total) && !below(tab, pid, roots) {
				roots[pid] = pid
			}
		}
	}
	return c.group(roots, children, own, used, unseen)
}

// below tells whether a process is below one that is counted with all its children.
func below(tab processTable, pid int, roots map[int]int) bool {
	for _, up := range tab.ancestors(pid) {
		if _, ok := roots[up]; ok {
			return true
		}
	}
	return false
}

func addNum(m map[int]sample.Num, g sample.GPUProcess) sample.Num {
	have := m[g.PID]
	if !g.UsedMiB.OK {
		return have
	}
	return sample.Known(have.V + g.UsedMiB.V)
}

// own are the processes that are never somebody else: ours, what started it, and what the
// caller says is ours, with all below.
func (c contention) own(f facts, children map[int][]int) map[int]bool {
	own := map[int]bool{}
	roots := slices.Clone(f.in.OwnPIDs)
	if c.table.self > 0 {
		roots = append(roots, c.table.self)
		for _, pid := range c.table.ancestors(c.table.self) {
			own[pid] = true
		}
	}
	for _, pid := range roots {
		if pid <= 1 && pid != c.table.self {
			continue // everything is below process 1
		}
		for _, below := range c.table.tree(pid, children) {
			own[below] = true
		}
	}
	return own
}

// takesIn tells whether a process belongs to the program of one above it. What a run of
// sparkrun started is that run; what is started in a notebook's terminal stands for itself.
func takesIn(above, p *process) bool {
	switch {
	case above.holder:
		return true
	case p.holder:
		return false
	case above.program == p.program:
		return true
	case above.program.Kind == kindTrainer:
		return true
	}
	return above.program.Kind == kindServer && p.program.Kind == kindServer
}

// group adds the processes of each root up.
func (c contention) group(roots map[int]int, children map[int][]int, own map[int]bool, used, unseen map[int]sample.Num) []holder {
	tops := map[int]bool{}
	for _, top := range roots {
		tops[top] = true
	}
	byRun := map[string]int{}
	var out []holder
	for _, top := range sortedInts(tops) {
		p := c.table.byPID[top]
		h := holder{root: p, program: p.program, run: p.run, caps: p.caps, sudo: c.table.others(p)}
		var shared int64
		// Everything below it, but for what belongs to another.
		queue := []int{top}
		seen := map[int]bool{top: true}
		for len(queue) > 0 {
			pid := queue[0]
			queue = queue[1:]
			q := c.table.byPID[pid]
			h.pids = append(h.pids, pid)
			h.rss += q.rss - q.shared
			shared = max(shared, q.shared)
			if g, ok := used[pid]; ok {
				h.gpu += int64(g.Or(0)) << 20
				h.noGPU = h.noGPU || !g.OK
			}
			if h.caps.is == "" && q.caps.is != "" {
				h.caps = q.caps
			}
			if h.run == "" {
				h.run = q.run
			}
			for _, child := range children[pid] {
				if !seen[child] && !own[child] && !tops[child] {
					seen[child] = true
					queue = append(queue, child)
				}
			}
		}
		h.rss += shared
		// A run whose trainer sits in a container is two trees of one run.
		if at, ok := byRun[h.run]; ok && h.run != "" {
			out[at].join(h)
			continue
		}
		if h.run != "" {
			byRun[h.run] = len(out)
		}
		out = append(out, h)
	}
	for _, pid := range sortedInts(unseen) {
		g := unseen[pid]
		out = append(out, holder{root: &process{pid: pid}, gpu: int64(g.Or(0)) << 20, noGPU: !g.OK, foreign: true})
	}
	slices.SortStableFunc(out, func(a, b holder) int { return cmp.Compare(b.rss+b.gpu, a.rss+a.gpu) })
	return out
}

// join adds another tree of the same run.
func (h *holder) join(o holder) {
	h.pids = append(h.pids, o.pids...)
	h.rss, h.gpu, h.noGPU = h.rss+o.rss, h.gpu+o.gpu, h.noGPU || o.noGPU
	if h.program == nil {
		h.program = o.program
	}
	if h.root.container == "" && o.root.container != "" && !h.root.holder {
		h.root = o.root
	}
}

func sortedInts[V any](m map[int]V) []int {
	out := make([]int, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func (h holder) kind() string {
	switch {
	case h.run != "":
		return kindTrainer
	case h.program != nil:
		return h.program.Kind
	}
	return ""
}

func (h holder) server() bool { return h.kind() == kindServer }

// worthALine leaves out desktops, notebooks and shells that hold nothing.
func (h holder) worthALine() bool {
	switch h.kind() {
	case kindServer, kindTrainer:
		return true
	case kindNotebook, kindDesktop, kindApp:
		return h.gpu > 0 || h.noGPU || h.rss >= 1<<30
	}
	return true
}

// isSmall tells whether a holder holds so little that nobody has to act.
func (h holder) isSmall(f facts, t servers, total int64) bool {
	small := int64(t.SmallGiB * (1 << 30))
	share := total > 0 && float64(h.rss) >= t.SharePct/100*float64(total)
	idle := h.gpu >= int64(t.NotebookGPUMiB)<<20 && (h.kind() == kindNotebook || h.kind() == kindTrainer)
	counts := h.rss+h.gpu >= small
	if h.kind() != kindTrainer && h.kind() != kindServer {
		counts = h.gpu >= small || float64(h.rss) >= t.large(total)
	}
	switch {
	case h.kind() == kindLauncher:
		return true
	case f.platform == Generic && h.kind() != kindTrainer && h.kind() != kindServer:
		return total <= 0 || float64(h.rss) < t.DesktopPct/100*float64(total)
	case f.platform == Generic:
		return !share
	case f.platform == GenericNVIDIA:
		return !share && h.gpu < small && !idle
	}
	return !counts && !idle
}

// mattering are the holders that a person should act on: large ones, and on this platform
// every server that has taken much, or takes a share of the memory at its start, without a
// cap that leaves enough.
func (s survey) mattering() []holder {
	return slices.DeleteFunc(slices.Clone(s.holders), func(h holder) bool {
		if !h.server() {
			return h.small
		}
		return h.beside
	})
}

// waiting tells that a server holds next to nothing and takes memory only when it is asked
// for something.
func (h holder) waiting() bool {
	return h.server() && h.small && h.caps.is == "" && h.caps.config == "" && h.caps.byDefault == 0
}

// coexists is the rule for a server: one that has a cap may stay where the command fits
// beside all that the capped ones may take, and one that waits for a request may wait on. Where it is not known what the command needs,
// what was seen to go well decides. On other machines it counts by what it holds.
func (s survey) coexists(h holder, platform string) bool {
	if !h.server() {
		return false
	}
	_, capped := s.reserved(h)
	switch {
	case platform == Generic, platform == GenericNVIDIA && !capped:
		return h.small
	case !capped:
		return h.waiting()
	case s.need.OK && s.room.OK:
		return s.need.V <= s.room.V
	}
	// Shares have a cent of slack: 0.3 and 0.2 are a half.
	_, ok := h.caps.share(s.total, s.held(h)-h.gpu, h.gpu)
	return ok && s.share <= s.table.Coexist.Fraction+0.005
}

func (s survey) servers() bool {
	return slices.ContainsFunc(s.holders, holder.server)
}

func (s survey) where() string {
	if s.inside {
		return " in this container"
	}
	return ""
}
