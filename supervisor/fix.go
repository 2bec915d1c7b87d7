package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"

	"sparkrun/preflight"
)

// FixOptions is one call of `sparkrun preflight --fix`.
type FixOptions struct {
	// Yes runs everything without asking (--yes).
	Yes bool
	// Stdin is asked where it is a terminal, and is what the commands read from: sudo may
	// want a password. Nil asks nobody.
	Stdin *os.File
	// Stdout and Stderr get the list, and the commands' own output as it comes.
	Stdout, Stderr io.Writer
	// Dir and Env are where and with what the commands run.
	Dir string
	Env []string
	// Again makes the checks once more; nil leaves that out.
	Again func(context.Context) (preflight.Report, error)

	// root tells that we are root already; patience is how long a command that is asked
	// to end is waited for, and the output of one that has ended. Only tests set these.
	root     func() bool
	terminal func(*os.File) bool
	patience time.Duration
}

// FixResult is what came of it.
type FixResult struct {
	// Listed is what the report offers, Done what was run and ended well, in order.
	Listed, Done []preflight.Change
	// Left is what the report offers after that; nil where the checks were not made
	// again.
	Left []preflight.Change
	// After is the report of the checks made again; nil where they were not.
	After *preflight.Report
	// Status is the exit status: 0 where there was nothing to do or all of it is done, 1
	// where something is left: not agreed to, failed, or still found afterwards.
	Status int
}

// Fix lists the repairs that a report of this machine offers, asks, runs what was agreed to one by one
// and checks again. It stops at the first command that fails. Without a terminal and
// without Yes nothing is run. The error is of Fix itself, such as output that cannot
// be written; a command that fails is told to the user and in the status.
func Fix(ctx context.Context, rep preflight.Report, o FixOptions) (FixResult, error) {
	f := fixer{o: o, out: &errWriter{w: o.Stdout}}
	if f.o.root == nil {
		f.o.root = func() bool { return os.Geteuid() == 0 }
	}
	if f.o.terminal == nil {
		f.o.terminal = func(file *os.File) bool { return file != nil && term.IsTerminal(int(file.Fd())) }
	}
	if f.o.patience == 0 {
		f.o.patience = 10 * time.Second
	}
	res := f.fix(ctx, rep)
	if f.out.err != nil {
		return res, fmt.Errorf("printing what is to be repaired: %w", f.out.err)
	}
	return res, nil
}

type fixer struct {
	o   FixOptions
	out *errWriter
}

func (f fixer) fix(ctx context.Context, rep preflight.Report) FixResult {
	res := FixResult{Listed: rep.Changes()}
	if len(res.Listed) == 0 {
		f.say("nothing that sparkrun can repair by itself%s", unrepaired(rep))
		return res
	}
	f.say("what --fix would do:")
	f.print(preflight.ListChanges(res.Listed, f.command))
	// From here on something is left until it is done.
	res.Status = 1
	chosen, ok := f.agree(ctx, res.Listed)
	// A list that nobody could read is not agreed to.
	if !ok || f.out.err != nil {
		return res
	}
	for i, c := range chosen {
		if err := f.run(ctx, c); err != nil {
			rest := chosen[i:]
			if errors.Is(err, errCutShort) {
				// It was begun: what of it is done nobody can tell.
				f.say("%s %v", c.ID, err)
				rest = chosen[i+1:]
			} else {
				f.say("%s failed: %v", c.ID, err)
			}
			f.done(res.Done, rest)
			f.again(ctx, &res)
			return res
		}
		res.Done = append(res.Done, c)
	}
	f.done(res.Done, nil)
	if len(chosen) == len(res.Listed) {
		res.Status = 0
	}
	f.again(ctx, &res)
	return res
}

// unrepaired points at what a person must do where no command does it.
func unrepaired(rep preflight.Report) string {
	n := 0
	for _, list := range [][]preflight.Finding{rep.Blocking(), rep.Warnings(), rep.Hints()} {
		for _, x := range list {
			if x.Fix != "" {
				n++
			}
		}
	}
	if n == 0 {
		return ""
	}
	if n == 1 {
		return "; the fix of one finding is yours to make: see the table"
	}
	return fmt.Sprintf("; the fixes of %d findings are yours to make: see the table", n)
}

