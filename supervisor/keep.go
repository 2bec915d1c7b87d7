package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sparkrun/configs"
	"sparkrun/internal/event"
	"sparkrun/internal/job"
	"sparkrun/internal/lazyre"
	"sparkrun/ladder"
	"sparkrun/ladder/trainer"
)

// An attempt that starts from nothing must not write where an earlier one has
// saved. Its output folder gets a suffix; where that cannot be done, what was
// saved is moved aside; where that cannot be done either, or it is not certain
// what was saved, there is no retry. Only what came into being during the run is
// ever moved.

// kept is what keepOutput has arranged for the next attempt.
type kept struct {
	said    []string        // sentences for the announcement
	change  *trainer.Change // another output folder, or nil
	setting job.Setting
	// moved says where that lies now which was moved aside.
	moved map[string]string
}

// keepOutput prepares the output folder of the next attempt, which starts over; always
// gives it another one even if nobody has saved in the old one yet.
func (r *run) keepOutput(a *attempt, n int, always bool) (kept, error) {
	out := r.job.Knobs[job.OutputDir]
	if out.Value == "" {
		return r.moveUnknown(a)
	}
	path, ok := r.onHost(out.Value)
	if !ok {
		return r.keepInside(a, n, out, always)
	}
	if r.userWorksIn(path) {
		return r.moveAside(a, []string{path}, false)
	}
	folders := r.outputs(a, path, out.Value)
	fresh := slices.ContainsFunc(folders, r.holdsFresh)
	lost := ""
	if !filepath.IsAbs(out.Value) || !fresh {
		lost = r.elsewhere(a, out.Value, fresh)
	}
	shared := r.sharedWith(out.Value)
	if !fresh && !always && lost == "" && shared == "" {
		return kept{}, nil
	}
	why := fmt.Sprintf("since an earlier attempt has saved in %s", out.Value)
	switch {
	case shared != "":
		why = fmt.Sprintf("since %s saves in %s too", shared, out.Value)
	case lost != "":
		why = fmt.Sprintf("since an earlier attempt may have saved in a folder %s: %s", out.Value, lost)
	case !fresh:
		why = "a folder of its own for another training method"
	}
	turns, fixed := r.turnsOutput(out)
	if c, ok := trainer.OutputSuffix(r.job, n); ok && turns {
		own := lost != "" || shared != ""
		if own {
			c.To = r.ownName(c.To, n) // nobody else's, wherever it comes to lie
		}
		free, err := r.claim(c.To, n, own)
		if err == nil {
			c.To = free
			return kept{
				said:   []string{fmt.Sprintf("it saves in %s, %s", free, why)},
				change: &c, setting: job.Setting{Value: free, Source: out.Source, Where: out.Where},
			}, nil
		}
		fixed = err.Error()
	}
	r.log.Event(event.Event{Attempt: a.n, Kind: event.Hygiene, Level: event.Info, Msg: "the output folder stays as it is: " + fixed})
	if shared != "" {
		return kept{}, r.noRetryUnless(a, fmt.Sprintf("%s saves in %s too, and this one cannot be given another folder: %s", shared, out.Value, fixed))
	}
	if lost == "" && !told(out) {
		return r.moveAside(a, folders, true)
	}
	k, err := r.moveAside(a, folders, true)
	if err != nil {
		return k, err
	}
	more, err := r.moveUnknown(a)
	k.add(more)
	if err == nil && len(k.moved) == 0 && strings.HasPrefix(lost, savingDue) {
		err = r.noRetryUnless(a, lost)
	}
	return k, err
}

// told says whether the output folder is only what the user says of a command that does
// not read it from there.
func told(out job.Setting) bool {
	return out.Source == job.FromUser && !strings.HasPrefix(out.Where, "{")
}

// turnsOutput says whether the output folder can be changed in the command, and if not,
// why.
func (r *run) turnsOutput(out job.Setting) (bool, string) {
	if told(out) && !strings.Contains(r.scriptText(), out.Where) {
		return false, fmt.Sprintf("--knob output_dir has no {output_dir} in the command, which therefore does not read it (nor %s)", out.Where)
	}
	turns, why := r.set.CanTurn(r.job, job.OutputDir)
	if turns && out.Source == job.FromScript && r.o.Shim == ladder.ShimNever {
		return false, "--shim never"
	}
	return turns, why
}

// keepInside is keepOutput for a folder inside a container only. A new container has a
// new one; in one that lives on, or in a volume, the old one is still there.
func (r *run) keepInside(a *attempt, n int, out job.Setting, always bool) (kept, error) {
	lives := r.job.Container == nil || r.job.Container.Verb != "run"
	if !a.mayHaveSaved() && !always {
		return kept{}, nil
	}
	turns, fixed := r.turnsOutput(out)
	if c, ok := trainer.OutputSuffix(r.job, n); ok && turns {
		c.To = r.ownName(c.To, n)
		return kept{
			said:   []string{fmt.Sprintf("it saves in %s, which only the container has", c.To)},
			change: &c, setting: job.Setting{Value: c.To, Source: out.Source, Where: out.Where},
		}, nil
	}
	if !lives && !r.hasVolume() {
		return kept{}, nil
	}
	return kept{}, r.noRetryUnless(a, fmt.Sprintf("attempt %d may have saved in %s, which only the container has, and the next one cannot be given another folder: %s", a.n, out.Value, fixed))
}

