package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sparkrun/internal/newprog"
	"sparkrun/supervisor/engine/enginetest"
)

// The engines here are real: dockerd and podman of Debian, in folders of their
// own, and the docker client in front of both. What no engine does on demand
// (hanging, lying, answering garbage) is tested in supervisor/engine.

// boxed starts sparkrun in front of an engine's client.
func boxed(t *testing.T, e *enginetest.Engine, args ...string) *proc {
	t.Helper()
	return startEnv(t, t.TempDir(), e.Env, append([]string{"--no-preflight"}, args...)...)
}

// insideOf returns the live processes whose command line is exactly these words.
func insideOf(words ...string) []int {
	var out []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && string(b) == strings.Join(words, "\x00")+"\x00" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			out = append(out, pid)
		}
	}
	return out
}

// sleeps counts the lengths given out.
var sleeps atomic.Int64

// unique is a number of seconds to sleep that no other test uses, to find the
// process by.
func unique() string { return fmt.Sprintf("%d.%d", 1000+sleeps.Add(1), os.Getpid()) }

// evidenceOf returns the sources and texts of an attempt's evidence.
func evidenceOf(v map[string]any) (sources []string, all string) {
	list, _ := v["evidence"].([]any)
	for _, item := range list {
		e, _ := item.(map[string]any)
		sources = append(sources, fmt.Sprint(e["source"]))
		all += fmt.Sprintln(e["source"], e["weight"], e["text"])
	}
	return sources, all
}

// squeeze sets a memory cgroup's limit to little more than what is in use and
// cannot be given back.
func squeeze(t *testing.T, cg string) {
	t.Helper()
	for _, f := range []struct{ limit, usage, inactive string }{
		{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
		{"memory.max", "memory.current", "inactive_file"},
	} {
		b, err := os.ReadFile(filepath.Join(cg, f.usage))
		if err != nil {
			continue
		}
		used, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		stat, err := os.ReadFile(filepath.Join(cg, "memory.stat"))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(stat), "\n") {
			if v, ok := strings.CutPrefix(line, f.inactive+" "); ok {
				n, _ := strconv.ParseInt(v, 10, 64)
				used -= n
			}
		}
		// EBUSY where the kernel cannot free as much: the next call asks again.
		_ = os.WriteFile(filepath.Join(cg, f.limit), []byte(fmt.Sprint(used+used/64)), 0o644)
	}
}

