package preflight

import (
	"strings"
	"testing"

	"sparkrun/internal/job"
)

func TestH7(t *testing.T) {
	t.Parallel()
	const img = " nvcr.io/nvidia/pytorch:25.11-py3 python train.py"
	const limits = " --ulimit memlock=-1 --ulimit stack=67108864"
	daemon := map[string]string{"etc/docker/daemon.json": `{"runtimes": {"nvidia": {}}, "default-runtime": "nvidia"}`}
	for _, c := range []struct {
		name   string
		line   string
		knobs  []string
		files  map[string]string
		env    []string
		tree   string
		value  string
		fix    string
		change func(*job.Job)
	}{
		{name: "the playbook's own line", line: "docker run --gpus all -it --rm --ipc=host -v /home/ada:/workspace -w /workspace" + img, value: "pass"},
		{
			name: "nothing at all", line: "docker run" + img, value: "warn: no flag gives the container the GPU",
			fix: "add behind `docker run`: --gpus all" + limits,
		},
		{name: "podman's way", line: "podman run" + img, value: "warn: no flag gives the container the GPU", fix: "add behind `podman run`: --device nvidia.com/gpu=all" + limits},
		{name: "podman with the toolkit's hook", line: "podman run" + img, files: map[string]string{"usr/share/containers/oci/hooks.d/oci-nvidia-hook.json": "{}"}, value: "pass"},
		{name: "the runtime", line: "docker run --runtime=nvidia" + img, value: "pass"},
		{name: "the runtime, and nothing visible", line: "docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=void" + img, value: "warn: NVIDIA_VISIBLE_DEVICES=void hides the GPU", fix: "-e NVIDIA_VISIBLE_DEVICES=all"},
		{name: "a device by hand", line: "docker run --device /dev/nvidia0" + img, value: "pass"},
		{name: "the default runtime", line: "docker run" + img, files: daemon, value: "pass"},
		{name: "a torn daemon.json", line: "docker run" + img, files: map[string]string{"etc/docker/daemon.json": `{"default-runtime": "nvi`}, value: "warn: no flag gives the container the GPU"},
		{name: "workers on 64 MiB", line: "docker run --gpus all" + img, knobs: []string{"num_workers", "4"}, value: "warn: 4 data workers share 64 MiB of /dev/shm", fix: "--ipc=host" + limits},
		{name: "workers on too little", line: "docker run --gpus all --shm-size=65536k" + img, knobs: []string{"num_workers", "4"}, value: "warn: 4 data workers share 64 MiB of /dev/shm (--shm-size 65536k)"},
		{name: "workers with room", line: "docker run --gpus all --shm-size=16g" + img, knobs: []string{"num_workers", "4"}, value: "pass"},
		{name: "workers with the host's", line: "docker run --gpus all --ipc host" + img, knobs: []string{"num_workers", "4"}, value: "pass"},
		{name: "no workers", line: "docker run --gpus all" + img, knobs: []string{"num_workers", "0"}, value: "pass"},
		{
			name: "saved inside", line: "docker run --gpus all --rm -v /d:/data" + img, knobs: []string{"output_dir", "/out/run 1"},
			value: "warn: it saves to /out/run 1, which is on no mount, and --rm deletes that", fix: `-v "$(pwd)"/'run 1':'/out/run 1'` + limits,
		},
		{name: "saved inside, and kept", line: "docker run --gpus all -v /d:/data" + img, knobs: []string{"output_dir", "/out/run1"}, value: "pass"},
		{name: "saved on a mount", line: "docker run --gpus all --rm -v /d:/out" + img, knobs: []string{"output_dir", "/out/run1"}, value: "pass"},
		{name: "saved in a named volume", line: "docker run --gpus all --rm -v ckpt:/out" + img, knobs: []string{"output_dir", "/out/run1"}, value: "pass"},
		{name: "saved on a tmpfs", line: "docker run --gpus all --rm --tmpfs /out" + img, knobs: []string{"output_dir", "/out"}, value: "warn: it saves to /out, which is on no mount, and --rm deletes that"},
		{name: "a deeper mount", line: "docker run --gpus all --rm -v /d:/out --tmpfs /out/x" + img, knobs: []string{"output_dir", "/out/x/y"}, value: "warn: it saves to /out/x/y, which is on no mount, and --rm deletes that"},
		{name: "read-only", line: "docker run --gpus all -v /d:/out:ro" + img, knobs: []string{"output_dir", "/out"}, value: "warn: /out, where it saves, is mounted read-only", fix: "mount /out without ro"},
		{name: "below the image's folder", line: "docker run --gpus all --rm -v /d:/data" + img, knobs: []string{"output_dir", "outputs"}, value: "warn: it saves to /workspace/outputs, which is on no mount, and --rm deletes that"},
		{name: "below -w", line: "docker run --gpus all --rm -v /d:/data -w /data" + img, knobs: []string{"output_dir", "outputs"}, value: "pass"},
		{
			name: "in a folder of this machine", line: "docker run --gpus all --rm -v /d:/data" + img, knobs: []string{"output_dir", "outputs"}, value: "pass",
			change: func(j *job.Job) { j.TrainerDir = "/d" },
		},
		{name: "a variable", line: "docker run --gpus all --rm -v /d:/data" + img, knobs: []string{"output_dir", "$OUT/x"}, value: "info: whether $OUT/x, where it saves, lies on a mount cannot be told (the path is worked out inside), and --rm deletes what does not: name it by an absolute path, or give -w"},
		{
			name: "no mount, and a trainer", line: "docker run --gpus all --rm" + img, value: "warn: no folder is mounted, and --rm deletes what it saves",
			change: func(j *job.Job) { j.Profile = "trl" },
		},
		{name: "no mount, and any program", line: "docker run --gpus all --rm" + img, value: "pass"},
		{
			name: "two at once", line: "docker run --ulimit memlock=-1 --ulimit stack=67108864" + img, knobs: []string{"num_workers", "2"},
			value: "warn: no flag gives the container the GPU; 2 data workers share 64 MiB of /dev/shm", fix: "add behind `docker run`: --gpus all --ipc=host",
		},
		{name: "relative, in a folder that the image chooses", line: "docker run --gpus all --rm -v /home/ada/d:/data x:1 t", knobs: []string{"output_dir", "outputs/x"}, value: "info: whether outputs/x, where it saves, lies on a mount cannot be told (the image's own folder is not known), and --rm deletes what does not: name it by an absolute path, or give -w"},
		{name: "relative, with -w", line: "docker run --gpus all --rm -w /data -v /home/ada/d:/data" + img, knobs: []string{"output_dir", "outputs/x"}, value: "pass"},
		{
			name: "by flags of a trainer that nobody knows", line: "docker run --gpus all --rm -v /home/ada:/work x:1 python t.py --output_dir /out --dataloader_num_workers 4",
			value: "warn: 4 data workers share 64 MiB of /dev/shm; it saves to /out, which is on no mount, and --rm deletes that", fix: "--ipc=host",
		},
		{name: "workers whose batches are small", line: "docker run --gpus all" + img, knobs: []string{"num_workers", "4", "micro_batch", "4", "seq_len", "2048"}, value: "pass"},
		{name: "workers whose batches are large", line: "docker run --gpus all" + img, knobs: []string{"num_workers", "8", "micro_batch", "64", "seq_len", "32768"}, value: "warn: 8 data workers share 64 MiB of /dev/shm", fix: "--ipc=host"},
		{name: "a GPU that is not there", line: "docker run --gpus device=1" + img, value: "warn: --gpus device=1 names a GPU that is not there (the only GPU is 0)", fix: "--gpus all"},
		{name: "in the quotes that docker wants", line: `docker run --gpus "device=0,1"` + img, value: `warn: --gpus "device=0,1" names a GPU that is not there (the only GPU is 0)`, fix: "--gpus all"},
		{name: "the one that is there", line: "docker run --gpus device=0" + img, value: "pass"},
		{name: "too many", line: "docker run --gpus 2" + img, value: "warn: --gpus 2 asks for more GPUs than there are (the only GPU is 0)"},
		{name: "by its UUID", line: "docker run --gpus device=GPU-12" + img, value: "pass"},
		{name: "podman's", line: "podman run --device nvidia.com/gpu=1" + img, value: "warn: --device nvidia.com/gpu=1 names a GPU that is not there (the only GPU is 0)"},
		{name: "by the variable", line: "docker run --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=3" + img, value: "warn: NVIDIA_VISIBLE_DEVICES=3 names a GPU that is not there (the only GPU is 0)"},
		{name: "by a variable that does not count", line: "docker run --gpus all -e NVIDIA_VISIBLE_DEVICES=3" + img, value: "pass"},
		{name: "a limit of memory", line: "docker run --gpus all -m 16g" + img, value: "warn: the container may only use 16384 MiB of 128.5 GB (--memory 16g)", fix: "leave --memory out"},
		{name: "a limit that is none", line: "docker run --gpus all --memory 120g" + img, value: "pass"},
		{name: "latest", line: "docker run --gpus all me/train:latest x", value: "info: the tag of me/train:latest names another image from time to time", fix: "docker inspect --format='{{index .RepoDigests 0}}' me/train:latest"},
		{name: "no tag", line: "docker run --gpus all me/train x", value: "info: the tag of me/train names another image from time to time"},
		{name: "a digest", line: "docker run --gpus all me/train@sha256:ab x", value: "pass"},
		{name: "exec", line: "docker exec box python x.py", value: "skip: the container runs already: its flags were given when it was made (by design)"},
		{name: "an unknown option", line: "docker run --tomorrow x" + img, value: "info: the flags of the container are not all known: the option --tomorrow is not known"},
		{name: "another machine's engine", line: "docker -H ssh://box run" + img, value: "skip: -H: the engine may be another machine's (by design)"},
		{name: "another machine's engine, by the environment", line: "docker run" + img, env: []string{"DOCKER_HOST", "tcp://box:2375"}, value: "skip: DOCKER_HOST: the engine may be another machine's (by design)"},
		{name: "a laptop", line: "docker run" + img, tree: "laptop", value: "pass"},
		{name: "a laptop, workers", line: "docker run" + img, tree: "laptop", knobs: []string{"num_workers", "4"}, value: "info: 4 data workers share 64 MiB of /dev/shm"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := clientJob(t, strings.Fields(c.line), c.knobs...)
			if c.change != nil {
				c.change(j)
			}
			var f Finding
			if in := (Input{Getenv: env(c.env...), Job: j}); c.tree == "" {
				f = checkOnSpark(t, in, c.files, lookContainerFlags, judgeContainerFlags)
			} else {
				in.Root, in.Device = "testdata/"+c.tree, noLibrary
				f = find(t, Run(t.Context(), in), "H7")
			}
			if f.Value() != c.value {
				t.Errorf("%q, want %q", f.Value(), c.value)
			}
			if !strings.Contains(f.Fix, c.fix) {
				t.Errorf("fix %q, want %q", f.Fix, c.fix)
			}
			if f.Status == Warn && (f.Fix == "" || f.Cost == "") {
				t.Errorf("no fix or no cost: %+v", f)
			}
		})
	}
	if f := find(t, Run(t.Context(), Input{Root: "testdata/spark", Device: gb10, Job: pythonJob("/usr/bin/python3")}), "H7"); f.Value() != "skip: the command starts no container (by design)" {
		t.Errorf("no container: %q", f.Value())
	}
}

