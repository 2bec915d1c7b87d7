package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

type containerFlagsSeen struct {
	client clientFlags
	// gpuUnasked says why containers get the GPU without a flag; "" where they do not.
	gpuUnasked string
	// elsewhere says why the engine may be another machine's.
	elsewhere string
	// loaders and output are what the command asks for inside.
	loaders loaders
	output  string
	// services are what the compose files say of the services that the command starts.
	services []composeService
	// composeUnread says why the compose files do not tell all; "" where they do.
	composeUnread string
}

func lookContainerFlags(_ context.Context, v view) containerFlagsSeen {
	seen := containerFlagsSeen{client: readClient(v), loaders: loadersOf(v), output: outputDir(v)}
	if seen.client.engine == "" {
		return seen
	}
	seen.elsewhere = seen.client.elsewhere(v.shell)
	seen.gpuUnasked = gpuUnasked(v.root, seen.client.engine)
	if seen.client.verb == "compose" {
		seen.services, seen.composeUnread = readCompose(v, seen.client)
	}
	return seen
}

// gpuUnasked looks for the settings that give every container the GPU.
func gpuUnasked(r root, engine string) string {
	if engine == "docker" {
		var daemon struct {
			Runtime string `json:"default-runtime"`
		}
		const file = "/etc/docker/daemon.json"
		if b, err := r.read(file); err == nil && json.Unmarshal(b, &daemon) == nil && strings.HasPrefix(daemon.Runtime, "nvidia") {
			return file + ": default-runtime " + daemon.Runtime
		}
		return ""
	}
	for _, dir := range []string{"/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"} {
		for _, name := range r.names(dir) {
			if strings.Contains(name, "nvidia") {
				return dir + "/" + name
			}
		}
	}
	return ""
}

// flagFault is one thing that the container is made without; fix is a flag, lines of a
// compose file, or words.
type flagFault struct{ what, cost, fix string }

// judgeContainerFlags is H7: what a container is made without is found when the training
// is under way, or when it is gone.
func judgeContainerFlags(seen containerFlagsSeen, f facts) Finding {
	c := seen.client
	switch {
	case f.job == nil || f.job.Container == nil:
		return byDesign("the command starts no container")
	case c.verb == "exec", c.verb == "compose" && c.composeVerb == "exec":
		return byDesign("the container runs already: its flags were given when it was made")
	case c.engine == "":
		return Finding{Status: Info, Detail: "the flags of the container are not told: " + c.unread}
	case seen.elsewhere != "":
		return byDesign(seen.elsewhere + ": the engine may be another machine's")
	}
	if reason := c.unread + seen.composeUnread; reason != "" {
		return Finding{Status: Info, Detail: "the flags of the container are not all known: " + reason}
	}
	var faults []flagFault
	var evidence []string
	if c.verb == "compose" {
		for _, s := range seen.services {
			more, notes := composeFaults(s, seen, f)
			faults, evidence = append(faults, more...), append(evidence, notes...)
		}
	} else {
		faults, evidence = runFaults(seen, f)
	}
	if fault, ok := foreignImage(f); ok {
		faults = append([]flagFault{fault}, faults...)
	}
	unclear := ""
	if c.verb != "compose" {
		unclear = unclearOutput(seen, f)
	}
	return flagFinding(faults, evidence, unclear, c, f)
}

// flagFinding is all of it; unclear is what could not be told, "" for nothing.
func flagFinding(faults []flagFault, evidence []string, unclear string, c clientFlags, f facts) Finding {
	found := Finding{Status: Pass, Detail: c.words() + " has the flags that a training wants", Evidence: evidence}
	if len(faults) == 0 {
		if unclear != "" {
			found.Status, found.Detail = Info, unclear
			return found
		}
		if name, how := movingTag(f); name != "" {
			found.Status, found.Detail, found.Fix = Info, "the tag of "+name+" names another image from time to time", how
		}
		return found
	}
	var what, costs, fixes []string
	for _, x := range faults {
		what = append(what, x.what)
		if !slices.Contains(costs, x.cost) {
			costs = append(costs, x.cost)
		}
		if x.fix != "" && !slices.Contains(fixes, x.fix) {
			fixes = append(fixes, x.fix)
		}
	}
	found.Status, found.Detail, found.Cost = Warn, strings.Join(what, "; "), strings.Join(costs, " ")
	if c.verb == "compose" {
		found.Fix = "in the compose file, under the service:\n" + strings.Join(fixes, "\n")
	} else {
		var lines, flags []string
		for _, fix := range fixes {
			if strings.HasPrefix(fix, "-") {
				flags = append(flags, fix)
			} else {
				lines = append(lines, fix)
			}
		}
		if len(flags) > 0 {
			lines = append(lines, fmt.Sprintf("add behind `%s`: %s", c.words(), strings.Join(append(flags, missingLimits(c, f)...), " ")))
		}
		found.Fix = strings.Join(lines, "\n")
	}
	if !f.spark() {
		found.Status = Info
	}
	return found
}

