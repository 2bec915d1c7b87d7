package vm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// machine is what a boot needs to know.
type machine struct {
	plan string // of e2e/vm/guest
	mib  int    // memory
}

// booted is an emulated machine that runs.
type booted struct {
	machine
	t       *testing.T
	dir     string
	began   time.Time
	lines   chan string   // of the console; closed at its end
	console *os.File      // everything it said; written by the reader until gone is closed
	gone    chan struct{} // closed when QEMU has ended and the console is read
	kill    func()
}

// boot starts the machine. It is ended with the test.
func boot(t *testing.T, m machine) *booted {
	t.Helper()
	qemu, err := exec.LookPath("qemu-system-aarch64")
	if err != nil {
		t.Fatalf("%v (Debian package qemu-system-arm)", err)
	}
	image := buildImage(t)
	// Not t.TempDir: the monitor's socket has room for 107 bytes of path.
	dir, err := os.MkdirTemp("", "sparkrun-vm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	files := payload(t, dir)

	record, err := newConsole(m.plan)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { record.Close() })
	b := &booted{machine: m, t: t, dir: dir, began: time.Now(), lines: make(chan string, 1000), console: record, gone: make(chan struct{})}
	cmd := exec.Command(qemu,
		"-M", "virt", "-cpu", "cortex-a72", "-smp", "2", "-m", strconv.Itoa(m.mib), "-accel", "tcg,thread=multi",
		"-nodefaults", "-display", "none", "-serial", "stdio", "-qmp", "unix:"+b.socket()+",server=on,wait=off",
		"-kernel", filepath.Join(image, "vmlinuz"), "-initrd", filepath.Join(image, "initrd"),
		// Errors of the kernel and worse only: its lines would cut ours in two.
		"-append", "console=ttyAMA0 root=/dev/vda rw psi=1 systemd.unified_cgroup_hierarchy=1 loglevel=3 systemd.show_status=false sparkrun.plan="+m.plan,
		// What is written is kept in an unlinked file while this QEMU lives, over
		// resets too, and the image stays as it is.
		"-drive", "if=none,id=root,format=raw,snapshot=on,file="+filepath.Join(image, "root.ext4"), "-device", "virtio-blk-pci,drive=root",
		"-drive", "if=none,id=files,format=raw,readonly=on,file="+files, "-device", "virtio-blk-pci,drive=files")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	serial, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The death signal follows the thread that started the process.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		b.read(serial)
		_ = cmd.Wait() // it is killed, or says why not on stderr
		if complaints.Len() > 0 {
			fmt.Fprintf(b.console, "\nqemu: %s\n", complaints.String())
		}
		close(b.gone)
	}()
	if err := <-started; err != nil {
		t.Fatalf("starting %s: %v", qemu, err)
	}
	b.kill = func() { _ = cmd.Process.Kill() }
	t.Cleanup(b.end)
	return b
}

func (b *booted) socket() string { return filepath.Join(b.dir, "qmp") }

// read takes the console apart into lines, as long as there is one.
func (b *booted) read(serial io.Reader) {
	defer close(b.lines)
	r := bufio.NewReader(serial)
	for {
		line, err := r.ReadString('\n')
		_, _ = b.console.WriteString(line) // a full disk ends no test
		if line = strings.TrimSpace(line); line != "" {
			select {
			case b.lines <- line:
			default: // nobody listens any more
			}
		}
		if err != nil {
			return
		}
	}
}

// newConsole makes the file that takes the console; the last ten are kept.
func newConsole(plan string) (*os.File, error) {
	dir := filepath.Join(cacheDir(), "consoles")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	keepFew(dir, 10)
	return os.Create(filepath.Join(dir, fmt.Sprintf("%s-%s-%d.log", time.Now().Format("20060102-150405"), plan, os.Getpid())))
}

