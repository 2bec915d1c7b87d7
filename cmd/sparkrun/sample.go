package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sparkrun/sampler/standalone"
	"sparkrun/supervisor"
)

const sampleHelp = `Sample the GPU's temperature and power into a log, without a run.

A row is appended every INTERVAL (30 for 30 seconds, or 500ms, 2m) to LOGFILE, in the
form of nvidia-smi --query-gpu=timestamp,temperature.gpu,power.draw --format=csv; what is
not known is [N/A]. The sampler goes on in the background until it is stopped, and
LOGFILE.pid has its pid. One that samples into this log already is stopped first. With
--wide the rows are those of telemetry.csv.

Ends with 0 once the first row is written, with 1 when no sensor answers (then no file
has been made), and with 125 for an interval or a path that makes no sense. Nothing is
ever written into a file that does not begin as such a log does or that lies in the
directory of a run, which samples by itself, and no process is stopped that is not a
sampler of this log.`

const sampleExamples = `  sparkrun sample                       # every 30 s into thermal.log
  sparkrun sample 5 /tmp/thermal.log
  sparkrun sample --wide 1 telemetry.log
  sparkrun sample --foreground --for 10m
  sparkrun sample --stop`

// capWords is the runbook's reminder: its beginning is what people look for.
const capWords = "A sustained ~100W reading is the platform cap, not a bug: the batch and the precision have nothing to do with it."

// exitNoSensor is the status where nothing can be read, as of the runbook's script.
const exitNoSensor = 1

// sampleFlags are the flags of sample.
type sampleFlags struct {
	wide, foreground, stop bool
	length                 time.Duration
	// reportFD is where a sampler in the background tells how its start went, 0 for none.
	reportFD int
}

func newSample(e environment) *cobra.Command {
	var f sampleFlags
	c := &cobra.Command{
		Use:     standalone.Word + " [flags] [INTERVAL] [LOGFILE]",
		Short:   "Sample temperature and power into a log, without a run",
		Long:    sampleHelp,
		Example: sampleExamples,
		Args:    cobra.ArbitraryArgs,
		RunE:    func(cmd *cobra.Command, args []string) error { return f.sample(cmd, args, e) },
	}
	c.Flags().BoolVar(&f.wide, "wide", false, "write the columns of telemetry.csv")
	c.Flags().BoolVar(&f.foreground, "foreground", false, "stay, until Ctrl-C or a signal")
	c.Flags().BoolVar(&f.stop, "stop", false, "stop the sampler of LOGFILE")
	c.Flags().DurationVar(&f.length, "for", 0, "end by itself after this time")
	c.Flags().IntVar(&f.reportFD, "report-fd", 0, "")
	// It cannot fail for a flag that is there.
	_ = c.Flags().MarkHidden("report-fd")
	c.SetFlagErrorFunc(sampleFlagError)
	c.ValidArgsFunction = func(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 && !f.stop {
			return beginning([]cobra.Completion{"30", "5", "1"}, typed), cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveDefault
	}
	return c
}

// sampleFlagError tells an interval below 0, which reads as a flag, from a flag.
func sampleFlagError(cmd *cobra.Command, err error) error {
	if _, text, found := strings.Cut(err.Error(), "unknown shorthand flag: "); found {
		if _, word, found := strings.Cut(text, " in -"); found && word != "" && strings.IndexByte("0123456789.", word[0]) >= 0 {
			_, err := readInterval("-" + word)
			return &exitError{supervisor.StatusError, err.Error()}
		}
	}
	return flagError(cmd, err)
}

func (f *sampleFlags) sample(cmd *cobra.Command, args []string, e environment) error {
	interval, log, err := sampleArgs(args, f.stop)
	if err != nil {
		return err
	}
	switch {
	case f.stop && (f.wide || f.foreground || f.length != 0):
		return errors.New("--stop goes with none of --wide, --foreground and --for")
	case cmd.Flags().Changed("for") && f.length <= 0:
		return fmt.Errorf("--for %v: a time longer than 0, as 10m", f.length)
	}
	say := func(text string) { fmt.Fprintln(e.stdout, clean(text)) }
	var mu sync.Mutex
	note := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(e.stderr, "sparkrun sample: "+clean(text))
	}
	if f.stop {
		if len(args) == 1 && args[0] != log {
			note(takenForInterval(args[0], log))
		}
		return standalone.Stop(log, say, note)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding sparkrun's own file, which reads the sensors: %w", err)
	}
	begun := func(pid int) {
		say(fmt.Sprintf("Sampling every %ss into %s (pid %d)", seconds(interval), log, pid))
		say(capWords)
	}
	if !f.foreground {
		pid, err := f.background(exe, interval, log, say, e)
		if err == nil {
			begun(pid)
		}
		return err
	}
	o := standalone.Options{Exe: exe, Log: log, Interval: interval, For: f.length, Wide: f.wide, Say: say, Note: note}
	o.Ready = func() error {
		begun(os.Getpid())
		return nil
	}
	var report *reporter
	if f.reportFD > 2 {
		report = newReporter(f.reportFD)
		o.Say, o.Ready = report.say, func() error { return report.ready(e.stderr) }
	}
	ctx, stop := untilAsked(cmd.Context())
	defer stop()
	err = sampleError(runSampler(ctx, o))
	var failed *exitError
	if report != nil && errors.As(err, &failed) && report.failed(failed) {
		return &exitError{status: failed.status} // who started us says it
	}
	return err
}