// agree asks which of the changes to make.
func (f fixer) agree(ctx context.Context, list []preflight.Change) ([]preflight.Change, bool) {
	switch {
	case f.o.Yes:
		return list, true
	case !f.o.terminal(f.o.Stdin):
		f.say("nothing was run: there is no terminal to ask on, and no --yes")
		return nil, false
	}
	f.print(fmt.Sprintf("run %s? [y/N, or numbers such as 1,3] ", all(len(list))))
	line, err := readLine(ctx, f.o.Stdin)
	if err != nil {
		f.say("\nnothing was run: %v", err)
		return nil, false
	}
	chosen, err := choose(list, line)
	if err != nil {
		f.say("nothing was run: %v", err)
		return nil, false
	}
	if len(chosen) == 0 {
		f.say("nothing was run")
	}
	return chosen, len(chosen) > 0
}

func all(n int) string {
	if n == 1 {
		return "it"
	}
	return fmt.Sprintf("all %d", n)
}

// choose reads an answer: yes, no, or the numbers of the changes, in any order. They
// are made in the order of the list.
func choose(list []preflight.Change, answer string) ([]preflight.Change, error) {
	answer = strings.ToLower(strings.TrimSpace(answer))
	switch answer {
	case "y", "yes":
		return list, nil
	case "", "n", "no":
		return nil, nil
	}
	wanted := make(map[int]bool)
	for _, word := range strings.FieldsFunc(answer, func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > len(list) {
			return nil, fmt.Errorf("%q is neither y nor n nor a number from 1 to %d", word, len(list))
		}
		wanted[n] = true
	}
	var out []preflight.Change
	for i, c := range list {
		if wanted[i+1] {
			out = append(out, c)
		}
	}
	return out, nil
}

// readLine reads an answer. A read from a terminal cannot be called off; the one that
// is left behind ends with the process.
func readLine(ctx context.Context, in *os.File) (string, error) {
	type answer struct {
		text string
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		text, err := bufio.NewReader(in).ReadString('\n')
		got <- answer{text, err}
	}()
	select {
	case a := <-got:
		if a.err != nil {
			// An end of input in the middle of an answer is no answer.
			return "", errors.New("no answer was given")
		}
		return a.text, nil
	case <-ctx.Done():
		return "", errors.New("interrupted")
	}
}

// argv are the words that are really run for a change.
func (f fixer) argv(c preflight.Change) []string {
	argv := []string{"/bin/sh", "-c", c.Command}
	if c.Root && !f.o.root() && !usesSudo(c.Command) {
		argv = append([]string{"sudo"}, argv...)
	}
	return argv
}

// command is argv as a person would type it.
func (f fixer) command(c preflight.Change) string {
	switch {
	case !c.Root || f.o.root() || usesSudo(c.Command):
		return c.Command
	case strings.ContainsAny(c.Command, "\n|&;<>()$`\\\"'*?[]#~=%!{}"):
		return "sudo sh -c '" + strings.ReplaceAll(c.Command, "'", `'\''`) + "'"
	}
	return "sudo " + c.Command
}

func usesSudo(command string) bool { return slices.Contains(strings.Fields(command), "sudo") }

// done says what was made and what was not.
func (f fixer) done(made, not []preflight.Change) {
	f.say("")
	if len(made) > 0 {
		f.say("done: %s", names(made))
	}
	if len(not) > 0 {
		f.say("not done: %s", names(not))
	}
}

func names(list []preflight.Change) string {
	var out []string
	for _, c := range list {
		out = append(out, fmt.Sprintf("%s (%s)", c.ID, strings.ReplaceAll(c.Command, "\n", "; ")))
	}
	return strings.Join(out, ", ")
}

// again makes the checks once more and says what is left of what was repaired.
func (f fixer) again(ctx context.Context, res *FixResult) {
	if f.o.Again == nil || len(res.Done) == 0 || ctx.Err() != nil {
		return
	}
	rep, err := f.o.Again(ctx)
	if err != nil {
		f.say("the checks could not be made again: %v", err)
		res.Status = 1
		return
	}
	res.After, res.Left = &rep, rep.Changes()
	for _, c := range res.Left {
		if slices.ContainsFunc(res.Done, func(d preflight.Change) bool { return d.Command == c.Command }) {
			f.say("%s is found again although its command ended well: %s", c.ID, c.Title)
			res.Status = 1
		}
	}
	f.say("checked again: %s", rep.Verdict)
}

func (f fixer) say(format string, a ...any) { f.print(fmt.Sprintf(format, a...) + "\n") }

func (f fixer) print(text string) { _, _ = io.WriteString(f.out, text) }

// errWriter keeps the first error.
type errWriter struct {
	w   io.Writer
	err error
}

func (e *errWriter) Write(p []byte) (int, error) {
	if e.err == nil {
		_, e.err = e.w.Write(p)
	}
	return len(p), e.err
}
