package kmsg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/newprog"
	"sparkrun/internal/sample"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		want record
		ok   bool
	}{
		{"6,339,5140900,-;NET: Registered protocol family 10\n", record{339, 5140900 * time.Microsecond, "NET: Registered protocol family 10"}, true},
		{"3,1201,77000001,-;NVRM: Xid (PCI:000f:01:00): 31, pid=4242; name=python\n SUBSYSTEM=pci\n DEVICE=+pci:000f:01:00.0\n", record{1201, 77000001 * time.Microsecond, "NVRM: Xid (PCI:000f:01:00): 31, pid=4242; name=python"}, true},
		{"6,7,0,c,caller=T1;first part", record{7, 0, "first part"}, true},
		{`4,8,1,-;two\x0alines, a bell\x07 and a \xc3\xa4` + "\n", record{8, time.Microsecond, "two\nlines, a bell and a \u00e4"}, true},
		{`4,8,1,-;no escape: \xzz \x` + "\n", record{8, time.Microsecond, `no escape: \xzz \x`}, true},
		{"6,x,1,-;text\n", record{}, false},
		{"6,1;text\n", record{}, false},
		{"nothing", record{}, false},
		{"", record{}, false},
	} {
		got, ok := parse([]byte(c.in))
		if got != c.want || ok != c.ok {
			t.Errorf("parse(%q) = %+v %v, want %+v %v", c.in, got, ok, c.want, c.ok)
		}
	}
}

func TestParseJournal(t *testing.T) {
	t.Parallel()
	mono, text, ok := parseJournal("[ 1234.500001] spark kernel: Out of memory: Killed process 4242 (python)")
	if mono != 1234500001*time.Microsecond || text != "Out of memory: Killed process 4242 (python)" || !ok {
		t.Errorf("got %v %q %v", mono, text, ok)
	}
	for _, line := range []string{"", "-- Journal begins --", "[ 1.0] spark systemd[1]: Started.", "[x] spark kernel: y", "Hint: you are not seeing messages"} {
		if _, _, ok := parseJournal(line); ok {
			t.Errorf("%q was taken for a kernel record", line)
		}
	}
}

