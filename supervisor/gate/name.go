package gate

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// servers are programs that hold much memory and are known by a name that is not
// that of their process, which is often just "python3". The word is looked for in
// the words of argv, and is the name shown.
var servers = []string{
	"vllm", "sglang", "ollama", "llama-server", "trtllm-serve", "tritonserver", "text-generation-launcher",
	"lmdeploy", "ComfyUI", "jupyter", "ipykernel", "open-webui", "LM Studio", "ray",
}

// argvMost bounds how much of a command line is looked at, nameMost how long a
// name may be.
const (
	argvMost = 4096
	nameMost = 48
)

// argvWait bounds the reading of a command line: that takes a lock of the
// process, which one that is stuck in a driver may never give back.
const argvWait = 500 * time.Millisecond

// Name returns what a person calls a process: the model server or the script
// where its argv tells, else the kernel's name for it. Never more of argv than
// that, since it may hold secrets; "?" where the process is gone.
func Name(root string, pid int) string {
	dir := filepath.Join(root, "proc", strconv.Itoa(pid))
	b, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil {
		return "?"
	}
	got := make(chan []byte, 1)
	go func() { got <- head(filepath.Join(dir, "cmdline"), argvMost) }()
	t := time.NewTimer(argvWait)
	defer t.Stop()
	var argv []byte
	select {
	case argv = <-got:
	case <-t.C:
	}
	return printable(called(strings.TrimSuffix(string(b), "\n"), strings.Split(strings.TrimRight(string(argv), "\x00"), "\x00")))
}

func head(path string, most int) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	b := make([]byte, most)
	n, _ := f.Read(b)
	return b[:n]
}

// called picks the name from the kernel's name and the argument words.
func called(comm string, argv []string) string {
	base := strings.ToLower(filepath.Base(argv[0]))
	script := !strings.HasPrefix(base, "python") && !strings.HasPrefix(base, "pypy")
	for i, arg := range argv {
		if script && i > 0 {
			break // only the program and the script or module can be a server
		}
		if i > 0 && (arg == "-c" || strings.HasPrefix(arg, "-c")) {
			break // a program in the words themselves
		}
		if i > 0 && strings.HasPrefix(arg, "-") {
			continue
		}
		if s := server(arg); s != "" {
			return s
		}
		if i > 0 {
			if argv[i-1] == "-X" || argv[i-1] == "-W" {
				continue
			}
			return filepath.Base(arg)
		}
	}
	if s := server(comm); s != "" {
		return s
	}
	return comm
}

// server finds a known server's name in a word, as a word of its own: "array.py"
// is not ray.
func server(word string) string {
	low := strings.ToLower(word)
	for _, s := range servers {
		name := strings.ToLower(s)
		for from := 0; ; {
			i := strings.Index(low[from:], name)
			if i < 0 {
				break
			}
			i += from
			end := i + len(name)
			if (i == 0 || !letter(low[i-1])) && (end == len(low) || !letter(low[end])) {
				return s
			}
			from = end
		}
	}
	return ""
}

func letter(b byte) bool { return 'a' <= b && b <= 'z' }

// printable takes out what would act on a terminal or break a line: any user
// names their processes as they like.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	if len(s) > nameMost {
		s = s[:nameMost]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	if s == "" {
		return "?"
	}
	return s
}
