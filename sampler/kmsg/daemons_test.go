package kmsg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/newprog"
	"sparkrun/internal/sample"
)

// journalOf returns folders in which a journal seems to lie.
func journalOf(t *testing.T) []string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "machine")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "system.journal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{filepath.Dir(dir)}
}

// followed is a daemons that follows a script in place of journalctl.
type followed struct {
	lines  chan sample.KernelLine
	mu     sync.Mutex
	absent []string
	done   chan struct{}
	stop   context.CancelFunc
}

func (f *followed) why() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.absent)
}

// followScript begins to follow; the test's end waits until nothing is left of it.
func followScript(t *testing.T, body string, env ...string) *followed {
	t.Helper()
	f := &followed{lines: make(chan sample.KernelLine, 1000), done: make(chan struct{})}
	dir := filepath.Dir(script(t, body))
	d := &daemons{
		env:     append([]string{"PATH=" + dir + ":/usr/bin:/bin"}, env...),
		journal: journalOf(t), pause: time.Millisecond,
		on: func(l sample.KernelLine) { f.lines <- l },
		absent: func(why string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.absent = append(f.absent, why)
		},
	}
	var ctx context.Context
	ctx, f.stop = context.WithCancel(t.Context())
	go func() {
		defer close(f.done)
		d.follow(ctx)
	}()
	t.Cleanup(func() {
		f.stop()
		<-f.done
	})
	return f
}

func (f *followed) next(t *testing.T) sample.KernelLine {
	t.Helper()
	select {
	case l := <-f.lines:
		return l
	case <-time.After(20 * time.Second):
		t.Fatalf("no line came; absent: %q", f.why())
		panic("unreachable")
	}
}

// written is one record, as journalctl -o json writes it.
func written(who, pid, message string) string {
	return fmt.Sprintf(`{"SYSLOG_IDENTIFIER":"%s","_PID":"%s","MESSAGE":%s,"_UID":"0","__MONOTONIC_TIMESTAMP":"12500000","__REALTIME_TIMESTAMP":"1784023200000000","__CURSOR":"s=1;i=%s"}`, who, pid, message, pid)
}

func cat(records ...string) string {
	return "cat <<'EOF'\n" + strings.Join(records, "\n") + "\nEOF\n"
}

