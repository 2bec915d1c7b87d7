package preflight

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path/filepath"
	"strconv"

	"sparkrun/internal/lazyre"
)

// This file reads /etc/ld.so.cache, where ldconfig has written down which library the
// loader takes for which name, and works out from it and from the folders around torch
// which CUDA runtimes a program would find. Nothing is loaded: a library's constructors
// have no place in the supervisor.

// The layout of the file, in the byte order of the machine that wrote it, from glibc's
// own reader of it: an old part, which newer systems leave out,
//
//	char magic[11] = "ld.so-1.7.0", a byte of padding, uint32 entries,
//	entries of { uint32 flags, name, path }, offsets from behind the last one
//
// and, aligned to 8 bytes, a new one:
//
//	char magic[20] = "glibc-ld.so.cache1.1", uint32 entries, uint32 length of the texts,
//	uint8 flags (byte order), 3 bytes, uint32 offset of extensions, 12 bytes,
//	entries of { uint32 flags, name, path, os version; uint64 hwcap }, offsets from
//	the first byte of this part
const (
	oldMagic, oldHeader, oldEntry = "ld.so-1.7.0", 16, 12
	newMagic, newHeader, newEntry = "glibc-ld.so.cache1.1", 48, 24
	// maxCache is far above any real cache: some 4000 libraries make 300 KiB.
	maxCache = 4 << 20
	// maxLibrary bounds a name or path in it.
	maxLibrary = 4096
)

// library is one entry: the name that programs ask for and the file they get.
type library struct{ name, path string }

var errNoCache = errors.New("no cache of glibc's loader")

// parseCache returns the entries whose name is wanted. The file may be torn or made up:
// what does not fit is left out, and an error says so. machine is what uname -m says;
// libraries of other architectures in the same cache (32-bit ones) are left out where
// it is known.
func parseCache(b []byte, machine string, wanted func(string) bool) ([]library, error) {
	base := 0
	order := binary.ByteOrder(binary.LittleEndian)
	switch {
	case bytes.HasPrefix(b, []byte(newMagic)) && len(b) >= newHeader:
	case bytes.HasPrefix(b, []byte(oldMagic)) && len(b) >= oldHeader:
		count := entryCount(b[12:], order, (len(b)-oldHeader)/oldEntry)
		end := (oldHeader + count*oldEntry + 7) &^ 7
		if end+newHeader <= len(b) && bytes.HasPrefix(b[end:], []byte(newMagic)) {
			base = end
			break
		}
		// The old form alone counts its texts from behind the entries.
		return cacheEntries(b, oldHeader, oldEntry, count, oldHeader+count*oldEntry, order, machine, wanted)
	default:
		return nil, errNoCache
	}
	b = b[base:]
	// 3 is big-endian; older systems leave 0.
	if b[28]&3 == 3 {
		order = binary.BigEndian
	}
	count := entryCount(b[20:], order, (len(b)-newHeader)/newEntry)
	return cacheEntries(b, newHeader, newEntry, count, 0, order, machine, wanted)
}

// entryCount reads a number of entries; -1 is one that the file cannot hold.
func entryCount(b []byte, order binary.ByteOrder, most int) int {
	if n := order.Uint32(b); int64(n) <= int64(most) {
		return int(n)
	}
	return -1
}

var errTornCache = errors.New("the loader's cache is torn")

func cacheEntries(b []byte, header, size, count, texts int, order binary.ByteOrder, machine string, wanted func(string) bool) ([]library, error) {
	if count < 0 {
		return nil, errTornCache
	}
	var out []library
	var torn error
	seen := make(map[library]bool)
	for n := range count {
		e := b[header+n*size:]
		flags := order.Uint32(e)
		if flags&0xff != elfLibc6 || !sameMachine(flags, machine) {
			continue
		}
		name, ok := textAt(b, texts, order.Uint32(e[4:]))
		if !ok {
			torn = errTornCache
			continue
		}
		if !wanted(name) {
			continue
		}
		path, ok := textAt(b, texts, order.Uint32(e[8:]))
		if !ok || !filepath.IsAbs(path) {
			torn = errTornCache
			continue
		}
		if l := (library{name, filepath.Clean(path)}); !seen[l] {
			seen[l] = true
			out = append(out, l)
		}
	}
	return out, torn
}

