package guard

import (
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// scanEvery is how often the process table is looked at, and scanShare
	// bounds what that costs: a look that takes a millisecond is made every
	// two seconds at most.
	scanEvery = 5 * time.Second
	scanShare = 2000
	scanMost  = 30 * time.Second
	// plentyShare bounds it while there is plenty: who grew is asked when memory gets
	// less, and a look is made then.
	plentyShare = 5000
	// scanSoon is the least distance of two looks while memory falls to where it
	// has not been, scanSlow while it only moves.
	scanSoon = 250 * time.Millisecond
	scanSlow = 3 * time.Second
	// bigKiB is the memory from which a process is followed.
	bigKiB = 16 << 10
	// sharedKiB is how much memory behind files or shared memory makes it worth
	// asking which of both it is.
	sharedKiB = 64 << 10
	// slots of slotEvery cover the minute over which growth is counted.
	slotEvery = 5 * time.Second
	slots     = 13
	// A process below smallKiB is passed over in fullEvery-1 of so many looks,
	// unless memory moves: most of a machine's processes are kernel threads and
	// shells.
	smallKiB  = 4 << 10
	fullEvery = 4
	// maxKill bounds the descriptors of processes to be ended.
	maxKill = 128
)

// killSet is the known processes of the tree, as descriptors. It never changes
// once it is published.
type killSet struct {
	n   int
	fds [maxKill]int32
}

// follow is one big process.
type follow struct {
	stat
	seen   uint64
	tree   bool
	placed bool
	in     uint8
	rss    uint64
	kib    uint64
	fd     int32 // of the process, -1 for none
}

// group is a session, which is what a service, a login or a container is; the
// tree is one group whatever its sessions are.
type group struct {
	seen uint64
	kib  int64
	past [slots]int64
	// big is its greatest process.
	big  int
	most uint64
	comm [16]byte
	in   uint8
}

const treeGroup = -1

// scout looks at the process table: who takes memory, and who is to be ended.
// It works beside the guard's own thread, which takes what it last found.
type scout struct {
	proc  *procfs
	self  int
	child int
	paths []string // of the watched cgroups, in order
	// container is part of the cgroup paths of a container that is ours, inside
	// a process in one that is ours with all below it; "" and 0 for none.
	container string
	inside    int
	// insideStart is when that process was started, in clock ticks since boot.
	insideStart uint64

	scan   uint64
	full   bool // whether small ones are looked at too
	small  map[int]bool
	procs  map[int]*follow
	groups map[int]*group
	slot   int // slots ever begun
	slotAt time.Duration
	// What the kernel counts for nobody, and what the GPU's driver says others
	// hold, at the slots; -1 is unknown.
	rest, gpuOther [slots]int64
	retired        []int32

	growth  atomic.Pointer[Growth]
	set     atomic.Pointer[killSet]
	treeRSS atomic.Uint64 // KiB plus one, 0 when taken
	// holds is the memory of the tree in KiB, with what the kernel counts for
	// nobody, as Growth counts it; 0 before the first look.
	holds atomic.Uint64
}

func newScout(proc *procfs, self, child int, paths []string) *scout {
	return &scout{proc: proc, self: self, child: child, paths: paths, small: map[int]bool{}, procs: map[int]*follow{}, groups: map[int]*group{}}
}

