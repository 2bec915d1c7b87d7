package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/renameio/v2"

	"sparkrun/configs"
	"sparkrun/internal/leash"
	"sparkrun/preflight"
)

// RefreshPlaybooks asks GitHub, through gh, for the open issues of the DGX Spark playbooks
// and writes them to the cache that G8 judges from. It does nothing where the cache is
// fresh or the last failure recent (configs/playbooks.yaml). env is the environment; now
// the time. Every process it starts is gone when it returns, soon after ctx is done. The
// error says why there is nothing new; it is in the cache too, where one could be written.
func RefreshPlaybooks(ctx context.Context, env []string, now time.Time) error {
	getenv := func(name string) string { return lookupEnv(env, name) }
	file := preflight.PlaybookCacheFile(getenv)
	if file == "" {
		return errors.New("the issues of the playbooks: neither XDG_CACHE_HOME nor HOME says where to keep them")
	}
	cache := readPlaybookCache(file)
	repository, most, due, err := preflight.PlaybookQuery(cache, now)
	if err != nil || !due {
		return err
	}
	gh := onPath(getenv("PATH"), "gh")
	if gh == "" {
		return errors.New("the issues of the playbooks: gh is not installed")
	}
	cache.Schema, cache.Repository, cache.Tried, cache.Problem = preflight.PlaybookSchema, repository, now.UTC(), ""
	issues, err := askGitHub(ctx, gh, env, repository, most)
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("the issues of the playbooks: %w", ctx.Err())
	}
	if err != nil {
		cache.Problem = err.Error()
	} else {
		cache.Fetched, cache.Issues = now.UTC(), issues
	}
	if werr := writePlaybookCache(file, cache); werr != nil {
		return werr
	}
	if err != nil {
		return fmt.Errorf("the issues of the playbooks: %w", err)
	}
	return nil
}

// PlaybooksArg is the hidden subcommand that RefreshPlaybooksBeside starts.
const PlaybooksArg = "__playbooks"

const (
	// playbooksLimit is when the question to GitHub is given up; gh takes a second or two.
	playbooksLimit = 20 * time.Second
	// playbooksWait is how long a preflight waits for the answer: it has a second in all.
	// One that comes later is there the next time.
	playbooksWait = 500 * time.Millisecond
)

// RefreshPlaybooksBeside asks for the issues in a process of its own, which may outlive
// this one by some seconds. It returns at once; the function returned waits for the answer
// until playbooksWait after the start, or until ctx is done. It starts nothing where the
// cache is fresh or gh is not there. Failures are in the cache and are told by G8.
func RefreshPlaybooksBeside(o Options) (wait func(context.Context)) {
	ended := make(chan struct{})
	late, cancel := context.WithTimeout(context.Background(), playbooksWait)
	go func() {
		defer cancel()
		defer close(ended)
		refreshBeside(o)
	}()
	return func(ctx context.Context) {
		select {
		case <-ended:
		case <-late.Done():
		case <-ctx.Done():
		}
	}
}

// refreshBeside may hang with the disk that the cache or a program of the PATH lies on.
func refreshBeside(o Options) {
	getenv := func(name string) string { return lookupEnv(o.Env, name) }
	file := preflight.PlaybookCacheFile(getenv)
	if file == "" || onPath(getenv("PATH"), "gh") == "" {
		return
	}
	if _, _, due, err := preflight.PlaybookQuery(readPlaybookCache(file), time.Now()); err != nil || !due {
		return
	}
	cmd := exec.Command(o.Exe, PlaybooksArg)
	cmd.Dir, cmd.Env = "/", o.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	_ = cmd.Run() // what came of it is in the cache
}

// PlaybooksMain is `sparkrun __playbooks`.
func PlaybooksMain([]string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, playbooksLimit)
	defer cancel()
	if RefreshPlaybooks(ctx, os.Environ(), time.Now()) != nil {
		return 1
	}
	return 0
}

// readPlaybookCache reads the cache; what is none, or torn, is an empty one.
func readPlaybookCache(file string) preflight.PlaybookCache {
	text, err := configs.ReadFile(file)
	if err != nil {
		return preflight.PlaybookCache{}
	}
	c, _ := preflight.ParsePlaybookCache(text)
	return c
}

