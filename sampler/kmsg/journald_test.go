package kmsg

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
)

const journald = "/usr/lib/systemd/systemd-journald"

// The real thing: journald in a mount namespace of its own, with an empty /run, and
// the machine's own journalctl.
func TestAgainstARealJournal(t *testing.T) {
	if os.Getenv("KMSG_TEST_JOURNALD") != "" {
		withJournald(t)
		return
	}
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, for a mount namespace")
	}
	for _, need := range []string{journald, "/usr/bin/journalctl", "/etc/machine-id"} {
		if _, err := os.Stat(need); err != nil {
			t.Skipf("needs systemd's journal: %v", err)
		}
	}
	if err := exec.Command("unshare", "-m", "true").Run(); err != nil {
		t.Skipf("needs a mount namespace: %v", err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestAgainstARealJournal$", "-test.v", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), "KMSG_TEST_JOURNALD=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// withJournald is the test inside the namespace.
func withJournald(t *testing.T) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	conf := "/run/systemd/journald.conf.d/test.conf"
	for _, dir := range []string{filepath.Dir(conf), "/run/systemd/journal", "/run/log/journal"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The machine's own log and its audit are not to be touched.
	if err := os.WriteFile(conf, []byte("[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\nForwardToWall=no\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	d := exec.Command(journald)
	d.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = d.Process.Kill()
		_ = d.Wait()
	}()
	within(t, "journald", func() bool {
		_, err := os.Stat("/run/systemd/journal/socket")
		return err == nil && readableJournal([]string{"/run/log/journal"}) == nil
	})
	sock, err := net.Dial("unixgram", "/run/systemd/journal/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	say := func(who, text string) {
		if _, err := fmt.Fprintf(sock, "SYSLOG_IDENTIFIER=%s\nMESSAGE=%s\n", who, text); err != nil {
			t.Error(err)
		}
	}
	say("earlyoom", "just before") // in the same second, as far as --since can tell
	within(t, "an entry", func() bool {
		out, _ := exec.Command("/usr/bin/journalctl", "-o", "cat", "-t", "earlyoom").Output()
		return strings.Contains(string(out), "just before")
	})

	lines := make(chan sample.KernelLine, 100)
	began := clock.Boottime()
	f := daemons{
		env: os.Environ(), journal: []string{"/run/log/journal"}, pause: 300 * time.Millisecond, since: time.Now(),
		on: func(l sample.KernelLine) { lines <- l }, absent: func(why string) { told <- why },
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.follow(ctx)
	}()
	// Written before journalctl can have started.
	say("systemd-oomd", "Killed /a.scope due to memory pressure")
	say("somebody", "else")
	want := fmt.Sprintf("systemd-oomd[%d]: Killed /a.scope due to memory pressure", os.Getpid())
	if l := <-lines; l.Text != want || l.Boot < began-time.Second || l.Boot > clock.Boottime()+time.Second {
		t.Errorf("%+v, want %q between %v and %v", l, want, began, clock.Boottime())
	}
	// journalctl is killed, and a line is written before the next one is there.
	killJournalctl(t)
	if why := <-told; !strings.Contains(why, "interrupted") {
		t.Errorf("told %q", why)
	}
	say("earlyoom", "meanwhile")
	say("earlyoom", "two\x01")
	for _, want := range []string{"meanwhile", "two\x01"} {
		if l := <-lines; !strings.HasPrefix(l.Text, "earlyoom[") || !strings.HasSuffix(l.Text, ": "+want) {
			t.Errorf("%q, want %q", l.Text, want)
		}
	}
	cancel()
	<-done
	if n := len(lines); n > 0 {
		t.Errorf("%d lines too many: %q", n, (<-lines).Text)
	}
}

func within(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s in 20 s", what)
		}
	}
}

// killJournalctl kills the journalctl that this process has started.
func killJournalctl(t *testing.T) {
	t.Helper()
	comms, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range comms {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		var pid, ppid int
		var comm, state string
		if _, err := fmt.Sscanf(string(b), "%d %s %s %d", &pid, &comm, &state, &ppid); err == nil && ppid == os.Getpid() && comm == "(journalctl)" {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Error("no journalctl to kill")
}
