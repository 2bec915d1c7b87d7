package shim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sparkrun/internal/job"
)

// records makes an attempt's folder with these record files.
func records(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, RecordDir), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, RecordDir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestReadWithoutRecords(t *testing.T) {
	t.Parallel()
	rec, err := Read(t.TempDir())
	if diff := cmp.Diff(Record{Schema: RecordSchema}, rec); diff != "" || err != nil {
		t.Error(diff, err)
	}
	rec, err = Read(records(t, map[string]string{"loaded": "1 3.11\n"}))
	if err != nil || !rec.Loaded || rec.Processes != nil {
		t.Errorf("%+v %v", rec, err)
	}
}

func TestReadMerges(t *testing.T) {
	t.Parallel()
	seen := `{"knob":"seq_len","where":"SFTConfig.max_length","before":"4096","after":"2048","final":true,"why":""}`
	rec, err := Read(records(t, map[string]string{
		"20-900.json": `{"pid":20,"start":900,"rank":"1","seen":[` + seen + `],"trouble":["x"],"exceptions":[
			{"type":"MemoryError","message":"late","time":"2026-01-01T00:00:05.500Z","memory":{"mem_available":7}}]}`,
		"10-100.json": `{"pid":10,"start":100,"rank":"0","seen":[` + seen + `],"trouble":["x","y"],"exceptions":[
			{"type":"ValueError","message":"thread","thread":"t","time":"2026-01-01T00:00:01.000Z"},
			{"type":"MemoryError","message":"early","time":"2026-01-01T00:00:02.000Z"}]}`,
	}))
	if err != nil {
		t.Fatal(err)
	}
	early := Exception{
		Type: "MemoryError", Message: "early", PID: 10, Rank: "0", Time: time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC),
		Frames: []string{}, Memory: map[string]int64{},
	}
	if diff := cmp.Diff(&early, rec.Exception); diff != "" {
		t.Error(diff)
	}
	if len(rec.Exceptions) != 3 || rec.Exceptions[2].PID != 20 || rec.Exceptions[2].Memory["mem_available"] != 7 {
		t.Errorf("%+v", rec.Exceptions)
	}
	if len(rec.Seen) != 1 || len(rec.Processes) != 2 || rec.Processes[0].PID != 10 || !cmp.Equal(rec.Trouble, []string{"x", "y"}) {
		t.Errorf("%+v", rec)
	}
	if again, err := json.Marshal(rec); err != nil || !bytes.Contains(again, []byte(RecordSchema)) {
		t.Errorf("%s %v", again, err)
	}
}