// hasVolume says whether the container's command names a volume of the engine's, which
// outlives the container.
func (r *run) hasVolume() bool {
	for i, w := range r.o.Argv {
		word := w
		if _, value, ok := strings.Cut(w, "="); ok && strings.HasPrefix(w, "--volume") {
			word = value
		} else if i == 0 || r.o.Argv[i-1] != "-v" && r.o.Argv[i-1] != "--volume" {
			if strings.Contains(w, "type=volume") || w == "--volumes-from" || strings.HasPrefix(w, "--volumes-from=") {
				return true
			}
			continue
		}
		if host, _, ok := strings.Cut(word, ":"); ok && host != "" && !strings.ContainsAny(host[:1], "/.~$") {
			return true
		}
	}
	return false
}

// mayHaveSaved says whether an attempt came so far that it can have saved something.
func (a *attempt) mayHaveSaved() bool {
	_, _, said := a.prints.at()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.haveStep || len(said) > 0 || a.end.Sub(a.start) > longRun
}

// savingDue begins the reason where something must have been saved and is not found.
const savingDue = "saving was due"

// elsewhere says why an attempt may have saved in another folder than the known one; ""
// where it has not. fresh says that there is something in the known one.
func (r *run) elsewhere(a *attempt, value string, fresh bool) string {
	if !a.mayHaveSaved() {
		return ""
	}
	if word := r.changesFolder(); word != "" && !filepath.IsAbs(value) {
		return fmt.Sprintf("the script may go to another folder (%s)", word)
	}
	a.mu.Lock()
	first, last := a.first.N, a.last.N
	a.mu.Unlock()
	_, _, said := a.prints.at()
	every, err := strconv.ParseInt(a.knobs[job.SaveSteps].Value, 10, 64)
	due := err == nil && every > 0 && last/every > max(first-1, a.goesOn)/every
	switch {
	case fresh:
		return ""
	case len(said) > 0:
		return fmt.Sprintf("%s, for the output names %s, and nothing is in %s", savingDue, said[0], value)
	case due:
		return fmt.Sprintf("%s every %d steps, it made %d, and nothing is in %s", savingDue, every, last, value)
	}
	return ""
}

// changes of the working folder in a script's text.
var changesDir = lazyre.New(`\bchdir\b|(?m)^\s*(@?hydra\b|import hydra\b|from hydra\b|%cd\b)|@hydra\.main`)

// changesFolder returns the word by which a script seems to go to another folder.
func (r *run) changesFolder() string {
	return strings.TrimSpace(changesDir.FindString(r.scriptText()))
}

// scriptText is the text of the command's script; "" where it is none or cannot be read.
func (r *run) scriptText() string {
	if r.job.Script == "" || r.job.Module {
		return ""
	}
	path, ok := r.onHost(r.job.Script)
	if !ok {
		return ""
	}
	b, err := configs.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

// outputs are the folders that the output folder's name may mean: that below the
// trainer's own folder, and those below every folder that a process of the attempt was
// in, as far as they exist.
func (r *run) outputs(a *attempt, path, value string) []string {
	out := []string{path}
	if filepath.IsAbs(value) || r.job.Container != nil {
		return out
	}
	cwds, _, _ := a.prints.at()
	for _, dir := range cwds {
		other := filepath.Join(dir, value)
		if info, err := os.Stat(other); err == nil && info.IsDir() && !r.userWorksIn(other) && real(other) != real(path) {
			out = append(out, other)
		}
	}
	return out
}

// noRetryUnless is the reason for no further attempt, or nil where the user allows one
// all the same.
func (r *run) noRetryUnless(a *attempt, why string) error {
	if slices.Contains(r.o.Allow, AllowRestart) {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Hygiene, Level: event.Warn, Msg: why + "; it is started over all the same (--allow restart)"})
		return nil
	}
	return fmt.Errorf("%s: no retry, so that nothing is overwritten or moved wrongly; --allow restart starts over all the same", why)
}

// ownName is a name for the output folder of attempt n that no other run has.
func (r *run) ownName(wish string, n int) string {
	suffix := fmt.Sprintf("-a%d", n)
	return fmt.Sprintf("%s-%s%s", strings.TrimSuffix(wish, suffix), r.letters(), suffix)
}

// claim makes a folder that nobody else has, so that two runs at once do not take
// the same: the one wished for, else one with the run's own letters, which own says that
// it has already.
func (r *run) claim(wish string, n int, own bool) (string, error) {
	for i := range 10 {
		name := wish
		if i > 0 && !own {
			name = r.ownName(wish, n)
		}
		if i > 1 || i > 0 && own {
			name += fmt.Sprintf("-%d", i)
		}
		path, ok := r.onHost(name)
		if !ok {
			return "", fmt.Errorf("the folder %s for attempt %d lies inside the container only", name, n)
		}
		err := os.Mkdir(path, 0o777)
		if err == nil {
			r.made.mu.Lock()
			r.claimed = append(r.claimed, path)
			r.made.mu.Unlock()
			return name, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("the folder %s for attempt %d cannot be made: %w", name, n, err)
		}
	}
	return "", fmt.Errorf("no free name for the output folder of attempt %d beside %s", n, strings.TrimSuffix(wish, fmt.Sprintf("-a%d", n)))
}

// letters are the four that end the run's ID.
func (r *run) letters() string { return r.dir.ID[len(r.dir.ID)-4:] }
