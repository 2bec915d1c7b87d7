package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"sparkrun/internal/lazyre"
)

const (
	// maxDirectory bounds the archive directory that is read: a tensor takes some
	// hundred bytes of it.
	maxDirectory = 64 << 20
	// maxPickle bounds the pickle that is searched for a number.
	maxPickle = 32 << 20
	// sampled is how many members of an archive are looked up in their place.
	sampled = 64
)

// member is one file in an archive.
type member struct {
	name   string
	header int64 // where its local header stands
	size   int64 // as stored
	stored bool  // without compression, as torch does
}

// archive is the directory of a zip file, which torch.save writes last: a file
// that was cut short has none.
type archive struct {
	members []member
	end     int64 // where the members end and the directory begins
}

var errNoDirectory = errors.New("the directory at its end is missing")

// readArchive reads the directory of a zip file and proves that every member it
// lists lies within the file, and some of them in their place.
func readArchive(r io.ReaderAt, size int64) (archive, error) {
	var a archive
	at, count, length, start, err := endRecord(r, size)
	if err != nil {
		return a, err
	}
	if start < 0 || length < 0 || start+length > at || length > maxDirectory || count > length/46 {
		return a, errors.New("the directory at its end is broken")
	}
	dir := make([]byte, length)
	if _, err := r.ReadAt(dir, start); err != nil {
		return a, fmt.Errorf("reading the directory at its end: %w", err)
	}
	a.end = start
	for range count {
		m, rest, ok := nextMember(dir)
		if !ok || m.header < 0 || m.size < 0 || m.header+30+m.size > start {
			return a, errors.New("the directory at its end is broken")
		}
		a.members, dir = append(a.members, m), rest
	}
	step := max(1, len(a.members)/sampled)
	for i := 0; i < len(a.members); i += step {
		var sig [4]byte
		if _, err := r.ReadAt(sig[:], a.members[i].header); err != nil || string(sig[:]) != "PK\x03\x04" {
			return a, fmt.Errorf("%s is not where the directory says", a.members[i].name)
		}
	}
	return a, nil
}

// endRecord finds the record at the end of a zip file: where it stands, and count,
// length and start of the directory.
func endRecord(r io.ReaderAt, size int64) (at, count, length, start int64, err error) {
	const fixed = 22
	n := min(size, fixed+0xffff)
	if n < fixed {
		return 0, 0, 0, 0, errNoDirectory
	}
	tail := make([]byte, n)
	if _, err := r.ReadAt(tail, size-n); err != nil {
		return 0, 0, 0, 0, fmt.Errorf("reading its end: %w", err)
	}
	for i := len(tail) - fixed; i >= 0; i-- {
		e := tail[i:]
		if string(e[:4]) != "PK\x05\x06" || int(binary.LittleEndian.Uint16(e[20:])) != len(e)-fixed {
			continue
		}
		at = size - n + int64(i)
		count = int64(binary.LittleEndian.Uint16(e[10:]))
		length = int64(binary.LittleEndian.Uint32(e[12:]))
		start = int64(binary.LittleEndian.Uint32(e[16:]))
		if count != 0xffff && length != 0xffffffff && start != 0xffffffff {
			return at, count, length, start, nil
		}
		return endRecord64(r, at)
	}
	return 0, 0, 0, 0, errNoDirectory
}

// endRecord64 reads the same from the records that stand before the one at where
// the numbers do not fit into it.
func endRecord64(r io.ReaderAt, at int64) (where, count, length, start int64, err error) {
	var locator [20]byte
	if at < int64(len(locator)) {
		return 0, 0, 0, 0, errNoDirectory
	}
	if _, err := r.ReadAt(locator[:], at-int64(len(locator))); err != nil || string(locator[:4]) != "PK\x06\x07" {
		return 0, 0, 0, 0, errNoDirectory
	}
	where = int64(binary.LittleEndian.Uint64(locator[8:]))
	var e [56]byte
	if where < 0 || where > at {
		return 0, 0, 0, 0, errNoDirectory
	}
	if _, err := r.ReadAt(e[:], where); err != nil || string(e[:4]) != "PK\x06\x06" {
		return 0, 0, 0, 0, errNoDirectory
	}
	return where, int64(binary.LittleEndian.Uint64(e[32:])), int64(binary.LittleEndian.Uint64(e[40:])), int64(binary.LittleEndian.Uint64(e[48:])), nil
}

func nextMember(dir []byte) (m member, rest []byte, ok bool) {
	const fixed = 46
	if len(dir) < fixed || string(dir[:4]) != "PK\x01\x02" {
		return m, nil, false
	}
	le := binary.LittleEndian
	name, extra, comment := int(le.Uint16(dir[28:])), int(le.Uint16(dir[30:])), int(le.Uint16(dir[32:]))
	if len(dir) < fixed+name+extra+comment {
		return m, nil, false
	}
	m = member{
		name:   string(dir[fixed : fixed+name]),
		stored: le.Uint16(dir[10:]) == 0,
		size:   int64(le.Uint32(dir[20:])),
		header: int64(le.Uint32(dir[42:])),
	}
	plain := int64(le.Uint32(dir[24:]))
	for x := dir[fixed+name : fixed+name+extra]; len(x) >= 4; {
		id, n := le.Uint16(x), int(le.Uint16(x[2:]))
		if len(x) < 4+n {
			break
		}
		if id == 1 {
			wide(x[4:4+n], &plain, &m.size, &m.header)
		}
		x = x[4+n:]
	}
	return m, dir[fixed+name+extra+comment:], true
}

