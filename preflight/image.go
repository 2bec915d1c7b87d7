package preflight

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"sparkrun/configs"
	"sparkrun/internal/lazyre"
)

// ImageFacts is what a container engine tells of an image, or of a running container
// and the image that it was made from.
type ImageFacts struct {
	// ID is the image's digest; empty where the engine does not have the image.
	ID string
	// Ref is what the engine calls the image where the command names none: with exec,
	// and with compose.
	Ref string
	// Container is the id of the running container that the command goes into (exec),
	// "" where it starts one of its own.
	Container string
	// Tags and Digests are its names in the engine.
	Tags, Digests []string
	// Machine is what its programs are built for, as uname -m spells it; "" is not told.
	Machine string
	// Env is the environment that its containers start with; Labels its labels.
	Env    map[string]string
	Labels map[string]string
	// Layers are the folders of its file system on this machine, uppermost first; empty
	// where they cannot be told. With exec it is the one folder of the container's own
	// file system.
	Layers []string
	// Probe is what an earlier look from inside the same image said; nil for none.
	Probe *ImageProbe
}

// imageFacts is the image that the command starts.
type imageFacts struct {
	// ref is the image as the command or its container names it; "" where it starts none,
	// or it cannot be told. container is the name of the container that the command goes
	// into, "" where it starts one.
	ref       string
	container string
	// known tells that the engine has it and said what it holds; why says why not.
	known bool
	why   string
	facts ImageFacts
}

// name is the image or container in words.
func (i imageFacts) name() string {
	if i.container != "" {
		return "container " + i.container
	}
	return "image " + i.ref
}

// imageLimit bounds how long an engine is waited for: one that answers does so within
// some tens of milliseconds, and a command is about to run.
const imageLimit = 400 * time.Millisecond

// readImage asks for the image that the command starts. It returns before its context
// ends, so that what is known without an answer is not lost.
func readImage(ctx context.Context, v view) imageFacts {
	if v.job == nil || v.job.Container == nil {
		return imageFacts{}
	}
	c := v.job.Container
	i := imageFacts{ref: c.Image}
	if c.Verb == "exec" {
		i.ref, i.container = "", c.Image
	}
	if v.in.Images == nil {
		i.why = "nothing was asked"
		return i
	}
	limit := imageLimit
	switch {
	case v.busy:
		// As with any look: the client of an engine has to be started first.
		limit = DefaultLimit
	case v.in.LookLimit > 0:
		limit = min(limit, v.in.LookLimit)
	}
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)*3/4)
	}
	type answer struct {
		facts ImageFacts
		err   error
	}
	a, ok := within(ctx, limit, func(ctx context.Context) answer {
		facts, err := v.in.Images(ctx, c.Engine, c.Image)
		return answer{facts, err}
	})
	switch {
	case !ok, errors.Is(a.err, context.DeadlineExceeded):
		i.why = fmt.Sprintf("%s did not answer within %g s", c.Engine, limit.Round(10*time.Millisecond).Seconds())
	case a.err != nil:
		i.why = a.err.Error()
	case a.facts.ID == "":
		i.why = c.Engine + " does not have it yet"
	default:
		i.known, i.facts = true, a.facts
		if i.ref == "" {
			i.ref = a.facts.Ref
		}
		if a.facts.Container != "" && i.container == "" {
			i.container = a.facts.Container
		}
	}
	return i
}

// files returns the image's file system; ok is false where none of it can be read.
func (i imageFacts) files() (tree, bool) {
	if !i.known || len(i.facts.Layers) == 0 {
		return nil, false
	}
	l := newLayers(i.facts.Layers)
	// Only root may look into an engine's folders, as a rule.
	for _, name := range []string{"/usr", "/opt", "/bin"} {
		if there, err := l.exists(name); err == nil && there && len(l.names(name)) > 0 {
			return l, true
		}
	}
	return nil, false
}

// getenv is the environment of a container of the image.
func (i imageFacts) getenv(name string) string {
	if value, ok := i.facts.Env[name]; ok {
		return value
	}
	switch name {
	case "PATH":
		return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	case "HOME":
		return "/root"
	}
	return ""
}

// readImagePython is the Python of an image: as an earlier look into the image told it,
// as the image's files on this machine say, or as its environment does, in this order.
// What goes into a running container is not the image any more, so there the files come
// first.
func readImagePython(v view, i imageFacts) pythonFacts {
	unknown := pythonFacts{torch: torchBuild{state: torchElsewhere, why: i.why}}
	if v.in.Images == nil {
		unknown.torch.why = ""
	}
	if !i.known {
		return unknown
	}
	asked := insidePython(v.job.Argv, v.job.Container.Image)
	probed, ok := i.probed(asked, v.stack.Packages)
	if ok && i.container == "" {
		return probed
	}
	read, sure := i.fromFiles(v, asked)
	if sure {
		return read
	}
	if ok {
		return probed
	}
	if told, ok := i.fromEnvironment(); ok {
		return told
	}
	if read.interp != "" {
		return read
	}
	unknown.torch.why = "what is in it can be read by root only; " + askImage
	if len(i.facts.Layers) == 0 {
		unknown.torch.why = "its files cannot be found on this machine; " + askImage
	}
	return unknown
}

// askImage is how an image is made to tell.
const askImage = "`sparkrun preflight --probe-image -- COMMAND` starts it once to ask it"

