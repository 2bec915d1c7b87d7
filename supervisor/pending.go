package supervisor

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"time"

	"sparkrun/ladder/trainer/progress"
	"sparkrun/supervisor/follow"
)

// pendingMost bounds a line without an end; trainers print no steps in longer ones.
const pendingMost = 16 << 10

// early is a line that was understood before it had an end, and what it told.
type early struct {
	text string
	step progress.Step
	ok   bool
}

// takePending understands the line that the output ends in though nothing ends it yet: the
// last drawing of a progress bar stays so for as long as the training has nothing more to
// say, and may be what tells that its last step is done. It is for an output that rests.
func (r *run) takePending(a *attempt) {
	text := string(follow.Clean(nil, lastLine(a.outputEnd(pendingMost))))
	if text == "" {
		return
	}
	a.stepMu.Lock()
	defer a.stepMu.Unlock()
	if e := a.quiet.early; e != nil && e.text == text {
		return
	}
	t := r.clk.Now()
	s, ok := a.steps.Line(text, t)
	if ok {
		r.onStep(a, s, t)
	}
	a.quiet.early = &early{text, s, ok}
}

// tookPending returns what a line told that was understood before it had its end; a.stepMu
// is held.
func (a *attempt) tookPending(text string) (progress.Step, bool, bool) {
	e := a.quiet.early
	a.quiet.early = nil
	if e == nil || e.text != text {
		return progress.Step{}, false, false
	}
	return e.step, e.ok, true
}

// lastLine is what stands behind the last end of a line. What a carriage return ends stays
// on the screen, and is a line with an end only once more follows it. It is empty where
// the line does not begin in b.
func lastLine(b []byte) []byte {
	b = bytes.TrimRight(b, "\r")
	i := bytes.LastIndexAny(b, "\r\n")
	if i < 0 && len(b) >= pendingMost-2 {
		return nil
	}
	return b[i+1:]
}

// outputEnd returns the last bytes of the output: from the holder, which has them though
// the disk may have refused them, or else from the file.
func (a *attempt) outputEnd(most int64) []byte {
	if a.client != nil && a.offsetsKnown.Load() {
		if _, data, err := a.fromMemory(max(a.printed.Load()-most, 0)); err == nil && len(data) > 0 {
			return data[max(int64(len(data))-most, 0):]
		}
	}
	f, err := os.Open(filepath.Join(a.dir, "output.log"))
	if err != nil {
		return nil
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd) // from the beginning it would be no end
	}
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return b
}

// saidOver is whether the trainer has said that the training is over. Some do a second one
// in the same process.
type saidOver struct {
	over bool
	more int // steps since
}

// stepsAgain is how many steps after that word are another training: one may be a bar
// that was drawn late.
const stepsAgain = 2

func (e *saidOver) step(s progress.Step) {
	switch {
	case s.Finished:
		*e = saidOver{over: true}
	case s.Advance && e.over:
		if e.more++; e.more >= stepsAgain {
			*e = saidOver{}
		}
	}
}

// restsFor says whether a silence is long enough to look at a line without an end.
func restsFor(still, limit time.Duration) bool { return still > 0 && still >= limit/10 }
