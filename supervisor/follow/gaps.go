package follow

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// gap is a range of logical offsets that output.log does not have.
type gap struct{ from, to int64 }

// gapList follows gaps.jsonl.
type gapList struct {
	path string
	read int64 // how much of the file was taken in: whole lines only
	gaps []gap // in order of offset, not overlapping
}

func newGapList(dir string) *gapList { return &gapList{path: filepath.Join(dir, gapsName)} }

// refresh takes in what was added to the file and says whether that changed
// anything. A torn last line waits for its end.
func (g *gapList) refresh() (changed bool, err error) {
	info, err := os.Stat(g.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the gaps of the output: %w", err)
	}
	if info.Size() <= g.read {
		return false, nil
	}
	f, err := os.Open(g.path)
	if err != nil {
		return false, fmt.Errorf("reading the gaps of the output: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, g.read, info.Size()-g.read))
	if err != nil {
		return false, fmt.Errorf("reading the gaps of the output: %w", err)
	}
	whole := data[:bytes.LastIndexByte(data, '\n')+1]
	g.read += int64(len(whole))
	for line := range bytes.Lines(whole) {
		var rec struct{ Offset, Bytes int64 }
		if json.Unmarshal(line, &rec) != nil || rec.Bytes <= 0 || rec.Offset < 0 {
			continue
		}
		n := gap{rec.Offset, rec.Offset + rec.Bytes}
		if k := len(g.gaps); k > 0 {
			// They are written in order; a record written twice counts once.
			n.from = max(n.from, g.gaps[k-1].to)
		}
		if n.from < n.to {
			g.gaps = append(g.gaps, n)
			changed = true
		}
	}
	return changed, nil
}

// at finds off: the end of the gap it lies in (0 if in none), the start of the
// next gap (-1 if there is none) and the file position that belongs to off.
func (g *gapList) at(off int64) (end, next, pos int64) {
	pos, next = off, -1
	for _, k := range g.gaps {
		switch {
		case k.to <= off:
			pos -= k.to - k.from
		case k.from <= off:
			return k.to, -1, 0
		default:
			return 0, k.from, pos
		}
	}
	return 0, next, pos
}
