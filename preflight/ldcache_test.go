package preflight

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

type cacheEntry struct {
	name, path string
	flags      uint32
}

const (
	flagX8664   = elfLibc6 | archX8664
	flagAArch64 = elfLibc6 | archAArch64
)

// cacheFile writes a cache as ldconfig does: in the new form, or with the old one in
// front of it.
func cacheFile(order binary.ByteOrder, old, both bool, list ...cacheEntry) []byte {
	var texts bytes.Buffer
	at := func(s string) uint32 {
		n := texts.Len()
		texts.WriteString(s)
		texts.WriteByte(0)
		return uint32(n)
	}
	type offsets struct{ flags, name, path uint32 }
	var entries []offsets
	for _, e := range list {
		entries = append(entries, offsets{e.flags, at(e.name), at(e.path)})
	}
	put := func(b *bytes.Buffer, values ...uint32) {
		for _, v := range values {
			_ = binary.Write(b, order, v)
		}
	}
	var out bytes.Buffer
	if old || both {
		out.WriteString(oldMagic + "\x00")
		put(&out, uint32(len(entries)))
		for _, e := range entries {
			if both { // its offsets count from the new part's texts, as glibc writes them
				put(&out, e.flags, e.name, e.path)
				continue
			}
			put(&out, e.flags, e.name, e.path)
		}
		if old && !both {
			out.Write(texts.Bytes())
			return out.Bytes()
		}
		for out.Len()%8 != 0 {
			out.WriteByte(0)
		}
	}
	base := uint32(newHeader + newEntry*len(entries))
	out.WriteString(newMagic)
	put(&out, uint32(len(entries)), uint32(texts.Len()))
	endian := byte(2)
	if order == binary.BigEndian {
		endian = 3
	}
	out.Write([]byte{endian, 0, 0, 0})
	put(&out, 0, 0, 0, 0)
	for _, e := range entries {
		put(&out, e.flags, base+e.name, base+e.path, 0, 0, 0)
	}
	out.Write(texts.Bytes())
	return out.Bytes()
}

func all(string) bool { return true }

func TestLoaderCacheForms(t *testing.T) {
	t.Parallel()
	list := []cacheEntry{
		{"libcudart.so.13", "/usr/local/cuda/lib64/libcudart.so.13", flagAArch64},
		{"libcudart.so.12", "/opt/cuda12/libcudart.so.12", flagAArch64},
		{"libcudart.so.11", "/usr/lib/i386/libcudart.so.11", elfLibc6},
		{"libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6", flagAArch64},
	}
	cudart := func(s string) bool { return strings.HasPrefix(s, "libcudart") }
	want := []library{{"libcudart.so.13", list[0].path}, {"libcudart.so.12", list[1].path}}
	for name, b := range map[string][]byte{
		"new":           cacheFile(binary.LittleEndian, false, false, list...),
		"old":           cacheFile(binary.LittleEndian, true, false, list...),
		"both":          cacheFile(binary.LittleEndian, true, true, list...),
		"big-endian":    cacheFile(binary.BigEndian, false, false, list...),
		"doubled entry": cacheFile(binary.LittleEndian, false, false, append(list, list[0])...),
	} {
		got, err := parseCache(b, "aarch64", cudart)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(library{})); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
	if got, err := parseCache(cacheFile(binary.LittleEndian, false, false, list...), "", all); len(got) != 4 || err != nil {
		t.Errorf("of no known machine: %v, %v", got, err)
	}
}

// ldconfig of this machine is the judge of what its cache says.
func TestLoaderCacheOfThisMachine(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		t.Skipf("no loader cache here: %v", err)
	}
	ldconfig := "/sbin/ldconfig"
	out, err := exec.Command(ldconfig, "-p").Output()
	if err != nil {
		t.Skipf("needs ldconfig: %v", err)
	}
	want := map[library]bool{}
	for line := range strings.Lines(string(out)) {
		name, path, ok := strings.Cut(strings.TrimSpace(line), " => ")
		name, _, found := strings.Cut(name, " (libc6")
		if ok && found {
			want[library{name, filepath.Clean(path)}] = true
		}
	}
	got, err := parseCache(b, "", all)
	if err != nil || len(want) == 0 {
		t.Fatalf("%d of %d: %v", len(got), len(want), err)
	}
	have := map[library]bool{}
	for _, l := range got {
		have[l] = true
	}
	for l := range want {
		if !have[l] {
			t.Errorf("%v is missing", l)
		}
	}
	if len(have) != len(want) {
		t.Errorf("%d entries, ldconfig has %d", len(have), len(want))
	}
}

