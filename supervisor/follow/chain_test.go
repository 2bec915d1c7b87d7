package follow_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/supervisor/follow"
	"sparkrun/supervisor/runlog"
)

// chain runs a file through reader, splitter, cleaner, folder and run.log, as a
// run does, and returns the run.log.
func chain(tb testing.TB, attempt string, size int64) string {
	tb.Helper()
	clk := clock.Start()
	d := &runlog.Dir{Path: tb.TempDir(), ID: "x"}
	l, err := runlog.OpenLog(d, clk)
	if err != nil {
		tb.Fatal(err)
	}
	now := clk.Now()
	f := follow.NewFolder(l.Line)
	s := follow.NewSplitter(func(off int64) time.Time { return now.Add(time.Duration(off/1e6) * 10 * time.Millisecond) }, f.Line)
	r := follow.NewReader(follow.Source{Dir: attempt, Final: func() (int64, bool) { return size, true }}, 0)
	for {
		c, err := r.Next(context.Background())
		if err != nil {
			break
		}
		s.Write(c)
	}
	s.Close()
	f.Close()
	if err := l.Close(); err != nil {
		tb.Fatal(err)
	}
	return d.File(runlog.LogFile)
}

func TestChainLosesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var in bytes.Buffer
	const lines = 50_000
	for i := range lines {
		in.WriteString("\x1b[32mstep\x1b[0m ")
		in.Write(bytes.Repeat([]byte{'x'}, i%150))
		in.WriteByte('\n')
	}
	if err := os.WriteFile(filepath.Join(dir, "output.log"), in.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(chain(t, dir, int64(in.Len())))
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	for line := range bytes.Lines(log) {
		want := " | step " + string(bytes.Repeat([]byte{'x'}, i%150)) + "\n"
		if got := string(line[len(clock.Layout):]); got != want {
			t.Fatalf("line %d is %q, want %q", i, got, want)
		}
		i++
	}
	if i != lines {
		t.Errorf("%d lines, want %d", i, lines)
	}
}

// BenchmarkChain is the throughput of the whole way from output.log to run.log,
// in bytes the command printed.
func BenchmarkChain(b *testing.B) {
	for name, line := range map[string]string{
		"plain":  "step 12345/99999 loss=0.8123 lr=1.8e-4 grad_norm=0.731 tokens=1234567890 mem=71\n",
		"colour": "\x1b[32mstep\x1b[0m 12345/99999 loss=0.8123 lr=1.8e-4 grad_norm=0.731 tokens=123456\n",
	} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			data := bytes.Repeat([]byte(line), 64<<20/len(line))
			if err := os.WriteFile(filepath.Join(dir, "output.log"), data, 0o600); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				_ = os.Remove(chain(b, dir, int64(len(data))))
			}
		})
	}
}
