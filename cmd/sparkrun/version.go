package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sparkrun/supervisor"
	"sparkrun/supervisor/selftest"
)

// release is the version of this source tree; CHANGELOG.md has the same.
const release = "0.5.0"

// version returns the release with the commit where the build knows it.
func version() string {
	v := release
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			v += "+" + s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			v += ".dirty"
		}
	}
	return v
}

const versionHelp = `Print the version, and with --self-test what sampling costs on this machine.

The self-test samples as a run does, once a second and with a sensors process of its
own, in a folder for temporary files that is removed after. It prints how many ticks
were taken and missed, how late they came, what the processes take of one core and of
memory, which readings answered, and how long the disk took. It ends with 0 when all
of that is within the goals (no tick missed, p99 of the jitter below 5 ms, below 0.3 %
of one core, below 30 MiB), with 1 when it is not, and with 125 when nothing could be
measured.`

func newVersion() *cobra.Command {
	var asJSON, selfTest bool
	var length time.Duration
	c := &cobra.Command{
		Use:     "version",
		Short:   "Print the version, or measure what sampling costs",
		Long:    versionHelp,
		Example: "  sparkrun version\n  sparkrun version --self-test --for 1m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if selfTest {
				return runSelfTest(cmd, out, length, asJSON)
			}
			if cmd.Flags().Changed("for") {
				return errors.New("--for is of --self-test: write sparkrun version --self-test --for " + length.String())
			}
			if asJSON {
				return json.NewEncoder(out).Encode(map[string]any{
					"version": version(), "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH, "nvml": withNVML,
				})
			}
			_, err := fmt.Fprintf(out, "sparkrun %s (%s/%s, %s, NVML %s)\n", version(), runtime.GOOS, runtime.GOARCH, runtime.Version(),
				map[bool]string{true: "built in", false: "left out: built without cgo"}[withNVML])
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&selfTest, "self-test", false, "measure what sampling costs on this machine")
	c.Flags().DurationVar(&length, "for", 30*time.Second, "how long the self-test measures, 3s to 24h")
	return c
}

// runSelfTest measures and prints; goals that were missed are status 1.
func runSelfTest(cmd *cobra.Command, out io.Writer, length time.Duration, asJSON bool) error {
	if length < 3*time.Second || length > 24*time.Hour {
		return fmt.Errorf("--for %s: 3s to 24h", length)
	}
	exe, err := os.Executable()
	if err != nil {
		return &exitError{supervisor.StatusError, fmt.Sprintf("finding sparkrun's own file, which is needed for the sensors process: %v", err)}
	}
	// A Ctrl-C must not leave the folder behind.
	ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	r, err := selftest.Run(ctx, selftest.Options{Exe: exe, For: length})
	if err != nil {
		return &exitError{supervisor.StatusError, err.Error()}
	}
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = r.Text(out)
	}
	if err != nil {
		return err
	}
	if len(r.Beyond) > 0 {
		return &exitError{status: 1}
	}
	return nil
}
