package guard

import (
	"testing"
	"time"
)

// paper is a scout whose process table is what a test writes into its groups.
func paper() *scout {
	s := &scout{procs: map[int]*follow{}, groups: map[int]*group{}}
	s.groups[treeGroup] = &group{}
	return s
}

func (s *scout) at(seconds int, tree, other int64, rest int64, gpu *Floors) Growth {
	s.scan++
	s.groups[treeGroup].kib = tree
	if other >= 0 {
		if s.groups[42] == nil {
			s.groups[42] = &group{big: 43, comm: [16]byte{'v', 'l', 'l', 'm'}, in: 1}
		}
		s.groups[42].kib = other
	}
	t := time.Duration(seconds) * time.Second
	s.remember(t, rest, gpu)
	s.publish(0, rest, gpu)
	return *s.growth.Load()
}

func TestGrowthIsThatOfAMinute(t *testing.T) {
	t.Parallel()
	s := paper()
	var g Growth
	// Ten minutes of a server that grows by a GiB a second and a tree that
	// stands still: only a minute of it counts.
	for sec := 0; sec <= 600; sec += 5 {
		g = s.at(sec, 7*gb, int64(sec)*gb, -1, nil)
	}
	if g.TreeKiB != 0 || g.OutsiderKiB < 55*gb || g.OutsiderKiB > 65*gb || g.Name != "vllm" || g.PID != 43 || g.In != 1 {
		t.Errorf("%+v", g)
	}
	// One that was there before we came has not grown.
	if g := paper().at(0, 1*gb, 90*gb, -1, nil); g.OutsiderKiB != 0 || g.TreeKiB != 0 {
		t.Errorf("at the first look: %+v", g)
	}
	// One that came later has.
	s = paper()
	s.at(0, 1*gb, -1, -1, nil)
	if g := s.at(5, 1*gb, 30*gb, -1, nil); g.OutsiderKiB != 30*gb {
		t.Errorf("a newcomer: %+v", g)
	}
	// A look that came minutes late does not count old growth.
	s = paper()
	s.at(0, 1*gb, 1*gb, -1, nil)
	s.at(300, 1*gb, 60*gb, -1, nil)
	if g := s.at(305, 1*gb, 61*gb, -1, nil); g.OutsiderKiB > 1*gb {
		t.Errorf("after a pause: %+v", g)
	}
}

func TestUnaccountedMemoryIsTheTreesUnlessTheGPUSaysOtherwise(t *testing.T) {
	t.Parallel()
	gpu := func(other int64) *Floors { return &Floors{GPUTreeKiB: 1, GPUOtherKiB: other, GPUOtherName: "vllm"} }
	for name, c := range map[string]struct {
		rest          int64
		before, after *Floors
		tree, other   int64
	}{
		"nobody says":                       {50 * gb, nil, nil, 50 * gb, 0},
		"unknown":                           {-1, nil, nil, 0, 0},
		"the driver says: others":           {50 * gb, gpu(1 * gb), gpu(41 * gb), 10 * gb, 40 * gb},
		"the driver says: not others":       {50 * gb, gpu(1 * gb), gpu(1 * gb), 50 * gb, 0},
		"the driver does not know":          {50 * gb, gpu(-1), gpu(-1), 50 * gb, 0},
		"a GPU with memory of its own":      {0, gpu(0), gpu(40 * gb), 0, 0},
		"others gave some back":             {5 * gb, gpu(40 * gb), gpu(1 * gb), 5 * gb, 0},
		"what is counted for nobody shrank": {-2, nil, nil, 0, 0},
	} {
		s := paper()
		first := int64(1 * gb)
		if c.rest == -1 {
			first = -1
		}
		s.at(0, 0, -1, first, c.before)
		rest := first + c.rest
		if c.rest < 0 {
			rest = max(first-1, -1)
		}
		if g := s.at(5, 0, -1, rest, c.after); g.TreeKiB != c.tree || g.OutsiderKiB != c.other || c.other > 0 && g.Name != "vllm" {
			t.Errorf("%s: %+v", name, g)
		}
	}
	// The first figure comes after the first look.
	s := paper()
	s.at(0, 0, -1, 1*gb, nil)
	s.at(1, 0, -1, 1*gb, gpu(2*gb))
	if g := s.at(2, 0, -1, 31*gb, gpu(32*gb)); g.OutsiderKiB != 30*gb || g.TreeKiB != 0 {
		t.Errorf("%+v", g)
	}
}

