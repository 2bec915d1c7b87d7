package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"sparkrun/supervisor"
)

// environment is everything of the outside that a command may use.
type environment struct {
	stdin, stdout, stderr *os.File
	env                   []string
	getenv                func(string) string
}

// exitError ends sparkrun with a status; an empty text prints nothing, for what
// has been said already.
type exitError struct {
	status int
	text   string
}

func (e *exitError) Error() string { return e.text }

const longHelp = `sparkrun starts a training command, checks the machine first, samples heat and
power on the same clock as the log, decides from evidence whether a death was
out of memory, and if so tries again one rung down a ladder (drop the page cache,
shorter packing, bf16 LoRA) until the run is through.

Everything about a run is in its folder: ./sparkrun-runs/latest/.

Settings come from, first wins: flags, SPARKRUN_<FLAG> in the environment
(--max-attempts is SPARKRUN_MAX_ATTEMPTS), ./sparkrun.yaml, config.yaml in
$XDG_CONFIG_HOME/sparkrun-train (~/.config/sparkrun-train), built-in values.
"sparkrun config" prints each with where it comes from.`

const exitHelp = `Exit status of a run: the child's own if the child ended the run (128+n for a
signal), otherwise

    0  the child succeeded, on whatever rung; the summary says which
   75  out of memory on every attempt, and the ladder is used up
   76  stopped by the memory guard, or by a watch that was asked to: a loss that
       diverged (--on-divergence stop), the low-power wedge (--on-wedge stop), a pace
       that stays slow (--max-slowdown)
   78  preflight says blocked; nothing was started
  124  a hang: nothing moved any more (--hang-timeout), or nothing after an
       out-of-memory line (--hang-after)
  125  sparkrun itself failed; also usage, configuration and unwritable folders
  126  the command cannot be executed
  127  the command was not found

76 and 124 are for an attempt that no retry follows. A container client (docker,
podman) gives 125 to 127 of its own: run.json has ended_by. "sparkrun preflight" ends
with 0 ready, 1 ready with warnings, 2 blocked; "sparkrun plan" with 0 fits, 1 tight or
over by the estimate, 2 the weights cannot fit; "sparkrun sample" with 0 when the first
row is written, 1 where no sensor answers; "sparkrun why" and "sparkrun explain" with 0
when they answered; "sparkrun trainers check" with 0 where all files are good, 1 where one
is not; "sparkrun version --self-test" with 0 within the limits, 1 beyond one of them;
"sparkrun preflight --fix" with 0 when nothing is left to do, 1 when something is. All of
them end with 125 where they could not do what they were asked.`

// run is sparkrun as a function: it returns the exit status.
func run(args []string, e environment) int {
	if status, ok := runPart(args, e); ok {
		return status
	}
	root := newRoot(e)
	root.SetArgs(args)
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	err := root.Execute()
	if err == nil {
		return 0
	}
	status, text := supervisor.StatusError, err.Error()
	var ee *exitError
	var se *supervisor.StatusErr
	switch {
	case errors.As(err, &ee):
		status, text = ee.status, ee.text
	case errors.As(err, &se):
		status = se.Status
	}
	if text != "" {
		fmt.Fprintln(e.stderr, "sparkrun: "+clean(text))
	}
	return status
}

// progName is the name this binary was called by: the help, the completion and
// the commands we print must not speak of another program that may own the name
// sparkrun on this machine.
func progName() string {
	name := filepath.Base(os.Args[0])
	if name == "." || strings.ContainsAny(name, " /'\"") || strings.HasSuffix(name, ".test") {
		return "sparkrun"
	}
	return name
}

func newRoot(e environment) *cobra.Command {
	var o runFlags
	root := &cobra.Command{
		Use:           progName() + " [flags] -- COMMAND [ARG...]",
		Short:         "Launch a training and get it through the night",
		Long:          longHelp,
		Example:       fmt.Sprintf("  %[1]s -- python train.py\n  %[1]s --knob seq_len=4096 -- ./train --len {seq_len}", progName()),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runRun(cmd, args, &o, e)
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	// What follows the first word of the command is the command's own.
	root.Flags().SetInterspersed(false)
	root.SetFlagErrorFunc(flagError)
	o.add(root.Flags())
	o.completions(root, e)

	sub := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run a command (the same as sparkrun without a subcommand)",
		Long:  longHelp + "\n\n" + exitHelp,
		Args:  cobra.ArbitraryArgs,
	}
	var so runFlags
	sub.RunE = func(cmd *cobra.Command, args []string) error { return runRun(cmd, args, &so, e) }
	sub.Flags().SetInterspersed(false)
	so.add(sub.Flags())
	so.completions(sub, e)

	root.AddCommand(sub, newPreflight(e), newPlan(e), newExplain(e), newTrainers(e), newWhy(e), newSample(e), newConfig(e), newVersion(), newExitCodes())
	for _, c := range append(root.Commands(), root) {
		completeExamples(c)
	}
	root.AddCommand(hidden(e)...)
	return root
}

// flagError turns cobra's text about a flag into a sentence with a way out.
func flagError(cmd *cobra.Command, err error) error {
	return &exitError{supervisor.StatusError, fmt.Sprintf("%s; %q lists the flags (a flag of the training command goes behind --)",
		strings.TrimSpace(err.Error()), cmd.CommandPath()+" --help")}
}

func newExitCodes() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit statuses mean (help topic)", Long: exitHelp}
}
