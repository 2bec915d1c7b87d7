package holder

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
)

// request answers one request. It runs in the goroutine of its client.
func (h *hold) request(p *peer, r request) reply {
	rep, err := h.answer(p, r)
	if err != nil {
		rep.Error = err.Error()
	}
	return rep
}

func (h *hold) answer(p *peer, r request) (reply, error) {
	switch r.Req {
	case reqStdin:
		return reply{}, h.typeIn(p, r.B64)
	case reqResize:
		if r.Rows == 0 || r.Cols == 0 {
			return reply{}, fmt.Errorf("a terminal of %dx%d is too small", r.Rows, r.Cols)
		}
		return reply{}, h.src.resize(r.Rows, r.Cols)
	case reqSignal:
		sig, err := parseSignal(r.Name)
		if err != nil {
			return reply{}, err
		}
		return reply{}, h.do(func() error { return h.signal(sig, r.To) })
	case reqStop:
		return reply{}, h.stopOnRequest(r)
	case reqFloors:
		return reply{}, h.floors(r.Floors)
	case reqContainer:
		return reply{}, h.addContainer(r.Endpoint, r.Container)
	case reqPause:
		return reply{}, h.do(func() error { return h.pause(r.LimitS) })
	case reqContinue:
		return reply{}, h.do(func() error {
			if h.paused { // else there is nothing of ours to undo
				h.wake()
			}
			return nil
		})
	case reqRead:
		buf := make([]byte, maxRead)
		off, n := h.ring.read(buf, max(r.From, 0))
		return reply{Off: off, B64: buf[:n]}, nil
	case reqStatus:
		st, err := h.status()
		return reply{Status: &st}, err
	case reqGoodbye:
		return reply{}, nil
	}
	return reply{}, fmt.Errorf("this holder knows no request %q", r.Req)
}

func (h *hold) typeIn(p *peer, b []byte) error {
	if h.input == nil {
		return errNoTerminal
	}
	if !h.srv.mayType(p) {
		return fmt.Errorf("a newer client types on this terminal")
	}
	return h.input.add(b)
}

// inSeconds is a time given as a number of seconds. A float beyond int64 would turn into
// any number.
func inSeconds(s float64) time.Duration {
	return time.Duration(min(s, float64(math.MaxInt64/4)/float64(time.Second)) * float64(time.Second))
}

func (h *hold) stopOnRequest(r request) error {
	name := r.Signal
	if name == "" {
		name = "TERM"
	}
	sig, err := parseSignal(name)
	if err != nil {
		return err
	}
	grace := h.spec.Grace
	if r.GraceS != nil && *r.GraceS >= 0 {
		grace = inSeconds(*r.GraceS)
	}
	return h.do(func() error {
		if h.stop.phase.over() {
			return errOver
		}
		h.requestStop(sig, grace)
		return nil
	})
}

func (h *hold) status() (Status, error) {
	tree := proctree.Descendants(os.Getpid())
	st := Status{
		RunID: h.spec.RunID, Attempt: h.spec.Attempt,
		HolderPID: unix.Getpid(), ChildPID: h.child.pid, ChildStart: h.child.start,
		Tree: tree[:min(len(tree), maxTree)], TreeTotal: len(tree),
		SlowestSync: h.disk.slowestSync(), PTY: h.src.isPTY,
	}
	if st.Tree == nil {
		st.Tree = []proctree.Proc{}
	}
	st.Offset, st.Written = h.ring.offsets()
	if refusal, _ := h.disk.state(); refusal.errno != 0 {
		st.DiskError = refusal.why
	}
	st.ISIG, st.ICANON, st.Echo = h.src.lflags()
	return st, h.do(func() error {
		if h.paused {
			st.Awake = awake()
			st.Stopped = slices.Collect(maps.Keys(h.still.stopped))
		}
		st.Paused, st.Stopping, st.Exited = h.paused, h.stop.phase.String(), h.stop.childGone
		return nil
	})
}
