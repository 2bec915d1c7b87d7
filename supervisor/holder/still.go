package holder

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/proctree"
)

// pauseWithin is how long a tree may take to stand still, and pauseLooks how many looks it
// has all the same: one that forks all the time needs some, and on a busy machine they take
// their time. The holder has other work meanwhile. Only a test changes them.
var (
	pauseWithin = time.Second
	pauseLooks  = 15
)

// mostNamed is how many processes that run on are named.
const mostNamed = 3

// procID names a process for good: its pid and its start time.
type procID [2]uint64

func idOf(p proctree.Proc) procID { return procID{uint64(p.PID), p.Start} }

// still is a pause of the tree; the zero value is none.
type still struct {
	// stopped got SIGSTOP from us; asleep were stopped already, by the command itself or by
	// a shell's job control, and are not ours to wake.
	stopped, asleep map[procID]bool
}

func newStill() still {
	return still{stopped: map[procID]bool{}, asleep: map[procID]bool{}}
}

// stop stops every descendant, and fails unless they all stand still. It looks again and
// again, since one that was not stopped yet may have forked. Where one of them cannot be
// stopped, nothing is. urgent says that there is something to do that cannot wait.
func (s still) stop(urgent func() bool) error {
	var deaf []string
	for _, p := range proctree.Descendants(os.Getpid()) {
		if p.State == 'T' || ended(p) {
			continue
		}
		if err := p.Signal(0); err != nil && !errors.Is(err, unix.ESRCH) {
			deaf = append(deaf, runsOn(p, err))
		}
	}
	if len(deaf) > 0 {
		return notStill(deaf)
	}
	deadline := clock.Boottime() + pauseWithin
	for looks := 1; ; looks++ {
		var moving []string
		failed := false
		for _, p := range proctree.Descendants(os.Getpid()) {
			why, err := s.stopOne(p)
			if why != "" {
				moving = append(moving, why)
			}
			failed = failed || err
		}
		if len(moving) == 0 {
			return nil
		}
		if failed || urgent() || looks >= pauseLooks && clock.Boottime() >= deadline {
			return notStill(moving)
		}
		time.Sleep(time.Millisecond)
	}
}

// stopOne stops one process, and names it while it runs on; failed says that it always
// will. One that waits in the kernel (D) is sent the signal and not waited for: it stops
// when it comes out.
func (s still) stopOne(p proctree.Proc) (moves string, failed bool) {
	id := idOf(p)
	switch {
	case p.State == 'T':
		if !s.stopped[id] {
			s.asleep[id] = true
		}
		return "", false
	case p.State == 't', ended(p), s.stopped[id] && !runs(p):
		return "", false
	}
	err := p.Signal(syscall.SIGSTOP)
	switch {
	case errors.Is(err, unix.ESRCH):
		return "", false
	case err != nil:
		return runsOn(p, err), true
	}
	s.stopped[id] = true
	delete(s.asleep, id)
	if p.State == 'D' {
		return "", false
	}
	return runsOn(p, nil), false
}

// awake are the descendants that run, in a tree that is paused. A thread that is about to
// stop looks like one that runs until it has had its turn, so it gets a moment.
func awake() []proctree.Proc {
	var list []proctree.Proc
	for look := range 20 {
		if look > 0 {
			time.Sleep(5 * time.Millisecond)
		}
		list = list[:0]
		for _, p := range proctree.Descendants(os.Getpid()) {
			if len(list) < maxTree && runs(p) {
				list = append(list, p)
			}
		}
		if len(list) == 0 {
			break
		}
	}
	return list
}

// runs says whether a process runs, or may at any time. Of one that waits in the kernel
// (D) it cannot be told; it does nothing meanwhile. One that was told to stop and has had
// no turn on a processor since then counts as stopped.
func runs(p proctree.Proc) bool {
	switch p.State {
	case 'T', 't', 'D', 'X', 'x':
		return false
	case 'Z': // its first thread alone may have ended
		return threadRuns(p.PID)
	}
	if stopPending(p.PID) {
		return false
	}
	// Its state and that signal were not read at the same time.
	now, ok := proctree.Read(p.PID)
	return ok && now.Start == p.Start && !strings.ContainsRune("TtDZXx", rune(now.State))
}

// ended says that nothing of a process runs ever again.
func ended(p proctree.Proc) bool {
	return p.State == 'X' || p.State == 'x' || p.State == 'Z' && len(threads(p.PID, "ZXx")) == 0
}

func threadRuns(pid int) bool { return len(threads(pid, "ZXxTtD")) > 0 }

// threads are the states of a process's threads, those in without left out.
func threads(pid int, without string) (states []byte) {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	for _, f := range files {
		b, err := os.ReadFile(f)
		i := bytes.LastIndexByte(b, ')')
		if err == nil && i >= 0 && i+2 < len(b) && strings.IndexByte(without, b[i+2]) < 0 {
			states = append(states, b[i+2])
		}
	}
	return states
}

// stopPending says whether SIGSTOP waits to be handled.
func stopPending(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	for line := range bytes.Lines(b) {
		name, mask, ok := bytes.Cut(line, []byte(":"))
		if !ok || string(name) != "SigPnd" && string(name) != "ShdPnd" {
			continue
		}
		if v, err := strconv.ParseUint(string(bytes.TrimSpace(mask)), 16, 64); err == nil && v&(1<<(uint(unix.SIGSTOP)-1)) != 0 {
			return true
		}
	}
	return false
}

// runsOn names a process that runs on, and says why.
func runsOn(p proctree.Proc, err error) string {
	why := "it does not stop"
	switch {
	case errors.Is(err, unix.EPERM):
		why = "it may not be stopped"
		var st unix.Stat_t
		if unix.Stat("/proc/"+strconv.Itoa(p.PID), &st) == nil && int(st.Uid) != os.Geteuid() {
			why = fmt.Sprintf("it belongs to uid %d, and uid %d may not stop it", st.Uid, os.Geteuid())
		}
	case err != nil:
		why = err.Error()
	}
	return fmt.Sprintf("%s (pid %d) runs on: %s", p.Comm, p.PID, why)
}

func notStill(moving []string) error {
	text := strings.Join(moving[:min(len(moving), mostNamed)], "; ")
	if more := len(moving) - mostNamed; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return errors.New(text)
}
