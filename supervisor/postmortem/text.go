package postmortem

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sparkrun/ladder/oom"
	"sparkrun/supervisor/follow"
)

const (
	// shown is how many pieces of evidence and of advice a person gets.
	shown = 3
	// quoteLines is how many lines on the screen one quote may take.
	quoteLines = 2
	// labelWidth is the width of the first column.
	labelWidth = 10
)

// reasons says in words what a reason means; a reason that is not here is shown
// as it is.
var reasons = map[string]string{
	"success":         "it succeeded",
	"user":            "stopped by the user",
	"limit":           "stopped at the time limit",
	"hang":            "nothing moved any more",
	"power-wedge":     "the GPU was in the low-power wedge",
	"slowdown":        "its steps stayed slow",
	"divergence":      "the loss had diverged",
	"terminated":      "ended by a signal from outside",
	"killed":          "killed by somebody else",
	"error":           "an error of another kind",
	"import":          "versions or libraries do not fit",
	"driver":          "the NVIDIA driver does not answer or does not fit",
	"no-gpu":          "no GPU is seen",
	"settings":        "settings that do not go together",
	"disk":            "the disk is full or refuses",
	"segfault":        "a segmentation fault",
	"abort":           "the program aborted itself",
	"bus-error":       "a bus error",
	"cuda-error":      "a CUDA error of another kind",
	"gpu-lost":        "the GPU was lost",
	"triton-smem":     "a kernel needs more shared memory than the chip has",
	"map-count":       "too many memory mappings",
	"distributed":     "another process of the job failed",
	"garbage-size":    "a size that is not real",
	"bad-size":        "a size that is not real",
	"not-started":     "the command was never started",
	"no-sign":         "nothing speaks for memory",
	"needs-samples":   "only memory samples or kernel records can tell",
	"no-exit-status":  "only the exit status can tell",
	"two-causes":      "two causes, and which came first is not clear",
	"cause-cut-off":   "the cause itself is not in the log",
	"cause-not-shown": "a launcher reports a death and nobody says what it was",
	"memory-was-low":  "memory was low, but the error does not say so",
	"container-only":  "only the container engine speaks of memory",
	"machine-lost":    "the machine went down under it",
	"power-loss":      "the machine lost power, was reset or crashed",
	"freeze":          "the machine froze",
	"reboot":          "the machine was rebooted",
	"lost":            "nobody saw the end",
	"swallowed":       "it ended with status 0, beside signs that memory had run out",
}

// phases says where a phase is in a sentence.
var phases = map[oom.Phase]string{
	oom.PhaseLoad:      "while loading",
	oom.PhaseTrain:     "in training",
	oom.PhaseEval:      "in evaluation",
	oom.PhaseSave:      "while saving",
	oom.PhaseOptimizer: "while the optimizer made its state",
}

// InWords is a verdict in one line: "out of memory (cuda-allocator), high
// confidence, in training at step 340".
func InWords(v oom.Verdict) string {
	var b strings.Builder
	why := reasons[v.Reason]
	if why == "" {
		why = v.Reason
	}
	switch v.Answer {
	case oom.OOM:
		b.WriteString("out of memory")
		if v.Kind != "" {
			b.WriteString(" (" + v.Kind + ")")
		}
		if v.Reason != "" {
			b.WriteString(", " + why)
		}
	case oom.NotOOM:
		b.WriteString("not out of memory")
		if v.Reason != "" {
			b.WriteString(": " + why)
			if why != v.Reason {
				b.WriteString(" (" + v.Reason + ")")
			}
		}
	default:
		b.WriteString("unsure")
		if v.Kind != "" {
			b.WriteString(" whether it was out of memory (" + v.Kind + ")")
		}
		if v.Reason != "" {
			b.WriteString(": " + why)
		}
	}
	if v.Reason == "success" && v.Answer == oom.NotOOM {
		return b.String()
	}
	fmt.Fprintf(&b, ", %s confidence", v.Confidence)
	where := phases[v.Phase]
	if v.Step != nil {
		if where != "" {
			where += " "
		}
		where += fmt.Sprintf("at step %d", *v.Step)
	}
	if where != "" {
		b.WriteString(", " + where)
	}
	return b.String()
}

