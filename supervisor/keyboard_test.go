package supervisor

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func say(es []keyEffect) string {
	var out []string
	for _, e := range es {
		switch {
		case e.signal != "":
			out = append(out, e.signal)
		case e.hint:
			out = append(out, "hint")
		default:
			out = append(out, fmt.Sprintf("%q", e.pass))
		}
	}
	return strings.Join(out, " ")
}

func TestKeyboard(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	tests := []struct {
		name               string
		typed              string
		live, isig, engine bool
		want               string
	}{
		{"plain text", "abc\r", true, true, false, `"abc\r"`},
		{"Ctrl-C is one signal and is not passed on", "a\x03b", true, true, false, `"a" SIGINT "b"`},
		{"Ctrl-backslash", "\x1c", true, true, false, "SIGQUIT"},
		{"Ctrl-Z is a hint", "x\x1ay", true, true, false, `"x" hint "y"`},
		{"a program that reads keys itself gets all", "\x03\x1a\x1c", true, false, false, `"\x03\x1a\x1c"`},
		{"three Ctrl-C within a second count", "\x03\x03\x03", true, false, false, `"\x03\x03\x03" SIGINT`},
		{"a container client gets the key, then the stop", "\x03", true, false, true, `"\x03" SIGINT`},
		{"no child yet", "abc\x03", false, true, false, "SIGINT"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var k keyboard
			if got := say(k.sort([]byte(tt.typed), now, tt.live, tt.isig, tt.engine)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
	var k keyboard
	k.sort([]byte{3}, now, true, false, false)
	k.sort([]byte{3}, now.Add(900*time.Millisecond), true, false, false)
	if got := say(k.sort([]byte{3}, now.Add(1500*time.Millisecond), true, false, false)); got != `"\x03"` {
		t.Errorf("three within more than a second: %s", got)
	}
}
