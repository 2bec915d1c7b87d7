package progress

import "strings"

// sieve tells in one pass over a line whether one of some texts can be in it. A
// training night prints millions of lines that say nothing; looking for each text by
// itself would cost ten times as much.
type sieve struct {
	// heads has, for the low five bits of three letters in a row (which are the same
	// for capitals), one more than the index in tails; 0 is no text.
	heads [1 << 15]uint8
	tails [][]tail
}

// tail is a text and what it is a sign of.
type tail struct {
	text string
	sign sign
}

type sign uint8

const (
	signLine sign = 1 << iota
	signCheckpoint
	signDict
)

// newSieve takes texts of three letters or more in lower case.
func newSieve(lines, checkpoints, dicts []string) *sieve {
	s := new(sieve)
	for _, t := range lines {
		s.add(t, signLine)
	}
	for _, t := range checkpoints {
		s.add(t, signCheckpoint)
	}
	for _, t := range dicts {
		s.add(t, signDict)
	}
	return s
}

func (s *sieve) add(text string, what sign) {
	h := 0
	for i := range 3 {
		h = (h<<5 | int(text[i]&31)) & (len(s.heads) - 1)
	}
	if s.heads[h] == 0 {
		s.tails = append(s.tails, nil) // the check of the table allows no set of more than 200
		s.heads[h] = uint8(len(s.tails))
	}
	i := s.heads[h] - 1
	s.tails[i] = append(s.tails[i], tail{text, what})
}

// passes tells of what there are texts in the line, capitals or not.
func (s *sieve) passes(line string) (found sign) {
	h := 0
	for i := 0; i < len(line); i++ {
		h = (h<<5 | int(line[i]&31)) & (len(s.heads) - 1)
		id := s.heads[h]
		if id == 0 || i < 2 {
			continue
		}
		for _, t := range s.tails[id-1] {
			if from := i - 2; found&t.sign == 0 && from+len(t.text) <= len(line) && same(line[from:from+len(t.text)], t.text) {
				found |= t.sign
			}
		}
	}
	return found
}

// same compares ASCII letters without their case; lower is in lower case.
func same(text, lower string) bool {
	for i := 0; i < len(lower); i++ {
		c := text[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// glance is what a line may hold.
type glance struct {
	bar, dict bool
	words     sign
}

// worth tells a line that may say something from one that cannot.
func (p *Progress) worth(text string) (g glance) {
	if p.set.Bars != nil {
		g.bar = strings.IndexByte(text, '[') >= 0 && strings.IndexByte(text, '/') >= 0 || strings.Contains(text, "━")
	}
	signs := p.sieve.passes(text)
	g.words = signs &^ signDict
	g.dict = signs != 0 && strings.IndexByte(text, '{') >= 0
	return g
}
