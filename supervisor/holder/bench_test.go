package holder

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const benchBytes = 256 << 20

// BenchmarkHolder is the rate at which output reaches output.log, end of the
// attempt included.
func BenchmarkHolder(b *testing.B) {
	for _, kind := range []string{"pty", "pipe"} {
		b.Run(kind, func(b *testing.B) {
			b.SetBytes(benchBytes)
			for b.Loop() {
				spec := baseSpec(shortDir(b), self(b), "fake-flood", strconv.Itoa(benchBytes))
				spec.Socket = ""
				if kind == "pipe" {
					spec.PTY, spec.Stdin = false, StdinNull
				}
				a := start(b, spec, nil)
				if e := a.end(); e.Offset != benchBytes || e.GapBytes != 0 {
					b.Fatalf("exit %+v", e)
				}
				os.Remove(filepath.Join(a.dir, logName))
			}
		})
	}
}

// BenchmarkRawPTY is the ceiling: the same producer on the same terminal, and
// a loop that reads and throws away.
func BenchmarkRawPTY(b *testing.B) {
	b.SetBytes(benchBytes)
	for b.Loop() {
		src, err := openPTY(40, 120)
		if err != nil {
			b.Fatal(err)
		}
		// Back to a plain blocking loop, as the simplest reader has it.
		fd := int(src.f.Fd())
		if err := unix.SetNonblock(fd, false); err != nil {
			b.Fatal(err)
		}
		out := src.child.Fd()
		pid, err := syscall.ForkExec(self(b), []string{"x", "fake-flood", strconv.Itoa(benchBytes)}, &syscall.ProcAttr{
			Files: []uintptr{out, out, out}, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1},
		})
		if err != nil {
			b.Fatal(err)
		}
		src.child.Close()
		buf := make([]byte, readMax)
		total := 0
		for {
			n, err := unix.Read(fd, buf)
			if err != nil {
				break
			}
			total += n
		}
		if total != benchBytes {
			b.Fatalf("%d bytes", total)
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
			b.Fatal(err)
		}
		src.f.Close()
	}
}

// BenchmarkStartToEnd is what one attempt of /bin/true costs, from Start to the
// end of the holder.
func BenchmarkStartToEnd(b *testing.B) {
	var started time.Duration
	for b.Loop() {
		spec := baseSpec(shortDir(b), "true")
		began := time.Now()
		a := start(b, spec, nil)
		started += time.Since(began)
		a.end()
	}
	b.ReportMetric(float64(started.Microseconds())/float64(b.N)/1000, "ms-to-start")
}
