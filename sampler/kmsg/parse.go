package kmsg

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

// record is one record of /dev/kmsg.
type record struct {
	seq  uint64
	mono time.Duration
	text string
}

// parse reads "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];TEXT", followed by
// lines that start with a space and hold the record's dictionary (which device
// it is about), of no use here. Newer kernels may add fields before the ";".
func parse(b []byte) (record, bool) {
	head, rest, ok := bytes.Cut(b, []byte(";"))
	if !ok {
		return record{}, false
	}
	fields := bytes.Split(head, []byte(","))
	if len(fields) < 3 {
		return record{}, false
	}
	seq, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		return record{}, false
	}
	usec, err := strconv.ParseInt(string(fields[2]), 10, 64)
	if err != nil {
		return record{}, false
	}
	text, _, _ := bytes.Cut(rest, []byte("\n"))
	return record{seq: seq, mono: time.Duration(usec) * time.Microsecond, text: unescape(string(text))}, true
}

// unescape undoes the kernel's \xNN for bytes that are not printable, and
// drops the control characters among them other than newline and tab.
func unescape(s string) string {
	if !strings.Contains(s, `\x`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && s[i+1] == 'x' {
			if v, err := strconv.ParseUint(s[i+2:i+4], 16, 8); err == nil {
				if v >= 0x20 && v != 0x7f || v == '\n' || v == '\t' {
					b.WriteByte(byte(v))
				}
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// parseJournal reads a line of journalctl -o short-monotonic,
// "[   12.345678] HOST kernel: TEXT". Other lines are remarks of journalctl.
func parseJournal(line string) (mono time.Duration, text string, ok bool) {
	stamp, rest, ok := strings.Cut(strings.TrimPrefix(line, "["), "] ")
	if !ok || !strings.HasPrefix(line, "[") {
		return 0, "", false
	}
	seconds, err := strconv.ParseFloat(strings.TrimSpace(stamp), 64)
	if err != nil || seconds < 0 {
		return 0, "", false
	}
	_, text, ok = strings.Cut(rest, " kernel: ")
	if !ok {
		return 0, "", false
	}
	return time.Duration(seconds*1e6) * time.Microsecond, text, true
}
