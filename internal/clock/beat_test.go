package clock

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestBeatsFollowWhatLeadsThem(t *testing.T) {
	const d = time.Hour
	at := func(boot time.Duration) time.Duration {
		Lead(boot)
		return Beat(d)
	}
	now := Boottime()
	for ahead, want := range map[time.Duration]time.Duration{
		0:                 d,
		-10 * time.Minute: 50 * time.Minute,
		10 * time.Minute:  10 * time.Minute,
		-3 * d:            d,
	} {
		if got := at(now + ahead); got <= 0 || got > d || (got-want).Abs() > 10*time.Second && (got-want).Abs() < d-10*time.Second {
			t.Errorf("led from %v ahead: the next beat is in %v, want %v", ahead, got, want)
		}
	}
}

// TestNoTickerTicksByTheTimeToTheNextBeat: that time may be a microsecond, and a ticker
// would go on with it for good.
func TestNoTickerTicksByTheTimeToTheNextBeat(t *testing.T) {
	t.Parallel()
	root, sources := "../..", 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		sources++
		if bytes.Contains(text, []byte("NewTicker(clock.Beat(")) || bytes.Contains(text, []byte("time.Tick(clock.Beat(")) {
			t.Errorf("%s has a ticker whose period is the time to a beat", path)
		}
		return err
	})
	if err != nil || sources < 100 {
		t.Errorf("%d sources read, %v", sources, err)
	}
}