// colours of the answers, as SGR parameters.
var colours = map[oom.Answer]string{oom.OOM: "1;31", oom.NotOOM: "1", oom.Unsure: "1;33"}

// page writes labelled paragraphs.
type page struct {
	b      strings.Builder
	width  int
	colour bool
}

// paint colours a text where that is asked for.
func (p *page) paint(code, text string) string {
	if !p.colour || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// put writes a paragraph behind its label; most, if set, cuts it to that many
// lines.
func (p *page) put(label, code, text string, most int) {
	room := p.width - labelWidth
	switch {
	case most == 1:
		text = cutTo(text, room)
	case most > 1:
		text = cutTo(text, room*most-room/8) // words do not fill a line
	}
	lines := wrap(text, room)
	if most > 0 && len(lines) > most {
		lines = lines[:most]
		lines[most-1] = cutTo(lines[most-1], room-3) + "..."
	}
	for i, l := range lines {
		if i > 0 {
			label = ""
		}
		fmt.Fprintf(&p.b, "%-*s%s\n", labelWidth, label, p.paint(code, l))
	}
}

// Person returns an answer for somebody at a screen of that width.
func (a Answer) Person(width int, colour bool) string {
	p := &page{width: min(max(width, 40), 100), colour: colour}
	v := a.Verdict
	if r := a.Run; r != nil {
		p.run(r)
	}
	p.put("verdict", colours[v.Answer], InWords(v), 0)
	for i, it := range strongest(v) {
		label := ""
		if i == 0 {
			label = "because"
		}
		p.put(label, "", quote(it, a.Verdict.Answer), quoteLines)
	}
	if s := sizesLine(v.Sizes, p.width-labelWidth); s != "" {
		p.put("sizes", "", s, 0)
	}
	for i, s := range v.Advice[:min(len(v.Advice), shown)] {
		label := ""
		if i == 0 {
			label = "to do"
		}
		p.put(label, "", printable(s), 0)
	}
	if s := a.missing(); s != "" {
		p.put("not known", "", s, 0)
	}
	return p.b.String()
}

// run writes which run it is, and its attempts.
func (p *page) run(r *RunInfo) {
	state := string(r.State)
	if r.Going {
		state += ", still going"
	}
	p.put("run", "", fmt.Sprintf("%s (%s)", r.ID, state), 0)
	for _, l := range r.Attempts {
		text := fmt.Sprintf("attempt %d: %s", l.N, l.End)
		if l.N == r.Attempt && len(r.Attempts) > 1 {
			text = fmt.Sprintf("attempt %d (this one): %s", l.N, l.End)
		}
		if l.Verdict != "" {
			text += ", " + l.Verdict
		}
		if len(l.Rungs) > 0 {
			text += ", after " + strings.Join(l.Rungs, " + ")
		}
		p.put("", "", printable(text), 1)
	}
	switch {
	case r.Going && r.open:
		p.put("", "", "It is still running: this is what its output says so far.", 0)
	case !r.Judged && r.Attempt > 0 && !r.State.Final():
		p.put("", "", "It has no verdict of its own (sparkrun was killed, or the machine went down): this one is made from its files.", 0)
	}
}

// strongest are the pieces of evidence worth showing; they come in order of weight.
func strongest(v oom.Verdict) []oom.Item { return v.Evidence[:min(len(v.Evidence), shown)] }

// quote is a piece of evidence with where it stands.
func quote(it oom.Item, answer oom.Answer) string {
	text := printable(it.Text)
	if it.Weight == oom.Against && answer != oom.NotOOM {
		text += " (speaks against out of memory)"
	}
	switch {
	case it.Line > 0:
		return fmt.Sprintf("line %d: %s", it.Line, text)
	case !it.T.IsZero():
		return fmt.Sprintf("%s at %s: %s", it.Source, it.T.Format("15:04:05"), text)
	}
	return it.Source + ": " + text
}

// sizeNames are the sizes in the order they are told; others follow by name.
var sizeNames = []string{"requested", "free", "total", "allocated", "reserved", "reserved_unallocated", "other_processes"}

// sizesLine is the sizes, as many as one line takes.
func sizesLine(sizes map[string]int64, room int) string {
	names := slices.DeleteFunc(slices.Clone(sizeNames), func(n string) bool { _, ok := sizes[n]; return !ok })
	for _, n := range slices.Sorted(maps.Keys(sizes)) {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	line := ""
	for _, n := range names {
		part := strings.ReplaceAll(n, "_", " ") + " " + size(sizes[n])
		if line != "" {
			part = ", " + part
		}
		if len(line)+len(part) > room {
			break
		}
		line += part
	}
	return line
}

// size writes bytes in the unit that fits.
func size(n int64) string {
	for _, u := range []struct {
		name  string
		bytes float64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if f := float64(n) / u.bytes; f >= 1 {
			return strconv.FormatFloat(f, 'f', 2, 64) + " " + u.name
		}
	}
	return strconv.FormatInt(n, 10) + " bytes"
}

// missing names what could have settled an unsure verdict, and how to give it.
func (a Answer) missing() string {
	if a.Verdict.Answer != oom.Unsure && a.Verdict.Confidence != oom.Low {
		return ""
	}
	var parts []string
	if a.log {
		parts = append(parts, "the exit status (--exit N)")
	}
	for _, u := range a.Verdict.Unreadable {
		u = strings.TrimSuffix(printable(u), ": not given")
		switch {
		case a.Run != nil:
		case strings.HasPrefix(u, "kernel log"):
			u += " (--system FILE)"
		case strings.HasPrefix(u, "memory samples"):
			u += " (--telemetry FILE)"
		case strings.HasPrefix(u, "cgroup"):
			continue // nobody has that afterwards
		}
		parts = append(parts, u)
	}
	return strings.Join(parts, ", ")
}

// printable leaves out what could do something to a terminal.
func printable(s string) string {
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(follow.Clean(nil, []byte(strings.TrimSpace(s)))), "?")), " ")
}

