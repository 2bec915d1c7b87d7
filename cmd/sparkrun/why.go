package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sparkrun/ladder/oom"
	"sparkrun/supervisor/postmortem"
	"sparkrun/supervisor/runlog"
)

const whyHelp = `Say why a training died: out of memory, not out of memory, or unsure, with the
evidence, the sizes it names, and what to do.

LOG is a file with what the training printed ("-" reads standard input), of any
size. What a log alone does not tell can be given beside it: the exit status or
the signal, lines of the kernel log or of a daemon that kills (journalctl -k,
systemd-oomd, earlyoom, Slurm), and telemetry.csv or blackbox.csv of a run.

RUN is one of our runs: a path, an ID, the beginning or the last four letters of
one, a name (its newest run), or "latest". A name that is a file too is the file.

Ends with 0 when there is an answer, whatever it is, and with 125 when a file
cannot be read or the arguments make no sense.`

const whyExamples = `  sparkrun why latest
  sparkrun why train.log --exit 1
  sparkrun why train.log --signal KILL --system <(journalctl -k -b)
  zcat train.log.gz | sparkrun why - --exit 137 --json`

// whyFlags are the flags of why.
type whyFlags struct {
	exit, signal      string
	system, telemetry []string
	json              bool
	attempt           int
}

// newWhy judges a log or a run.
func newWhy(e environment) *cobra.Command {
	var f whyFlags
	c := &cobra.Command{
		Use:     "why LOG|RUN|-",
		Short:   "Say why a training died, from its log or its run",
		Long:    whyHelp,
		Example: whyExamples,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("why takes one log or run, not %d; as in: sparkrun why latest, or: sparkrun why train.log --exit 1", len(args))
			}
			return f.why(cmd, args[0], e)
		},
	}
	c.Flags().StringVar(&f.exit, "exit", "", "exit status of the command, 0 to 255 (LOG only)")
	c.Flags().StringVar(&f.signal, "signal", "", "signal that ended it, as SIGKILL, KILL or 9 (LOG only)")
	c.Flags().StringArrayVar(&f.system, "system", nil, "file with kernel or daemon lines; may be given several times (LOG only)")
	c.Flags().StringArrayVar(&f.telemetry, "telemetry", nil, "telemetry.csv or blackbox.csv (LOG only)")
	c.Flags().IntVar(&f.attempt, "attempt", 0, "attempt of the run (default: the last one; RUN only)")
	c.Flags().BoolVar(&f.json, "json", false, "print JSON, in the form of verdict.json")
	c.SetFlagErrorFunc(flagError)
	c.ValidArgsFunction = runsAndFiles(e)
	completes(c, "signal", fixed("SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGINT", "SIGHUP"))
	completes(c, "exit", fixed(
		cobra.CompletionWithDesc("1", "an error"),
		cobra.CompletionWithDesc("137", "SIGKILL, as a shell writes it"),
		cobra.CompletionWithDesc("143", "SIGTERM"),
	))
	completes(c, "attempt", fixed())
	return c
}

func (f *whyFlags) why(cmd *cobra.Command, what string, e environment) error {
	table, err := oom.Load()
	if err != nil {
		return fmt.Errorf("the crash signatures cannot be read: %w", err)
	}
	defer smallHeap()()
	places := runlog.HostPlaces()
	places.Getenv = e.getenv
	dir, isRun, err := f.find(places, what, e)
	if err != nil {
		return err
	}
	bar := &progressLine{out: e.stderr}
	var a postmortem.Answer
	if isRun {
		a, err = postmortem.JudgeRun(cmd.Context(), table, places, dir, f.attempt, bar.show())
	} else {
		o := postmortem.LogOptions{Path: what, Stdin: e.stdin, System: f.system, Telemetry: f.telemetry, Progress: bar.show()}
		if o.Exit, err = postmortem.ParseEnd(f.exit, f.signal); err == nil {
			a, err = postmortem.JudgeLog(table, o)
		}
	}
	bar.clear()
	if err != nil {
		return err
	}
	for _, n := range a.Notes {
		fmt.Fprintln(e.stderr, "sparkrun: "+clean(n))
	}
	if f.json {
		b, err := a.JSON()
		if err != nil {
			return err
		}
		if _, err := e.stdout.Write(b); err != nil {
			return fmt.Errorf("printing the verdict: %w", err)
		}
		return nil
	}
	width, tty := 80, term.IsTerminal(int(e.stdout.Fd()))
	if tty {
		if w, _, err := term.GetSize(int(e.stdout.Fd())); err == nil && w > 0 {
			width = w
		}
	}
	if _, err := fmt.Fprint(e.stdout, a.Person(width, colourful(tty, e.getenv))); err != nil {
		return fmt.Errorf("printing the verdict: %w", err)
	}
	return nil
}

