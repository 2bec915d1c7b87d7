package preflight

import (
	"strconv"
	"strings"

	"sparkrun/internal/job"
)

// This file says what several checks want to know of the command, each in one place: a
// setting that a profile knows is a knob of the job, and the same setting of a command that
// no profile fits is found by its name.

// loaders is how many processes load data for one training process.
type loaders struct {
	n int64
	// where says where that stands; told is false where nothing says it.
	where string
	told  bool
}

// loadersOf reads how many data loader workers the command asks for.
func loadersOf(v view) loaders {
	if v.job == nil {
		return loaders{}
	}
	if s, ok := v.job.Knobs[job.NumWorkers]; ok {
		if n, ok := wholeNumber(s.Value); ok {
			return loaders{n, s.Where, true}
		}
	}
	for _, s := range asked(v, "num_workers") {
		if n, ok := wholeNumber(s.value); ok && !s.computed {
			return loaders{n, s.where, true}
		}
	}
	return loaders{}
}

// wholeNumber reads a number that is not below zero.
func wholeNumber(text string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return n, err == nil && n >= 0
}

// outputDir is the folder that the command says it saves to, as it is written there; ""
// where it does not say, or not in a way that is known.
func outputDir(v view) string {
	if v.job == nil {
		return ""
	}
	if s := v.job.Knobs[job.OutputDir]; s.Value != "" {
		return s.Value
	}
	if v.job.Unclear[job.OutputDir] != "" {
		return ""
	}
	for _, s := range asked(v, "output") {
		if !s.computed && !s.off() {
			return s.value
		}
	}
	return ""
}

// modelName is the base model as the command names it: a folder, or a name of the hub; ""
// where that is not told.
func modelName(v view) string {
	if v.job == nil {
		return ""
	}
	if s := v.job.Knobs[job.Model]; s.Value != "" {
		return s.Value
	}
	for _, s := range asked(v, "model") {
		if !s.computed && !s.off() && !strings.ContainsAny(s.value, " \t\n{}") {
			return s.value
		}
	}
	return ""
}
