package oom

import (
	"math"
	"strconv"
	"strings"
)

// parseSize reads a number with its unit as it stands in messages: "12.00 MiB",
// "3.125GB", "6.48G", "0 bytes", "4770354232". K, M, G... are binary here whatever
// they are called: torch, TensorFlow and llama.cpp all count in 1024. ok is false
// for anything else, and for sizes that no 64-bit number of bytes can hold.
func parseSize(s string) (bytes int64, ok bool) {
	s = strings.TrimSpace(s)
	end := 0
	for end < len(s) && (s[end] >= '0' && s[end] <= '9' || s[end] == '.') {
		end++
	}
	v, err := strconv.ParseFloat(s[:end], 64)
	if err != nil {
		return 0, false
	}
	unit := strings.TrimSpace(s[end:])
	switch unit {
	case "", "B", "b", "byte", "bytes":
	default:
		i := strings.IndexByte("KMGTPE", unit[0]&^0x20)
		if i < 0 || !strings.Contains("|B|iB|", "|"+unit[1:]+"|") && unit[1:] != "" {
			return 0, false
		}
		v *= math.Pow(1024, float64(i+1))
	}
	if v < 0 || v >= math.MaxInt64 || math.IsNaN(v) {
		return 0, false
	}
	return int64(v), true
}

// sizes reads the numbers of a message. A name that is already known is kept:
// the first line is the message itself.
// Processes that mine names are left out of the sums.
func (t *Table) sizes(into map[string]int64, text string, mine func(pid int) bool) {
	found := make(map[string]int64)
	for i := range t.Sizes {
		p := &t.Sizes[i]
		if _, known := into[p.Name]; known {
			continue
		}
		if _, known := found[p.Name]; known && !p.Add {
			continue
		}
		for _, m := range p.Re.FindAllStringSubmatch(text, 64) {
			n, ok := parseSize(m[p.number] + p.Unit)
			if !ok {
				continue
			}
			if p.pid > 0 {
				if pid, err := strconv.Atoi(m[p.pid]); err == nil && mine != nil && mine(pid) {
					continue
				}
			}
			if sum := found[p.Name] + n; sum >= n {
				found[p.Name] = sum
			}
			if !p.Add {
				break
			}
		}
	}
	for name, n := range found {
		into[name] = n
	}
}

// conditions are the words that advice entries may use in `when`.
var conditions = map[string]func(map[string]int64) bool{
	"fragmentation": fragmented,
	"larger-than-total": func(s map[string]int64) bool {
		return s["total"] > 0 && s["requested"] > s["total"]
	},
}

// absurd tells that a request is a bug and not a need: no setting reaches it.
func absurd(s map[string]int64, hostTotal int64) bool {
	const pib = 1 << 50
	total := s["total"]
	if total == 0 {
		total = hostTotal
	}
	r := s["requested"]
	return r >= pib || (total > 0 && r/100 > total)
}

// advice returns what to do, most useful first.
func (t *Table) advice(v *Verdict, word string) []string {
	out := []string{}
	for i := range t.Advice {
		if a := &t.Advice[i]; a.applies(v, word) {
			out = append(out, a.Text)
		}
	}
	return out
}

// lever returns the first thing that helps.
func (t *Table) lever(v *Verdict, word string) string {
	for i := range t.Levers {
		if l := &t.Levers[i]; l.applies(v, word) {
			return l.Lever
		}
	}
	return "none"
}
