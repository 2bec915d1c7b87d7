// Package kmsg follows what is said on this machine about deaths for want of memory:
// the kernel log, where the kernel says whom it killed and what its NVIDIA driver
// complains about, and the daemons that kill before the kernel has to (systemd-oomd,
// earlyoom, Slurm). It owns the two ways to the kernel log, /dev/kmsg and journalctl,
// and the one to the daemons, the journal. It reads nothing older than the moment it
// was opened.
package kmsg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/sample"
)

const device = "/dev/kmsg"

// maxRecord is the kernel's own limit of one record (CONSOLE_EXT_LOG_MAX); a
// smaller buffer makes read fail with EINVAL.
const maxRecord = 8192

// Log is the kernel log from the moment it was opened. Follow it once.
type Log struct {
	file *os.File
	// journal is the journalctl process when /dev/kmsg cannot be read.
	journal *child
}

// Open opens the kernel log at its end: /dev/kmsg, which needs root or
// CAP_SYSLOG on most machines, else journalctl, which members of the groups adm
// and systemd-journal may read. Its error names what is missing of both, and what is
// left to see a kill by.
func Open() (*Log, error) { return open(device, "journalctl", journalDirs) }

func open(path, journalctl string, journal []string) (*Log, error) {
	f, err := openDevice(path)
	if err == nil {
		return &Log{file: f}, nil
	}
	c, jerr := openJournal(journalctl, journal)
	if jerr != nil {
		return nil, fmt.Errorf("%w, and journalctl -k instead of it: %w; kills show only in vmstat and the cgroup", err, jerr)
	}
	return &Log{journal: c}, nil
}

func openDevice(path string) (*os.File, error) {
	// O_NONBLOCK hands the file to Go's poller, so that Close ends a read.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%w (reading it needs root or CAP_SYSLOG)", err)
	case err != nil:
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		f.Close()
		return nil, fmt.Errorf("going to the end of the kernel log: %w", err)
	}
	return f, nil
}

func openJournal(name string, journal []string) (*child, error) {
	path, err := lookPath(os.Environ(), name)
	if err != nil {
		return nil, err
	}
	if err := readableJournal(journal); err != nil {
		return nil, err
	}
	c, err := startChild(path, os.Environ(), "-k", "-f", "-o", "short-monotonic", "-n", "0", "--no-pager")
	if err != nil {
		return nil, fmt.Errorf("it cannot be started: %w", err)
	}
	return c, nil
}

// Close closes a log. Follow closes its own, but it may be closed again.
func (l *Log) Close() {
	if l.file != nil {
		l.file.Close()
		return
	}
	l.journal.kill()
	_ = l.journal.wait()
}

// Follow emits every record until ctx ends, which is no error, and then closes
// the log. lost, if not nil, hears how many records the kernel overwrote before
// they could be read.
func (l *Log) Follow(ctx context.Context, emit func(sample.KernelLine), lost func(records uint64)) error {
	var err error
	if l.file != nil {
		err = l.followDevice(ctx, emit, lost)
	} else {
		err = l.followJournal(ctx, emit)
	}
	if ctx.Err() == nil {
		return err
	}
	return nil // ended because it was asked to
}

func (l *Log) followDevice(ctx context.Context, emit func(sample.KernelLine), lost func(uint64)) error {
	defer l.file.Close()
	defer context.AfterFunc(ctx, func() { l.file.Close() })()
	var next uint64
	tooLong := 0
	buf := make([]byte, maxRecord)
	for {
		n, err := l.file.Read(buf)
		switch {
		case errors.Is(err, unix.EPIPE):
			// The ring has overtaken us; the next read is at its new start, and
			// the gap in the sequence numbers tells how much is gone.
			continue
		case errors.Is(err, unix.EINVAL) && tooLong < 100:
			// A record longer than the kernel's own limit: the kernel has
			// already stepped over it. Many in a row mean something else.
			tooLong++
			continue
		case err != nil:
			return fmt.Errorf("reading the kernel log: %w", err)
		}
		tooLong = 0
		r, ok := parse(buf[:n])
		if !ok {
			continue
		}
		if next != 0 && r.seq > next && lost != nil {
			lost(r.seq - next)
		}
		next = r.seq + 1
		boot := r.mono + suspended()
		for line := range strings.SplitSeq(r.text, "\n") {
			emit(sample.KernelLine{Boot: boot, Text: line, Source: "kmsg"})
		}
	}
}

func (l *Log) followJournal(ctx context.Context, emit func(sample.KernelLine)) error {
	defer l.journal.endWith(ctx)()
	l.journal.lines(func(line []byte) {
		if mono, text, ok := parseJournal(string(line)); ok {
			emit(sample.KernelLine{Boot: mono + suspended(), Text: text, Source: "journal"})
		}
	})
	return fmt.Errorf("following the kernel log through journalctl: %w", l.journal.wait())
}

// suspended is how far CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC, by which the
// kernel stamps its log (nearly: its own clock is not slewed by NTP).
func suspended() time.Duration {
	var boot, mono unix.Timespec
	// Neither can fail with a valid clock id.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot)
	d := time.Duration(boot.Nano() - mono.Nano())
	// Below what the two calls themselves take it is no suspend.
	if d < time.Millisecond {
		return 0
	}
	return d
}
