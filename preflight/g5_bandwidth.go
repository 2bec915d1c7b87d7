package preflight

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"sparkrun/configs"
)

// Bandwidth is what `--bandwidth` measured, or why it did not.
type Bandwidth struct {
	// Refused says why nothing was measured; Failed what became of a measurement that was
	// tried. Both are empty where there is a figure.
	Refused, Failed string
	// GBps is the measured bandwidth in decimal gigabytes a second, reads and writes
	// together. It is 0 only with Refused or Failed.
	GBps float64
	// Device is the GPU as the command's torch names it, Torch the version of that torch,
	// Interpreter the Python that ran the measurement.
	Device, Torch, Interpreter string
	// Bytes is the size of the tensor that was copied, Copies how often; PeakBytes is what
	// torch held at most, 0 where it did not say.
	Bytes, PeakBytes int64
	Copies           int
}

// BandwidthPlan is how the bandwidth can be measured on this machine with the command's
// own torch, or why it must not be.
type BandwidthPlan struct {
	// Refused says why it must not be measured now; empty where it may.
	Refused string
	// Interpreter is the command's Python, Dir the folder it starts in.
	Interpreter, Dir string
	// Elements is how many float32 the tensor has; 0 leaves it to what the GPU has free,
	// with Most at most. Copies is how often it is copied.
	Elements, Most int64
	Copies         int
	// PeakBytes is what the measurement holds at most.
	PeakBytes int64
	// Limit is when it is given up.
	Limit time.Duration
}

// bandwidthTable is configs/bandwidth.yaml.
type bandwidthTable struct {
	AsOf         string     `yaml:"as_of"`
	SpecGBps     float64    `yaml:"spec_gbps"`
	MeasuredGBps [2]float64 `yaml:"measured_gbps"`
	TolerancePct float64    `yaml:"tolerance_pct"`
	Elements     int64      `yaml:"elements"`
	Copies       int        `yaml:"copies"`
	IdleUtilPct  float64    `yaml:"idle_util_pct"`
	LimitS       int        `yaml:"limit_s"`
}

// loadBandwidthTable reads the built-in table once; a test reads it, so that a binary in
// use has it.
var loadBandwidthTable = sync.OnceValues(func() (bandwidthTable, error) {
	var t bandwidthTable
	if err := configs.BuiltIn("bandwidth.yaml", &t); err != nil {
		return bandwidthTable{}, fmt.Errorf("reading the built-in bandwidth table: %w", err)
	}
	return t, nil
})

// peakCopies is how many tensors there are at most: the source, the copy before and the
// one being made.
const peakCopies = 3

// PlanBandwidth looks whether this machine is idle and has room for a measurement of its
// memory's bandwidth. The measurement takes the whole bandwidth and, where the GPU shares
// the machine's memory, a tenth of that: beside another program it would disturb that,
// might end it, and would measure nothing. It takes at most as long as Run.
func PlanBandwidth(ctx context.Context, in Input) BandwidthPlan {
	t, err := loadBandwidthTable()
	if err != nil {
		return BandwidthPlan{Refused: err.Error()}
	}
	if !rootOf(in.Root).live() {
		return BandwidthPlan{Refused: "a recorded machine cannot be measured"}
	}
	f, seen := gather(ctx, in)
	who, ok := seen["G6"].(contention)
	if !ok {
		who.table.err = errLate
	}
	return planBandwidth(who, f, t)
}

// planBandwidth decides whether the bandwidth may be measured.
func planBandwidth(who contention, f facts, t bandwidthTable) BandwidthPlan {
	p := BandwidthPlan{
		Most: t.Elements, Copies: t.Copies, PeakBytes: peakCopies * 4 * t.Elements,
		Limit: time.Duration(t.LimitS) * time.Second,
	}
	if f.spark() {
		p.Elements = t.Elements
	}
	p.Refused = refuseBandwidth(who, f, t, p.PeakBytes)
	p.Interpreter = f.torch.real
	if p.Interpreter == "" {
		p.Interpreter = f.torch.interp
	}
	if p.Refused == "" && !filepath.IsAbs(p.Interpreter) {
		p.Refused = "the command's Python was not found"
	}
	p.Dir = f.shell("PWD")
	if f.job != nil {
		p.Dir = f.job.Dir
	}
	return p
}

