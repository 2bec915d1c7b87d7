package preflight

import (
	"context"
	"slices"
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// clientJob is a command that starts a container, as ladder/trainer understands it, with
// knobs as pairs.
func clientJob(t *testing.T, argv []string, knobs ...string) *job.Job {
	t.Helper()
	table, err := loadClients()
	if err != nil {
		t.Fatal(err)
	}
	c, ok := table.find(argv, 0)
	if !ok {
		t.Fatalf("no client in %q", argv)
	}
	j := &job.Job{Argv: argv, Dir: "/home/ada", Container: &job.Container{Engine: c.engine, Verb: c.verb, Image: c.operand}, Knobs: job.Knobs{}}
	if c.verb == "compose" {
		j.Container.Image = ""
	}
	for i := 0; i+1 < len(knobs); i += 2 {
		j.Knobs[job.Knob(knobs[i])] = job.Setting{Value: knobs[i+1]}
	}
	return j
}

// checkOnSpark makes one check alone on a Spark that has no files but these.
func checkOnSpark[T any](t *testing.T, in Input, files map[string]string, look func(context.Context, view) T, judge func(T, facts) Finding) Finding {
	t.Helper()
	r := rootOf(copyTree(t, "", files))
	v := view{root: r, getenv: environment(in.Job, in.Getenv), job: in.Job, stack: loadedStack(t), in: in}
	f := facts{
		job: in.Job, machine: "aarch64", limit: DefaultLimit, stack: v.stack, platform: DGXSpark, in: in, getenv: v.getenv,
		gpu: askDevice(t.Context(), DefaultLimit, gb10), python: readPython(t.Context(), v), memory: readMemory(rootOf("testdata/spark")),
	}
	f.torch, f.image = f.python.torch, f.python.image
	return finish(judge(look(t.Context(), v), f), "X1", "")
}

func TestClientFlagsAreRead(t *testing.T) {
	t.Parallel()
	table, err := loadClients()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		argv []string
		verb string // engine verb operand
		want string
	}{
		{
			"spark playbook", strings.Fields("docker run --gpus all -it --rm --ipc=host -v /h:/r -w /workspace nvcr.io/nvidia/pytorch:25.11-py3 python --gpus none x.py"),
			"docker run nvcr.io/nvidia/pytorch:25.11-py3", "--gpus=all -i= -t= --rm= --ipc=host -v=/h:/r -w=/workspace",
		},
		{
			"joined values", strings.Fields("docker run -v/h:/r -itw /w --shm-size 2g --rm=false -eA=1 img"),
			"docker run img", "-v=/h:/r -i= -t= -w=/w --shm-size=2g --rm=false -e=A=1",
		},
		{"sudo as the user docker", strings.Fields("sudo -u docker docker --context default run --gpus=all img"), "docker run img", "--gpus=all"},
		{"docker container run", strings.Fields("/usr/bin/docker container create --gpus all -- img x"), "docker create img", "--gpus=all"},
		{"podman", strings.Fields("podman run --device nvidia.com/gpu=all --ulimit=memlock=-1 img"), "podman run img", "--device=nvidia.com/gpu=all --ulimit=memlock=-1"},
		{"exec", strings.Fields("docker exec -it -e A=b box bash -c x"), "docker exec box", "-i= -t= -e=A=b"},
		{"within a shell", []string{"bash", "-lc", "cd /w && docker run --gpus all \\\n -v \"$PWD:/w\" --name 'a b' img python x.py"}, "docker run img", "--gpus=all -v=$PWD:/w --name=a b"},
		{"compose run", strings.Fields("docker compose -f a.yml run --rm -v /a:/b train python x.py"), "docker compose train", "--rm= -v=/a:/b"},
		{"docker-compose up", strings.Fields("docker-compose up --build train"), "docker compose train", ""},
		{"an option of tomorrow", strings.Fields("docker run --gpus all --tomorrow x img"), "docker run ", "--gpus=all"},
	} {
		got, ok := table.find(c.argv, 0)
		if !ok {
			t.Errorf("%s: no client", c.name)
			continue
		}
		var options []string
		for _, o := range got.options {
			options = append(options, o.name+"="+o.value)
		}
		if verb := got.engine + " " + got.verb + " " + got.operand; verb != c.verb || strings.Join(options, " ") != c.want {
			t.Errorf("%s: %q %q", c.name, verb, options)
		}
		if (got.unread != "") != strings.Contains(c.name, "tomorrow") {
			t.Errorf("%s: unread %q", c.name, got.unread)
		}
	}
	for _, argv := range [][]string{{"python", "docker.py"}, {"docker", "ps"}, {"docker"}, {"bash", "-c", "$(echo docker run"}, {"x", "$(y z)"}, {"docker", "run"}} {
		if c, ok := table.find(argv, 0); ok && c.operand != "" {
			t.Errorf("%q is taken for %+v", argv, c)
		}
	}
}

