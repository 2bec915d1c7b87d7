package preflight

import (
	"context"
	"fmt"
	"math"

	"sparkrun/internal/job"
)

// shmSeen is /dev/shm and what the command's data loaders will put there.
type shmSeen struct {
	disk    Disk
	err     error
	loaders loaders
}

func lookShm(_ context.Context, v view) shmSeen {
	seen := shmSeen{loaders: loadersOf(v)}
	seen.disk, seen.err = v.disk("/dev/shm")
	return seen
}

// judgeShm is H5: data loader workers hand their batches over through /dev/shm, and die
// of a bus error where it is full. Without workers nobody writes there. The little that a
// container has by default is worth a word only where the batches are too large for it, or
// of a size that is not known: rows of tokens are small.
func judgeShm(seen shmSeen, f facts) Finding {
	if f.job != nil && f.job.Container != nil {
		return byDesign("the command's container has a /dev/shm of its own: see H7")
	}
	if seen.err != nil {
		return unreadable("/dev/shm", seen.err)
	}
	t := rulesOfHost().Shm
	d := seen.disk
	if !d.sized() {
		return Finding{Status: Info, Detail: "/dev/shm has no limit of its own: what lies there takes from the memory"}
	}
	var a advice
	a.saw("/dev/shm: %s free of %s", sizeWords(d.FreeBytes), sizeWords(d.TotalBytes))
	size := fmt.Sprintf("%s free in /dev/shm", sizeWords(d.FreeBytes))
	workers := seen.loaders.n
	if f.job == nil || !seen.loaders.told {
		return a.finding(Info, size+"; the number of data loader workers is not told")
	}
	a.saw("%d workers (%s)", workers, seen.loaders.where)
	if workers == 0 {
		return a.finding(Pass, size+", and no data loader workers")
	}
	need, how := shmNeed(workers, f.job)
	if need > 0 {
		a.saw("at most %s at once: %s", sizeWords(need), how)
	}
	inside := f.container.marker != "" || f.container.cgroup != ""
	fix := "num_workers 0 loads the data in the training process itself"
	if inside {
		fix = "start the container with --ipc=host, or --shm-size=16g\n" + fix
	} else {
		fix = "sudo mount -o remount,size=50% /dev/shm\nls -l /dev/shm (what ended programs left there takes room too)\n" + fix
	}
	const cost = "a worker dies of \"Bus error\" in the middle of the run and takes the training with it"
	switch {
	case need > d.FreeBytes:
		a.warn(fmt.Sprintf("%s, and %d data loader workers may need %s", size, workers, sizeWords(need)), cost, fix)
	case need == 0 && d.TotalBytes <= t.ContainerDefaultMiB<<20:
		a.warn(fmt.Sprintf("/dev/shm has %s in all, what a container gets without --ipc=host, for %d data loader workers", sizeWords(d.TotalBytes), workers), cost, fix)
	}
	return a.finding(Pass, fmt.Sprintf("%s for %d data loader workers", size, workers))
}

// shmNeed is the most that the workers hold there at once, 0 where it is not known.
func shmNeed(workers int64, j *job.Job) (bytes uint64, how string) {
	t := rulesOfHost().Shm
	rows, ok := knobNumber(j, job.MicroBatch)
	if !ok {
		return 0, ""
	}
	var row int64
	switch length, ok := knobNumber(j, job.SeqLen); {
	case j.Image:
		row, how = t.ImageMiB<<20, fmt.Sprintf("images of %d MiB", t.ImageMiB)
	case ok:
		row, how = saturated(length, t.BytesPerToken), fmt.Sprintf("rows of %d tokens", length)
	default:
		return 0, ""
	}
	procs := int64(max(j.Procs, 1))
	n := saturated(saturated(saturated(workers, procs), t.Prefetch), saturated(rows, row))
	return uint64(n), fmt.Sprintf("%d workers x %d batches of %d %s", saturated(workers, procs), t.Prefetch, rows, how)
}

// saturated multiplies what is not negative and stops at the largest number.
func saturated(a, b int64) int64 {
	if a > 0 && b > math.MaxInt64/a {
		return math.MaxInt64
	}
	return a * b
}
