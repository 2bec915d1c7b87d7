package modelsize

import (
	"path"
	"strconv"
	"strings"

	"sparkrun/internal/lazyre"
)

var (
	// 8B, 0.5B, 125m, 8x7B; with what stands around it in a name.
	sizeWord = lazyre.New(`(?i)(?:^|[-_.:/ ])(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,3})?)([bm])(?:$|[-_.:/ ])`)
	// A3B: parameters that a token passes.
	activeWord = lazyre.New(`(?i)(?:^|[-_.:/ ])a(\d{1,4}(?:\.\d{1,3})?)b(?:$|[-_.:/ ])`)
	// 17B-16E: experts, and then the number before them counts what a token passes.
	expertsWord = lazyre.New(`(?i)\db-\d+e(?:$|[-_.:/ ])`)
)

// sizeInName reads a size that the name of a model has, as in Llama-3.1-8B or
// Qwen3-30B-A3B; 0 where it has none.
func sizeInName(name string) (params, active int64) {
	base := path.Base(strings.TrimRight(strings.ReplaceAll(name, "\\", "/"), "/"))
	if m := activeWord.FindStringSubmatch(base); m != nil {
		active = billions(m[1], "b", "")
	}
	if expertsWord.MatchString(base) {
		return 0, active
	}
	if m := sizeWord.FindStringSubmatch(base); m != nil {
		params = billions(m[2], m[3], m[1])
	}
	return params, active
}

func billions(number, unit, times string) int64 {
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0
	}
	if strings.EqualFold(unit, "b") {
		v *= 1000
	}
	if n, err := strconv.Atoi(times); err == nil {
		v *= float64(n) // more than there is: the experts share attention
	}
	return int64(v*1e6 + 0.5)
}

// quantisedInName reads the format that a name tells.
func quantisedInName(name string) string {
	lower := strings.ToLower(name)
	for _, f := range []struct{ word, format string }{
		{"bnb-4bit", "bnb-4bit"},
		{"bnb-8bit", "bnb-8bit"},
		{"nvfp4", "nvfp4"},
		{"mxfp4", "mxfp4"},
		{"gptq", "gptq"},
		{"awq", "awq"},
		{"fp8", "fp8"},
		{"gguf", "gguf"},
	} {
		if strings.Contains(lower, f.word) {
			return f.format
		}
	}
	return ""
}