// collect follows a log until n lines have come that hold the mark.
func collect(t *testing.T, l *Log, mark string, n int, start func()) []sample.KernelLine {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	lines, done := make(chan sample.KernelLine, 1000), make(chan error, 1)
	go func() {
		done <- l.Follow(ctx, func(k sample.KernelLine) { lines <- k }, nil)
	}()
	start()
	var got []sample.KernelLine
	for len(got) < n {
		select {
		case k := <-lines:
			if strings.Contains(k.Text, mark) {
				got = append(got, k)
			}
		case err := <-done:
			t.Fatalf("Follow ended after %d lines: %v", len(got), err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Follow after its context ended: %v", err)
	}
	return got
}

func TestTheKernelLogFromNowOn(t *testing.T) {
	t.Parallel()
	w, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs to write to the kernel log: %v", err)
	}
	defer w.Close()
	mark := fmt.Sprintf("sparkrun test %d %d", os.Getpid(), time.Now().UnixNano())
	if _, err := fmt.Fprintf(w, "%s before\n", mark); err != nil {
		t.Skipf("needs to write to the kernel log: %v", err)
	}
	l, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	before := clock.Boottime()
	got := collect(t, l, mark, 2, func() {
		fmt.Fprintf(w, "%s first\n", mark)
		fmt.Fprintf(w, "%s second\n", mark)
	})
	after := clock.Boottime()
	for i, want := range []string{mark + " first", mark + " second"} {
		if got[i].Text != want || got[i].Source != "kmsg" {
			t.Errorf("line %d = %+v, want %q", i, got[i], want)
		}
		// The kernel's log clock and CLOCK_MONOTONIC drift apart slowly.
		if got[i].Boot < before-5*time.Second || got[i].Boot > after+5*time.Second {
			t.Errorf("line %d is stamped %v, written between %v and %v", i, got[i].Boot, before, after)
		}
	}
}

// script writes a shell script that stands in for journalctl.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journalctl")
	if err := newprog.Write(path, []byte("#!/bin/sh\n"+body)); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestJournalWhereTheDeviceCannotBeRead(t *testing.T) {
	t.Parallel()
	journal := script(t, `case "$*" in "-k -f -o short-monotonic -n 0 --no-pager") ;; *) exit 9 ;; esac
echo '-- Journal begins --'
echo '[   12.000001] spark kernel: NVRM: Xid (PCI:000f:01:00): 119, pid=1'
echo '[   12.5] spark kernel: oom-kill:constraint=CONSTRAINT_MEMCG'
exec sleep 60
`)
	l, err := open(filepath.Join(t.TempDir(), "kmsg"), journal, journalOf(t))
	if err != nil {
		t.Fatal(err)
	}
	got := collect(t, l, "", 2, func() {})
	want := sample.KernelLine{Boot: 12*time.Second + 500*time.Millisecond + suspended(), Text: "oom-kill:constraint=CONSTRAINT_MEMCG", Source: "journal"}
	if d := got[1].Boot - want.Boot; d < -time.Second || d > time.Second {
		t.Errorf("stamp %v, want about %v", got[1].Boot, want.Boot)
	}
	if got[1].Text != want.Text || got[1].Source != want.Source {
		t.Errorf("line = %+v, want %+v", got[1], want)
	}
}

func TestAJournalThatEndsIsAnError(t *testing.T) {
	t.Parallel()
	l, err := open(filepath.Join(t.TempDir(), "kmsg"), script(t, "echo no permission to read the journal >&2\nexit 1\n"), journalOf(t))
	if err != nil {
		t.Fatal(err)
	}
	err = l.Follow(t.Context(), func(sample.KernelLine) {}, nil)
	if err == nil || !strings.Contains(err.Error(), "no permission to read the journal") {
		t.Errorf("error = %v", err)
	}
}

// A socket of packets gives one record per read, as the device does.
func TestOverwrittenRecordsAreCounted(t *testing.T) {
	t.Parallel()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	kernel := os.NewFile(uintptr(fds[1]), "kernel")
	for _, record := range []string{"6,41,1,-;a\n", "6,42,2,-;b\n", "garbage", "6,50,3,-;c\n DEVICE=x\n"} {
		if _, err := kernel.WriteString(record); err != nil {
			t.Fatal(err)
		}
	}
	kernel.Close()
	l := &Log{file: os.NewFile(uintptr(fds[0]), "kmsg")}
	var text string
	var lost []uint64
	err = l.Follow(t.Context(), func(k sample.KernelLine) { text += k.Text }, func(n uint64) { lost = append(lost, n) })
	if !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if text != "abc" || !slices.Equal(lost, []uint64{7}) {
		t.Errorf("text %q, lost %v", text, lost)
	}
}

// The chain, in one sentence: the device, journalctl, and what is left.
func TestNoSourceNamesBoth(t *testing.T) {
	t.Parallel()
	there := script(t, "exec sleep 60\n")
	closed := filepath.Join(t.TempDir(), "kmsg")
	for _, c := range []struct {
		journalctl string
		journal    []string
		want       string
	}{
		{"/nonexistent/journalctl", journalOf(t), "/nonexistent/journalctl"},
		{"no-such-program-9f", journalOf(t), "no no-such-program-9f on this machine"},
		{there, []string{t.TempDir(), "/nonexistent"}, "no journal on this machine"},
	} {
		_, err := open(closed, c.journalctl, c.journal)
		if err == nil || !strings.Contains(err.Error(), closed) || !strings.Contains(err.Error(), c.want) || !strings.HasSuffix(err.Error(), "kills show only in vmstat and the cgroup") {
			t.Errorf("error = %v, want %q in it", err, c.want)
		}
	}
}
