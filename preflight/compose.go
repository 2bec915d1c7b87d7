package preflight

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// composeService is what the compose files say of a service that the command starts.
type composeService struct {
	name string
	// gpu tells how it gets the GPU, "" if not at all; hostIPC that it shares the
	// machine's /dev/shm, of which shm is the size else ("" for the default).
	gpu     string
	hostIPC bool
	shm     string
	// memory is the most it may have, "" for no limit.
	memory  string
	mounts  []clientMount
	workdir string
}

// readCompose reads the compose files of the command. unread says why they do not tell
// all there is.
func readCompose(v view, c clientFlags) (services []composeService, unread string) {
	files, err := composeFiles(v, c)
	if err != "" {
		return nil, err
	}
	merged := make(map[string]*composeService)
	var names []string
	for _, file := range files {
		text, err := v.root.read(file)
		if err != nil {
			return nil, "the compose file cannot be read: " + err.Error()
		}
		if len(text) == maxRead {
			return nil, fmt.Sprintf("the compose file %s is too large to be read", file)
		}
		var doc struct {
			Include  any                       `yaml:"include"`
			Services map[string]map[string]any `yaml:"services"`
		}
		if err := yaml.Unmarshal(text, &doc); err != nil {
			return nil, fmt.Sprintf("the compose file %s is not understood: %s", file, strings.Join(strings.Fields(err.Error()), " "))
		}
		if doc.Include != nil {
			unread = fmt.Sprintf("%s includes other files", file)
		}
		for name, s := range doc.Services {
			if s["extends"] != nil {
				unread = fmt.Sprintf("the service %s of %s extends another one", name, file)
			}
			if merged[name] == nil {
				merged[name] = &composeService{name: name}
				names = append(names, name)
			}
			merged[name].add(s)
		}
	}
	if len(names) == 0 {
		return nil, "the compose file names no service"
	}
	slices.Sort(names)
	for _, name := range names {
		if c.operand == "" || merged[c.operand] == nil || name == c.operand {
			services = append(services, *merged[name])
		}
	}
	return services, unread
}

// composeFiles are the files in the order in which compose lays them over one another.
func composeFiles(v view, c clientFlags) (files []string, unread string) {
	dir := v.job.Dir
	for _, o := range c.global {
		switch o.name {
		case "--project-directory", "--workdir":
			dir = absoluteIn(v.job.Dir, o.value)
		case "-f", "--file":
			if o.value == "-" {
				return nil, "the compose file is read from standard input"
			}
			files = append(files, absoluteIn(v.job.Dir, o.value))
		}
	}
	if len(files) > 0 {
		return files, ""
	}
	if list := v.shell("COMPOSE_FILE"); list != "" {
		for _, f := range filepath.SplitList(list) {
			files = append(files, absoluteIn(v.job.Dir, f))
		}
		return files, ""
	}
	table, err := loadClients()
	if err != nil {
		return nil, err.Error()
	}
	// As compose does, from the folder upwards.
	for {
		if file := firstOf(v, dir, table.Compose.Files); file != "" {
			files = []string{file}
			if over := firstOf(v, dir, table.Compose.Overrides); over != "" {
				files = append(files, over)
			}
			return files, ""
		}
		up := filepath.Dir(dir)
		if up == dir || !filepath.IsAbs(dir) {
			return nil, "no compose file was found"
		}
		dir = up
	}
}

// firstOf is the first of these files that is in the folder, "" where none is.
func firstOf(v view, dir string, names []string) string {
	for _, name := range names {
		if ok, _ := v.root.exists(filepath.Join(dir, name)); ok {
			return filepath.Join(dir, name)
		}
	}
	return ""
}

func absoluteIn(dir, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(dir, name)
}

