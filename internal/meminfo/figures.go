package meminfo

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Unknown is the value of a figure that the kernel does not give.
const Unknown = math.MaxUint64

// Figures are the lines of /proc/meminfo that a memory guard needs, in KiB;
// each is Unknown where the kernel does not give it.
type Figures struct {
	Total, Free, Available        uint64
	Buffers, Cached, SwapCached   uint64
	SwapTotal, SwapFree           uint64
	AnonPages, Shmem              uint64
	Slab, KernelStack, PageTables uint64
	Percpu                        uint64
	HugePages, HugePageKiB        uint64
}

// Unaccounted is the memory that the kernel counts for nobody, in KiB: on
// unified memory mostly what the GPU driver holds. ok is false where a figure
// for it is missing.
func (f *Figures) Unaccounted() (kib uint64, ok bool) {
	used := uint64(0)
	for _, v := range [...]uint64{f.Free, f.Buffers, f.Cached, f.AnonPages, f.Slab} {
		if v == Unknown {
			return 0, false
		}
		used += v
	}
	for _, v := range [...]uint64{f.SwapCached, f.KernelStack, f.PageTables, f.Percpu} {
		if v != Unknown {
			used += v
		}
	}
	if f.HugePages != Unknown && f.HugePageKiB != Unknown {
		used += f.HugePages * f.HugePageKiB
	}
	if f.Total == Unknown {
		return 0, false
	}
	// The lines are not read at one instant: a little too much is possible.
	return f.Total - min(used, f.Total), true
}

func (f *Figures) field(name []byte) *uint64 {
	// A switch over string(name) does not allocate.
	switch string(name) {
	case "MemTotal":
		return &f.Total
	case "MemFree":
		return &f.Free
	case "MemAvailable":
		return &f.Available
	case "Buffers":
		return &f.Buffers
	case "Cached":
		return &f.Cached
	case "SwapCached":
		return &f.SwapCached
	case "SwapTotal":
		return &f.SwapTotal
	case "SwapFree":
		return &f.SwapFree
	case "AnonPages":
		return &f.AnonPages
	case "Shmem":
		return &f.Shmem
	case "Slab":
		return &f.Slab
	case "KernelStack":
		return &f.KernelStack
	case "PageTables":
		return &f.PageTables
	case "Percpu":
		return &f.Percpu
	case "HugePages_Total":
		return &f.HugePages
	case "Hugepagesize":
		return &f.HugePageKiB
	}
	return nil
}

func (f *Figures) parse(b []byte) {
	*f = Figures{
		Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown,
		Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown,
	}
	for len(b) > 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 0 {
			continue
		}
		to := f.field(line[:colon])
		if to == nil {
			continue
		}
		if v, ok := Number(line[colon+1:]); ok {
			*to = v
		}
	}
}

// Parse reads the text of /proc/meminfo without allocating.
func Parse(b []byte) Figures {
	var f Figures
	f.parse(b)
	return f
}

// Number reads the first unsigned number of b, after spaces; it does not
// allocate. ok is false where there is none or it is too large.
func Number(b []byte) (v uint64, ok bool) {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && b[0] >= '0' && b[0] <= '9' {
		d := uint64(b[0] - '0')
		if v > (math.MaxUint64-d)/10 {
			return 0, false
		}
		v, ok, b = v*10+d, true, b[1:]
	}
	return v, ok
}

// File is a small kernel file that is opened once and read again and again
// without allocating. The kernel makes its text anew for each read at offset 0.
type File struct {
	fd  int
	buf []byte
}

// OpenFile opens path for reads of at most size bytes.
func OpenFile(path string, size int) (*File, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("opening %s: %w", path, err)
		}
		return &File{fd: fd, buf: make([]byte, size)}, nil
	}
}

// Read returns the text of a file that the kernel hands over in one piece, as
// it does with meminfo, pressure and cgroup files. The text is valid until the
// next reading; it is nil when it cannot be read.
func (f *File) Read() []byte { return f.read(true) }

// ReadLong is Read for a file that comes in several pieces, such as vmstat.
func (f *File) ReadLong() []byte { return f.read(false) }

func (f *File) read(onePiece bool) []byte {
	n := 0
	for n < len(f.buf) {
		k, err := unix.Pread(f.fd, f.buf[n:], int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil
		}
		if k <= 0 {
			break
		}
		if n += k; onePiece && f.buf[n-1] == '\n' {
			// Asking again would have the kernel make the text again only to say
			// that there is no more.
			break
		}
	}
	return f.buf[:n]
}

// Close closes the file.
func (f *File) Close() error { return unix.Close(f.fd) }

// Reader reads /proc/meminfo without allocating.
type Reader struct{ f *File }

// OpenReader opens /proc/meminfo under root and reads it once, so that a file
// without MemTotal or MemAvailable is an error at the start.
func OpenReader(root string) (*Reader, error) {
	f, err := OpenFile(filepath.Join(root, "proc/meminfo"), 8<<10)
	if err != nil {
		return nil, fmt.Errorf("reading memory figures: %w", err)
	}
	r := &Reader{f}
	var fig Figures
	if !r.Read(&fig) {
		f.Close()
		return nil, fmt.Errorf("%s gives no MemTotal or no MemAvailable: what is left cannot be known", filepath.Join(root, "proc/meminfo"))
	}
	return r, nil
}

// Read fills f; ok is false, and f is not to be used, where the total or what
// is available is missing.
func (r *Reader) Read(f *Figures) (ok bool) {
	f.parse(r.f.Read())
	return f.Total != Unknown && f.Total > 0 && f.Available != Unknown
}

// Close closes the file.
func (r *Reader) Close() error { return r.f.Close() }

// ParsePressure reads the text of a memory pressure file without allocating:
// hundredths of a percent of the last ten seconds. ok is false for another
// form.
func ParsePressure(b []byte) (some10, full10 uint32, ok bool) {
	some10, okSome := avg10(b, "some avg10=")
	full10, okFull := avg10(b, "full avg10=")
	return some10, full10, okSome && okFull
}

// Some10 and Full10 read one line of a pressure file's text, for the files that have not
// always had both: hundredths of a percent of the last ten seconds in which some, or all,
// tasks waited.
func Some10(b []byte) (uint32, bool) { return avg10(b, "some avg10=") }

// Full10 is Some10 for the line "full".
func Full10(b []byte) (uint32, bool) { return avg10(b, "full avg10=") }

func avg10(b []byte, lead string) (uint32, bool) {
	for len(b) >= len(lead) {
		if string(b[:len(lead)]) == lead {
			b = b[len(lead):]
			whole, ok := Number(b)
			if !ok || whole > 100 {
				return 0, false
			}
			dot := bytes.IndexByte(b, '.')
			if dot < 0 || len(b) < dot+3 {
				return 0, false
			}
			frac, ok := Number(b[dot+1 : dot+3])
			return uint32(whole*100 + frac), ok
		}
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			break
		}
		b = b[i+1:]
	}
	return 0, false
}

// Line returns the number after name and a space or tab at the start of a line
// of b, as in vmstat and memory.stat; it does not allocate.
func Line(b []byte, name string) (uint64, bool) {
	for len(b) > len(name) {
		if string(b[:len(name)]) == name && (b[len(name)] == ' ' || b[len(name)] == '\t') {
			return Number(b[len(name):])
		}
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			break
		}
		b = b[i+1:]
	}
	return 0, false
}