// look reads the table once. restKiB is the memory that the kernel counts for
// nobody, -1 for unknown; availKiB is what the host has left. everybody has it
// look at small processes too.
func (s *scout) look(at time.Duration, everybody bool, availKiB uint64, restKiB int64, gpu *Floors) {
	s.scan++
	for _, fd := range s.retired {
		unix.Close(int(fd))
	}
	s.retired = s.retired[:0]
	if s.full = everybody || s.scan%fullEvery == 1; s.full {
		clear(s.small)
	}
	if s.proc.each(s.visit) != nil {
		return
	}
	for pid, f := range s.procs {
		if f.seen != s.scan {
			s.retire(f)
			delete(s.procs, pid)
		}
	}
	var rss uint64
	for _, g := range s.groups {
		g.kib, g.most = 0, 0
	}
	for pid, f := range s.procs {
		key := f.sid
		if f.tree {
			key = treeGroup
			rss += f.rss
		}
		g := s.groups[key]
		if g == nil {
			g = &group{}
			s.groups[key] = g
		}
		g.seen = s.scan
		g.kib += int64(f.kib)
		if f.kib >= g.most {
			g.big, g.most, g.comm, g.in = pid, f.kib, f.comm, f.in
		}
	}
	s.treeRSS.Store(rss + 1)
	holds := max(restKiB, 0)
	if g := s.groups[treeGroup]; g != nil {
		holds += g.kib
	}
	s.holds.Store(uint64(max(holds, 1)))
	s.remember(at, restKiB, gpu)
	s.publish(availKiB, restKiB, gpu)
	s.publishSet()
}

func (s *scout) retire(f *follow) {
	if f.fd >= 0 {
		// Closed at the next look: the guard may be using the set it is in.
		s.retired = append(s.retired, f.fd)
		f.fd = -1
	}
}

// visit takes one process into account.
func (s *scout) visit(pid int) {
	if pid == s.self || !s.full && s.small[pid] {
		return
	}
	rss, shared := s.proc.statm(pid)
	kib := rss - min(shared, rss)
	if shared >= sharedKiB {
		kib += min(s.proc.shmem(pid), shared)
	}
	f := s.procs[pid]
	if f == nil && kib < bigKiB && pid != s.child {
		if rss < smallKiB {
			s.small[pid] = true
		}
		return
	}
	st, ok := s.proc.stat(pid)
	if !ok {
		return
	}
	if f == nil || f.start != st.start {
		if f != nil {
			s.retire(f)
		}
		f = &follow{fd: -1}
		s.procs[pid] = f
	}
	f.stat, f.seen, f.rss, f.kib = st, s.scan, rss, kib
	if !f.placed {
		s.place(pid, f)
	}
	if f.tree && f.fd < 0 {
		f.fd = s.open(pid, st.start)
	}
}

// place finds out whose a process is.
func (s *scout) place(pid int, f *follow) {
	own := s.proc.read(pid, "cgroup")
	in1, in2 := cgroupPaths(own)
	f.in = 1
	for i, p := range s.paths {
		if under(in1, p) || under(in2, p) {
			f.in |= 1 << (i + 1)
		}
	}
	if s.container != "" && strings.Contains(string(own), s.container) {
		f.tree, f.placed = true, true
		return
	}
	if pid == s.child || pid == s.inside && f.start == s.insideStart {
		f.tree, f.placed = true, true
		return
	}
	up := f.ppid
	for range 64 {
		switch {
		case up == s.self:
			f.tree, f.placed = true, true
			return
		case up <= 1:
			f.placed = true
			return
		}
		st, ok := s.proc.stat(up)
		if !ok {
			return // a parent has just ended: asked again next time
		}
		if up == s.inside && st.start == s.insideStart {
			f.tree, f.placed = true, true
			return
		}
		up = st.ppid
	}
}

// under is whether a cgroup path lies at or below another.
func under(p, top string) bool {
	return p != "" && (p == top || top == "/" || strings.HasPrefix(p, top+"/"))
}

// open returns a descriptor of exactly this process, -1 where there is none to
// be had.
func (s *scout) open(pid int, start uint64) int32 {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1
	}
	if st, ok := s.proc.stat(pid); !ok || st.start != start {
		unix.Close(fd)
		return -1
	}
	return int32(fd)
}