func TestReadSkipsWhatIsNoRecord(t *testing.T) {
	t.Parallel()
	dir := records(t, map[string]string{
		"1-1.json":     `{"pid":1,"start":1,"seen":[{"knob":"seq_len","before":"1"`,
		"2-1.json":     "",
		"3-1.json":     "null trailing",
		"4-1.json":     `{"pid":"four"}`,
		"5-1.json":     strings.Repeat("[", 200000),
		"6-1.json":     `{"pid":6,"pad":"` + strings.Repeat("x", maxRecordFile) + `"}`,
		"7-1.json":     `{"pid":7,"start":1,"seen":[{"knob":"../../etc","where":"x"},{"knob":"packing","where":"W","before":"` + strings.Repeat("é", maxText) + `"}]}`,
		"8-1.json.tmp": "torn",
		"..evil.json":  "{}",
	})
	out := filepath.Join(dir, RecordDir)
	if err := unix.Mkfifo(filepath.Join(out, "9-1.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("7-1.json", filepath.Join(out, "10-1.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(out, "11-1.json"), 0o755); err != nil {
		t.Fatal(err)
	}
	rec, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(rec.Processes) != 1 || rec.Processes[0].PID != 7 || len(rec.Seen) != 1 || rec.Seen[0].Knob != job.Packing || len(rec.Seen[0].Before) > maxText {
		t.Errorf("%+v", rec.Processes)
	}
	all := strings.Join(rec.Skipped, "\n")
	for _, name := range []string{"1-1", "2-1", "3-1", "4-1", "5-1", "6-1", "9-1", "10-1", "11-1"} {
		if !strings.Contains(all, name+".json: ") {
			t.Errorf("%s is not named in\n%s", name, all)
		}
	}
	if strings.Contains(all, dir) || len(rec.Skipped) != 9 {
		t.Errorf("skipped\n%s", all)
	}
}

func TestReadIsBounded(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i := range maxRecords + 40 {
		files[fmt.Sprintf("%d-1.json", i)] = fmt.Sprintf(`{"pid":%d,"start":1}`, i)
	}
	rec, err := Read(records(t, files))
	if err != nil || len(rec.Processes) != maxRecords || len(rec.Skipped) != maxNamed+1 || rec.Skipped[maxNamed] != "and 20 more" {
		t.Errorf("%d processes, skipped %q, %v", len(rec.Processes), rec.Skipped, err)
	}
}

func TestApplied(t *testing.T) {
	t.Parallel()
	length := func(before, after string, final bool) Seen {
		return Seen{Knob: job.SeqLen, Where: "w", Before: before, After: after, Final: final}
	}
	to := Clamp{Knob: job.SeqLen, To: "2048"}
	half := Clamp{Knob: job.SeqLen, Halve: 1}
	for _, c := range []struct {
		name  string
		clamp Clamp
		seen  []Seen
		want  bool
	}{
		{"nothing seen", to, nil, false},
		{"another knob", to, []Seen{{Knob: job.MicroBatch, Before: "4096", After: "2048"}}, false},
		{"changed", to, []Seen{length("4096", "2048", false)}, true},
		{"no limit before", to, []Seen{length("", "2048", true)}, true},
		{"not changed", to, []Seen{length("4096", "4096", true)}, false},
		{"short already", to, []Seen{length("1024", "1024", true)}, false},
		{"the model took it, the trainer not", to, []Seen{length("4096", "2048", false), length("3000", "3000", true)}, false},
		{"the model took it, the trainer is shorter", to, []Seen{length("4096", "2048", false), length("1024", "1024", true)}, true},
		{"one trainer of two", to, []Seen{length("4096", "2048", true), length("512", "512", true)}, true},
		{"halved", half, []Seen{length("4096", "2048", true)}, true},
		{"halved, the trainer not", half, []Seen{length("4096", "2048", false), length("3000", "3000", true)}, false},
		{"4-bit", Clamp{Knob: job.LoadIn4Bit, To: "false"}, []Seen{{Knob: job.LoadIn4Bit, Before: "true", After: "false"}}, true},
		{"never 4-bit", Clamp{Knob: job.LoadIn4Bit, To: "false"}, []Seen{{Knob: job.LoadIn4Bit, Before: "false", After: "false"}}, false},
		{"no workers", Clamp{Knob: job.NumWorkers, To: "0"}, []Seen{{Knob: job.NumWorkers, Before: "4", After: "0"}}, true},
		{"resume as asked", Clamp{Knob: job.ResumeFrom, To: "/c"}, []Seen{{Knob: job.ResumeFrom, Before: "/c", After: "/c"}}, true},
		{"resume elsewhere", Clamp{Knob: job.ResumeFrom, To: "/c"}, []Seen{{Knob: job.ResumeFrom, After: "/d"}}, false},
		{"dtype", Clamp{Knob: job.DType, To: "bfloat16"}, []Seen{{Knob: job.DType, Before: "", After: "bfloat16"}}, true},
	} {
		missing := Applied(Plan{Clamps: []Clamp{c.clamp}}, Record{Seen: c.seen})
		if (missing == nil) != c.want {
			t.Errorf("%s: missing %v", c.name, missing)
		}
	}
}

func TestLearned(t *testing.T) {
	t.Parallel()
	got := Learned(Record{Seen: []Seen{
		{Knob: job.SeqLen, Where: "tokenizer(max_length=)", Before: "512", After: "512"},
		{Knob: job.SeqLen, Where: "FastLanguageModel", Before: "8192", After: "4096"},
		{Knob: job.SeqLen, Where: "tokenizer(max_length=)", Before: "77", After: "77"},
		{Knob: job.MicroBatch, Where: "early", Before: "8", After: "8"},
		{Knob: job.MicroBatch, Where: "trainer", Before: "2", After: "1", Final: true},
		{Knob: job.MicroBatch, Where: "late", Before: "9", After: "9"},
		{Knob: job.LoadIn4Bit, Where: "one", Before: "false", After: "false"},
		{Knob: job.LoadIn4Bit, Where: "two", Before: "true", After: "false"},
		{Knob: job.DType, Where: "x", Before: "", After: "bfloat16"},
		{Knob: "hub_token", Where: "x", Before: "secret", After: "secret"},
	}})
	want := job.Knobs{
		job.SeqLen:     {Value: "8192", Source: job.FromScript, Where: "FastLanguageModel"},
		job.MicroBatch: {Value: "2", Source: job.FromScript, Where: "trainer"},
		job.LoadIn4Bit: {Value: "true", Source: job.FromScript, Where: "two"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