func writePlaybookCache(file string, c preflight.PlaybookCache) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(c); err != nil {
		return fmt.Errorf("writing the issues of the playbooks: %w", err)
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the cache folder: %w", err)
	}
	if err := renameio.WriteFile(file, text.Bytes(), 0o600, renameio.WithTempDir(dir)); err != nil {
		return fmt.Errorf("writing the issues of the playbooks: %w", err)
	}
	return nil
}

// ghMost bounds what gh may print: a hundred issues are some tens of kilobytes.
const ghMost = 4 << 20

// askGitHub runs gh once. It asks no question and needs no terminal.
func askGitHub(ctx context.Context, gh string, env []string, repository string, most int) ([]preflight.PlaybookIssue, error) {
	start := time.Now()
	cmd := exec.Command(gh, "issue", "list", "--repo", repository, "--state", "open",
		"--limit", strconv.Itoa(most), "--json", "number,title,url,updatedAt,labels")
	cmd.Dir = "/" // in a repository of the user's gh would look for settings
	cmd.Env = append(append([]string{}, env...), "GH_PROMPT_DISABLED=1", "GH_NO_UPDATE_NOTIFIER=1", "GH_PAGER=cat", "NO_COLOR=1")
	out, errs := atMost{most: ghMost}, textTail{}
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := leash.Run(ctx, cmd)
	var exit *exec.ExitError
	switch {
	case out.over:
		return nil, fmt.Errorf("gh printed more than %d MiB", ghMost>>20)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("gh gave no answer within %.1f s", time.Since(start).Seconds())
	case errors.As(err, &exit) && exit.ExitCode() == 4: // gh's own status for it
		return nil, errors.New("gh is not logged in (gh auth login)")
	case err != nil:
		return nil, fmt.Errorf("gh: %w%s", err, cleanLine(lastWords(errs.String()), 300))
	}
	issues, err := parseIssues(out.buf.Bytes(), most)
	if err != nil {
		return nil, fmt.Errorf("the answer of gh is not understood: %w", err)
	}
	return issues, nil
}

// atMost keeps so much of an output and refuses more, which ends the writer.
type atMost struct {
	buf  bytes.Buffer
	most int
	over bool
}

func (b *atMost) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > b.most {
		b.over = true
		return 0, errors.New("too much")
	}
	return b.buf.Write(p)
}

// What is kept of an issue, in bytes: all of it is anybody's text.
const (
	issueTitleMost = 400
	issueLabelMost = 60
	issueLabels    = 8
)

// parseIssues reads gh's answer. An issue without a number is left out; a date that is none
// is unknown.
func parseIssues(text []byte, most int) ([]preflight.PlaybookIssue, error) {
	var raw []struct {
		Number    int    `json:"number"`
		Title     string `json:"title"`
		URL       string `json:"url"`
		UpdatedAt string `json:"updatedAt"`
		Labels    []struct {
			Name string `json:"name"`
		} `json:"labels"`
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, err
	}
	out := make([]preflight.PlaybookIssue, 0, min(len(raw), most))
	for _, r := range raw {
		if len(out) == most {
			break
		}
		if r.Number <= 0 {
			continue
		}
		issue := preflight.PlaybookIssue{Number: r.Number, Title: cleanLine(r.Title, issueTitleMost)}
		if strings.HasPrefix(r.URL, "https://") && len(r.URL) < 200 {
			issue.URL = cleanLine(r.URL, 200)
		}
		if t, err := time.Parse(time.RFC3339, r.UpdatedAt); err == nil {
			issue.UpdatedAt = t.UTC()
		}
		for i, l := range r.Labels {
			if i == issueLabels {
				break
			}
			l.Name = cleanLine(l.Name, issueLabelMost)
			issue.Labels = append(issue.Labels, l)
		}
		out = append(out, issue)
	}
	return out, nil
}

// cleanLine makes one line of at most so many bytes of a text, without control characters.
func cleanLine(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError:
			return '?'
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, text)
	for len(text) > most {
		_, n := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-n]
	}
	return text
}

// onPath finds a program in the folders of a PATH; relative ones do not count.
func onPath(path, name string) string {
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		file := filepath.Join(dir, name)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 {
			return file
		}
	}
	return ""
}
