package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sparkrun/internal/newprog"
	"sparkrun/preflight"
)

// fakeGH puts a program in the place of gh; it returns the environment and where the
// cache will be.
func fakeGH(t *testing.T, script string) (env []string, cache string) {
	t.Helper()
	bin, home := t.TempDir(), t.TempDir()
	if script != "" {
		writeProgram(t, filepath.Join(bin, "gh"), "#!/bin/sh\n"+script)
	}
	return []string{"PATH=" + bin + ":/usr/bin:/bin", "HOME=" + home, "GH_LOG=" + filepath.Join(home, "log")},
		filepath.Join(home, ".cache/sparkrun-train/playbook-issues.json")
}

func TestRefreshPlaybooks(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 14, 22, 0, 0, 0, time.UTC)
	const answer = `cat <<'X'
[{"number":5,"title":"Unsloth \u001b[2J fails","url":"https://github.com/x/y/issues/5","updatedAt":"2026-07-01T10:00:00Z","labels":[{"name":"bug"}]},
 {"number":0,"title":"no number"},{"number":6,"title":"b","url":"javascript:x","updatedAt":"yesterday","labels":null}]
X
`
	for _, c := range []struct {
		name, script string
		err, problem string
		issues       int
	}{
		{"issues", `echo "$@" >"$GH_LOG"; ` + answer, "", "", 2},
		{"none", `echo '[]'`, "", "", 0},
		{"not logged in", `echo "To get started with GitHub CLI, please run: gh auth login" >&2; exit 4`, "not logged in", "gh is not logged in (gh auth login)", 0},
		{"no network", `echo "error connecting to api.github.com" >&2; exit 1`, "error connecting", "gh: exit status 1: error connecting to api.github.com", 0},
		{"no JSON", `echo '<html>'`, "not understood", "the answer of gh is not understood", 0},
		{"torn JSON", `printf '[{"number":1'`, "not understood", "the answer of gh is not understood", 0},
		{"something else", `echo '{"message":"no"}'`, "not understood", "the answer of gh is not understood", 0},
		{"without end", `exec yes '[{"number":1}'`, "more than 4 MiB", "gh printed more than 4 MiB", 0},
		{"control characters in its complaint", `printf 'bad \033[2J\a thing\n' >&2; exit 1`, "bad [2J thing", "bad [2J thing", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			env, file := fakeGH(t, c.script)
			err := RefreshPlaybooks(t.Context(), env, now)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v", err)
			}
			got := readPlaybookCache(file)
			if got.Schema != preflight.PlaybookSchema || !got.Tried.Equal(now) || len(got.Issues) != c.issues || !strings.Contains(got.Problem, c.problem) || (c.problem == "") != got.Fetched.Equal(now) {
				t.Errorf("cache %+v", got)
			}
			if c.name == "issues" {
				if got.Issues[0].Title != "Unsloth [2J fails" || got.Issues[1].URL != "" || !got.Issues[1].UpdatedAt.IsZero() {
					t.Errorf("issues %+v", got.Issues)
				}
				log, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(file))), "log"))
				if err != nil || strings.TrimSpace(string(log)) != "issue list --repo NVIDIA/dgx-spark-playbooks --state open --limit 100 --json number,title,url,updatedAt,labels" {
					t.Errorf("gh was asked %q, %v", log, err)
				}
			}
			if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("the cache: %v, %v", st, err)
			}
			if left, _ := os.ReadDir(filepath.Dir(file)); len(left) != 1 {
				t.Errorf("left beside the cache: %v", left)
			}
		})
	}
}

