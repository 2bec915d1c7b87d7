package main

import (
	"github.com/spf13/cobra"

	"sparkrun/sampler"
	"sparkrun/supervisor"
	"sparkrun/supervisor/holder"
)

// hidden returns the processes of our own binary that sparkrun starts itself:
// they are commands so that there is one binary to install, and hidden because
// nobody types them.
func hidden(e environment) []*cobra.Command {
	part := func(name, what string, main func([]string) int) *cobra.Command {
		return &cobra.Command{
			Use: name, Short: what, Hidden: true, DisableFlagParsing: true,
			RunE: func(_ *cobra.Command, args []string) error {
				if status := main(args); status != 0 {
					return &exitError{status: status}
				}
				return nil
			},
		}
	}
	return []*cobra.Command{
		part("__hold", "own one attempt: terminal, child, output, exit status", holder.HoldMain),
		part("__exec", "become the command", holder.ExecMain),
		part("__wake", "wake a paused command when nobody else is left who would", holder.WakeMain),
		part("__sensors", "read the sensors, JSON lines on stdout", func(args []string) int {
			return sampler.SensorsMain(args, e.stdout)
		}),
		part(supervisor.PlaybooksArg, "ask GitHub for the open issues of the playbooks", supervisor.PlaybooksMain),
	}
}