// smallHeap has garbage collected early: a log is read in pieces that are garbage at
// once, on a machine that may have little memory left.
func smallHeap() (restore func()) {
	percent, limit := debug.SetGCPercent(50), debug.SetMemoryLimit(40<<20)
	return func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}

// find says whether what was named is a run, and where that lies. What is a file
// is a log.
func (f *whyFlags) find(p runlog.Places, what string, e environment) (dir string, isRun bool, err error) {
	logFlags := map[string]bool{"--exit": f.exit != "", "--signal": f.signal != "", "--system": len(f.system) > 0, "--telemetry": len(f.telemetry) > 0}
	info, statErr := os.Stat(what)
	isFile := what == "-" || statErr == nil && !info.IsDir()
	if isFile && filepath.Base(what) == runlog.ManifestFile {
		_, err := runlog.ReadManifest(what)
		isFile = err != nil
	}
	if isFile {
		if f.attempt != 0 {
			return "", false, fmt.Errorf("--attempt goes with a run, and %s is a log", what)
		}
		if what == filepath.Base(what) && what != "-" {
			if run, err := runlog.Resolve(p, what); err == nil {
				fmt.Fprintf(e.stderr, "sparkrun: %s is taken as the file; a run goes by that name too: sparkrun why %s\n", what, run)
			}
		}
		if run, n, ok := outputOf(what); ok {
			fmt.Fprintf(e.stderr, "sparkrun: this is the output of a run, of which more is known: sparkrun why %s --attempt %s\n", run, n)
		}
		return "", false, nil
	}
	dir, err = runlog.Resolve(p, what)
	switch {
	case err == nil:
	case errors.Is(err, runlog.ErrNoRun) && errors.Is(statErr, fs.ErrNotExist):
		return "", false, fmt.Errorf("%s is neither a file nor a run: %w", what, err)
	case errors.Is(err, runlog.ErrNoRun) && statErr != nil:
		return "", false, fmt.Errorf("%s cannot be read: %w", what, statErr)
	case errors.Is(err, runlog.ErrNoRun):
		return "", false, fmt.Errorf("%s is a folder, but no run directory (it has no %s); name a log in it", what, runlog.ManifestFile)
	default:
		return "", false, err
	}
	for _, name := range []string{"--exit", "--signal", "--system", "--telemetry"} {
		if logFlags[name] {
			return "", false, fmt.Errorf("%s goes with a log; %s is a run, which has its own", name, what)
		}
	}
	if f.attempt < 0 {
		return "", false, fmt.Errorf("--attempt %d: attempts count from 1", f.attempt)
	}
	return dir, true, nil
}

// outputOf says whose output a file is: RUN/attempts/N/output.log.
func outputOf(path string) (run, attempt string, ok bool) {
	path, err := filepath.Abs(path)
	if err != nil || filepath.Base(path) != "output.log" {
		return "", "", false
	}
	dir := filepath.Dir(path)
	run, attempt = filepath.Dir(filepath.Dir(dir)), filepath.Base(dir)
	if filepath.Base(filepath.Dir(dir)) != runlog.AttemptsDir {
		return "", "", false
	}
	_, err = runlog.ReadManifest(run)
	return run, attempt, err == nil
}

// runsAndFiles offers "latest" and the newest runs; where none fits the shell
// offers files.
func runsAndFiles(e environment) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		p := runlog.HostPlaces()
		p.Getenv = e.getenv
		runs := runlog.Runs(p)
		if len(runs) == 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		names := []cobra.Completion{cobra.CompletionWithDesc("latest", "the newest run")}
		for _, r := range runs[:min(len(runs), 20)] {
			names = append(names, r.ID)
			if !slices.Contains(names, r.Name) {
				names = append(names, r.Name)
			}
		}
		return beginning(names, typed), cobra.ShellCompDirectiveDefault
	}
}

// progressLine shows on a terminal how much of a long log is read.
type progressLine struct {
	out   *os.File
	began time.Time
	last  time.Time
	shown bool
}

// show returns what to call while reading, nil where there is no terminal.
func (p *progressLine) show() func(read, total int64) {
	if !term.IsTerminal(int(p.out.Fd())) {
		return nil
	}
	p.began = time.Now()
	return func(read, total int64) {
		now := time.Now()
		if now.Sub(p.began) < time.Second || now.Sub(p.last) < 200*time.Millisecond {
			return
		}
		p.last, p.shown = now, true
		const gib = 1 << 30
		if total > 0 {
			fmt.Fprintf(p.out, "\rreading: %.1f of %.1f GiB ", float64(read)/gib, float64(total)/gib)
		} else {
			fmt.Fprintf(p.out, "\rreading: %.1f GiB ", float64(read)/gib)
		}
	}
}

// clear takes the line away again. The reading is over.
func (p *progressLine) clear() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
