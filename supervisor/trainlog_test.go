package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// logBook gathers the records that a trainLogs gives out.
type logBook struct {
	mu      sync.Mutex
	records []string
}

func (b *logBook) add(record []byte, _ time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, string(record))
}

func (b *logBook) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := strings.Join(b.records, " ")
	b.records = nil
	return out
}

// stepped is a trainLogs that is polled by hand.
func stepped(b *logBook, patterns ...string) *trainLogs {
	l := &trainLogs{patterns: patterns, emit: b.add, now: time.Now, files: map[string]*trainLog{}, before: map[string]oldLog{}}
	l.begin()
	return l
}

func writeTo(t *testing.T, path, text string, flag int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flag, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestTrainLog(t *testing.T) {
	t.Parallel()
	// Each step does something to the file and says what must come out.
	type step struct {
		do   func(t *testing.T, path string)
		want string
	}
	add := func(text string) func(*testing.T, string) {
		return func(t *testing.T, path string) { writeTo(t, path, text, os.O_APPEND) }
	}
	remove := func(t *testing.T, path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	nothing := func(*testing.T, string) {}
	for _, c := range []struct {
		name, before string
		steps        []step
	}{
		{"made later", "", []step{{nothing, ""}, {add("a\nb\n"), "a b"}, {nothing, ""}, {add("c\n"), "c"}}},
		{"what was there is of an earlier attempt", "old\nolder\n", []step{{nothing, ""}, {add("new\n"), "new"}}},
		{"begun behind a torn line", "old\n{\"torn", []step{{add("{\"new\"}\n"), "{\"new\"}"}}},
		{"a record comes in pieces", "", []step{{add("{\"a\""), ""}, {add(": 1"), ""}, {add("}\n{"), "{\"a\": 1}"}, {add("}\r\n\n"), "{}"}}},
		{"deleted and made anew, as long as before", "1234\n", []step{
			{func(t *testing.T, path string) { remove(t, path); writeTo(t, path, "5678\n", 0) }, "5678"}, {add("9\n"), "9"},
		}},
		{"deleted, made anew later", "old\n", []step{{remove, ""}, {add("new\n"), "new"}}},
		{"rotated with a record not read yet", "", []step{
			{add("a\n"), "a"},
			{func(t *testing.T, path string) {
				writeTo(t, path, "b\n", os.O_APPEND)
				if err := os.Rename(path, path+".1"); err != nil {
					t.Fatal(err)
				}
				writeTo(t, path, "c\n", 0)
			}, "b c"},
		}},
		{"written anew in place, shorter", "long old line\n", []step{{func(t *testing.T, path string) { writeTo(t, path, "n\n", os.O_TRUNC) }, "n"}}},
		{"written anew in place, longer", "old\n", []step{{func(t *testing.T, path string) { writeTo(t, path, "new and longer\nx\n", os.O_TRUNC) }, "new and longer x"}}},
		{"a record that is too long", "", []step{
			{add(strings.Repeat("x", trainLogLine) + "y"), ""}, {add("more\nshort\n"), "short"},
		}},
		{"a folder in its place, then a pipe, then the file", "", []step{
			{func(t *testing.T, path string) {
				if err := os.Mkdir(path, 0o700); err != nil {
					t.Fatal(err)
				}
			}, ""},
			{func(t *testing.T, path string) {
				remove(t, path)
				if err := syscall.Mkfifo(path, 0o600); err != nil {
					t.Fatal(err)
				}
			}, ""},
			{func(t *testing.T, path string) { remove(t, path); writeTo(t, path, "a\n", 0) }, "a"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "trainer_log.jsonl")
			if c.before != "" {
				writeTo(t, path, c.before, 0)
			}
			var b logBook
			l := stepped(&b, path)
			for i, s := range c.steps {
				s.do(t, path)
				l.poll()
				if got := b.take(); got != s.want {
					t.Errorf("step %d: %q, want %q", i, got, s.want)
				}
			}
			if len(l.files) > 1 {
				t.Errorf("%d files are open", len(l.files))
			}
		})
	}
}

// TestTrainLogGlob: swift makes a folder for each run; those of earlier ones say
// nothing, however many there are.
func TestTrainLogGlob(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "out [1]")
	file := func(run string) string { return filepath.Join(dir, run, "logging.jsonl") }
	make := func(run, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(file(run)), 0o700); err != nil {
			t.Fatal(err)
		}
		writeTo(t, file(run), text, os.O_APPEND)
	}
	const runs = 3 * trainLogFiles
	for i := range runs {
		make(fmt.Sprintf("v%d-2026", i), "old\n")
	}
	var b logBook
	l := stepped(&b, filepath.Join(strings.ReplaceAll(dir, "[", "\\["), "v*-*", "logging.jsonl"))
	l.poll()
	if got := b.take(); got != "" {
		t.Errorf("of earlier runs: %q", got)
	}
	make("v99-2026", "a\n")
	l.poll()
	make("v99-2026", "b\n")
	l.poll()
	if got := b.take(); got != "a b" {
		t.Errorf("of the new run: %q", got)
	}
	// An earlier one that is written to again goes on where it stood.
	for i := range runs {
		make(fmt.Sprintf("v%d-2026", i), fmt.Sprintf("%d\n", i))
		l.poll()
		if got := b.take(); got != fmt.Sprint(i) {
			t.Errorf("run %d: %q", i, got)
		}
	}
	make("v99-2026", "c\n")
	l.poll()
	if got := b.take(); got != "c" {
		t.Errorf("of the new run, closed in between: %q", got)
	}
	if len(l.files) > trainLogFiles {
		t.Errorf("%d files are open", len(l.files))
	}
}

// TestTrainLogFollows: the whole thing with its goroutine, and what stop still reads.
func TestTrainLogFollows(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a[b]", "training.jsonl")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	writeTo(t, path, "old\n", 0)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var b logBook
	l := followTrainLogs(context.Background(), []string{path}, time.Now, b.add)
	var text strings.Builder
	var want []string
	for i := range 120_000 {
		r := fmt.Sprintf(`{"step":%d}`, i)
		want = append(want, r)
		text.WriteString(r + "\n")
	}
	writeTo(t, path, text.String()+`{"last":1}`, os.O_APPEND)
	l.stop(time.Minute)
	l.stop(time.Minute)
	if !slices.Equal(b.records, append(want, `{"last":1}`)) {
		t.Errorf("%d records", len(b.records))
	}
	after, err := os.ReadFile(path)
	if err != nil || string(after) != string(before)+text.String()+`{"last":1}` {
		t.Errorf("the file was changed: %v", err)
	}
	for _, f := range l.files {
		if f.f.Close() == nil {
			t.Error("a file was left open")
		}
	}
}

// TestTrainLogEnds: without patterns nothing runs; a context that ends, ends it.
func TestTrainLogEnds(t *testing.T) {
	t.Parallel()
	followTrainLogs(context.Background(), nil, time.Now, nil).stop(time.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	l := followTrainLogs(ctx, []string{filepath.Join(t.TempDir(), "no", "such")}, time.Now, nil)
	cancel()
	<-l.done
}