// end kills the machine and keeps its console if the test has failed.
func (b *booted) end() {
	b.kill()
	<-b.gone
	if !b.t.Failed() {
		_ = os.Remove(b.console.Name())
		return
	}
	text, err := os.ReadFile(b.console.Name())
	if err != nil {
		b.t.Log(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	b.t.Logf("the console is in %s; its end:\n%s", b.console.Name(), strings.Join(lines[max(0, len(lines)-40):], "\n"))
}

// keepFew removes the oldest consoles; their names sort by time.
func keepFew(dir string, most int) {
	old, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	slices.Sort(old)
	for len(old) >= most {
		_ = os.Remove(old[0])
		old = old[1:]
	}
}

// within is a time limit that leaves go test the time to say what it has seen.
func (b *booted) within(limit time.Duration) <-chan time.Time {
	if end, ok := b.t.Deadline(); ok {
		if left := time.Until(end) - 20*time.Second; left < limit {
			b.t.Logf("go test ends this test in %s: -timeout is too short for a machine under load", left.Round(time.Second))
			limit = max(left, time.Second)
		}
	}
	return time.After(limit)
}

// next returns the console's next line; it fails the test at its limit.
func (b *booted) next(limit <-chan time.Time, waitingFor string) string {
	b.t.Helper()
	select {
	case line, ok := <-b.lines:
		if !ok {
			b.t.Fatalf("the machine is gone while the test waits for %s", waitingFor)
		}
		return line
	case <-limit:
		b.t.Fatalf("%s after its start the machine has not said %s", time.Since(b.began).Round(time.Second), waitingFor)
	}
	return ""
}

// judge turns the plan's results into subtests, to the plan's end, and presses the
// reset button where the plan asks for it.
func (b *booted) judge(limit time.Duration) {
	b.t.Helper()
	timeout := b.within(limit)
	results := 0
	for {
		line := b.next(timeout, "DONE")
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "PLAN":
			b.t.Logf("%s: plan %s", time.Since(b.began).Round(time.Second), rest)
		case "RESULT":
			results++
			name, rest, _ := strings.Cut(rest, " ")
			answer, detail, _ := strings.Cut(rest, " ")
			b.t.Run(name, func(t *testing.T) {
				if answer != "pass" {
					t.Fatal(detail)
				}
				t.Log(detail)
			})
		case "RESET":
			b.t.Logf("%s: reset", time.Since(b.began).Round(time.Second))
			b.reset()
		case "DONE":
			if want, err := strconv.Atoi(rest); err != nil || want != results || results == 0 {
				b.t.Fatalf("the plan gave %s results, %d were heard", rest, results)
			}
			b.t.Logf("%s: done", time.Since(b.began).Round(time.Second))
			return
		}
	}
}

// reset presses the machine's reset button, without a warning to anybody inside.
func (b *booted) reset() {
	b.t.Helper()
	if err := b.monitor("system_reset"); err != nil {
		b.t.Fatal(err)
	}
}

// monitor gives QEMU one command.
func (b *booted) monitor(command string) error {
	conn, err := net.DialTimeout("unix", b.socket(), 10*time.Second)
	if err != nil {
		return fmt.Errorf("the monitor of QEMU: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	answers := json.NewDecoder(conn)
	var greeting map[string]any
	if err := answers.Decode(&greeting); err != nil {
		return fmt.Errorf("the monitor of QEMU has no greeting: %w", err)
	}
	for _, c := range []string{"qmp_capabilities", command} {
		if _, err := fmt.Fprintf(conn, "{\"execute\":%q}\n", c); err != nil {
			return err
		}
		for {
			var answer map[string]any
			if err := answers.Decode(&answer); err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			if e, ok := answer["error"]; ok {
				return fmt.Errorf("%s: %v", c, e)
			}
			if _, ok := answer["return"]; ok {
				break // anything else is an event
			}
		}
	}
	return nil
}

// cacheDir is where images and consoles lie, as in image.sh.
func cacheDir() string {
	base := os.Getenv("SPARKRUN_CI_CACHE")
	if base == "" {
		if base = os.Getenv("XDG_CACHE_HOME"); base == "" {
			base = filepath.Join(os.Getenv("HOME"), ".cache")
		}
		base = filepath.Join(base, "sparkrun-ci")
	}
	return filepath.Join(base, "vm")
}

// buildImage returns the folder of the image, built if need be.
func buildImage(t *testing.T) string {
	t.Helper()
	began := time.Now()
	out, err := exec.Command("./image.sh").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("image.sh: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	dir := lines[len(lines)-1]
	if took := time.Since(began); took > 5*time.Second {
		t.Logf("image built in %s: %s", took.Round(time.Second), dir)
	}
	return dir
}
