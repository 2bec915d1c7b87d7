package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"sparkrun/supervisor"
)

// TestPauseFlags: what a pause may be, at its bounds and beyond them.
func TestPauseFlags(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"":                                                 "",
		"--max-temp 88:84":                                 "",
		"--max-temp 105:103":                               "",
		"--max-temp 105.5:84":                              "makes no sense",
		"--max-temp 49:40":                                 "have turned themselves off from 91 C on",
		"--max-temp 88":                                    "two temperatures",
		"--max-temp 88:87":                                 "at least 2 C below",
		"--max-temp nan:84":                                "two temperatures",
		"--max-temp 88:84 --max-pause 1s":                  "",
		"--max-temp 88:84 --max-pause 999ms":               "at least 1s",
		"--max-temp 88:84 --max-pause -5m":                 "at least 1s",
		"--max-temp 88:84 --max-pause 24h":                 "",
		"--max-temp 88:84 --max-pause 24h1s":               "24h at most",
		"--max-temp 88:84 --max-pause 2562047h47m16s":      "24h at most",
		"--max-temp 88:84 --max-pause 2562047h47m16.8547s": "24h at most",
		"--max-pause 48h":                                  "24h at most", // not heard of later
	} {
		var f heatFlags
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.add(set)
		if err := set.Parse(strings.Fields(flags)); err != nil {
			t.Errorf("%s: %v", flags, err)
			continue
		}
		var o supervisor.Options
		err := f.apply(&o)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flags, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "104") {
			t.Errorf("%s: speaks of 104 C, where no machine gets: %v", flags, err)
		}
		if err == nil && o.Heat.MaxPause+time.Minute < o.Heat.MaxPause {
			t.Errorf("%s: overflows", flags)
		}
	}
}
