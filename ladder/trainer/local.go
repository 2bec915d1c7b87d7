package trainer

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"go.yaml.in/yaml/v3"

	"sparkrun/configs"
)

// LocalKey is the key of a settings file under which profiles stand.
const LocalKey = "trainers"

// AddLocal adds the profiles that a settings file has under LocalKey, a list of them.
// They go before all others. A file that is not there, or has none, adds nothing; the
// errors name its lines.
func (s *Set) AddLocal(path string) error {
	data, err := configs.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the profiles beside the job: %w", err)
	}
	items, err := localProfiles(path, data)
	if err != nil {
		return err
	}
	for _, item := range items {
		if err := s.Add(path, item); err != nil {
			return err
		}
	}
	return nil
}

// localProfiles cuts the profiles out of a settings file, each with as many empty
// lines in front that its lines keep their numbers.
func localProfiles(path string, data []byte) ([][]byte, error) {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil || len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, nil //nolint:nilerr // who reads the settings says what is wrong with them
	}
	root := doc.Content[0]
	at := -1
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == LocalKey {
			at = i
		}
	}
	if at < 0 {
		return nil, nil
	}
	list := root.Content[at+1]
	if list.Kind != yaml.SequenceNode || list.Style&yaml.FlowStyle != 0 {
		return nil, fmt.Errorf("%s:%d: %s must be a list, each entry a profile with \"- name:\" on a line of its own", path, root.Content[at].Line, LocalKey)
	}
	lines := bytes.Split(data, []byte("\n"))
	end := len(lines) + 1
	if at+2 < len(root.Content) {
		end = root.Content[at+2].Line
	}
	var out [][]byte
	for i, item := range list.Content {
		if item.Kind != yaml.MappingNode || item.Style&yaml.FlowStyle != 0 || item.Anchor != "" {
			return nil, fmt.Errorf("%s:%d: entry %d of %s must be a profile written out, a key on each line", path, item.Line, i+1, LocalKey)
		}
		last := end
		if i+1 < len(list.Content) {
			last = list.Content[i+1].Line
		}
		text := bytes.Repeat([]byte("\n"), item.Line-1)
		for n := item.Line; n < last && n <= len(lines); n++ {
			line := lines[n-1]
			cut := item.Column - 1
			head := strings.TrimLeft(string(line[:min(cut, len(line))]), " ")
			switch {
			case n == item.Line:
				line = line[min(cut, len(line)):]
			case head == "" || strings.HasPrefix(head, "#"):
				line = line[min(cut, len(line)):]
			default:
				// The dash of the next entry, on a line of its own.
				line = nil
			}
			text = append(append(text, line...), '\n')
		}
		out = append(out, text)
	}
	return out, nil
}
