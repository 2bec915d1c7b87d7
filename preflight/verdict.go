package preflight

// verdict is the runbook's rule with its one gap closed: a failure blocks; a
// warning, or a skip of something that should have been looked at, leaves
// ready-with-warnings; a check that is by its nature not made here says nothing
// against the machine. Of the host checks only a failure counts.
func verdict(findings, host []Finding) string {
	v := Ready
	for _, f := range findings {
		switch {
		case f.Status == Fail:
			return Blocked
		case f.Status == Warn, f.Status == Skip && !f.ByDesign:
			v = ReadyWithWarnings
		}
	}
	for _, f := range host {
		if f.Status == Fail {
			return Blocked
		}
	}
	return v
}

// byDesign is the finding of a check that is not made here, and why.
func byDesign(reason string) Finding {
	return Finding{Status: Skip, ByDesign: true, Detail: reason + " (by design)"}
}

// notHere is the finding of a check that concerns the Spark alone.
func notHere(f facts) Finding {
	if !f.gpuHere() {
		return byDesign("no NVIDIA GPU on this machine")
	}
	return byDesign("not a DGX Spark")
}

// inImage is the finding of a check whose subject lies inside the image that
// the command starts; the host's own Python decides nothing about it.
func inImage(f facts) (Finding, bool) {
	if f.job == nil || f.job.Container == nil {
		return Finding{}, false
	}
	c := f.job.Container
	switch {
	case c.Image == "":
		return byDesign("inside an image that the command does not name"), true
	case c.Verb == "exec":
		return byDesign("inside container " + c.Image), true
	}
	return byDesign("inside image " + c.Image), true
}
