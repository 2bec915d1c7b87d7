package main

import (
	"strings"
	"unicode"
)

// clean keeps the control characters of other people's text (a name, a path, a line of a
// settings file) off the terminal. Lines and tabs stay.
func clean(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\n', c == '\t', unicode.IsPrint(c):
			return c
		case unicode.IsSpace(c) && c != '\r' && c != '\v' && c != '\f' && c != '\u2028' && c != '\u2029' && c != '\u0085':
			return ' '
		}
		return '?'
	}, text)
}
