package trainer

import (
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// nodes returns over how many machines the command says it is spread: the
// highest number that its options or its environment name, 0 if none does.
func (t *prefixTable) nodes(p *place, words []string, env map[string]string) int {
	most := 0
	if l := p.launcher; l != nil {
		most = nodeOptions(l, words[min(p.args, len(words)):], p.dir)
	} else if p.program != "" {
		most = nodeOptions(&launcherWord{Nodes: t.TrainerNodes, Config: t.TrainerNodeConfig}, words[p.args:], p.dir)
	}
	for _, e := range t.NodeEnv {
		n := nodeCount(env[e.Name])
		if e.Per != "" {
			if per := nodeCount(env[e.Per]); per > 1 {
				n /= per
			}
		}
		most = max(most, n)
	}
	return most
}

func nodeOptions(l *launcherWord, words []string, dir string) int {
	most := 0
	for i, w := range words {
		if !strings.HasPrefix(w, "-") {
			if len(l.Hosts) == 0 && strings.HasSuffix(w, ".py") {
				break // the trainer's own words begin here
			}
			continue
		}
		name, value, inline := strings.Cut(w, "=")
		name = strings.ReplaceAll(strings.TrimLeft(name, "-"), "-", "_")
		if !inline && i+1 < len(words) {
			value = words[i+1]
		}
		has := func(names []string) bool {
			for _, n := range names {
				if n == name {
					return true
				}
			}
			return false
		}
		switch {
		case has(l.Nodes):
			most = max(most, nodeCount(value))
		case has(l.Hosts):
			most = max(most, len(strings.Split(value, ",")))
		case has(l.Hostfile):
			most = max(most, hostLines(absolute(dir, value)))
		case has(l.Config):
			most = max(most, configNodes(absolute(dir, value)))
		}
	}
	return most
}

// nodeCount reads N or MIN:MAX.
func nodeCount(text string) int {
	most := 0
	for _, part := range strings.Split(text, ":") {
		n, err := parseInt(part)
		if err != nil || n < 0 || n > 1<<20 {
			return 0
		}
		most = max(most, int(n))
	}
	return most
}

// hostLines counts the hosts of a host file. One that cannot be read is taken
// for more than one machine: nobody writes a host file for a single one.
func hostLines(path string) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return 2
	}
	n := 0
	for _, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line != "" && line[0] != '#' {
			n++
		}
	}
	return n
}

// configNodes reads num_machines of an accelerate config.
func configNodes(path string) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	var c struct {
		NumMachines int `yaml:"num_machines"`
	}
	if yaml.Unmarshal(data, &c) != nil {
		return 0
	}
	return c.NumMachines
}

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
