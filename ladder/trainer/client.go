package trainer

import "sparkrun/ladder/trainer/place"

// Client returns the container client's own command in a command, as typed or rewritten,
// that is started in dir with env; nil where no container client is seen.
func (s *Set) Client(argv []string, dir string, env []string) *place.Client {
	return s.places.Client(argv, dir, place.Environ(env))
}
