package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/leash"
	"sparkrun/internal/proctree"
	"sparkrun/supervisor/hang"
	"sparkrun/supervisor/runlog"
)

// stacksFile is where an attempt that hung is found to stand.
const stacksFile = "hang.txt"

// Bounds of what is kept of a hang, and of the time it takes.
const (
	stackProcs   = 64
	threadsMost  = 256
	stackBytes   = 512 << 10
	dumpProcs    = 8
	dumpBytes    = 64 << 10  // of one process
	dumpRead     = 128 << 10 // of it before secrets are taken out, which may be several lines
	dumpWait     = 5 * time.Second
	allDumpsWait = 20 * time.Second
)

// writeStacks writes where the processes of an attempt stand, as far as they let us see:
// the kernel's side of each thread, and Python's own stacks by py-spy where that is
// installed. No signal is sent to them: what a program does on one is not known. It
// returns the file's name in the run directory.
func (r *run) writeStacks(ctx context.Context, a *attempt, v hang.Verdict, procs []proctree.Proc) (string, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s the command stands still: %s\n", clock.Format(r.clk.Now()), v.Words())
	a.mu.Lock()
	if a.haveStep {
		fmt.Fprintf(&b, "newest step: %d\n", a.last.N)
	}
	a.mu.Unlock()
	r.dumps(ctx, &b, procs)
	for i, p := range procs {
		if i == stackProcs || b.Len() > stackBytes {
			fmt.Fprintf(&b, "\n%d more processes are left out\n", len(procs)-i)
			break
		}
		r.kernelSide(&b, p)
	}
	text := harmless(r.secrets.Text(b.String()))
	path := filepath.Join(a.dir, stacksFile)
	err := runlog.WriteFile(path, []byte(text))
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		r.dir.ReleaseReserve()
		err = runlog.WriteFile(path, []byte(text))
	}
	if err != nil {
		return "", err
	}
	return filepath.Join("attempts", strconv.Itoa(a.n), stacksFile), nil
}

// harmless keeps control characters off the terminal that shows the file: a process may
// call itself anything, and py-spy print anything.
func harmless(text string) string {
	return strings.Map(func(c rune) rune {
		if c != '\n' && c != '\t' && !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
}

// kernelSide writes what the kernel tells of a process and its threads.
func (r *run) kernelSide(b *bytes.Buffer, p proctree.Proc) {
	dir := "/proc/" + strconv.Itoa(p.PID)
	argv := []string{p.Comm}
	if cmd, err := os.ReadFile(dir + "/cmdline"); err == nil && len(cmd) > 0 {
		argv = strings.Split(strings.TrimSuffix(string(cmd), "\x00"), "\x00")
	}
	fmt.Fprintf(b, "\nprocess %d, child of %d, state %c: %s\n", p.PID, p.PPID, p.State, clip(shellLine(r.secrets.Argv(argv)), 1000))
	threads, err := readNames(dir+"/task", threadsMost)
	if err != nil {
		fmt.Fprintf(b, "  its threads cannot be read: %v\n", errors.Unwrap(err))
		return
	}
	if len(threads) == threadsMost {
		fmt.Fprintf(b, "  the first %d threads:\n", threadsMost)
	}
	for _, t := range threads {
		if b.Len() > stackBytes {
			b.WriteString("  further threads are left out\n")
			return
		}
		task := dir + "/task/" + t
		state, comm := threadStat(task)
		if state == 0 {
			continue // gone since
		}
		where := waitsIn(task)
		if where == "" {
			where = "unknown"
		}
		fmt.Fprintf(b, "  thread %s (%s), state %c, waits in: %s\n", t, comm, state, where)
		stack, err := os.ReadFile(task + "/stack") // for root only
		if err != nil {
			continue
		}
		for _, l := range strings.Split(strings.TrimSpace(string(stack)), "\n") {
			if l != "" {
				b.WriteString("    " + l + "\n")
			}
		}
	}
}

// dumps writes Python's stacks.
func (r *run) dumps(ctx context.Context, b *bytes.Buffer, procs []proctree.Proc) {
	ctx, cancel := context.WithTimeout(ctx, allDumpsWait)
	defer cancel()
	n, missing := 0, false
	for _, p := range procs {
		exe, isPython := pythonOf(p)
		if !isPython {
			continue
		}
		if n++; n > dumpProcs {
			b.WriteString("\nPython stacks of further processes are left out\n")
			return
		}
		spy := r.pySpy(exe)
		if spy == "" {
			missing = true
			continue
		}
		fmt.Fprintf(b, "\nPython stacks of process %d (%s):\n", p.PID, spy)
		out, err := dump(ctx, spy, p.PID, r.o.Env)
		out, whole := wholeLines([]byte(r.secrets.Text(string(out))), dumpBytes)
		b.Write(out)
		if len(out) > 0 && out[len(out)-1] != '\n' {
			b.WriteByte('\n')
		}
		if !whole {
			b.WriteString("the rest is left out\n")
		}
		if err != nil {
			fmt.Fprintf(b, "py-spy did not come through: %v (it often needs root, or kernel.yama.ptrace_scope=0)\n", err)
		}
	}
	if missing {
		b.WriteString("\nno Python stacks: py-spy is not installed (pip install py-spy)\n")
	}
}

// pythonOf says whether a process is Python, and by which program.
func pythonOf(p proctree.Proc) (exe string, ok bool) {
	exe, _ = os.Readlink("/proc/" + strconv.Itoa(p.PID) + "/exe")
	return exe, strings.HasPrefix(filepath.Base(exe), "python") || strings.HasPrefix(p.Comm, "python") || p.Comm == "pt_main_thread"
}

// pySpy finds py-spy: in the command's PATH or beside its Python; empty for not there.
func (r *run) pySpy(exe string) string {
	if path, err := lookCommand("py-spy", r.o.Dir, r.o.Env); err == nil {
		return path
	}
	for _, dir := range []string{filepath.Join(lookupEnv(r.o.Env, "VIRTUAL_ENV"), "bin"), filepath.Dir(exe)} {
		path := filepath.Join(dir, "py-spy")
		if st, err := os.Stat(path); err == nil && filepath.IsAbs(path) && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// dump runs py-spy on one process. It does not stop it: nothing in it moves. One that
// hangs itself, in the kernel too, holds up nobody and does not outlive us.
func dump(ctx context.Context, spy string, pid int, env []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, dumpWait)
	defer cancel()
	cmd := exec.Command(spy, "dump", "--nonblocking", "--pid", strconv.Itoa(pid))
	cmd.Env = env
	var out bounds
	cmd.Stdout, cmd.Stderr = &out, &out
	err := leash.Run(ctx, cmd)
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // what it has left in the background holds its output
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer within %s", dumpWait)
	}
	if len(out.b) == dumpRead {
		out.b, _ = wholeLines(out.b, dumpRead-1)
	}
	return out.b, err
}

// wholeLines is the beginning of a text that is not longer than so much: of a line that is
// cut in two nobody could tell that a secret stands in it.
func wholeLines(b []byte, most int) (kept []byte, all bool) {
	if len(b) <= most {
		return b, true
	}
	return b[:bytes.LastIndexByte(b[:most], '\n')+1], false
}

// bounds keeps the beginning of an output.
type bounds struct{ b []byte }

func (o *bounds) Write(p []byte) (int, error) {
	o.b = append(o.b, p[:min(len(p), dumpRead-len(o.b))]...)
	return len(p), nil
}
