package postmortem

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/lazyre"
	"sparkrun/ladder/oom"
	"sparkrun/supervisor/runlog"
)

const (
	// journalWait is how long the journal may take to answer.
	journalWait = time.Second
	// journalLines is how much of the end of a boot's journal is asked for,
	// journalMost how many bytes of that are taken.
	journalLines = 200
	journalMost  = 1 << 20
	// wtmpTail is how much of the end of wtmp is read.
	wtmpTail = 64 << 10
	// shutdownTakes is how long before the machine's next start an orderly
	// shutdown may have been noted.
	shutdownTakes = time.Hour
)

// previousBoot says how the machine went away under a run: from the journal of
// that boot where it may be read, else from wtmp. last is the run's last sign of
// life.
func previousBoot(ctx context.Context, m machine, man *runlog.Manifest, last time.Time) *oom.Lost {
	lost := &oom.Lost{BootChanged: true}
	var system bool
	lost.JournalTail, lost.Clean, system = journal(ctx, man.Host.BootID)
	lost.CleanKnown = system
	if !system {
		lost.Clean, lost.CleanKnown = wtmp(m.wtmp, last)
	}
	return lost
}

// journal reads the last lines of a boot's journal. system is false where it holds
// nothing of the system's own, as for a user who may not read that; then its
// silence about a shutdown says nothing.
func journal(ctx context.Context, boot string) (tail []oom.KernelRecord, clean, system bool) {
	path, err := exec.LookPath("journalctl")
	if err != nil {
		return nil, false, false
	}
	ctx, cancel := context.WithTimeout(ctx, journalWait)
	defer cancel()
	// Named by its id: -1 would be another boot where the machine was started twice
	// since.
	id := strings.ReplaceAll(boot, "-", "")
	cmd := exec.CommandContext(ctx, path, "--boot="+id, "-o", "short-unix", "-n", strconv.Itoa(journalLines), "--no-pager", "-q")
	cmd.WaitDelay = 100 * time.Millisecond
	var out capped
	cmd.Stdout = &out
	if cmd.Run() != nil {
		return nil, false, false
	}
	for line := range strings.Lines(out.String()) {
		r, ok := journalRecord(strings.TrimRight(line, "\n"))
		if !ok {
			continue
		}
		tail = append(tail, r)
		system = system || systemRecord.MatchString(r.Text)
		clean = clean || shutdownRecord.MatchString(r.Text)
	}
	return tail, clean, system
}

// capped keeps the last bytes that are written to it.
type capped struct{ bytes.Buffer }

func (c *capped) Write(p []byte) (int, error) {
	c.Buffer.Write(p)
	if over := c.Len() - journalMost; over > 0 {
		c.Next(over)
	}
	return len(p), nil
}

var (
	systemRecord = lazyre.New(`^(?:kernel|systemd\[1\]|systemd-(?:journald|logind|shutdown)\[\d+\]):`)
	// shutdownRecord is what systemd says on its way down, in the versions from 245
	// to 257.
	shutdownRecord = lazyre.New(`^systemd-shutdown\[\d+\]:` +
		`|^systemd-journald\[\d+\]: Journal stopped` +
		`|^systemd\[1\]: (?:Shutting down\.|Reached target .*(?i:reboot|power-?off|halt|shutdown|kexec))` +
		`|^systemd-logind\[\d+\]: (?:System is (?:rebooting|powering down|halting)|The system will (?:reboot|power off|halt) now)`)
)

// journalRecord reads a line of journalctl -o short-unix: seconds, host, text.
func journalRecord(line string) (oom.KernelRecord, bool) {
	stamp, rest, ok := strings.Cut(line, " ")
	if !ok {
		return oom.KernelRecord{}, false
	}
	sec, err := strconv.ParseFloat(stamp, 64)
	if err != nil || sec < 0 || sec > 1e11 {
		return oom.KernelRecord{}, false
	}
	_, text, ok := strings.Cut(rest, " ")
	if !ok {
		return oom.KernelRecord{}, false
	}
	return oom.KernelRecord{T: time.UnixMilli(int64(sec * 1000)), Text: text}, true
}

// A record of wtmp, as the C library's utmp has it: the type first, the user at
// byte 44, and the time behind 340 bytes as two 32-bit numbers, or, on machines
// that never had a 32-bit ABI, behind 344 as two of 64 bits.
const (
	utmpRunLevel = 1
	utmpBoot     = 2
	utmpUserAt   = 44
	utmpUserLen  = 32
)

// wtmp says whether the machine was shut down in order before its first start
// after last. known is false where wtmp does not tell.
func wtmp(path string, last time.Time) (clean, known bool) {
	size, timeAt, wide := 384, 340, false
	if runtime.GOARCH == "arm64" {
		size, timeAt, wide = 400, 344, true
	}
	f, err := os.Open(path)
	if err != nil || last.IsZero() {
		return false, false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false, false
	}
	n := info.Size() / int64(size)
	from := max(n-int64(wtmpTail/size), 0)
	b, err := io.ReadAll(io.NewSectionReader(f, from*int64(size), (n-from)*int64(size)))
	if err != nil {
		return false, false
	}
	var shutdown time.Time
	for ; len(b) >= size; b = b[size:] {
		var sec int64
		if wide {
			sec = int64(binary.NativeEndian.Uint64(b[timeAt:])) //nolint:gosec // seconds
		} else {
			sec = int64(binary.NativeEndian.Uint32(b[timeAt:]))
		}
		at := time.Unix(sec, 0)
		user, _, _ := bytes.Cut(b[utmpUserAt:utmpUserAt+utmpUserLen], []byte{0})
		switch kind := binary.NativeEndian.Uint16(b); {
		case kind == utmpRunLevel && string(user) == "shutdown":
			shutdown = at
		case kind == utmpBoot && at.After(last):
			// A minute of slack: the run's clock does not follow corrections.
			return !shutdown.Before(last.Add(-time.Minute)) && at.Sub(shutdown) < shutdownTakes, true
		}
	}
	return false, false
}