func (i imageFacts) probed(asked string, wanted []string) (pythonFacts, bool) {
	p := i.facts.Probe
	if p == nil || p.Asked != asked && asked != "" {
		return pythonFacts{}, false
	}
	f := p.facts(wanted)
	f.told = fmt.Sprintf("as %s said itself on %s (%s)", i.name(), p.Time.Format(time.DateOnly), p.Interpreter)
	f.torch.where, f.torch.told = " in "+i.name(), f.told
	return f, true
}

// fromFiles looks into the image's file system; sure is false where the Python that will
// run, or what it imports from, could not be told from it.
func (i imageFacts) fromFiles(v view, asked string) (p pythonFacts, sure bool) {
	files, ok := i.files()
	if !ok {
		return pythonFacts{}, false
	}
	interp := insideInterpreter(files, v.job.Argv, v.job.Container.Image, i.getenv)
	if interp == "" {
		if asked != "" { // in a folder that is mounted, perhaps
			return pythonFacts{}, false
		}
		p = pythonFacts{files: files, torch: torchBuild{state: torchElsewhere, why: "it has no Python"}}
		return p, true
	}
	p = pythonIn(files, interp, i.getenv, "/", "", i.facts.Machine, v.stack.Packages)
	p.told = "read from the files of " + i.name()
	p.torch.where, p.torch.told = " in "+i.name(), p.told
	// The host's interpreter of the same name must not be asked.
	p.torch.real = ""
	if p.torch.state == torchUndetermined {
		p.torch.state, p.torch.why = torchElsewhere, interp+" in it is a wrapper, and only running it would tell what it imports"
		return p, false
	}
	return p, true
}

// fromEnvironment is what the variables of the image say.
func (i imageFacts) fromEnvironment() (pythonFacts, bool) {
	table, err := loadImages()
	if err != nil {
		return pythonFacts{}, false
	}
	for _, t := range table.Torch {
		fits := true
		for name, want := range t.When {
			got, ok := i.facts.Env[name]
			fits = fits && ok && got != "" && (want == "*" || got == want)
		}
		numbers := cudaNumber.FindString(i.facts.Env[t.CUDA])
		if !fits || numbers == "" {
			continue
		}
		p := pythonFacts{told: fmt.Sprintf("by the environment of %s (%s)", i.name(), t.Name), packages: map[string]string{}}
		p.torch = torchBuild{
			state: torchFound, version: i.facts.Env[t.Torch], cuda: numbers, guessed: true, told: p.told, where: " in " + i.name(),
			from: fmt.Sprintf("%s=%s %s=%s", t.Torch, i.facts.Env[t.Torch], t.CUDA, i.facts.Env[t.CUDA]),
		}
		if p.torch.version != "" {
			p.packages["torch"] = p.torch.version
		}
		return p, true
	}
	return pythonFacts{}, false
}

// cudaNumber is the part of CUDA_VERSION that people say: 13.0 of 13.0.1.012.
var cudaNumber = lazyre.New(`^\d{1,3}\.\d{1,3}`)

// insideWords are the words of a command behind the image's name, those in the text of a
// shell as well.
func insideWords(argv []string, image string) []string {
	var words []string
	for _, w := range argv {
		for _, word := range strings.Fields(w) {
			if word = strings.Trim(word, "\"';&|()"); word != "" {
				words = append(words, word)
			}
		}
	}
	at := slices.Index(words, image)
	if image == "" || at < 0 {
		return nil
	}
	return words[at+1:]
}

// insidePython is the Python that a command names behind the image's name: a path, or a
// bare name; "" where it names none.
func insidePython(argv []string, image string) string {
	for _, w := range insideWords(argv, image) {
		if interpreterName.MatchString(path.Base(w)) {
			return w
		}
	}
	return ""
}

// insideInterpreter finds the Python that runs a command inside an image: the one that
// the command names, or that the program it names is written for, else the one that
// python3 is there.
func insideInterpreter(t tree, argv []string, image string, getenv func(string) string) string {
	for _, w := range append(insideWords(argv, image), "python3", "python") {
		if w[0] == '-' || strings.Contains(w, "=") {
			continue
		}
		file := w
		if !path.IsAbs(w) {
			if strings.Contains(w, "/") {
				continue // from a folder that is not known
			}
			file = findProgram(t, w, getenv)
		}
		python := interpreterName.MatchString(path.Base(w))
		switch {
		case file == "" || !t.executable(file):
			if python {
				return ""
			}
		case python:
			return file
		default:
			head, err := t.readMax(file, 512)
			if err != nil {
				continue
			}
			if interp := scriptPython(t, string(head), getenv); interp != "" {
				return interp
			}
		}
	}
	return ""
}

// scriptPython is the Python of a program's first line.
func scriptPython(t tree, head string, getenv func(string) string) string {
	line, _, _ := strings.Cut(head, "\n")
	rest, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return ""
	}
	for n, w := range strings.Fields(rest) {
		if !interpreterName.MatchString(path.Base(w)) {
			continue
		}
		if n == 0 && path.IsAbs(w) && t.executable(w) {
			return w
		}
		return findProgram(t, w, getenv)
	}
	return ""
}

// imageTable is configs/images.yaml.
type imageTable struct {
	Torch []struct {
		Name  string            `yaml:"name"`
		When  map[string]string `yaml:"when"`
		Torch string            `yaml:"torch"`
		CUDA  string            `yaml:"cuda"`
	} `yaml:"torch"`
}

var loadImages = sync.OnceValues(func() (imageTable, error) {
	var t imageTable
	if err := configs.BuiltIn("images.yaml", &t); err != nil {
		return imageTable{}, fmt.Errorf("reading the built-in table of images: %w", err)
	}
	return t, nil
})
