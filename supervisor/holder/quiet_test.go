package holder

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestALineWakesTheHolderFewTimes: what a holder costs is how often it wakes, which a busy
// machine does not change. The lines come in two pieces, as those of Python do with
// PYTHONUNBUFFERED.
func TestALineWakesTheHolderFewTimes(t *testing.T) {
	t.Parallel()
	const lines = 12
	script := `echo up; sleep 2; i=0; while [ $i -lt ` + fmt.Sprint(lines) + ` ]; do printf 'step %d' $i; printf '\n'; i=$((i+1)); sleep 0.5; done; echo done; sleep 60`
	a := start(t, baseSpec(shortDir(t), "sh", "-c", script), nil)
	c := a.dial(RoleSupervisor)
	go func() {
		for range c.Pushes() {
		}
	}()
	a.says("step 0")
	before, began := switches(t, a.h.PID()), time.Now()
	a.says("done")
	took := time.Since(began).Seconds()
	// Measured: 45 to 55 a second; with a timer of the runtime's for each wait, and two
	// pushes a piece, 160.
	if rate := float64(switches(t, a.h.PID())-before) / took; rate > 100 {
		t.Errorf("the holder's threads went to sleep %.0f times a second", rate)
	}
	if err := c.Stop("KILL", 0); err != nil {
		t.Fatal(err)
	}
	a.end()
}

// switches is how often the threads of a process have gone to sleep.
func switches(t *testing.T, pid int) (n int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/task", pid)
	tasks, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(dir + "/" + task.Name() + "/status")
		if err != nil {
			continue // a thread that has ended
		}
		var v int
		_, rest, _ := strings.Cut(string(b), "\nvoluntary_ctxt_switches:")
		if _, err := fmt.Sscan(rest, &v); err != nil {
			t.Fatal(err)
		}
		n += v
	}
	return n
}

// TestPiecesOfALine: only a command whose lines have lately come in two pieces is waited
// for in the middle of one.
func TestPiecesOfALine(t *testing.T) {
	t.Parallel()
	r, err := newRing()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	put := func(s string) {
		now = now.Add(time.Millisecond)
		r.noteLine(s[len(s)-1], now)
	}
	waits := func() bool { return r.restOfLine(time.Hour) > 0 }
	put("a prompt: ")
	if waits() {
		t.Error("a prompt was waited for, though nothing says that more will come")
	}
	put("\n")
	put("step 1")
	if !waits() {
		t.Error("the rest of a line came at once, and is not expected the next time")
	}
	if r.restOfLine(-time.Hour) > 0 {
		t.Error("a time that is over is not over")
	}
	put("\n")
	if waits() {
		t.Error("the end of a line is waited for after it came")
	}
	put("step 2")
	now = now.Add(time.Second)
	put("\n")
	put("step 3")
	if waits() {
		t.Error("a line is waited for although the last one's end came late")
	}
	put("\n")
	put("\r 10%")
	put("\r 20%") // no end of a line
	if waits() {
		t.Error("a progress bar is waited for")
	}
}
