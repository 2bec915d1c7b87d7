//go:build !race

package throttle

// raceSlack is how many times slower tests may be without the race detector.
const raceSlack = 1
