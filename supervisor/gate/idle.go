package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// idleFile keeps the best MemAvailable of each boot: what this machine has when
// nobody uses it. Attempts that die one after the other leave it a little lower
// each time, so the start of a run alone is no measure.
const idleFile = "idle.json"

const idleSchema = "sparkrun.idle/1"

// idleBoots bounds how many boots are remembered. More than one, since a home
// folder may be shared by several machines, and each has a boot of its own.
const idleBoots = 16

type idleRecord struct {
	Schema string     `json:"schema"`
	Boots  []idleBoot `json:"boots"` // the newest last
}

type idleBoot struct {
	BootID       string `json:"boot_id"`
	AvailableKiB uint64 `json:"available_kib"`
}

// LoadIdle returns the best MemAvailable of this boot in KiB, 0 where it is not
// known.
func LoadIdle(stateDir, bootID string) uint64 {
	if bootID == "" {
		return 0
	}
	for _, b := range readIdle(stateDir).Boots {
		if b.BootID == bootID {
			return b.AvailableKiB
		}
	}
	return 0
}

// NoteIdle remembers a MemAvailable if it is this boot's best. Two runs that note
// at the same moment may lose one of the two values, never the file.
func NoteIdle(stateDir, bootID string, availKiB uint64) error {
	if bootID == "" {
		return errors.New("keeping the best idle memory of this boot: the boot has no id")
	}
	rec := readIdle(stateDir)
	boots := make([]idleBoot, 0, len(rec.Boots)+1)
	for _, b := range rec.Boots {
		switch {
		case b.BootID != bootID:
			boots = append(boots, b)
		case b.AvailableKiB >= availKiB:
			return nil
		}
	}
	boots = append(boots, idleBoot{BootID: bootID, AvailableKiB: availKiB})
	boots = boots[max(0, len(boots)-idleBoots):]
	b, err := json.MarshalIndent(idleRecord{Schema: idleSchema, Boots: boots}, "", "  ")
	if err == nil {
		err = os.MkdirAll(stateDir, 0o700)
	}
	if err == nil {
		err = renameio.WriteFile(filepath.Join(stateDir, idleFile), append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("keeping the best idle memory of this boot: %w", err)
	}
	return nil
}

// readIdle reads the record; a file that is torn, foreign or absent is an empty
// one, and is replaced by the next note.
func readIdle(stateDir string) idleRecord {
	f, err := os.Open(filepath.Join(stateDir, idleFile))
	if err != nil {
		return idleRecord{}
	}
	defer f.Close()
	var rec idleRecord
	b, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil || json.Unmarshal(b, &rec) != nil || rec.Schema != idleSchema {
		return idleRecord{}
	}
	return rec
}
