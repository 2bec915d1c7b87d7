package trainer

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sparkrun/internal/edit"
	"sparkrun/internal/job"
	"sparkrun/internal/treefs"
	"sparkrun/ladder/trainer/place"
	"sparkrun/ladder/trainer/shim"
)

// Half is the value of a Change whose knob is not known: the shim halves what it
// sees.
const Half = "half"

// Modes of the shim, for Request.Shim.
const (
	ShimAuto   = "auto"
	ShimAlways = "always"
	ShimNever  = "never"
)

// shimInside is where a container sees the attempt's folder of the shim.
const shimInside = "/.sparkrun"

// Request is what Rewrite is asked for.
type Request struct {
	// Changes are the knobs that the attempt has different from the command as
	// typed.
	Changes []Change
	RunID   string
	Attempt int
	// AttemptDir is the attempt's own folder, absolute: the shim goes there, and a
	// changed config file whose own folder cannot be written.
	AttemptDir string
	// Env is the environment that the command is started with.
	Env []string
	// Shim is ShimAuto (also ""), ShimAlways or ShimNever.
	Shim string
	// ImagePythonPath is the PYTHONPATH that the container's image sets, where that
	// is known.
	ImagePythonPath string
	// Resume is the checkpoint to go on from, a path of this machine; empty for none.
	// ShimResume hands it over by the shim instead of the trainer's own setting.
	Resume     string
	ShimResume bool
	// OutputSuffix is what the shim adds to output folders that the code names, for
	// an attempt that starts over and whose folder is not known.
	OutputSuffix string
	// SmallerBatch lets the shim make the batch of a plain training loop smaller,
	// which has no accumulation.
	SmallerBatch bool
}

// Rewrite returns the command of an attempt: the job with changes made to it and
// what must go with them (Companions), nothing else. Without changes it is the
// command as typed with its placeholders filled in. It writes nothing: the caller
// creates Files and Dirs.
//
// The new command is read again, and unless it has exactly the settings asked for
// there is an error. An error means that a change cannot be made exactly as asked;
// then none is.
func (s *Set) Rewrite(j job.Job, rq Request) (Rewrite, error) {
	user := userKnobs(j.Knobs)
	after := j
	after.Knobs = j.Knobs.Clone()
	changes := append(slices.Clone(rq.Changes), s.Companions(j, rq.Changes)...)
	var own []Change
	var done record
	var toUser []string
	for _, ch := range changes {
		set := after.Knobs[ch.Knob]
		if ch.To != Half {
			set.Value = ch.To
			after.Knobs[ch.Knob] = set
		}
		if set.Source != job.FromUser || ch.Knob == job.Method {
			own = append(own, ch)
			continue
		}
		// The user said where this knob goes: into its placeholders, or nowhere
		// but the environment.
		before := user[string(ch.Knob)]
		user[string(ch.Knob)] = ch.To
		layer, name := LayerArgv, set.Where
		if !strings.HasPrefix(name, "{") {
			layer, name = LayerEnv, knobVar(ch.Knob)
			toUser = append(toUser, name+"="+ch.To)
		}
		done.add(Changed{layer, name, before, ch.To}, "%s %s -> %s", name, ch.From, ch.To)
	}
	words, err := Expand(j.Argv, user)
	if err != nil {
		return Rewrite{}, err
	}
	out := Rewrite{Argv: words, Env: KnobEnv(after), Diff: done.diff, Changes: done.changes}
	if len(own) == 0 && rq.Resume == "" && rq.Shim != ShimAlways && rq.OutputSuffix == "" && (j.Container == nil || len(toUser) == 0) {
		return out, nil
	}
	c, err := s.inJob(j, user, rq.Env, nil)
	if err != nil {
		return Rewrite{}, err
	}
	if files := differ(j.Read, c.read); len(files) > 0 {
		return Rewrite{}, fmt.Errorf("%s is not what it was when the run began, so nothing is changed in this command", files[0])
	}
	w := newWriter(c, j, rq)
	w.done = done
	if c.place.Unsure != "" && (len(own) > 0 || rq.Resume != "") {
		return Rewrite{}, fmt.Errorf("nothing is changed in this command: %s", c.place.Unsure)
	}
	for _, ch := range own {
		if err := w.change(ch, changes); err != nil {
			return Rewrite{}, err
		}
	}
	if err := w.resume(); err != nil {
		return Rewrite{}, err
	}
	if err := w.together(); err != nil {
		return Rewrite{}, err
	}
	if err := w.writeFiles(); err != nil {
		return Rewrite{}, err
	}
	return s.assemble(w, out, toUser, user)
}

