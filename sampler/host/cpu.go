package host

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/sample"
)

// cpuShare bounds what the clocks cost: some kernels ask each processor for its
// counters, which wakes it. They are read so rarely that the time it takes is at
// most this part of the whole, but once in cpuRare at least.
const (
	cpuShare = 0.001
	cpuRare  = 10 * time.Second
)

// clocks reads the clocks of all processors: one file per cpufreq policy, each
// weighted by how many processors it drives, or /proc/cpuinfo where there is no
// cpufreq.
type clocks struct {
	policies []policy
	in       []*sensor
	// there tells that at least one has ever answered.
	there bool
	// took are the lengths of the last passes; the shortest is what a pass
	// costs when nothing else interferes.
	took [3]time.Duration
	n    int
	next time.Time
}

type policy struct {
	in *sensor
	// cpus is how many processors have this clock.
	cpus int
}

// find looks for the files.
func (c *clocks) find(s *Sensors) {
	c.policies, c.in, c.there = nil, nil, false
	for _, dir := range s.folders("sys/devices/system/cpu/cpufreq", "policy") {
		cpus := len(strings.Fields(s.word(filepath.Join(dir, "affected_cpus"))))
		in := s.sensor(filepath.Join(dir, "scaling_cur_freq"), "CPU clock")
		// A policy without processors is one whose processors are off.
		if cpus > 0 {
			c.policies = append(c.policies, policy{in: in, cpus: cpus})
		}
	}
	if len(c.policies) == 0 {
		f := &textFile{path: filepath.Join(s.root, "proc/cpuinfo")}
		in := s.know("cpuinfo (CPU clock)", &sensor{ask: f.meanKHz, end: func() {}})
		c.policies = []policy{{in: in, cpus: 1}}
	}
	for _, p := range c.policies {
		c.in = append(c.in, p.in)
	}
	// On arm64 /proc/cpuinfo has no clocks, which only a reading tells.
	s.pool.read(c.in)
	for _, p := range c.policies {
		p.in.good = p.in.good || p.in.ok
		c.there = c.there || p.in.good || s.pool.awaited(p.in)
	}
}

// due reports whether there are clocks that may be read.
func (c *clocks) due(now time.Time) bool { return c.there && !now.Before(c.next) }

// read returns the mean clock in MHz; unknown while one does not answer, since
// the clocks of fast and of slow processors differ twofold.
func (c *clocks) read(p *pool, now time.Time) sample.Num {
	p.read(c.in)
	c.took[c.n%len(c.took)] = time.Since(now)
	c.n++
	least := slices.Min(c.took[:min(c.n, len(c.took))])
	c.next = now.Add(min(time.Duration(float64(least)/cpuShare), cpuRare) - schedulingSlack)
	return c.mean()
}

// schedulingSlack keeps a reading that is due at the next tick from being put
// off by a tick that comes a little early.
const schedulingSlack = 50 * time.Millisecond

func (c *clocks) mean() sample.Num {
	var kHz, n float64
	for _, p := range c.policies {
		if !p.in.ok || p.in.value <= 0 {
			return sample.Num{}
		}
		kHz += float64(p.in.value) * float64(p.cpus)
		n += float64(p.cpus)
	}
	if n == 0 {
		return sample.Num{}
	}
	return sample.Known(kHz / n / 1000)
}

// textFile is a file of any length that is read as a whole.
type textFile struct {
	path string
	buf  []byte
}

// meanKHz returns the mean of the clocks in /proc/cpuinfo; there are none on
// arm64.
func (f *textFile) meanKHz() (int64, bool) {
	text, err := f.read()
	if err != nil {
		return 0, false
	}
	var sum float64
	n := 0
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte("\n"))
		if !bytes.HasPrefix(line, []byte("cpu MHz")) {
			continue
		}
		_, value, _ := bytes.Cut(line, []byte(":"))
		mhz, err := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64)
		if err != nil || mhz <= 0 {
			return 0, false
		}
		sum += mhz
		n++
	}
	if n == 0 {
		return 0, false
	}
	return int64(sum / float64(n) * 1000), true
}

func (f *textFile) read() ([]byte, error) {
	fd, err := open(f.path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	f.buf = f.buf[:0]
	for {
		f.buf = slices.Grow(f.buf, 8192)
		n, err := unix.Read(fd, f.buf[len(f.buf):cap(f.buf)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return f.buf, nil
		}
		f.buf = f.buf[:len(f.buf)+n]
	}
}
