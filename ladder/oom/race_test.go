//go:build race

package oom

// raced says that the race detector is on, under which everything takes ten times
// as long.
const raced = true
