package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"sparkrun/configs"
	"sparkrun/internal/job"
)

// PlaybookIssue is one open issue of the upstream playbooks, as gh gives it. Its words are
// those of anybody: they are shown as one line, and decide nothing.
type PlaybookIssue struct {
	Number    int       `json:"number"`
	Title     string    `json:"title"`
	URL       string    `json:"url"`
	UpdatedAt time.Time `json:"updatedAt"`
	Labels    []struct {
		Name string `json:"name"`
	} `json:"labels"`
}

// PlaybookSchema names the form of the cache.
const PlaybookSchema = "sparkrun.playbooks-cache/1"

// PlaybookCache is what the cache file holds. Whoever asks GitHub writes it
// (supervisor.RefreshPlaybooks); the preflight only reads it.
type PlaybookCache struct {
	Schema     string `json:"schema"`
	Repository string `json:"repository"`
	// Fetched is when the issues were asked for last with success.
	Fetched time.Time       `json:"fetched"`
	Issues  []PlaybookIssue `json:"issues"`
	// Tried is when they were asked for last at all; Problem says why that failed, empty
	// where it did not.
	Tried   time.Time `json:"tried"`
	Problem string    `json:"problem,omitempty"`
}

// playbookTable is configs/playbooks.yaml.
type playbookTable struct {
	AsOf         string     `yaml:"as_of"`
	Repository   string     `yaml:"repository"`
	Most         int        `yaml:"most"`
	Tell         int        `yaml:"tell"`
	FreshHours   float64    `yaml:"fresh_hours"`
	StaleDays    float64    `yaml:"stale_days"`
	RetryMinutes float64    `yaml:"retry_minutes"`
	Playbooks    []playbook `yaml:"playbooks"`
}

type playbook struct {
	Name     string   `yaml:"name"`
	Profiles []string `yaml:"profiles"`
	Scripts  []string `yaml:"scripts"`
	Images   []string `yaml:"images"`
	Words    []string `yaml:"words"`
}

// loadPlaybooks reads the built-in table once; a test reads it, so that a binary in use
// has it.
var loadPlaybooks = sync.OnceValues(func() (playbookTable, error) {
	var t playbookTable
	if err := configs.BuiltIn("playbooks.yaml", &t); err != nil {
		return playbookTable{}, fmt.Errorf("reading the built-in playbook table: %w", err)
	}
	return t, nil
})

// PlaybookQuery says how the issues are asked for: the repository, how many, and whether
// a cache is too young (or its last failure too recent) to ask again at now.
func PlaybookQuery(c PlaybookCache, now time.Time) (repository string, most int, due bool, err error) {
	t, err := loadPlaybooks()
	if err != nil {
		return "", 0, false, err
	}
	age := func(then time.Time, limit time.Duration) bool {
		d := now.Sub(then)
		return then.IsZero() || d < 0 || d >= limit // a clock may have been set back
	}
	due = age(c.Fetched, time.Duration(t.FreshHours*float64(time.Hour))) &&
		(c.Problem == "" || age(c.Tried, time.Duration(t.RetryMinutes*float64(time.Minute))))
	return t.Repository, t.Most, due, nil
}

// PlaybookCacheFile is where the cache lies; empty where the environment names no place.
func PlaybookCacheFile(getenv func(string) string) string {
	dir := getenv("XDG_CACHE_HOME")
	if !filepath.IsAbs(dir) {
		home := getenv("HOME")
		if !filepath.IsAbs(home) {
			return ""
		}
		dir = filepath.Join(home, ".cache")
	}
	return filepath.Join(dir, "sparkrun-train", "playbook-issues.json")
}

// ParsePlaybookCache reads the text of a cache; ok is false where it is none.
func ParsePlaybookCache(text []byte) (c PlaybookCache, ok bool) {
	if json.Unmarshal(text, &c) != nil || c.Schema != PlaybookSchema {
		return PlaybookCache{}, false
	}
	return c, true
}

// playbooks is what G8 looks at: the cache.
type playbooks struct {
	cache PlaybookCache
	// there tells that there is one; why says why it cannot be used.
	there bool
	why   string
	// gh tells that it is installed, asked that it was asked just now.
	gh, asked bool
}

func lookPlaybooks(ctx context.Context, v view) playbooks {
	if v.in.Playbooks != nil {
		v.in.Playbooks(ctx)
	}
	file := PlaybookCacheFile(v.shell)
	if file == "" {
		return playbooks{}
	}
	b, err := v.root.read(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return playbooks{gh: findProgram(v.root, "gh", v.shell) != "", asked: v.in.Playbooks != nil}
	case err != nil:
		return playbooks{why: err.Error()}
	}
	c, ok := ParsePlaybookCache(b)
	if !ok {
		return playbooks{why: file + " is torn or of another version; it is written anew when the issues are asked for"}
	}
	return playbooks{cache: c, there: true}
}

