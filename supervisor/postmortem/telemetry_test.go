package postmortem

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
)

const gibKiB = 1 << 20

// row is a telemetry row at second sec of a run, with so much left.
func row(sec float64, attempt int, availGiB float64) sample.Sample {
	return sample.Sample{
		T:       time.Date(2026, 7, 14, 3, 0, 0, 0, time.UTC).Add(time.Duration(sec * float64(time.Second))),
		Mono:    time.Duration(sec * float64(time.Second)),
		Attempt: attempt, MemAvailableKiB: sample.Known(availGiB * gibKiB),
	}
}

func csvOf(rows ...sample.Sample) []byte {
	var b bytes.Buffer
	b.WriteString(strings.Join(sample.Header, ",") + "\n")
	for i := range rows {
		b.WriteString(strings.Join(rows[i].Row(), ",") + "\n")
	}
	return b.Bytes()
}

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTelemetryTakesTheLastMinuteOfOneAttempt(t *testing.T) {
	t.Parallel()
	var rows []sample.Sample
	for i := range 300 {
		rows = append(rows, row(float64(i), 1+i/200, 100-float64(i)/10))
	}
	path := write(t, filepath.Join(t.TempDir(), "telemetry.csv"), csvOf(rows...))
	for attempt, want := range map[int]string{0: "239-299", 1: "139-199", 2: "239-299"} {
		tel, err := readTelemetry(path, attempt)
		if err != nil {
			t.Fatal(err)
		}
		n := len(tel.rows)
		if n == 0 {
			t.Fatalf("attempt %d: no rows", attempt)
		}
		if got := fmt.Sprintf("%.0f-%.0f", tel.rows[0].Mono.Seconds(), tel.rows[n-1].Mono.Seconds()); got != want {
			t.Errorf("attempt %d: seconds %s, want %s", attempt, got, want)
		}
	}
}

// A crash leaves torn rows, NULs and, where a run was carried on, a header in the
// middle.
func TestTelemetryTorn(t *testing.T) {
	t.Parallel()
	good := csvOf(row(1, 1, 50), row(2, 1, 40))
	next := row(3, 1, 30)
	whole := strings.Join(next.Row(), ",")
	for name, c := range map[string]struct {
		tail string
		want int
	}{
		"whole":                {"", 2},
		"half a row":           {whole[:40], 2},
		"a row without end":    {whole, 2}, // its last cell may be cut
		"half a row, mended":   {whole[:40] + "\n" + whole + "\n", 3},
		"NULs":                 {strings.Repeat("\x00", 5000), 2},
		"NULs in a row":        {whole[:60] + strings.Repeat("\x00", 500) + whole[60:] + "\n", 2},
		"header again":         {strings.Join(sample.Header, ",") + "\n" + whole + "\n", 3},
		"CRLF":                 {whole + "\r\n", 3},
		"a column we know not": {whole + ",7\n", 3},
		"nonsense":             {"\xff\xfe,,,,\n" + strings.Repeat(",", 60) + "\n", 2},
	} {
		path := write(t, filepath.Join(t.TempDir(), "telemetry.csv"), append(bytes.Clone(good), c.tail...))
		tel, err := readTelemetry(path, 0)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(tel.rows) != c.want {
			t.Errorf("%s: %d rows, want %d", name, len(tel.rows), c.want)
		}
	}
}

func TestTelemetryThatIsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, err, note string }{
		"thermal.csv": {"timestamp,temperature.gpu,power.draw\n2026/07/14 10:00:00.123, 68, 97.31 W\n", "no telemetry of ours", ""},
		"binary.csv":  {"\x7fELF\x02\x01\x01" + strings.Repeat("\x01\x02\x03", 5000), "no telemetry of ours", ""},
		"empty.csv":   {"", "", "has no row"},
		"header.csv":  {strings.Join(sample.Header, ",") + "\n", "", "has no row"},
		"nul.csv":     {strings.Repeat("\x00", 9000), "", "has no row"},
	} {
		tel, err := readTelemetry(write(t, filepath.Join(dir, name), []byte(c.text)), 0)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want %q", name, err, c.err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case len(tel.notes) != 1 || !strings.Contains(tel.notes[0], c.note):
			t.Errorf("%s: notes %q", name, tel.notes)
		}
	}
	for _, path := range []string{filepath.Join(dir, "missing"), dir} {
		if _, err := readTelemetry(path, 0); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
}

