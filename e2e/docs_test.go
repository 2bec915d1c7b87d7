package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTrainersPage runs `explain --json` on every command line of docs/trainers.md, in
// a folder with the files that its section shows, and compares with what the page says.
// SPARKRUN_UPDATE=1 writes the page anew.
func TestTrainersPage(t *testing.T) {
	together(t)
	page := readPage(t, "../docs/trainers.md")
	var known []knownTrainer
	if err := json.Unmarshal([]byte(sparkrunIn(t, t.TempDir(), "trainers --json")), &known); err != nil {
		t.Fatal(err)
	}
	if len(known) < 30 {
		t.Fatalf("sparkrun trainers lists %d profiles", len(known))
	}
	const least = 3
	commands, shown := map[string]int{}, map[string]bool{}
	for _, s := range page.sections() {
		dir := s.folder(t, page)
		for i := range page.blocks {
			b := &page.blocks[i]
			if b.section != s.name || b.info != "explain" {
				continue
			}
			for j, c := range b.cases(t) {
				if shown[s.name+c.typed()] {
					t.Errorf("line %d: the section shows this command twice", c.line)
				}
				shown[s.name+c.typed()] = true
				x := explain(t, dir, c)
				if x == nil {
					continue
				}
				if updating() {
					b.lines = replaceCase(b.lines, j, c.updated(x))
					continue
				}
				c.compare(t, x)
				if s.name == c.says["trainer"] {
					commands[s.name]++
				}
			}
		}
	}
	var rows []string
	for _, k := range known {
		rows = append(rows, k.row(t))
	}
	if updating() {
		page.table(rows)
		page.write(t)
		return
	}
	if diff := cmp.Diff(page.rows(), rows); diff != "" {
		t.Errorf("the table of all trainers (-page +binary):\n%s", diff)
	}
	for _, k := range known {
		if commands[k.Name] < least {
			t.Errorf("section %q shows %d commands of that trainer, not the %d it needs", k.Name, commands[k.Name], least)
		}
	}
}

// knownTrainer is what `sparkrun trainers --json` says of a profile.
type knownTrainer struct {
	Name, About, Family, Resume string
	Image                       bool
	Method                      []string
}

// row is the trainer's row in the table of all.
func (k knownTrainer) row(t *testing.T) string {
	t.Helper()
	batch, ok := map[string]string{"per-device": "accumulation", "global": "global"}[k.Family]
	if !ok {
		t.Errorf("%s: family %q", k.Name, k.Family)
	}
	method := strings.Join(k.Method, ", ")
	if method == "" {
		method = "-"
	}
	resume := ""
	for _, w := range []struct{ begins, word string }{
		{"takes a checkpoint's path where the script", "by path, if the script hands it on"},
		{"takes a checkpoint's path", "by path"},
		{"takes up what lies", "by itself"},
		{"never", "never"},
	} {
		if strings.HasPrefix(k.Resume, w.begins) {
			resume = w.word
			break
		}
	}
	if resume == "" {
		t.Errorf("%s: resume %q", k.Name, k.Resume)
	}
	return fmt.Sprintf("| [%s](#%s) | %s | %s | %s | %s |", k.Name, k.Name, strings.ReplaceAll(k.About, "|", `\|`), batch, method, resume)
}

const rowBegins = "| ["

// rows are the rows of the table of all trainers.
func (p *page) rows() []string {
	var rows []string
	for _, line := range p.lines {
		if strings.HasPrefix(line, rowBegins) {
			rows = append(rows, line)
		}
	}
	return rows
}

// table puts other rows in their place: they stand in one piece.
func (p *page) table(rows []string) {
	i := slices.IndexFunc(p.lines, func(line string) bool { return strings.HasPrefix(line, rowBegins) })
	old := len(p.rows())
	p.lines = slices.Replace(p.lines, i, i+old, rows...)
	for j := range p.blocks {
		if p.blocks[j].from > i {
			p.blocks[j].from += len(rows) - old
			p.blocks[j].to += len(rows) - old
		}
	}
}