// judgePlaybooks is G8: a recipe may be known to be broken. What others write never makes
// a machine less ready.
func judgePlaybooks(p playbooks, f facts) Finding {
	t, err := loadPlaybooks()
	if err != nil {
		return byDesign(err.Error())
	}
	if !f.spark() {
		return notHere(f)
	}
	how := fmt.Sprintf("gh issue list --repo %s --state open --limit %d", t.Repository, t.Most)
	switch {
	case p.why != "":
		return byDesign("the cached issues cannot be read: " + p.why)
	case !p.there && p.gh && p.asked:
		return byDesign("gh was asked and has not answered yet: the next preflight knows more; by hand: " + how)
	case !p.there && p.gh:
		return byDesign("nobody has asked gh so far: sparkrun preflight does; by hand: " + how)
	case !p.there:
		return byDesign("needs gh, logged in, and the network; by hand: " + how)
	case p.cache.Fetched.IsZero():
		return byDesign("the upstream issues were not to be had: " + p.cache.Problem)
	}
	found := Finding{Status: Info}
	days := int(f.now.Sub(p.cache.Fetched).Hours() / 24)
	age := fmt.Sprintf("as of %s", p.cache.Fetched.Format(time.DateOnly))
	if f.now.Sub(p.cache.Fetched).Hours() > t.StaleDays*24 {
		age += fmt.Sprintf(", %d days ago: sparkrun preflight asks anew where gh is logged in", days)
	}
	if p.cache.Problem != "" {
		found.Evidence = append(found.Evidence, "asked again without success: "+p.cache.Problem)
	}
	if f.job == nil {
		found.Detail = fmt.Sprintf("%d open issues of %s, %s; name the command to see which concern it", len(p.cache.Issues), t.Repository, age)
		return found
	}
	books := t.of(f.job)
	if len(books) == 0 {
		found.Detail = fmt.Sprintf("the command is of none of the upstream playbooks (%d open issues, %s)", len(p.cache.Issues), age)
		return found
	}
	var names []string
	for _, b := range books {
		names = append(names, b.Name)
	}
	about := strings.Join(names, ", ")
	issues := matching(p.cache.Issues, books)
	if len(issues) == 0 {
		found.Status, found.Detail = Pass, fmt.Sprintf("no open issue of playbook %s (%s)", about, age)
		return found
	}
	found.Detail = fmt.Sprintf("%s of playbook %s (%s): %s", countOf(len(issues), "open issue", "open issues"), about, age, issues[0].title())
	for i, issue := range issues {
		if i == t.Tell {
			found.Evidence = append(found.Evidence, fmt.Sprintf("and %d more: https://github.com/%s/issues", len(issues)-t.Tell, t.Repository))
			break
		}
		line := issue.title()
		if !issue.UpdatedAt.IsZero() {
			line += " (updated " + issue.UpdatedAt.Format(time.DateOnly) + ")"
		}
		found.Evidence = append(found.Evidence, line)
	}
	found.Fix = fmt.Sprintf("read them before an expensive run: https://github.com/%s/issues", t.Repository)
	return found
}

// countOf writes a number with its noun.
func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// titleMost bounds a title, which is anybody's text.
const titleMost = 120

func (i PlaybookIssue) title() string {
	t := []rune(strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) && !unicode.IsSpace(r) {
			return -1
		}
		return r
	}, i.Title)), " "))
	if len(t) > titleMost {
		t = append(t[:titleMost], '…')
	}
	return fmt.Sprintf("#%d %s", i.Number, string(t))
}

// of returns the playbooks that a command is of. Its image tells only where nothing
// narrower does.
func (t playbookTable) of(j *job.Job) []playbook {
	script := path.Base(j.Script)
	var out, byImage []playbook
	for _, p := range t.Playbooks {
		switch {
		case slices.Contains(p.Profiles, j.Profile), j.Script != "" && !j.Module && slices.Contains(p.Scripts, script):
			out = append(out, p)
		case j.Container != nil && slices.ContainsFunc(p.Images, func(word string) bool { return hasWord(j.Container.Image, word) }):
			byImage = append(byImage, p)
		}
	}
	if len(out) == 0 {
		return byImage
	}
	return out
}

// matching returns the issues that are about one of some playbooks, the last updated
// first.
func matching(issues []PlaybookIssue, books []playbook) []PlaybookIssue {
	var out []PlaybookIssue
	for _, issue := range issues {
		about := slices.ContainsFunc(books, func(b playbook) bool {
			return slices.ContainsFunc(b.Words, func(w string) bool {
				if hasWord(issue.Title, w) {
					return true
				}
				for _, l := range issue.Labels {
					if strings.EqualFold(l.Name, w) {
						return true
					}
				}
				return false
			})
		})
		if about {
			out = append(out, issue)
		}
	}
	slices.SortStableFunc(out, func(a, b PlaybookIssue) int { return b.UpdatedAt.Compare(a.UpdatedAt) })
	return out
}

// hasWord tells whether a word stands in a text by itself, in any case: "reflux" has no
// flux.
func hasWord(text, word string) bool {
	text, word = strings.ToLower(text), strings.ToLower(word)
	for from := 0; word != ""; {
		i := strings.Index(text[from:], word)
		if i < 0 {
			return false
		}
		i += from
		end := i + len(word)
		if (i == 0 || !wordByte(text[i-1])) && (end == len(text) || !wordByte(text[end])) {
			return true
		}
		from = i + 1
	}
	return false
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c >= 0x80
}