// Whatever the file holds: no panic, no endless work, and a torn file is not taken for a
// whole one.
func TestLoaderCacheOfHostileFiles(t *testing.T) {
	t.Parallel()
	good := cacheFile(binary.LittleEndian, true, true, cacheEntry{"libcudart.so.13", "/a/libcudart.so.13", flagX8664}, cacheEntry{"libx.so", "/a/libx.so", flagX8664})
	for n := range good {
		got, err := parseCache(good[:n], "", all)
		if err == nil && n < len(good)-1 && len(got) == 2 && n < len(good)-len("/a/libx.so")-1 {
			t.Errorf("cut at %d of %d: %v without an error", n, len(good), got)
		}
	}
	change := func(at int, value uint32) []byte {
		b := bytes.Clone(cacheFile(binary.LittleEndian, false, false, cacheEntry{"libcudart.so.13", "/a/libcudart.so.13", flagX8664}))
		binary.LittleEndian.PutUint32(b[at:], value)
		return b
	}
	for name, b := range map[string][]byte{
		"entries beyond count":  change(20, 1<<31),
		"all ones":              change(20, 1<<32-1),
		"name beyond the file":  change(newHeader+4, 1<<32-1),
		"path beyond the file":  change(newHeader+8, 1<<32-1),
		"path is no path":       change(newHeader+8, 0),
		"no end":                append(cacheFile(binary.LittleEndian, false, false)[:20], bytes.Repeat([]byte{1}, 100)...),
		"old, entries too many": append([]byte(oldMagic+"\x00"), 0xff, 0xff, 0xff, 0xff),
	} {
		if got, err := parseCache(b, "", all); err == nil || len(got) > 0 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for _, b := range [][]byte{nil, []byte("glibc"), []byte(newMagic), bytes.Repeat([]byte("x"), 100)} {
		if got, err := parseCache(b, "", all); err == nil || len(got) > 0 {
			t.Errorf("%q: %v, %v", b, got, err)
		}
	}
}

func FuzzLoaderCache(f *testing.F) {
	list := []cacheEntry{{"libcudart.so.13", "/a/libcudart.so.13", flagX8664}}
	f.Add(cacheFile(binary.LittleEndian, false, false, list...))
	f.Add(cacheFile(binary.LittleEndian, true, true, list...))
	f.Add(cacheFile(binary.BigEndian, true, false, list...))
	f.Fuzz(func(t *testing.T, b []byte) {
		libs, _ := parseCache(b, "", all)
		for _, l := range libs {
			if !filepath.IsAbs(l.path) || len(l.name) > maxLibrary || len(l.path) > maxLibrary {
				t.Errorf("%+v", l)
			}
		}
	})
}

func TestRuntimesThatAProgramWouldFind(t *testing.T) {
	t.Parallel()
	const site = "home/ada/venv/lib/python3.12/site-packages/"
	cache := string(cacheFile(
		binary.LittleEndian, false, false, cacheEntry{"libcudart.so.12", "/usr/lib/libcudart.so.12", flagAArch64},
		cacheEntry{"libcudart.so.13", "/usr/local/cuda/targets/sbsa-linux/lib/libcudart.so.13", flagAArch64},
		cacheEntry{"libcudart.so.11.0", "/gone/libcudart.so.11.0", flagAArch64}, cacheEntry{"libm.so.6", "/lib/libm.so.6", flagAArch64},
	))
	files := map[string]string{
		"etc/ld.so.cache": cache, "usr/lib/libcudart.so.12": "", "usr/local/cuda/targets/sbsa-linux/lib/libcudart.so.13": "",
		site + "nvidia/cu13/lib/libcudart.so.13": "", site + "nvidia/cuda_runtime/lib/libcudart.so.12": "", site + "torch/lib/libcudart-9335f6a2.so.11.0": "",
		"opt/mine/libcudart.so.12.4.127": "", "usr/local/cuda/lib64/libcudart.so.13": "",
	}
	r := root(copyTree(t, "", files))
	got := findRuntimes(r, []string{"/" + strings.TrimSuffix(site, "/")}, "/home/ada/venv/bin/python", "/opt/mine:", "/home/ada", "aarch64")
	want := cudaRuntimes{
		loader:  map[int]string{12: "/opt/mine/libcudart.so.12.4.127", 13: "/usr/local/cuda/targets/sbsa-linux/lib/libcudart.so.13"},
		bundled: map[int]string{11: "/" + site + "torch/lib/libcudart-9335f6a2.so.11.0", 12: "/" + site + "nvidia/cuda_runtime/lib/libcudart.so.12", 13: "/" + site + "nvidia/cu13/lib/libcudart.so.13"},
		toolkit: map[int]string{13: "/usr/local/cuda/lib64/libcudart.so.13"},
		cached:  true, stale: []string{"/gone/libcudart.so.11.0"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(cudaRuntimes{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	empty := findRuntimes(root(t.TempDir()), nil, "", "", "", "aarch64")
	if empty.cached || empty.why == "" || len(empty.loader) > 0 {
		t.Errorf("no cache: %+v", empty)
	}
	fifo := t.TempDir()
	if err := os.MkdirAll(filepath.Join(fifo, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(fifo, "etc/ld.so.cache"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := findRuntimes(root(fifo), nil, "", "", "", "aarch64"); r.cached {
		t.Errorf("a FIFO was read: %+v", r)
	}
}
