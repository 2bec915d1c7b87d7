package postmortem

import (
	"strings"
	"testing"

	"sparkrun/ladder/oom"
)

func TestParseEnd(t *testing.T) {
	t.Parallel()
	kill := oom.Exit{Known: true, Code: 137, Signal: "SIGKILL"}
	for _, c := range []struct {
		status, signal string
		want           oom.Exit
		err            string // part of it
	}{
		{"", "", oom.Exit{}, ""},
		{"0", "", oom.Exit{Known: true}, ""},
		{"1", "", oom.Exit{Known: true, Code: 1}, ""},
		{"137", "", oom.Exit{Known: true, Code: 137}, ""},
		{"-9", "", kill, ""},
		{"", "SIGKILL", kill, ""},
		{"", "kill", kill, ""},
		{"", "9", kill, ""},
		{"137", "KILL", kill, ""},
		{"-9", "KILL", kill, ""},
		{"247", "KILL", oom.Exit{Known: true, Code: 247, Signal: "SIGKILL"}, ""},
		{"134", "SIGABRT", oom.Exit{Known: true, Code: 134, Signal: "SIGABRT"}, ""},
		{"1", "KILL", oom.Exit{}, "the command ended by itself"},
		{"143", "KILL", oom.Exit{}, "it was ended by SIGTERM"},
		{"-15", "KILL", oom.Exit{}, "contradict"},
		{"256", "", oom.Exit{}, "0 to 255"},
		{"-65", "", oom.Exit{}, "0 to 255"},
		{"-60", "", oom.Exit{}, "no signal 60"},
		{"one", "", oom.Exit{}, "--exit one"},
		{"", "SIGFOO", oom.Exit{}, "--signal SIGFOO"},
		{"", "0", oom.Exit{}, "no such signal"},
		{"", "-9", oom.Exit{}, "no such signal"},
		{"1e2", "", oom.Exit{}, "0 to 255"},
	} {
		got, err := ParseEnd(c.status, c.signal)
		switch {
		case c.err == "" && err != nil, c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%q %q: error %v, want %q", c.status, c.signal, err, c.err)
		case got != c.want:
			t.Errorf("%q %q: got %+v, want %+v", c.status, c.signal, got, c.want)
		}
	}
}
