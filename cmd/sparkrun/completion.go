package main

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sparkrun/ladder"
	"sparkrun/supervisor"
)

// completes gives a flag its values for <TAB>. It can only fail for a flag that
// is not there, which a test would see.
func completes(c *cobra.Command, flag string, f cobra.CompletionFunc) {
	_ = c.RegisterFlagCompletionFunc(flag, f)
}

// fixed offers the choices that begin with what is typed, and no files.
func fixed(choices ...cobra.Completion) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return beginning(choices, typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// examples shows the form of those flags that take a number, a time or a word of one's own:
// no file stands for any of them.
var examples = map[string][]cobra.Completion{
	"grace": {"30s", "2m"}, "gate-limit": {"1h", "10m"}, "hang-after": {"3m", cobra.CompletionWithDesc("0", "never")},
	"max-attempts": {"8", "4"}, "min-free": {"2GiB"}, "guard-floor": {"3%", "4GiB"}, "guard-soft": {defaultSoft},
	"watch": {"15m", "1m"}, "watch-step": {"5s"}, "for": {"30s", "10m"},
	"params": {"8B", "70B"}, "rank": {"16"}, "batch": {"1"}, "seq-len": {"2048"}, "budget": {"110GB"},
	"name": nil, "knob": nil,
}

// completeExamples offers them for the flags of a command that have nothing better.
func completeExamples(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if _, has := c.GetFlagCompletionFunc(f.Name); has {
			return
		}
		if words, ok := examples[f.Name]; ok {
			completes(c, f.Name, fixed(words...))
		}
	})
}

func folders(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

func beginning(choices []cobra.Completion, typed string) []cobra.Completion {
	return slices.DeleteFunc(slices.Clone(choices), func(c cobra.Completion) bool { return !strings.HasPrefix(c, typed) })
}

// completions offers the values of a run's flags.
func (f *runFlags) completions(c *cobra.Command, e environment) {
	completes(c, "drop-caches", fixed(
		cobra.CompletionWithDesc("auto", "of the machine as root, else of the job's files"),
		cobra.CompletionWithDesc("system", "of the whole machine"),
		cobra.CompletionWithDesc("files", "of the files that the job had mapped"),
		cobra.CompletionWithDesc("never", "leave the page cache alone"),
	))
	completes(c, "shim", fixed(
		cobra.CompletionWithDesc("auto", "from attempt 2 on, where nothing else turns a setting"),
		cobra.CompletionWithDesc("always", "in every attempt, to see what the code sets"),
		cobra.CompletionWithDesc("never", "leave what stands in the code alone"),
	))
	completes(c, "resume", func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return beginning([]cobra.Completion{
			cobra.CompletionWithDesc("auto", "from the newest complete checkpoint"),
			cobra.CompletionWithDesc("never", "start over"),
		}, typed), cobra.ShellCompDirectiveDefault // or a path
	})
	completes(c, "on-divergence", fixed(
		cobra.CompletionWithDesc("warn", "say it and go on"),
		cobra.CompletionWithDesc("stop", "end the command"),
	))
	completes(c, "on-wedge", fixed(
		cobra.CompletionWithDesc("warn", "say it and go on"),
		cobra.CompletionWithDesc("stop", "end the run"),
	))
	for name, examples := range map[string][]cobra.Completion{
		"max-temp":           {cobra.CompletionWithDesc("88:84", "pause at 88 C, go on at 84 C")},
		"max-pause":          {"10m", "30m"},
		"cap-clocks":         {cobra.CompletionWithDesc("0", "never"), "2100", "1800"},
		"max-slowdown":       {cobra.CompletionWithDesc("1.5:30", "1.5 times as long for 30 minutes")},
		"interval":           {"30s", "10s", "5s"},
		"telemetry-interval": {"1s", "5s", "10s"},
	} {
		completes(c, name, fixed(examples...))
	}
	completes(c, "hang-timeout", fixed(
		cobra.CompletionWithDesc("auto", "ten of its own steps, 30 minutes at least"),
		cobra.CompletionWithDesc("never", "wait for ever"),
		cobra.CompletionWithDesc("1h", "a time"),
	))
	completes(c, "guard-on-cotenant", fixed(
		cobra.CompletionWithDesc("kill", "end the command, start it again unchanged when memory is back"),
		cobra.CompletionWithDesc("warn", "say it; end the command only at the very end"),
	))
	completes(c, "ladder", func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var names []cobra.Completion
		for _, name := range ladder.Names() {
			about := ""
			if l, err := ladder.Load(name); err == nil {
				about = l.About()
			}
			names = append(names, cobra.CompletionWithDesc(name, about))
		}
		// A ladder can be a file too: the shell offers those where no name fits.
		return beginning(names, typed), cobra.ShellCompDirectiveDefault
	})
	complete := func(cmd *cobra.Command, typed string, more bool) ([]cobra.Completion, cobra.ShellCompDirective) {
		// The ladder may be named in the environment or in a settings file;
		// whatever is wrong with those is told when the command is run.
		if dir, err := os.Getwd(); err == nil {
			_, _ = resolve(cmd.Flags(), e, dir)
		}
		l, err := ladder.Load(f.ladder)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		// Several may stand in one word: what is before the last comma stays.
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var names []cobra.Completion
		for _, name := range l.RungNames() {
			if !slices.Contains(strings.Split(before, ","), name) {
				names = append(names, before+name)
			}
		}
		if more {
			for _, name := range append(ladder.Allowances(), supervisor.AllowRestart) {
				if !slices.Contains(strings.Split(before, ","), name) {
					names = append(names, before+name)
				}
			}
		}
		return beginning(names, typed), cobra.ShellCompDirectiveNoFileComp
	}
	completes(c, "allow", func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return complete(cmd, typed, true)
	})
	completes(c, "deny", func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return complete(cmd, typed, false)
	})
	for _, flag := range []string{"runs-dir", "profiles", "cgroup"} {
		completes(c, flag, folders)
	}
}
