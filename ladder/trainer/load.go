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
	"sparkrun/internal/treefs"
	"sparkrun/ladder/trainer/place"
)

// Set is the loaded trainer profiles.
type Set struct {
	// profiles are in order of trust, the user's own first.
	profiles []*entry
	places   *place.Table
	// root is the machine that commands are looked at on; empty for this one.
	root treefs.Root
}

// Under returns the same profiles for commands of another machine, whose recorded tree is
// the folder root: interpreters, environments and installed packages are looked up in it,
// and the command's own files (script, configs) too where it has them, else on this
// machine. Nothing of the Set but Understand and what asks about a Job is made for that.
func (s *Set) Under(root string) *Set {
	c := *s
	c.root = treefs.Of(root)
	return &c
}

// Load reads the built-in profiles and then the *.yaml files of userDirs, where
// a profile of the same name replaces the earlier one. A folder that does not
// exist is no error. Errors name the file and line of everything that is wrong with the
// user's; of the built-in ones only what a command is recognised by is read here, and
// Whole reads the rest too.
func Load(userDirs []string) (*Set, error) {
	builtIn, err := fs.Glob(configs.FS, "trainers/[a-z]*.yaml")
	if err != nil {
		return nil, fmt.Errorf("listing the built-in profiles: %w", err)
	}
	// Side by side: this is the most of what a start takes, and a training waits for it.
	s := &Set{}
	parsed := make([]*entry, len(builtIn))
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
			parsed[i], errs[i] = headOf("configs/"+name, data)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, e := range parsed {
		if err := s.put(e); err != nil {
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
func (s *Set) Add(file string, data []byte) error {
	p, problems := parseProfile(file, data)
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	p.user = true
	return s.put(entryOf(p))
}

// put takes a profile in.
func (s *Set) put(e *entry) error {
	for i, old := range s.profiles {
		if old.Name != e.Name {
			continue
		}
		if !e.user {
			return fmt.Errorf("%s: the name %s is that of %s too", e.file, e.Name, old.file)
		}
		s.profiles = append(s.profiles[:i:i], s.profiles[i+1:]...)
		break
	}
	s.profiles = append(s.profiles, e)
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
			return p.profile()
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
