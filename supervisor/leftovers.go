package supervisor

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sparkrun/supervisor/runlog"
)

// removeLeftovers removes the changed copies of config files and checkpoints that a run which
// died without a word has left in a folder, and returns their names, and of those that
// something else was found in where that is kept. A copy is only taken for such when its run
// is known, was of this machine and has no supervisor any more: on a shared file system
// another machine's run may be using its own. One of which the run has noted nothing stays.
func removeLeftovers(p runlog.Places, folder, host string) (removed []string, kept map[string]string) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, nil
	}
	kept = map[string]string{}
	for _, e := range entries {
		m := leftover.FindStringSubmatch(e.Name())
		if m == nil || !e.Type().IsRegular() && !e.IsDir() || runlog.Running(p, m[1]) {
			continue
		}
		dir, err := runlog.Resolve(p, m[1])
		if err != nil {
			continue
		}
		man, err := runlog.ReadManifest(dir)
		if err != nil || man.Host.Name != host {
			continue
		}
		// The supervisor may be gone and the child still there, under its holder,
		// reading the copy.
		if n := len(man.Attempts); n > 0 && !man.State.Final() {
			if _, err := os.Stat(filepath.Join(dir, runlog.AttemptsDir, strconv.Itoa(n), "exit.json")); err != nil && sameBoot(man.Host.BootID) {
				continue
			}
		}
		at := slices.IndexFunc(readMade(dir), func(m made) bool { return filepath.Base(m.Top) == e.Name() })
		if at < 0 {
			continue
		}
		switch to, err := readMade(dir)[at].remove(filepath.Join(folder, e.Name())); {
		case err != nil: // told by its name, which it keeps
		case to != "":
			kept[e.Name()] = to
		default:
			removed = append(removed, e.Name())
		}
	}
	return removed, kept
}

// sameBoot says whether the machine has not been started anew since.
func sameBoot(id string) bool { return id != "" && id == bootID() }

// bootID names the time since the machine's last start.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
