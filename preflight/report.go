package preflight

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
)

// Schema names the form of the "sparkrun" part of env-report.json.
const Schema = "sparkrun.env-report/1"

// envReport is env-report.json. The first four fields are the runbook's; ours
// lie apart under "sparkrun".
type envReport struct {
	Platform   string   `json:"platform"`
	Checks     checkSet `json:"checks"`
	HeadroomGB *int     `json:"headroom_gb"`
	Verdict    string   `json:"verdict"`
	Sparkrun   ourPart  `json:"sparkrun"`
}

// checkSet is an object whose keys keep the order of the checks: a Go map would
// write G10 before G2.
type checkSet []Finding

func (c checkSet) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, f := range c {
		if i > 0 {
			out = append(out, ',')
		}
		key, err := json.Marshal(f.ID)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(f.Value())
		if err != nil {
			return nil, err
		}
		out = append(append(append(out, key...), ':'), value...)
	}
	return append(out, '}'), nil
}

type ourPart struct {
	Schema  string     `json:"schema"`
	Time    string     `json:"time"`
	Machine string     `json:"machine,omitempty"`
	GPU     string     `json:"gpu,omitempty"`
	Driver  string     `json:"driver,omitempty"`
	Memory  memoryPart `json:"memory"`
	// Plan is what the command is reckoned to need; null where nothing is known.
	Plan     *Planned      `json:"plan"`
	Findings []findingPart `json:"findings"`
	Host     []findingPart `json:"host"`
	Fixes    []fixPart     `json:"fixes"`
	TookMS   int64         `json:"took_ms"`
}

type memoryPart struct {
	TotalKiB     sample.Num `json:"mem_total_kib"`
	AvailableKiB sample.Num `json:"mem_available_kib"`
	FreeKiB      sample.Num `json:"mem_free_kib"`
	ReserveKiB   sample.Num `json:"reserve_kib"`
}

type findingPart struct {
	ID       string   `json:"id"`
	Title    string   `json:"title"`
	Status   Status   `json:"status"`
	ByDesign bool     `json:"by_design"`
	Detail   string   `json:"detail"`
	Evidence []string `json:"evidence,omitempty"`
	// Cost is what it costs the user; host checks that advise something say it.
	Cost string `json:"cost,omitempty"`
}

type fixPart struct {
	ID  string `json:"id"`
	Fix string `json:"fix"`
}

// Value is the finding as env-report.json spells it under "checks": the bare
// words pass and fail, and for the others the word and the detail.
func (f Finding) Value() string {
	if f.Status == Pass || f.Status == Fail {
		return string(f.Status)
	}
	return string(f.Status) + ": " + f.Detail
}

// JSON returns env-report.json, made at now.
func (r Report) JSON(now time.Time) ([]byte, error) {
	out := envReport{
		Platform: r.Platform, Checks: r.Findings, HeadroomGB: r.HeadroomGB, Verdict: r.Verdict,
		Sparkrun: ourPart{
			Schema: Schema, Time: clock.Machine(now),
			Machine: r.Machine, GPU: r.GPU, Driver: r.Driver,
			Memory:   memoryPart{r.MemTotalKiB, r.MemAvailableKiB, r.MemFreeKiB, r.ReserveKiB},
			Plan:     r.Plan,
			Findings: parts(r.Findings), Host: parts(r.Host),
			Fixes:  []fixPart{},
			TookMS: r.Took.Milliseconds(),
		},
	}
	for _, f := range slices.Concat(r.Blocking(), r.Warnings(), r.Hints()) {
		if f.Fix != "" {
			out.Sparkrun.Fixes = append(out.Sparkrun.Fixes, fixPart{f.ID, f.Fix})
		}
	}
	b, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the preflight report as JSON: %w", err)
	}
	return append(b, '\n'), nil
}

func parts(list []Finding) []findingPart {
	out := make([]findingPart, 0, len(list))
	for _, f := range list {
		out = append(out, findingPart{f.ID, f.Title, f.Status, f.ByDesign, f.Detail, f.Evidence, f.Cost})
	}
	return out
}

// WriteReport puts data in place of the file at path in one step: a reader sees
// the old report or the new one, never half of either.
func WriteReport(path string, data []byte) error {
	if err := replaceFile(path, data); err != nil {
		return fmt.Errorf("writing the preflight report: %w", err)
	}
	return nil
}

func replaceFile(path string, data []byte) error {
	// The temporary file lies beside the report: elsewhere it could be on
	// another file system, where a rename cannot reach. Who made a report private, or has
	// a umask that does, gets a private one.
	dir := filepath.Dir(path)
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(dir), renameio.WithPermissions(0o644), renameio.WithExistingPermissions())
	if err != nil {
		// The name of the temporary file would tell nobody anything.
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return fmt.Errorf("no file can be made in %s: %w", dir, err)
	}
	defer f.Cleanup() //nolint:errcheck // nothing is left of one that was put in its place
	if _, err := f.Write(data); err != nil {
		return err
	}
	// Root replaces a user's report by one of the same user, who could not write it
	// again otherwise. Where files cannot be given away, it is root's.
	var old unix.Stat_t
	if os.Geteuid() == 0 && unix.Lstat(path, &old) == nil {
		_ = f.Chown(int(old.Uid), int(old.Gid))
	}
	return f.CloseAtomicallyReplace()
}
