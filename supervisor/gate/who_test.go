package gate

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// hold starts a process that holds memory, and ends it with the test.
func hold(t *testing.T, mib int, env ...string) int {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "HOLD_MIB="+strconv.Itoa(mib)), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("%q %v", line, err)
	}
	return cmd.Process.Pid
}

// TestWhoOnThisMachine: a process that came after the start and holds 96 MiB is
// found with that size, as anonymous or as shared memory; one of ours is not.
func TestWhoOnThisMachine(t *testing.T) {
	t.Parallel()
	const mib = 96
	before := Sizes("/")
	if before[os.Getpid()] == 0 {
		t.Fatal("this process holds nothing")
	}
	anon, shared, ours := hold(t, mib), hold(t, mib, "HOLD_SHARED=1"), hold(t, mib)
	mine := func(pid int) bool { return pid == ours }
	found := map[int]Holder{}
	for _, h := range scan("/", mine, before) {
		if h.KiB >= mib<<10 {
			found[h.PID] = h
		}
	}
	for pid, how := range map[int]string{anon: "rss", shared: "shmem", ours: "rss"} {
		h := found[pid]
		if h.How != how || h.KiB > (mib+64)<<10 || h.GrewKiB < mib<<10 || !h.Alive || h.Ours != (pid == ours) {
			t.Errorf("%s: %+v", how, h)
		}
	}
	hs := Who("/", mine, before)
	if len(hs) == 0 || len(hs) > whoMost {
		t.Fatalf("%d holders", len(hs))
	}
	for _, h := range hs {
		if h.PID == ours || h.Comm == "" {
			t.Errorf("named %+v", h)
		}
	}
}

func TestWhoSortsByGrowth(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	putProcess(t, root, 10, "gnome-shell", "/usr/bin/gnome-shell\x00", 3*g, 0)
	putProcess(t, root, 11, "python3", "/opt/venv/bin/python3\x00-u\x00-m\x00vllm.entrypoints.openai.api_server\x00", 2*g, g)
	putProcess(t, root, 12, "new\x1b[2Jname", "", 1*g, 0)
	putProcess(t, root, 13, "small", "", 100, 100)
	put(t, root, "proc/14/status", "Name:\tkworker\nState:\tI (idle)\n")
	put(t, root, "proc/self/status", "RssAnon:\t99999999 kB\n")
	hs := Who(root, nil, map[int]uint64{10: 3*g - 5, 11: g + g/2})
	var got []string
	for _, h := range hs {
		got = append(got, h.Comm+" "+h.How+" "+gib(h.KiB)+" "+gib(h.GrewKiB))
	}
	// Of what the server grew by, its anonymous memory is named first.
	want := []string{"vllm rss 2.0 1.5", "new?[2Jname rss 1.0 1.0", "gnome-shell rss 3.0 0.0", "vllm shmem 1.0 0.0"}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if hs := Who(t.TempDir(), nil, nil); len(hs) != 0 {
		t.Errorf("no /proc: %+v", hs)
	}
}

func TestCalled(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ comm, argv, want string }{
		{"python3", "python3 train.py --lr 1", "train.py"},
		{"python3", "/usr/bin/python3.12 -u /home/a/finetune.py", "finetune.py"},
		{"python", "python -m vllm.entrypoints.openai.api_server", "vllm"},
		{"python", "python -X dev -m torch.distributed.run t.py", "torch.distributed.run"},
		{"python", "python -c print('vllm')", "python"},
		{"python", "python", "python"},
		{"python3", "python3 /opt/ComfyUI/main.py", "ComfyUI"},
		{"VLLM::EngineCor", "VLLM::EngineCore", "vllm"},
		{"sglang::schedul", "sglang::scheduler", "sglang"},
		{"ollama", "/usr/local/bin/ollama runner --model /x --port 1", "ollama"},
		{"ray::IDLE", "ray::IDLE", "ray"},
		{"python3", "python3 array.py", "array.py"},
		{"bash", "bash -c ./vllm-notes.sh", "bash"},
		{"cat", "cat ollama.txt", "cat"},
		{"firefox", "", "firefox"},
	} {
		if got := called(tt.comm, strings.Split(tt.argv, " ")); got != tt.want {
			t.Errorf("%s [%s]: %q, want %q", tt.comm, tt.argv, got, tt.want)
		}
	}
	if got := printable(strings.Repeat("é", 40)); len(got) > nameMost || strings.Trim(got, "é") != "" {
		t.Errorf("%q", got)
	}
	if got := Name("/", os.Getpid()); got != "gate.test" {
		t.Errorf("this process is called %q", got)
	}
	if got := Name("/", 1<<30); got != "?" {
		t.Errorf("nobody is called %q", got)
	}
}
