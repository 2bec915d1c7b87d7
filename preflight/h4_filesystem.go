package preflight

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// fileSystemSeen are the file systems that the command writes to and loads from.
type fileSystemSeen struct {
	output place
	// weights is the base model's folder where it lies on this machine; its path is
	// empty otherwise.
	weights place
}

func lookFileSystem(_ context.Context, v view) fileSystemSeen {
	var seen fileSystemSeen
	seen.output, _ = outputPlace(v)
	if path := modelFolder(v); path != "" {
		seen.weights = lookPlace(v, path)
	}
	return seen
}

// modelFolder is the folder that the base model is loaded from, "" where that is not
// known or not on this machine.
func modelFolder(v view) string {
	if v.modelPath() != "" {
		return v.modelPath()
	}
	if v.job == nil || v.job.Container != nil {
		return ""
	}
	name := modelName(v)
	if name == "" {
		return ""
	}
	if path := v.abs(name); filepath.IsAbs(path) {
		if there, err := v.root.exists(path); there || err != nil {
			return path
		}
	}
	cache := hubCache(v)
	if cache == "" || strings.Count(name, "/") > 1 || strings.HasPrefix(name, ".") {
		return ""
	}
	if path := filepath.Join(cache, "models--"+strings.ReplaceAll(name, "/", "--")); len(v.root.names(path)) > 0 {
		return path
	}
	return ""
}

// judgeFileSystem is H4: some file systems break or slow what a training does all night,
// and one that has no inodes left is full with gigabytes free.
func judgeFileSystem(seen fileSystemSeen, f facts) Finding {
	t := rulesOfHost()
	out := seen.output
	var a advice
	quiet, calm := Pass, ""
	switch {
	case out.hidden != "":
		a.saw("%s", out.hidden)
	case out.err != nil:
		a.saw("the file system of %s could not be told: %v", out.path, out.err)
	default:
		a.saw("%s: %s", out.path, diskWords(out.disk))
		calm = fmt.Sprintf("%s for %s", kindWords(out.disk.Type), out.at)
		if out.disk.Type == "" {
			quiet = Info
		}
		judgeOutputKind(&a, out, f)
		judgeInodes(&a, out)
	}
	if w := seen.weights; w.path != "" {
		if w.err != nil {
			a.saw("the file system of %s could not be told: %v", w.path, w.err)
		} else {
			a.saw("%s: %s", w.path, diskWords(w.disk))
			if calm == "" {
				calm = fmt.Sprintf("%s for the weights in %s", kindWords(w.disk.Type), w.at)
			}
			switch c, ok := t.fileSystem(w.disk.Type); {
			case ok && c.WeightsHint:
				a.warn(fmt.Sprintf("the weights in %s are on %s", w.path, w.disk.Type), c.Weights, c.Fix)
			case ok:
				a.saw("weights on %s: %s", w.disk.Type, c.Weights)
			}
		}
	}
	switch {
	case out.hidden != "" && (seen.weights.path == "" || seen.weights.err != nil):
		return byDesign(out.hidden)
	case calm == "":
		return unreadable("the file system of "+out.path, out.err)
	}
	return a.finding(quiet, calm)
}

// judgeOutputKind judges what the command saves to.
func judgeOutputKind(a *advice, out place, f facts) {
	if out.disk.ReadOnly {
		a.warn(fmt.Sprintf("%s is on a read-only file system", out.path),
			"the first checkpoint ends the run, and a disk that went read-only by itself has an error",
			fmt.Sprintf("findmnt -T %s\nsudo dmesg | grep -iE 'remount|I/O error'", shellWord(out.at)))
	}
	c, special := rulesOfHost().fileSystem(out.disk.Type)
	switch {
	case !special:
		return
	case f.job == nil:
		// Nobody said that anything is saved here.
		a.saw("on %s: %s", out.disk.Type, c.Checkpoints)
		return
	case c.Class == "layered" && f.container.marker == "" && f.container.cgroup == "":
		// The root of a live system, or of a machine that boots from the network.
		a.saw("on %s, outside any container", out.disk.Type)
		return
	}
	a.warn(fmt.Sprintf("what is saved to %s lands on %s", out.path, out.disk.Type), c.Checkpoints, c.Fix)
}

func judgeInodes(a *advice, out place) {
	d := out.disk
	if d.Inodes == 0 || d.FreeInodes > d.Inodes {
		return // no fixed number
	}
	t := rulesOfHost().Inodes
	share := 100 * float64(d.FreeInodes) / float64(d.Inodes)
	if d.FreeInodes >= t.Low && share >= t.LowPercent {
		return
	}
	a.warn(fmt.Sprintf("%s has room for %d more files (%.1f %% of its inodes)", out.at, d.FreeInodes, share),
		"writing fails with \"no space left on device\" although bytes are free",
		fmt.Sprintf("df -i %[1]s\nsudo du --inodes -xd2 %[1]s | sort -n | tail", shellWord(out.at)))
}

func kindWords(kind string) string {
	if kind == "" {
		return "a file system of unknown kind"
	}
	return kind
}

func diskWords(d Disk) string {
	s := kindWords(d.Type)
	if d.ReadOnly {
		s += ", read-only"
	}
	if d.Inodes > 0 {
		s += fmt.Sprintf(", %d of %d inodes free", d.FreeInodes, d.Inodes)
	}
	return s
}