// assemble puts the changed words, environment and mounts back into the command, and
// proves the result.
func (s *Set) assemble(w *writer, out Rewrite, toUser []string, user map[string]string) (Rewrite, error) {
	p, rq := w.c.place, w.rq
	words := w.edits.apply(p.Words, w.c.args)
	var env []string
	if p.Container != nil {
		env = append(env, toUser...)
	}
	mounts, plan, err := w.shimPlan(&env)
	if err != nil {
		return Rewrite{}, err
	}
	if w.launcher != nil {
		if p, err = p.WithLauncherArgs(w.launcher); err != nil {
			return Rewrite{}, fmt.Errorf("changing the launcher's own options: %w", err)
		}
	}
	argv, hostEnv, err := p.Command(words, env, mounts)
	if err != nil {
		return Rewrite{}, err
	}
	out.Argv, out.Env = argv, append(out.Env, hostEnv...)
	out.Files, out.Diff, out.Changes = w.files, w.done.diff, w.done.changes
	if plan != nil {
		files, err := plan.Files(rq.AttemptDir)
		if err != nil {
			return Rewrite{}, err
		}
		for _, f := range files {
			out.Files = append(out.Files, File{Path: f.Path, Content: f.Content, Mode: f.Mode})
		}
		out.Shim = plan
		out.Dirs = append(out.Dirs, filepath.Join(rq.AttemptDir, shim.CodeDir), filepath.Join(rq.AttemptDir, shim.RecordDir))
	}
	return out, s.prove(w, out)
}

// shimPlan returns the plan of the shim, nil where it is not wanted, and the mounts
// that it needs; its environment is added to env.
func (w *writer) shimPlan(env *[]string) ([]place.Mount, *shim.Plan, error) {
	p, rq := w.c.place, w.rq
	needed := len(w.clamps) > 0
	switch {
	case !needed && rq.Shim != ShimAlways && rq.OutputSuffix == "":
		return nil, nil, nil
	case needed && rq.Shim == ShimNever:
		return nil, nil, fmt.Errorf("%s stands in the script's code, and --shim never forbids the only way to change it there", w.clamps[0].Knob)
	case rq.Shim == ShimNever:
		return nil, nil, nil
	case p.ShimRefused != "" || p.Unsure != "":
		if needed {
			return nil, nil, fmt.Errorf("%s stands in the script's code, and the shim that could change it there does not reach the trainer: %s",
				w.clamps[0].Knob, strings.Trim(p.ShimRefused+" "+p.Unsure, " "))
		}
		return nil, nil, nil
	case rq.AttemptDir == "":
		return nil, nil, errors.New("the shim needs the attempt's folder")
	}
	plan := &shim.Plan{Clamps: w.clamps, Suffix: rq.OutputSuffix, SmallerBatch: rq.SmallerBatch, ResumeFolder: w.resumeFolder}
	if err := plan.Check(); err != nil {
		return nil, nil, err
	}
	inner, path := rq.AttemptDir, p.Surroundings(place.Environ(rq.Env))["PYTHONPATH"]
	var mounts []place.Mount
	if p.Container != nil {
		inner, path = shimInside, rq.ImagePythonPath
		for _, dir := range []string{shim.CodeDir, shim.RecordDir} {
			mounts = append(mounts, place.Mount{
				Host: filepath.Join(rq.AttemptDir, dir), Inside: shimInside + "/" + dir, ReadOnly: dir == shim.CodeDir,
			})
		}
	}
	add, err := plan.Env(inner, path)
	if err != nil {
		return nil, nil, err
	}
	*env = append(*env, add...)
	return mounts, plan, nil
}