// remember begins a new slot of the past every few seconds.
func (s *scout) remember(at time.Duration, restKiB int64, gpu *Floors) {
	if s.slot > 0 && at-s.slotAt < slotEvery {
		if i := (s.slot - 1) % slots; gpu != nil && s.gpuOther[i] < 0 {
			s.gpuOther[i] = gpu.GPUOtherKiB
		}
		return
	}
	// A look that came late leaves the slots in between as they were now: a
	// growth counted over more than the minute would be somebody else's.
	missed := 1
	if s.slot > 0 {
		missed = min(int((at-s.slotAt)/slotEvery), slots)
	}
	s.slotAt = at
	for range missed {
		i := s.slot % slots
		s.slot++
		s.rest[i], s.gpuOther[i] = restKiB, -1
		if gpu != nil {
			s.gpuOther[i] = gpu.GPUOtherKiB
		}
		for _, g := range s.groups {
			g.past[i] = g.kib
		}
	}
	for key, g := range s.groups {
		if g.seen+slots*4 < s.scan && g.past == [slots]int64{} {
			delete(s.groups, key)
		}
	}
}

// first is the oldest known figure of the minute, -1 for none.
func (s *scout) first(figures *[slots]int64) int64 {
	for i := max(s.slot-slots, 0); i < s.slot; i++ {
		if v := figures[i%slots]; v >= 0 {
			return v
		}
	}
	return -1
}

// oldest is the slot of a minute ago, or the first there is.
func (s *scout) oldest() int { return max(s.slot-slots, 0) % slots }

// publish says who grew.
func (s *scout) publish(availKiB uint64, restKiB int64, gpu *Floors) {
	from := s.oldest()
	g := Growth{Known: true, AvailKiB: availKiB}
	for key, x := range s.groups {
		grew := x.kib - x.past[from]
		if key == treeGroup {
			g.TreeKiB += grew
			continue
		}
		if grew > g.OutsiderKiB {
			g.OutsiderKiB, g.PID, g.In = grew, x.big, x.in
			g.Name = (&stat{comm: x.comm}).command()
		}
	}
	// GPU memory is in nobody's RSS. What the kernel counts for nobody is taken
	// for the tree's, unless the driver says whose it is. The driver's figures
	// never count for more than that: those of a GPU with memory of its own say
	// nothing about this memory.
	var rest, other int64
	if was := s.first(&s.rest); was >= 0 && restKiB >= 0 {
		rest = max(restKiB-was, 0)
	}
	if was := s.first(&s.gpuOther); was >= 0 && gpu != nil && gpu.GPUOtherKiB >= 0 {
		other = min(max(gpu.GPUOtherKiB-was, 0), rest)
	}
	g.TreeKiB += rest - other
	if other > g.OutsiderKiB {
		g.OutsiderKiB, g.PID, g.In = other, 0, 1
		g.Name = gpu.GPUOtherName
		if g.Name == "" {
			g.Name = "another GPU process"
		}
	}
	s.growth.Store(&g)
}

// publishSet hands over the descriptors of the tree where they changed.
func (s *scout) publishSet() {
	var set killSet
	for _, f := range s.procs {
		if f.tree && f.fd >= 0 && set.n < maxKill {
			set.fds[set.n] = f.fd
			set.n++
		}
	}
	s.set.Store(&set)
}

// isContainer makes the processes of a container part of the tree.
func (s *scout) isContainer(id string) {
	s.container, s.inside, s.insideStart = "", 0, 0
	if rest, ok := strings.CutPrefix(id, "pid/"); ok {
		// A pid is used again; with its start it is one process for good. Without
		// both it is nobody's.
		p, at, _ := strings.Cut(rest, "/")
		pid, err1 := strconv.Atoi(p)
		start, err2 := strconv.ParseUint(at, 10, 64)
		if err1 == nil && err2 == nil && pid > 1 {
			s.inside, s.insideStart = pid, start
		}
	} else if !strings.Contains(id, "/") {
		s.container = id
	}
	for _, f := range s.procs {
		f.placed = false
	}
}

func (s *scout) close() {
	for _, f := range s.procs {
		s.retire(f)
	}
	for _, fd := range s.retired {
		unix.Close(int(fd))
	}
	s.proc.close()
}
