//go:build !race

package sampler

// weekTicks is a week of seconds.
const weekTicks = 7 * 24 * 3600
