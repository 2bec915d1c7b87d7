package acting

import (
	"strings"
	"testing"
)

func TestElsewhere(t *testing.T) {
	t.Parallel()
	c, err := LoadClients()
	if err != nil {
		t.Fatal(err)
	}
	for words, want := range map[string]string{
		"docker run --rm image python3 train.py":                    "docker run",
		"/usr/bin/docker --context x exec -it box python3 train.py": "docker exec",
		"docker compose -f c.yaml up":                               "docker up",
		"docker logs -f box":                                        "docker logs",
		"docker build -t x .":                                       "",
		"docker ps":                                                 "",
		"podman run image":                                          "podman run",
		"nerdctl run image":                                         "nerdctl run",
		"/usr/bin/python3 /usr/bin/podman-compose up":               "podman-compose up",
		"docker-compose up":                                         "docker-compose up",
		"srun -n 1 python3 train.py":                                "srun",
		"ssh spark2 python3 train.py":                               "ssh spark2",
		"ssh -tt -p 22 me@spark2 python3 train.py":                  "ssh me@spark2",
		"ssh -p22 spark2":                                           "ssh spark2",
		"ssh -N -L 6006:localhost:6006 spark2":                      "",
		"ssh -fNT spark2":                                           "",
		"ssh -o SendEnv=GIT_PROTOCOL git@host git-upload-pack x":    "",
		"ssh -l me host rsync --server -logDtpre.iLsfxCIvu . x":     "",
		"ssh -s host sftp":                                          "",
		"ssh -V":                                                    "",
		"python3 train.py run":                                      "",
		"python3 docker.py run":                                     "",
		"python3":                                                   "",
		"sh train.sh docker run":                                    "",
		"":                                                          "",
	} {
		if got := c.Elsewhere(strings.Fields(words), 1); got != want {
			t.Errorf("%q: %q, want %q", words, got, want)
		}
	}
	// The part of other machines is no reason to let this one's run on.
	for words, want := range map[string]string{"ssh spark2 python3 train.py": "", "pdsh -w spark2 train": "", "docker run image": "docker run", "srun train": "srun"} {
		if got := c.Elsewhere(strings.Fields(words), 2); got != want {
			t.Errorf("two machines, %q: %q, want %q", words, got, want)
		}
	}
}

// TestClientsCheck: a table with a mistake is no table, since a client that is not known is
// paused and its work goes on.
func TestClientsCheck(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Clients){
		"no client":                func(c *Clients) { c.Clients = nil },
		"a client without program": func(c *Clients) { c.Clients[0].Programs = nil },
		"an empty program":         func(c *Clients) { c.Clients[0].Programs = []string{""} },
		"a path":                   func(c *Clients) { c.Clients[0].Programs = []string{"bin/docker"} },
		"named twice":              func(c *Clients) { c.Clients = append(c.Clients, c.Clients[0]) },
		"ssh with words":           func(c *Clients) { c.Clients[len(c.Clients)-1].Words = []string{"run"} },
		"no options of ssh":        func(c *Clients) { c.SSH.Takes = "" },
		"what begins any command":  func(c *Clients) { c.SSH.Carries = append(c.SSH.Carries, "") },
		"a broken pattern":         func(c *Clients) { c.Interpreters = []string{"py["} },
	} {
		c, err := LoadClients()
		if err != nil {
			t.Fatal(err)
		}
		if spoil(&c); c.check() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
