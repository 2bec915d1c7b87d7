package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sparkrun/ladder/trainer"
)

// newTrainers lists the trainer profiles, shows one, and checks one of the user's own.
func newTrainers(e environment) *cobra.Command {
	var asJSON bool
	var profiles []string
	c := &cobra.Command{
		Use:   "trainers [NAME]",
		Short: "List the trainers sparkrun knows, or show one",
		Long: `List the trainers sparkrun knows, or show what it knows of one: what it is recognised by,
each setting with its spellings, how it resumes.

Profiles of your own (*.yaml) belong into $XDG_CONFIG_HOME/sparkrun-train/trainers, a
folder named with --profiles, or under "trainers:" in ./sparkrun.yaml beside the job.
One of the same name replaces the built-in one.`,
		Example: fmt.Sprintf("  %[1]s trainers\n  %[1]s trainers axolotl\n  %[1]s trainers check mine.yaml", progName()),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return errors.New("one trainer at a time")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := loadProfiles(e, profiles)
			if err == nil {
				err = set.Whole()
			}
			if err != nil {
				return err
			}
			all := set.Profiles()
			if len(args) == 1 {
				for _, p := range all {
					if p.Name == args[0] {
						return showTrainer(cmd.OutOrStdout(), p, asJSON)
					}
				}
				if like := nearest(args[0], set.Names()); like != "" {
					return fmt.Errorf("there is no trainer profile %q; did you mean %s? %q lists them", args[0], like, progName()+" trainers")
				}
				return fmt.Errorf("there is no trainer profile %q; they are %s", args[0], strings.Join(set.Names(), ", "))
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), all)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, p := range all {
				from := ""
				if p.Origin != "built-in" {
					from = "  [" + p.Origin + "]"
				}
				fmt.Fprintf(w, "%s\t%s%s\n", clean(p.Name), clean(p.About), clean(from))
			}
			if err := w.Flush(); err != nil {
				return fmt.Errorf("printing the trainers: %w", err)
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			set, err := loadProfiles(e, profiles)
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return beginning(set.Names(), typed), cobra.ShellCompDirectiveNoFileComp
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringSliceVar(&profiles, "profiles", nil, "folder with trainer profiles of your own (*.yaml)")
	completes(c, "profiles", folders)
	c.SetFlagErrorFunc(flagError)
	c.AddCommand(newTrainersCheck())
	return c
}

// newTrainersCheck checks profiles of the user's own.
func newTrainersCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE...",
		Short: "Check trainer profiles of your own: every mistake with its line",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("name a file, as in: %s trainers check mine.yaml", progName())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			bad := 0
			for _, path := range args {
				problems := trainer.Check(path)
				bad += len(problems)
				for _, p := range problems {
					fmt.Fprintln(cmd.ErrOrStderr(), clean(fmt.Sprint(p)))
				}
				if len(problems) == 0 {
					fmt.Fprintf(cmd.OutOrStdout(), "%s: good\n", clean(path))
				}
			}
			if bad > 0 {
				return &exitError{status: 1} // each was said
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return []cobra.Completion{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
}

// nearest returns the name that looks most like a mistyped one, "" if none does: by the
// measure that cobra has for its commands.
func nearest(typed string, names []string) string {
	c := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, n := range names {
		c.AddCommand(&cobra.Command{Use: n, Run: func(*cobra.Command, []string) {}})
	}
	if like := c.SuggestionsFor(typed); len(like) > 0 {
		return like[0]
	}
	return ""
}

func loadProfiles(e environment, named []string) (*trainer.Set, error) {
	dirs, err := profileDirs(e, named)
	if err != nil {
		return nil, err
	}
	set, err := trainer.Load(dirs)
	if err == nil {
		err = set.AddLocal(settingsFile)
	}
	if err != nil {
		return nil, fmt.Errorf("trainer profile: %w", err)
	}
	return set, nil
}

func printJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		_, err = w.Write(append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	return nil
}

// showTrainer prints one profile.
func showTrainer(w io.Writer, p trainer.Info, asJSON bool) error {
	if asJSON {
		return printJSON(w, p)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n\n", p.Name, p.About)
	fmt.Fprintf(&b, "from         %s\n", p.Origin)
	fmt.Fprintf(&b, "known by     %s\n", strings.Join(p.Recognised, "; "))
	family := "micro-batch x accumulation: a smaller micro-batch goes with more accumulation"
	if p.Family == "global" {
		family = "a global batch: only the micro-batch is made smaller"
	}
	fmt.Fprintf(&b, "batch        %s\n", family)
	if p.Image {
		b.WriteString("length       none: it trains on images, and resolution is never touched\n")
	}
	if len(p.Method) > 0 {
		fmt.Fprintf(&b, "method       %s\n", strings.Join(p.Method, ", "))
	} else {
		b.WriteString("method       is not changed\n")
	}
	fmt.Fprintf(&b, "resume       %s\n", p.Resume)
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note         %s\n", n)
	}
	b.WriteString("\nsettings\n")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, k := range p.Knobs {
		said := append(append([]string{}, k.Spellings...), k.Config...)
		for _, c := range k.Calls {
			said = append(said, "in code: "+c)
		}
		def := ""
		if k.Default != "" {
			def = "(default " + k.Default + ")"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", k.Name, strings.Join(said, "  "), def)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("printing the profile: %w", err)
	}
	if _, err := io.WriteString(w, clean(b.String())); err != nil {
		return fmt.Errorf("printing the profile: %w", err)
	}
	return nil
}
