package supervisor

import (
	"testing"
	"time"
)

func TestGate(t *testing.T) {
	t.Parallel()
	const g = 1 << 20 // a GiB in KiB
	series := func(step time.Duration, avail ...uint64) []gateReading {
		var rs []gateReading
		for i, a := range avail {
			rs = append(rs, gateReading{time.Duration(i) * step, a})
		}
		return rs
	}
	tests := []struct {
		name string
		base uint64
		rs   []gateReading
		want gateVerdict
	}{
		{"unknown baseline", 0, series(time.Second, 5*g), gateBack},
		{"back at once", 100 * g, series(time.Second, 99*g), gateBack},
		{"within a twentieth", 100 * g, series(time.Second, 95*g), gateBack},
		{"a small machine is given a GiB", 8 * g, series(time.Second, 7*g), gateBack},
		{"not yet", 100 * g, series(time.Second, 50*g, 60*g), gateWaiting},
		{"standing still, but not long enough to say", 100 * g, series(10*time.Second, 50*g, 50*g, 50*g), gateWaiting},
		{"still growing after a minute", 100 * g, series(10*time.Second, 50*g, 52*g, 55*g, 58*g, 62*g, 66*g, 70*g), gateWaiting},
		{"never comes back", 100 * g, series(10*time.Second, 50*g, 80*g, 80*g, 80*g, 80*g, 80*g, 80*g), gateGivenUp},
		{"grows for ever by little", 100 * g, []gateReading{{0, 50 * g}, {9*time.Minute + 50*time.Second, 60 * g}, {10 * time.Minute, 70 * g}}, gateGivenUp},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := judgeGate(tt.base, tt.rs); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
