package kmsg

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/lazyre"
	"sparkrun/internal/sample"
)

// identifiers are the names under which those write to the journal that kill for
// want of memory, or tell of it. systemd says of its units what the kernel and
// systemd-oomd did to them.
var identifiers = []string{
	"systemd-oomd", "earlyoom", "slurmd", "slurmstepd", "nohang", "oomd", "bustd", "dgx-anti-oom", "dgx-anti-oom.sh", "systemd",
}

const (
	// journalctl is started again after restartMin, doubling up to restartMax; one
	// that lived longer than restartMax begins anew.
	restartMin = time.Second
	restartMax = time.Minute
	// maxText bounds a message, maxTextLines the lines of one.
	maxText      = 4 << 10
	maxTextLines = 64
)

// blind is what it means that the daemons cannot be followed.
const blind = ", so a kill by systemd-oomd, earlyoom or Slurm shows only as a signal"

// FollowDaemons tells on of every line that the daemons which kill for want of
// memory write to the journal from now on, as "systemd-oomd[123]: Killed ...". It
// returns at once; everything happens on goroutines of its own until ctx ends, and on
// is never called by two of them at a time.
//
// env is the environment for journalctl and the PATH it is looked for on; nil is that
// of this process. SLURM_JOB_ID in it names the job whose lines count, as Slurm
// writes those of other jobs on the same machine too.
//
// absent hears, once, in a sentence, that the daemons cannot be followed, or that
// following them was interrupted. Either may be nil.
func FollowDaemons(ctx context.Context, env []string, on func(sample.KernelLine), absent func(why string)) {
	if env == nil {
		env = os.Environ()
	}
	d := daemons{env: env, journal: journalDirs, on: on, absent: absent, pause: restartMin, since: time.Now()}
	go d.follow(ctx)
}

// daemons follows the journal on one goroutine.
type daemons struct {
	env     []string
	journal []string
	on      func(sample.KernelLine)
	absent  func(string)
	pause   time.Duration
	// since is from when on lines count; cursor is the last one seen.
	since  time.Time
	cursor string
	told   bool
}

func (d *daemons) follow(ctx context.Context) {
	path, err := lookPath(d.env, "journalctl")
	if err == nil {
		err = readableJournal(d.journal)
	}
	if err != nil {
		d.tell("daemons: " + err.Error() + blind)
		return
	}
	pause := d.pause
	for ctx.Err() == nil {
		start := time.Now()
		err := d.once(ctx, path)
		if ctx.Err() != nil {
			return
		}
		d.tell("daemons: following the journal was interrupted and is tried again (" + err.Error() + ")" + blind + " until then")
		if time.Since(start) > restartMax {
			pause = d.pause
		}
		again := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			again.Stop()
			return
		case <-again.C:
		}
		pause = min(2*pause, restartMax)
	}
}

func (d *daemons) tell(why string) {
	if d.absent != nil && !d.told {
		d.absent(why)
	}
	d.told = true
}

// once runs journalctl until it ends or ctx does.
func (d *daemons) once(ctx context.Context, path string) error {
	c, err := startChild(path, d.env, d.args()...)
	if err != nil {
		return err
	}
	defer c.endWith(ctx)()
	c.lines(d.line)
	return c.wait()
}

// args are those of journalctl: follow from where we are, without the ten lines of
// before. A start takes some tens of milliseconds, and a restart longer; nothing
// written meanwhile is lost.
func (d *daemons) args() []string {
	args := []string{"-f", "--no-tail", "-o", "json", "--no-pager", "-q"}
	if d.cursor != "" {
		args = append(args, "--after-cursor="+d.cursor)
	} else {
		args = append(args, fmt.Sprintf("--since=@%d", d.since.Unix()))
	}
	for _, name := range identifiers {
		args = append(args, "-t", name)
	}
	return args
}

// entry is one record of the journal. A field may be a string, a list of bytes where
// it is no text, a list of values, or null where it is too long.
type entry struct {
	Cursor     string          `json:"__CURSOR"`
	Realtime   string          `json:"__REALTIME_TIMESTAMP"`
	Monotonic  string          `json:"__MONOTONIC_TIMESTAMP"`
	Identifier json.RawMessage `json:"SYSLOG_IDENTIFIER"`
	Message    json.RawMessage `json:"MESSAGE"`
	PID        json.RawMessage `json:"_PID"`
	SyslogPID  json.RawMessage `json:"SYSLOG_PID"`
	UID        json.RawMessage `json:"_UID"`
}

