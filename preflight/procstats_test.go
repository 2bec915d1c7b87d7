package preflight

import (
	"path/filepath"
	"slices"
	"testing"

	"sparkrun/internal/job"
)

// All looks that search the processes share one walk: none of them lists /proc itself.
func TestProcessesAreListedOnce(t *testing.T) {
	t.Parallel()
	walks := 0
	row := func(pid int, name, comm string) processStat {
		return processStat{process: process{pid: pid, ppid: 1, comm: comm, label: comm, rss: 1 << 30}, name: name, known: true}
	}
	v := view{
		// The files are there, but no folder of the tree can be found by listing it.
		root: rootOf(copyTree(t, "", map[string]string{"proc/x/status": "Uid:\t1000\t1000\t1000\t1000\n"})), getenv: env(),
		processesOnce: func() processStats {
			walks++
			return processStats{page: 4096, rows: []processStat{row(7, "7", "earlyoom"), row(8, "x", "gsd-power")}}
		},
	}
	if seen := lookKillers(t.Context(), v); len(seen.running) != 1 || seen.running[0].pid != 7 {
		t.Errorf("H9 saw %+v", seen.running)
	}
	if _, desktop := powerDaemons(t.Context(), v); !desktop {
		t.Error("H10 did not see the desktop's power daemon")
	}
	if seen := lookContention(t.Context(), v); seen.table.err != nil || len(seen.table.byPID) != 2 {
		t.Errorf("G6 saw %+v", seen.table)
	}
	if walks != 3 {
		t.Errorf("the list was asked for %d times", walks)
	}
}

// A process whose stat is torn still has its name, and is no process to judge.
func TestTornStat(t *testing.T) {
	t.Parallel()
	s := readStats(t.Context(), rootOf(copyTree(t, "", map[string]string{
		"proc/7/stat": "7 (vllm", "proc/7/comm": "vllm\n", "proc/8/stat": "9 (other) S 1 9 9 0 -1 4194560 100 0 0 0 1 1 0 0 20 0 1 0 100 1000 200 0 0 0\n", "proc/8/comm": "earlyoom\n", "proc/sys/vm/swappiness": "60\n",
	})))
	if len(s.rows) != 2 || s.rows[0].known || s.rows[0].comm != "vllm" || s.rows[1].known || s.rows[1].pid != 8 || s.rows[1].comm != "earlyoom" {
		t.Errorf("%+v", s.rows)
	}
}

// When nobody waits any more, no further file of the command is read and parsed.
func TestReadingStopsBetweenFiles(t *testing.T) {
	t.Parallel()
	read := 0
	files := map[string]string{"home/ada/a.yaml": "x: 1\n", "home/ada/b.yaml": "x: 2\n", "home/ada/c.yaml": "x: 3\n", "home/ada/t.py": "f(x=4)\n"}
	j := &job.Job{Argv: []string{"python", "t.py", "a.yaml", "b.yaml", "c.yaml"}, Dir: "/home/ada", TrainerDir: "/home/ada", Script: "t.py"}
	v := view{root: rootOf(copyTree(t, "", files)), getenv: env(), job: j, over: func() bool { read++; return read > 2 }}
	r := readAsked(v)
	slices.Sort(r.files)
	if want := []string{"/home/ada/a.yaml", "/home/ada/b.yaml"}; !slices.Equal(r.files, want) {
		t.Errorf("read %v, want %v (%s)", r.files, want, filepath.Join(r.unread...))
	}
}
