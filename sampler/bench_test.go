package sampler

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sparkrun/e2e/fakenvml"
	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
	"sparkrun/sampler/nvml"
)

// BenchmarkCost samples for 30 s at the default rate and reports what that
// costs: CPU of this process and of the sensors process, memory of both, and
// how late the ticks are.
func BenchmarkCost(b *testing.B) {
	if !nvml.Built {
		b.Skip("needs a build with cgo: this one cannot read NVML")
	}
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	b.Setenv("SPARKRUN_NVML_LIBRARY", fakenvml.Build(b))
	const length = 30 * time.Second
	for b.Loop() {
		var late []float64
		first := time.Time{}
		s, err := Start(b.Context(), Options{
			Exe: exe, Clock: clock.Start(), Dir: b.TempDir(),
			Tree: func() []int { return []int{os.Getpid(), os.Getppid()} },
			OnSample: func(s *sample.Sample) {
				if first.IsZero() {
					first = s.T
				}
				late = append(late, float64((s.T.Sub(first)+DefaultTick/2)%DefaultTick-DefaultTick/2)/1e6)
			},
		})
		if err != nil {
			b.Fatal(err)
		}
		if _, ok := s.First(b.Context()); !ok {
			b.Fatal("no reading")
		}
		child := s.ChildPID()
		self0, child0 := cpuSeconds(b, os.Getpid()), cpuSeconds(b, child)
		time.Sleep(length)
		self, sensors := cpuSeconds(b, os.Getpid())-self0, cpuSeconds(b, child)-child0
		b.ReportMetric(self, "sampler-cpu-s")
		b.ReportMetric(sensors, "sensors-cpu-s")
		b.ReportMetric(100*(self+sensors)/length.Seconds(), "%core")
		b.ReportMetric(pssMiB(b, os.Getpid()), "sampler-MiB")
		b.ReportMetric(pssMiB(b, child), "sensors-MiB")
		s.Stop()
		slices.Sort(late)
		b.ReportMetric(late[len(late)*99/100], "p99-late-ms")
		b.ReportMetric(late[len(late)/2], "p50-late-ms")
	}
}

// BenchmarkTick is one row of telemetry.csv, the kernel's own work for it included, where
// everything is in the caches. Rows a second apart cost more by a few cache misses.
func BenchmarkTick(b *testing.B) {
	s, err := Start(b.Context(), Options{
		Clock: clock.Start(), Dir: b.TempDir(), Tick: time.Hour, Interval: time.Hour,
		Tree: func() []int { return []int{os.Getpid(), os.Getppid()} },
	})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Stop()
	b.ReportAllocs()
	for b.Loop() {
		s.tick(0)
	}
}

// cpuSeconds adds up the run time of a process's threads, which the kernel
// keeps in nanoseconds.
func cpuSeconds(b *testing.B, pid int) float64 {
	b.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	var ns float64
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		v, _ := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
		ns += v
	}
	return ns / 1e9
}

func pssMiB(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nPss:")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib / 1024
}
