package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sparkrun/supervisor"
)

// sensorRootEnv names a folder with a recorded proc/ and sys/ that the sampler reads
// in place of this machine's. It is for tests and is no setting; a run says so.
const sensorRootEnv = "SPARKRUN_TEST_ROOT"

func runRun(cmd *cobra.Command, args []string, f *runFlags, e environment) error {
	if len(args) == 0 {
		if cmd.Flags().NFlag() == 0 && cmd.ArgsLenAtDash() < 0 {
			_ = cmd.Help()
		}
		return &exitError{supervisor.StatusError, "no command was given; write it behind --, as in: " + progName() + " -- python train.py"}
	}
	opts, err := f.options(cmd, args, e)
	if err != nil {
		return err
	}
	res, err := supervisor.Run(opts)
	var se *supervisor.StatusErr
	if errors.As(err, &se) && se.Status == supervisor.StatusNotFound {
		if like := cmd.Root().SuggestionsFor(args[0]); len(like) > 0 {
			return &exitError{se.Status, fmt.Sprintf("%v; or did you mean %q?", err, progName()+" "+like[0])}
		}
	}
	if err != nil {
		return err
	}
	if res.Status != 0 {
		return &exitError{status: res.Status} // the summary has said it
	}
	return nil
}

// options resolves every setting of a run.
func (f *runFlags) options(cmd *cobra.Command, args []string, e environment) (supervisor.Options, error) {
	var none supervisor.Options
	dir, err := os.Getwd()
	if err != nil {
		return none, fmt.Errorf("the working folder cannot be told (was it removed?): %w", err)
	}
	if _, err := resolve(cmd.Flags(), e, dir); err != nil {
		return none, err
	}
	knobs, err := parseKnobs(f.knobs)
	if err != nil {
		return none, err
	}
	minFree, err := parseSize(f.minFree)
	if err != nil {
		return none, fmt.Errorf("--min-free: %w", err)
	}
	limits, err := f.guardOptions()
	if err != nil {
		return none, err
	}
	o := supervisor.Options{
		Argv: args, Dir: dir, Env: e.env,
		Stdin: e.stdin, Stdout: e.stdout, Stderr: e.stderr,
		Version: version(), Prog: progName(), Self: os.Args[1:],
		Name: f.name, RunsDir: f.runsDir,
		Interval: f.interval, TelemetryInterval: f.telemetryInterval, Grace: f.grace,
		Ladder: f.ladder, MaxAttempts: f.maxAttempts,
		NoRetry: f.noRetry, Exact: f.exact,
		Allow: f.allow, Deny: f.deny, Knobs: knobs,
		Force: f.force, Strict: f.strict, NoPreflight: f.noPreflight,
		NoPTY: f.noPTY, Quiet: f.quiet,
		Shim: f.shim, Resume: f.resume, OnDivergence: f.onDivergence,
		DropCaches: f.dropCaches, Cgroup: f.cgroup, MinFree: minFree,
		ThermalConfig: f.thermalConfig, Guard: limits, GateLimit: f.gateLimit, HangAfter: f.hangAfter,
	}
	if o.ProfileDirs, err = profileDirs(e, f.profiles); err != nil {
		return none, err
	}
	if err := f.heat.apply(&o); err != nil {
		return none, err
	}
	o.SensorRoot = e.getenv(sensorRootEnv)
	o.ProfileFile = filepath.Join(dir, settingsFile)
	switch {
	case o.Interval < time.Second:
		return none, fmt.Errorf("--interval %s: at least 1s (telemetry.csv has every second anyway)", o.Interval)
	case o.TelemetryInterval < 100*time.Millisecond || o.TelemetryInterval > 10*time.Minute:
		return none, fmt.Errorf("--telemetry-interval %s: 100ms to 10m", o.TelemetryInterval)
	case o.Grace < 0:
		return none, fmt.Errorf("--grace %s: not below zero", o.Grace)
	case o.HangAfter < 0:
		return none, fmt.Errorf("--hang-after %s: not below zero (0 turns it off)", o.HangAfter)
	case o.GateLimit < 0:
		return none, fmt.Errorf("--gate-limit %s: not below zero", o.GateLimit)
	case o.MaxAttempts < 1:
		return none, fmt.Errorf("--max-attempts %d: at least 1 (--no-retry is another way to say 1)", o.MaxAttempts)
	}
	switch {
	case !slices.Contains([]string{"auto", "always", "never"}, o.Shim):
		return none, fmt.Errorf("--shim %s: one of auto, always, never", o.Shim)
	case o.OnDivergence != "warn" && o.OnDivergence != "stop":
		return none, fmt.Errorf("--on-divergence %s: warn or stop", o.OnDivergence)
	case o.Resume == "":
		return none, errors.New("--resume is empty: auto, never, or the path of a checkpoint")
	}
	switch o.DropCaches {
	case "auto", "system", "files", "never":
	default:
		return none, fmt.Errorf("--drop-caches %s: one of auto, system, files, never", o.DropCaches)
	}
	if o.Exe, err = os.Executable(); err != nil {
		if _, missing := os.Stat("/proc/self"); missing != nil {
			return none, fmt.Errorf("/proc is not mounted, and without it sparkrun sees neither processes nor memory: mount -t proc proc /proc (%w)", err)
		}
		return none, fmt.Errorf("sparkrun cannot find its own binary: %w", err)
	}
	return o, nil
}
