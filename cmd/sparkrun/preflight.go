package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sparkrun/supervisor"
)

func newPreflight(e environment) *cobra.Command {
	var format, out string
	var asJSON bool
	var profiles []string
	c := &cobra.Command{
		Use:   "preflight [flags] [-- COMMAND [ARG...]]",
		Short: "Check the machine, and the command if one is given, without starting it",
		Long: `Check the machine, and the command if one is given, without starting it.

Ends with 0 ready, 1 ready with warnings, 2 blocked (125 if it could not be done).`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := os.Getwd()
			if err != nil {
				return fmt.Errorf("the working folder cannot be told: %w", err)
			}
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("sparkrun cannot find its own binary: %w", err)
			}
			if asJSON {
				format = "json"
			}
			dirs, err := profileDirs(e, profiles)
			if err != nil {
				return err
			}
			report, err := supervisor.PreflightAlone(cmd.Context(), supervisor.Options{
				Argv: args, Dir: dir, Env: e.env, Exe: exe,
				ProfileDirs: dirs, ProfileFile: filepath.Join(dir, settingsFile),
			})
			if err != nil {
				return err
			}
			var text string
			switch format {
			case "table":
				text = report.Table(term.IsTerminal(int(e.stdout.Fd())) && e.getenv("NO_COLOR") == "")
			case "lines":
				text = report.Lines()
			case "json":
				b, err := supervisor.ReportJSON(report)
				if err != nil {
					return err
				}
				text = string(b)
			default:
				return fmt.Errorf("--format %s: one of table, lines, json", format)
			}
			if out != "" {
				b, err := supervisor.ReportJSON(report)
				if err != nil {
					return err
				}
				if err := supervisor.WriteReport(out, b); err != nil {
					return err
				}
			}
			if _, err := fmt.Fprint(cmd.OutOrStdout(), text); err != nil {
				return fmt.Errorf("printing the report: %w", err)
			}
			if status := report.ExitStatus(); status != 0 {
				return &exitError{status: status}
			}
			return nil
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringVar(&format, "format", "table", "table, lines (one literal line per check) or json")
	c.Flags().BoolVar(&asJSON, "json", false, "the same as --format json")
	c.Flags().StringVarP(&out, "output", "o", "", "also write env-report.json to this path")
	c.Flags().StringSliceVar(&profiles, "profiles", nil, "folder with trainer profiles of your own (*.yaml)")
	c.SetFlagErrorFunc(flagError)
	completes(c, "format", fixed(
		cobra.CompletionWithDesc("table", "for a person"),
		cobra.CompletionWithDesc("lines", "one literal line per check"),
		cobra.CompletionWithDesc("json", "what env-report.json holds"),
	))
	completes(c, "profiles", folders)
	return c
}