func TestDaemonsThatKill(t *testing.T) {
	t.Parallel()
	f := followScript(t, `case "$*" in "-f --no-tail -o json --no-pager -q --since=@"*"-t systemd-oomd -t earlyoom -t slurmd -t slurmstepd "*) ;; *) echo "$*" >&2; exit 9 ;; esac
[ "$LC_ALL" = C ] || exit 8
`+cat(
		"-- No entries --",
		written("systemd-oomd", "840", `"Killed /user.slice/a.scope due to memory pressure for /user.slice being 51.07% > 50.00%"`),
		"{torn",
		written("earlyoom", "1295", `"sending SIGTERM to process 906175 uid 1000 \"java\": oom_score 1170\n\nand more "`),
		written("systemd", "1", `"Started something."`),
		written("systemd", "1", `"run-u42.scope: A process of this unit has been killed by the OOM killer."`),
		written("nohang", "7", `[107,255,108]`),
		written("nohang", "8", `null`),
		written("nohang", "9", `["one","two"]`),
		`{"SYSLOG_IDENTIFIER":"`+strings.Repeat("x", maxLine)+`","MESSAGE":"too long"}`,
		`{"SYSLOG_IDENTIFIER":"earlyoom","SYSLOG_PID":"77","MESSAGE":"no pid of the kernel's"}`,
		`{"SYSLOG_IDENTIFIER":"earlyoom","MESSAGE":"no pid"}`,
		`{"SYSLOG_IDENTIFIER":"earlyoom","_UID":"4321","MESSAGE":"of some user"}`,
		`{"SYSLOG_IDENTIFIER":"earlyoom","_UID":"61234","MESSAGE":"of a service"}`,
	)+"exec sleep 60\n")
	want := []string{
		"systemd-oomd[840]: Killed /user.slice/a.scope due to memory pressure for /user.slice being 51.07% > 50.00%",
		`earlyoom[1295]: sending SIGTERM to process 906175 uid 1000 "java": oom_score 1170`,
		"earlyoom[1295]: and more",
		"systemd[1]: run-u42.scope: A process of this unit has been killed by the OOM killer.",
		"nohang[7]: k?l",
		"nohang[9]: one",
		"earlyoom[77]: no pid of the kernel's",
		"earlyoom: no pid",
		"earlyoom: of a service",
	}
	var got []string
	for range want {
		l := f.next(t)
		if l.Source != "journal" {
			t.Errorf("source %q", l.Source)
		}
		if stamped := 12500*time.Millisecond + suspended(); len(got) < 6 && (l.Boot < stamped-time.Second || l.Boot > stamped+time.Second) {
			t.Errorf("%q is stamped %v", l.Text, l.Boot)
		}
		got = append(got, l.Text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if why := f.why(); len(why) > 0 {
		t.Errorf("absent: %q", why)
	}
}

func TestSlurmLinesOfOurOwnJobOnly(t *testing.T) {
	t.Parallel()
	body := cat(
		written("slurmstepd", "1", `"error: Detected 1 oom-kill event(s) in StepId=190.batch cgroup."`),
		written("slurmstepd", "2", `"error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup."`),
		written("slurmstepd", "3", `"error: Detected 1 oom_kill event in step 1910.0 cgroup."`),
		written("slurmd", "4", `"error: Job 191 exceeded memory limit (2 > 1), being killed"`),
		written("slurmd", "5", `"launch task"`),
		written("earlyoom", "6", `"end"`),
	) + "exec sleep 60\n"
	for _, c := range []struct {
		env  []string
		want []string
	}{
		{[]string{"SLURM_JOB_ID=191"}, []string{"slurmstepd[2]", "slurmd[4]", "earlyoom[6]"}},
		{[]string{"SLURM_JOBID=190"}, []string{"slurmstepd[1]", "earlyoom[6]"}},
		{nil, []string{"earlyoom[6]"}},
	} {
		f := followScript(t, body, c.env...)
		for _, want := range c.want {
			if l := f.next(t); !strings.HasPrefix(l.Text, want+": ") {
				t.Errorf("%v: %q, want %s", c.env, l.Text, want)
			}
		}
	}
}

// A journalctl that dies is started again where it was, and that is told once.
func TestAJournalctlThatDies(t *testing.T) {
	t.Parallel()
	count := filepath.Join(t.TempDir(), "count")
	f := followScript(t, `echo "$*" >>`+count+`
n=$(wc -l <`+count+`)
case "$*" in *--after-cursor=s=1\;i=42*) after=yes ;; *--since=@*) after=no ;; esac
if [ $n -lt 4 ]; then `+cat(written("earlyoom", "42", `"again"`))+` echo broken >&2; exit 3; fi
echo "{\"SYSLOG_IDENTIFIER\":\"earlyoom\",\"MESSAGE\":\"alive $n $after\"}"
exec sleep 60
`)
	for range 3 {
		if l := f.next(t); l.Text != "earlyoom[42]: again" {
			t.Fatalf("%q", l.Text)
		}
	}
	if l := f.next(t); l.Text != "earlyoom: alive 4 yes" {
		t.Errorf("%q", l.Text)
	}
	why := f.why()
	if len(why) != 1 || !strings.HasPrefix(why[0], "daemons: following the journal was interrupted") || !strings.Contains(why[0], "exit status 3: broken") {
		t.Errorf("absent: %q", why)
	}
}

// gone waits until a process is no more, and says whether it came to that.
func gone(pid int) bool {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			return true
		}
		// Whoever adopted it may be slow to reap it.
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && strings.Contains(string(b), ") Z ") {
			return true
		}
	}
	return false
}

func TestTheChildEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := followScript(t, `echo "{\"SYSLOG_IDENTIFIER\":\"earlyoom\",\"MESSAGE\":\"$$\"}"
exec sleep 60
`)
	pid, err := strconv.Atoi(strings.TrimPrefix(f.next(t).Text, "earlyoom: "))
	if err != nil {
		t.Fatal(err)
	}
	f.stop()
	<-f.done
	if !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		t.Error("the child lives on")
	}
	if why := f.why(); len(why) > 0 {
		t.Errorf("absent: %q", why)
	}
}

