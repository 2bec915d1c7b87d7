package engine

import "sparkrun/supervisor/engine/killer"

// Killer is a kill that has been got ready; see package killer, which the
// holder uses by itself.
type Killer = killer.Killer

// OpenKiller gets a kill ready: killer.Open.
func OpenKiller(endpoint, what string) (*Killer, error) { return killer.Open(endpoint, what) }