// foreignImage is the fault of an image that was built for another kind of processor. It
// does not start, or is emulated without a GPU.
func foreignImage(f facts) (flagFault, bool) {
	machine := f.image.facts.Machine
	if machine == "" || f.machine == "" || machine == f.machine {
		return flagFault{}, false
	}
	return flagFault{
		what: fmt.Sprintf("image %s is built for %s, and this machine is %s", f.image.name(), machine, f.machine),
		cost: "It does not start (exec format error), or is emulated without the GPU.",
		fix:  "pull the image for this machine: " + f.job.Container.Engine + " pull --platform linux/" + platformArch(f.machine) + " " + shellWord(f.image.name()),
	}, true
}

// platformArch is a machine's name as container engines write it.
func platformArch(machine string) string {
	switch machine {
	case "aarch64":
		return "arm64"
	case "x86_64":
		return "amd64"
	}
	return machine
}

// The sentences of what a fault costs.
const (
	costNoGPU    = "The training sees no GPU: it fails, or computes on the CPU."
	costShm      = "Data workers die with a bus error as soon as their batches exceed the shared memory."
	costLost     = "The checkpoints die with the container, and no later attempt can resume from them."
	costReadOnly = "The first checkpoint cannot be written."
)

// runFaults judges docker run and podman run.
func runFaults(seen containerFlagsSeen, f facts) (faults []flagFault, evidence []string) {
	c := seen.client
	wants := f.stack.Client
	how, hidden := c.gpu()
	switch {
	case hidden != "" && f.gpuHere():
		faults = append(faults, flagFault{hidden + " hides the GPU", costNoGPU, "-e NVIDIA_VISIBLE_DEVICES=all"})
	case how == "" && seen.gpuUnasked == "" && f.gpuHere():
		flag := wants.GPU
		if c.engine == "podman" {
			flag = wants.GPUPodman
		}
		faults = append(faults, flagFault{"no flag gives the container the GPU", costNoGPU, flag})
	}
	if missing := absentGPU(c, f); missing != "" && f.gpuHere() {
		faults = append(faults, flagFault{missing, costNoGPU, "give it the GPU that is there: " + wants.GPU})
	}
	if ipc, _ := c.last("--ipc"); ipc != "host" && !strings.HasPrefix(ipc, "container:") && !strings.HasPrefix(ipc, "ns:") {
		size, _ := c.last("--shm-size")
		fault, small, note := shmFault(seen.loaders, size, "", f)
		if note != "" {
			evidence = append(evidence, note)
		}
		if small {
			fault.fix = wants.SharedMemory
			faults = append(faults, fault)
		}
	}
	if size, given := c.last("-m", "--memory"); given {
		if fault, ok := memoryFault("--memory "+size, size, f); ok {
			fault.fix = "leave --memory out: the GPU's memory is not counted there, and the rest is what the training loads with"
			faults = append(faults, fault)
		}
	}
	if fault, ok := outputFault(c, f, seen.output, c.mounts(), ""); ok {
		faults = append(faults, fault)
	}
	for _, how := range []string{how, seen.gpuUnasked} {
		if how != "" {
			evidence = append(evidence, "GPU: "+how)
		}
	}
	if limits := missingLimits(c, f); len(limits) > 0 {
		evidence = append(evidence, "usual on a Spark and not given: "+strings.Join(limits, " "))
	}
	return faults, evidence
}

// shmFault tells that the data workers of a container have too little shared memory: size
// is what it is given, "" for what it has by default, of the service where compose starts
// it. note is said where it suffices. Rows of tokens are small; what is not known may not be.
func shmFault(l loaders, size, service string, f facts) (fault flagFault, small bool, note string) {
	mib, ok := memoryMiB(size)
	switch {
	case l.n == 0:
		return flagFault{}, false, ""
	case size == "":
		mib = f.stack.Client.DefaultShmMiB
	case !ok || mib == 0 || mib > f.stack.Client.DefaultShmMiB:
		return flagFault{}, false, ""
	}
	need, how := shmNeed(l.n, f.job)
	if need > 0 && need <= uint64(mib)<<20 {
		return flagFault{}, false, fmt.Sprintf("%d MiB of /dev/shm suffice: at most %s at once, %s", mib, sizeWords(need), how)
	}
	what := fmt.Sprintf("%d data workers share %d MiB of /dev/shm", l.n, mib)
	if size != "" {
		what += " (--shm-size " + size + ")"
	}
	if service != "" {
		what = fmt.Sprintf("%d data workers share the default %d MiB of /dev/shm in the service %s", l.n, mib, service)
	}
	return flagFault{what: what, cost: costShm}, true, ""
}