// restsOnAsked says whether a knob's default is another one with other settings, and one
// of those was asked to change: the rank of an adapter where the method becomes LoRA.
func (w *writer) restsOnAsked(name string) bool {
	for _, d := range w.c.prof.Knobs[name].Defaults {
		for other := range d.When {
			if _, asked := w.asked[other]; asked {
				return true
			}
		}
	}
	return false
}

// prove reads the new command and demands exactly the settings that were asked for.
func (s *Set) prove(w *writer, out Rewrite) error {
	over := files{}
	for _, f := range out.Files {
		over[f.Path] = f.Content
	}
	c := s.inspect(out.Argv, around{dir: w.j.Dir, env: place.Environ(w.rq.Env), interpreter: w.j.Interpreter, files: over, like: w.c})
	p, q := w.c.place, c.place
	switch {
	case q.Unsure != "" && p.Unsure == "":
		return fmt.Errorf("the changed command could not be read again: %s", q.Unsure)
	case !slices.Equal(q.Words, w.edits.apply(p.Words, w.c.args)):
		return errors.New("the changed command would not be read as it was meant; nothing was changed")
	case w.c.prof == nil:
		return nil
	}
	c.world = w.c.world
	k := c.knobs()
	for _, name := range sortedKeys(w.c.prof.Knobs) {
		if _, asked := w.asked[name]; !asked && w.shares(name) {
			continue
		}
		was, wasKnown, _ := w.k.get(name)
		now, isKnown, why := k.get(name)
		want, known := was.value, wasKnown
		if to, asked := w.asked[name]; asked {
			want, known = to, to != "null"
			if v, err := parseValue(w.c.prof.Knobs[name].Kind, to); err == nil && known {
				want = v
			}
			if !known && !isKnown || sameSwitchedOff(to, now, isKnown) {
				continue
			}
		} else if was.formula && w.k.follows(name) {
			continue
		} else if w.restsOnAsked(name) && now.origin == job.FromDefault && (!wasKnown || was.origin == job.FromDefault) {
			continue // the trainer's default with the new settings, written nowhere
		}
		if isKnown != known || now.value != want && !sameValue(w.c.prof.Knobs[name].Kind, now.value, want) {
			if why != "" {
				return fmt.Errorf("%s cannot be changed alone: %s", name, why)
			}
			return fmt.Errorf("the changed command would have %s at %s in place of %s; nothing was changed", name, orUnknown(now.value), orUnknown(want))
		}
	}
	return nil
}

// shares says whether a knob has a spelling that a knob which was asked for has too:
// they are one setting.
func (w *writer) shares(name string) bool {
	spec := w.c.prof.Knobs[name]
	for other := range w.asked {
		o := w.c.prof.Knobs[other]
		for _, n := range slices.Concat(o.Names, o.Keys, o.FlagNames) {
			if slices.Contains(spec.Names, n) || slices.Contains(spec.Keys, n) || slices.Contains(spec.FlagNames, n) {
				return true
			}
		}
	}
	return false
}

func orUnknown(v string) string {
	if v == "" {
		return "an unknown value"
	}
	return v
}

// sameSwitchedOff says whether a setting that was to be taken away is at a default
// now.
func sameSwitchedOff(to string, now found, known bool) bool {
	return to == "null" && (!known || now.origin == job.FromDefault)
}

// writer collects what the changes of one attempt do to the command.
type writer struct {
	c     *command
	k     *knobs
	j     job.Job
	rq    Request
	edits edits
	done  record
	// docs are the changed config files.
	docs   map[*document]*edit.Doc
	order  []*document
	files  []File
	clamps []shim.Clamp
	// asked is what each knob of the profile is to be, "null" for switched off.
	asked        map[string]string
	launcher     []string
	resumeFolder string
}

