package place

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestClient: the container client's own command in others, and other words in its place.
func TestClient(t *testing.T) {
	t.Parallel()
	type want struct {
		Words   []string
		Dir     string
		Host    string // DOCKER_HOST
		Sudo    bool
		Unclear []string
	}
	fields := strings.Fields
	for _, c := range []struct {
		name string
		argv []string
		want want
		// with is the command with "--label=a b" behind the verb of its client.
		with []string
	}{
		{
			name: "no shell", argv: fields("sudo docker run img python train.py"),
			want: want{Words: fields("sudo docker run img python train.py"), Dir: "/d", Host: "ours"},
			with: append(fields("sudo docker run"), append([]string{"--label=a b"}, fields("img python train.py")...)...),
		},
		{
			name: "a shell inside the container", argv: []string{"docker", "run", "img", "bash", "-c", "cd /w && python train.py"},
			want: want{Words: []string{"docker", "run", "img", "bash", "-c", "cd /w && python train.py"}, Dir: "/d", Host: "ours"},
			with: []string{"docker", "run", "--label=a b", "img", "bash", "-c", "cd /w && python train.py"},
		},
		{
			name: "bash", argv: []string{"bash", "-lc", "cd x  &&  docker run --rm  'my img' python train.py # go"},
			want: want{Words: []string{"docker", "run", "--rm", "my img", "python", "train.py"}, Dir: "/d/x", Host: "ours"},
			with: []string{"bash", "-lc", "cd x  &&  docker run '--label=a b' --rm  'my img' python train.py # go"},
		},
		{
			name: "shells around and inside", argv: []string{"nice", "sh", "-c", `exec bash -c "sudo docker run img sh -c 'python train.py'"`, "name"},
			want: want{Words: []string{"sudo", "docker", "run", "img", "sh", "-c", "python train.py"}, Dir: "/d", Host: "ours"},
			with: []string{"nice", "sh", "-c", `exec bash -c 'sudo docker run '\''--label=a b'\'' img sh -c '\''python train.py'\'''`, "name"},
		},
		{
			name: "an engine of its own", argv: []string{"bash", "-c", "export DOCKER_HOST=unix:///x; docker run img python train.py"},
			want: want{Words: fields("docker run img python train.py"), Dir: "/d", Host: "unix:///x"},
			with: []string{"bash", "-c", "export DOCKER_HOST=unix:///x; docker run '--label=a b' img python train.py"},
		},
		{
			name: "an engine that is not known", argv: []string{"bash", "-c", "export DOCKER_HOST=$(x); docker run img python train.py"},
			want: want{Words: fields("docker run img python train.py"), Dir: "/d", Host: "ours", Unclear: []string{"DOCKER_HOST"}},
			with: []string{"bash", "-c", "export DOCKER_HOST=$(x); docker run '--label=a b' img python train.py"},
		},
		{
			name: "sudo further out", argv: []string{"sudo", "bash", "-c", "docker run img python train.py"},
			want: want{Words: fields("docker run img python train.py"), Dir: "/d", Sudo: true},
			with: []string{"sudo", "bash", "-c", "docker run '--label=a b' img python train.py"},
		},
		{
			name: "a folder that is not known", argv: []string{"bash", "-c", "cd - && docker exec box python train.py"},
			want: want{Words: fields("docker exec box python train.py"), Host: "ours"},
			with: []string{"bash", "-c", "cd - && docker exec '--label=a b' box python train.py"},
		},
		{
			name: "compose", argv: []string{"bash", "-c", "cd /c && docker compose -f c.yml run trainer python train.py"},
			want: want{Words: fields("docker compose -f c.yml run trainer python train.py"), Dir: "/c", Host: "ours"},
			with: []string{"bash", "-c", "cd /c && docker compose -f c.yml run '--label=a b' trainer python train.py"},
		},
		{
			name: "start", argv: []string{"bash", "-c", "docker start -a box"},
			want: want{Words: fields("docker start -a box"), Dir: "/d", Host: "ours"},
			with: []string{"bash", "-c", "docker start '--label=a b' -a box"},
		},
		{
			name: "an option that is not known", argv: []string{"bash", "-c", "docker run --frob img python train.py"},
			want: want{Words: fields("docker run --frob img python train.py"), Dir: "/d", Host: "ours"},
			with: []string{"bash", "-c", "docker run '--label=a b' --frob img python train.py"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			before := slices.Clone(c.argv)
			got := table(t).Client(c.argv, "/d", map[string]string{"DOCKER_HOST": "ours", "X": "y"})
			if got == nil {
				t.Fatal("no client")
			}
			if d := cmp.Diff(c.want, want{got.Words, got.Dir, got.Env["DOCKER_HOST"], got.Sudo, got.Unclear}); d != "" {
				t.Error(d)
			}
			same, err := got.Command(got.Words)
			// Which quotes an inner shell's text stands in may change.
			if err != nil || !slices.Equal(same, c.argv) && c.name != "shells around and inside" {
				t.Errorf("unchanged it is %q, %v", same, err)
			}
			verb := slices.IndexFunc(got.Words, func(w string) bool { return slices.Contains([]string{"run", "exec", "start"}, w) })
			more, err := got.Command(slices.Insert(slices.Clone(got.Words), verb+1, "--label=a b"))
			if d := cmp.Diff(c.with, more); d != "" || err != nil {
				t.Errorf("%v\n%s", err, d)
			}
			if !slices.Equal(before, c.argv) {
				t.Errorf("the command that was given is %q now", c.argv)
			}
		})
	}
	for _, line := range []string{"python train.py", "ssh box docker run img", "bash train.sh"} {
		if got := table(t).Client(fields(line), "/d", nil); got != nil {
			t.Errorf("%s: a client %q", line, got.Words)
		}
	}
}
