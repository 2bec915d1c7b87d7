package follow

// Progress counts what the terminal has taken so far, to see whether it still takes
// anything, and says whether it has been given what it has not taken yet.
func (s *Screen) Progress() (written int64, waiting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written, s.pending > 0
}

// Abandon gives the terminal up, as a failed write does: for a hang-up that is
// known before anything has been written.
func (s *Screen) Abandon() {
	s.losing.Do(func() { close(s.lost) })
}
