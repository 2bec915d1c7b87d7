// Package ownexe starts more processes of the program that runs, also after its file was
// replaced or taken away: an upgrade by night must cost neither the next attempt nor the
// sensors, and another version might not understand this one.
package ownexe

import "os"

// running leads to the program of whoever opens it, which a process that was just forked
// shares with its parent.
const running = "/proc/self/exe"

// started is the file that this process was started from, by the name that it had then.
var started, _ = os.Executable() // without /proc none is known

// Path returns what to start in place of exe. Where exe is the file that this process was
// started from, and another one or none is there by now, that is the program that runs;
// else it is exe, by which people know a process.
func Path(exe string) string {
	if exe != started {
		return exe
	}
	mine, err := os.Stat(running)
	if err != nil {
		return exe // without /proc
	}
	if there, err := os.Stat(exe); err == nil && os.SameFile(there, mine) {
		return exe
	}
	return running
}
