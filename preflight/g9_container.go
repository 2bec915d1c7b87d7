package preflight

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sparkrun/internal/lazyre"
)

// container says what tells a container from a bare host.
type container struct {
	// marker is the marker file found, cgroup the matching line of
	// /proc/1/cgroup.
	marker, cgroup string
	// err is why /proc/1/cgroup could not be read.
	err error
}

// inside tells that something says that this is a container.
func (c container) inside() bool { return c.marker != "" || c.cgroup != "" }

// contained tells that the training runs in a container, this one or one that the
// command starts or goes into.
func (f facts) contained() bool { return f.container.inside() || f.clientRuns() }

// clientRuns tells that the command is a container client's.
func (f facts) clientRuns() bool { return f.job != nil && f.job.Container != nil }

var cgroupMarker = lazyre.New(`(?m)^.*(docker|containerd|kubepods).*$`)

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
// runtimes show none: it is told as unknown, never as a bare host. Versions other than
// the pinned ones are evidence; only those that are known not to work together are a
// warning.
func judgeContainer(f facts) Finding {
	found := judgePlace(f)
	if have := pinnedVersions(f); have != "" {
		found.Evidence = append(found.Evidence, have)
	}
	differ := pinDifferences(f)
	found.Evidence = append(found.Evidence, differ...)
	if bad, ok := knownBad(f); ok {
		bad.Evidence = append(found.Evidence, bad.Evidence...)
		return bad
	}
	if len(differ) > 0 && found.Line != "" && found.Status == Info {
		found.Detail += fmt.Sprintf("; %s from those seen to work on %s", counted(len(differ), "version differs", "versions differ"), f.stack.AsOf)
	}
	return found
}

// judgePlace says where the training runs: in a container, or perhaps not.
func judgePlace(f facts) Finding {
	if f.clientRuns() {
		return judgeImage(f)
	}
	c := f.container
	image := imageAround(f.shell)
	detail := "running inside a container"
	var evidence []string
	if c.inside() && image != "" {
		detail = "running inside " + image
		evidence = imageEvidence(f, image)
	}
	switch {
	case c.marker != "":
		return Finding{
			Status: Pass, Detail: detail, Evidence: append([]string{c.marker}, evidence...),
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
			Status: Pass, Detail: detail, Evidence: append([]string{"/proc/1/cgroup: " + c.cgroup}, evidence...),
			Line: "G9 PASS: running inside a container (cgroup marker present)",
		}
	}
	return Finding{
		Status: Info, Detail: "unknown: no container marker matched, which does not prove a bare host",
		Line: "G9 UNKNOWN: no container marker matched — this does not prove a bare host (cgroup v2 and some runtimes hide the marker); verify manually before assuming bare-host, prefer an NGC or Unsloth container if unsure",
	}
}

// judgeImage is the place of a command that starts a container, or goes into one.
func judgeImage(f facts) Finding {
	ref := imageRef(f)
	switch {
	case f.job.Container.Verb == "exec" && ref == "":
		return Finding{Status: Info, Detail: "running inside container " + f.job.Container.Image}
	case ref == "":
		return byDesign("inside an image that the command does not name")
	}
	found := Finding{Status: Info, Detail: "running inside " + ref, Evidence: imageEvidence(f, ref)}
	name, tag, digest := imageName(ref)
	if d := digestOf(f, name); d != "" {
		found.Evidence = append(found.Evidence, "digest "+d)
	}
	for _, i := range f.stack.Images {
		if i.Name == name && slices.Contains(i.Moving, tag) && digest == "" {
			_, found.Fix = movingTag(f)
			found.Detail += ", a tag that moves: name it by its digest"
		}
	}
	return found
}

