//go:build race

package throttle

// raceSlack is how many times slower tests may be: this is the race detector's share.
const raceSlack = 12
