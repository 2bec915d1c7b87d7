package trainer

import (
	"fmt"
	"path/filepath"
	"strings"

	"sparkrun/internal/job"
	"sparkrun/ladder/trainer/checkpoint"
	"sparkrun/ladder/trainer/place"
	"sparkrun/ladder/trainer/progress"
)

// NewProgress returns what reads the output of an attempt of the job: one for each
// attempt, with the knobs that are in force in it.
func (s *Set) NewProgress(j job.Job) *progress.Progress {
	o := progress.Options{
		Total:        number(j, job.MaxSteps),
		Epochs:       number(j, job.Epochs),
		Accumulation: number(j, job.Accumulation),
	}
	if p := s.profile(j.Profile); p != nil {
		o.Set, o.Trusted = p.Progress, true
		if c, err := s.inJob(j, userKnobs(j.Knobs), nil, nil); err == nil && c.prof != nil && c.prof.Name == p.Name {
			if o.Accumulation == 0 {
				o.Accumulation = derived(j, c.world)
			}
			o.PerLog = c.perLog()
		}
	}
	return progress.New(o)
}

// PerLog is how many steps lie between two logged losses, 0 where the command does not
// tell.
func (s *Set) PerLog(j job.Job) int64 {
	c, err := s.inJob(j, userKnobs(j.Knobs), nil, nil)
	if err != nil || c.prof == nil || c.prof.Name != j.Profile {
		return 0
	}
	return c.perLog()
}

func (c *command) perLog() int64 {
	f, ok, _ := c.knobs().get("logging_steps")
	if !ok {
		return 0
	}
	n, err := parseInt(strings.TrimSuffix(f.value, ".0"))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// derived is the accumulation that follows from a fixed effective batch, 0 where that
// is not known.
func derived(j job.Job, world int64) int64 {
	global, micro := number(j, job.GlobalBatch), number(j, job.MicroBatch)
	if j.Family != "global" || global == 0 || micro == 0 || world < 1 || global%(micro*world) != 0 {
		return 0
	}
	return global / (micro * world)
}

// number is a knob's value as a whole number of at least 1, 0 if it is none.
func number(j job.Job, k job.Knob) int64 {
	n, err := parseInt(strings.TrimSuffix(j.Knobs[k].Value, ".0"))
	if err != nil || n < 1 {
		return 0
	}
	return n
}

// fill writes a path of the profile with the job's settings in its placeholders. It
// is false where one is not known.
func (c *command) fillPath(j job.Job, k *knobs, text string) (string, bool) {
	ok := true
	out := placeholder.ReplaceAllStringFunc(text, func(m string) string {
		name := m[1 : len(m)-1]
		if set, known := j.Knobs[job.Knob(name)]; known && set.Value != "" {
			return set.Value
		}
		if f, known, _ := k.get(name); known && f.value != "" {
			return f.value
		}
		if name == string(job.OutputDir) && c.prof.Output.Default != "" {
			return c.prof.Output.Default
		}
		ok = false
		return ""
	})
	return out, ok
}

// output inspects the job's command for its folders.
func (s *Set) output(j job.Job) (*command, *knobs) {
	c, err := s.inJob(j, userKnobs(j.Knobs), nil, nil)
	if err != nil || c.prof == nil || c.prof.Name != j.Profile {
		return nil, nil
	}
	return c, c.knobs()
}

// OutputFolder returns the folder that the job's checkpoints lie in, absolute on this
// machine; empty where it is not known or inside a container only.
func (s *Set) OutputFolder(j job.Job) string {
	c, k := s.output(j)
	if c == nil {
		// Not a trainer we know, but the folder may be one the user or the shim told.
		set := j.Knobs[job.OutputDir]
		if set.Value == "" || j.Container != nil {
			return ""
		}
		if filepath.IsAbs(set.Value) {
			return set.Value
		}
		if j.TrainerDir != "" {
			return filepath.Join(j.TrainerDir, set.Value)
		}
		return ""
	}
	host, _ := c.outputFolder(j, k)
	return host
}

// outputFolder is the folder of the checkpoints on this machine.
func (c *command) outputFolder(j job.Job, k *knobs) (host string, ok bool) {
	folder := c.prof.Output.Folder
	if folder == "" {
		folder = "{output_dir}"
	}
	inner, ok := c.fillPath(j, k, folder)
	if !ok {
		return "", false
	}
	return c.place.HostPath(inner)
}

// Checkpoints returns what lies in the output folder of the job, oldest step first:
// in outputDir, or where that is empty in OutputFolder. Folders that each start of the
// trainer makes for itself are looked into.
func (s *Set) Checkpoints(j job.Job, outputDir string) []checkpoint.Checkpoint {
	p := s.profile(j.Profile)
	layout := checkpoint.HF // what a script of unknown make most likely saves
	if p != nil {
		layout = p.Checkpoints
	}
	if outputDir == "" {
		outputDir = s.OutputFolder(j)
	}
	if outputDir == "" {
		return nil
	}
	found := checkpoint.List(layout, outputDir)
	if p != nil && p.Output.Versions != "" {
		folders, err := filepath.Glob(filepath.Join(globEscape(outputDir), p.Output.Versions))
		if err != nil {
			return found
		}
		for _, dir := range folders {
			found = append(found, checkpoint.List(layout, dir)...)
		}
	}
	return found
}

// globEscape makes a path match itself only.
func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// TrainerLogs returns the log files that the trainer itself writes, absolute on this
// machine; a path may be a glob. Those that lie inside a container only are left out.
func (s *Set) TrainerLogs(j job.Job) []string {
	c, k := s.output(j)
	if c == nil {
		return nil
	}
	var logs []string
	for _, l := range c.prof.Logs {
		inner, ok := c.fillPath(j, k, l.Path)
		if !ok {
			continue
		}
		if host, ok := c.place.HostPath(inner); ok {
			logs = append(logs, host)
		}
	}
	return logs
}

// Inside returns a command of the job, as typed or rewritten, with variables (NAME=VALUE)
// that reach the trainer inside its container, which inherits nothing. What the user
// gives there himself stays. Outside of containers, and where it is not certain what the
// command starts, it is the command as it is.
func (s *Set) Inside(j job.Job, argv, env []string) ([]string, error) {
	if j.Container == nil || j.Unsure != "" || len(env) == 0 {
		return argv, nil
	}
	p := s.places.FindUnder(s.root, argv, j.Dir, nil)
	if p.Container == nil || p.Unsure != "" {
		return argv, nil
	}
	out, _, err := p.Command(p.Words, env, nil)
	if err != nil {
		return argv, fmt.Errorf("variables for the container: %w", err)
	}
	return out, nil
}

// Mounts returns the folders of this machine that the job's container sees; nothing
// outside containers.
func (s *Set) Mounts(j job.Job) []place.Mount {
	c, err := s.inJob(j, userKnobs(j.Knobs), nil, nil)
	if err != nil || c.place.Container == nil {
		return nil
	}
	return c.place.Mounts
}

// HostPath turns a path as the job's trainer names it into one of this machine. It is
// not ok where the path lies inside a container only.
func (s *Set) HostPath(j job.Job, inner string) (string, bool) {
	c, err := s.inJob(j, userKnobs(j.Knobs), nil, nil)
	if err != nil {
		return "", false
	}
	return c.place.HostPath(inner)
}
