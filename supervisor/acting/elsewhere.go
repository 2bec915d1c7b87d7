package acting

import (
	"path/filepath"
	"slices"
	"strings"
)

// clients are programs whose work is done by processes that are not their children, by
// the words that make them such. A program without words always is one.
var clients = map[string][]string{
	"docker": engineWords, "podman": engineWords, "nerdctl": engineWords,
	"docker-compose": engineWords, "podman-compose": engineWords, "nerdctl-compose": engineWords,
	"ctr": {"run", "exec", "start", "attach"}, "kubectl": {"run", "exec", "attach", "logs"}, "oc": {"run", "exec", "attach", "logs"},
	"lxc": {"exec"}, "incus": {"exec"}, "machinectl": {"shell"},
	"srun": nil, "salloc": nil, "systemd-run": nil, "pdsh": nil, "ssh": nil, "autossh": nil,
}

// engineWords also have those that wait for what was started in the background.
var engineWords = []string{"run", "exec", "start", "attach", "up", "wait", "logs"}

// farOff are those clients whose work may be another machine's.
var farOff = []string{"ssh", "autossh", "pdsh"}

// Elsewhere says that the process with these words waits for work that is done elsewhere,
// by a daemon or another machine: to stop it stops nothing. It returns what the process
// is, as "docker run", or "" for others. machines is over how many the command says it is
// spread: what starts the other machines' part is then beside ours, and not in its place.
func Elsewhere(argv []string, machines int) string {
	if len(argv) == 0 {
		return ""
	}
	name := filepath.Base(argv[0])
	// A client may itself be a script.
	if _, is := clients[name]; !is && len(argv) > 1 && (strings.HasPrefix(name, "python") || name == "sh" || name == "bash" || name == "dash") {
		argv = argv[1:]
		name = filepath.Base(argv[0])
	}
	words, is := clients[name]
	if !is || machines > 1 && slices.Contains(farOff, name) {
		return ""
	}
	if name == "ssh" || name == "autossh" {
		return sshWork(argv)
	}
	if words == nil {
		return name
	}
	for _, w := range argv[1:] {
		if slices.Contains(words, w) {
			return name + " " + w
		}
	}
	return ""
}

// sshValues are the options of ssh that take a value.
const sshValues = "BbcDEeFIiJLlmOoPpQRSWw"

// sshWork tells an ssh that works on another machine from a tunnel and from the transport
// of another program.
func sshWork(argv []string) string {
	host := ""
	rest := argv[1:]
	for ; len(rest) > 0 && host == ""; rest = rest[1:] {
		w := rest[0]
		if !strings.HasPrefix(w, "-") || w == "-" {
			host = w
			continue
		}
		for i := 1; i < len(w); i++ {
			if strings.IndexByte("NWsOQV", w[i]) >= 0 {
				return "" // no command, no shell
			}
			if strings.IndexByte(sshValues, w[i]) >= 0 {
				if i == len(w)-1 && len(rest) > 1 {
					rest = rest[1:] // its value is the next word
				}
				break // else the rest of this one
			}
		}
	}
	if host == "" {
		return ""
	}
	for _, transport := range []string{"git-", "git ", "rsync ", "scp ", "'git", "sftp"} {
		if strings.HasPrefix(strings.Join(rest, " ")+" ", transport) {
			return ""
		}
	}
	return "ssh " + host
}
