package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"sparkrun/configs"
	"sparkrun/internal/regular"
	"sparkrun/preflight"
	"sparkrun/supervisor"
)

// preflightFlags are the flags of `sparkrun preflight`.
type preflightFlags struct {
	format, report, root                            string
	json, noReport, all, bandwidth, probeImage, fix bool
	torch                                           bool
	yes, schema, exitZero                           bool
	watch, step                                     time.Duration
	// run are the settings of the run that the command is judged for.
	run runFlags
}

// reportFile is where the report of a preflight goes unless another place is named.
const reportFile = "env-report.json"

func newPreflight(e environment) *cobra.Command {
	var f preflightFlags
	c := &cobra.Command{
		Use:   "preflight [flags] [-- COMMAND [ARG...]]",
		Short: "Check the machine, and the command if one is given, without starting it",
		Long: `Check the machine, and the command if one is given, without starting it: the ten
numbered gotchas of the DGX Spark (G1 to G10) and host checks of our own (H1 and on),
and whether the command's memory fits. The report goes to ./env-report.json as well.

The command is judged as a run would start it: with ./sparkrun.yaml, SPARKRUN_<FLAG> and
the flags of a run. Nothing is changed on the machine without --fix, which first lists
what it would do.

Ends with 0 ready, 1 ready with warnings, 2 blocked (125 if it could not be done); with
--fix 0 when nothing is left to do, 1 when something is.`,
		Example: fmt.Sprintf("  %[1]s preflight -- python train.py\n  %[1]s preflight --watch 15m\n  %[1]s preflight --fix", progName()),
		Args:    cobra.ArbitraryArgs,
		RunE:    func(cmd *cobra.Command, args []string) error { return runPreflight(cmd, args, &f, e) },
	}
	set := c.Flags()
	set.SetInterspersed(false)
	f.run.add(set)
	f.run.completions(c, e)
	hideSettings(set, "profiles", "knob", "ladder", "allow", "deny", "exact", "drop-caches")
	set.StringVar(&f.format, "format", "table", "table, lines (one literal line per check) or json")
	set.BoolVar(&f.json, "json", false, "the same as --format json")
	set.StringVarP(&f.report, "report", "o", "", "path of the report (default ./"+reportFile+")")
	set.BoolVar(&f.noReport, "no-report", false, "write no report file")
	set.BoolVar(&f.all, "all", false, "show the host checks that found nothing too")
	set.DurationVar(&f.watch, "watch", 0, "observe the GPU under load for so long, as 15m, and judge G4")
	set.DurationVar(&f.step, "watch-step", 5*time.Second, "time between two readings of --watch")
	set.BoolVar(&f.bandwidth, "bandwidth", false, "measure the memory bandwidth (G5): takes 12 GB and an idle machine for some seconds")
	set.BoolVar(&f.torch, "torch", false, "import the command's torch and ask it for the GPU (H19); takes some seconds")
	set.BoolVar(&f.probeImage, "probe-image", false, "start the command's image once, without network and GPU, to read which packages it has")
	set.BoolVar(&f.fix, "fix", false, "list the changes to the host that the hints advise, and make them if you agree")
	set.BoolVar(&f.yes, "yes", false, "with --fix: agree to everything that is listed")
	set.BoolVar(&f.schema, "schema", false, "print the JSON Schema of the report and do nothing else")
	set.BoolVar(&f.exitZero, "exit-zero", false, "end with 0 whatever was found, as the script of the runbook did")
	set.StringVar(&f.root, "root", "", "look at the recorded tree in this folder in place of this machine")
	c.SetFlagErrorFunc(flagError)
	completes(c, "format", fixed(
		cobra.CompletionWithDesc("table", "for a person"),
		cobra.CompletionWithDesc("lines", "one literal line per check"),
		cobra.CompletionWithDesc("json", "what env-report.json holds"),
	))
	completes(c, "root", folders)
	return c
}

func runPreflight(cmd *cobra.Command, args []string, f *preflightFlags, e environment) error {
	if f.schema {
		return printSchema(cmd, "env-report")
	}
	for _, name := range []string{"root", "report"} {
		if flag := cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
			return fmt.Errorf("--%s is empty: name a path, or leave the flag out", name)
		}
	}
	if err := f.check(); err != nil {
		return err
	}
	// A change that is under way is given its own time to end, and an image that was
	// started is removed.
	var fixing atomic.Bool
	grace := func() time.Duration {
		switch {
		case fixing.Load():
			return 0
		case f.probeImage:
			return 12 * time.Second
		}
		return endGrace
	}
	return untilSignal(grace, func(ctx context.Context) error { return f.preflight(ctx, cmd, args, e, &fixing) })
}

// preflight is the command, in a goroutine of its own.
func (f *preflightFlags) preflight(ctx context.Context, cmd *cobra.Command, args []string, e environment, fixing *atomic.Bool) error {
	o, err := answered("the working folder, or a settings file,", func() (supervisor.Options, error) { return f.run.options(cmd, args, e) })
	if err != nil {
		return err
	}
	po := supervisor.PreflightOptions{
		Root: f.root, Watch: f.watch, Step: f.step, Bandwidth: f.bandwidth, Torch: f.torch, ProbeImage: f.probeImage,
		// What is shown is one line; a name in it may have more.
		Show: func(s string) { fmt.Fprintln(e.stderr, strings.ReplaceAll(clean(s), "\n", "?")) },
	}
	report, err := supervisor.PreflightAlone(ctx, o, po)
	if err != nil {
		return err
	}
	text, err := f.text(report, e)
	if err != nil {
		return err
	}
	saveErr := f.save(report, o.Dir, e)
	if err := printed(cmd, text); err != nil {
		return err
	}
	if saveErr != nil {
		return saveErr
	}
	if f.fix {
		fixing.Store(true)
		return f.repair(ctx, report, o, po, e)
	}
	if status := report.ExitStatus(); status != 0 && !f.exitZero {
		return &exitError{status: status}
	}
	return nil
}

