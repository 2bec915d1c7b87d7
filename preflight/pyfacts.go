package preflight

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"sparkrun/internal/job"
	"sparkrun/internal/lazyre"
)

// pythonFacts is the Python of the command, or of the shell where there is none. For a
// command that starts a container it is the Python inside, as far as that can be told;
// the host's is not looked at then.
type pythonFacts struct {
	// interp is the interpreter as the command names it, absolute; "" where there is none
	// or it is not known.
	interp string
	// sites are the folders it imports from, in the order of sys.path, where that can be
	// told without starting it (exact). They lie in files, which is nil where nothing of
	// them can be read: an image's Python that was only asked.
	sites []string
	exact bool
	files tree
	// packages are the versions of the packages of stack.yaml that it would import.
	packages map[string]string
	torch    torchBuild
	image    imageFacts
	// told says how an image's Python is known, for the evidence: "read from the layers
	// of image X"; "" on the machine itself.
	told string
	// installer is how packages are installed for it, up to the word install.
	installer string
	// broken says what is wrong with its virtual environment, "" for nothing.
	broken string
	// cuda are the CUDA runtimes that a program of it would find.
	cuda cudaRuntimes
}

// readPython reads folders only, and asks an engine where the command starts a container.
func readPython(ctx context.Context, v view) pythonFacts {
	if v.job != nil && v.job.Container != nil {
		i := readImage(ctx, v)
		p := readImagePython(v, i)
		p.image = i
		return p
	}
	return readHostPython(v)
}

func readHostPython(v view) pythonFacts {
	var interp, isolated string
	switch {
	case v.job == nil:
		if interp = findProgram(v.root, "python3", v.getenv); interp == "" {
			return pythonFacts{torch: torchBuild{state: torchNoPython}}
		}
	case v.job.Interpreter == "":
		return noInterpreter(v)
	default:
		interp, isolated = v.job.Interpreter, pythonOptions(v.job)
	}
	p := pythonIn(v.root, interp, v.getenv, v.dir(), isolated, v.in.Machine, v.stack.Packages)
	if p.broken == "" {
		p.broken = shellsVenv(v, interp)
	}
	return p
}

// pythonIn looks at one interpreter.
func pythonIn(t tree, interp string, getenv func(string) string, dir, isolated, machine string, wanted []string) pythonFacts {
	ve := venueOf(t, interp, getenv, dir, isolated)
	p := pythonFacts{interp: interp, sites: ve.sites, exact: ve.exact, files: t, broken: ve.broken, installer: installer(t, interp)}
	p.packages = packagesIn(t, ve, wanted)
	p.torch = findTorch(t, ve)
	p.torch.interp, p.torch.real = interp, ve.interp
	if ve.broken != "" {
		// It does not start, so nobody need ask it.
		p.torch.state, p.torch.why = torchElsewhere, ve.broken
	}
	p.cuda = findRuntimes(t, ve.sites, ve.interp, getenv("LD_LIBRARY_PATH"), dir, machine)
	return p
}

// interpreterName is what Pythons are called.
var interpreterName = lazyre.New(`^(python|pypy)(\d+(\.\d+)*)?t?$`)

// pythonOptions are the letters of the options that Python itself is given and that take
// folders away: E, s, I.
func pythonOptions(j *job.Job) string {
	letters := ""
	for n := min(j.TrainerAt, len(j.Argv)) - 1; n >= 0; n-- {
		w := j.Argv[n]
		switch {
		case interpreterName.MatchString(filepath.Base(w)):
			return letters
		case len(w) > 1 && w[0] == '-' && w[1] != '-':
			// The value of -X or -W, and the module of -m, may be joined to them.
			if end := strings.IndexAny(w, "XWmc"); end >= 0 {
				w = w[:end]
			}
			letters += w[1:]
		default:
			return ""
		}
	}
	return ""
}

// managers start a command in an environment of their own making.
var managers = []string{"uv", "uvx", "poetry", "pdm", "rye", "hatch", "pixi", "pipenv", "conda", "mamba", "micromamba", "pyenv"}

// noInterpreter is what is known of a command whose Python was not found: it may be no
// Python program, its environment may be made when it starts, or may be broken.
func noInterpreter(v view) pythonFacts {
	j := v.job
	elsewhere := func(broken, why string) pythonFacts {
		return pythonFacts{broken: broken, torch: torchBuild{state: torchElsewhere, why: why}}
	}
	python := j.Script != ""
	for n, w := range j.Argv {
		if n > j.TrainerAt && j.TrainerAt > 0 {
			break
		}
		if !interpreterName.MatchString(filepath.Base(w)) {
			continue
		}
		python = true
		if strings.Contains(w, "/") && j.Container == nil {
			if broken := brokenVenv(v.root, v.abs(w)); broken != "" {
				return elsewhere(broken, broken)
			}
		}
	}
	if !python {
		return pythonFacts{torch: torchBuild{state: torchNotAsked}}
	}
	if slices.Contains(j.Launchers, "uv") && inlineScript(v, j.Script) {
		return elsewhere("", fmt.Sprintf("%s names its own packages (PEP 723): uv makes an environment for it alone, which is not seen before it starts", j.Script))
	}
	for _, m := range managers {
		if slices.Contains(j.Launchers, m) {
			return elsewhere("", fmt.Sprintf("the environment that %s starts the command in does not exist yet, or cannot be told from outside", m))
		}
	}
	if broken := shellsVenv(v, ""); broken != "" {
		return elsewhere(broken, broken)
	}
	return elsewhere("", "which Python runs the command cannot be told from outside")
}

// inlineScript tells whether a script names its own packages.
func inlineScript(v view, script string) bool {
	path, ok := v.onHost(script)
	if !ok {
		return false
	}
	b, err := v.own(path)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if strings.TrimRight(line, " \t\r\n") == "# /// script" {
			return true
		}
	}
	return false
}

// shellsVenv says that the virtual environment that is switched on is broken, so that
// another Python on PATH runs the command in its place.
func shellsVenv(v view, interp string) string {
	dir := v.getenv("VIRTUAL_ENV")
	if dir == "" || !filepath.IsAbs(dir) || strings.HasPrefix(interp, dir+"/") {
		return ""
	}
	return brokenVenv(v.root, filepath.Join(dir, "bin", "python"))
}
