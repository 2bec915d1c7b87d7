package place

import (
	"slices"

	"sparkrun/internal/job"
	"sparkrun/internal/treefs"
)

// Mount is a folder or file of this machine that a container sees.
type Mount struct {
	// Host is the absolute path on this machine, Inside the one in the container.
	Host, Inside string
	ReadOnly     bool
}

// Place says where in a command the trainer stands.
type Place struct {
	// Words are the innermost simple command: the interpreter, script or program and
	// its arguments. Behind accelerate or torchrun they start with the script or the
	// module's name.
	Words []string
	// Args is the index in Words of the trainer's first argument, len(Words) if
	// there is none or the trainer is not seen.
	Args int

	// Python is the word of the interpreter that runs the trainer, "" if the command
	// does not name one.
	Python string
	// One of Script, Module and Program is set, or none where the trainer is not
	// seen.
	Script, Module, Program string

	// Launchers are the names of what stands in front, outermost first.
	Launchers []string
	// LauncherArgs are the options that a distributed launcher (accelerate,
	// torchrun, deepspeed) is given for itself. Some, such as accelerate's
	// --gradient_accumulation_steps, must agree with the trainer's.
	LauncherArgs []string
	// LauncherDefault is the config file that the launcher reads by itself, where it is
	// named none, absolute; LauncherFixed is a config file that a launcher inside the
	// trainer's program reads, as typed or absolute. Both are "" where there is none.
	LauncherDefault, LauncherFixed string

	// Dir is the absolute folder that the trainer starts in, as this machine names
	// it; "" where it is not known, or lies in a container only.
	Dir string
	// Container is set where the trainer runs in one; Mounts are the folders of this
	// machine that it sees, Workdir the folder inside that it starts in ("" if not
	// told).
	Container *job.Container
	Mounts    []Mount
	Workdir   string

	// Set, Unset and Cleared say what the command does to the environment in front
	// of the trainer. Behind a container, sudo or env -i Cleared is true: nothing of
	// ours gets through by itself.
	Set     map[string]string
	Unset   []string
	Cleared bool
	// Unclear are variables that the command sets to values which are not known. They are
	// as they were in Surroundings.
	Unclear []string
	// OtherPath is true where the trainer's PATH is not ours, and not known.
	OtherPath bool

	// Nodes is over how many machines the command says it is spread, Procs how many
	// processes train on this one; 0 is not told.
	Nodes, Procs int

	// Notes are sentences about the command worth saying at the start.
	Notes []string

	// Unsure says why the trainer's place is not certain: nothing is rewritten then,
	// and the shim is not used.
	Unsure string
	// Opaque says why the trainer's own words are not seen, or left alone, although
	// its processes get what the command is given.
	Opaque string
	// ShellFile is the shell script that the command starts, as typed, which is why it is
	// opaque; "" for other commands. See Reading.
	ShellFile string
	// ShimRefused says why a module on PYTHONPATH does not reach the trainer.
	ShimRefused string

	// root is the machine that the command is looked at on.
	root treefs.Root
	// shellHead are the words in front of ShellFile: the shell and its options; shellArgs
	// those behind it.
	shellHead, shellArgs []string
	// layers are what stands in front, outermost first.
	layers []layer
	// hidden are folders of the container that are not this machine's although a
	// mount around them is: volumes, tmpfs.
	hidden []string
	// first is put before PATH: a virtual environment that is known.
	first string
	// via is the program whose Python runs the trainer: torchrun, accelerate.
	via string
	// told is what the launchers say of machines and processes.
	told spread
	// before are the commands that the same shell text runs first.
	before []before
	// anyPython is true where the trainer is run by a Python that no word names.
	anyPython bool
}

// Seen says whether the trainer's words are known and may be changed.
func (p *Place) Seen() bool {
	return p.Unsure == "" && p.Opaque == "" && (p.Script != "" || p.Module != "" || p.Program != "")
}

// Surroundings returns the environment that the trainer sees, from the one that
// the command is started with.
func (p *Place) Surroundings(env map[string]string) map[string]string {
	m := map[string]string{}
	if !p.Cleared {
		for k, v := range env {
			m[k] = v
		}
	}
	for _, name := range p.Unset {
		delete(m, name)
	}
	for k, v := range p.Set {
		m[k] = v
	}
	return m
}

func (p *Place) clear() {
	p.Cleared, p.Set, p.Unset, p.Unclear = true, map[string]string{}, nil, nil
}

func (p *Place) set(name, value string) {
	p.Set[name] = value
	p.clearUp(name)
}

// clearUp notes that a variable has a value that is known again.
func (p *Place) clearUp(name string) {
	p.Unset = slices.DeleteFunc(p.Unset, func(n string) bool { return n == name })
	p.Unclear = slices.DeleteFunc(p.Unclear, func(n string) bool { return n == name })
}

func (p *Place) unset(name string) {
	p.clearUp(name)
	p.Unset = append(p.Unset, name)
	delete(p.Set, name)
}

// Join adds variables that the trainer puts into its own environment, where they are not
// there already, and counts machines and processes anew. env is the environment that
// the command is started with.
func (p *Place) Join(t *Table, env, more map[string]string) {
	around := p.Surroundings(env)
	for name, value := range more {
		if _, there := around[name]; !there {
			around[name] = value
			p.set(name, value)
		}
	}
	if p.Unsure != "" {
		return
	}
	f := &finder{t: t, p: p, env: env, spread: p.told}
	p.Nodes, p.Procs = f.count(around)
}
