package preflight

// judgeContention is G6: who else holds a share of the one memory pool.
func judgeContention(facts) Finding {
	return byDesign("not in this version")
}
