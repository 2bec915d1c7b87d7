package preflight

// judgeBandwidth is G5: what a memory-bound plan can count on. The measurement
// needs an idle machine and about 12 GB, so it is never made unasked.
func judgeBandwidth(facts) Finding {
	return byDesign("not in this version")
}
