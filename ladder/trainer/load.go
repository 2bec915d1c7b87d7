package trainer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"sparkrun/configs"
	"sparkrun/ladder/trainer/place"
)

// Set is the loaded trainer profiles.
type Set struct {
	// profiles are in order of trust, the user's own first.
	profiles []*profile
	places   *place.Table
}

// Load reads the built-in profiles and then the *.yaml files of userDirs, where
// a profile of the same name replaces the earlier one. A folder that does not
// exist is no error. Errors name the file and line of everything that is wrong.
func Load(userDirs []string) (*Set, error) {
	builtIn, err := fs.Glob(configs.FS, "trainers/[a-z]*.yaml")
	if err != nil {
		return nil, fmt.Errorf("listing the built-in profiles: %w", err)
	}
	// Side by side: this is the most of what a start takes, and a training waits for it.
	s := &Set{}
	parsed := make([]*profile, len(builtIn))
	errs := make([]error, len(builtIn)+1)
	var all sync.WaitGroup
	all.Go(func() {
		var err error
		if s.places, err = place.Load(); err != nil {
			errs[len(builtIn)] = fmt.Errorf("the table of what may stand in front of a trainer: %w", err)
		}
	})
	for i, name := range builtIn {
		all.Go(func() {
			data, err := configs.FS.ReadFile(name)
			if err != nil {
				errs[i] = fmt.Errorf("reading the built-in profile %s: %w", name, err)
				return
			}
			var problems []error
			parsed[i], problems = parseProfile("configs/"+name, data)
			errs[i] = errors.Join(problems...)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, p := range parsed {
		if err := s.put(p, false); err != nil {
			return nil, err
		}
	}
	for _, dir := range userDirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading trainer profiles: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() || strings.HasPrefix(e.Name(), ".") || !strings.HasSuffix(e.Name(), ".yaml") {
				continue
			}
			path := filepath.Join(dir, e.Name())
			data, err := configs.ReadFile(path)
			if err != nil {
				return nil, fmt.Errorf("reading a trainer profile: %w", err)
			}
			if err := s.Add(path, data); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// Add puts a profile of the user's into the set: one written beside the job, for
// instance. It replaces one of the same name. file is what its errors name.
func (s *Set) Add(file string, data []byte) error { return s.add(file, data, true) }

func (s *Set) add(file string, data []byte, user bool) error {
	p, problems := parseProfile(file, data)
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	return s.put(p, user)
}

// put takes a profile in.
func (s *Set) put(p *profile, user bool) error {
	p.user = user
	for i, old := range s.profiles {
		if old.Name != p.Name {
			continue
		}
		if !user {
			return fmt.Errorf("%s: the name %s is that of %s too", p.file, p.Name, old.file)
		}
		s.profiles = append(s.profiles[:i:i], s.profiles[i+1:]...)
		break
	}
	s.profiles = append(s.profiles, p)
	sort.Slice(s.profiles, func(i, j int) bool {
		a, b := s.profiles[i], s.profiles[j]
		switch {
		case a.user != b.user:
			return a.user
		case a.Rank != b.Rank:
			return a.Rank > b.Rank
		}
		return a.Name < b.Name
	})
	return nil
}

// Check returns everything that is wrong with the profile in a file, each with
// FILE:LINE; nothing if it can be used.
func Check(path string) []error {
	data, err := configs.ReadFile(path)
	if err != nil {
		return []error{fmt.Errorf("reading a trainer profile: %w", err)}
	}
	_, problems := parseProfile(path, data)
	return problems
}

// Names returns the names of the profiles, sorted.
func (s *Set) Names() []string {
	names := make([]string, 0, len(s.profiles))
	for _, p := range s.profiles {
		names = append(names, p.Name)
	}
	sort.Strings(names)
	return names
}

func (s *Set) profile(name string) *profile {
	for _, p := range s.profiles {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
