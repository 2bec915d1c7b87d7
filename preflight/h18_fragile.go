package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

type fragileSeen struct {
	// nvfp4 is where the command asks for NVFP4; "" where it does not.
	nvfp4 string
}

func lookFragile(_ context.Context, v view) fragileSeen {
	where, _ := nvfp4Asked(v)
	return fragileSeen{where}
}

// judgeFragile is H18: software that breaks more often than the rest on a Spark. That it
// is there is no fault, so that nothing here is a warning.
func judgeFragile(seen fragileSeen, f facts) Finding {
	if !f.spark() {
		return notHere(f)
	}
	var what, evidence []string
	for _, r := range f.stack.Fragile {
		why, ok := r.met(f)
		if !ok {
			continue
		}
		what = append(what, why)
		evidence = append(evidence, fmt.Sprintf("%s: %s; instead: %s (as of %s)", r.What, r.Why, r.Instead, f.stack.AsOf))
	}
	if seen.nvfp4 != "" && !f.contained() {
		what = append(what, "NVFP4 outside a container")
		evidence = append(evidence, seen.nvfp4+": training in NVFP4 works in NVIDIA's containers only; instead: bf16, or FP8")
	}
	if len(what) == 0 {
		return Finding{Status: Pass, Detail: "nothing that is known to be fragile on this machine"}
	}
	return Finding{Status: Info, Evidence: evidence, Detail: strings.Join(what, ", ") + ": more fragile than the rest on this machine"}
}

// met tells whether a rule is about what the command uses, and by what.
func (r fragileRule) met(f facts) (string, bool) {
	if r.Bare && f.contained() {
		return "", false
	}
	if f.job != nil && slices.Contains(r.Profiles, f.job.Profile) {
		return r.What, true
	}
	for _, name := range r.Packages {
		version, ok := f.python.packages[name]
		if !ok {
			continue
		}
		if v, parsed := parsePEP440(version); r.Final && (!parsed || !v.final()) {
			continue
		}
		return r.What + " " + version, true
	}
	return "", false
}
