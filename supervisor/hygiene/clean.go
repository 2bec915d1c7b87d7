package hygiene

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// cleaner is one Clean under way.
type cleaner struct {
	o   Options
	tab *table
	out []Finding
	// lease is the function of that name; a field, since every file system on
	// which memory can be tested knows leases.
	lease func(fd int) leased
}

func clean(ctx context.Context, o Options) []Finding {
	if o.Root == "" {
		o.Root = "/"
	}
	if o.Grace <= 0 {
		o.Grace = defaultGrace
	}
	if o.End.IsZero() {
		o.End = time.Now()
	}
	c := &cleaner{o: o, tab: newTable(o.Root, o.Entry), lease: lease}
	// Processes first: they have the memory mapped and the ports open.
	ended := c.processes(ctx)
	if ended && !o.DryRun {
		// What they made until now was the attempt's too.
		c.o.End = time.Now()
	}
	c.strangers()
	if ctx.Err() != nil {
		return c.out
	}
	if ended {
		c.tab.look()
	}
	c.shm(ctx)
	c.sysv()
	return c.out
}

func (c *cleaner) tell(f Finding) { c.out = append(c.out, f) }

// protected says whether a process must never be ended.
func (c *cleaner) protected(pid int) bool {
	return pid <= 1 || pid == os.Getpid() || c.tab.above[pid] || c.o.Protect != nil && c.o.Protect(pid)
}

// shown makes a name fit for a terminal and a log line.
func shown(s string) string {
	clean := utf8.ValidString(s)
	for _, r := range s {
		clean = clean && unicode.IsPrint(r)
	}
	if clean {
		return s
	}
	return strings.Trim(strconv.Quote(s), `"`)
}
