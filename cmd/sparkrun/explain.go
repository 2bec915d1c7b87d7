package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"sparkrun/supervisor"
)

// newExplain says what sparkrun makes of a command, without running it.
func newExplain(e environment) *cobra.Command {
	var f runFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "explain [flags] -- COMMAND [ARG...]",
		Short: "Say what is understood of a command and what each rung would change; runs nothing",
		Long: `Say what sparkrun understands of a command: the trainer and what it stands behind, each
setting and where it comes from, the effective batch, the method, the newest complete
checkpoint, and for each rung of the ladder the exact change, or why it is refused.

Nothing is run and nothing is written. The flags are those of a run.

Ends with 0 when it answered, with 125 when it could not.`,
		Example: fmt.Sprintf("  %[1]s explain -- llamafactory-cli train sft.yaml\n  %[1]s explain --json -- docker run --rm -v $PWD:/w -w /w IMAGE python train.py", progName()),
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &exitError{supervisor.StatusError, "no command was given; write it behind --, as in: " + progName() + " explain -- python train.py"}
			}
			o, err := f.options(cmd, args, e)
			if err != nil {
				return err
			}
			x, err := supervisor.Explain(o)
			if err != nil {
				return err
			}
			text := clean(x.Text(textWidth(e)))
			if asJSON {
				b, err := json.MarshalIndent(x, "", "  ")
				if err != nil {
					return fmt.Errorf("writing the explanation: %w", err)
				}
				text = string(b) + "\n"
			}
			if _, err := fmt.Fprint(cmd.OutOrStdout(), text); err != nil {
				return fmt.Errorf("printing the explanation: %w", err)
			}
			return nil
		},
	}
	c.Flags().SetInterspersed(false)
	f.add(c.Flags())
	f.completions(c, e)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.SetFlagErrorFunc(flagError)
	return c
}