// line takes one line of journalctl.
func (d *daemons) line(b []byte) {
	var e entry
	if err := json.Unmarshal(b, &e); err != nil {
		return // "-- No entries --" and the like
	}
	if e.Cursor != "" {
		d.cursor = e.Cursor
	}
	// The second in which we began has lines of before.
	if usec, err := strconv.ParseInt(e.Realtime, 10, 64); err == nil && time.UnixMicro(usec).Before(d.since) {
		return
	}
	text := e.text(d.env)
	if text == nil || d.on == nil {
		return
	}
	boot := clock.Boottime()
	if usec, err := strconv.ParseInt(e.Monotonic, 10, 64); err == nil && usec >= 0 {
		boot = time.Duration(usec)*time.Microsecond + suspended()
	}
	for _, t := range text {
		d.on(sample.KernelLine{Boot: boot, Text: t, Source: "journal"})
	}
}

// text returns the lines of an entry that count, each with the name and pid of who
// wrote it; nil for none.
func (e *entry) text(env []string) []string {
	who := field(e.Identifier)
	msg := field(e.Message)
	if who == "" || msg == "" || !trusted(field(e.UID)) {
		return nil
	}
	pid := field(e.PID)
	if pid == "" {
		pid = field(e.SyslogPID)
	}
	if pid != "" {
		who += "[" + pid + "]"
	}
	var out []string
	for _, line := range strings.Split(clip(msg), "\n") {
		if len(out) == maxTextLines {
			break
		}
		if line = strings.TrimRight(line, " \t\r"); line != "" && counts(who, line, env) {
			out = append(out, who+": "+line)
		}
	}
	return out
}

// trusted says whether a line may come from a daemon: everybody can write to the
// journal under any name, but not as another user. Users of the machine have ids from
// 1000 to 60000 (login.defs); those above are systemd's own for its services. What
// our own user says counts, as we can only fool ourselves.
func trusted(uid string) bool {
	n, err := strconv.Atoi(uid)
	return err != nil || n < 1000 || n > 60000 || n == os.Getuid()
}

// unitDeath is what systemd says of a unit that was killed for memory. It says much
// else.
var unitDeath = lazyre.New(`OOM killer|'oom-kill'|systemd-oomd killed`)

// slurmJob finds the job that a line of Slurm is about.
var slurmJob = lazyre.New(`(?i)\b(?:step(?:id)?|job(?:id)?)[ =]+(\d+)`)

// counts says whether a line may be about this run at all.
func counts(who, line string, env []string) bool {
	switch {
	case strings.HasPrefix(who, "systemd["), who == "systemd":
		return unitDeath.MatchString(line)
	case strings.HasPrefix(who, "slurm"):
		m := slurmJob.FindStringSubmatch(line)
		return m != nil && m[1] == slurmID(env)
	}
	return true
}

// slurmID is the number of the Slurm job that this process is of; "" for none.
func slurmID(env []string) string {
	id := ""
	for _, name := range []string{"SLURM_JOBID=", "SLURM_JOB_ID="} {
		for _, kv := range env {
			if v, ok := strings.CutPrefix(kv, name); ok && v != "" {
				id = v
			}
		}
	}
	return id
}

// clip bounds a message, between two characters.
func clip(s string) string {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	return s
}

// field reads a field of the journal's JSON; "" where there is none.
func field(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	if raw[0] == '"' {
		var s string
		if json.Unmarshal(raw, &s) == nil {
			return s
		}
		return ""
	}
	// Bytes come as numbers, which a []byte would not read.
	var numbers []octet
	if json.Unmarshal(raw, &numbers) == nil && len(numbers) > 0 {
		b := make([]byte, len(numbers))
		for i, n := range numbers {
			b[i] = byte(n)
		}
		return strings.ToValidUTF8(string(b), "?")
	}
	var list []string
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		return list[0]
	}
	return ""
}

// octet is one byte of a list: encoding/json takes []byte for base64.
type octet uint16
