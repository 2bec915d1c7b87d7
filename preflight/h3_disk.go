package preflight

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"sparkrun/internal/job"
)

// diskSeen is the room where the command writes.
type diskSeen struct {
	output place
	// named tells that the command says where it saves.
	named bool
	saves saves
	// cache is where a model would be downloaded to, looked at only where it has to be:
	// model is its name then.
	cache place
	model string
}

// saves is how often the command saves.
type saves struct {
	// off says why it saves no checkpoints; empty where it may.
	off string
	// count is how many checkpoints a whole run writes, limit how many the trainer keeps;
	// 0 is not known. An ended limit means one more while it writes.
	count, limit int64
	from         string
}

// most is how many checkpoints lie on the disk at once; 0 is not known.
func (s saves) most() int64 {
	switch {
	case s.limit > 0 && (s.count == 0 || s.count > s.limit):
		return s.limit + 1
	case s.count > 0:
		return s.count
	}
	return 0
}

func lookDisk(_ context.Context, v view) diskSeen {
	var seen diskSeen
	seen.output, seen.named = outputPlace(v)
	if v.job == nil {
		return seen
	}
	seen.saves = lookSaves(v)
	if name, at, ok := toDownload(v); ok {
		seen.model, seen.cache = name, lookPlace(v, at)
	}
	return seen
}

// lookSaves reads how often the command saves and how much it keeps.
func lookSaves(v view) saves {
	var s saves
	r := readAsked(v)
	first := func(name string) (setting, bool) {
		if list := r.named(name); len(list) > 0 {
			return list[0], true
		}
		return setting{}, false
	}
	if limit, ok := first("checkpoints_kept"); ok {
		if n, err := strconv.ParseInt(limit.value, 10, 64); err == nil && n > 0 && n < math.MaxInt32 {
			s.limit, s.from = n, limit.said()
		}
	}
	strategy, _ := first("save_strategy")
	switch strings.ToLower(strategy.value) {
	case "no":
		s.off = "save_strategy no (" + strategy.where + ")"
		return s
	case "epoch":
		if n, ok := knobNumber(v.job, job.Epochs); ok {
			s.count = n
		}
		return s
	}
	steps, ok := knobNumber(v.job, job.MaxSteps)
	every, ok2 := knobNumber(v.job, job.SaveSteps)
	if ok && ok2 {
		s.count = (steps-1)/every + 1
	}
	return s
}

// toDownload tells whether the command's model is a name of the hub's that is not in the
// cache, and where the cache is. Inside a container that the command starts, the cache is
// that of a mount or not known.
func toDownload(v view) (name, cache string, ok bool) {
	name = modelName(v)
	if name == "" || v.modelPath() != "" || v.job.Container != nil || strings.Count(name, "/") > 1 || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "~") {
		return "", "", false
	}
	if v.job.Knobs[job.Model].Value == "" && !strings.Contains(name, "/") {
		return "", "", false // a setting of that name may mean anything
	}
	for _, offline := range []string{"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"} {
		if x := strings.ToLower(v.getenv(offline)); x == "1" || x == "true" || x == "yes" || x == "on" {
			return "", "", false
		}
	}
	if there, err := v.root.exists(v.abs(name)); there || err != nil {
		return "", "", false
	}
	cache = hubCache(v)
	if cache == "" {
		return "", "", false
	}
	snapshots := filepath.Join(cache, "models--"+strings.ReplaceAll(name, "/", "--"), "snapshots")
	if len(v.root.names(snapshots)) > 0 {
		return "", "", false
	}
	return name, cache, true
}

// hubCache is where the hub's library keeps downloads, "" where that cannot be told.
func hubCache(v view) string {
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if dir := v.getenv(name); filepath.IsAbs(dir) {
			return dir
		}
	}
	if dir := v.getenv("HF_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "hub")
	}
	base := v.getenv("XDG_CACHE_HOME")
	if !filepath.IsAbs(base) {
		if base = v.getenv("HOME"); !filepath.IsAbs(base) {
			return ""
		}
		base = filepath.Join(base, ".cache")
	}
	return filepath.Join(base, "huggingface", "hub")
}

// judgeDisk is H3: a run that cannot write its checkpoint has lost its night. It blocks
// only where not even one checkpoint fits and its size is no guess.
func judgeDisk(seen diskSeen, f facts) Finding {
	if seen.output.hidden != "" {
		return byDesign(seen.output.hidden)
	}
	if seen.output.err != nil {
		return unreadable("the room in "+seen.output.path, seen.output.err)
	}
	t := rulesOfHost().Disk
	free := seen.output.disk.FreeBytes
	var a advice
	if !seen.output.disk.sized() {
		a.saw("%s: its file system (%s) does not tell its size", seen.output.path, orUnknown(seen.output.disk.Type))
		judgeDownload(&a, seen, f)
		return a.finding(Skip, "how much room there is in "+seen.output.at+" cannot be told: its file system has no size")
	}
	a.saw("%s: %s free of %s", seen.output.path, sizeWords(free), sizeWords(seen.output.disk.TotalBytes))
	if seen.output.at != seen.output.path {
		a.saw("it is not there yet, or a link: asked at %s", seen.output.at)
	}
	const lost = "a checkpoint that does not fit ends the run at the moment of saving, or leaves half a file"
	fix := fmt.Sprintf("df -h %s\ndelete old checkpoints there, keep fewer (save_total_limit), or save elsewhere", shellWord(seen.output.at))
	size, how, known := f.plan.checkpoint()
	calm := fmt.Sprintf("%s free where the command writes (%s)", sizeWords(free), seen.output.at)
	if f.job == nil {
		calm = fmt.Sprintf("%s free in %s", sizeWords(free), seen.output.at)
	}
	switch {
	case f.job == nil:
	case seen.saves.off != "":
		a.saw("no checkpoints: %s", seen.saves.off)
		calm += ", and no checkpoints are saved"
	case known && size > 0:
		a.saw("one checkpoint: %s (%s)", sizeWords(uint64(size)), how)
		calm = judgeCheckpoints(&a, seen, uint64(size), f.plan.weightsExact(), lost, fix, calm)
	default:
		calm += "; the size of a checkpoint is not known"
	}
	if len(a.details) == 0 && free < t.LowGiB<<30 {
		a.warn(fmt.Sprintf("only %s free in %s", sizeWords(free), seen.output.at), lost, fix)
	}
	judgeDownload(&a, seen, f)
	quiet := Pass
	if f.job == nil {
		quiet = Info
	}
	return a.finding(quiet, calm)
}

