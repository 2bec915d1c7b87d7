package main

import "testing"

func TestClean(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain\n\tübung":                    "plain\n\tübung",
		"\x1b]0;title\a\x1b[31mred\r\x00":   "?]0;title??[31mred??",
		"a\u009bb \u202etxt.exe\u2028":      "a?b ?txt.exe?",
		"no\u00a0break":                     "no break",
		string([]byte{'x', 0xff, 'y'}):      "x\uFFFDy",
		"overwritten\x08\x08\x7f\v\f\u0085": "overwritten??????",
	} {
		if got := clean(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
