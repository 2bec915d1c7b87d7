package postmortem

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sparkrun/ladder/oom"
)

// ParseEnd reads an exit status and a signal as they are typed; empty is not
// given. A status of 128+n, 256-n or -n agrees with signal n. Errors say what is
// wrong with which of the two.
func ParseEnd(status, signal string) (oom.Exit, error) {
	var e oom.Exit
	name, num := "", 0
	if signal != "" {
		var ok bool
		if name, num, ok = parseSignal(signal); !ok {
			return e, fmt.Errorf("--signal %s: there is no such signal; write it as SIGKILL, KILL or 9", signal)
		}
		e = oom.Exit{Known: true, Code: 128 + num, Signal: name}
	}
	if status == "" {
		return e, nil
	}
	n, err := strconv.Atoi(strings.TrimSpace(status))
	if err != nil || n > 255 || n < -64 {
		return oom.Exit{}, fmt.Errorf("--exit %s: an exit status is a number from 0 to 255 (or -9 for signal 9, as Python writes it)", status)
	}
	if n < 0 {
		byStatus := unix.SignalName(unix.Signal(-n))
		if byStatus == "" {
			return oom.Exit{}, fmt.Errorf("--exit %s: there is no signal %d", status, -n)
		}
		if name != "" && num != -n {
			return oom.Exit{}, contradict(status, signal, byStatus)
		}
		return oom.Exit{Known: true, Code: 128 - n, Signal: byStatus}, nil
	}
	if name != "" && n != 128+num && n != 256-num {
		return oom.Exit{}, contradict(status, signal, unix.SignalName(unix.Signal(n-128)))
	}
	return oom.Exit{Known: true, Code: n, Signal: name}, nil
}

func contradict(status, signal, byStatus string) error {
	means := "the command ended by itself"
	if byStatus != "" {
		means = "it was ended by " + byStatus
	}
	return fmt.Errorf("--exit %s and --signal %s contradict each other: with status %s %s; leave one of them out", status, signal, status, means)
}

// parseSignal reads a signal's name, with or without SIG, or its number.
func parseSignal(s string) (name string, num int, ok bool) {
	s = strings.ToUpper(strings.TrimSpace(s))
	if n, err := strconv.Atoi(s); err == nil {
		name = unix.SignalName(unix.Signal(n))
		return name, n, name != "" && n > 0
	}
	if !strings.HasPrefix(s, "SIG") {
		s = "SIG" + s
	}
	sig := unix.SignalNum(s)
	return s, int(sig), sig != 0
}