func TestContainersAreOurs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	stat := func(ppid string) string {
		return "(py (x) thon) S " + ppid + " 1 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5000 1 1 1\n"
	}
	put(t, root, map[string]string{
		"proc/50/statm": "900000 600000 1000 1 0 1 0\n", "proc/50/stat": "50 " + stat("49"), "proc/50/cgroup": "0::/system.slice/docker-" + id + ".scope\n",
		"proc/49/statm": "900 60 10 1 0 1 0\n", "proc/49/stat": "49 " + stat("1"), "proc/49/cgroup": "0::/system.slice\n",
		"proc/60/statm": "900000 600000 1000 1 0 1 0\n", "proc/60/stat": "60 " + stat("0"), "proc/60/cgroup": "0::/user.slice\n",
		"proc/1/stat": "1 " + stat("0"),
	})
	proc, err := openProcfs(root)
	if err != nil {
		t.Fatal(err)
	}
	s := newScout(proc, 99999999, 99999998, []string{"/user.slice", "/"})
	defer s.close()
	ours := func() (n int) {
		for _, f := range s.procs {
			if f.tree {
				n++
			}
		}
		return n
	}
	s.look(time.Hour, true, 0, -1, nil)
	if len(s.procs) != 2 || ours() != 0 || s.procs[60].in != 0b111 || s.procs[50].in != 0b101 || s.procs[50].command() != "py (x) thon" || s.procs[50].sid != 77 {
		t.Errorf("%d processes followed, %d ours: %+v %+v", len(s.procs), ours(), s.procs[50], s.procs[60])
	}
	for _, what := range []string{id, "pid/49/5000", "pid/50/5000"} {
		s.isContainer(what)
		s.look(time.Hour, true, 0, -1, nil)
		if ours() != 1 || !s.procs[50].tree {
			t.Errorf("%s: %d ours", what, ours())
		}
		for _, other := range []string{"pid/49/4999", "pid/50/5001", "pid/49", "pid/49/", "pid/x/5000", "pid/0/5000", "pid/1/5000"} {
			s.isContainer(other) // the pid is somebody else's by now, or no name of a process
			s.procs = map[int]*follow{}
			if s.look(time.Hour, true, 0, -1, nil); ours() != 0 {
				t.Errorf("%s makes %d processes ours", other, ours())
			}
		}
		s.isContainer("exec/" + id)
		s.procs = map[int]*follow{}
		if s.look(time.Hour, true, 0, -1, nil); ours() != 0 {
			t.Errorf("an exec makes %d processes ours", ours())
		}
	}
}

func TestWhatTheTreeHolds(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put(t, root, map[string]string{
		"proc/50/statm": "900000 600000 1000 1 0 1 0\n", "proc/50/cgroup": "0::/\n",
		"proc/50/stat": "50 (python3) S 1 1 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5000 1 1 1\n",
	})
	proc, err := openProcfs(root)
	if err != nil {
		t.Fatal(err)
	}
	s := newScout(proc, 99999999, 50, nil)
	defer s.close()
	page := proc.page
	for rest, want := range map[int64]uint64{-1: 599000 * page, 7 * gb: 599000*page + 7*gb} {
		if s.look(time.Hour, true, 0, rest, nil); s.holds.Load() != want {
			t.Errorf("%d KiB for nobody: the tree holds %d KiB, want %d", rest, s.holds.Load(), want)
		}
	}
}