// judgeCheckpoints compares the room with what a whole run saves, and returns what to
// say where it suffices.
func judgeCheckpoints(a *advice, seen diskSeen, size uint64, exact bool, lost, fix, calm string) string {
	free := seen.output.disk.FreeBytes
	fits := free / size
	switch most := seen.saves.most(); {
	case fits == 0 && exact:
		a.fail(fmt.Sprintf("not even one checkpoint fits: it has %s, and %s has %s free", sizeWords(size), seen.output.at, sizeWords(free)), lost, fix)
	case fits == 0:
		a.warn(fmt.Sprintf("a checkpoint is reckoned at %s, and %s has %s free", sizeWords(size), seen.output.at, sizeWords(free)), lost, fix)
	case most > 0 && uint64(most) > fits:
		a.warn(fmt.Sprintf("room for %d checkpoints of %s in %s, and the run keeps up to %d", fits, sizeWords(size), seen.output.at, most), lost, fix)
	case most > 0:
		return fmt.Sprintf("%s free, room for all %d checkpoints of %s", sizeWords(free), most, sizeWords(size))
	case fits < uint64(rulesOfHost().Disk.AtLeast):
		a.warn(fmt.Sprintf("room for one checkpoint of %s in %s, and a new one is written before the last is deleted", sizeWords(size), seen.output.at), lost, fix)
	default:
		calm = fmt.Sprintf("%s free, room for %d checkpoints of %s", sizeWords(free), fits, sizeWords(size))
		if seen.saves.limit == 0 {
			calm += "; how many the run keeps is not told"
		}
	}
	if seen.saves.from != "" {
		a.saw("%s", seen.saves.from)
	}
	return calm
}

// judgeDownload looks at the room for a model that is not here yet.
func judgeDownload(a *advice, seen diskSeen, f facts) {
	if seen.model == "" {
		return
	}
	if seen.cache.err != nil {
		a.saw("the room for the model's download in %s could not be told: %v", seen.cache.path, seen.cache.err)
		return
	}
	if !seen.cache.disk.sized() {
		a.saw("the room for the model's download in %s could not be told: its file system has no size", seen.cache.path)
		return
	}
	need, from := rulesOfHost().Disk.DownloadGiB<<30, "a guess, its size is not known"
	if m := f.plan.spec.Model; f.plan.known && m.Bytes > 0 {
		need, from = uint64(m.Bytes), m.From
	} else if f.plan.known && m.Params > 0 {
		// On the hub most weights lie in 16 bits.
		need, from = 2*uint64(m.Params), "2 bytes a parameter, "+m.From
	}
	free := seen.cache.disk.FreeBytes
	a.saw("%s is not in the cache %s: about %s to download (%s), %s free", seen.model, seen.cache.path, sizeWords(need), from, sizeWords(free))
	// What is saved later takes from the same room.
	rest := uint64(0)
	if size, _, ok := f.plan.checkpoint(); ok && seen.saves.off == "" && seen.cache.same(seen.output) {
		rest = uint64(saturated(size, max(seen.saves.most(), 1)))
	}
	switch {
	case free >= need && free-need < rest && len(a.details) == 0:
		a.warn(fmt.Sprintf("%s must be downloaded, about %s, to the file system of the checkpoints, about %s: %s free", seen.model, sizeWords(need), sizeWords(rest), sizeWords(free)),
			"the download takes the checkpoints' room, and the run ends at the moment of saving",
			fmt.Sprintf("df -h %s\nHF_HOME=/another/disk moves the cache; keep fewer checkpoints (save_total_limit), or save elsewhere", shellWord(seen.cache.at)))
	case free < need:
		a.warn(fmt.Sprintf("%s must be downloaded, about %s, and %s has %s free", seen.model, sizeWords(need), seen.cache.at, sizeWords(free)),
			"the download fails when the disk is full, and takes the checkpoints' room",
			fmt.Sprintf("df -h %s\nhf cache ls shows what can be deleted with hf cache rm and hf cache prune (hf cache scan and delete before huggingface_hub 1.0); HF_HOME=/a/larger/disk moves the cache", shellWord(seen.cache.at)))
	}
}
