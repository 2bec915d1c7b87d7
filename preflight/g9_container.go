package preflight

import (
	"errors"
	"fmt"
	"regexp"
)

// container says what tells a container from a bare host.
type container struct {
	// marker is the marker file found, cgroup the matching line of
	// /proc/1/cgroup.
	marker, cgroup string
	// err is why /proc/1/cgroup could not be read.
	err error
}

var cgroupMarker = regexp.MustCompile(`(?m)^.*(docker|containerd|kubepods).*$`)

func readContainer(r root) container {
	for _, path := range []string{"/.dockerenv", "/run/.containerenv"} {
		if there, _ := r.exists(path); there {
			return container{marker: path}
		}
	}
	b, err := r.read("/proc/1/cgroup")
	if err != nil {
		return container{err: err}
	}
	return container{cgroup: string(cgroupMarker.Find(b))}
}

// judgeContainer is G9: a bare pip environment drifts, a pinned container does
// not. That no marker is found proves nothing, since cgroup v2 and some
// runtimes show none: it is told as unknown, never as a bare host.
func judgeContainer(f facts) Finding {
	if found, inside := inImage(f); inside {
		return found
	}
	c := f.container
	switch {
	case c.marker != "":
		return Finding{
			Status: Pass, Detail: "running inside a container", Evidence: []string{c.marker},
			Line: "G9 PASS: running inside a container (Docker/Podman marker file present)",
		}
	case errors.Is(c.err, errLate):
		return Finding{Status: Skip, Detail: fmt.Sprintf("no answer within %g s", f.limit.Seconds())}
	case c.err != nil:
		found := Finding{Status: Skip, Detail: "/proc/1/cgroup not readable", Evidence: []string{c.err.Error()}, Line: "G9 SKIP: /proc/1/cgroup not readable"}
		if !f.spark() {
			found.Detail, found.ByDesign = found.Detail+"; this is no DGX Spark (by design)", true
		}
		return found
	case c.cgroup != "":
		return Finding{
			Status: Pass, Detail: "running inside a container", Evidence: []string{"/proc/1/cgroup: " + c.cgroup},
			Line: "G9 PASS: running inside a container (cgroup marker present)",
		}
	}
	return Finding{
		Status: Info, Detail: "unknown: no container marker matched, which does not prove a bare host",
		Line: "G9 UNKNOWN: no container marker matched — this does not prove a bare host (cgroup v2 and some runtimes hide the marker); verify manually before assuming bare-host, prefer an NGC or Unsloth container if unsure",
	}
}