func TestMountsOfAClient(t *testing.T) {
	t.Parallel()
	argv := strings.Fields("docker run -v /h:/a -v vol:/b:ro -v /only/inside/ --mount type=bind,source=/h,target=/c,readonly --mount type=tmpfs,dst=/d --mount type=volume,src=x,destination=/e --tmpfs /f:size=1g -v /h:/g:O img")
	table, _ := loadClients()
	c, _ := table.find(argv, 0)
	want := []clientMount{
		{inside: "/a", source: "/h", lasting: true},
		{inside: "/b", source: "vol", lasting: true, readOnly: true},
		{inside: "/only/inside", volume: true},
		{inside: "/c", source: "/h", lasting: true, readOnly: true},
		{inside: "/d", volume: true},
		{inside: "/e", source: "x", volume: true, lasting: true},
		{inside: "/f", volume: true},
		{inside: "/g", source: "/h"},
	}
	got := c.mounts()
	slices.SortFunc(got, func(a, b clientMount) int { return strings.Compare(a.inside, b.inside) })
	slices.SortFunc(want, func(a, b clientMount) int { return strings.Compare(a.inside, b.inside) })
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestEnvironmentOfATrainerInAContainer(t *testing.T) {
	t.Parallel()
	tree := copyTree(t, "", map[string]string{"home/ada/vars": "# a comment\nFROM_FILE=1\nPASSED_ON\n\nTYPED=file\n"})
	j := clientJob(t, strings.Fields("docker run --env-file vars -e TYPED=flag -e PASSED -e MISSING img python x.py"))
	getenv := env("PASSED", "yes", "PASSED_ON", "too", "OUTSIDE", "1")
	c := readClient(view{root: rootOf(tree), getenv: getenv, job: j})
	known := imageFacts{known: true, facts: ImageFacts{Env: map[string]string{"OF_IMAGE": "2", "TYPED": "image"}}}
	e := trainerEnvOf(facts{job: j, getenv: getenv, image: known}, c)
	for name, want := range map[string]string{"FROM_FILE": "1", "PASSED_ON": "too", "TYPED": "flag", "PASSED": "yes", "MISSING": "", "OUTSIDE": "", "OF_IMAGE": "2"} {
		if got, _, ok := e.get(name); got != want || !ok {
			t.Errorf("%s is %q, known %t", name, got, ok)
		}
	}
	e.f.image = imageFacts{}
	if _, _, ok := e.get("OF_IMAGE"); ok {
		t.Error("what an unknown image sets is not known")
	}
	if v, _, _ := trainerEnvOf(facts{getenv: getenv}, clientFlags{}).get("OUTSIDE"); v != "1" {
		t.Errorf("without a container the command's own environment counts, not %q", v)
	}
	j.Argv = strings.Fields("docker run --env-file nowhere img")
	if c := readClient(view{root: rootOf(tree), getenv: getenv, job: j}); !strings.Contains(c.envUnread, "nowhere") {
		t.Errorf("a file that is not there: %q", c.envUnread)
	}
}

func TestImageNames(t *testing.T) {
	t.Parallel()
	for ref, want := range map[string][3]string{
		"a":                              {"a", "", ""},
		"docker.io/a/b:c":                {"a/b", "c", ""},
		"host:5000/a":                    {"host:5000/a", "", ""},
		"host:5000/a:1@sha256:ab":        {"host:5000/a", "1", "sha256:ab"},
		"nvcr.io/nvidia/pytorch:25.09-x": {"nvcr.io/nvidia/pytorch", "25.09-x", ""},
	} {
		if name, tag, digest := imageName(ref); [3]string{name, tag, digest} != want {
			t.Errorf("%s: %q %q %q", ref, name, tag, digest)
		}
	}
}