// What is known stays known when GitHub cannot be asked, and it is not asked again and
// again.
func TestRefreshPlaybooksKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 14, 22, 0, 0, 0, time.UTC)
	env, file := fakeGH(t, `echo x >>"$GH_LOG"; exit 4`)
	old := preflight.PlaybookCache{Schema: preflight.PlaybookSchema, Fetched: now.AddDate(0, 0, -3), Issues: []preflight.PlaybookIssue{{Number: 3, Title: "kept"}}}
	if err := writePlaybookCache(file, old); err != nil {
		t.Fatal(err)
	}
	for i, at := range []time.Time{now, now.Add(time.Minute), now.Add(time.Hour)} {
		err := RefreshPlaybooks(t.Context(), env, at)
		if (err == nil) != (i == 1) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	got := readPlaybookCache(file)
	if len(got.Issues) != 1 || !got.Fetched.Equal(old.Fetched) || got.Problem == "" {
		t.Errorf("cache %+v", got)
	}
	if calls, err := os.ReadFile(strings.TrimPrefix(env[2], "GH_LOG=")); err != nil || strings.Count(string(calls), "x") != 2 {
		t.Errorf("gh was started %q, %v", calls, err)
	}
}

// A gh that hangs, with a child that holds its output, is gone with its children.
func TestRefreshPlaybooksEndsWhatHangs(t *testing.T) {
	t.Parallel()
	// However busy the machine is: until gh was given the time to start its child.
	for limit := 300 * time.Millisecond; ; limit *= 2 {
		env, file := fakeGH(t, `sleep 600 & echo $! >"$GH_LOG.new"; mv "$GH_LOG.new" "$GH_LOG"; wait`)
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		start := time.Now()
		err := RefreshPlaybooks(ctx, env, time.Now())
		cancel()
		if err == nil || !strings.Contains(err.Error(), "no answer within") || time.Since(start) > limit+10*time.Second {
			t.Fatalf("%v after %s", err, time.Since(start))
		}
		if got := readPlaybookCache(file); !strings.Contains(got.Problem, "no answer within") {
			t.Fatalf("cache %+v", got)
		}
		pid := strings.TrimPrefix(env[2], "GH_LOG=")
		if _, err := os.Stat(pid); err == nil || limit > 30*time.Second {
			gone(t, pid)
			return
		}
	}
}

// gone waits until the process whose number stands in a file is no more.
func gone(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		t.Fatalf("pid %q: %v", text, err)
	}
	for range 500 {
		state, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	t.Errorf("process %d still runs", pid)
}

func TestRefreshPlaybooksWithoutGH(t *testing.T) {
	t.Parallel()
	env, file := fakeGH(t, "")
	env[0] = strings.TrimSuffix(env[0], ":/usr/bin:/bin") // this machine may have one
	if err := RefreshPlaybooks(t.Context(), env, time.Now()); err == nil || !strings.Contains(err.Error(), "gh is not installed") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a cache was written: %v", err)
	}
	if err := RefreshPlaybooks(t.Context(), []string{"PATH=/bin"}, time.Now()); err == nil {
		t.Error("no place for the cache, and no error")
	}
	// A file in the way of the cache's folder is left as it is.
	env, file = fakeGH(t, "echo '[]'")
	blocked := filepath.Dir(filepath.Dir(file))
	if err := os.WriteFile(blocked, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RefreshPlaybooks(t.Context(), env, time.Now()); err == nil {
		t.Error("the cache was written where a file lies")
	}
	if got, err := os.ReadFile(blocked); err != nil || string(got) != "mine" {
		t.Errorf("the file is %q, %v", got, err)
	}
}

