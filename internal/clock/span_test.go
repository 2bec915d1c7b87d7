package clock

import (
	"testing"
	"time"
)

func TestSpan(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0:                         "0 ms",
		81 * time.Millisecond:     "81 ms",
		94700 * time.Microsecond:  "95 ms",
		95 * time.Millisecond:     "0.1 s",
		5500 * time.Millisecond:   "5.5 s",
		6 * time.Second:           "6 s",
		9950 * time.Millisecond:   "10 s",
		12500 * time.Millisecond:  "13 s", // not 12 here and 13 there
		119 * time.Second:         "119 s",
		119500 * time.Millisecond: "2 min",
		190 * time.Second:         "3.2 min",
		30 * time.Minute:          "30 min",
		90 * time.Minute:          "90 min",
		2 * time.Hour:             "2 h",
		450 * time.Minute:         "7.5 h",
	} {
		if got := Span(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}
