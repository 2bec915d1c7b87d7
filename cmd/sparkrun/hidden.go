package main

import (
	"github.com/spf13/cobra"

	"sparkrun/sampler"
	"sparkrun/supervisor"
	"sparkrun/supervisor/holder"
)

// part is a process of our own binary that sparkrun starts itself.
type part struct {
	name, what string
	main       func(args []string, e environment) int
}

func alone(main func([]string) int) func([]string, environment) int {
	return func(args []string, _ environment) int { return main(args) }
}

var parts = []part{
	{"__hold", "own one attempt: terminal, child, output, exit status", alone(holder.HoldMain)},
	{"__exec", "become the command", alone(holder.ExecMain)},
	{"__wake", "wake a paused command when nobody else is left who would", alone(holder.WakeMain)},
	{"__sensors", "read the sensors, JSON lines on stdout", func(args []string, e environment) int {
		return sampler.SensorsMain(args, e.stdout)
	}},
	{supervisor.PlaybooksArg, "ask GitHub for the open issues of the playbooks", alone(supervisor.PlaybooksMain)},
}

// runPart is a start as one of the parts; ok is false for every other. A training waits
// for two of them, so that none builds the tree of commands and their flags.
func runPart(args []string, e environment) (status int, ok bool) {
	if len(args) == 0 {
		return 0, false
	}
	for _, p := range parts {
		if p.name == args[0] {
			return p.main(args[1:], e), true
		}
	}
	return 0, false
}

// hidden returns the parts as commands: there is one binary to install, and nobody types
// them.
func hidden(e environment) []*cobra.Command {
	var out []*cobra.Command
	for _, p := range parts {
		out = append(out, &cobra.Command{
			Use: p.name, Short: p.what, Hidden: true, DisableFlagParsing: true,
			RunE: func(_ *cobra.Command, args []string) error {
				if status := p.main(args, e); status != 0 {
					return &exitError{status: status}
				}
				return nil
			},
		})
	}
	return out
}
