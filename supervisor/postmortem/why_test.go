package postmortem

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sparkrun/ladder/oom"
)

var builtIn = sync.OnceValues(func() (*oom.Table, error) { return oom.Load() })

func table(t testing.TB) *oom.Table {
	t.Helper()
	tab, err := builtIn()
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

const cudaDeath = `Traceback (most recent call last):
  File "/home/u/train.py", line 12, in <module>
    trainer.train()
  File "/home/u/trainer.py", line 90, in training_step
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 119.60 GiB of which 1.20 GiB is free.
`

func died(code int) oom.Exit { return oom.Exit{Known: true, Code: code} }

func judge(t *testing.T, log string, o LogOptions) Answer {
	t.Helper()
	o.Path, o.Stdin = "-", strings.NewReader(log)
	a, err := JudgeLog(table(t), o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestJudgeLogNamesTheLine(t *testing.T) {
	t.Parallel()
	log := strings.Repeat("loading shard\n", 997) + "{'loss': 1.5}\n" + cudaDeath
	a := judge(t, log, LogOptions{Exit: died(1)})
	v := a.Verdict
	if v.Answer != oom.OOM || v.Kind != "cuda-allocator" || v.Confidence != oom.High {
		t.Fatalf("%s %s %s", v.Answer, v.Kind, v.Confidence)
	}
	if got := v.Evidence[0].Line; got != 1004 {
		t.Errorf("line %d, want 1004", got)
	}
	if v.Sizes["requested"] != 5<<29 {
		t.Errorf("sizes %v", v.Sizes)
	}
}

// Whatever a log is made of, there is an answer, and the death at its end is found
// where there is one.
func TestJudgeLogOddInput(t *testing.T) {
	t.Parallel()
	bar := "\r 40%|####      | 4/10 [00:04<00:06,  1.00s/it]"
	for name, c := range map[string]struct {
		log  string
		want oom.Answer
	}{
		"empty":                {"", oom.NotOOM},
		"CRLF":                 {strings.ReplaceAll(cudaDeath, "\n", "\r\n"), oom.OOM},
		"CR CR LF":             {strings.ReplaceAll(cudaDeath, "\n", "\r\r\n"), oom.OOM},
		"no newline at end":    {strings.TrimSpace(cudaDeath), oom.OOM},
		"behind a bar":         {bar + "\n" + cudaDeath, oom.OOM},
		"behind many redraws":  {strings.Repeat(bar, 200000) + "\n" + cudaDeath, oom.OOM},
		"behind a long line":   {strings.Repeat("x", 9<<20) + "\n" + cudaDeath, oom.OOM},
		"behind only CRs":      {strings.Repeat("\r", 3<<20) + "\n" + cudaDeath, oom.OOM},
		"NULs before":          {strings.Repeat("\x00", 1<<20) + "\n" + cudaDeath, oom.OOM},
		"NULs between":         {strings.ReplaceAll(cudaDeath, "\n", "\x00\x00\n"), oom.OOM},
		"invalid UTF-8":        {"\xff\xfe\xc3\x28\n" + cudaDeath, oom.OOM},
		"drawn over":           {"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB\rall went well\n", oom.NotOOM},
		"random bytes":         {randomBytes(2 << 20), oom.NotOOM},
		"a million blank ones": {strings.Repeat("\n", 1e6) + cudaDeath, oom.OOM},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if v := judge(t, c.log, LogOptions{Exit: died(1)}).Verdict; v.Answer != c.want {
				t.Errorf("%s (%s%s), want %s", v.Answer, v.Kind, v.Reason, c.want)
			}
		})
	}
}

// randomBytes are the same every time.
func randomBytes(n int) string {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

func TestJudgeLogNotes(t *testing.T) {
	t.Parallel()
	for log, want := range map[string]string{
		"":                             "empty",
		"an ordinary line\nand more\n": "",
	} {
		a := judge(t, log, LogOptions{Exit: died(1)})
		if got := strings.Join(a.Notes, "; "); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: notes %q, want %q", log, got, want)
		}
	}
}

// What was not unpacked was not read: there is no answer, and the way to one is told.
func TestJudgeLogCompressed(t *testing.T) {
	t.Parallel()
	for log, want := range map[string]string{
		"\x1f\x8b\x08\x00rest": "zcat | sparkrun why -", "\x28\xb5\x2f\xfdrest": "zstdcat", "BZh9rest": "bzcat", "\xfd7zXZrest": "xzcat",
	} {
		path := filepath.Join(t.TempDir(), "train.log")
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, o := range map[string]LogOptions{"pipe": {Path: "-", Stdin: strings.NewReader(log)}, "file": {Path: path}} {
			o.Exit = died(1)
			_, err := JudgeLog(table(t), o)
			if err == nil || !strings.Contains(err.Error(), "compressed") || name == "pipe" && !strings.Contains(err.Error(), want) {
				t.Errorf("%s of %q: %v", name, log, err)
			}
		}
	}
}

// failing delivers some bytes and then an error.
type failing struct {
	r   io.Reader
	err error
}

func (f *failing) Read(b []byte) (int, error) {
	n, err := f.r.Read(b)
	if errors.Is(err, io.EOF) {
		err = f.err
	}
	return n, err
}

// A disk that breaks in the middle of a log costs the rest of it, not the answer.
func TestJudgeLogReadError(t *testing.T) {
	t.Parallel()
	a, err := JudgeLog(table(t), LogOptions{Path: "-", Stdin: &failing{strings.NewReader(cudaDeath), unix.EIO}, Exit: died(1)})
	if err != nil || a.Verdict.Answer != oom.OOM || len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "input/output error") {
		t.Errorf("%s, notes %q, error %v", a.Verdict.Answer, a.Notes, err)
	}
	if _, err := JudgeLog(table(t), LogOptions{Path: "-", Stdin: &failing{strings.NewReader(""), unix.EIO}}); err == nil {
		t.Error("no error although nothing could be read")
	}
}

func TestJudgeLogFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, want := range map[string]string{
		filepath.Join(dir, "missing"):           "there is no file",
		dir:                                     "neither a log nor a run directory",
		filepath.Join(dir, "missing", "deeper"): "there is no file",
	} {
		_, err := JudgeLog(table(t), LogOptions{Path: path})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", path, err, want)
		}
	}
	log := write(t, filepath.Join(dir, "log"), []byte("Killed\n"))
	missing := filepath.Join(dir, "missing")
	if _, err := JudgeLog(table(t), LogOptions{Path: log, System: []string{missing}}); err == nil {
		t.Error("a missing system file is no error")
	}
	if _, err := JudgeLog(table(t), LogOptions{Path: log, Telemetry: []string{missing}}); err == nil {
		t.Error("a missing telemetry file is no error")
	}
}

func TestJudgeLogFromFIFO(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		for i := range len(cudaDeath) { // byte by byte: short reads
			if _, err := f.WriteString(cudaDeath[i : i+1]); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	a, err := JudgeLog(table(t), LogOptions{Path: path, Exit: died(1)})
	if err != nil || a.Verdict.Answer != oom.OOM {
		t.Errorf("%s, %v", a.Verdict.Answer, err)
	}
}

// A log that grows faster than it is read still has an end.
func TestJudgeLogThatGrows(t *testing.T) {
	t.Parallel()
	path := write(t, filepath.Join(t.TempDir(), "log"), bytes.Repeat([]byte("a line\n"), 1000))
	r, total, done, err := openLog(LogOptions{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	n := int64(0)
	for {
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
		k, err := r.Read(block)
		n += int64(k)
		if errors.Is(err, io.EOF) {
			break
		}
		if n > total+2*growMost {
			t.Fatal("it is read for ever")
		}
	}
	if n != total+growMost {
		t.Errorf("read %d bytes, want %d", n, total+growMost)
	}
}

func TestJudgeLogWithSystemAndTelemetry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	system := write(t, filepath.Join(dir, "kernel"), []byte("[100.1] Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:2048kB, file-rss:0kB, shmem-rss:0kB\n"))
	low := write(t, filepath.Join(dir, "low.csv"), csvOf(row(0, 1, 110), row(50, 1, 30), row(51, 1, 1)))
	clear := write(t, filepath.Join(dir, "clear.csv"), csvOf(row(0, 1, 110), row(50, 1, 90), row(51, 1, 90)))
	end, err := ParseEnd("", "KILL")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    LogOptions
		want oom.Answer
	}{
		"nothing":   {LogOptions{}, oom.Unsure},
		"kernel":    {LogOptions{System: []string{system}}, oom.OOM},
		"low":       {LogOptions{Telemetry: []string{low}}, oom.OOM},
		"clear":     {LogOptions{Telemetry: []string{clear}}, oom.NotOOM},
		"two files": {LogOptions{System: []string{os.DevNull, system}}, oom.OOM},
	} {
		c.o.Exit = end
		if v := judge(t, "step 1\nKilled\n", c.o).Verdict; v.Answer != c.want {
			t.Errorf("%s: %s (%s%s), want %s", name, v.Answer, v.Kind, v.Reason, c.want)
		}
	}
}

// A whole journal can be given: what matters is kept, what does not is not.
func TestSystemFileIsBounded(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	for range 100000 {
		b.WriteString("Jul 14 03:00:00 spark NetworkManager[1]: state change, nothing to see\n")
	}
	b.WriteString(strings.Repeat("z", 1<<20) + "\n")
	b.WriteString("Jul 14 03:00:01 spark kernel: Out of memory: Killed process 4711 (python3) total-vm:1kB\n")
	b.WriteString("the last one, torn")
	path := write(t, filepath.Join(t.TempDir(), "journal"), b.Bytes())
	var ev oom.Evidence
	if _, err := readSystem(&ev, path); err != nil {
		t.Fatal(err)
	}
	if len(ev.Kernel) > systemLines+10 {
		t.Errorf("%d lines kept", len(ev.Kernel))
	}
	found := false
	for _, r := range ev.Kernel {
		found = found || strings.Contains(r.Text, "4711")
		if len(r.Text) > systemLineMax {
			t.Errorf("a line of %d bytes", len(r.Text))
		}
	}
	if !found {
		t.Error("the record of the kill is lost")
	}
}

func TestAnswerJSON(t *testing.T) {
	t.Parallel()
	a := judge(t, cudaDeath, LogOptions{Exit: died(1)})
	b, err := a.JSON()
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"schema", "verdict", "kind", "reason", "phase", "confidence", "evidence", "sizes", "advice", "unreadable", "lever"} {
		if v, ok := m[key]; !ok || v == nil {
			t.Errorf("%s is %v", key, v)
		}
	}
	if m["kind"] != "cuda-allocator" || m["reason"] != "" {
		t.Errorf("kind %v, reason %v", m["kind"], m["reason"])
	}
	if b, err = (Answer{}).JSON(); err != nil || bytes.Contains(b, []byte("null")) {
		t.Errorf("an empty answer: %s, %v", b, err)
	}
}

func TestUntilEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	r := until(ctx, strings.NewReader("abc"))
	b := make([]byte, 1)
	if n, err := r.Read(b); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	cancel()
	if _, err := r.Read(b); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if n := countLines(ctx, strings.NewReader("a\nb\n")); n != -1 {
		t.Errorf("%d lines counted although there was no time", n)
	}
	if n := countLines(context.Background(), strings.NewReader("a\nb\nc")); n != 2 {
		t.Errorf("%d lines, want 2", n)
	}
}
