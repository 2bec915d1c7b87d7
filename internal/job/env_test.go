package job

import (
	"slices"
	"testing"
)

func TestEnvironmentOfTheTrainer(t *testing.T) {
	t.Parallel()
	around := []string{"HOME=/home/ada", "HF_HOME=/old", "A=1"}
	get := func(name string) string {
		for _, kv := range around {
			if len(kv) > len(name) && kv[:len(name)+1] == name+"=" {
				return kv[len(name)+1:]
			}
		}
		return ""
	}
	var none *Job
	if none.Getenv(get)("HF_HOME") != "/old" || !slices.Equal(none.Environ(around), around) {
		t.Error("no command changes nothing")
	}
	j := &Job{Env: map[string]string{"HF_HOME": "/new", "CUDA_VISIBLE_DEVICES": ""}, EnvUnset: []string{"A"}}
	for name, want := range map[string]string{"HF_HOME": "/new", "HOME": "/home/ada", "A": "", "CUDA_VISIBLE_DEVICES": ""} {
		if got := j.Getenv(get)(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := j.Environ(around); !slices.Equal(got, []string{"HOME=/home/ada", "CUDA_VISIBLE_DEVICES=", "HF_HOME=/new"}) {
		t.Errorf("environ %q", got)
	}
	if value, set, told := j.LookupEnv("CUDA_VISIBLE_DEVICES"); value != "" || !set || !told {
		t.Error("set but empty is not the same as not set")
	}
	j.EnvCleared = true
	if got := j.Getenv(get)("HOME"); got != "" {
		t.Errorf("HOME got through: %q", got)
	}
}
