package main

import (
	"testing"
	"time"
)

func TestSampleInterval(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"30": 30 * time.Second, "30s": 30 * time.Second, "1": time.Second, "500ms": 500 * time.Millisecond, "100ms": 100 * time.Millisecond,
		"2m": 2 * time.Minute, "1.5s": 1500 * time.Millisecond, "86400": 24 * time.Hour, "24h": 24 * time.Hour, "030": 30 * time.Second,
	} {
		if got, err := readInterval(text); err != nil || got != want {
			t.Errorf("%q is %v (%v), want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "abc", "0", "0s", "-1", "-30", "-5s", "99ms", "1ns", "86401", "25h", "1d", "30 s", "3O", "1e3", "0x10", "1.5", "+30", "1.0000001s", "99999999999999999999", "9223372036854775807", "inf", "NaN"} {
		if got, err := readInterval(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

func TestSampleArguments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args     []string
		stop     bool
		interval time.Duration
		log      string
	}{
		{nil, false, 30 * time.Second, "thermal.log"},
		{[]string{"5"}, false, 5 * time.Second, "thermal.log"},
		{[]string{"5", "a.log"}, false, 5 * time.Second, "a.log"},
		{[]string{"5", "5"}, false, 5 * time.Second, "5"},
		{nil, true, 30 * time.Second, "thermal.log"},
		{[]string{"a.log"}, true, 30 * time.Second, "a.log"},
		{[]string{"5"}, true, 5 * time.Second, "thermal.log"},
		{[]string{"5", "a.log"}, true, 5 * time.Second, "a.log"},
	} {
		interval, log, err := sampleArgs(c.args, c.stop)
		if err != nil || interval != c.interval || log != c.log {
			t.Errorf("%q (stop %v): %v %q %v, want %v %q", c.args, c.stop, interval, log, err, c.interval, c.log)
		}
	}
	for _, args := range [][]string{{"a.log"}, {"5", ""}, {"5", "dir/"}, {"5", "a", "b"}, {"a.log", "5"}} {
		if _, _, err := sampleArgs(args, false); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
	for interval, want := range map[time.Duration]string{30 * time.Second: "30", 500 * time.Millisecond: "0.5", 2 * time.Minute: "120"} {
		if got := seconds(interval); got != want {
			t.Errorf("%v is %q seconds, want %q", interval, got, want)
		}
	}
}