// A hundred issues of the worst kind fit what the preflight reads of a file.
func TestPlaybookCacheStaysSmall(t *testing.T) {
	t.Parallel()
	one := `{"number":1,"title":"` + strings.Repeat(`<\"`, 5000) + `","url":"https://x/` + strings.Repeat("u", 180) + `","labels":[` +
		strings.TrimSuffix(strings.Repeat(`{"name":"`+strings.Repeat("ü", 500)+`"},`, 50), ",") + `]}`
	issues, err := parseIssues([]byte("["+strings.TrimSuffix(strings.Repeat(one+",", 300), ",")+"]"), 100)
	if err != nil || len(issues) != 100 {
		t.Fatalf("%d issues, %v", len(issues), err)
	}
	file := filepath.Join(t.TempDir(), "a/b/c.json")
	if err := writePlaybookCache(file, preflight.PlaybookCache{Schema: preflight.PlaybookSchema, Issues: issues}); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(file); err != nil || st.Size() > 256<<10 {
		t.Errorf("%d bytes, %v", st.Size(), err)
	}
	if got := readPlaybookCache(file); len(got.Issues) != 100 {
		t.Errorf("%d issues read back", len(got.Issues))
	}
}

// The question is put beside the checks: it holds nobody up when it is put, and is waited
// for no longer than half a second from then on.
func TestRefreshPlaybooksBeside(t *testing.T) {
	t.Parallel()
	self := func(script string) (o Options, log string) {
		env, _ := fakeGH(t, "exit 0")
		exe := filepath.Join(t.TempDir(), "self")
		if err := newprog.Write(exe, []byte("#!/bin/sh\n"+script)); err != nil {
			t.Fatal(err)
		}
		return Options{Env: env, Exe: exe}, strings.TrimPrefix(env[2], "GH_LOG=")
	}
	// timed is how long something takes.
	timed := func(f func()) time.Duration {
		start := time.Now()
		f()
		return time.Since(start)
	}
	t.Run("answers", func(t *testing.T) {
		t.Parallel()
		o, log := self(`[ "$1" = ` + PlaybooksArg + ` ] && echo done >"$GH_LOG"`)
		RefreshPlaybooksBeside(o)(t.Context())
		for range 500 { // a slow machine is not waited for, and answers all the same
			if text, err := os.ReadFile(log); err == nil && string(text) == "done\n" {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error("it was not asked")
	})
	t.Run("hangs", func(t *testing.T) {
		t.Parallel()
		o, log := self(`echo $$ >"$GH_LOG.new"; mv "$GH_LOG.new" "$GH_LOG"; exec sleep 600`)
		t.Cleanup(func() {
			if text, err := os.ReadFile(log); err == nil {
				if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && pid > 1 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		})
		var wait func(context.Context)
		start := time.Now()
		if took := timed(func() { wait = RefreshPlaybooksBeside(o) }); took > playbooksWait/2 {
			t.Errorf("putting the question took %s", took)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if took := timed(func() { wait(ended) }); took > playbooksWait/2 {
			t.Errorf("it went on for %s after the preflight had ended", took)
		}
		wait(t.Context())
		if took := time.Since(start); took < playbooksWait || took > 20*playbooksWait {
			t.Errorf("it was waited for %s, want %s", took, playbooksWait)
		}
		// A check that is made later waits no more.
		if took := timed(func() { wait(t.Context()) }); took > playbooksWait/2 {
			t.Errorf("the second one waited %s", took)
		}
		for range 500 {
			if _, err := os.Stat(log); err == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error("nothing was started")
	})
	t.Run("fresh", func(t *testing.T) {
		t.Parallel()
		o, log := self(`echo done >"$GH_LOG"`)
		file := preflight.PlaybookCacheFile(func(n string) string { return lookupEnv(o.Env, n) })
		now := time.Now().UTC()
		if err := writePlaybookCache(file, preflight.PlaybookCache{Schema: preflight.PlaybookSchema, Repository: repositoryOfPlaybooks(t), Tried: now, Fetched: now}); err != nil {
			t.Fatal(err)
		}
		RefreshPlaybooksBeside(o)(t.Context())
		if _, err := os.Stat(log); err == nil {
			t.Error("a fresh cache was asked for anew")
		}
	})
}

func repositoryOfPlaybooks(t *testing.T) string {
	t.Helper()
	repository, _, _, err := preflight.PlaybookQuery(preflight.PlaybookCache{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return repository
}