// TestConsoleBlocks runs the commands of the blocks fenced as `console` in all pages,
// and compares with the output that the page shows behind each.
func TestConsoleBlocks(t *testing.T) {
	together(t)
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, path := range pages {
		page := readPage(t, path)
		for _, s := range page.sections() {
			var dir string
			for i := range page.blocks {
				b := &page.blocks[i]
				if b.section != s.name || b.info != "console" {
					continue
				}
				if dir == "" {
					dir = s.folder(t, page)
				}
				for j, c := range b.cases(t) {
					command, ok := strings.CutPrefix(c.typed(), "sparkrun ")
					if !ok {
						t.Errorf("%s:%d: a console block runs sparkrun and nothing else", path, c.line)
						continue
					}
					ran++
					got := strings.TrimRight(sparkrunIn(t, dir, command), "\n")
					if updating() {
						b.lines = replaceCase(b.lines, j, append(slices.Clone(c.command), strings.Split(got, "\n")...))
						continue
					}
					if diff := cmp.Diff(strings.Join(c.said, "\n"), got); diff != "" {
						t.Errorf("%s:%d: $ sparkrun %s prints something else (-page +binary):\n%s", path, c.line, command, diff)
					}
				}
			}
		}
		if updating() {
			page.write(t)
		}
	}
	if ran == 0 {
		t.Error("no page has a console block")
	}
}

// updating says whether the pages are written anew.
func updating() bool { return os.Getenv("SPARKRUN_UPDATE") != "" }

// together runs a test beside others, unless both would write the same page.
func together(t *testing.T) {
	t.Helper()
	if !updating() {
		t.Parallel()
	}
}

// page is a page of the documentation.
type page struct {
	path, text string
	lines      []string
	blocks     []block
}

// block is a fenced block. from and to are the lines between its fences.
type block struct {
	section, info string
	from, to      int
	lines         []string
}

type section struct{ name string }

func readPage(t *testing.T, path string) *page {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := &page{path: path, text: string(data), lines: strings.Split(string(data), "\n")}
	name, open := "", -1
	for i, line := range p.lines {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case open < 0 && isFence:
			open = i
			p.blocks = append(p.blocks, block{section: name, info: strings.TrimSpace(fence), from: i + 1})
		case open >= 0 && isFence:
			b := &p.blocks[len(p.blocks)-1]
			b.to, b.lines, open = i, slices.Clone(p.lines[open+1:i]), -1
		case open < 0 && strings.HasPrefix(line, "#"):
			name = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
	}
	if open >= 0 {
		t.Fatalf("%s:%d: the block has no end", path, open+1)
	}
	return p
}

// sections are the parts of the page that have a block of their own.
func (p *page) sections() []section {
	var all []section
	for _, b := range p.blocks {
		if !slices.Contains(all, section{b.section}) {
			all = append(all, section{b.section})
		}
	}
	return all
}

