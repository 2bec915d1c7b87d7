//go:build race

package sampler

// weekTicks is a day and a half: the race detector makes everything ten times as slow, and
// one day shows it as much as seven.
const weekTicks = 36 * 3600