// A file of days is not read from the beginning, and one that was begun anew takes
// the part before it.
func TestTelemetryLargeAndParts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var rows []sample.Sample
	for i := range 60000 {
		rows = append(rows, row(float64(i), 1, 100-float64(i)/1000))
	}
	data := csvOf(rows...)
	if len(data) < 2*tailRead {
		t.Fatalf("the file is too small to test anything: %d bytes", len(data))
	}
	path := write(t, filepath.Join(dir, "telemetry.csv"), data)
	tel, err := readTelemetry(path, 0)
	if err != nil || len(tel.rows) != 61 || !tel.fromStart || tel.most != 100*gibKiB {
		t.Fatalf("%d rows, from the start %v, most %.0f, %v", len(tel.rows), tel.fromStart, tel.most, err)
	}
	if err := os.Rename(path, filepath.Join(dir, "telemetry.002.csv")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "telemetry.001.csv"), csvOf(row(0, 1, 1)))
	write(t, path, csvOf(row(60000, 1, 0.5)))
	tel, err = readTelemetry(path, 0)
	if err != nil || len(tel.rows) != 61 || tel.rows[60].MemAvailableKiB.V != 0.5*gibKiB || tel.rows[59].Mono != 59999*time.Second {
		t.Fatalf("%d rows, %v", len(tel.rows), err)
	}
}

// Without MemTotal nothing may be called clear that could be low.
func TestTelemetryTotal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rows  []sample.Sample
		given float64 // GiB, 0 for not
		want  float64 // GiB, 0 for unknown
	}{
		"from the start":          {[]sample.Sample{row(0, 1, 14), row(30, 1, 5)}, 0, 14},
		"low against its own":     {[]sample.Sample{row(900, 1, 34), row(901, 1, 0.8)}, 0, 34},
		"plenty anywhere":         {[]sample.Sample{row(900, 1, 60), row(930, 1, 55)}, 0, 128},
		"cannot be told":          {[]sample.Sample{row(900, 1, 6), row(930, 1, 5)}, 0, 0},
		"told by run.json":        {[]sample.Sample{row(900, 1, 6), row(930, 1, 5)}, 119, 119},
		"no figure of memory":     {[]sample.Sample{{T: row(0, 1, 0).T, Attempt: 1}}, 0, 0},
		"more than usual by far ": {[]sample.Sample{row(900, 1, 400), row(930, 1, 390)}, 0, 400},
	} {
		p := &rowParser{}
		for _, l := range bytes.Split(bytes.TrimSpace(csvOf(c.rows...)), []byte("\n")) {
			p.line(l, true)
		}
		tel := p.finish()
		if c.given > 0 {
			tel.total = sample.Known(c.given * gibKiB)
		}
		if got := tel.totalOf(); got.OK != (c.want > 0) || got.V != c.want*gibKiB {
			t.Errorf("%s: %+v, want %.0f GiB", name, got, c.want)
		}
		var ev oom.Evidence
		tel.into(&ev)
		if said := len(ev.Unreadable) > 0; said != (c.want == 0) {
			t.Errorf("%s: unreadable %q", name, ev.Unreadable)
		}
	}
}

// The kernel's count of kills belongs to one attempt.
func TestTelemetryKills(t *testing.T) {
	t.Parallel()
	var rows []sample.Sample
	for i, n := range []float64{3, 3, 4, 4, 6} {
		s := row(float64(i), 1+i/3, 50)
		s.VMOOMKill = sample.Known(n)
		rows = append(rows, s)
	}
	path := write(t, filepath.Join(t.TempDir(), "telemetry.csv"), csvOf(rows...))
	for attempt, want := range map[int]float64{1: 1, 2: 2, 0: 2} {
		tel, err := readTelemetry(path, attempt)
		if err != nil || tel.oomKills != sample.Known(want) {
			t.Errorf("attempt %d: %+v, %v, want %.0f", attempt, tel.oomKills, err, want)
		}
	}
}
