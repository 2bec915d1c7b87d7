package preflight

import (
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"sparkrun/internal/sample"
)

// What people do with a stock Spark is no reason for a warning or a hint: a desktop session,
// services that wait, caches, other environments, other kernels and drivers.
func TestOrdinarySparksAreReady(t *testing.T) {
	t.Parallel()
	stock, err := os.ReadFile("testdata/spark/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	memory := func(kib map[string]string) map[string]string {
		text := string(stock)
		for name, value := range kib {
			text = regexp.MustCompile(`(?m)^`+name+`:.*$`).ReplaceAllString(text, name+": "+value+" kB")
		}
		return map[string]string{"proc/meminfo": text}
	}
	kernel := func(release string) map[string]string {
		return map[string]string{
			"proc/sys/kernel/osrelease": release + "\n", "boot/vmlinuz-" + release: "",
			"lib/modules/" + release + "/modules.dep": "", "usr/lib/modules/" + release + "/modules.dep": "",
		}
	}
	// torch for CUDA 13 below a folder of packages, with versions that are nobody's pins.
	packages := func(site string) map[string]string {
		files := map[string]string{
			site + "/torch/__init__.py": "", site + "/torch/version.py": "__version__ = '2.10.0+cu130'\ncuda: Optional[str] = '13.0'\n",
			site + "/nvidia/cu13/lib/libcudart.so.13": "",
		}
		for _, p := range []string{"torch-2.10.0+cu130", "triton-3.6.0", "transformers-5.20.0", "peft-0.20.1", "torchao-0.18.0", "bitsandbytes-0.50.0"} {
			name, version, _ := strings.Cut(p, "-")
			files[site+"/"+p+".dist-info/METADATA"] = "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"
		}
		return files
	}
	with := func(sets ...map[string]string) map[string]string {
		all := map[string]string{}
		for _, s := range sets {
			maps.Copy(all, s)
		}
		return all
	}
	system := func(unit string) string { return "0::/system.slice/" + unit + "\n" }
	gib := func(pid int, mib float64) sample.GPUProcess {
		return sample.GPUProcess{PID: pid, UsedMiB: sample.Known(mib)}
	}
	for _, c := range []struct {
		name   string
		files  map[string]string
		procs  []proc
		change func(*Recorded)
		// interp is the Python of a command; none without.
		interp string
	}{
		{name: "another user, in docker's group", files: map[string]string{"etc/group": "docker:x:999:bob\n"}, change: func(r *Recorded) { r.Env["HOME"], r.Env["USER"], r.Env["PWD"] = "/home/bob", "bob", "/home/bob" }},
		{
			name: "a desktop session", procs: []proc{
				{pid: 2000, ppid: 1, argv: argvOf("/usr/lib/xorg/Xorg vt2"), rssMiB: 150},
				{pid: 2100, ppid: 1, argv: argvOf("/snap/firefox/5000/usr/lib/firefox/firefox"), rssMiB: 900},
				{pid: 2110, ppid: 2100, argv: argvOf("/snap/firefox/5000/usr/lib/firefox/firefox -contentproc"), comm: "Isolated Web Co", rssMiB: 700},
				{pid: 2200, ppid: 1, argv: argvOf("/usr/share/code/code --type=gpu-process"), rssMiB: 500},
				{pid: 2300, ppid: 1, argv: argvOf("/usr/bin/nautilus"), rssMiB: 90},
			},
			change: func(r *Recorded) {
				r.GPU.Processes = []sample.GPUProcess{gib(900, 310), gib(2000, 43), gib(2100, 420), gib(2200, 180), gib(2300, 20)}
			},
		},
		{name: "an editor over ssh", procs: []proc{
			{pid: 4000, ppid: 1, argv: argvOf("/home/ada/.vscode-server/cli/servers/Stable-1/server/node out/server-main.js"), rssMiB: 300},
			{pid: 4001, ppid: 4000, argv: argvOf("/usr/bin/python3 /home/ada/.vscode-server/extensions/isort/lsp_server.py"), rssMiB: 80},
			{pid: 4002, ppid: 4000, argv: argvOf("/home/ada/.vscode-server/node bootstrap-fork --type=extensionHost"), rssMiB: 2500},
		}},
		{name: "the dashboard, docker and persistenced", procs: []proc{
			{pid: 1200, ppid: 1, argv: argvOf("/opt/nvidia/dgx-dashboard-service/dashboard-service -port 11000"), rssMiB: 40, cgroup: system("dgx-dashboard.service")},
			{pid: 1201, ppid: 1, argv: argvOf("/usr/bin/nvidia-persistenced"), rssMiB: 3, cgroup: system("nvidia-persistenced.service")},
			{pid: 1202, ppid: 1, argv: argvOf("/usr/bin/dockerd -H fd://"), rssMiB: 90, cgroup: system("docker.service")},
		}},
		{name: "Ollama that waits", procs: []proc{{pid: 7001, ppid: 1, argv: argvOf("/usr/local/bin/ollama serve"), rssMiB: 60, cgroup: system("ollama.service")}}},
		{name: "Open WebUI", procs: []proc{{pid: 7101, ppid: 1, argv: argvOf("/usr/local/bin/python /usr/local/bin/uvicorn open_webui.main:app"), rssMiB: 1300, cgroup: system("docker-" + strings.Repeat("b", 64) + ".scope")}}},
		{
			name: "JupyterLab as a service, with an idle kernel", procs: []proc{
				{pid: 3000, ppid: 1, argv: argvOf("/home/ada/v/bin/python3 /home/ada/v/bin/jupyter-lab --no-browser"), rssMiB: 140, cgroup: "0::/user.slice/user-1000.slice/user@1000.service/app.slice/jupyterlab.service\n"},
				{pid: 3001, ppid: 3000, argv: argvOf("/home/ada/v/bin/python3 -m ipykernel_launcher -f k.json"), rssMiB: 8000},
			},
			change: func(r *Recorded) { r.GPU.Processes = []sample.GPUProcess{gib(3001, 200)} },
		},
		{name: "monitors", procs: []proc{
			{pid: 600, ppid: 1, argv: argvOf("/home/ada/v/bin/python3 /home/ada/v/bin/tensorboard --logdir train_runs"), rssMiB: 700},
			{pid: 601, ppid: 1, argv: argvOf("nvidia-smi -l 1"), rssMiB: 20},
			{pid: 602, ppid: 1, argv: argvOf("tail -f train.log"), rssMiB: 2},
			{pid: 603, ppid: 1, argv: argvOf("vim train.py"), rssMiB: 20},
			{pid: 604, ppid: 1, argv: argvOf("ray::IDLE"), rssMiB: 200},
		}},
		{name: "updates that wait", files: with(map[string]string{
			"run/reboot-required": "*** System restart required ***\n", "boot/vmlinuz-6.17.0-1020-nvidia": "",
			"lib/modules/6.17.0-1020-nvidia/modules.dep": "", "usr/lib/modules/6.17.0-1020-nvidia/modules.dep": "",
		})},
		{name: "a page cache that is full", files: memory(map[string]string{"MemFree": "2100000", "Cached": "116000000", "MemAvailable": "117500000"})},
		{name: "some swap used", files: memory(map[string]string{"SwapFree": "16000000"})},
		{name: "no swap", files: memory(map[string]string{"SwapTotal": "0", "SwapFree": "0"})},
		{name: "memory in small pieces", files: map[string]string{"proc/buddyinfo": "Node 0, zone   Normal  80000 90000 40000 20000 9000 2000 100 10 0 0 0\n"}},
		{name: "settings of the memory as guides advise", files: map[string]string{
			"proc/sys/vm/swappiness": "10\n", "proc/sys/vm/min_free_kbytes": "1048576\n", "proc/sys/vm/overcommit_memory": "1\n",
			"sys/fs/cgroup/user.slice/memory.min": "4294967296\n", "sys/fs/cgroup/system.slice/ssh.service/memory.min": "201326592\n",
		}},
		{name: "a second Spark on the cable", files: map[string]string{"sys/class/net/enp1s0f0np0/operstate": "up\n", "sys/class/net/enP2p1s0f0np0/operstate": "up\n"}},
		{name: "another maker's box", files: map[string]string{"sys/class/dmi/id/product_name": "GX10\n"}},
		{name: "a terminal multiplexer", files: map[string]string{"proc/self/cgroup": "0::/user.slice/user-1000.slice/user@1000.service/tmux-spawn-1.scope\n"}},
		{name: "up for a minute", files: map[string]string{"proc/uptime": "60.00 900.00\n", "proc/stat": "btime 1784059140\n"}},
		{name: "an older kernel", files: kernel("6.14.0-1015-nvidia")},
		{name: "a newer kernel with large pages", files: kernel("6.17.0-1021-nvidia-64k")},
		{name: "a newer driver", files: map[string]string{"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  610.20  Release Build\n"}, change: func(r *Recorded) { r.Device.DriverVersion, r.Device.CUDADriver = "610.20", 13020 }},
		{name: "a venv", interp: "/home/ada/v/bin/python", files: with(packages("home/ada/v/lib/python3.12/site-packages"), map[string]string{
			"home/ada/v/pyvenv.cfg": "home = /usr/bin\nversion = 3.12.3\n", "home/ada/v/bin/python": "-> /usr/bin/python3",
		})},
		{name: "uv's venv", interp: "/home/ada/.venv/bin/python", files: with(packages("home/ada/.venv/lib/python3.12/site-packages"), map[string]string{
			"home/ada/.venv/pyvenv.cfg": "home = /usr/bin\nuv = 0.9.1\nversion_info = 3.12.3\n", "home/ada/.venv/bin/python": "-> /usr/bin/python3",
		})},
		{name: "conda's base", interp: "/home/ada/miniforge3/bin/python", files: with(packages("home/ada/miniforge3/lib/python3.12/site-packages"), map[string]string{
			"home/ada/miniforge3/bin/python3.12": "\x7fELF", "home/ada/miniforge3/bin/python": "-> python3.12", "home/ada/miniforge3/conda-meta/history": "",
		})},
		{name: "packages of the user", interp: "/usr/bin/python3", files: packages("home/ada/.local/lib/python3.12/site-packages")},
		{name: "a cache on another disk", interp: "/usr/bin/python3", files: with(packages("usr/local/lib/python3.12/dist-packages"), map[string]string{"mnt/nvme/hf/hub/version.txt": "1"}), change: func(r *Recorded) {
			r.Env["HF_HOME"] = "/mnt/nvme/hf"
			r.Disks["/mnt/nvme"] = Disk{Type: "ext4", FreeBytes: 900e9, TotalBytes: 2000e9, FreeInodes: 1e8, Inodes: 1.2e8}
		}},
		{name: "variables of guides", interp: "/usr/bin/python3", files: packages("usr/local/lib/python3.12/dist-packages"), change: func(r *Recorded) {
			r.Env["NCCL_SOCKET_IFNAME"], r.Env["PYTORCH_CUDA_ALLOC_CONF"] = "enp1s0f0np0", "expandable_segments:True"
			r.Env["CUDA_VISIBLE_DEVICES"], r.Env["LD_LIBRARY_PATH"] = "0", "/usr/local/cuda/lib64"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			files := c.files
			for _, p := range c.procs {
				files = with(files, p.files())
			}
			dir := copyTree(t, "spark", files)
			in := recordedInput(t, dir, nil)
			if c.interp != "" {
				j := pythonJob(c.interp)
				j.TrainerDir = j.Dir
				in.Job = j
			}
			if c.change != nil {
				c.change(in.Recorded)
			}
			r := Run(t.Context(), in)
			if r.Platform != DGXSpark || r.Verdict != Ready || len(r.Warnings())+len(r.Hints()) > 0 {
				t.Errorf("%s\n%s", r.Verdict, r.Table(Look{Width: 100, All: true}))
			}
			// What is judged fine was looked at.
			if g := find(t, r, "G1"); c.interp != "" && g.Status != Pass {
				t.Errorf("G1 %s: %s", g.Status, g.Detail)
			}
		})
	}
}
