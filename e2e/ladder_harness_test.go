package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// folder is a folder with files of the user's. Names may have slashes.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	put(t, dir, files)
	return dir
}

func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// withLibraries puts the imitations of transformers and TRL into a folder, where a
// script in it finds them.
func withLibraries(t *testing.T, dir string) string {
	t.Helper()
	for _, name := range []string{"torch", "transformers", "trl"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("testdata", "fakes", name))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// contents is every file below a folder with its mode, its time of writing and what is
// in it: two of them are equal if nobody has touched anything.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprint(info.Mode(), " ", info.ModTime().UnixNano())
		if d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", sha256.Sum256(b))
		}
		out[path[len(dir):]] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// changed names what differs between two such listings.
func changed(before, after map[string]string) []string {
	var out []string
	for name, was := range before {
		if now, there := after[name]; !there || now != was {
			out = append(out, name)
		}
	}
	for name := range after {
		if _, there := before[name]; !there {
			out = append(out, "new: "+name)
		}
	}
	slices.Sort(out)
	return out
}

// leftCopies lists the changed copies of ours below a folder.
func leftCopies(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), ".sparkrun-") {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// sparkrun runs the built binary to its end, without preflight.
func sparkrun(t *testing.T, dir string, env []string, args ...string) *proc {
	t.Helper()
	p := startEnv(t, dir, env, append([]string{"--no-preflight"}, args...)...)
	p.wait(60 * time.Second)
	return p
}

// status is the exit status of a sparkrun that has ended.
func (p *proc) status() int { return p.wait(time.Second) }

// is demands an exit status.
func (p *proc) is(status int) *proc {
	p.t.Helper()
	if got := p.status(); got != status {
		p.t.Fatalf("status %d, want %d\nstdout %s\nstderr %s", got, status, p.out, p.err)
	}
	return p
}

// says demands a text on stderr.
func (p *proc) says(texts ...string) *proc {
	p.t.Helper()
	for _, text := range texts {
		if !strings.Contains(p.err.String(), text) {
			p.t.Errorf("nothing is said of %q\nstderr %s", text, p.err)
		}
	}
	return p
}

// saysNot demands that a text is not on stderr.
func (p *proc) saysNot(texts ...string) *proc {
	p.t.Helper()
	for _, text := range texts {
		if strings.Contains(p.err.String(), text) {
			p.t.Errorf("%q is said\nstderr %s", text, p.err)
		}
	}
	return p
}

// manifest is what the tests read of run.json.
type manifest struct {
	State           string `json:"state"`
	Result          string `json:"result"`
	OtherExperiment bool   `json:"other_experiment"`
	Divergence      string `json:"divergence"`
	EndedBy         string `json:"ended_by"`
	Attempts        []struct {
		Rungs   []string `json:"rungs"`
		EndKind string   `json:"end_kind"`
		Knobs   map[string]struct {
			Value string `json:"value"`
		} `json:"knobs"`
		Verdict struct {
			Verdict, Reason, Kind string
		} `json:"verdict"`
	} `json:"attempts"`
}

func (p *proc) manifest() manifest {
	p.t.Helper()
	var m manifest
	readInto(p.t, p.file("run.json"), &m)
	return m
}

// command is attempts/N/command.json.
type command struct {
	Argv     []string          `json:"argv"`
	EnvAdded map[string]string `json:"env_added"`
	Rungs    []string          `json:"rungs"`
	Diff     []string          `json:"diff"`
}

func (p *proc) command(attempt int) command {
	p.t.Helper()
	var c command
	readInto(p.t, p.file(fmt.Sprintf("attempts/%d/command.json", attempt)), &c)
	return c
}

// events returns the messages of a kind in events.jsonl.
func (p *proc) events(kind string) []string {
	p.t.Helper()
	b, err := os.ReadFile(p.file("events.jsonl"))
	if err != nil {
		p.t.Fatal(err)
	}
	var out []string
	for _, line := range bytes.Split(bytes.TrimSpace(b), []byte("\n")) {
		var e struct{ Kind, Msg string }
		if err := json.Unmarshal(line, &e); err != nil {
			p.t.Fatalf("events.jsonl: %v: %s", err, line)
		}
		if e.Kind == kind {
			out = append(out, e.Msg)
		}
	}
	return out
}

// shimRecord is attempts/N/shim.json.
type shimRecord struct {
	Schema string
	Loaded bool
	Seen   []struct {
		Knob, Where, Before, After, Why string
		Final                           bool
	}
	Exception *struct {
		Type, Message string
		Frames        []string
		Memory        map[string]int64
	}
	Trouble []string
}

func (p *proc) shim(attempt int) shimRecord {
	p.t.Helper()
	var s shimRecord
	readInto(p.t, p.file(fmt.Sprintf("attempts/%d/shim.json", attempt)), &s)
	return s
}

// inForce returns the value a trainer used of a knob, and what the script had.
func (s shimRecord) inForce(knob string) (before, after string) {
	for _, seen := range s.Seen {
		if seen.Knob == knob && seen.Final {
			return seen.Before, seen.After
		}
	}
	return "", ""
}

// begun is what the imitation of a trainer writes down when it begins to train.
type begun struct {
	Length       int     `json:"length"`
	Micro        int     `json:"micro"`
	AskedMicro   int     `json:"asked_micro"`
	Accumulation int     `json:"accumulation"`
	Quantised    *bool   `json:"quantised"`
	DType        string  `json:"dtype"`
	OutputDir    string  `json:"output_dir"`
	Resumed      *string `json:"resumed"`
	FromStep     int     `json:"from_step"`
	Attempt      string  `json:"attempt"`
	Rung         string  `json:"rung"`
	WandB        string  `json:"wandb"`
}

// begun returns the starts that reached training, as the trainer itself tells.
func (p *proc) begun() []begun {
	p.t.Helper()
	starts := begunIn(p.t, p.dir)
	if len(starts) == 0 {
		p.t.Fatalf("no training has begun\nstderr %s", p.err)
	}
	return starts
}

// begunIn returns the starts in a folder, of all its runs.
func begunIn(t *testing.T, dir string) []begun {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "starts.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var out []begun
	for _, line := range bytes.Split(bytes.TrimSpace(b), []byte("\n")) {
		var one begun
		if err := json.Unmarshal(line, &one); err != nil {
			t.Fatal(err)
		}
		out = append(out, one)
	}
	return out
}

// sizes are length, micro-batch and accumulation of each start.
func sizes(starts []begun) string {
	var out []string
	for _, s := range starts {
		out = append(out, fmt.Sprintf("%dx%dx%d", s.Length, s.Micro, s.Accumulation))
	}
	return strings.Join(out, " ")
}

func readInto(t *testing.T, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%s: %v\n%s", path, err, b)
	}
}

