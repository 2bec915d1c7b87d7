package main

import (
	"strconv"

	"golang.org/x/term"
)

// colours tells whether what is printed may be coloured.
func colours(e environment) bool {
	return colourful(term.IsTerminal(int(e.stdout.Fd())), e.getenv)
}

func colourful(terminal bool, getenv func(string) string) bool {
	return terminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// textWidth is how long lines for a person may be: what the terminal has, and what a
// page has where there is none.
func textWidth(e environment) int {
	if w, _, err := term.GetSize(int(e.stdout.Fd())); err == nil && w >= 40 {
		return w
	}
	return 100
}

// planWidth is how wide a plan may be: a terminal's width however narrow, since a chart
// that wraps cannot be read.
func planWidth(e environment) int {
	if w, _, err := term.GetSize(int(e.stdout.Fd())); err == nil && w > 0 {
		return max(w, 20)
	}
	if n, err := strconv.Atoi(e.getenv("COLUMNS")); err == nil && n >= 20 && n <= 1000 {
		return n
	}
	return 100
}