// This process is killed in the middle: the kernel ends the child.
func TestTheChildEndsWithUs(t *testing.T) {
	if dir := os.Getenv("KMSG_TEST_FOLLOW"); dir != "" {
		d := daemons{env: os.Environ(), journal: []string{dir}, pause: time.Second, on: func(l sample.KernelLine) { fmt.Println("child", l.Text) }, absent: func(why string) { fmt.Println(why) }}
		d.follow(t.Context())
		return
	}
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(script(t, `echo "{\"SYSLOG_IDENTIFIER\":\"earlyoom\",\"MESSAGE\":\"$$\"}"
exec sleep 60
`))
	cmd := exec.Command(exe, "-test.run=^TestTheChildEndsWithUs$")
	cmd.Env = append(os.Environ(), "KMSG_TEST_FOLLOW="+journalOf(t)[0], "PATH="+dir+":/usr/bin:/bin")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanf(out, "child earlyoom: %d\n", &pid); err != nil {
		t.Errorf("no child: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if pid != 0 && !gone(pid) {
		t.Error("the child lives on")
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

func TestWhyDaemonsCannotBeFollowed(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(script(t, "exec sleep 60\n"))
	for _, c := range []struct {
		name, path string
		journal    []string
		want       string
	}{
		{"no program", "/nonexistent:relative:", journalOf(t), "daemons: no journalctl on this machine"},
		{"no journal", dir, []string{"/nonexistent", t.TempDir()}, "daemons: no journal on this machine"},
	} {
		var why []string
		d := daemons{env: []string{"PATH=" + c.path}, journal: c.journal, absent: func(w string) { why = append(why, w) }}
		d.follow(t.Context())
		if len(why) != 1 || !strings.HasPrefix(why[0], c.want) || !strings.HasSuffix(why[0], blind) {
			t.Errorf("%s: %q", c.name, why)
		}
	}
}

// A journal that this user may not read is none, or journalctl would wait in silence.
func TestAJournalThatMayNotBeRead(t *testing.T) {
	if dir := os.Getenv("KMSG_TEST_JOURNAL"); dir != "" {
		fmt.Println(readableJournal([]string{dir}))
		return
	}
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	dir := journalOf(t)[0]
	if err := readableJournal([]string{dir}); err != nil {
		t.Errorf("as root: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "machine", "system.journal"), 0o600); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	prog := filepath.Join(dir, "test")
	if err := newprog.Write(prog, exe); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(prog, "-test.run=^TestAJournalThatMayNotBeRead$")
	cmd.Dir = "/"
	cmd.Env = []string{"KMSG_TEST_JOURNAL=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "may not be read by this user") {
		t.Errorf("%v: %s", err, out)
	}
}

// Starting to follow costs a run nothing.
func TestFollowDaemonsReturnsAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := filepath.Dir(script(t, "exec sleep 60\n"))
	told := make(chan string, 10)
	before := clock.Boottime()
	FollowDaemons(ctx, []string{"PATH=" + dir}, nil, func(why string) { told <- why })
	if took := clock.Boottime() - before; took > 50*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	FollowDaemons(ctx, []string{"PATH=/nonexistent"}, nil, func(why string) { told <- why })
	for why := range told {
		if strings.HasPrefix(why, "daemons: no journalctl on this machine") {
			return
		}
	}
}

func TestXid(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"NVRM: Xid (PCI:000f:01:00): 31, pid=4242, name=python3, Ch 00000008":  31,
		"NVRM: Xid (PCI:0000:0f:00): 119, Timeout after 6s of waiting for RPC": 119,
		"[  12.5] NVRM: Xid (0000:01:00): 79, GPU has fallen off the bus.":     79,
		"NVRM: Xid: 13, x":                      13,
		"NVRM: GPU at PCI:000f:01:00: GPU-1234": -1,
		"NVRM: Xid (PCI:000f:01:00): unknown":   -1,
		"somebody said Xid (x): 31":             -1,
		"NVRM: Xid (PCI): 99999999999999999999": -1,
		"":                                      -1,
	} {
		n, ok := Xid(text)
		if ok != (want >= 0) || ok && n != want {
			t.Errorf("Xid(%q) = %d %v, want %d", text, n, ok, want)
		}
	}
}