// imageAround is the image whose container this is, as NVIDIA's images say it in their
// environment; "" for others.
func imageAround(getenv func(string) string) string {
	product, version := getenv("NVIDIA_PRODUCT_NAME"), getenv("NVIDIA_PYTORCH_VERSION")
	switch {
	case version != "":
		return "nvcr.io/nvidia/pytorch:" + version + "-py3"
	case product != "" && getenv("NVIDIA_BUILD_ID") != "":
		return "an image of NVIDIA's (" + product + ", build " + getenv("NVIDIA_BUILD_ID") + ")"
	case product != "":
		return "an image of NVIDIA's (" + product + ")"
	}
	return ""
}

// imageEvidence says what the table knows of an image.
func imageEvidence(f facts, ref string) []string {
	name, tag, _ := imageName(ref)
	for _, i := range f.stack.Images {
		if i.Name != name || tag == "" {
			continue
		}
		if note := i.Tags[tag]; note != "" {
			return []string{fmt.Sprintf("%s: %s (as of %s)", tag, note, f.stack.AsOf)}
		}
		if i.Accept != "" && strings.HasPrefix(tag, i.Accept) {
			return []string{fmt.Sprintf("%s was not looked at: versions were seen to work on %s (as of %s)", tag, f.stack.Spark.Image, f.stack.AsOf)}
		}
	}
	return nil
}

// pinnedVersions lists what would be imported of the packages that are pinned.
func pinnedVersions(f facts) string {
	var have []string
	for _, p := range f.stack.Pins {
		if v := f.python.packages[p.Name]; v != "" {
			have = append(have, p.Name+" "+v)
		}
	}
	return strings.Join(have, ", ")
}

// pinDifferences compares what would be imported with the pins, a line for each that
// differs. Packages that are not installed are no difference.
func pinDifferences(f facts) []string {
	have := f.python.packages
	if !f.spark() {
		return nil
	}
	var out []string
	for _, p := range f.stack.Pins {
		v, ok := have[p.Name]
		switch {
		case !ok:
		case p.Version != "" && !sameVersion(v, p.Version):
			out = append(out, fmt.Sprintf("%s %s; %s was seen to work on %s", p.Name, v, p.Version, f.stack.AsOf))
		case p.Image != "" && !sameRelease(v, p.Image):
			out = append(out, fmt.Sprintf("%s %s; %s has %s", p.Name, v, f.stack.Spark.Image, p.Image))
		}
	}
	return out
}

// sameRelease tells that two versions have one release number: a wheel 2.9.0+cu130 and
// the build 2.9.0a0 of an image.
func sameRelease(a, b string) bool {
	v, ok1 := parsePEP440(a)
	w, ok2 := parsePEP440(b)
	return ok1 && ok2 && v.epoch == w.epoch && slices.Equal(v.release, w.release)
}

// knownBad finds installed versions that are known not to work together.
func knownBad(f facts) (Finding, bool) {
	var what, fixes, evidence []string
	cure := make(map[string]bool)
	for _, k := range f.stack.KnownBad {
		if !matches(k.Packages, f.python.packages) || !f.spark() && (!k.Anywhere || f.job == nil) {
			continue
		}
		what = append(what, versionsOf(k.Packages, f.python.packages)+" do not work together")
		evidence = append(evidence, k.Why)
		for _, name := range k.Cure {
			cure[name] = true
		}
	}
	if len(what) == 0 {
		return Finding{}, false
	}
	fixes = f.stack.installLines(f.installs(), slices.Sorted(maps.Keys(cure))...)
	if !f.contained() {
		fixes = append(fixes, fmt.Sprintf("or all versions that were seen to work together on %s:", f.stack.AsOf))
		fixes = append(fixes, f.stack.installLines(f.installs())...)
		fixes = append(fixes, "or run in a container, such as "+f.stack.Spark.Image)
	} else if f.clientRuns() {
		fixes = append(fixes, "inside the image, before the training starts")
	}
	return Finding{
		Status: Warn, Detail: strings.Join(what, "; "), Evidence: evidence, Fix: strings.Join(fixes, "\n"),
	}, true
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