// memoryFault tells that the container may not have the machine's memory, by the same rule
// as a shell's own group (H6). how is the setting in words.
func memoryFault(how, size string, f facts) (flagFault, bool) {
	mib, ok := memoryMiB(size)
	total := f.memory.num("MemTotal")
	if !ok || mib == 0 || !total.OK || float64(mib)*1024 >= total.V*float64(rulesOfHost().Limits.MemoryPercent)/100 {
		return flagFault{}, false
	}
	cost := "The kernel ends the training when it reaches that, with memory left on the machine."
	if f.spark() {
		cost = "The kernel ends the training when it reaches that, with memory left on the machine; memory of the GPU is not counted there, the weights while they load and the page cache are."
	}
	return flagFault{what: fmt.Sprintf("the container may only use %d MiB of %s (%s)", mib, gb(total.V), how), cost: cost}, true
}

// absentGPU says which of the GPUs that the flags name is not there, "" for none.
func absentGPU(c clientFlags, f facts) string {
	count := f.gpu.dev.Count
	if !f.gpu.ok() || count <= 0 {
		return ""
	}
	there := "the only GPU is 0"
	if count > 1 {
		there = fmt.Sprintf("the GPUs are 0 to %d", count-1)
	}
	index := func(list string) bool {
		for word := range strings.SplitSeq(list, ",") {
			if n, err := strconv.Atoi(strings.TrimSpace(word)); err == nil && n >= count {
				return true
			}
		}
		return false
	}
	if v, ok := c.last("--gpus"); ok {
		// A number, or fields of CSV one of which may be "device=0,1" in quotes.
		plain := strings.Trim(v, `"'`)
		_, list, named := strings.Cut(plain, "device=")
		if n, err := strconv.Atoi(strings.TrimPrefix(plain, "count=")); err == nil && n > count {
			return fmt.Sprintf("--gpus %s asks for more GPUs than there are (%s)", v, there)
		}
		list, _, _ = strings.Cut(list, `"`)
		if named && index(list) {
			return fmt.Sprintf("--gpus %s names a GPU that is not there (%s)", v, there)
		}
	}
	for _, v := range c.all("--device") {
		if list, ok := strings.CutPrefix(v, "nvidia.com/gpu="); ok && index(list) {
			return fmt.Sprintf("--device %s names a GPU that is not there (%s)", v, there)
		}
	}
	// With --gpus the engine sets that variable itself.
	runtime, _ := c.last("--runtime")
	if v := c.typed["NVIDIA_VISIBLE_DEVICES"]; strings.HasPrefix(path.Base(runtime), "nvidia") && index(v) {
		return fmt.Sprintf("NVIDIA_VISIBLE_DEVICES=%s names a GPU that is not there (%s)", v, there)
	}
	return ""
}

// gpu tells how the container gets the GPU, "" if by no flag, and which variable hides it.
func (c clientFlags) gpu() (how, hidden string) {
	if v, ok := c.last("--gpus"); ok && v != "" {
		how = "--gpus " + v
	}
	if v, _ := c.last("--runtime"); strings.HasPrefix(path.Base(v), "nvidia") {
		how = "--runtime " + v
		if n := c.typed["NVIDIA_VISIBLE_DEVICES"]; n == "void" || n == "none" {
			hidden = "NVIDIA_VISIBLE_DEVICES=" + n
		}
	}
	for _, v := range c.all("--device") {
		if strings.Contains(v, "nvidia") {
			how = "--device " + v
		}
	}
	if how == "" && c.on("--privileged") {
		how = "--privileged"
	}
	return how, hidden
}

// missingLimits are the --ulimit flags of the table that are not given.
func missingLimits(c clientFlags, f facts) []string {
	var out []string
	given := strings.Join(c.all("--ulimit"), " ") + " "
	for _, flag := range f.stack.Client.Limits {
		name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--ulimit "), "=")
		if !strings.Contains(given, name+"=") {
			out = append(out, flag)
		}
	}
	return out
}

// outputFault tells that what the training saves is lost with the container. workdir is
// the folder it starts in where the flags do not say, out where it saves to.
func outputFault(c clientFlags, f facts, out string, mounts []clientMount, workdir string) (flagFault, bool) {
	lasting := lastingMount(c, mounts)
	inside, known := outputInside(c, f, out, workdir)
	if known {
		m, on := mountOf(mounts, inside)
		switch {
		case on && m.readOnly:
			return flagFault{fmt.Sprintf("%s, where it saves, is mounted read-only", inside), costReadOnly, "mount " + inside + " without ro"}, true
		case on && m.lasting, !c.on("--rm"), len(c.all("--volumes-from")) > 0:
			return flagFault{}, false
		}
		return flagFault{
			fmt.Sprintf("it saves to %s, which is on no mount, and --rm deletes that", inside), costLost,
			fmt.Sprintf(`-v "$(pwd)"/%s:%s`, shellWord(path.Base(inside)), shellWord(inside)),
		}, true
	}
	// Where it saves is not known, but there is no place that would last.
	if !lasting && c.on("--rm") && (out != "" || f.job.Profile != "") {
		return flagFault{"no folder is mounted, and --rm deletes what it saves", costLost, `-v "$(pwd):/workspace/out"`}, true
	}
	return flagFault{}, false
}

