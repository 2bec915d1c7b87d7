package holder

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
)

const (
	// wakerArg is the subcommand of the waker.
	wakerArg = "__wake"
	// wakerName is what the waker is called: not sparkrun, since a "pkill -9 sparkrun" is
	// the likeliest way in which all others end at once.
	wakerName = "pause-end"
	// wakerMore is how long after the supervisor's end, or after the longest pause, the
	// holder has for waking the tree itself.
	wakerMore = aloneLimit + 5*time.Second
	// wakerEvery is how often the holder is looked at on a kernel without pidfds.
	wakerEvery = 500 * time.Millisecond
)

// wakeOrder is what the waker is told.
type wakeOrder struct {
	// Holder is the pid and the start time of the holder.
	Holder procID `json:"holder"`
	// Stopped are the processes to wake.
	Stopped []procID `json:"stopped"`
	// Limit is how long the pause may last by the holder's account.
	Limit time.Duration `json:"limit_ns"`
}

// The words that the waker is told after its order.
const (
	wordOver = 'o'
	wordWake = 'w'
)

// Waker is a process that lives as long as a pause and wakes the tree where nobody else
// is left who would: when the holder dies, and when the supervisor and the holder's own
// word for that case stay away. It is no descendant of the holder, whose tree it would be in.
type Waker struct {
	end  *os.File
	proc *os.Process
	once sync.Once
}

// StartWaker starts one for the pause that st, a holder's status, shows. limit is what
// PauseFor was given. The error says why the pause has none.
func StartWaker(st Status, limit time.Duration) (*Waker, error) {
	p, ok := proctree.Read(st.HolderPID)
	if !ok || len(st.Stopped) == 0 {
		return nil, errors.New("there is nothing to wake")
	}
	order, err := json.Marshal(wakeOrder{Holder: idOf(p), Stopped: st.Stopped, Limit: limit})
	if err != nil {
		return nil, fmt.Errorf("encoding what to wake: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("a pipe to the waker: %w", err)
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return nil, err
	}
	defer null.Close()
	// The binary is named by /proc, since its file may have been replaced meanwhile.
	proc, err := os.StartProcess("/proc/self/exe", []string{wakerName, wakerArg}, &os.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=1", "GOMEMLIMIT=16MiB"}, Files: []*os.File{r, null, null},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("starting the waker: %w", err)
	}
	// One that does not read must not hold us up.
	err = w.SetWriteDeadline(time.Now().Add(replyTimeout))
	if err == nil {
		_, err = w.Write(append(order, '\n'))
	}
	wk := &Waker{end: w, proc: proc}
	if err != nil {
		wk.Release()
		return nil, fmt.Errorf("telling the waker: %w", err)
	}
	return wk, nil
}

// Release lets the waker go: the pause is over.
func (w *Waker) Release() { w.say(wordOver) }

// Wake lets it wake the tree, and go: the holder does not.
func (w *Waker) Wake() { w.say(wordWake) }

// say gives it its last word: the first that is said, by whatever goroutine.
func (w *Waker) say(word byte) {
	w.once.Do(func() {
		_ = w.end.SetWriteDeadline(time.Now().Add(replyTimeout)) // that of the order is long over
		_, _ = w.end.Write([]byte{word})                         // one that is gone needs no word
		w.end.Close()
		go func() { _, _ = w.proc.Wait() }()
	})
}

// WakeMain is the waker ("sparkrun __wake"). The exit status is 0 where the pause was over
// without it.
func WakeMain(_ []string) int {
	_ = os.WriteFile("/proc/self/comm", []byte(wakerName), 0)
	// It ends by itself soon after everybody else; what ends a session is not meant for it.
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE, unix.SIGTSTP)
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	var order wakeOrder
	if err != nil || json.Unmarshal(line, &order) != nil {
		return 125 // nobody told it what to wake
	}
	words, alone := make(chan byte, 1), make(chan struct{})
	go func() {
		if word, err := in.ReadByte(); err == nil {
			words <- word
			return
		}
		close(alone)
	}()
	gone := make(chan struct{})
	go func() {
		awaitDeath(order.Holder)
		close(gone)
	}()
	limit := time.After(order.Limit + wakerMore)
	var lonely <-chan time.Time
	for {
		select {
		case word := <-words:
			if word == wordOver {
				return 0
			}
		case <-alone:
			alone, lonely = nil, time.After(wakerMore)
			continue
		case <-gone:
		case <-lonely:
		case <-limit:
		}
		for _, id := range order.Stopped {
			_ = (proctree.Proc{PID: int(id[0]), Start: id[1]}).Signal(unix.SIGCONT) // one that has ended needs none
		}
		return 1
	}
}

// awaitDeath returns when a process is gone.
func awaitDeath(id procID) {
	pid := int(id[0])
	fd, err := unix.PidfdOpen(pid, 0)
	is := func() bool {
		now, ok := proctree.Read(pid)
		return ok && now.Start == id[1] && now.State != 'Z' && now.State != 'X'
	}
	if err == nil {
		defer unix.Close(fd)
	}
	for is() {
		if err != nil {
			time.Sleep(wakerEvery)
			continue
		}
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, perr := unix.Poll(poll, -1); perr == nil {
			return
		}
	}
}