// refuseBandwidth says why the bandwidth must not be measured; empty where it may be.
func refuseBandwidth(who contention, f facts, t bandwidthTable, peak int64) string {
	switch {
	case !f.gpuHere():
		return "no NVIDIA GPU on this machine"
	case !f.gpu.ok():
		return "the GPU cannot be asked whether it is idle: " + f.gpu.why()
	case f.job != nil && f.job.Container != nil:
		return "the command's torch lies inside an image: start sparkrun preflight --bandwidth in there"
	}
	switch f.torch.state {
	case torchNoPython, torchNotAsked:
		return "the command has no Python that could measure"
	case torchAbsent:
		return "no torch in " + f.torch.interp
	}
	if f.torch.noCUDA {
		return f.torch.name() + " of " + f.torch.interp + " is built without CUDA"
	}
	if why := busy(who, f, t); why != "" {
		return why
	}
	if b := f.budget(); f.spark() {
		switch {
		case !b.Known:
			return "it is not known how much memory is available"
		case b.Bytes < peak:
			return fmt.Sprintf("it takes %s for a moment, and %s of %s available are all that may be taken", gbOf(peak), gbOf(b.Bytes), gbOf(b.Available))
		}
	}
	return ""
}

// busy says why a machine is not idle, or may not be; empty where it is.
func busy(who contention, f facts, t bandwidthTable) string {
	if who.table.err != nil {
		return "it is not known who else uses the memory: " + who.table.err.Error()
	}
	servers, err := loadServers()
	if err != nil {
		return err.Error()
	}
	s := who.survey(f, servers)
	for _, h := range s.holders {
		onGPU := (h.gpu > 0 || h.noGPU) && h.kind() != kindDesktop
		if onGPU || !h.small && h.kind() != kindDesktop {
			return "the machine is busy: " + h.short(s)
		}
	}
	util := f.gpu.gpu.UtilPct
	switch {
	case !util.OK && f.gpu.gpu.Processes == nil:
		return "the driver tells neither the GPU's utilisation nor its processes: it may be busy"
	case util.OK && util.V > t.IdleUtilPct:
		return fmt.Sprintf("the machine is busy: the GPU is in use by %g %%", util.V)
	}
	return ""
}

// bandwidthSeen is where the command rests on the data sheet's figure.
type bandwidthSeen struct {
	// spec are the places, each with what stands there.
	spec []string
}

// lookBandwidth looks for that figure in the command line and in the config files and
// scripts that settings are looked for in.
func lookBandwidth(ctx context.Context, v view) bandwidthSeen {
	if _, err := loadBandwidthTable(); err != nil || v.job == nil {
		return bandwidthSeen{}
	}
	var seen bandwidthSeen
	if m := restsOn(strings.Join(v.job.Argv, " ")); m != "" {
		seen.spec = append(seen.spec, "the command line: "+m)
	}
	for _, name := range readAsked(v).files {
		if ctx.Err() != nil {
			break
		}
		b, err := v.own(name)
		if err != nil {
			continue // it was there a moment ago
		}
		n := 0
		for line := range strings.Lines(string(b)) {
			n++
			if m := restsOn(uncommented(line)); m != "" {
				seen.spec = append(seen.spec, fmt.Sprintf("%s:%d: %s", name, n, m))
			}
		}
	}
	return seen
}

// uncommented cuts a comment off a line of YAML, TOML or Python. One inside quotes is cut
// as well, which only makes the look miss something.
func uncommented(line string) string {
	if i := strings.Index(line, "#"); i == 0 || i > 0 && (line[i-1] == ' ' || line[i-1] == '\t') {
		return line[:i]
	}
	return line
}

// Words of a bandwidth, and the figure behind or before them.
const (
	bandwidthWord = `(?:bandwidth|(?:\b|_)bw|gb[/_ ]?(?:per[_ ])?s(?:ec)?|gbps)`
	bandwidthNear = `(?i)` + bandwidthWord + `[^\n\d,;]{0,24}%[1]s(?:[^\w.]|\.\s|$)|\b%[1]s\s*gb(?:/s|ps| per second|_s)\b`
)

