package oom

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/lazyre"
)

// A log that somebody brings along comes without a process tree. The records beside it
// are those of a whole machine, and most are about somebody else.

// tie says what binds a record to the job of such a log.
type tie int

const (
	// untied: nothing does.
	untied tie = iota
	// tiedByName: the victim's name is one that the log speaks of, or the
	// interpreter's.
	tiedByName
	// tiedByID: the pid, unit, job or container stands in the log.
	tiedByID
)

// foreign tells that nobody knows the job's processes or cgroups.
func (ev *Evidence) foreign() bool { return ev.Tree == nil && len(ev.CgroupPaths) == 0 }

// decided tells that text and status leave nothing for a record to decide that
// nothing ties to the job.
func (d *decision) decided() bool {
	sig := signalOf(d.ev.Exit)
	switch sig {
	case "SIGINT", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE":
		return true // the kernel's killer and the daemons send others
	}
	switch d.text.state {
	case fatal:
		return true
	case other:
		// An error of no clear meaning stands before many a kill.
		return d.text.conf == High || sig != "SIGKILL" || d.text.reason == "user" || d.text.reason == "terminated"
	}
	return false
}

// killedSigns tells that the status or the text says that something was ended by
// SIGKILL.
func (d *decision) killedSigns() bool {
	return signalOf(d.ev.Exit) == "SIGKILL" || d.text.state == weak && d.text.weak != nil && d.text.weak.Needs == "host"
}

// foreignTie tells whether a record counts although nobody knows the tree, and what
// ties it to the job.
func (d *decision) foreignTie(k *kill) (tie, bool) {
	t := k.tieTo(d.ev)
	if t == tiedByID {
		return t, true
	}
	if d.decided() || d.ev.Exit.Known && d.ev.Exit.Code == 0 && d.ev.Exit.Signal == "" || k.otherDay(d.ev) {
		return t, false
	}
	switch {
	case !d.ev.Exit.Known:
		// A machine that went away had many processes.
		return t, t != untied || d.ev.Lost == nil
	case signalOf(d.ev.Exit) == "SIGTERM", d.ev.Exit.Code == 256+15:
		// Daemons and batch systems begin with it (PBS adds 256); the kernel does not.
		return t, k.pattern.Source != ""
	case d.killedSigns():
		return t, true
	}
	return t, false
}

// foreignConfidence is how sure a verdict is that rests on such a record.
func (d *decision) foreignConfidence(k *kill) Confidence {
	switch {
	case k.tie == tiedByID && !k.otherDay(d.ev):
		return High
	case k.tie == tiedByName && signalOf(d.ev.Exit) == "SIGKILL":
		return High
	}
	return Medium
}

// byTie puts the records that are tied best in front, in their order otherwise.
func byTie(kills []kill) {
	slices.SortStableFunc(kills, func(a, b kill) int { return cmp.Compare(b.tie, a.tie) })
}

var (
	jobID      = lazyre.New(`(?i)\b(?:StepId=|(?:job|step|task)[ =#:]*)(\d+)`)
	containers = lazyre.New(`[0-9a-f]{12,64}`)
	// trainers are the names that the processes of a training have when nobody
	// renames them.
	trainers = lazyre.New(`^(?:python[\d.]*|pt_\w+|ray::\S+|torchrun|accelerate|deepspeed|ipykernel\S*|jupyter\S*)$`)
)

// tieTo looks for what the record names in the log.
func (k *kill) tieTo(ev *Evidence) tie {
	o := &ev.Output
	if k.pid != 0 && mentionsPID(o, k.pid) {
		return tiedByID
	}
	if unit := k.path[strings.LastIndexByte(k.path, '/')+1:]; len(unit) >= 6 && strings.ContainsAny(unit, "-._") && o.contains(unit) {
		return tiedByID
	}
	if k.pattern.Ours {
		for _, m := range jobID.FindAllStringSubmatch(k.text, 4) {
			if n := strings.TrimLeft(m[1], "0"); len(n) >= 2 && o.mentionsJob(n) {
				return tiedByID
			}
		}
	}
	if strings.Contains(k.path, "docker") || strings.Contains(k.path, "libpod") || strings.Contains(k.path, "kube") {
		for _, id := range containers.FindAllString(k.path, 4) {
			if o.contains(id[:12]) {
				return tiedByID
			}
		}
	}
	if k.comm != "" && (trainers.MatchString(k.comm) || len(k.comm) >= 4 && o.containsWord(k.comm)) {
		return tiedByName
	}
	return untied
}

// each calls f with the texts that were kept until it returns true.
func (o *Output) each(f func(string) bool) bool {
	return slices.ContainsFunc(o.Hits, func(h Hit) bool { return f(h.Text) }) ||
		slices.ContainsFunc(o.Tail, func(l Line) bool { return f(l.Text) })
}

func (o *Output) contains(s string) bool {
	return o.each(func(text string) bool { return strings.Contains(text, s) })
}

func (o *Output) containsWord(w string) bool {
	return o.each(func(text string) bool {
		return findWord(text, w, func(c byte) bool { return alnum(c) || c == '-' }) >= 0
	})
}

