// Command sparkrun launches a training, watches it and gets it through the night.
package main

import (
	"os"
	"runtime"
	"strings"
)

// The kernel gives a signal to the first thread of a process, and to another only where
// that one has a signal waiting already. A first thread that sits on a mount whose server
// is gone takes it and never wakes: Ctrl-C would be lost. So the first thread is kept for
// the main goroutine, which waits for channels only. The parts that sparkrun starts itself
// keep Go's own way: their main goroutines carry the output.
func init() {
	if len(os.Args) < 2 || !strings.HasPrefix(os.Args[1], "__") {
		runtime.LockOSThread()
	}
}

func main() {
	os.Exit(run(os.Args[1:], environment{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		env: os.Environ(), getenv: os.Getenv,
	}))
}