var bandwidthForm = sync.OnceValue(func() *regexp.Regexp {
	t, _ := loadBandwidthTable() // the callers have seen its error
	figure := regexp.QuoteMeta(fmt.Sprintf("%g", t.SpecGBps)) + `(?:\.0+)?(?:e9|_?000_?000_?000)?`
	return regexp.MustCompile(fmt.Sprintf(bandwidthNear, figure))
})

// restsOn returns the words in which a text gives the figure of the data sheet as a
// bandwidth; empty where it does not.
func restsOn(text string) string {
	return strings.Trim(bandwidthForm().FindString(text), " \t\r\n,;\"')]}")
}

// judgeBandwidth is G5: what copies reach, against what plans are made with.
func judgeBandwidth(seen bandwidthSeen, f facts) Finding {
	t, err := loadBandwidthTable()
	if err != nil {
		return Finding{Status: Skip, Detail: err.Error()}
	}
	low, high := t.MeasuredGBps[0], t.MeasuredGBps[1]
	found := f.in.Bandwidth.judge(f, t)
	if len(seen.spec) == 0 || !f.spark() {
		return found
	}
	// Any measurement is less of a reason to act than a plan that is off by a third.
	if found.Status != Warn {
		found.Status, found.ByDesign = Warn, false
		found.Detail = fmt.Sprintf("the command reckons with %g GB/s, the data sheet's figure: %g to %g GB/s is what was measured", t.SpecGBps, low, high)
	}
	found.Evidence = append(found.Evidence, seen.spec...)
	fix := fmt.Sprintf("%s: put %g in its place, or the figure of sparkrun preflight --bandwidth; what is reckoned with %g comes out %.1f times too fast", seen.spec[0], low, t.SpecGBps, t.SpecGBps/low)
	found.Fix = strings.TrimPrefix(found.Fix+"\n"+oneLine(fix), "\n")
	return found
}

// judge judges a measurement; b is nil where none was asked for.
func (b *Bandwidth) judge(f facts, t bandwidthTable) Finding {
	low, high := t.MeasuredGBps[0], t.MeasuredGBps[1]
	switch {
	case b == nil:
		return byDesign("intrusive: only with --bandwidth")
	case b.Refused == Interrupted:
		return Finding{Status: Info, Detail: "interrupted before there was a figure"}
	case b.Refused != "":
		return byDesign("not measured: " + b.Refused)
	case b.Failed != "" || !(b.GBps > 0):
		// It could run, and did not: so may the training.
		return Finding{
			Status: Skip, Detail: "the measurement was tried and failed: " + cmp.Or(b.Failed, "it gave no figure"),
			Fix: fmt.Sprintf("sparkrun preflight --torch asks the same torch for the GPU and says more (H19)\na crash or an error of CUDA's is how a torch for another CUDA shows (G1): %s", wheelFix(f)),
		}
	}
	found := Finding{Status: Pass, Evidence: []string{
		fmt.Sprintf("%d copies of %s on %s, torch %s of %s", b.Copies, gbOf(b.Bytes), orUnknown(b.Device), orUnknown(b.Torch), b.Interpreter),
	}}
	if b.PeakBytes > 0 {
		found.Evidence = append(found.Evidence, "held at most "+gbOf(b.PeakBytes))
	}
	if !f.spark() {
		found.Status, found.Detail = Info, fmt.Sprintf("%.1f GB/s", b.GBps)
		return found
	}
	found.Evidence = append(found.Evidence, fmt.Sprintf("seen on others: %g to %g GB/s (%s); data sheet: %g GB/s", low, high, t.AsOf, t.SpecGBps))
	if b.GBps < low*(1-t.TolerancePct/100) {
		found.Status = Warn
		found.Detail = fmt.Sprintf("%.1f GB/s, which is less than the %g to %g GB/s of others", b.GBps, low, high)
		found.Fix = "measure again with nothing else running\nsparkrun preflight --watch 15m tells whether the machine is throttled or wedged"
		return found
	}
	found.Detail = fmt.Sprintf("%.1f GB/s: reckon with %g to %g, not with the %g GB/s of the data sheet", b.GBps, low, high, t.SpecGBps)
	return found
}
