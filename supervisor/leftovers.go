package supervisor

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"sparkrun/supervisor/runlog"
)

// leftover is the name of a changed copy of a config file, with its run's ID.
var leftover = regexp.MustCompile(`^\.sparkrun-(\d{8}-\d{6}-[a-z0-9-]+-[0-9a-f]{4})-a\d+-`)

// removeLeftovers removes the changed copies of config files that a run which
// died without a word has left in a folder, and returns their names. A copy is
// only taken for such when its run is known, was of this machine and has no
// supervisor any more: on a shared file system another machine's run may be using
// its own.
func removeLeftovers(p runlog.Places, folder, host string) []string {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	var removed []string
	for _, e := range entries {
		m := leftover.FindStringSubmatch(e.Name())
		if m == nil || !e.Type().IsRegular() || runlog.Running(p, m[1]) {
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
		if os.Remove(filepath.Join(folder, e.Name())) == nil {
			removed = append(removed, e.Name())
		}
	}
	return removed
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
