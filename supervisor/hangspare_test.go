package supervisor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/proctree"
	"sparkrun/supervisor/hang"
	"sparkrun/supervisor/runlog"
)

func TestPrompt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"(Pdb) ":                   true,
		"\x1b[?2004h(Pdb) \x1b[6n": true,
		"ipdb> ":                   true,
		">>> ":                     true,
		"In [3]: ":                 true,
		"Overwrite out? [y/N] ":    true,
		"Enter your choice: ":      true,
		"Do you wish to run it? ":  true,
		" 45%|####5     | 45/100 [00:12<00:15,  3.50it/s]":                 false,
		" 45%|####5     | 45/100 [00:12<00:15,  3.50it/s, loss=2.31]   ":   false,
		"Loading checkpoint shards:   0%|          | 0/4 [00:00<?, ?it/s]": false,
		"{'loss': 2.31, 'grad_norm': 1.0, 'epoch': 0.1}":                   false,
		"Epoch 1: 12%|#2        | 12/100 [00:03<00:22, 3.91it/s, v_num=0]": false,
		"step 12 loss 2.3":        false,
		"":                        false,
		"[rank0]: waiting for 1 ": false,
	} {
		if got := prompt.MatchString(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestAsks: a program that reads from the pipe that the run was given waits for input; one
// that sleeps, or reads what another process of the tree says, does not.
func TestAsks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		argv  []string
		given bool
		want  bool
	}{
		"reads its input":         {[]string{"cat"}, true, true},
		"sleeps":                  {[]string{"sleep", "100"}, true, false},
		"is the end of a pipe":    {[]string{"cat"}, false, false},
		"is told by another pipe": {[]string{"bash", "-c", "exec 3< <(exec sleep 100); exec cat <&3 3<&-"}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			cmd := exec.Command(c.argv[0], c.argv[1:]...)
			cmd.Stdin = r
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}()
			deadline := time.Now().Add(10 * time.Second)
			waits := ""
			for waits == "" && time.Now().Before(deadline) { // until it has come to wait
				p, _ := proctree.Read(cmd.Process.Pid)
				if p.State == 'S' && p.Comm != "bash" {
					waits = waitsIn("/proc/" + strconv.Itoa(p.PID))
				}
			}
			if waits == "" {
				t.Skip("where it waits cannot be seen")
			}
			given := ""
			if c.given {
				given = pipeOf(r)
			}
			if got := asks(cmd.Process.Pid, nil, given); got != c.want {
				t.Errorf("%v, it waits in %s", got, waits)
			}
		})
	}
	if f, err := os.Open(os.DevNull); err != nil || pipeOf(f) != "" || pipeOf(nil) != "" {
		t.Error("what is no pipe")
	}
}

// TestDumpHasADeadline: a py-spy that does not come back, or talks without end, is ended
// with what it has started.
func TestDumpHasADeadline(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spy := filepath.Join(dir, "py-spy")
	writeProgram(t, spy, "#!/bin/sh\necho \"$@\"\nyes | head -c 200000\nsleep 100 &\necho $! > "+dir+"/pid.new\nmv "+dir+"/pid.new "+dir+"/pid\nwait\n")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for {
			if _, err := os.Stat(filepath.Join(dir, "pid")); err == nil {
				cancel()
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	out, err := dump(ctx, spy, 7, os.Environ())
	if err == nil || !strings.HasPrefix(string(out), "dump --nonblocking --pid 7\n") || len(out) > dumpRead || len(out) < dumpRead-100 || out[len(out)-1] != '\n' {
		t.Errorf("%v, %d bytes: %.60s", err, len(out), out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	left := "/proc/" + strings.TrimSpace(string(b))
	deadline := time.Now().Add(10 * time.Second)
	for {
		stat, err := os.ReadFile(left + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("what it started lives on: %s", stat)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestASecretIsNotCutInTwo: a text is cut at the end of a line, never in the middle of one.
func TestASecretIsNotCutInTwo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"short":             "short",
		"first\nsecret=abc": "first\n",
		"secret=abcdefghij": "",
		"0123456789\n":      "",
		"012345678\n":       "012345678\n",
		"01234567\n8\n":     "01234567\n",
	} {
		got, all := wholeLines([]byte(text), 10)
		if string(got) != want || all != (text == want) {
			t.Errorf("%q: %q %v", text, got, all)
		}
	}
	// As py-spy prints it: lines, and a secret that lies across the bound.
	secret := "hf_aaaabbbbccccddddeeeeffff"
	line := strings.Repeat("x", 58) + " " + secret + "\n"
	red := runlog.NewRedactor([]string{"HF_TOKEN=" + secret})
	for shift := range len(line) {
		text := strings.Repeat("y", shift) + "\n" + strings.Repeat(line, 2*dumpBytes/len(line))
		raw, _ := wholeLines([]byte(text[:min(len(text), dumpRead)]), dumpRead-1)
		out, _ := wholeLines([]byte(red.Text(string(raw))), dumpBytes)
		if strings.Contains(string(out), "hf_a") || len(out) > dumpBytes || len(out) < dumpBytes/2 {
			t.Fatalf("shifted by %d: %d bytes, the end is %q", shift, len(out), out[max(0, len(out)-60):])
		}
	}
}

// TestFileSystemWait: a thread that waits for a file system is found whether a signal could
// reach it or not; the program that serves the file system, and any other wait, is not.
func TestFileSystemWait(t *testing.T) {
	t.Parallel()
	cfg, err := hang.Load()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		state, wchan string
		want         bool
	}{
		"a FUSE file is closed":   {"S", "request_wait_answer", true},
		"killable":                {"D", "request_wait_answer", true},
		"a disk":                  {"D", "folio_wait_bit_common", true},
		"a driver, unknown where": {"D", "0", true},
		"9p":                      {"S", "p9_client_rpc", true},
		"the FUSE server":         {"S", "fuse_dev_do_read", false},
		"a lock":                  {"S", "futex_wait_queue", false},
		"a connection":            {"S", "wait_woken", false},
		"runs":                    {"R", "0", false},
		"unknown where":           {"S", "0", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for tid, th := range map[string][2]string{"7": {"S", "futex_wait_queue"}, "9": {c.state, c.wchan}} {
				task := filepath.Join(dir, "task", tid)
				if err := os.MkdirAll(task, 0o755); err != nil {
					t.Fatal(err)
				}
				for file, text := range map[string]string{"stat": tid + " (a) b) " + th[0] + " 1 2 3", "wchan": th[1]} {
					if err := os.WriteFile(filepath.Join(task, file), []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			if tid, _ := inKernel(dir, cfg.FileWaits); (tid == 9) != c.want || tid == 7 {
				t.Errorf("thread %d", tid)
			}
		})
	}
}

func TestReadNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if names, err := readNames(dir, 3); err != nil || len(names) != 0 {
		t.Errorf("an empty folder: %v, %v", names, err)
	}
	for _, n := range []string{"a", "b", "c", "d"} {
		if err := os.Mkdir(filepath.Join(dir, n), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := readNames(dir, 3); err != nil || len(names) != 3 {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := readNames(filepath.Join(dir, "x"), 3); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}