func newWriter(c *command, j job.Job, rq Request) *writer {
	w := &writer{c: c, j: j, rq: rq, edits: edits{replace: map[int][]string{}}, docs: map[*document]*edit.Doc{}, asked: map[string]string{}}
	if c.prof != nil {
		w.k = c.knobs()
	}
	return w
}

// record is what was changed: the same in words and in parts.
type record struct {
	diff    []string
	changes []Changed
}

func (r *record) add(c Changed, format string, args ...any) {
	r.diff = append(r.diff, fmt.Sprintf(format, args...))
	r.changes = append(r.changes, c)
}

// change makes one change of a rung. A change of method is several settings.
func (w *writer) change(ch Change, all []Change) error {
	if ch.Knob == job.Method {
		return w.method(ch, all)
	}
	if w.c.prof == nil || ch.To == Half {
		return w.clamp(ch)
	}
	return w.set(string(ch.Knob), ch.To)
}

func (w *writer) method(ch Change, all []Change) error {
	named := func(name string) bool {
		return slices.ContainsFunc(all, func(c Change) bool { return string(c.Knob) == name })
	}
	if w.c.prof == nil {
		if named(string(job.LoadIn4Bit)) {
			return nil // the knob itself carries the method
		}
		if set := w.j.Knobs[job.LoadIn4Bit]; set.Source == job.FromScript && ch.From == "qlora" && ch.To == "lora" {
			return errors.Join(w.clamp(Change{Knob: job.LoadIn4Bit, From: set.Value, To: "false"}),
				w.clamp(Change{Knob: job.DType, From: w.j.Knobs[job.DType].Value, To: "bfloat16"}))
		}
		return errors.New("cannot change the method: no trainer profile fits the command")
	}
	settings, err := w.k.switchOf(ch.From, ch.To)
	if err != nil {
		return err
	}
	for _, name := range sortedKeys(settings) {
		if named(name) {
			continue
		}
		if err := w.set(name, settings[name]); err != nil {
			return err
		}
	}
	return nil
}

// clamp leaves a change to the shim.
func (w *writer) clamp(ch Change) error {
	set, known := w.j.Knobs[ch.Knob]
	switch {
	case w.c.prof == nil && w.j.Opaque == "" && set.Source != job.FromScript:
		return fmt.Errorf("cannot set %s: no trainer profile fits the command", ch.Knob)
	case !shimTurns(string(ch.Knob)):
		return fmt.Errorf("cannot set %s: the shim does not know it", ch.Knob)
	case ch.To == "null":
		return fmt.Errorf("cannot take %s away: it is written in the script's code, where the shim can only change it", ch.Knob)
	}
	for i, c := range w.clamps {
		if c.Knob == ch.Knob {
			w.clamps = append(w.clamps[:i], w.clamps[i+1:]...)
			break
		}
	}
	c := shim.Clamp{Knob: ch.Knob, From: ch.From}
	if ch.To == Half {
		if ch.Knob == job.Accumulation {
			return nil // it follows the micro-batch
		}
		c.From, c.Halve = "", 1
		if ch.Knob == job.SeqLen {
			c.Floor = max(1024, w.j.Floor)
		}
		w.clamps = append(w.clamps, c)
		w.done.add(Changed{LayerShim, string(ch.Knob), "", Half}, "%s / 2 where the code sets it (by the shim)", ch.Knob)
		return nil
	}
	c.To = ch.To
	if kindOf(ch.Knob) == "bool" {
		if on, ok := edit.AsBool(ch.To); ok {
			c.To = strings.ToLower(spell("", "bool", fmt.Sprint(on)))
		}
	}
	if !known {
		c.From = ""
	}
	w.clamps = append(w.clamps, c)
	switch {
	case set.Where == "" || c.From == "":
		w.done.add(Changed{LayerShim, string(ch.Knob), c.From, c.To}, "%s -> %s where the code sets it (by the shim)", ch.Knob, c.To)
	default:
		w.done.add(Changed{LayerShim, set.Where + " " + string(ch.Knob), c.From, c.To}, "%s: %s %s -> %s (by the shim)", set.Where, ch.Knob, c.From, c.To)
	}
	return nil
}

