package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// job is one call of sparkrun.
type job struct {
	name   string // of its folder
	uid    int
	cgroup string // cgroup that sparkrun itself runs in
	args   []string
	limit  time.Duration // hard limit of the call, 3 minutes if none is given
}

// running is a sparkrun under way.
type running struct {
	cmd      *exec.Cmd
	dir      string
	out, err output
	cancel   context.CancelFunc
}

// output is what sparkrun has printed; it may be looked at meanwhile.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

const home = "/var/lib/sparkrun-vm"

// begin starts sparkrun in a folder of its own, which stays from call to call.
func begin(j job) (*running, error) {
	dir := filepath.Join(home, "work", j.name)
	for _, d := range []string{dir, dir + "/home"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
		if err := os.Chown(d, j.uid, j.uid); err != nil {
			return nil, err
		}
	}
	if j.limit == 0 {
		j.limit = 3 * time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), j.limit)
	argv := []string{"as", "-adj", "0", "-uid", fmt.Sprint(j.uid)}
	if j.cgroup != "" {
		argv = append(argv, "-cgroup", j.cgroup)
	}
	argv = append(argv, "--", home+"/sparkrun")
	r := &running{dir: dir, cancel: cancel}
	r.cmd = exec.CommandContext(ctx, home+"/start", append(argv, j.args...)...)
	r.cmd.Dir = dir
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
	r.cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir + "/home", "NO_COLOR=1", "LC_ALL=C.UTF-8"}
	r.cmd.WaitDelay = 10 * time.Second
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return r, r.cmd.Start()
}

// wait waits for the end and returns the status as a shell shows it.
func (r *running) wait() (int, error) {
	err := r.cmd.Wait()
	r.cancel()
	if r.cmd.ProcessState == nil {
		return -1, err
	}
	ws := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		return -1, errors.New("somebody keeps sparkrun's output open after its end")
	case ws.Signaled() && ws.Signal() == syscall.SIGKILL:
		return -1, errors.New("sparkrun did not end within its limit, or was killed")
	case ws.Signaled():
		return 128 + int(ws.Signal()), nil
	}
	return ws.ExitStatus(), nil
}

// call runs sparkrun to its end.
func call(j job) (*running, int, error) {
	r, err := begin(j)
	if err != nil {
		return r, -1, err
	}
	status, err := r.wait()
	return r, status, err
}

// file is a file of the newest run.
func (r *running) file(name string) string {
	return filepath.Join(r.dir, "sparkrun-runs", "latest", name)
}

// text reads a file of the newest run, "" if there is none.
func (r *running) text(name string) string {
	b, err := os.ReadFile(r.file(name))
	if err != nil {
		return ""
	}
	return string(b)
}

// verdict is what the checks read of a verdict.json.
type verdict struct {
	Verdict    string
	Kind       string
	Reason     string
	Confidence string
	Evidence   []struct{ Source, Text string }
	Unreadable []string
}

func (v verdict) String() string {
	sources := make([]string, len(v.Evidence))
	for i, e := range v.Evidence {
		sources[i] = e.Source
	}
	return fmt.Sprintf("%s kind=%q reason=%q confidence=%s from %s", v.Verdict, v.Kind, v.Reason, v.Confidence, strings.Join(sources, ","))
}

// from returns the texts of the evidence of one source.
func (v verdict) from(source string) string {
	var out []string
	for _, e := range v.Evidence {
		if e.Source == source {
			out = append(out, e.Text)
		}
	}
	return strings.Join(out, "; ")
}

func (r *running) verdict(attempt int) (verdict, error) {
	var v verdict
	b, err := os.ReadFile(r.file(fmt.Sprintf("attempts/%d/verdict.json", attempt)))
	if err != nil {
		return v, err
	}
	return v, json.Unmarshal(b, &v)
}

// expect says what differs from the verdict that is wanted; an empty word is any.
func (v verdict) expect(answer, kind, confidence string) error {
	if v.Verdict != answer || kind != "" && v.Kind != kind || confidence != "" && v.Confidence != confidence {
		return fmt.Errorf("verdict %v; wanted %s %s %s", v, answer, kind, confidence)
	}
	return nil
}
