package checkpoint

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/lazyre"
)

const (
	// maxFiles bounds the files looked into for one checkpoint: a large model over
	// many ranks has hundreds.
	maxFiles = 5000
	// maxDepth bounds how deep a checkpoint's own folders are gone into.
	maxDepth = 4
)

// look is one look at one checkpoint: what its files say about it.
type look struct {
	wrong  string // the first thing that is wrong, as a clause
	note   string
	newest time.Time // when the newest file was written
	bytes  int64     // of its tensor files
	files  int
}

// fault keeps the first thing that is wrong.
func (l *look) fault(why string) {
	if l.wrong == "" {
		l.wrong = why
	}
}

// see takes in when a file was written.
func (l *look) see(e entry) {
	if e.info != nil && !e.dir && e.info.ModTime().After(l.newest) {
		l.newest = e.info.ModTime()
	}
}

// folder looks into every file of a folder whose format can tell, and into the
// folders below it, and returns what lies in the folder itself.
func (l *look) folder(dir string) tree { return l.descend(dir, 0) }

// tree is what a folder holds, by name.
type tree map[string]entry

// has says whether a name is there, with something in it.
func (t tree) has(name string) bool {
	e, ok := t[name]
	return ok && (e.dir || e.size() > 0)
}

// like returns the names that match a pattern.
func (t tree) like(re interface{ MatchString(string) bool }) []string {
	out := map[string]bool{}
	for n := range t {
		if re.MatchString(n) {
			out[n] = true
		}
	}
	return sortedKeys(out)
}

func (l *look) descend(dir string, depth int) tree {
	list, err := readDir(dir, nil)
	if err != nil {
		l.fault(filepath.Base(dir) + " cannot be read: " + reason(err))
		return nil
	}
	t := tree{}
	pieces := false
	for _, e := range list {
		t[e.name] = e
		if e.dir {
			continue
		}
		l.file(e)
		pieces = pieces || filepath.Ext(e.name) == ".distcp" || e.name == ".metadata"
	}
	if pieces {
		l.fault(distributed(dir, list))
	}
	l.fault(shards(dir, t))
	for _, name := range t.like(anything) {
		e := t[name]
		if e.dir && depth < maxDepth && e.name != ".cache" && (!e.link || depth == 0 && outside(dir, e.path)) {
			l.descend(e.path, depth+1)
		}
	}
	return t
}

// outside says whether a link leads away from the folder that holds it. Such a one
// is gone into once; one that leads back up would lead in circles.
func outside(dir, link string) bool {
	to, err := filepath.EvalSymlinks(link)
	if err != nil {
		return false
	}
	from, err := filepath.EvalSymlinks(dir)
	return err == nil && from != to && !strings.HasPrefix(from, strings.TrimSuffix(to, "/")+"/")
}

var anything = lazyre.New(``)

// file looks into one file, if its format can tell whether it is whole.
func (l *look) file(e entry) {
	if l.files++; l.files > maxFiles {
		l.note = fmt.Sprintf("only the first %d of its files were looked into", maxFiles)
		return
	}
	l.see(e)
	ext := strings.ToLower(filepath.Ext(e.name))
	tensors := false
	switch ext {
	case ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".distcp":
		tensors = true
	case ".json":
	default:
		return
	}
	if e.info == nil {
		l.fault(e.name + " cannot be looked at, or is a link to nowhere")
		return
	}
	if !e.info.Mode().IsRegular() {
		l.fault(e.name + " is no regular file")
		return
	}
	if e.size() == 0 {
		l.fault(e.name + " is empty")
		return
	}
	if tensors {
		l.bytes += e.size()
	}
	switch ext {
	case ".safetensors":
		l.fault(safetensors(e.path))
	case ".json":
		l.fault(jsonFile(e.path))
	case ".distcp": // with its folder
	default:
		why, note := torchFile(e.path)
		l.fault(why)
		if note != "" {
			l.note = note
		}
	}
}

// one looks into a single file outside a folder of its own. Where it is missing,
// that is the fault.
func (l *look) one(t tree, name string) bool {
	e, ok := t[name]
	if !ok {
		l.fault(name + " is missing")
		return false
	}
	before := l.wrong
	l.file(e)
	return l.wrong == before
}

// shardName matches one of several files that hold one model.
var shardName = lazyre.New(`^(.*?)[-_](\d{4,6})[-_]of[-_](\d{4,6})(\.[a-z]+)$`)

// shards returns what is missing of weights that are split over several files: by
// their index, and by the numbers in their names.
func shards(dir string, t tree) string {
	for _, index := range t.like(indexName) {
		var ix struct {
			WeightMap map[string]string `json:"weight_map"`
		}
		if err := readJSON(filepath.Join(dir, index), &ix); err != nil {
			return err.Error()
		}
		if len(ix.WeightMap) == 0 {
			return index + " lists no weights"
		}
		files := map[string]bool{}
		for _, s := range ix.WeightMap {
			files[filepath.Base(s)] = true
		}
		for _, s := range sortedKeys(files) {
			if !t.has(s) {
				return s + " is missing, which " + index + " lists"
			}
		}
	}
	for _, n := range t.like(shardName) {
		m := shardName.FindStringSubmatch(n)
		of, err := strconv.Atoi(m[3])
		if err != nil || of > maxFiles {
			continue
		}
		// Every one of a set names the whole set, so the first one is enough.
		if k, _ := strconv.Atoi(m[2]); k > 1 && t.has(numbered(n, m, 1)) {
			continue
		}
		for k := 1; k <= of; k++ {
			if want := numbered(n, m, k); !t.has(want) {
				return want + " is missing"
			}
		}
	}
	return ""
}

var indexName = lazyre.New(`\.index\.json$`)

// numbered is the name of a shard with another number.
func numbered(name string, m []string, k int) string {
	at := len(m[1]) + 1
	return name[:at] + fmt.Sprintf("%0*d", len(m[2]), k) + name[at+len(m[2]):]
}
