package runlog

import (
	"crypto/rand"
	"encoding/hex"
	"path/filepath"
	"strings"
	"time"

	"sparkrun/internal/lazyre"
)

const (
	idTimeLayout = "20060102-150405"
	nameMax      = 32
	defaultName  = "run"
)

// idShape takes an ID apart: start time, name, random suffix.
var idShape = lazyre.New(`^(\d{8}-\d{6})-([a-z0-9-]{1,32})-([0-9a-f]{4})$`)

// NewID draws a run ID: YYYYMMDD-HHMMSS-<name>-<4 hex>, in the zone of now. The
// name is brought into the allowed form first. Two calls may draw the same ID;
// making the folder decides (see Create).
func NewID(now time.Time, name string) string {
	var b [2]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return now.Format(idTimeLayout) + "-" + cleanName(name) + "-" + hex.EncodeToString(b[:])
}

// nameOf returns the name part of an ID, or "" where id is none.
func nameOf(id string) string {
	if m := idShape.FindStringSubmatch(id); m != nil {
		return m[2]
	}
	return ""
}

// wrappers are programs that run another program named behind their own flags.
var wrappers = map[string]bool{
	"env": true, "nohup": true, "nice": true, "ionice": true, "numactl": true,
	"taskset": true, "stdbuf": true, "time": true, "sudo": true, "setsid": true,
}

// scriptEnds are the file name endings that mark the script among the words of
// a command.
var scriptEnds = []string{".py", ".sh", ".bash", ".pyz", ".r", ".jl", ".lua"}

// Name derives the name of a run: the flag if it was given, else the base name
// of the script in argv without its ending, else of the program. The result has
// only [a-z0-9-], at most 32 of them, and is "run" where nothing is left.
func Name(argv []string, flag string) string {
	if flag != "" {
		return cleanName(flag)
	}
	for i, word := range argv {
		if word == "-m" && i+1 < len(argv) && i > 0 && strings.HasPrefix(filepath.Base(argv[i-1]), "python") {
			module := argv[i+1]
			return cleanName(module[strings.LastIndexByte(module, '.')+1:])
		}
		if word == "-c" {
			break // what follows is program text, not a file
		}
		lower := strings.ToLower(word)
		for _, end := range scriptEnds {
			if strings.HasSuffix(lower, end) && !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") {
				base := filepath.Base(word)
				return cleanName(base[:len(base)-len(end)])
			}
		}
	}
	for _, word := range argv {
		base := filepath.Base(word)
		if strings.HasPrefix(word, "-") || strings.Contains(word, "=") || wrappers[base] {
			continue
		}
		return cleanName(strings.TrimSuffix(base, filepath.Ext(base)))
	}
	return defaultName
}

// cleanName brings s into the form [a-z0-9-]{1,32}.
func cleanName(s string) string {
	var b strings.Builder
	dash := false
	for _, r := range strings.ToLower(s) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			if dash && b.Len() > 0 {
				b.WriteByte('-')
			}
			dash = false
			b.WriteRune(r)
			continue
		}
		dash = true
	}
	name := b.String()
	if len(name) > nameMax {
		name = strings.TrimRight(name[:nameMax], "-")
	}
	if name == "" {
		return defaultName
	}
	return name
}
