package clock

import (
	"testing"
	"time"
)

func TestFormats(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 14, 10, 0, 0, 123_900_000, time.FixedZone("CEST", 7200))
	if got := Format(at); got != "2026/07/14 10:00:00.123" {
		t.Errorf("Format: %s", got)
	}
	if got := string(AppendFormat([]byte("x "), at)); got != "x 2026/07/14 10:00:00.123" {
		t.Errorf("AppendFormat: %s", got)
	}
	if got := Machine(at); got != "2026-07-14T10:00:00.123+02:00" {
		t.Errorf("Machine: %s", got)
	}
}

// TestOneClock: the run's time goes on with boot time in the zone it began in,
// whatever the wall clock does.
func TestOneClock(t *testing.T) {
	t.Parallel()
	wall := time.Date(2026, 10, 25, 2, 59, 59, 0, time.FixedZone("CEST", 7200))
	c := Restore(wall, 100*time.Second)
	got := c.At(100*time.Second + time.Hour)
	if Machine(got) != "2026-10-25T03:59:59.000+02:00" {
		t.Errorf("an hour later, past the end of summer time: %s", Machine(got))
	}
	if c.Mono(got) != time.Hour {
		t.Errorf("Mono: %s", c.Mono(got))
	}
}

func TestNowFollowsTheWall(t *testing.T) {
	t.Parallel()
	c := Start()
	if d := time.Since(c.Now()).Abs(); d > time.Second {
		t.Errorf("a clock just started is off by %s", d)
	}
	if d := c.Step().Abs(); d > 100*time.Millisecond {
		t.Errorf("a step of %s although nobody set the clock", d)
	}
	moved := Restore(c.Wall.Add(-time.Hour), c.Boot)
	if d := moved.Step() - time.Hour; d.Abs() > 100*time.Millisecond {
		t.Errorf("a wall clock set forward by an hour is seen as %s", moved.Step())
	}
}