// endWait is how long a sampler that was asked to end may take: longer than it waits for a
// disk and for the driver.
const endWait = 10 * time.Second

// runSampler samples. A disk that hangs does not keep it from ending when it is asked to.
func runSampler(ctx context.Context, o standalone.Options) error {
	done := make(chan error, 1)
	go func() { done <- standalone.Run(ctx, o) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(endWait):
		return fmt.Errorf("%s: the disk does not answer (a dead mount?)", o.Log)
	}
}

// sampleError gives an error of the sampler its status.
func sampleError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, standalone.ErrNoSensor):
		return &exitError{exitNoSensor, err.Error()}
	}
	return &exitError{supervisor.StatusError, err.Error()}
}

// sampleArgs reads the two arguments as the runbook's script takes them. With stop a
// single one may be the log.
func sampleArgs(args []string, stop bool) (interval time.Duration, log string, err error) {
	interval, log = standalone.DefaultInterval, standalone.DefaultLog
	if len(args) > 2 {
		return 0, "", fmt.Errorf("sample takes an interval and a log file, not %d arguments; as in: %s sample 30 thermal.log", len(args), progName())
	}
	if stop && len(args) == 1 {
		if _, err := readInterval(args[0]); err != nil {
			return interval, args[0], emptyLog(args[0])
		}
	}
	if len(args) > 0 {
		if interval, err = readInterval(args[0]); err != nil {
			if len(args) == 1 && strings.ContainsAny(args[0], "./") {
				err = fmt.Errorf("%w; the log comes second, as in: %s sample 30 %s", err, progName(), args[0])
			}
			return 0, "", err
		}
	}
	if len(args) > 1 {
		log = args[1]
	}
	return interval, log, emptyLog(log)
}

// takenForInterval says how the only argument of --stop was read that may have been meant as
// the log: a log can be called 5.
func takenForInterval(arg, log string) string {
	return fmt.Sprintf("%s was taken as the interval, and the log to stop as %s; for a log called %s: %s sample --stop ./%s",
		arg, log, arg, progName(), arg)
}

func emptyLog(log string) error {
	if log == "" || strings.HasSuffix(log, "/") {
		return fmt.Errorf("the log file %q has no name", log)
	}
	return nil
}

// readInterval reads seconds ("30") or a time with a unit ("500ms").
func readInterval(text string) (time.Duration, error) {
	written := text
	if _, err := strconv.ParseUint(text, 10, 31); err == nil {
		written += "s"
	}
	d, err := time.ParseDuration(written)
	if err != nil || d < standalone.MinInterval || d > standalone.MaxInterval || d%time.Millisecond != 0 {
		return 0, fmt.Errorf("the interval %q: seconds (30) or a time with a unit (500ms, 2m), from %s to a day",
			text, standalone.MinInterval)
	}
	return d, nil
}

// seconds writes an interval as the runbook's script does, without the unit.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

// untilAsked ends with a signal that asks to end. One that was ignored when we were
// started (nohup, a shell's background job) stays ignored.
func untilAsked(ctx context.Context) (context.Context, context.CancelFunc) {
	// Whoever read our output may be gone, and a limit on the size of files is an error of
	// the disk like another: neither is a reason to die with the pid file left behind.
	signal.Ignore(unix.SIGPIPE, unix.SIGXFSZ)
	var asked []os.Signal
	for _, s := range []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		if !signal.Ignored(s) {
			asked = append(asked, s)
		}
	}
	if len(asked) == 0 {
		return context.WithCancel(ctx)
	}
	return signal.NotifyContext(ctx, asked...)
}