// containerSuite is what holds for `run` with every engine.
func containerSuite(t *testing.T, e *enginetest.Engine) {
	t.Run("exit status", func(t *testing.T) {
		p := boxed(t, e, append([]string{"--"}, e.Run([]string{"--rm"}, "sh", "-c", "echo inside; exit 23")...)...)
		if got := p.wait(60 * time.Second); got != 23 {
			t.Fatalf("status %d\nstdout %s\nstderr %s", got, p.out, p.err)
		}
		m := readJSON(t, p.file("run.json"))
		if m["ended_by"] != "child" || len(m["attempts"].([]any)) != 1 {
			t.Errorf("ended by %v, %d attempts", m["ended_by"], len(m["attempts"].([]any)))
		}
		if !strings.Contains(p.out.String(), "inside") || strings.Contains(p.err.String(), "cannot end") {
			t.Errorf("stdout %q\nstderr %q", p.out, p.err)
		}
		c := readJSON(t, p.file("attempts/1/command.json"))
		if argv := fmt.Sprint(c["argv"]); !strings.Contains(argv, "--label=sparkrun.attempt="+p.id()+".1") && !strings.Contains(argv, "--cidfile=") {
			t.Errorf("the command that was started is not recorded: %s", argv)
		}
		p.complete(1)
	})

	t.Run("stopped", func(t *testing.T) {
		sleep := unique()
		p := boxed(t, e, append([]string{"--"}, e.Run([]string{"--rm"}, "sh", "-c", "trap 'echo goodbye; exit 5' TERM; sleep "+sleep+" & echo ready; wait; wait")...)...)
		until(t, "the process inside", func() bool { return len(insideOf("sleep", sleep)) == 1 })
		// A client that is not attached yet does not pass a signal on.
		until(t, "the output from inside", func() bool { return strings.Contains(p.out.String(), "ready") })
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		if got := p.wait(60 * time.Second); got != 5 {
			t.Errorf("status %d\nstderr %s", got, p.err)
		}
		if left := insideOf("sleep", sleep); len(left) > 0 || !strings.Contains(p.out.String(), "goodbye") {
			t.Errorf("alive inside: %v\nstdout %s\nstderr %s", left, p.out, p.err)
		}
		if m := readJSON(t, p.file("run.json")); m["state"] != "stopped" || len(m["attempts"].([]any)) != 1 {
			t.Errorf("state %v, %d attempts", m["state"], len(m["attempts"].([]any)))
		}
	})

	t.Run("stopped by force", func(t *testing.T) {
		// The shell hears nothing, so what ends the sleep is the end of its
		// container. Every Ctrl-C is more urgent than the one before.
		sleep := unique()
		p := boxed(t, e, append([]string{"--"}, e.Run([]string{"--rm"}, "sh", "-c", "trap '' INT TERM; sleep "+sleep+" & wait; wait")...)...)
		until(t, "the process inside", func() bool { return len(insideOf("sleep", sleep)) == 1 })
		until(t, "the container found", fileHas(p.file("events.jsonl"), "the container is "))
		until(t, "the end", func() bool {
			_ = p.cmd.Process.Signal(syscall.SIGINT)
			return len(insideOf("sleep", sleep)) == 0
		})
		p.wait(60 * time.Second)
		if m := readJSON(t, p.file("run.json")); m["state"] != "stopped" || len(m["attempts"].([]any)) != 1 {
			t.Errorf("state %v, %d attempts", m["state"], len(m["attempts"].([]any)))
		}
	})

	t.Run("guard", func(t *testing.T) {
		// The client runs in a cgroup whose room is taken away once the
		// container is known: what the guard ends has to include it.
		cg := memoryCgroup(t, 1<<30)
		sleep := unique()
		p := boxed(t, e, append([]string{"--no-retry", "--cgroup", cg, "--"},
			e.Run([]string{"--rm"}, "sh", "-c", "trap '' INT TERM; sleep "+sleep+" & wait; wait")...)...)
		until(t, "the process inside", func() bool { return len(insideOf("sleep", sleep)) == 1 })
		until(t, "the container found", fileHas(p.file("events.jsonl"), "the container is "))
		until(t, "the guard to act", func() bool {
			squeeze(t, cg)
			return fileHas(p.file("events.jsonl"), `"guard.act"`)()
		})
		until(t, "the process inside to end", func() bool { return len(insideOf("sleep", sleep)) == 0 })
		p.wait(60 * time.Second)
		m := readJSON(t, p.file("run.json"))
		if m["ended_by"] != "guard" {
			t.Errorf("ended by %v\nstderr %s", m["ended_by"], p.err)
		}
	})

	t.Run("killed for memory", func(t *testing.T) {
		p := boxed(t, e, append([]string{"--no-retry", "--"},
			e.Run([]string{"--rm", "--memory=48m", "--memory-swap=48m"}, "sh", "-c", "echo loading; sleep 1; tail /dev/zero; exit $?")...)...)
		if got := p.wait(60 * time.Second); got != 137 {
			t.Fatalf("status %d\nstderr %s", got, p.err)
		}
		v := readJSON(t, p.file("attempts/1/verdict.json"))
		sources, all := evidenceOf(v)
		if v["verdict"] != "oom" {
			t.Errorf("verdict %v (%v)\n%s", v["verdict"], v["reason"], all)
		}
		if !slices.Contains(sources, "kernel") && !slices.Contains(sources, "cgroup") {
			t.Errorf("neither the kernel's record nor the container's counter is among the evidence:\n%s", all)
		}
		if e.Name == "docker" && !strings.Contains(all, "container") {
			t.Errorf("the engine's own word is not among the evidence:\n%s", all)
		}
	})
}