// add lays what one file says over what is known.
func (s *composeService) add(m map[string]any) {
	if how := composeGPU(m); how != "" {
		s.gpu = how
	}
	if v, ok := m["ipc"].(string); ok {
		s.hostIPC = v == "host" || strings.HasPrefix(v, "container:") || strings.HasPrefix(v, "service:")
	}
	if v, ok := m["shm_size"]; ok {
		s.shm = fmt.Sprint(v)
	}
	if v, ok := m["mem_limit"]; ok {
		s.memory = fmt.Sprint(v)
	}
	if v, ok := under(m, "deploy", "resources", "limits")["memory"]; ok {
		s.memory = fmt.Sprint(v)
	}
	if v, ok := m["working_dir"].(string); ok {
		s.workdir = v
	}
	volumes, _ := m["volumes"].([]any)
	for _, v := range volumes {
		switch v := v.(type) {
		case string:
			s.mounts = append(s.mounts, volumeMount(v))
		case map[string]any:
			kind, _ := v["type"].(string)
			source, _ := v["source"].(string)
			target, _ := v["target"].(string)
			readOnly, _ := v["read_only"].(bool)
			s.mounts = append(s.mounts, clientMount{inside: path.Clean(target), lasting: kind != "tmpfs" && source != "", readOnly: readOnly})
		}
	}
}

// composeGPU finds the words that give a service the GPU.
func composeGPU(m map[string]any) string {
	if v, ok := m["gpus"]; ok && v != nil {
		return "gpus"
	}
	if v, ok := m["runtime"].(string); ok && strings.HasPrefix(v, "nvidia") {
		return "runtime: " + v
	}
	if v, ok := m["privileged"].(bool); ok && v {
		return "privileged"
	}
	devices, _ := m["devices"].([]any)
	for _, d := range devices {
		if strings.Contains(fmt.Sprint(d), "nvidia") {
			return "devices"
		}
	}
	reserved := under(m, "deploy", "resources", "reservations")
	devices, _ = reserved["devices"].([]any)
	for _, d := range devices {
		if text := fmt.Sprint(d); strings.Contains(text, "gpu") || strings.Contains(text, "nvidia") {
			return "deploy: reservations"
		}
	}
	generic, _ := reserved["generic_resources"].([]any)
	if text := strings.ToLower(fmt.Sprint(generic...)); strings.Contains(text, "gpu") {
		return "deploy: generic_resources"
	}
	return ""
}

// under is the mapping behind some keys, nil where there is none.
func under(m map[string]any, keys ...string) map[string]any {
	for _, key := range keys {
		m, _ = m[key].(map[string]any)
	}
	return m
}

// composeFaults judges one service. A service that is no training may well be without a
// GPU: only where no service has one is that told.
func composeFaults(s composeService, seen containerFlagsSeen, f facts) (faults []flagFault, evidence []string) {
	given := slices.ContainsFunc(seen.services, func(s composeService) bool { return s.gpu != "" })
	if !given && seen.gpuUnasked == "" && f.gpuHere() && s.name == seen.services[0].name {
		faults = append(faults, flagFault{"no service of the compose file gets the GPU", costNoGPU, "  gpus: all"})
	}
	trains := s.gpu != "" || len(seen.services) == 1
	if fault, small, note := shmFault(seen.loaders, s.shm, s.name, f); !s.hostIPC && trains {
		if note != "" {
			evidence = append(evidence, note)
		}
		if small {
			fault.fix = "  ipc: host"
			faults = append(faults, fault)
		}
	}
	if fault, ok := memoryFault("mem_limit of the service "+s.name, s.memory, f); ok && trains {
		fault.fix = "  without mem_limit and without a limit of memory under deploy"
		faults = append(faults, fault)
	}
	if seen.client.composeVerb == "run" {
		mounts := append(slices.Clone(s.mounts), seen.client.mounts()...)
		if fault, ok := outputFault(seen.client, f, seen.output, mounts, s.workdir); ok {
			fault.fix = "  volumes: ['./out:/workspace/out']"
			faults = append(faults, fault)
		}
	}
	if s.gpu != "" {
		evidence = append(evidence, fmt.Sprintf("service %s: %s", s.name, s.gpu))
	}
	return faults, evidence
}