// lastingMount tells that something that is written in the container may outlive it.
func lastingMount(c clientFlags, mounts []clientMount) bool {
	return len(c.all("--volumes-from")) > 0 || slices.ContainsFunc(mounts, func(m clientMount) bool { return m.lasting && !m.readOnly })
}

// unclearOutput says that it cannot be told whether what is saved outlives the container;
// "" where it can.
func unclearOutput(seen containerFlagsSeen, f facts) string {
	c := seen.client
	if !c.on("--rm") || !lastingMount(c, c.mounts()) || f.job.TrainerDir != "" {
		return ""
	}
	if _, known := outputInside(c, f, seen.output, ""); known || seen.output == "" {
		return ""
	}
	why := "the image's own folder is not known"
	if strings.ContainsAny(seen.output, "${~") {
		why = "the path is worked out inside"
	}
	return fmt.Sprintf("whether %s, where it saves, lies on a mount cannot be told (%s), and --rm deletes what does not: name it by an absolute path, or give -w", seen.output, why)
}

// outputInside is the output folder as the container names it.
func outputInside(c clientFlags, f facts, out, workdir string) (string, bool) {
	switch {
	case out == "", strings.ContainsAny(out, "${~"):
		return "", false
	case path.IsAbs(out):
		return path.Clean(out), true
	case f.job.TrainerDir != "":
		return "", false // it starts in a folder of this machine, and saves below it
	}
	dir, ok := c.last("-w", "--workdir")
	if !ok {
		dir = workdir
	}
	if t, err := loadClients(); dir == "" && err == nil {
		name, _, _ := imageName(imageRef(f))
		dir = t.Workdirs[name]
	}
	if !path.IsAbs(dir) {
		return "", false
	}
	return path.Join(dir, out), true
}

// mountOf is the mount that a path lies on: the deepest, and of two the later.
func mountOf(mounts []clientMount, inside string) (clientMount, bool) {
	var best clientMount
	found := false
	for _, m := range mounts {
		if (inside == m.inside || m.inside == "/" || strings.HasPrefix(inside, m.inside+"/")) && (!found || len(m.inside) >= len(best.inside)) {
			best, found = m, true
		}
	}
	return best, found
}

// movingTag tells that the image's tag is one that names another image with each release,
// and how to pin it.
func movingTag(f facts) (ref, how string) {
	ref = imageRef(f)
	name, tag, digest := imageName(ref)
	if ref == "" || digest != "" {
		return "", ""
	}
	if tag == "" {
		tag = "latest"
	}
	moving := slices.Contains(f.stack.Client.MovingTags, tag)
	for _, i := range f.stack.Images {
		moving = moving || i.Name == name && slices.Contains(i.Moving, tag)
	}
	if !moving {
		return "", ""
	}
	engine := f.job.Container.Engine
	if d := digestOf(f, name); d != "" {
		return ref, "pin it: name the image " + d
	}
	return ref, fmt.Sprintf("%s pull %s\n%s inspect --format='{{index .RepoDigests 0}}' %s\nand name the image by what that prints", engine, shellWord(ref), engine, shellWord(ref))
}

// imageRef is the image that the command starts, by the name it has in the command.
func imageRef(f facts) string {
	if f.image.ref != "" {
		return f.image.ref
	}
	if c := f.job.Container; c != nil && c.Verb != "exec" {
		return c.Image
	}
	return ""
}

func digestOf(f facts, name string) string {
	for _, d := range f.image.facts.Digests {
		if have, _, digest := imageName(d); have == name && digest != "" {
			return d
		}
	}
	return ""
}

// memoryMiB reads a size as the engines write it: 64m, 1g, 2GiB, bytes without a letter.
func memoryMiB(text string) (int64, bool) {
	text = strings.ToLower(strings.TrimSpace(text))
	digits := strings.TrimRight(text, "bkmgtpi ")
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || n < 0 || n > 1<<40 {
		return 0, false
	}
	switch unit := strings.TrimSpace(text[len(digits):]); {
	case unit == "" || unit == "b":
		return int64(n) >> 20, true
	case unit[0] == 'k':
		return int64(n) >> 10, true
	case unit[0] == 'm':
		return int64(n), true
	case unit[0] == 'g':
		return int64(n * 1024), true
	case unit[0] == 't':
		return int64(n * 1024 * 1024), true
	}
	return 0, false
}
