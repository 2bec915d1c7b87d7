package place

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCommandEnvironment: where environment and mounts go.
func TestCommandEnvironment(t *testing.T) {
	t.Parallel()
	env := []string{"PYTHONPATH=/s", "WANDB_RUN_ID=r1"}
	mount := []Mount{{Host: "/runs/a 1", Inside: "/sparkrun", ReadOnly: true}}
	cases := []struct {
		name, line string
		host       []string
		mounts     []Mount
		want, err  string
	}{
		{name: "inherited", line: "python train.py", host: env, want: "python train.py"},
		{name: "env sets another", line: "env A=1 python train.py", host: env, want: "env A=1 python train.py"},
		{
			name: "the user's value stays, PYTHONPATH gets ours in front", line: "env PYTHONPATH=/u WANDB_RUN_ID=mine python train.py",
			want: "env PYTHONPATH=/u WANDB_RUN_ID=mine PYTHONPATH=/s:/u python train.py",
		},
		{name: "env -i", line: "env -i A=1 nice python train.py", want: "env -i A=1 PYTHONPATH=/s WANDB_RUN_ID=r1 nice python train.py"},
		{name: "env -u", line: "env -u PYTHONPATH python train.py", host: env[1:], want: "env -u PYTHONPATH PYTHONPATH=/s python train.py"},
		{name: "sudo", line: "sudo python train.py", err: "sudo does not pass our environment on without -E"},
		{name: "sudo -E", line: "sudo -E -- python train.py", host: env[1:], want: "sudo -E PYTHONPATH=/s -- python train.py"},
		{name: "sudo with env behind", line: "sudo env A=1 python train.py", want: "sudo env A=1 PYTHONPATH=/s WANDB_RUN_ID=r1 python train.py"},
		{
			name: "systemd-run", line: "systemd-run --user --pty -- python train.py",
			want: "systemd-run --user --pty --setenv=PYTHONPATH=/s --setenv=WANDB_RUN_ID=r1 -- python train.py",
		},
		{name: "a shell inherits", line: "bash -c 'cd /x && python train.py'", host: env, want: "bash -c 'cd /x && python train.py'"},
		{
			name: "a shell that sets it", line: "bash -c 'export PYTHONPATH=/u; time python train.py # go'", host: env[1:],
			want: "bash -c 'export PYTHONPATH=/u; time PYTHONPATH=/s:/u python train.py # go'",
		},
		{
			name: "a shell that sets it for the command", line: "bash -c 'PYTHONPATH=/u exec python train.py'", host: env[1:],
			want: "bash -c 'PYTHONPATH=/u PYTHONPATH=/s:/u exec python train.py'",
		},
		{name: "a shell with a value not known", line: "bash -c 'export PYTHONPATH=$X; python train.py'", err: "a value that is not known"},
		{
			name: "docker", line: "docker run --rm -v /home/me:/w -w /w img python train.py", mounts: mount,
			want: "docker run --rm -v /home/me:/w -w /w -e PYTHONPATH=/s -e WANDB_RUN_ID=r1 -v '/runs/a 1:/sparkrun:ro' img python train.py",
		},
		{
			name: "docker, typed", line: "docker run -e WANDB_RUN_ID=mine --env=PYTHONPATH=/u -ePYTHONPATH=/v -- img python train.py", mounts: mount,
			want: "docker run -e WANDB_RUN_ID=mine --env=PYTHONPATH=/s:/v -ePYTHONPATH=/s:/v -v '/runs/a 1:/sparkrun:ro' -- img python train.py",
		},
		{
			name: "docker, env inside", line: "docker run img env PYTHONPATH=/u python train.py", mounts: mount,
			want: "docker run -e WANDB_RUN_ID=r1 -v '/runs/a 1:/sparkrun:ro' img env PYTHONPATH=/u PYTHONPATH=/s:/u python train.py",
		},
		{
			name: "docker, a shell inside", line: "sudo docker run img bash -lc 'python train.py'", mounts: mount,
			want: "sudo docker run -e PYTHONPATH=/s -e WANDB_RUN_ID=r1 -v '/runs/a 1:/sparkrun:ro' img bash -lc 'python train.py'",
		},
		{
			name: "docker, an image's own command", line: "docker run img", mounts: mount,
			want: "docker run -e PYTHONPATH=/s -e WANDB_RUN_ID=r1 -v '/runs/a 1:/sparkrun:ro' img",
		},
		{name: "a colon in the folder", line: "podman run img python t.py", mounts: []Mount{{Host: "/a:b", Inside: "/c"}}, want: "podman run -e PYTHONPATH=/s -e WANDB_RUN_ID=r1 --mount type=bind,source=/a:b,target=/c img python t.py"},
		{name: "a folder no option can name", line: "podman run img python t.py", mounts: []Mount{{Host: "/a:b,c", Inside: "/c"}}, err: "cannot be named"},
		{
			name: "compose run", line: "docker compose -f c.yml run --rm trainer python t.py", mounts: mount,
			want: "docker compose -f c.yml run --rm -e PYTHONPATH=/s -e WANDB_RUN_ID=r1 -v '/runs/a 1:/sparkrun:ro' trainer python t.py",
		},
		{name: "docker exec takes environment", line: "docker exec -w /w c python t.py", want: "docker exec -w /w -e PYTHONPATH=/s -e WANDB_RUN_ID=r1 c python t.py"},
		{name: "docker exec takes no mount", line: "docker exec c python t.py", mounts: mount, err: "cannot add a folder"},
		{name: "docker start takes no mount", line: "docker start c", mounts: mount, err: "no place for a mount"},
		{name: "no container", line: "python t.py", mounts: mount, err: "runs in no container"},
		{name: "no container, the same folder", line: "python t.py", mounts: []Mount{{Host: "/r", Inside: "/r"}}, host: env, want: "python t.py"},
	}
	tab := table(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			words := split(t, c.line)
			p := tab.Find(words, "/home/me", map[string]string{"HOME": "/home/me"})
			argv, host, err := p.Command(p.Words, env, c.mounts)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("%q, %v, want the error %q", argv, err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(split(t, c.want), argv); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !slices.Equal(host, c.host) {
				t.Errorf("inherited: %q, want %q", host, c.host)
			}
			if !slices.Equal(words, split(t, c.line)) {
				t.Errorf("the words it was given have changed: %q", words)
			}
		})
	}
}