// explained is what `sparkrun explain --json` prints.
type explained struct {
	Schema    string
	Trainer   *string
	Launchers []string
	Method    string
	Knobs     map[string]struct {
		Value  any
		Source string
	}
	EffectiveBatch *int64 `json:"effective_batch"`
	Checkpoint     *struct {
		Path string
		Step int64
	}
	Broken []struct{ Path, Why string } `json:"broken_checkpoints"`
	Rungs  []explainedRung
	Notes  []string
	raw    []byte
}

type explainedRung struct {
	Name, Action, Reason string
	Allowed, Shim        bool
	Argv                 []string
	Files                []struct{ Path, Original string }
	Env                  []string
	Diff                 []string
	OtherExperiment      bool `json:"other_experiment"`
}

// explainJSON asks what is made of a command; flags of sparkrun's own go before "--".
func explainJSON(t *testing.T, dir string, args ...string) explained {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "sparkrun"), append([]string{"explain", "--json"}, args...)...)
	cmd.Dir, cmd.Env = dir, testEnv(dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("explain %q: %v\n%s", args, err, &stderr)
	}
	e := explained{raw: out}
	if err := json.Unmarshal(out, &e); err != nil {
		t.Fatalf("explain %q: %v\n%s", args, err, out)
	}
	if stderr.Len() > 0 {
		t.Errorf("explain %q says on stderr: %s", args, &stderr)
	}
	return e
}

// allowed returns the rungs that would be taken, of an action.
func (e explained) allowed(action string) []explainedRung {
	var out []explainedRung
	for _, r := range e.Rungs {
		if r.Allowed && r.Action == action {
			out = append(out, r)
		}
	}
	return out
}

// why returns the reason against the only rung of an action that is refused.
func (e explained) why(action string) string {
	for _, r := range e.Rungs {
		if r.Action == action && !r.Allowed {
			return r.Reason
		}
	}
	return ""
}

func (e explained) trainer() string {
	if e.Trainer == nil {
		return ""
	}
	return *e.Trainer
}
