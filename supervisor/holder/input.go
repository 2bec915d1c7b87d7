package holder

import (
	"errors"
	"os"
	"sync"
)

// maxTyped is how much may wait for a command that does not read.
const maxTyped = 1 << 20

var errTypedFull = errors.New("the command does not read its terminal: more than 1 MiB waits")

// input writes to the terminal. A command that does not read must not hold up
// the holder, so it has a goroutine and a bounded queue.
type input struct {
	f *os.File

	mu     sync.Mutex
	queue  [][]byte
	queued int
	wake   chan struct{}
}

func newInput(f *os.File) *input {
	return &input{f: f, wake: make(chan struct{}, 1)}
}

func (i *input) add(p []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.queued+len(p) > maxTyped {
		return errTypedFull
	}
	i.queue = append(i.queue, p)
	i.queued += len(p)
	notify(i.wake)
	return nil
}

// run writes until the terminal is closed.
func (i *input) run() {
	for range i.wake {
		for {
			i.mu.Lock()
			if len(i.queue) == 0 {
				i.mu.Unlock()
				break
			}
			p := i.queue[0]
			i.queue = i.queue[1:]
			i.mu.Unlock()
			_, err := i.f.Write(p)
			i.mu.Lock()
			i.queued -= len(p)
			i.mu.Unlock()
			if err != nil {
				return
			}
		}
	}
}
