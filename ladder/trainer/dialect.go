package trainer

import "sparkrun/ladder/trainer/place"

// versionRange is the releases of a package that a command line can be for: from
// since on, and before until. An empty end is open.
type versionRange struct{ since, until string }

// narrow leaves of a range what lies in another as well.
func (r versionRange) narrow(since, until string) versionRange {
	if since != "" && (r.since == "" || place.Older(r.since, since)) {
		r.since = since
	}
	if until != "" && (r.until == "" || place.Older(until, r.until)) {
		r.until = until
	}
	return r
}

// meets says whether a release can lie in the range and in another.
func (r versionRange) meets(since, until string) bool {
	r = r.narrow(since, until)
	return r.since == "" || r.until == "" || place.Older(r.since, r.until)
}

// dialect is what the spellings in the command and its config files tell of the
// version of the trainer, where that is not known: a release that knows one new
// name knows the others.
func (c *command) dialect() versionRange {
	var r versionRange
	for _, name := range sortedKeys(c.prof.Knobs) {
		spec := c.prof.Knobs[name]
		for _, n := range spec.Names {
			if since, until := spec.Since[n], spec.Until[n]; (since != "" || until != "") && c.says(n) {
				if next := r.narrow(since, until); next.meets("", "") {
					r = next
				}
			}
		}
	}
	return r
}

// says tells whether the name stands in the command or in a config file of it.
func (c *command) says(name string) bool {
	for i := range c.found {
		if c.found[i].name == normalise(name) {
			return true
		}
	}
	for _, d := range c.docs {
		if len(d.all(name)) > 0 {
			return true
		}
	}
	return false
}
