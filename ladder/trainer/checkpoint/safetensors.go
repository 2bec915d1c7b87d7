package checkpoint

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
)

// maxHeader is the longest header that the safetensors format allows.
const maxHeader = 100 << 20

// safetensors returns what is wrong with a file of that format, "" if it is as
// long as its header says.
func safetensors(path string) string {
	name := filepath.Base(path)
	f, size, err := openFile(path)
	if err != nil {
		return name + " cannot be read: " + reason(err)
	}
	defer f.Close()
	var length [8]byte
	if _, err := io.ReadFull(f, length[:]); err != nil {
		return name + " is cut short"
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || int64(n) > size-8 {
		return name + " is cut short in its header, or has none"
	}
	end, err := dataEnd(io.LimitReader(f, int64(n)))
	if err != nil {
		return name + " has a broken header"
	}
	if want := 8 + int64(n) + end; size != want {
		return fmt.Sprintf("%s has %d bytes of %d", name, size, want)
	}
	return ""
}

// dataEnd returns where the data of the last tensor ends. It reads the header as
// a stream: that of a large mixture of experts has some MB.
func dataEnd(r io.Reader) (int64, error) {
	d := json.NewDecoder(bufio.NewReader(r))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return 0, fmt.Errorf("no JSON object: %w", err)
	}
	var end int64
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return 0, err
		}
		var t struct {
			Offsets [2]int64 `json:"data_offsets"`
		}
		if key == "__metadata__" {
			var any map[string]json.RawMessage
			err = d.Decode(&any)
		} else {
			t.Offsets = [2]int64{-1, -1}
			err = d.Decode(&t)
			if err == nil && (t.Offsets[0] < 0 || t.Offsets[1] < t.Offsets[0]) {
				err = fmt.Errorf("tensor %v has no place", key)
			}
		}
		if err != nil {
			return 0, err
		}
		end = max(end, t.Offsets[1])
	}
	if _, err := d.Token(); err != nil {
		return 0, err
	}
	return end, nil
}
