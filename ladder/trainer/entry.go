package trainer

import (
	"errors"
	"fmt"
	"sync"

	"sparkrun/configs"
)

// entry is a profile of a Set: what a command is recognised by at once, the rest when it
// is asked for. A start needs one of the built-in profiles, and decoding all of them
// takes longer than everything else that it does.
type entry struct {
	head
	file string
	user bool
	// whole decodes and checks the rest, once.
	whole func() (*profile, error)
}

// head are the keys of a profile by which commands are recognised and profiles are
// ordered. They have the meaning that they have in profile.
type head struct {
	Name      string    `yaml:"name"`
	Rank      int       `yaml:"rank"`
	Recognise recognise `yaml:"recognise"`
}

// headKeys are the keys of head.
var headKeys = []string{"name", "rank", "recognise"}

// profile is the whole profile; nil where the built-in file is broken, which the tests
// and Whole find out.
func (e *entry) profile() *profile {
	p, err := e.whole()
	if err != nil {
		return nil
	}
	return p
}

// entryOf is the entry of a profile that is decoded already.
func entryOf(p *profile) *entry {
	return &entry{
		head: head{Name: p.Name, Rank: p.Rank, Recognise: p.Recognise},
		file: p.file, user: p.user,
		whole: func() (*profile, error) { return p, nil },
	}
}

// headOf reads the head of a built-in profile.
func headOf(file string, data []byte) (*entry, error) {
	e := &entry{file: file, whole: sync.OnceValues(func() (*profile, error) {
		p, problems := parseProfile(file, data)
		return p, errors.Join(problems...)
	})}
	if err := configs.Decode(file, configs.Sections(data, headKeys...), &e.head); err != nil {
		return nil, err
	}
	if e.Name == "" {
		return nil, fmt.Errorf("%s: name is missing", file)
	}
	return e, nil
}

// Whole decodes and checks every profile of the set. The error names the file and line of
// everything that is wrong.
func (s *Set) Whole() error {
	errs := make([]error, len(s.profiles))
	var all sync.WaitGroup
	for i, e := range s.profiles {
		all.Go(func() { _, errs[i] = e.whole() })
	}
	all.Wait()
	return errors.Join(errs...)
}
