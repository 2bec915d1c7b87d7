package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"sparkrun/internal/lazyre"
)

// pep440 is a version of a Python package, in the order of PEP 440.
type pep440 struct {
	epoch   uint64
	release []uint64
	// pre is the letter of a pre-release (a, b, rc), "" for none.
	pre  string
	preN uint64
	// post and dev are nil for none.
	post, dev *uint64
	// local are the parts behind +; NGC and PyTorch wheels have some.
	local []string
}

var pep440Form = lazyre.New(`^v?(?:(\d+)!)?(\d+(?:\.\d+)*)` +
	`(?:[-_.]?(alpha|beta|preview|pre|rc|a|b|c)[-_.]?(\d*))?` +
	`(?:-(\d+)|[-_.]?(post|rev|r)[-_.]?(\d*))?` +
	`(?:[-_.]?(dev)[-_.]?(\d*))?` +
	`(?:\+([a-z0-9]+(?:[-_.][a-z0-9]+)*))?$`)

// preLetter has the short form of the words for a pre-release.
var preLetter = map[string]string{"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}

// parsePEP440 reads a version; ok is false for what is none.
func parsePEP440(text string) (v pep440, ok bool) {
	m := pep440Form.FindStringSubmatch(strings.ToLower(strings.TrimSpace(text)))
	if m == nil {
		return pep440{}, false
	}
	ok = true
	number := func(s string) uint64 {
		if s == "" {
			return 0 // 1.0a is 1.0a0
		}
		n, err := strconv.ParseUint(s, 10, 64)
		ok = ok && err == nil
		return n
	}
	v.epoch = number(m[1])
	for part := range strings.SplitSeq(m[2], ".") {
		v.release = append(v.release, number(part))
	}
	// 1.0 and 1.0.0 are one version.
	for len(v.release) > 1 && v.release[len(v.release)-1] == 0 {
		v.release = v.release[:len(v.release)-1]
	}
	if m[3] != "" {
		v.pre, v.preN = m[3], number(m[4])
		if short := preLetter[v.pre]; short != "" {
			v.pre = short
		}
	}
	if m[5] != "" || m[6] != "" {
		n := number(m[5] + m[7])
		v.post = &n
	}
	if m[8] != "" {
		n := number(m[9])
		v.dev = &n
	}
	if m[10] != "" {
		v.local = strings.FieldsFunc(m[10], func(c rune) bool { return strings.ContainsRune("-_.", c) })
	}
	return v, ok
}

// final tells that it is neither a pre-release nor a nightly build.
func (v pep440) final() bool { return v.pre == "" && v.dev == nil }

// compare orders as pip does.
func (v pep440) compare(w pep440) int {
	return cmp.Or(
		cmp.Compare(v.epoch, w.epoch),
		slices.Compare(v.release, w.release),
		cmp.Compare(v.stage(), w.stage()),
		cmp.Compare(v.preN, w.preN),
		compareOptional(v.post, w.post, -1),
		compareOptional(v.dev, w.dev, 1),
		compareLocal(v.local, w.local),
	)
}

// stage ranks what stands behind the release: 1.0.dev1 < 1.0a1 < 1.0b1 < 1.0rc1 < 1.0.
func (v pep440) stage() int {
	switch {
	case v.pre == "" && v.post == nil && v.dev != nil:
		return 0
	case v.pre == "a":
		return 1
	case v.pre == "b":
		return 2
	case v.pre == "rc":
		return 3
	}
	return 4
}

// compareOptional orders numbers that may be absent; absent is the place of such a one
// against any number.
func compareOptional(a, b *uint64, absent int) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return absent
	case b == nil:
		return -absent
	}
	return cmp.Compare(*a, *b)
}

// compareLocal: none is the lowest, numbers are above words.
func compareLocal(a, b []string) int {
	return slices.CompareFunc(a, b, func(x, y string) int {
		n, errX := strconv.ParseUint(x, 10, 64)
		m, errY := strconv.ParseUint(y, 10, 64)
		switch {
		case errX == nil && errY == nil:
			return cmp.Compare(n, m)
		case errX == nil:
			return 1
		case errY == nil:
			return -1
		}
		return cmp.Compare(x, y)
	})
}

// sameVersion tells that an installed version is the wanted one. A local tag counts only
// where the wanted version has one: 0.49.2+cu130 is 0.49.2.
func sameVersion(have, want string) bool {
	h, ok1 := parsePEP440(have)
	w, ok2 := parsePEP440(want)
	if !ok1 || !ok2 {
		return have == want
	}
	if w.local == nil {
		h.local = nil
	}
	return h.compare(w) == 0
}

// versionRange is a set of versions: comparisons joined by commas, all of which must
// hold. Unlike in pip's requirements < and > keep to the plain order, as code that
// compares versions does: 0.16.0a0 is in <0.16.0.
type versionRange struct {
	text  string
	terms []versionTerm
}

type versionTerm struct {
	op string
	v  pep440
}

var rangeTerm = lazyre.New(`^(<=|>=|==|!=|<|>)\s*(\S+)$`)

func parseRange(text string) (versionRange, error) {
	r := versionRange{text: text}
	for part := range strings.SplitSeq(text, ",") {
		m := rangeTerm.FindStringSubmatch(strings.TrimSpace(part))
		if m == nil {
			return versionRange{}, fmt.Errorf("%q is no range of versions such as %q", text, ">=1.2,<2")
		}
		v, ok := parsePEP440(m[2])
		if !ok {
			return versionRange{}, fmt.Errorf("%q in the range %q is no version", m[2], text)
		}
		r.terms = append(r.terms, versionTerm{m[1], v})
	}
	return r, nil
}

// UnmarshalYAML reads a range; its errors name the line.
func (r *versionRange) UnmarshalYAML(node *yaml.Node) error {
	got, err := parseRange(node.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	*r = got
	return nil
}

// contains tells whether a version is in the range; what is no version is in none.
func (r versionRange) contains(text string) bool {
	v, ok := parsePEP440(text)
	if !ok || len(r.terms) == 0 {
		return false
	}
	for _, t := range r.terms {
		have := v
		if (t.op == "==" || t.op == "!=" || t.op == "<=") && t.v.local == nil {
			have.local = nil
		}
		c := have.compare(t.v)
		if !map[string]bool{"<": c < 0, "<=": c <= 0, ">": c > 0, ">=": c >= 0, "==": c == 0, "!=": c != 0}[t.op] {
			return false
		}
	}
	return true
}