// mentionsJob tells that the number stands behind the word job, or the batch
// system's name, perhaps with zeros in front.
func (o *Output) mentionsJob(n string) bool {
	return o.each(func(text string) bool {
		for from := 0; ; {
			at := findWord(text[from:], n, digit)
			if at < 0 {
				// "job00191": the zeros are a part of the number.
				if at = strings.Index(text[from:], "0"+n); at < 0 {
					return false
				}
				at++
				if end := from + at + len(n); end < len(text) && digit(text[end]) {
					from = end
					continue
				}
			}
			before := strings.ToLower(strings.TrimRight(text[max(0, from+at-24):from+at], "0_-=:# /."))
			if strings.HasSuffix(before, "job") || strings.HasSuffix(before, "jobid") || strings.HasSuffix(before, "job_id") ||
				strings.HasSuffix(before, "stepid") || strings.HasSuffix(before, "step") && strings.Contains(strings.ToLower(text), "slurm") || strings.HasSuffix(before, "slurm") {
				return true
			}
			from += at + len(n)
		}
	})
}

// findWord returns where w stands in s with nothing of a word around it, or -1.
func findWord(s, w string, part func(byte) bool) int {
	for from := 0; ; {
		at := strings.Index(s[from:], w)
		if at < 0 {
			return -1
		}
		at += from
		end := at + len(w)
		if (at == 0 || !part(s[at-1])) && (end == len(s) || !part(s[end])) {
			return at
		}
		from = at + 1
	}
}

// mentionsPID tells that the log names the process: behind the word pid or process,
// or as shells and actors write it.
func mentionsPID(o *Output, pid int) bool {
	want := strconv.Itoa(pid)
	names := func(text string) bool {
		for from := 0; ; {
			at := findWord(text[from:], want, digit)
			if at < 0 {
				return false
			}
			at += from
			end := at + len(want)
			before := strings.ToLower(strings.TrimRight(text[max(0, at-16):at], " =:#(["))
			if strings.HasSuffix(before, "pid") || strings.HasSuffix(before, "process") || strings.HasSuffix(before, "pid(s)") ||
				strings.HasPrefix(strings.TrimLeft(text[end:], " "), "Killed") {
				return true
			}
			from = end
		}
	}
	for name := range o.streams {
		if names(name) {
			return true
		}
	}
	return o.each(names)
}

// farApart is how much more than the difference of any two time zones a record and a
// log may lie apart.
const farApart = 26 * time.Hour

// otherDay tells that the stamps of the record and of the log's end lie days apart.
func (k *kill) otherDay(ev *Evidence) bool {
	r, ok := findStamp(k.raw)
	if !ok {
		return false
	}
	l, ok := ev.Output.stamp()
	if !ok {
		return false
	}
	return r.apart(l) > farApart
}

// stamp is the newest time that stands in the last lines.
func (o *Output) stamp() (dateStamp, bool) {
	for i := len(o.Tail) - 1; i >= max(0, len(o.Tail)-400); i-- {
		if s, ok := findStamp(o.Tail[i].Text); ok {
			return s, true
		}
	}
	return dateStamp{}, false
}

// dateStamp is a time as a log writes it: in some zone, perhaps without the year.
type dateStamp struct {
	t    time.Time
	year bool
}

func (a dateStamp) apart(b dateStamp) time.Duration {
	d := a.t.Sub(b.t).Abs()
	if a.year && b.year {
		return d
	}
	// The year that is missing is the one that brings them closest.
	best := d
	for y := -1; y <= 1; y++ {
		at := a.t
		if !a.year {
			at = time.Date(b.t.Year()+y, a.t.Month(), a.t.Day(), a.t.Hour(), a.t.Minute(), a.t.Second(), 0, time.UTC)
			best = min(best, at.Sub(b.t).Abs())
		} else {
			bt := time.Date(a.t.Year()+y, b.t.Month(), b.t.Day(), b.t.Hour(), b.t.Minute(), b.t.Second(), 0, time.UTC)
			best = min(best, at.Sub(bt).Abs())
		}
	}
	return best
}

var (
	isoStamp    = lazyre.New(`\b(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d:\d\d:\d\d)`)
	syslogStamp = lazyre.New(`\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(\d{1,2}) (\d\d:\d\d:\d\d)(?: (\d{4})\b)?`)
)

// findStamp reads the first date with a time in a line.
func findStamp(s string) (dateStamp, bool) {
	s = s[:min(len(s), 256)]
	if m := isoStamp.FindStringSubmatch(s); m != nil {
		t, err := time.Parse("2006-01-02 15:04:05", m[1]+"-"+m[2]+"-"+m[3]+" "+m[4])
		return dateStamp{t, true}, err == nil
	}
	if m := syslogStamp.FindStringSubmatch(s); m != nil {
		year, known := "2024", m[4] != "" // a leap year, so that every day can be read
		if known {
			year = m[4]
		}
		t, err := time.Parse("2006 Jan 2 15:04:05", year+" "+m[1]+" "+m[2]+" "+m[3])
		return dateStamp{t, known}, err == nil
	}
	return dateStamp{}, false
}