// Not parallel: the kernel kills in it, and counts its kills for the whole machine.
func TestContainerDocker(t *testing.T) {
	e := enginetest.Docker(t)
	containerSuite(t, e)

	t.Run("exec", func(t *testing.T) {
		server, sleep := unique(), unique()
		e.Do(t, e.Run([]string{"-d", "--name=server"}, "sleep", server)[1:]...)
		p := boxed(t, e, "--grace", "2s", "--", e.Client, "exec", "server", "sh", "-c", "sleep "+sleep+" & wait")
		until(t, "the process inside", func() bool { return len(insideOf("sleep", sleep)) == 1 })
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		p.wait(60 * time.Second)
		if left := insideOf("sleep", sleep); len(left) > 0 {
			t.Errorf("still alive inside: %v\nstderr %s", left, p.err)
		}
		if len(insideOf("sleep", server)) != 1 {
			t.Error("the container itself was ended")
		}
	})

	// The client is killed; the training inside goes on and is waited for.
	t.Run("killed client", func(t *testing.T) {
		sleep := unique()
		argv := e.Run([]string{"--rm"}, "sh", "-c", "sleep "+sleep+" & wait; exit 7")
		p := boxed(t, e, append([]string{"--"}, argv...)...)
		until(t, "the process inside", func() bool { return len(insideOf("sleep", sleep)) == 1 })
		until(t, "the container found", fileHas(p.file("events.jsonl"), "the container is "))
		killClient(t, p, e)
		until(t, "the end of the client told", fileHas(p.file("events.jsonl"), "the client has ended"))
		select {
		case <-p.done:
			t.Fatalf("the run ended while the training lived\nstderr %s", p.err)
		default:
		}
		for _, pid := range insideOf("sleep", sleep) {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
		if got := p.wait(60 * time.Second); got != 7 {
			t.Errorf("status %d, want the container's own\nstderr %s", got, p.err)
		}
	})

	// A command in a container may leave a helper behind, as any command may; the
	// attempt does not last as long as that does.
	t.Run("exec that leaves a process behind", func(t *testing.T) {
		server, helper := unique(), unique()
		e.Do(t, e.Run([]string{"-d", "--name=second"}, "sleep", server)[1:]...)
		p := boxed(t, e, "--", e.Client, "exec", "second", "sh", "-c", "sleep 2; nohup sleep "+helper+" >/dev/null 2>&1 & sleep 4; exit 3")
		if got := p.wait(60 * time.Second); got != 3 {
			t.Errorf("status %d\nstderr %s", got, p.err)
		}
		if left := insideOf("sleep", helper); len(left) > 0 {
			t.Errorf("still alive inside: %v", left)
		}
		if len(insideOf("sleep", server)) != 1 {
			t.Error("the container itself was ended")
		}
	})

	// A stop reaches the container when its client is gone, and a second one does
	// not wait for the grace of the first.
	t.Run("stopped after its client", func(t *testing.T) {
		sleep := unique()
		p := boxed(t, e, append([]string{"--grace", "50s", "--"}, e.Run([]string{"--rm"}, "sh", "-c", "trap '' INT TERM; sleep "+sleep+" & wait; wait")...)...)
		until(t, "the process inside", func() bool { return len(insideOf("sleep", sleep)) == 1 })
		until(t, "the container found", fileHas(p.file("events.jsonl"), "the container is "))
		killClient(t, p, e)
		until(t, "the end of the client told", fileHas(p.file("events.jsonl"), "the client has ended"))
		began := time.Now()
		_ = p.cmd.Process.Signal(syscall.SIGINT)
		until(t, "the signal heard", fileHas(p.file("events.jsonl"), `"run.stop"`))
		_ = p.cmd.Process.Signal(syscall.SIGINT)
		if got := p.wait(60 * time.Second); got != 130 || time.Since(began) > 30*time.Second {
			t.Errorf("status %d after %s, want 130 soon\nstderr %s", got, time.Since(began), p.err)
		}
		if m := readJSON(t, p.file("run.json")); m["state"] != "stopped" || len(insideOf("sleep", sleep)) > 0 {
			t.Errorf("state %v, alive inside: %v", m["state"], insideOf("sleep", sleep))
		}
	})

	// A holder that is gone leaves nothing that nobody knows of.
	t.Run("holder killed", func(t *testing.T) {
		sleep := unique()
		p := boxed(t, e, append([]string{"--"}, e.Run([]string{"--rm"}, "sh", "-c", "sleep "+sleep+" & wait; wait")...)...)
		until(t, "the process inside", func() bool { return len(insideOf("sleep", sleep)) == 1 })
		until(t, "the container found", fileHas(p.file("events.jsonl"), "the container is "))
		m := readJSON(t, p.file("run.json"))
		holder := m["attempts"].([]any)[0].(map[string]any)["holder"].(map[string]any)["pid"].(float64)
		_ = syscall.Kill(int(holder), syscall.SIGKILL)
		if got := p.wait(60 * time.Second); got != 125 {
			t.Errorf("status %d\nstderr %s", got, p.err)
		}
		if left := insideOf("sleep", sleep); len(left) > 0 || !strings.Contains(p.err.String(), "was ended too") {
			t.Errorf("alive inside: %v\nstderr %s", left, p.err)
		}
	})
}

// killClient kills the engine's client of a run.
func killClient(t *testing.T, p *proc, e *enginetest.Engine) {
	t.Helper()
	client := 0
	until(t, "the client", func() bool {
		for _, line := range processesOf(p.id()) {
			pid, cmd, _ := strings.Cut(line, " ")
			if strings.HasPrefix(cmd, e.Client+" run ") {
				client, _ = strconv.Atoi(pid)
			}
		}
		return client > 0
	})
	_ = syscall.Kill(client, syscall.SIGKILL)
}

func TestContainerPodman(t *testing.T) {
	e := enginetest.Podman(t, false)
	containerSuite(t, e)

	// podman's containers are children of a monitor that is re-parented to our holder:
	// the end of the client must not be theirs.
	t.Run("detached", func(t *testing.T) {
		sleep := unique()
		p := boxed(t, e, append([]string{"--"}, e.Run([]string{"-d"}, "sh", "-c", "sleep "+sleep+" & wait; exit 4")...)...)
		until(t, "the process inside", func() bool { return len(insideOf("sleep", sleep)) == 1 })
		until(t, "the end of the client", func() bool {
			return !slices.ContainsFunc(processesOf(p.id()), func(line string) bool { return strings.Contains(line, " run ") && !strings.Contains(line, "conmon") })
		})
		// Longer than what leftovers of a command have (200 ms, then 5 s).
		time.Sleep(7 * time.Second)
		if len(insideOf("sleep", sleep)) != 1 {
			t.Fatalf("the container was ended with its client\nstderr %s", p.err)
		}
		for _, pid := range insideOf("sleep", sleep) {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
		if got := p.wait(60 * time.Second); got != 4 {
			t.Errorf("status %d, want the container's own\nstderr %s", got, p.err)
		}
	})
}

// Where the engine is out of reach that is said before anything starts, and
// nothing is started twice.
func TestContainerOutOfReach(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho 'Traceback (most recent call last):'\necho '  File \"train.py\", line 3, in <module>'\n" +
		"echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.'\nexit 1\n"
	if err := newprog.Write(filepath.Join(dir, "bin", "docker"), []byte(script)); err != nil {
		t.Fatal(err)
	}
	path := "PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH")
	for name, host := range map[string]string{
		"another machine": "tcp://127.0.0.1:1", "no engine": "unix://" + filepath.Join(dir, "none.sock"), "ssh": "ssh://box",
	} {
		t.Run(name, func(t *testing.T) {
			p := startEnv(t, t.TempDir(), []string{path, "DOCKER_HOST=" + host}, "--no-preflight", "--", "docker", "run", "img", "python", "train.py")
			if got := p.wait(60 * time.Second); got != 1 {
				t.Fatalf("status %d\nstderr %s", got, p.err)
			}
			if !strings.Contains(p.err.String(), "cannot end this container: ") {
				t.Errorf("stderr %s", p.err)
			}
			m := readJSON(t, p.file("run.json"))
			if len(m["attempts"].([]any)) != 1 {
				t.Errorf("tried again: %v", m["attempts"])
			}
		})
	}
}
