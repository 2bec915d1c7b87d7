package configs

import (
	"fmt"
	"slices"
	"strings"
)

// BuiltInKeys decodes what stands below these top-level keys of the built-in table of that
// name. The rest is not even parsed, which is most of the cost of a large table.
func BuiltInKeys(name string, v any, keys ...string) error {
	data, err := FS.ReadFile(name)
	if err != nil {
		return fmt.Errorf("no built-in table %s: %w", name, err)
	}
	return Decode("configs/"+name, Sections(data, keys...), v)
}

// Sections keeps the lines of a YAML document that stand below these of its top-level keys
// and empties the others, so that an error still names the right line. It is for the
// built-in tables, whose top-level keys are words of small letters that start a line, and
// of whose other lines none starts with such a letter.
func Sections(data []byte, keys ...string) []byte {
	kept := make([]byte, 0, 1024)
	keep, skipped := false, 0
	for line := range strings.Lines(string(data)) {
		if c := line[0]; c >= 'a' && c <= 'z' {
			name, _, _ := strings.Cut(line, ":")
			keep = slices.Contains(keys, name)
		}
		if !keep {
			skipped++
			continue
		}
		for ; skipped > 0; skipped-- {
			kept = append(kept, '\n')
		}
		kept = append(kept, line...)
	}
	return kept
}
