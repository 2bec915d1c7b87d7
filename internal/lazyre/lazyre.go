// Package lazyre has regular expressions that are compiled when they are first used. There
// are hundreds of them, and each of the processes of a run would compile all at its start,
// which takes longer than the rest of the start; most of them are never asked.
package lazyre

import (
	"regexp"
	"sync"
)

// RE is a regular expression of our own sources. Its methods are those of regexp.Regexp.
type RE struct {
	text string
	once sync.Once
	re   *regexp.Regexp
}

// all are those that were made so far, for the test that compiles them.
var all []*RE

// New makes a regular expression for a package's variable. One that cannot be compiled is
// found by the tests (see Check), and else panics when it is used.
func New(text string) *RE {
	r := &RE{text: text}
	all = append(all, r)
	return r
}

// Check compiles everything that packages have made, and panics at one that is wrong. It
// returns how many there are.
func Check() int {
	for _, r := range all {
		r.Regexp()
	}
	return len(all)
}

// Regexp returns it compiled.
func (r *RE) Regexp() *regexp.Regexp {
	r.once.Do(func() { r.re = regexp.MustCompile(r.text) })
	return r.re
}

// String is the text it was made of.
func (r *RE) String() string { return r.text }

// MatchString is that of regexp.Regexp.
func (r *RE) MatchString(s string) bool { return r.Regexp().MatchString(s) }

// Match is that of regexp.Regexp.
func (r *RE) Match(b []byte) bool { return r.Regexp().Match(b) }

// FindString is that of regexp.Regexp.
func (r *RE) FindString(s string) string { return r.Regexp().FindString(s) }

// FindStringIndex is that of regexp.Regexp.
func (r *RE) FindStringIndex(s string) []int { return r.Regexp().FindStringIndex(s) }

// FindStringSubmatch is that of regexp.Regexp.
func (r *RE) FindStringSubmatch(s string) []string { return r.Regexp().FindStringSubmatch(s) }

// FindStringSubmatchIndex is that of regexp.Regexp.
func (r *RE) FindStringSubmatchIndex(s string) []int { return r.Regexp().FindStringSubmatchIndex(s) }

// FindAllString is that of regexp.Regexp.
func (r *RE) FindAllString(s string, n int) []string { return r.Regexp().FindAllString(s, n) }

// FindAllStringIndex is that of regexp.Regexp.
func (r *RE) FindAllStringIndex(s string, n int) [][]int { return r.Regexp().FindAllStringIndex(s, n) }

// FindAllStringSubmatch is that of regexp.Regexp.
func (r *RE) FindAllStringSubmatch(s string, n int) [][]string {
	return r.Regexp().FindAllStringSubmatch(s, n)
}

// FindAllStringSubmatchIndex is that of regexp.Regexp.
func (r *RE) FindAllStringSubmatchIndex(s string, n int) [][]int {
	return r.Regexp().FindAllStringSubmatchIndex(s, n)
}

// ReplaceAllString is that of regexp.Regexp.
func (r *RE) ReplaceAllString(s, to string) string { return r.Regexp().ReplaceAllString(s, to) }

// ReplaceAllStringFunc is that of regexp.Regexp.
func (r *RE) ReplaceAllStringFunc(s string, f func(string) string) string {
	return r.Regexp().ReplaceAllStringFunc(s, f)
}

// Find is that of regexp.Regexp.
func (r *RE) Find(b []byte) []byte { return r.Regexp().Find(b) }

// FindIndex is that of regexp.Regexp.
func (r *RE) FindIndex(b []byte) []int { return r.Regexp().FindIndex(b) }

// FindSubmatch is that of regexp.Regexp.
func (r *RE) FindSubmatch(b []byte) [][]byte { return r.Regexp().FindSubmatch(b) }

// FindAll is that of regexp.Regexp.
func (r *RE) FindAll(b []byte, n int) [][]byte { return r.Regexp().FindAll(b, n) }

// FindAllSubmatch is that of regexp.Regexp.
func (r *RE) FindAllSubmatch(b []byte, n int) [][][]byte { return r.Regexp().FindAllSubmatch(b, n) }

// ReplaceAll is that of regexp.Regexp.
func (r *RE) ReplaceAll(b, to []byte) []byte { return r.Regexp().ReplaceAll(b, to) }

// ReplaceAllFunc is that of regexp.Regexp.
func (r *RE) ReplaceAllFunc(b []byte, f func([]byte) []byte) []byte {
	return r.Regexp().ReplaceAllFunc(b, f)
}

// Split is that of regexp.Regexp.
func (r *RE) Split(s string, n int) []string { return r.Regexp().Split(s, n) }

// SubexpNames is that of regexp.Regexp.
func (r *RE) SubexpNames() []string { return r.Regexp().SubexpNames() }

// SubexpIndex is that of regexp.Regexp.
func (r *RE) SubexpIndex(name string) int { return r.Regexp().SubexpIndex(name) }