// textAt reads a text that ends with a zero byte.
func textAt(b []byte, base int, offset uint32) (string, bool) {
	at := int64(base) + int64(offset)
	if at >= int64(len(b)) {
		return "", false
	}
	rest := b[at:]
	if len(rest) > maxLibrary {
		rest = rest[:maxLibrary]
	}
	n := bytes.IndexByte(rest, 0)
	if n < 0 {
		return "", false
	}
	return string(rest[:n]), true
}

// Flags of an entry: what kind of library it is, and for which architecture.
const (
	elfLibc6    = 0x03
	archMask    = 0xff00
	archX8664   = 0x0300
	archAArch64 = 0x0a00
)

func sameMachine(flags uint32, machine string) bool {
	switch machine {
	case "x86_64", "amd64":
		return flags&archMask == archX8664
	case "aarch64", "arm64":
		return flags&archMask == archAArch64
	}
	return true
}

// cudaRuntimes are the CUDA runtimes (libcudart.so.MAJOR) that a program would find, by
// major version, each with its file.
type cudaRuntimes struct {
	// loader are those that the loader finds by itself or over LD_LIBRARY_PATH.
	loader map[int]string
	// bundled are those that wheels beside torch bring, or its conda environment.
	bundled map[int]string
	// toolkit are those of /usr/local/cuda, where a torch that was built here looks.
	toolkit map[int]string
	// cached tells that the loader's cache was read whole, so that what is not in it is
	// absent; why says why not.
	cached bool
	why    string
	// stale are files that the cache names and that are gone.
	stale []string
}

// findRuntimes looks for the CUDA runtimes of an interpreter that imports from sites.
// libraryPath is the LD_LIBRARY_PATH of the command, dir the folder that its relative
// parts start from.
func findRuntimes(t tree, sites []string, interp, libraryPath, dir, machine string) cudaRuntimes {
	r := cudaRuntimes{loader: map[int]string{}, bundled: map[int]string{}, toolkit: map[int]string{}}
	note := func(into map[int]string, folder string) {
		for _, name := range t.names(folder) {
			if n, ok := cudartMajor(name); ok && into[n] == "" {
				into[n] = filepath.Join(folder, name)
			}
		}
	}
	// The loader looks there first.
	for _, folder := range filepath.SplitList(libraryPath) {
		switch {
		case folder == "":
		case filepath.IsAbs(folder):
			note(r.loader, folder)
		default:
			note(r.loader, filepath.Join(dir, folder))
		}
	}
	b, err := t.readMax("/etc/ld.so.cache", maxCache)
	if err == nil {
		var libs []library
		libs, err = parseCache(b, machine, func(name string) bool { _, ok := cudartMajor(name); return ok })
		for _, l := range libs {
			if there, err := t.exists(l.path); err == nil && !there {
				r.stale = append(r.stale, l.path)
			} else if n, _ := cudartMajor(l.name); r.loader[n] == "" {
				r.loader[n] = l.path
			}
		}
	}
	if r.cached = err == nil; err != nil {
		r.why = "/etc/ld.so.cache: " + err.Error()
	}
	for _, site := range sites {
		for _, folder := range bundleFolders(t, site) {
			note(r.bundled, folder)
		}
	}
	// A system's own lib folder is the loader's business.
	if prefix := filepath.Dir(filepath.Dir(interp)); filepath.IsAbs(interp) && prefix != "/" && prefix != "/usr" {
		note(r.bundled, filepath.Join(prefix, "lib"))
	}
	note(r.toolkit, "/usr/local/cuda/lib64")
	return r
}

// bundleFolders are where wheels keep the CUDA runtime: those of NVIDIA for one major
// version (nvidia/cu13/lib), those before (nvidia/cuda_runtime/lib), and torch itself in
// its oldest wheels.
func bundleFolders(t tree, site string) []string {
	folders := []string{filepath.Join(site, "torch/lib")}
	for _, name := range t.names(filepath.Join(site, "nvidia")) {
		if name == "cuda_runtime" || cudaFolder.MatchString(name) {
			folders = append(folders, filepath.Join(site, "nvidia", name, "lib"))
		}
	}
	return folders
}

var (
	cudaFolder = lazyre.New(`^cu\d{2}$`)
	// cudartName is a runtime by its name: libcudart.so.13, libcudart.so.12.9.79,
	// libcudart-9335f6a2.so.12 as wheels bundle it.
	cudartName = lazyre.New(`^libcudart(?:-[0-9a-f]{6,40})?\.so\.(\d{1,4})(?:\.\d+)*$`)
)

func cudartMajor(name string) (int, bool) {
	m := cudartName.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1])
	return n, err == nil
}
