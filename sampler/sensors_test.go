package sampler

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sparkrun/e2e/fakenvml"
	"sparkrun/internal/proctree"
	"sparkrun/sampler/nvml"
)

// The test binary is the sensors process as well.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == SensorsArg {
		os.Exit(SensorsMain(os.Args[2:], os.Stdout))
	}
	if len(os.Args) > 3 && os.Args[1] == rowsArg {
		writeRows(os.Args[2:])
	}
	os.Exit(m.Run())
}

// machine is what a sensors process sees.
type machine struct {
	// lib is the path of the management library; "" is the fake one.
	lib      string
	scenario []string
	env      []string
	// flags are added to those that the sampler gives.
	flags []string
	root  string
}

// exe writes a program that is the sensors process on that machine.
func (m machine) exe(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if m.lib == "" {
		if !nvml.Built {
			t.Skip("needs a build with cgo: this one cannot read NVML")
		}
		m.lib = fakenvml.Build(t)
	}
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	export := append([]string{"SPARKRUN_NVML_LIBRARY=" + m.lib}, m.env...)
	if m.scenario != nil {
		path := filepath.Join(dir, "scenario")
		writeFile(t, path, strings.Join(m.scenario, "\n")+"\n")
		export = append(export, "FAKENVML_SCENARIO="+path)
	}
	for _, e := range export {
		fmt.Fprintf(&b, "export '%s'\n", e)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if m.root != "" {
		m.flags = append(m.flags, "-root", m.root)
	}
	fmt.Fprintf(&b, "exec '%s' \"$@\" %s\n", self, strings.Join(m.flags, " "))
	path := filepath.Join(dir, "sparkrun")
	writeFile(t, path, b.String())
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// spark writes a /sys with two zones.
func spark(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for i, temp := range []string{"71000", "78500"} {
		zone := filepath.Join(root, "sys/class/thermal", "thermal_zone"+strconv.Itoa(i))
		writeFile(t, filepath.Join(zone, "type"), "acpitz\n")
		writeFile(t, filepath.Join(zone, "temp"), temp+"\n")
	}
	return root
}

// stream is a sensors process that a test listens to.
type stream struct {
	t     *testing.T
	cmd   *exec.Cmd
	out   io.ReadCloser
	lines chan record
}

func (m machine) start(t *testing.T) *stream {
	t.Helper()
	s := &stream{t: t, cmd: exec.Command(m.exe(t), SensorsArg, "-interval", "20ms"), lines: make(chan record, 10_000)}
	s.cmd.Stderr = os.Stderr
	var err error
	if s.out, err = s.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	go func() {
		defer close(s.lines)
		in := bufio.NewScanner(s.out)
		for in.Scan() {
			var r record
			if err := json.Unmarshal(in.Bytes(), &r); err != nil {
				t.Errorf("%v in %q", err, in.Bytes())
				return
			}
			s.lines <- r
		}
	}()
	return s
}

// until returns the first record that is wanted.
func (s *stream) until(what string, want func(record) bool) record {
	s.t.Helper()
	limit := time.After(10 * time.Second)
	for {
		select {
		case r, ok := <-s.lines:
			if !ok {
				s.t.Fatalf("the sensors process ended before: %s", what)
			}
			if want(r) {
				return r
			}
		case <-limit:
			s.t.Fatalf("not seen within 10 s: %s", what)
		}
	}
}

func TestSensorsProcessSaysTheDeviceFirst(t *testing.T) {
	t.Parallel()
	s := machine{scenario: []string{"at 0s temp 71 power 96.5"}, root: spark(t)}.start(t)
	first := <-s.lines
	if d := first.Device; d == nil || first.Pending || d.Source != "nvml" || d.Name != "NVIDIA GB10" {
		t.Fatalf("first record = %+v", first)
	}
	if got := strings.Join(first.Device.Absent, " "); got != "clock_mem_mhz cpu_mhz energy_soc_j memory_total_mib power_cap_pl1_w power_cap_sys_w power_sys_w temp_nvme_c" {
		t.Errorf("absent = %s", got)
	}
	var last time.Duration
	for range 5 {
		r := <-s.lines
		if r.GPU == nil || r.GPU.TempC.V != 71 || r.GPU.PowerW.V != 96.5 || r.GPU.ZoneMaxC.V != 78.5 || len(r.GPU.Failed) != 0 {
			t.Fatalf("reading = %+v", r.GPU)
		}
		if r.GPU.T <= last || r.GPU.Took <= 0 {
			t.Errorf("reading at %v after one at %v, took %v", r.GPU.T, last, r.GPU.Took)
		}
		last = r.GPU.T
	}
}

func TestAHungDriverCostsItsReadingsOnly(t *testing.T) {
	t.Parallel()
	s := machine{
		scenario: []string{"at 0s temp 60", "at 0.3s block 1s", "at 1s temp 90"},
		root:     spark(t), flags: []string{"-deadline", "100ms"},
	}.start(t)
	s.until("a reading before", func(r record) bool { return r.GPU != nil && r.GPU.TempC.V == 60 })
	for i := range 5 {
		r := s.until("no answer", func(r record) bool { return r.GPU != nil && r.GPU.Failed["nvml"] != "" })
		if !strings.Contains(r.GPU.Failed["nvml"], "no answer for") || r.GPU.TempC.OK || r.GPU.ZoneMaxC.V != 78.5 {
			t.Errorf("record %d of the hang = %+v", i, r.GPU)
		}
	}
	r := s.until("a reading after", func(r record) bool { return r.GPU != nil && r.GPU.TempC.OK })
	if r.GPU.TempC.V != 90 || r.GPU.Took > 100*time.Millisecond {
		t.Errorf("after the hang: %+v", r.GPU)
	}
}

func TestADriverThatHangsAtTheStartIsPending(t *testing.T) {
	t.Parallel()
	s := machine{
		scenario: []string{"at 0s temp 60 block 0.5s"},
		root:     spark(t), flags: []string{"-deadline", "50ms"},
	}.start(t)
	first := <-s.lines
	if first.Device == nil || !first.Pending || first.Device.Source != "none" {
		t.Fatalf("first record = %+v", first)
	}
	if r := s.until("the device", func(r record) bool { return r.Device != nil && !r.Pending }); r.Device.Source != "nvml" {
		t.Errorf("device = %+v", r.Device)
	}
	s.until("a reading", func(r record) bool { return r.GPU != nil && r.GPU.TempC.V == 60 })
}

func TestWithoutALibraryTheHostIsRead(t *testing.T) {
	t.Parallel()
	s := machine{lib: "/nonexistent/libnvidia-ml.so.1", root: spark(t)}.start(t)
	first := <-s.lines
	if d := first.Device; d == nil || first.Pending || d.Source != "none" || d.ErrKind != "no-library" || d.Err == "" {
		t.Fatalf("first record = %+v", first)
	}
	r := <-s.lines
	if r.GPU == nil || r.GPU.ZoneMaxC.V != 78.5 || r.GPU.TempC.OK || len(r.GPU.Failed) != 0 {
		t.Errorf("reading = %+v", r.GPU)
	}
}

func TestSensorsProcessEndsWhenNobodyListens(t *testing.T) {
	t.Parallel()
	s := machine{root: spark(t)}.start(t)
	<-s.lines
	s.out.Close()
	done := make(chan struct{})
	go func() { _, _ = s.cmd.Process.Wait(); close(done) }()
	receive(t, "end of the sensors process", done)
}

func TestSensorsProcessEndsWithItsParent(t *testing.T) {
	t.Parallel()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	exe := machine{root: spark(t)}.exe(t)
	// Its output goes to a file, which takes all there is.
	sh := exec.Command("/bin/sh", "-c", `"$0" __sensors -interval 20ms >"$1" & echo $!; read hold`, exe, out.Name())
	in, err := sh.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pidLine, err := sh.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(pidLine).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	poll := func(what string, ok func() bool) {
		for !ok() {
			if time.Now().After(deadline) {
				t.Fatalf("not within 10 s: %s", what)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	poll("a record", func() bool { info, err := out.Stat(); return err == nil && info.Size() > 1000 })
	in.Close()
	_ = sh.Wait()
	poll("the end of the sensors process", func() bool {
		p, ok := proctree.Read(pid)
		return !ok || p.State == 'Z'
	})
}

func TestBadFlagsOfTheSensorsProcess(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-interval", "0"}, {"-interval", "x"}, {"-nosuch"}} {
		if rc := SensorsMain(args, io.Discard); rc != 125 {
			t.Errorf("%v: status %d", args, rc)
		}
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	d, g, err := Probe(t.Context(), machine{scenario: []string{"at 0s temp 71"}}.exe(t))
	if err != nil || d.Name != "NVIDIA GB10" || g.TempC.V != 71 {
		t.Errorf("%+v %+v %v", d, g, err)
	}
	d, _, err = Probe(t.Context(), machine{lib: "/nonexistent/libnvidia-ml.so.1"}.exe(t))
	if err != nil || d.Source != "none" || d.ErrKind != "no-library" {
		t.Errorf("without a library: %+v %v", d, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, _, err = Probe(ctx, machine{scenario: []string{"at 0s block 60s"}, flags: []string{"-deadline", "50ms"}}.exe(t))
	if err == nil || time.Since(start) > 10*time.Second {
		t.Errorf("a hung driver: %v after %v", err, time.Since(start))
	}
}
