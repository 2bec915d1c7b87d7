package guard

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"sparkrun/internal/meminfo"
)

// procfs reads the process table through one open descriptor of /proc. A look
// at every process of the machine must cost next to nothing, so it does not
// allocate: names are built in one buffer and files read into another.
type procfs struct {
	fd   int
	dir  []byte
	name []byte
	buf  []byte
	page uint64 // KiB
}

func openProcfs(root string) (*procfs, error) {
	fd, err := unix.Open(root+"/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &procfs{
		fd: fd, dir: make([]byte, 16<<10), name: make([]byte, 0, 64), buf: make([]byte, 4096),
		page: uint64(unix.Getpagesize()) / 1024,
	}, nil
}

func (p *procfs) close() { unix.Close(p.fd) }

// each calls f for every process.
func (p *procfs) each(f func(pid int)) error {
	if _, err := unix.Seek(p.fd, 0, 0); err != nil {
		return err
	}
	for {
		n, err := unix.Getdents(p.fd, p.dir)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return err
		}
		for b := p.dir[:n]; len(b) >= 19; {
			// struct linux_dirent64: inode, offset, length of the record, type,
			// name.
			size := int(binary.NativeEndian.Uint16(b[16:]))
			if size < 20 || size > len(b) {
				break
			}
			if pid, ok := meminfo.Number(b[19:size]); ok && pid > 0 && pid < 1<<31 {
				f(int(pid))
			}
			b = b[size:]
		}
	}
}

// read returns the text of a file of a process, valid until the next read; nil
// when the process is gone.
func (p *procfs) read(pid int, file string) []byte {
	p.name = strconv.AppendInt(p.name[:0], int64(pid), 10)
	p.name = append(p.name, '/')
	p.name = append(p.name, file...)
	p.name = append(p.name, 0)
	var fd uintptr
	for {
		var errno unix.Errno
		fd, _, errno = unix.Syscall6(unix.SYS_OPENAT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.name[0])),
			unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return nil
		}
		break
	}
	defer unix.Close(int(fd))
	for {
		n, err := unix.Read(int(fd), p.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n < 0 {
			return nil
		}
		return p.buf[:n]
	}
}

// statm returns the resident memory of a process and the part of it that files
// or shared memory are behind, in KiB. Kernel threads have none.
func (p *procfs) statm(pid int) (resident, shared uint64) {
	b := p.read(pid, "statm")
	if b = after(b, 1); b == nil {
		return 0, 0
	}
	resident, _ = meminfo.Number(b)
	shared, _ = meminfo.Number(after(b, 1))
	return resident * p.page, shared * p.page
}

// after drops n words.
func after(b []byte, n int) []byte {
	for range n {
		i := bytes.IndexByte(b, ' ')
		if i < 0 {
			return nil
		}
		b = b[i+1:]
	}
	return b
}

// shmem is the shared memory a process has mapped, in KiB.
func (p *procfs) shmem(pid int) uint64 {
	v, _ := meminfo.Line(p.read(pid, "status"), "RssShmem:")
	return v
}

// stat is what names a process and its place.
type stat struct {
	ppid, sid int
	start     uint64
	comm      [16]byte
}

func (p *procfs) stat(pid int) (s stat, ok bool) {
	b := p.read(pid, "stat")
	// The name stands in parentheses and may hold any of them itself.
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open || end+2 > len(b) {
		return stat{}, false
	}
	copy(s.comm[:], b[open+1:end])
	b = b[end+2:] // field 3, the state
	ppid, ok1 := meminfo.Number(after(b, 1))
	sid, _ := meminfo.Number(after(b, 3))
	start, ok2 := meminfo.Number(after(b, 19))
	s.ppid, s.sid, s.start = int(ppid), int(sid), start
	return s, ok1 && ok2
}

// command is comm as text.
func (s *stat) command() string {
	name, _, _ := bytes.Cut(s.comm[:], []byte{0})
	return string(name)
}
