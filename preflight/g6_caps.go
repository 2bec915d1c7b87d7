package preflight

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// What the figure of a cap means; see configs/servers.yaml.
const (
	capFraction     = "fraction"
	capFreeFraction = "free-fraction"
	capLeftBytes    = "left-bytes"
	capLeftGiB      = "left-gib"
	capFixed        = "fixed"
)

// caps are what a process says of the memory that it will take.
type caps struct {
	// is is the kind of cap; empty where none is set.
	is string
	// value is its figure, how the setting in the user's words.
	value float64
	how   string
	// byDefault is the fraction that the program takes without a cap; 0 is not known.
	byDefault float64
	// config is a file in which a cap may stand.
	config string
	// shows are settings worth telling.
	shows []string
	// envUnread tells that a cap may stand in the environment, which could not be read.
	envUnread bool
}

// capsOf reads the caps of a program from its command line and environment; p may be nil.
func (t servers) capsOf(p *program, argv []string, env map[string]string) caps {
	var c caps
	if p != nil {
		c.byDefault = p.Default
		for _, s := range p.Caps {
			name, value, ok := lastFlag(argv, s.Flags)
			if !ok {
				name, value, ok = variable(env, s.Env)
			}
			if !ok || s.Is == capFixed && grows(argv, p.Open) {
				continue
			}
			if c.set(s.Is, name, value) {
				break
			}
		}
		for _, f := range p.Shows.Flags {
			if name, value, ok := lastFlag(argv, []string{f}); ok {
				c.shows = append(c.shows, strings.TrimSpace(name+" "+shortValue(value)))
			}
		}
		for _, e := range p.Shows.Env {
			if value, ok := env[e]; ok {
				c.shows = append(c.shows, e+"="+shortValue(value))
			}
		}
		if _, file, ok := lastFlag(argv, p.Config); ok {
			c.config = file
		}
	}
	// JAX takes three quarters of the GPU's memory at its start unless told otherwise.
	if value, ok := env["XLA_PYTHON_CLIENT_MEM_FRACTION"]; ok && c.is == "" {
		c.set(capFraction, "XLA_PYTHON_CLIENT_MEM_FRACTION", value)
	}
	return c
}

// set takes a cap in; what is no sensible figure is none.
func (c *caps) set(is, name, value string) bool {
	if is == capFixed {
		c.is, c.how = is, strings.TrimSpace(name+" "+shortValue(value))
		return true
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	fraction := is == capFraction || is == capFreeFraction
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || n <= 0 || fraction && n > 1 {
		c.shows = append(c.shows, name+" "+shortValue(value)+" (not understood)")
		return false
	}
	c.is, c.value, c.how = is, n, name+" "+shortValue(value)
	return true
}

// grows tells whether one of the flags is there that make a program take more later.
func grows(argv, flags []string) bool {
	_, _, ok := lastFlag(argv, flags)
	return ok
}

// lastFlag returns the last of some flags in a command line and its value: the last one
// holds. Dashes and underscores are the same to Python's parsers.
func lastFlag(argv, flags []string) (name, value string, ok bool) {
	for i, w := range argv {
		if i == 0 || !strings.HasPrefix(w, "-") {
			continue
		}
		flag, v, joined := strings.Cut(w, "=")
		long := strings.HasPrefix(flag, "--")
		plain := flag
		if long {
			plain = strings.ReplaceAll(flag, "_", "-")
		}
		if !slices.Contains(flags, plain) {
			continue
		}
		if !joined {
			v = ""
			if i+1 < len(argv) && (!strings.HasPrefix(argv[i+1], "-") || isNumber(argv[i+1])) {
				v = argv[i+1]
			}
		}
		name, value, ok = flag, v, true
	}
	return name, value, ok
}

func isNumber(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil
}

func variable(env map[string]string, names []string) (name, value string, ok bool) {
	for _, n := range names {
		if v, there := env[n]; there && v != "" {
			return n, v, true
		}
	}
	return "", "", false
}

// shortValue keeps a value that is told short.
func shortValue(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return s
}

// reserves is how much the program may come to hold at most where the GPU has total; all
// in bytes. The cap is one of GPU memory, and what is resident comes on top. ok is false
// where nothing caps it. A cap of the cache alone counts as one of everything: what it is
// a share of is not known any more, and the weights are there already.
func (c caps) reserves(total, resident, gpu int64) (bytes int64, ok bool) {
	switch c.is {
	case capFraction, capFreeFraction:
		return resident + max(gpu, int64(c.value*float64(total))), true
	case capLeftBytes:
		return resident + max(gpu, total-clampBytes(c.value)), true
	case capLeftGiB:
		return resident + max(gpu, total-clampBytes(c.value*(1<<30))), true
	case capFixed:
		return resident + gpu, true
	}
	return 0, false
}

// share is the part of all memory that a program may come to take by its cap, 0 to 1; ok
// is false where nothing caps it or that cannot be told.
func (c caps) share(total, resident, gpu int64) (share float64, ok bool) {
	if c.is == capFraction || c.is == capFreeFraction {
		return c.value, true
	}
	bytes, ok := c.reserves(total, resident, gpu)
	if !ok || total <= 0 {
		return 0, false
	}
	return float64(bytes) / float64(total), true
}

func clampBytes(n float64) int64 { return int64(math.Min(n, 1<<60)) }

// words says the cap for a person; total is all memory in bytes, 0 where it is not known.
func (c caps) words() string {
	switch {
	case c.is == capFixed:
		return "takes what it needs at its start (" + c.how + ")"
	case c.is == capFreeFraction:
		return fmt.Sprintf("capped at %g of what was free, for its cache (%s)", c.value, c.how)
	case c.is == capFraction:
		return fmt.Sprintf("capped at %g of the memory (%s)", c.value, c.how)
	case c.is != "":
		return "capped (" + c.how + ")"
	case c.config != "":
		return "cap not told: it may stand in " + c.config
	case c.envUnread:
		return "no cap in its command line; its environment can be read by root alone"
	case c.byDefault > 0:
		return fmt.Sprintf("no cap set: it takes up to %g of the memory by itself", c.byDefault)
	}
	return "no cap"
}
