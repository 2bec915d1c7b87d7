// Package shellread owns the parsing of shell text that users and their files hold, and the
// writing of a command as such text. The parser descends once for each bracket, and a stack
// that overflows ends the process, which nothing can recover from.
package shellread

import (
	"errors"
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

const (
	// MaxSize bounds a text in bytes. Scripts that people write have some tens of KiB.
	MaxSize = 128 << 10
	// MaxDepth bounds the brackets that are open at once. People's scripts have less than
	// ten.
	MaxDepth = 500
)

// ErrDeep is the error of a text with more than MaxDepth brackets open at once.
var ErrDeep = errors.New("its brackets are nested too deep to be a script of a person")

// Parse parses a text. What is larger than MaxSize or deeper than MaxDepth is refused.
func Parse(text string, dialect syntax.LangVariant) (*syntax.File, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("it is larger than %d KiB", MaxSize>>10)
	}
	if deep(text) {
		return nil, ErrDeep
	}
	return syntax.NewParser(syntax.Variant(dialect)).Parse(strings.NewReader(text), "")
}

// deep counts brackets whatever they mean: quotes make it say too much, never too little
// by more than what closes one for each that opens.
func deep(text string) bool {
	open := 0
	for i := range len(text) {
		switch text[i] {
		case '(', '{':
			if open++; open > MaxDepth {
				return true
			}
		case ')', '}':
			open = max(0, open-1)
		}
	}
	return false
}

// Line writes a command so that it can be pasted into a shell: what was read, the other way.
// Words that mean themselves stay as they are.
func Line(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = a
		// In front a word may be an assignment or belong to the shell.
		if i > 0 && a != "" && strings.Trim(a, plain) == "" {
			continue
		}
		if q, err := syntax.Quote(a, syntax.LangBash); err == nil { // a NUL byte cannot be in an argv
			words[i] = q
		}
	}
	return strings.Join(words, " ")
}

// plain are the characters that mean themselves to a shell, wherever in a word they stand.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"