// TestCommandPathAlreadyJoined: a PYTHONPATH that already ends in the user's is not
// given it twice.
func TestCommandPathAlreadyJoined(t *testing.T) {
	t.Parallel()
	p := table(t).Find([]string{"env", "PYTHONPATH=/u", "python", "t.py"}, "/", nil)
	argv, _, err := p.Command(p.Words, []string{"PYTHONPATH=/s:/u"}, nil)
	if want := "env PYTHONPATH=/u PYTHONPATH=/s:/u python t.py"; err != nil || strings.Join(argv, " ") != want {
		t.Errorf("%q, %v", argv, err)
	}
	for _, bad := range []string{"", "PYTHONPATH", "=x", "A=\x00"} {
		if argv, host, err := p.Command(p.Words, []string{bad}, nil); err == nil {
			t.Errorf("%q is taken: %q %q", bad, argv, host)
		}
	}
}

// TestCommandKeepsTheText: in a shell's text only the words that change do.
func TestCommandKeepsTheText(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, text string
		change     func(words []string) []string
		want       string
	}{
		{
			name: "a value", text: "cd \"$X\" && python  train.py \\\n  --max_length  '4096' \\\n  --run \"a b\" # fine\n",
			change: func(w []string) []string { w[3] = "2048"; return w },
			want:   "cd \"$X\" && python  train.py \\\n  --max_length  2048 \\\n  --run \"a b\" # fine\n",
		},
		{
			name: "a flag more", text: "python train.py \\\n  --a 'b'  ; ",
			change: func(w []string) []string { return append(w, "--run", "it's") },
			want:   "python train.py \\\n  --a 'b' --run 'it'\\''s'  ; ",
		},
		{
			name: "a flag less", text: "python train.py --packing   --a 'b'",
			change: func(w []string) []string { return slices.Delete(w, 2, 3) },
			want:   "python train.py   --a 'b'",
		},
		{
			name: "in the middle", text: "python train.py 'x' 'y' 'z'",
			change: func(w []string) []string { return slices.Insert(w, 3, "--a", "") },
			want:   "python train.py 'x' --a '' 'y' 'z'",
		},
		{
			name: "one replaced by two", text: "python train.py --a=1 'y'",
			change: func(w []string) []string { return slices.Replace(w, 2, 3, "--a", "$2") },
			want:   "python train.py --a '$2' 'y'",
		},
		{
			name: "nested quotes", text: `bash -c "python t.py --a 'b c' --d"`,
			change: func(w []string) []string { return append(w, "e f") },
			want:   `bash -c 'python t.py --a '\''b c'\'' --d '\''e f'\'''`,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := table(t).Find([]string{"bash", "-c", c.text}, "/x", nil)
			if !p.Seen() {
				t.Fatal(p.Opaque, p.Unsure)
			}
			argv, _, err := p.Command(c.change(slices.Clone(p.Words)), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"bash", "-c", c.want}, argv); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestWithLauncherArgs: accelerate's own options can be kept in step.
func TestWithLauncherArgs(t *testing.T) {
	t.Parallel()
	tab := table(t)
	p := tab.Find(split(t, "nice bash -c 'uv run accelerate launch --gradient_accumulation_steps 8 t.py --a'"), "/", nil)
	q, err := p.WithLauncherArgs([]string{"--gradient_accumulation_steps", "16", "--cpu"})
	if err != nil {
		t.Fatal(err)
	}
	argv, _, err := q.Command(q.Words, nil, nil)
	want := split(t, "nice bash -c 'uv run accelerate launch --gradient_accumulation_steps 16 --cpu t.py --a'")
	if err != nil || !slices.Equal(argv, want) {
		t.Errorf("%q, %v, want %q", argv, err, want)
	}
	argv, _, err = p.Command(p.Words, nil, nil)
	if err != nil || argv[3] != "uv run accelerate launch --gradient_accumulation_steps 8 t.py --a" {
		t.Errorf("the first place has changed: %q, %v", argv, err)
	}
	if _, err := tab.Find([]string{"python", "t.py"}, "/", nil).WithLauncherArgs(nil); err == nil {
		t.Error("a launcher that is not there takes options")
	}
}

// TestPaths: paths inside and outside a container.
func TestPaths(t *testing.T) {
	t.Parallel()
	tab := table(t)
	line := "docker run -v /home/me/p:/w -v /home/me/p/data:/data -v /home/me/p/cfg:/w/cfg:ro -v cache:/w/cache --tmpfs /w/tmp " +
		"--mount type=bind,src=./rel,dst=/rel,readonly --mount type=volume,src=/v,dst=/vol -v /d -v ../up/:/up/ -w /w/sub img python t.py"
	p := tab.Find(split(t, line), "/home/me/p", nil)
	for inner, want := range map[string]string{
		"/w":             "/home/me/p",
		"/w/a/../b.yaml": "/home/me/p/b.yaml",
		"b.yaml":         "/home/me/p/sub/b.yaml",
		"../cfg/x.yaml":  "/home/me/p/cfg/x.yaml",
		"/rel/x":         "/home/me/p/rel/x",
		"/up/x":          "/home/me/up/x",
		"/data/d.json":   "/home/me/p/data/d.json",
		"/w/cache/x":     "",
		"/w/tmp":         "",
		"/vol/x":         "",
		"/d/x":           "",
		"/wx":            "",
		"/etc/passwd":    "",
		"":               "",
		"/w/\x00":        "",
	} {
		if got, ok := p.HostPath(inner); got != want || ok != (want != "") {
			t.Errorf("HostPath(%q) = %q, %v, want %q", inner, got, ok, want)
		}
	}
	for host, want := range map[string]string{
		"/home/me/p/b.yaml":     "/w/b.yaml",
		"/home/me/p":            "/w",
		"/home/me/p/data/d":     "/data/d",
		"/home/me/p/cfg/x.yaml": "/w/cfg/x.yaml",
		"/home/me/p/cache/x":    "", // the volume lies over it
		"/home/me/p/rel/x":      "/rel/x",
		"/home/me/px":           "",
		"/etc":                  "",
		"rel":                   "",
	} {
		if got, ok := p.InnerPath(host); got != want || ok != (want != "") {
			t.Errorf("InnerPath(%q) = %q, %v, want %q", host, got, ok, want)
		}
	}

	p = tab.Find([]string{"env", "-C", "sub", "python", "t.py"}, "/home/me", nil)
	if got, ok := p.HostPath("../a"); got != "/home/me/a" || !ok {
		t.Errorf("outside of containers: %q %v", got, ok)
	}
	if got, ok := p.InnerPath("/x/../y"); got != "/y" || !ok {
		t.Errorf("outside of containers: %q %v", got, ok)
	}
	p = tab.Find([]string{"bash", "-c", "cd $(x) && python t.py"}, "/home/me", nil)
	if got, ok := p.HostPath("a"); ok {
		t.Errorf("relative to a folder that is not known: %q", got)
	}
}