// kindOf is the kind of a knob that the shim takes.
func kindOf(k job.Knob) string {
	switch k {
	case job.Packing, job.LoadIn4Bit, job.GradCkpt:
		return "bool"
	case job.DType, job.OutputDir, job.ResumeFrom:
		return "str"
	}
	return "int"
}

// resume asks the trainer to go on from a checkpoint.
func (w *writer) resume() error {
	if w.rq.Resume == "" {
		return nil
	}
	inner, ok := w.c.place.InnerPath(w.rq.Resume)
	if !ok {
		return fmt.Errorf("the checkpoint %s is not to be seen inside the container: no mount of the command reaches it", w.rq.Resume)
	}
	name := string(job.ResumeFrom)
	byShim := w.rq.ShimResume
	if !byShim && w.c.prof != nil {
		if f, _, _ := w.k.get(name); f.inCode || len(f.spots) == 0 && w.k.inCode(w.c.prof.Knobs[name]) {
			byShim = true
		}
	}
	if byShim || w.c.prof == nil {
		if set := w.j.Knobs[job.OutputDir]; set.Source == job.FromScript {
			w.resumeFolder = set.Value
		}
		return w.clamp(Change{Knob: job.ResumeFrom, From: w.j.Knobs[job.ResumeFrom].Value, To: inner})
	}
	r := w.c.prof.Resume
	if r.fromFolder() {
		if err := w.taken(r); err != nil {
			return err
		}
		return w.also(r)
	}
	if _, has := w.c.prof.Knobs[name]; !has && r.How == "auto" {
		return nil // it takes it up by itself
	}
	value := inner
	switch r.Value {
	case "name":
		value = path.Base(inner)
	case "dir":
		value = path.Dir(inner)
	case "step":
		value = stepOf(path.Base(inner))
		if value == "" {
			return fmt.Errorf("the checkpoint %s has no step in its name, and the trainer wants the step", w.rq.Resume)
		}
	}
	if err := w.set(name, value); err != nil {
		return err
	}
	return w.also(r)
}

// taken demands that the checkpoint is the one that the trainer finds by itself.
func (w *writer) taken(r resumeSpec) error {
	folder, known := w.c.outputFolder(w.j, w.k)
	dir := filepath.Dir(w.rq.Resume)
	if known && !sameFolder(folder, dir) {
		return fmt.Errorf("the checkpoint %s is not in the output folder %s, and the trainer takes what lies there", w.rq.Resume, folder)
	}
	if r.Value != "latest" {
		return nil
	}
	named := strings.TrimSpace(string(treefs.Root("").Head(filepath.Join(dir, "latest"), 4<<10)))
	if named != filepath.Base(w.rq.Resume) {
		return fmt.Errorf("the trainer takes the step that the file latest names (%q), which is not %s", named, filepath.Base(w.rq.Resume))
	}
	return nil
}

// sameFolder says whether two paths lead to one folder.
func sameFolder(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// also sets what goes with a resume.
func (w *writer) also(r resumeSpec) error {
	for _, n := range sortedKeys(r.Also) {
		if err := w.set(n, r.Also[n]); err != nil {
			return err
		}
	}
	return nil
}

// stepOf returns the last number in a checkpoint's name, without leading zeros.
func stepOf(name string) string {
	end := strings.LastIndexAny(name, "0123456789") + 1
	start := end
	for start > 0 && name[start-1] >= '0' && name[start-1] <= '9' {
		start--
	}
	digits := name[start:end]
	if trimmed := strings.TrimLeft(digits, "0"); trimmed != "" || digits == "" {
		return trimmed
	}
	return "0"
}
