// Command sparkrun launches a training, watches it and gets it through the night.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], environment{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		env: os.Environ(), getenv: os.Getenv,
	}))
}
