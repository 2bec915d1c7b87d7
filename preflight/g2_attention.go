package preflight

// judgeAttention is G2: whether Unsloth would pick flash-attn although SDPA was
// asked for.
func judgeAttention(f facts) Finding {
	if found, inside := inImage(f); inside {
		return found
	}
	return byDesign("not in this version")
}
