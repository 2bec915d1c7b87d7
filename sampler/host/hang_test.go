package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/sample"
)

// hang makes a file a FIFO: opening it blocks until somebody writes.
func hang(t *testing.T, root, name string) (path string) {
	t.Helper()
	path = filepath.Join(root, "sys/class", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	// Whoever still waits at the end is let go.
	t.Cleanup(func() { release(t, path, "1\n") })
	return path
}

// release answers one reader that waits, and tells whether there was one.
func release(t *testing.T, path, text string) bool {
	t.Helper()
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(text))
	return err == nil
}

// poll waits until ok.
func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// quick finds sensors with short deadlines.
func quick(root string) *Sensors {
	s := newSensors(root)
	s.pool.deadline, s.pool.budget, s.pool.patient = 100*time.Millisecond, 3*time.Second, 2*time.Second
	s.scan()
	return s
}

func zones(root string, t *testing.T, temps ...string) {
	t.Helper()
	for i, temp := range temps {
		put(t, root, fmt.Sprintf("thermal/thermal_zone%d/type", i), "acpitz")
		put(t, root, fmt.Sprintf("thermal/thermal_zone%d/temp", i), temp)
	}
}

func TestAFileThatHangsCostsItsOwnReadingOnly(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	zones(root, t, "90300", "78400", "81000")
	put(t, root, "hwmon/hwmon1/name", "nvme")
	put(t, root, "hwmon/hwmon1/temp1_label", "Composite")
	put(t, root, "hwmon/hwmon1/temp1_input", "61850")
	s := quick(root)
	fifo := hang(t, root, "thermal/thermal_zone1/temp")

	const key = "host/thermal_zone1/temp"
	for i := range 5 {
		var g sample.GPU
		start := time.Now()
		s.Read(&g)
		took := time.Since(start)
		if g.ZoneMaxC != sample.Known(90.3) || g.NVMeC != sample.Known(61.85) || len(g.Zones) != 3 || g.Zones[1].C.OK || !g.Zones[2].C.OK {
			t.Errorf("reading %d: %+v", i, g)
		}
		if took > 10*s.pool.deadline {
			t.Errorf("reading %d took %v", i, took)
		}
		// It is waited for once; from then on it is known to hang.
		if i > 0 && took >= s.pool.deadline {
			t.Errorf("reading %d waited %v for a file that hangs", i, took)
		}
	}
	if s.pool.hung != 1 {
		t.Errorf("%d readers hang", s.pool.hung)
	}
	// It is said after a while, and at every reading.
	poll(t, "the name of the file that hangs", func() bool {
		var g sample.GPU
		s.Read(&g)
		return strings.HasPrefix(g.Failed[key], "no answer for ")
	})

	// What it says at last is of some other time. Then it answers again.
	if !release(t, fifo, "50000\n") {
		t.Fatal("nobody waits for the file")
	}
	put(t, root, "thermal/thermal_zone1/gone", "")
	if err := os.Remove(fifo); err != nil {
		t.Fatal(err)
	}
	put(t, root, "thermal/thermal_zone1/temp", "79000")
	poll(t, "a reading again", func() bool {
		var g sample.GPU
		s.Read(&g)
		if c := g.Zones[1].C; c.OK && c.V != 79 {
			t.Fatalf("an old answer stands as new: %+v", c)
		}
		return g.Zones[1].C.OK && len(g.Failed) == 0
	})
	if s.pool.hung != 0 {
		t.Errorf("%d readers hang", s.pool.hung)
	}
}

func TestAFileThatIsAlwaysLateIsAskedLessOften(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	zones(root, t, "90300", "78400")
	s := quick(root)
	fifo := hang(t, root, "thermal/thermal_zone1/temp")
	var g sample.GPU
	for range 2 {
		poll(t, "a question", func() bool { g = sample.GPU{}; s.Read(&g); return s.pool.awaited(s.zones[1].in) && s.pool.hung == 1 })
		poll(t, "an answer", func() bool { return release(t, fifo, "50000\n") })
		poll(t, "its end", func() bool { s.pool.mu.Lock(); defer s.pool.mu.Unlock(); return s.pool.hung == 0 })
	}
	for range 5 {
		g = sample.GPU{}
		start := time.Now()
		s.Read(&g)
		if took := time.Since(start); took >= s.pool.deadline || !strings.Contains(g.Failed["host/thermal_zone1/temp"], "answers later than") {
			t.Errorf("took %v, failed %v", took, g.Failed)
		}
	}
	if s.pool.hung != 0 {
		t.Error("it was asked at once again")
	}
}

func TestWhenEverythingHangsAReadingEnds(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	n := maxHung + 10
	for i := range n {
		put(t, root, fmt.Sprintf("thermal/thermal_zone%d/type", i), "acpitz")
		hang(t, root, fmt.Sprintf("thermal/thermal_zone%d/temp", i))
	}
	start := time.Now()
	s := quick(root)
	var g sample.GPU
	s.Read(&g)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	s.pool.mu.Lock()
	hung := s.pool.hung
	s.pool.mu.Unlock()
	if g.ZoneMaxC.OK || hung == 0 || hung > maxHung {
		t.Errorf("%d readers hang, zone %+v", hung, g.ZoneMaxC)
	}
	poll(t, "one sentence about all of them", func() bool {
		g = sample.GPU{}
		s.Read(&g)
		return strings.HasSuffix(g.Failed[Source], " sensors do not answer") && len(g.Failed) == 1
	})
}

// What is read once while looking for sensors may hang as well.
func TestLookingForSensorsDoesNotHang(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	zones(root, t, "71000")
	put(t, root, "thermal/thermal_zone0/trip_point_0_type", "critical")
	hang(t, root, "thermal/thermal_zone0/trip_point_0_temp")
	hang(t, root, "thermal/thermal_zone7/type")
	hang(t, root, "hwmon/hwmon0/name")
	put(t, root, "hwmon/hwmon1/name", "nvme")
	put(t, root, "hwmon/hwmon1/temp1_input", "40000")
	hang(t, root, "hwmon/hwmon1/temp1_crit")
	s := quick(root)
	var g sample.GPU
	s.Read(&g)
	if g.ZoneMaxC != sample.Known(71) || g.NVMeC != sample.Known(40) || g.Zones[0].CritC.OK || len(g.Failed) != 0 {
		t.Errorf("%+v", g)
	}
	start := time.Now()
	s.scan()
	if took := time.Since(start); took >= 4*s.pool.deadline {
		t.Errorf("looking again took %v: it waited for what hangs", took)
	}
}
