package job

import (
	"slices"
	"strings"
)

// LookupEnv is a variable as the trainer gets it from the command itself. told is false
// where the command leaves it as it is around it; set is false for one that the command
// takes away. Safe on nil.
func (j *Job) LookupEnv(name string) (value string, set, told bool) {
	if j == nil {
		return "", false, false
	}
	if value, set = j.Env[name]; set {
		return value, true, true
	}
	return "", false, j.EnvCleared || slices.Contains(j.EnvUnset, name)
}

// Getenv is the environment that the trainer sees, from the one around the command. What
// an image sets of its own is not in it. Safe on nil, which changes nothing.
func (j *Job) Getenv(around func(string) string) func(string) string {
	return func(name string) string {
		if value, _, told := j.LookupEnv(name); told {
			return value
		}
		return around(name)
	}
}

// Environ is Getenv for a whole environment of NAME=VALUE words, for a process that is to
// stand where the trainer will. It makes a new list.
func (j *Job) Environ(around []string) []string {
	var out []string
	for _, kv := range around {
		name, _, _ := strings.Cut(kv, "=")
		if _, _, told := j.LookupEnv(name); !told {
			out = append(out, kv)
		}
	}
	if j == nil {
		return out
	}
	names := make([]string, 0, len(j.Env))
	for name := range j.Env {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		out = append(out, name+"="+j.Env[name])
	}
	return out
}
