package oom

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// The sizes of what Read takes at a time. A line longer than maxPiece is fed in
// pieces, cut at a carriage return where there is one: what redraws a bar without
// ever ending the line is then looked at now and then.
const (
	readBlock = 256 << 10
	maxPiece  = maxScan
)

// Read scans a whole log, in bounded memory whatever it holds, and finds the
// advances that no profile reads. What was read before an error is returned with
// it.
func (t *Table) Read(r io.Reader) (Output, error) {
	s := t.NewScanner()
	err := s.readAll(r, t.NewSteps())
	return s.Output(), err
}

func (s *Scanner) readAll(r io.Reader, steps *Steps) error {
	buf := make([]byte, readBlock+maxPiece)
	n := 0 // bytes in buf that are not fed yet
	offset, line := int64(0), 1
	feed := func(text string) {
		s.feed(Line{N: line, Offset: offset, Text: text}, steps)
	}
	for empty := 0; ; {
		m, err := r.Read(buf[n:min(len(buf), n+readBlock)])
		if m < 0 || m > readBlock {
			return errors.New("reading the log: the reader returned an impossible count")
		}
		// One string for a whole block: its lines share it, and the scanner copies
		// what it keeps.
		block := string(buf[:n+m])
		for {
			end := strings.IndexByte(block, '\n')
			switch {
			case end >= 0 && end <= maxPiece:
				feed(block[:end])
				block, offset = block[end+1:], offset+int64(end)+1
				line++
				continue
			case len(block) > maxPiece:
				cut := strings.LastIndexByte(block[:maxPiece], '\r') + 1
				if cut == 0 {
					cut = maxPiece
				}
				feed(block[:cut])
				block, offset = block[cut:], offset+int64(cut)
				continue
			}
			break
		}
		n = copy(buf, block)
		switch {
		case err == io.EOF:
			if n > 0 {
				feed(block)
			}
			return nil
		case err != nil:
			if n > 0 {
				feed(block)
			}
			return fmt.Errorf("reading the log at byte %d: %w", offset, err)
		case m == 0:
			if empty++; empty > 100 {
				return fmt.Errorf("reading the log at byte %d: %w", offset, io.ErrNoProgress)
			}
		default:
			empty = 0
		}
	}
}