// cutTo cuts a text to n characters.
func cutTo(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	return strings.TrimRight(string(r[:max(n-3, 0)]), " ") + "..."
}

// wrap breaks a text at spaces into lines of at most width characters; a word that
// is longer is broken too.
func wrap(s string, width int) []string {
	var lines []string
	line, n := "", 0
	for _, w := range strings.Fields(s) {
		k := utf8.RuneCountInString(w)
		if n > 0 && n+1+k > width {
			lines = append(lines, line)
			line, n = "", 0
		}
		for k > width {
			r := []rune(w)
			lines = append(lines, string(r[:width]))
			w, k = string(r[width:]), k-width
		}
		if n > 0 {
			line += " "
			n++
		}
		line += w
		n += k
	}
	if n > 0 || len(lines) == 0 {
		lines = append(lines, line)
	}
	return lines
}

// JSON returns an answer in the form of verdict.json, with kind and reason always
// present and the run, if there is one, under "run".
func (a Answer) JSON() ([]byte, error) {
	v := a.Verdict
	if v.Evidence == nil {
		v.Evidence = []oom.Item{}
	}
	if v.Sizes == nil {
		v.Sizes = map[string]int64{}
	}
	if v.Advice == nil {
		v.Advice = []string{}
	}
	if v.Unreadable == nil {
		v.Unreadable = []string{}
	}
	out := struct {
		oom.Verdict
		Kind   string   `json:"kind"`
		Reason string   `json:"reason"`
		Notes  []string `json:"notes,omitempty"`
		Run    *RunInfo `json:"run,omitempty"`
	}{v, v.Kind, v.Reason, a.Notes, a.Run}
	b, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the verdict as JSON: %w", err)
	}
	return append(b, '\n'), nil
}
