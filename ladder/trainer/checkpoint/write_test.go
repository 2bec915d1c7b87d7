package checkpoint

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tensors returns a safetensors file with size bytes of data in two tensors.
func tensors(t testing.TB, size int) string {
	t.Helper()
	header, err := json.Marshal(map[string]any{
		"__metadata__": map[string]string{"format": "pt"},
		"a":            map[string]any{"dtype": "U8", "shape": []int{size / 2}, "data_offsets": []int{0, size / 2}},
		"w":            map[string]any{"dtype": "U8", "shape": []int{size - size/2}, "data_offsets": []int{size / 2, size}},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return string(b) + string(header) + strings.Repeat("x", size)
}

// pickled returns the pickle of a dictionary of small numbers and, for the keys with
// -1, of None, as torch.save writes it (protocol 2).
func pickled(pairs ...any) string {
	b := []byte("\x80\x02}q\x00(")
	for i := 0; i < len(pairs); i += 2 {
		key, n := pairs[i].(string), pairs[i+1].(int)
		b = append(b, 'X')
		b = binary.LittleEndian.AppendUint32(b, uint32(len(key)))
		b = append(b, key...)
		b = append(b, 'q', byte(i/2+1))
		switch {
		case n < 0:
			b = append(b, 'N')
		case n < 256:
			b = append(b, 'K', byte(n))
		case n < 65536:
			b = append(b, 'M')
			b = binary.LittleEndian.AppendUint16(b, uint16(n))
		default:
			b = append(b, 'J')
			b = binary.LittleEndian.AppendUint32(b, uint32(n))
		}
	}
	return string(append(b, "u."...))
}

// saved returns a file as torch.save writes it: an archive with the pickle of pairs
// and size bytes of tensors.
func saved(t testing.TB, size int, pairs ...any) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, data := range map[string]string{"data.pkl": pickled(pairs...), "data/0": strings.Repeat("w", size), "version": "3\n"} {
		f, err := w.CreateHeader(&zip.FileHeader{Name: "archive/" + name, Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// metadata returns a .metadata that names some pieces.
func metadata(words ...string) string {
	return "\x80\x05" + strings.Join(words, "\x94") + "."
}

// put writes files below a folder: a name that ends in / makes a folder.
func put(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// aged sets when everything below a folder was written.
func aged(t testing.TB, path string, ago time.Duration) {
	t.Helper()
	at := time.Now().Add(-ago)
	err := filepath.WalkDir(path, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.Type()&os.ModeSymlink != 0 {
			return err
		}
		return os.Chtimes(p, at, at)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// under puts a prefix before every name.
func under(prefix string, files map[string]string) map[string]string {
	out := map[string]string{}
	for n, s := range files {
		out[prefix+n] = s
	}
	return out
}

// with returns a copy of files with changes; a change to "\x00gone" removes one.
func with(files map[string]string, changes ...string) map[string]string {
	out := map[string]string{}
	for n, s := range files {
		out[n] = s
	}
	for i := 0; i < len(changes); i += 2 {
		if changes[i+1] == gone {
			delete(out, changes[i])
		} else {
			out[changes[i]] = changes[i+1]
		}
	}
	return out
}

const gone = "\x00gone"

func state(step int) string {
	return fmt.Sprintf(`{"global_step": %d, "train_batch_size": 8, "log_history": [{"loss": NaN, "note": "a: NaN, b"}, [Infinity,NaN,-Infinity]]}`, step)
}

// want is what List must say of one checkpoint.
type want struct {
	name     string
	step     int64
	complete bool
	optim    bool
	why      string // part of it; "" means none
}

func check(t *testing.T, dir string, got []Checkpoint, wants []want) {
	t.Helper()
	if len(got) != len(wants) {
		t.Errorf("%d checkpoints, want %d: %+v", len(got), len(wants), got)
		return
	}
	for i, w := range wants {
		g := got[i]
		if g.Path != filepath.Join(dir, w.name) || g.Step != w.step || g.Complete != w.complete || g.HasOptimizer != w.optim && w.complete ||
			!strings.Contains(g.Why, w.why) || (w.why == "") != (g.Why == "") || g.T.IsZero() {
			t.Errorf("got %+v\nwant %+v", g, w)
		}
	}
}