// wide replaces those numbers that did not fit into 32 bits by those of the zip64
// field, which stand there in this order.
func wide(field []byte, numbers ...*int64) {
	for _, n := range numbers {
		if *n == 0xffffffff && len(field) >= 8 {
			*n = int64(binary.LittleEndian.Uint64(field))
			field = field[8:]
		}
	}
}

// pickle returns the archive's own pickle, in which torch keeps everything but the
// tensors' data; nil where it is not there, packed or too long.
func (a archive) pickle(r io.ReaderAt) []byte {
	for _, m := range a.members {
		if m.name != "data.pkl" && !strings.HasSuffix(m.name, "/data.pkl") {
			continue
		}
		var local [30]byte
		if _, err := r.ReadAt(local[:], m.header); err != nil || !m.stored || m.size > maxPickle {
			return nil
		}
		skip := int64(binary.LittleEndian.Uint16(local[26:])) + int64(binary.LittleEndian.Uint16(local[28:]))
		data := make([]byte, m.size)
		if _, err := r.ReadAt(data, m.header+30+skip); err != nil {
			return nil
		}
		return data
	}
	return nil
}

// legacy begins what torch.save wrote before version 1.6: a pickle of a number by
// which it is known.
var legacy = []byte("\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")

// torchFile returns what is wrong with a file written by torch.save, "" if nothing
// is, and a note where its format does not let anybody tell.
func torchFile(path string) (why, note string) {
	name := filepath.Base(path)
	f, size, err := openFile(path)
	if err != nil {
		return name + " cannot be read: " + reason(err), ""
	}
	defer f.Close()
	if size == 0 {
		return name + " is empty", ""
	}
	head := make([]byte, min(size, 16))
	if _, err := f.ReadAt(head, 0); err != nil {
		return name + " cannot be read: " + reason(err), ""
	}
	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		a, err := readArchive(f, size)
		if err != nil {
			return name + " is cut short: " + err.Error(), ""
		}
		if a.find("data.pkl") < 0 {
			return name + " is an archive, but not one of torch", ""
		}
		return "", ""
	case bytes.HasPrefix(legacy, head), bytes.HasPrefix(head, legacy):
		if size <= int64(len(legacy)) {
			return name + " is cut short", ""
		}
		return "", name + " is in the format of torch before 1.6, whose end cannot be checked"
	case head[0] == 0x80:
		// A plain pickle ends with its stop code.
		var last [1]byte
		if _, err := f.ReadAt(last[:], size-1); err != nil || last[0] != '.' {
			return name + " is cut short", ""
		}
		return "", ""
	}
	if torchName.MatchString(name) || len(bytes.Trim(head, "\x00")) == 0 {
		return name + " is no file of torch.save, or torn", ""
	}
	return "", name + " is in a format that is not known here"
}

// torchName matches what is never written by anything but torch.save.
var torchName = lazyre.New(`^(pytorch_model|adapter_model|optim|scheduler|sampler|scaler|rng_state|random_states|training_args|recipe_state|ckpt|lit_model|model_|meta_)`)

// find returns the index of a member by its base name, -1 for none.
func (a archive) find(base string) int {
	for i, m := range a.members {
		if m.name == base || strings.HasSuffix(m.name, "/"+base) {
			return i
		}
	}
	return -1
}

// torchPickle returns the pickle of a torch.save file, nil where there is none to
// read.
func torchPickle(path string) []byte {
	f, size, err := openFile(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	a, err := readArchive(f, size)
	if err != nil {
		return nil
	}
	return a.pickle(f)
}

// pickleInt looks for the first dictionary key of that name with a whole number
// behind it. It reads the codes that Python writes for these and runs nothing: a
// pickle is a program.
func pickleInt(data []byte, key string) (int64, bool) {
	long := append([]byte{'X', byte(len(key)), 0, 0, 0}, key...)
	short := append([]byte{0x8c, byte(len(key))}, key...)
	for _, k := range [][]byte{long, short} {
		for from := 0; ; {
			i := bytes.Index(data[from:], k)
			if i < 0 {
				break
			}
			from += i + len(k)
			if n, ok := pickledNumber(data[from:]); ok {
				return n, true
			}
		}
	}
	return 0, false
}

// pickledNumber reads a number behind the memo code of what stands before it.
func pickledNumber(d []byte) (int64, bool) {
	switch {
	case len(d) >= 2 && d[0] == 'q':
		d = d[2:]
	case len(d) >= 5 && d[0] == 'r':
		d = d[5:]
	case len(d) >= 1 && d[0] == 0x94:
		d = d[1:]
	}
	switch {
	case len(d) >= 2 && d[0] == 'K':
		return int64(d[1]), true
	case len(d) >= 3 && d[0] == 'M':
		return int64(binary.LittleEndian.Uint16(d[1:])), true
	case len(d) >= 5 && d[0] == 'J':
		return int64(int32(binary.LittleEndian.Uint32(d[1:]))), true
	}
	return 0, false
}

// pickleHas says whether a pickle has a key of that name.
func pickleHas(data []byte, key string) bool {
	return bytes.Contains(data, append([]byte{'X', byte(len(key)), 0, 0, 0}, key...)) ||
		bytes.Contains(data, append([]byte{0x8c, byte(len(key))}, key...))
}