// repair offers what the hints advise, and makes what is agreed to.
func (f *preflightFlags) repair(ctx context.Context, r preflight.Report, o supervisor.Options, po supervisor.PreflightOptions, e environment) error {
	po.Watch, po.Bandwidth, po.ProbeImage, po.Torch = 0, false, false, false
	out := e.stdout
	if f.format == "json" {
		out = e.stderr // the report alone stands on stdout, for a program
	}
	res, err := supervisor.Fix(ctx, r, supervisor.FixOptions{
		Yes: f.yes, Stdin: e.stdin, Stdout: out, Stderr: e.stderr, Dir: o.Dir, Env: o.Env,
		Again: func(ctx context.Context) (preflight.Report, error) { return supervisor.PreflightAlone(ctx, o, po) },
	})
	if err != nil {
		return err
	}
	if res.Status != 0 && !f.exitZero {
		return &exitError{status: res.Status}
	}
	return nil
}

// check refuses flags that contradict each other.
func (f *preflightFlags) check() error {
	if f.json {
		f.format = "json"
	}
	switch {
	case f.format != "table" && f.format != "lines" && f.format != "json":
		return fmt.Errorf("--format %s: one of table, lines, json", f.format)
	case f.watch < 0:
		return fmt.Errorf("--watch %s: how long to observe, as 15m", f.watch)
	case f.step < 10*time.Millisecond:
		return fmt.Errorf("--watch-step %s: at least 10ms", f.step)
	case f.yes && !f.fix:
		return errors.New("--yes agrees to what --fix lists: give --fix as well")
	case f.fix && f.root != "":
		return errors.New("--fix changes this machine and --root looks at a recorded one: give one of them")
	case f.noReport && f.report != "":
		return errors.New("--report and --no-report contradict each other")
	}
	return nil
}

func (f *preflightFlags) text(r preflight.Report, e environment) (string, error) {
	switch f.format {
	case "lines":
		return r.Lines(), nil
	case "json":
		b, err := supervisor.ReportJSON(r)
		return string(b), err
	}
	return r.Table(preflight.Look{Width: textWidth(e), Colour: colours(e), All: f.all}), nil
}

// save writes the report. A path that was named must be written; the default one is a
// service, and a folder that takes no file is no reason to fail. A file that is no report
// is somebody's own and stays.
func (f *preflightFlags) save(r preflight.Report, dir string, e environment) error {
	if f.noReport || f.root != "" && f.report == "" {
		return nil
	}
	path := f.report
	if path == "" {
		path = filepath.Join(dir, reportFile)
	}
	_, err := answered("the folder of "+path, func() (struct{}, error) {
		if err := isReport(path, f.report != ""); err != nil {
			return struct{}{}, err
		}
		b, err := supervisor.ReportJSON(r)
		if err == nil {
			err = supervisor.WriteReport(path, b)
		}
		return struct{}{}, err
	})
	if err != nil && f.report == "" {
		fmt.Fprintf(e.stderr, "%s: no %s was written here: %v\n", progName(), reportFile, clean(err.Error()))
		return nil
	}
	return err
}

// reportMost is far more than a report has.
const reportMost = 16 << 20

// isReport tells whether what lies at path may be replaced: nothing, or a report. An empty
// file is somebody's own, unless the user has named it.
func isReport(path string, named bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("the report: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is no regular file, and is left as it is; --report names another place", path)
	case info.Size() == 0 && named:
		return nil
	case info.Size() > reportMost:
		return notOurs(path)
	}
	b, err := regular.Read(path, reportMost)
	if err != nil {
		return fmt.Errorf("the report: %w", err)
	}
	if !readsAsReport(b) {
		return notOurs(path)
	}
	return nil
}

var gotchaNumber = regexp.MustCompile(`^G[0-9]{1,2}$`)

// readsAsReport tells whether a text is a report of ours, or one that the runbook's own
// script wrote: that has four keys, and the gotchas by their numbers.
func readsAsReport(text []byte) bool {
	var have map[string]json.RawMessage
	if json.Unmarshal(text, &have) != nil {
		return false
	}
	if ours, ok := have["sparkrun"]; ok {
		var part struct {
			Schema string `json:"schema"`
		}
		return json.Unmarshal(ours, &part) == nil && strings.HasPrefix(part.Schema, "sparkrun.env-report/")
	}
	var found map[string]string
	var verdict string
	if len(have) != 4 || have["platform"] == nil || have["headroom_gb"] == nil ||
		json.Unmarshal(have["checks"], &found) != nil || json.Unmarshal(have["verdict"], &verdict) != nil {
		return false
	}
	for id := range found {
		if !gotchaNumber.MatchString(id) {
			return false
		}
	}
	return len(found) > 0 && verdict != ""
}

func notOurs(path string) error {
	return fmt.Errorf("%s is there and is no report of a preflight: it is left as it is; --report names another place", path)
}

// printSchema prints a published schema.
func printSchema(cmd *cobra.Command, name string) error {
	b, err := configs.Schema(name)
	if err != nil {
		return err
	}
	return printed(cmd, string(b))
}

func printed(cmd *cobra.Command, text string) error {
	if _, err := fmt.Fprint(cmd.OutOrStdout(), text); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}
