package follow

// Written counts what the terminal has taken so far, to see whether it still
// takes anything.
func (s *Screen) Written() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written
}

// Abandon gives the terminal up, as a failed write does: for a hang-up that is
// known before anything has been written.
func (s *Screen) Abandon() {
	s.losing.Do(func() { close(s.lost) })
}