func TestH7OfCompose(t *testing.T) {
	t.Parallel()
	const gpu = "services:\n  train:\n    image: x:1\n    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}}\n"
	for _, c := range []struct {
		name  string
		line  string
		files map[string]string
		env   []string
		knobs []string
		value string
		fix   string
	}{
		{name: "reserved", line: "docker compose up", files: map[string]string{"compose.yaml": gpu}, value: "pass"},
		{name: "gpus", line: "docker compose up", files: map[string]string{"docker-compose.yml": "services: {train: {gpus: all}}"}, value: "pass"},
		{name: "none", line: "docker compose run train", files: map[string]string{"compose.yml": "services: {train: {image: x}, db: {image: y}}"}, value: "warn: no service of the compose file gets the GPU", fix: "gpus: all"},
		{name: "of the other service", line: "docker compose run train", files: map[string]string{"compose.yml": "services: {train: {image: x}, db: {gpus: all}}"}, value: "warn: no service of the compose file gets the GPU", fix: "gpus: all"},
		{name: "by the override", line: "docker compose up train", files: map[string]string{"compose.yml": "services: {train: {image: x}}", "compose.override.yml": "services: {train: {runtime: nvidia}}"}, value: "pass"},
		{name: "by an override of another ending", line: "docker compose up train", files: map[string]string{"compose.yaml": "services: {train: {image: x}}", "compose.override.yml": "services: {train: {runtime: nvidia}}"}, value: "pass"},
		{name: "yml before yaml of the old name", line: "docker compose up", files: map[string]string{"docker-compose.yml": gpu, "docker-compose.yaml": "services: {train: {image: x}}"}, value: "pass"},
		{name: "the file named", line: "docker compose -f deploy/a.yml up", files: map[string]string{"deploy/a.yml": gpu, "compose.yml": "services: {train: {}}"}, value: "pass"},
		{name: "the file of the environment", line: "docker compose up", files: map[string]string{"b.yml": gpu}, env: []string{"COMPOSE_FILE", "b.yml"}, value: "pass"},
		{name: "a folder up", line: "docker compose --project-directory deep/er up", files: map[string]string{"compose.yml": gpu, "deep/er/x": ""}, value: "pass"},
		{name: "workers", line: "docker compose up", files: map[string]string{"compose.yml": gpu}, knobs: []string{"num_workers", "8"}, value: "warn: 8 data workers share the default 64 MiB of /dev/shm in the service train", fix: "ipc: host"},
		{name: "a limit of memory", line: "docker compose up", files: map[string]string{"compose.yml": "services: {train: {gpus: all, mem_limit: 16g}}"}, value: "warn: the container may only use 16384 MiB of 128.5 GB (mem_limit of the service train)", fix: "without mem_limit"},
		{name: "the limit of deploy", line: "docker compose up", files: map[string]string{"compose.yml": "services: {train: {gpus: all, deploy: {resources: {limits: {memory: 8G}}}}}"}, value: "warn: the container may only use 8192 MiB"},
		{name: "workers with room", line: "docker compose up", files: map[string]string{"compose.yml": gpu + "    shm_size: 8gb\n"}, knobs: []string{"num_workers", "8"}, value: "pass"},
		{name: "lost", line: "docker compose run --rm train", files: map[string]string{"compose.yml": gpu + "    volumes: ['./d:/data']\n"}, knobs: []string{"output_dir", "/out"}, value: "warn: it saves to /out, which is on no mount, and --rm deletes that", fix: "volumes:"},
		{name: "kept", line: "docker compose run --rm train", files: map[string]string{"compose.yml": gpu + "    volumes: [{type: bind, source: ./d, target: /out}]\n"}, knobs: []string{"output_dir", "/out"}, value: "pass"},
		{name: "no file", line: "docker compose up", value: "info: the flags of the container are not all known: no compose file was found"},
		{name: "a torn file", line: "docker compose up", files: map[string]string{"compose.yml": "services: {train: ["}, value: "info: the flags of the container are not all known: the compose file /home/ada/compose.yml is not understood"},
		{name: "a key twice", line: "docker compose up", files: map[string]string{"compose.yml": "services:\n  train:\n    image: x\n    image: y\n"}, value: "info: the flags of the container are not all known: the compose file /home/ada/compose.yml is not understood: yaml: unmarshal errors: line 4: mapping key"},
		{name: "a folder in its place", line: "docker compose up", files: map[string]string{"compose.yml/x": ""}, value: "info: the flags of the container are not all known: the compose file cannot be read"},
		{name: "extends", line: "docker compose up", files: map[string]string{"compose.yml": "services: {train: {extends: {file: a.yml, service: b}}}"}, value: "info: the flags of the container are not all known: the service train of /home/ada/compose.yml extends another one"},
		{name: "no services", line: "docker compose up", files: map[string]string{"compose.yml": "version: '3'"}, value: "info: the flags of the container are not all known: the compose file names no service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			files := make(map[string]string)
			for name, text := range c.files {
				files["home/ada/"+name] = text
			}
			j := clientJob(t, strings.Fields(c.line), c.knobs...)
			f := checkOnSpark(t, Input{Getenv: env(c.env...), Job: j}, files, lookContainerFlags, judgeContainerFlags)
			if !strings.HasPrefix(f.Value(), c.value) || f.Status == Pass && c.value != "pass" || !strings.Contains(f.Fix, c.fix) {
				t.Errorf("%q, fix %q", f.Value(), f.Fix)
			}
		})
	}
}
