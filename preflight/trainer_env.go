package preflight

import (
	"path/filepath"
	"strings"

	"sparkrun/internal/job"
)

// environment is what the trainer sees of the variables around the command: with what the
// command itself sets and takes away. Where it starts a container, whose environment is
// another one (trainerEnv), it is what is around.
func environment(j *job.Job, around func(string) string) func(string) string {
	if j != nil && j.Container != nil {
		return around
	}
	return j.Getenv(around)
}

// shell is the environment around the command: what concerns this machine's programs and
// sparkrun itself is read from there, whatever the command sets for its trainer.
func (v view) shell(name string) string { return around(v.in, v.getenv)(name) }

func (f facts) shell(name string) string { return around(f.in, f.getenv)(name) }

func around(in Input, getenv func(string) string) func(string) string {
	if in.Getenv != nil {
		return in.Getenv
	}
	return getenv // nobody gave one: it is empty
}

// trainer is a variable as the trainer gets it; inside a container that the command starts
// only what the command sets is known here.
func (v view) trainer(name string) string {
	if v.job != nil && v.job.Container != nil {
		value, _, _ := v.job.LookupEnv(name)
		return value
	}
	return v.getenv(name)
}

// trainerEnv reads the environment of the trainer: the command's own, or what its
// container is given by the client and by the image.
type trainerEnv struct {
	f     facts
	typed map[string]string
	// host: the client passes its own environment on.
	host bool
}

func trainerEnvOf(f facts, c clientFlags) trainerEnv {
	return trainerEnv{f: f, typed: c.typed, host: c.envHost}
}

// Where a variable is set, in words.
const (
	inCommand = "the command"
	inShell   = "the environment"
)

// get returns a variable, and where it is set, in words. known is false where it is not
// among what was seen and the image was not asked.
func (e trainerEnv) get(name string) (value, where string, known bool) {
	own, set, told := e.f.job.LookupEnv(name)
	if e.f.job == nil || e.f.job.Container == nil {
		if told {
			return own, inCommand, true
		}
		return e.f.getenv(name), inShell, true
	}
	if v, ok := e.typed[name]; ok && (!set || v == own) {
		return v, "the flags of " + e.f.job.Container.Engine, true
	}
	if set {
		return own, inCommand, true
	}
	if e.host {
		if v := e.f.shell(name); v != "" {
			return v, inShell, true
		}
	}
	if !e.f.image.known {
		return "", "", false
	}
	return e.f.image.facts.Env[name], "the image", true
}

// readEnv collects the variables that the trainer is given.
func (c *clientFlags) readEnv(v view) {
	c.typed = make(map[string]string)
	set := func(entry string) {
		name, value, ok := strings.Cut(entry, "=")
		if !ok {
			// A bare name passes on what the client itself has.
			if value = v.shell(name); value == "" {
				return
			}
		}
		c.typed[name] = value
	}
	for _, file := range c.all("--env-file") {
		if !filepath.IsAbs(file) {
			file = filepath.Join(v.job.Dir, file)
		}
		text, err := v.root.read(file)
		if err != nil {
			c.envUnread = "the file of --env-file cannot be read: " + err.Error()
			continue
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if line != "" && line[0] != '#' {
				set(line)
			}
		}
	}
	for _, entry := range c.all("-e", "--env") {
		set(entry)
	}
	c.envHost = c.on("--env-host")
}