// startLimit is how long a sampler in the background may take for its start: longer than
// the sensors, the end of another sampler and the disk may take together.
const startLimit = time.Minute

// startReport is one line of what a sampler in the background tells of its start.
type startReport struct {
	Say    string `json:"say,omitempty"`
	Ready  int    `json:"ready,omitempty"`
	Failed string `json:"failed,omitempty"`
	Status int    `json:"status,omitempty"`
}

// background starts a sampler that outlives this process and the terminal, and returns its
// pid once its first row is written.
func (f *sampleFlags) background(exe string, interval time.Duration, log string, say func(string), e environment) (int, error) {
	path, err := filepath.Abs(log)
	if err != nil {
		return 0, fmt.Errorf("finding the present folder, which %s is in: %w", log, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("starting the sampler: %w", err)
	}
	defer r.Close()
	args := []string{standalone.Word, "--foreground", "--report-fd", "3"}
	if f.wide {
		args = append(args, "--wide")
	}
	if f.length > 0 {
		args = append(args, "--for", f.length.String())
	}
	cmd := exec.Command(exe, append(args, "--", interval.String(), path)...)
	cmd.Stderr, cmd.ExtraFiles = e.stderr, []*os.File{w}
	// In a session of its own: Ctrl-C and the end of the terminal are not meant for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// Nor does it keep what others have left open for us: a lock of a shell, a test's pipe.
	// A kernel before 5.11 cannot do that in one call, and goes without.
	_ = unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC)
	err = cmd.Start()
	w.Close()
	if err != nil {
		return 0, fmt.Errorf("starting the sampler: %w", err)
	}
	limit := time.AfterFunc(startLimit, func() {
		_ = cmd.Process.Kill()
		r.Close()
	})
	defer limit.Stop()
	for lines := json.NewDecoder(r); ; {
		var got startReport
		if err := lines.Decode(&got); err != nil {
			if !limit.Stop() {
				return 0, fmt.Errorf("the sampler has not begun in %v and was ended (a disk or a driver that hangs?)", startLimit)
			}
			_ = cmd.Process.Kill()
			return 0, fmt.Errorf("the sampler ended before its first row: %w", ended(cmd, err))
		}
		switch {
		case got.Say != "":
			say(got.Say)
		case got.Ready > 0:
			return got.Ready, nil
		case got.Failed != "":
			_ = cmd.Wait() // it has said how it ended
			return 0, &exitError{got.Status, got.Failed}
		}
	}
}

// ended says how a sampler ended that has not said it itself.
func ended(cmd *exec.Cmd, err error) error {
	if werr := cmd.Wait(); werr != nil {
		return werr
	}
	if errors.Is(err, io.EOF) {
		return errors.New("it has said nothing")
	}
	return err
}

// reporter tells whoever started us how the start went.
type reporter struct {
	file *os.File
	done bool
}

func newReporter(fd int) *reporter {
	unix.CloseOnExec(fd)
	return &reporter{file: os.NewFile(uintptr(fd), "report")}
}

func (r *reporter) tell(s startReport) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = r.file.Write(append(b, '\n'))
	return err
}

func (r *reporter) say(text string) { _ = r.tell(startReport{Say: text}) } // a listener that is gone is noticed at the end

// ready says that the first row is written. Whoever waits for the end of our output, as a
// shell's $(...) does, is not to wait any longer: only a terminal or a file is kept for
// what goes wrong later.
func (r *reporter) ready(stderr *os.File) error {
	if info, err := stderr.Stat(); err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 {
		null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("letting go of standard error: %w", err)
		}
		err = unix.Dup3(int(null.Fd()), int(stderr.Fd()), 0)
		null.Close()
		if err != nil {
			return fmt.Errorf("letting go of standard error: %w", err)
		}
	}
	if err := r.tell(startReport{Ready: os.Getpid()}); err != nil {
		return errors.New("whoever started the sampler is gone")
	}
	r.done = true
	return r.file.Close()
}

// failed passes a failure on; false says that nobody listens any more.
func (r *reporter) failed(e *exitError) bool {
	return !r.done && r.tell(startReport{Failed: e.text, Status: e.status}) == nil
}
