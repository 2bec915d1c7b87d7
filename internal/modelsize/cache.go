package modelsize

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// cached returns the folder of a model's newest snapshot in the Hugging Face cache, ""
// where there is none or where the name is not one of the hub's.
func (p Place) cached(name string) string {
	if !hubName(name) {
		return ""
	}
	folder := "models--" + strings.ReplaceAll(name, "/", "--")
	for _, cache := range p.caches() {
		if s := p.snapshot(filepath.Join(cache, folder)); s != "" {
			return s
		}
	}
	return ""
}

// hubName says whether a name can be one of the hub: NAME or OWNER/NAME.
func hubName(name string) bool {
	if len(name) > 200 || strings.Count(name, "/") > 1 || strings.Contains(name, "..") || strings.Contains(name, "--") {
		return false
	}
	for _, part := range strings.Split(name, "/") {
		if part == "" || part[0] == '.' || part[0] == '~' {
			return false
		}
		for _, c := range part {
			ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", c)
			if !ok {
				return false
			}
		}
	}
	return true
}

// caches are the folders that huggingface_hub would look into: the first that is named
// is the only one.
func (p Place) caches() []string {
	get := p.Getenv
	if get == nil {
		get = os.Getenv
	}
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if dir := get(name); dir != "" {
			return []string{p.abs(dir, get)}
		}
	}
	if dir := get("HF_HOME"); dir != "" {
		return []string{filepath.Join(p.abs(dir, get), "hub")}
	}
	var dirs []string
	if dir := get("XDG_CACHE_HOME"); dir != "" {
		return []string{filepath.Join(p.abs(dir, get), "huggingface", "hub")}
	}
	if home := get("HOME"); home != "" {
		dirs = append(dirs, filepath.Join(home, ".cache", "huggingface", "hub"))
	}
	return dirs
}

// abs makes a folder of the environment absolute.
func (p Place) abs(dir string, get func(string) string) string {
	if dir == "~" || strings.HasPrefix(dir, "~/") {
		dir = get("HOME") + dir[1:]
	}
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(p.Dir, dir)
}

// snapshot returns the snapshot of a cached model that refs/main names, or the newest
// one where it names none.
func (p Place) snapshot(model string) string {
	snapshots := filepath.Join(model, "snapshots")
	if ref, err := p.readSmall(filepath.Join(model, "refs", "main"), 1<<10); err == nil {
		commit := strings.TrimSpace(string(ref))
		if commit != "" && filepath.Base(commit) == commit && commit[0] != '.' {
			dir := filepath.Join(snapshots, commit)
			if info, err := p.Root.Stat(dir); err == nil && info.IsDir() {
				return dir
			}
		}
	}
	entries, err := p.Root.ReadDir(snapshots)
	if err != nil {
		return ""
	}
	var newest string
	var when time.Time
	for _, e := range entries {
		info, err := p.Root.Stat(filepath.Join(snapshots, e.Name()))
		if err == nil && info.IsDir() && (newest == "" || info.ModTime().After(when)) {
			newest, when = filepath.Join(snapshots, e.Name()), info.ModTime()
		}
	}
	return newest
}

// quantisedSuffixes are what ready-made 4-bit copies of a model are called.
var quantisedSuffixes = []string{"-unsloth-bnb-4bit", "-bnb-4bit"}

// sibling looks for the 4-bit copy of a model that some trainers load in its place,
// and for the model of a 4-bit copy: both have the same parameters.
func (p Place) sibling(name string) (Size, bool) {
	var others []string
	for _, suffix := range quantisedSuffixes {
		if base, ok := strings.CutSuffix(name, suffix); ok {
			others = append(others, base)
		} else {
			others = append(others, name+suffix)
		}
	}
	for _, other := range others {
		folder := p.cached(other)
		if folder == "" {
			continue
		}
		s, base, err := p.readFolder(folder)
		if err != nil || base != "" || s.Params == 0 {
			continue
		}
		_, active := sizeInName(name)
		return Size{
			Params: s.Params, Exact: s.Exact, Experts: s.Experts, ActiveExperts: s.ActiveExperts, ActiveParams: active,
			Quantised: quantisedInName(name), From: s.From + " as " + other, Arch: s.Arch, Parts: s.Parts, Notes: s.Notes,
		}, true
	}
	return Size{}, false
}
