package supervisor

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sparkrun/internal/deadmount"
	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
	"sparkrun/preflight"
)

func aloneOptions(t *testing.T, argv ...string) Options {
	t.Helper()
	return Options{
		Argv: argv, Dir: t.TempDir(), Exe: "/bin/false", Prog: "sparkrun",
		Env: []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir(), "DOCKER_HOST=unix:///nonexistent/docker.sock"},
	}
}

func finding(t *testing.T, r preflight.Report, id string) preflight.Finding {
	t.Helper()
	for _, list := range [][]preflight.Finding{r.Findings, r.Host} {
		if i := slices.IndexFunc(list, func(f preflight.Finding) bool { return f.ID == id }); i >= 0 {
			return list[i]
		}
	}
	t.Fatalf("no finding %s", id)
	return preflight.Finding{}
}

// An image that cannot be asked is one finding of a whole report.
func TestProbeImageThatFails(t *testing.T) {
	t.Parallel()
	o := aloneOptions(t, "docker", "run", "--rm", "no-such-image:1", "python", "train.py")
	rep, err := PreflightAlone(t.Context(), o, PreflightOptions{ProbeImage: true})
	if err != nil {
		t.Fatal(err)
	}
	f := finding(t, rep, "G9")
	if f.Status != preflight.Skip || f.ByDesign || !strings.Contains(f.Detail, "gave no answer") || f.Fix == "" || rep.Verdict != preflight.ReadyWithWarnings {
		t.Errorf("%s: %s %+v", rep.Verdict, f.Line, f)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := PreflightAlone(ctx, aloneOptions(t), PreflightOptions{ProbeImage: true}); err == nil {
		t.Error("no container: no error")
	}
}

// A signal before the command is understood ends it; later it is judged what there is.
func TestPreflightAloneOnADeadMount(t *testing.T) {
	t.Parallel()
	dead := deadmount.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	start := time.Now()
	_, err := PreflightAlone(ctx, aloneOptions(t, "python3", filepath.Join(dead, "train.py")), PreflightOptions{})
	var se *StatusErr
	if !errors.As(err, &se) || !strings.Contains(err.Error(), "interrupted") || time.Since(start) > 3*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

// A cache on a disk that does not answer costs the wait and no more.
func TestRefreshPlaybooksOnADeadMount(t *testing.T) {
	t.Parallel()
	dead := deadmount.New(t)
	env, _ := fakeGH(t, "exit 0")
	start := time.Now()
	RefreshPlaybooksBeside(Options{Exe: "/bin/false", Env: append(env, "XDG_CACHE_HOME="+dead)})(t.Context())
	if took := time.Since(start); took < playbooksWait/2 || took > 10*playbooksWait {
		t.Errorf("took %v", took)
	}
}

// A model's size is taken as it comes, and the files are not waited for twice.
func TestModelSizeThatComesLate(t *testing.T) {
	t.Parallel()
	dead := deadmount.New(t)
	r := &run{job: job.Job{Knobs: job.Knobs{job.Model: {Value: filepath.Join(dead, "m")}}}}
	start := time.Now()
	r.measureModel(50 * time.Millisecond)
	if params, _, _ := r.model(); params.OK || time.Since(start) > 2*time.Second {
		t.Errorf("%v after %v", params, time.Since(start))
	}
	r.modelRead(modelsize.Size{})
	if params, _, _ := r.model(); params.OK {
		t.Error("nothing is taken for a size")
	}
	var done atomic.Bool
	go func() { r.modelRead(modelsize.Size{Params: 7, From: "late", Quantised: "fp8"}); done.Store(true) }()
	for !done.Load() {
		time.Sleep(time.Millisecond)
	}
	if params, from, quantised := r.model(); params.V != 7 || from != "late" || quantised != "fp8" {
		t.Errorf("%v %s %s", params, from, quantised)
	}
}
