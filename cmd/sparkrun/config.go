package main

import (
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sparkrun/supervisor/runlog"
)

// newConfig prints every setting with where its value comes from, and without secrets: what
// it prints is what people show to others. The settings themselves stay as they are.
func newConfig(e environment) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "config",
		Short: "Print every setting, its value and where the value comes from",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := os.Getwd()
			if err != nil {
				return fmt.Errorf("the working folder cannot be told: %w", err)
			}
			probe := &cobra.Command{}
			var o runFlags
			o.add(probe.Flags())
			all, err := resolve(probe.Flags(), e, dir)
			if err != nil {
				return err
			}
			secrets := runlog.NewRedactor(e.env)
			for i := range all {
				all[i].value = shownSetting(secrets, all[i].name, all[i].value)
			}
			if asJSON {
				rows := make([]map[string]string, 0, len(all))
				for _, s := range all {
					rows = append(rows, map[string]string{"name": s.name, "value": s.value, "from": s.from})
				}
				return json.NewEncoder(cmd.OutOrStdout()).Encode(rows)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, s := range all {
				fmt.Fprintf(w, "%s\t%s\t%s\n", s.name, clean(s.value), clean(s.from))
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// shownSetting is the value of a setting as it may be shown. A command is read as a shell
// reads it.
func shownSetting(secrets *runlog.Redactor, name, value string) string {
	if name == "on-event" {
		return secrets.Argv([]string{"sh", "-c", value})[2]
	}
	return secrets.Text(value)
}