// write puts the changed blocks back into the page.
func (p *page) write(t *testing.T) {
	t.Helper()
	lines := slices.Clone(p.lines)
	for _, b := range slices.Backward(p.blocks) {
		lines = slices.Replace(lines, b.from, b.to, b.lines...)
	}
	text := strings.Join(lines, "\n")
	if text == p.text {
		return
	}
	if err := os.WriteFile(p.path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

var fileFence = regexp.MustCompile(`^(yaml|toml|json|python|text) (\S+)$`)

// folder makes the section's files: blocks fenced as LANGUAGE NAME.
func (s section) folder(t *testing.T, p *page) string {
	t.Helper()
	dir := t.TempDir()
	for _, b := range p.blocks {
		m := fileFence.FindStringSubmatch(b.info)
		if b.section != s.name || m == nil {
			continue
		}
		if !filepath.IsLocal(m[2]) {
			t.Fatalf("%s:%d: %s leads out of the folder", p.path, b.from, m[2])
		}
		path := filepath.Join(dir, m[2])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s:%d: the section has two files %s", p.path, b.from, m[2])
		}
		if err := os.WriteFile(path, []byte(strings.Join(b.lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// shownCommand is one command of a block with what stands behind it.
type shownCommand struct {
	line          int // of the page
	command, said []string
	// says are the words of the first => line.
	says map[string]string
}

// cases cuts a block into its commands: a line that begins with $, and the ones behind
// it as long as each ends in a backslash.
func (b *block) cases(t *testing.T) []shownCommand {
	t.Helper()
	var all []shownCommand
	for i, line := range b.lines {
		switch {
		case strings.HasPrefix(line, "$ "):
			all = append(all, shownCommand{line: b.from + i + 1, command: []string{line}})
		case len(all) == 0:
			t.Fatalf("line %d: the block does not begin with a command", b.from+i+1)
		default:
			c := &all[len(all)-1]
			if len(c.said) == 0 && strings.HasSuffix(c.command[len(c.command)-1], `\`) {
				c.command = append(c.command, line)
			} else {
				c.said = append(c.said, line)
			}
		}
	}
	return all
}

// replaceCase puts other lines in the place of the n-th command of a block.
func replaceCase(lines []string, n int, with []string) []string {
	begin, end := -1, len(lines)
	for i, line := range lines {
		if !strings.HasPrefix(line, "$ ") {
			continue
		}
		switch {
		case n == 0:
			begin = i
		case n < 0:
			end = min(end, i)
		}
		n--
	}
	return slices.Replace(slices.Clone(lines), begin, end, with...)
}

// typed is the command in one line, without the prompt.
func (c shownCommand) typed() string {
	var parts []string
	for _, line := range c.command {
		parts = append(parts, strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(line, "$ "), `\`)))
	}
	return strings.Join(parts, " ")
}

// explanation is what the page can speak of.
type explanation struct {
	Trainer        *string
	Launchers      []string
	Method         string
	EffectiveBatch *int64 `json:"effective_batch"`
	Knobs          map[string]struct{ Value any }
	Resume         struct{ How string }
	Rungs          []struct {
		Allowed bool
		Reason  string
		Diff    []string
	}
}

var assignments = regexp.MustCompile(`^((?:[A-Z_][A-Z0-9_]*=\S* )*)(.*)$`)

// explain asks the binary about a command of the page.
func explain(t *testing.T, dir string, c shownCommand) *explanation {
	t.Helper()
	before := listing(t, dir)
	m := assignments.FindStringSubmatch(c.typed())
	text := sparkrunIn(t, dir, "explain --json -- "+m[2], strings.Fields(m[1])...)
	var x explanation
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		t.Errorf("line %d: %s", c.line, text)
		return nil
	}
	if diff := cmp.Diff(before, listing(t, dir)); diff != "" {
		t.Errorf("line %d: explain has changed its folder:\n%s", c.line, diff)
	}
	return &x
}

// value is what the binary says under a name of the page; unknown is "?".
func (x *explanation) value(name string) (string, bool) {
	switch name {
	case "trainer":
		if x.Trainer == nil {
			return "?", true
		}
		return *x.Trainer, true
	case "launchers":
		return strings.Join(x.Launchers, ">"), true
	case "method":
		return x.Method, true
	case "resumes":
		return x.Resume.How, true
	case "effective_batch":
		if x.EffectiveBatch == nil {
			return "?", true
		}
		return fmt.Sprint(*x.EffectiveBatch), true
	}
	k, ok := x.Knobs[name]
	if !ok {
		return "", false
	}
	if k.Value == nil {
		return "?", true
	}
	if n, is := k.Value.(float64); is {
		return fmt.Sprintf("%.0f", n), true
	}
	return fmt.Sprint(k.Value), true
}

// next is the exact change of the first rung that changes a setting.
func (x *explanation) next() string {
	for _, r := range x.Rungs {
		if r.Allowed && len(r.Diff) > 0 {
			return strings.Join(r.Diff, "; ")
		}
	}
	return ""
}

const (
	saysPrefix    = "=> "
	nextPrefix    = "=> next: "
	refusedPrefix = "=> refused: "
)

// read takes the => lines of a command apart.
func (c *shownCommand) read(t *testing.T) (names []string, next, refused string) {
	t.Helper()
	c.says = map[string]string{}
	for i, line := range c.said {
		if text, ok := strings.CutPrefix(line, nextPrefix); ok {
			next = text
			continue
		}
		if text, ok := strings.CutPrefix(line, refusedPrefix); ok {
			refused = text
			continue
		}
		text, ok := strings.CutPrefix(line, saysPrefix)
		if !ok || i > 0 {
			t.Errorf("line %d: not understood: %q", c.line, line)
			continue
		}
		for _, pair := range strings.Fields(text) {
			name, value, ok := strings.Cut(pair, "=")
			if !ok {
				t.Errorf("line %d: not NAME=VALUE: %s", c.line, pair)
			}
			c.says[name] = value
			names = append(names, name)
		}
	}
	return names, next, refused
}

// always are the names that stand behind every command.
var always = []string{"trainer", "seq_len", "micro_batch", "grad_accum", "method"}

func (c *shownCommand) compare(t *testing.T, x *explanation) {
	t.Helper()
	names, next, refused := c.read(t)
	for _, name := range always {
		if !slices.Contains(names, name) {
			t.Errorf("line %d: %s: nothing is said of %s", c.line, c.typed(), name)
		}
	}
	for _, name := range names {
		got, ok := x.value(name)
		if !ok {
			t.Errorf("line %d: explain knows no %s", c.line, name)
		} else if got != c.says[name] {
			t.Errorf("line %d: %s: the page says %s=%s, the binary %s", c.line, c.typed(), name, c.says[name], got)
		}
	}
	if got := x.next(); next != "" && next != got {
		t.Errorf("line %d: %s: the page says the next is %q, the binary %q", c.line, c.typed(), next, got)
	}
	if refused == "" {
		return
	}
	for _, r := range x.Rungs {
		if !r.Allowed && r.Reason == refused {
			return
		}
	}
	t.Errorf("line %d: %s: no rung is refused since %q", c.line, c.typed(), refused)
}

// updated writes the command's lines anew; what is said of is what was.
func (c *shownCommand) updated(x *explanation) []string {
	names, refused := []string{}, ""
	hasNext := false
	for _, line := range c.said {
		switch {
		case strings.HasPrefix(line, nextPrefix) || line == strings.TrimSpace(nextPrefix):
			hasNext = true
		case strings.HasPrefix(line, refusedPrefix):
			refused = line
		default:
			for _, pair := range strings.Fields(strings.TrimPrefix(line, saysPrefix)) {
				name, _, _ := strings.Cut(pair, "=")
				if _, ok := x.value(name); ok {
					names = append(names, name)
				}
			}
		}
	}
	if len(names) == 0 {
		names = append(slices.Clone(always), "effective_batch")
		if len(x.Launchers) > 0 {
			names = slices.Insert(names, 1, "launchers")
		}
	}
	line := "=>"
	for _, name := range names {
		value, _ := x.value(name)
		line += " " + name + "=" + value
	}
	out := append(slices.Clone(c.command), line)
	if hasNext {
		out = append(out, nextPrefix+x.next())
	}
	if refused != "" {
		out = append(out, refused)
	}
	return out
}

// sparkrunIn runs the binary with a shell's words behind it, in a folder and with
// nothing of this machine in its environment, and returns all it prints.
func sparkrunIn(t *testing.T, dir, words string, env ...string) string {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatalf("no bash: %v", err)
	}
	c := exec.Command(bash, "-c", `"$0" `+words, filepath.Join(bin, "sparkrun"))
	c.Dir = dir
	// No program is found: a trainer that happens to be installed here would choose
	// between the spellings of its flags.
	c.Env = append([]string{"PATH=" + dir + "/none", "HOME=" + dir + "/home", "XDG_CONFIG_HOME=" + dir + "/config", "PWD=" + dir}, env...)
	out, err := c.CombinedOutput()
	var status *exec.ExitError
	if err != nil && !asExit(err, &status) {
		t.Fatalf("sparkrun %s: %v", words, err)
	}
	return blanks.ReplaceAllString(strings.ReplaceAll(string(out), dir+"/", ""), "")
}

// blanks are those at the end of a line: columns are filled up with them.
var blanks = regexp.MustCompile(`(?m)[ \t]+$`)

func asExit(err error, to **exec.ExitError) bool {
	e, ok := err.(*exec.ExitError) //nolint:errorlint // of exec itself
	*to = e
	return ok
}

// listing is every file of a folder with its content.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			all[path] = ""
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
