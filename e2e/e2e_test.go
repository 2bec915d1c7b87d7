// Package e2e tests the built binary from outside: real processes, terminals,
// signals, disks and kernel kills.
package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"sparkrun/e2e/fakenvml"
)

// bin is the folder with the built binary.
var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	// These tests wait for other processes nearly all of their time, and take a quarter of
	// a processor each: more of them than go test's own default are at work, unless
	// -parallel says otherwise.
	if f := flag.Lookup("test.parallel"); f != nil && f.Value.String() == f.DefValue {
		_ = f.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0)))
	}
	os.Exit(build(m))
}

func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sparkrun-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	if given := os.Getenv("SPARKRUN_BIN"); given != "" {
		if err := os.Symlink(given, filepath.Join(dir, "sparkrun")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	} else {
		out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "sparkrun"), "sparkrun/cmd/sparkrun").CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "building sparkrun: %v\n%s", err, out)
			return 1
		}
	}
	return m.Run()
}

// TestScripts runs every script of testdata/script: one behaviour each, named
// by it.
func TestScripts(t *testing.T) {
	lib := fakenvml.Build(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("SPARKRUN_UPDATE") != "",
		Setup: func(e *testscript.Env) error {
			root, err := filepath.Abs("..")
			if err != nil {
				return err
			}
			e.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
			e.Setenv("HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("XDG_STATE_HOME", filepath.Join(e.WorkDir, "state"))
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, "config"))
			e.Setenv("FAKENVML", lib)
			e.Setenv("ROOT", root)
			e.Setenv("TREES", filepath.Join(root, "preflight", "testdata"))
			// The test machine's cache belongs to everybody on it.
			e.Setenv("SPARKRUN_DROP_CACHES", "never")
			// No script may find a real GPU library by chance.
			e.Setenv("SPARKRUN_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1")
			return os.MkdirAll(filepath.Join(e.WorkDir, "home"), 0o755)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status":   cmdStatus,
			"json":     cmdJSON,
			"waitfor":  cmdWaitFor,
			"noorphan": cmdNoOrphan,
			"sorted":   cmdSorted,
		},
	})
}

// cmdStatus runs a command and demands its exit status: status 75 sparkrun ...
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if ee, ok := err.(*exec.ExitError); ok { //nolint:errorlint // testscript returns it as it is
		got = ee.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// cmdJSON compares a value inside a JSON file: json FILE PATH REGEXP, where
// PATH is dotted and a number picks from a list; "len" is a list's length.
func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: json FILE PATH REGEXP")
	}
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &v))
	for _, key := range strings.Split(args[1], ".") {
		switch node := v.(type) {
		case map[string]any:
			v = node[key]
		case []any:
			if key == "len" {
				v = len(node)
				continue
			}
			i, err := strconv.Atoi(key)
			ts.Check(err)
			if i < 0 {
				i += len(node)
			}
			if i < 0 || i >= len(node) {
				ts.Fatalf("%s: no element %s in a list of %d", args[1], key, len(node))
			}
			v = node[i]
		default:
			v = nil
		}
	}
	text := fmt.Sprint(v)
	if b, err := json.Marshal(v); err == nil && text != "<nil>" {
		if _, isString := v.(string); !isString {
			text = string(b)
		}
	}
	if ok := regexp.MustCompile("(?s)^(?:" + args[2] + ")$").MatchString(text); ok == neg {
		ts.Fatalf("%s %s is %s, want match=%v of %s", args[0], args[1], text, !neg, args[2])
	}
}

// cmdWaitFor waits up to 20 s until a file's content matches: waitfor FILE REGEXP.
func cmdWaitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waitfor FILE REGEXP")
	}
	re := regexp.MustCompile(args[1])
	deadline := time.Now().Add(20 * time.Second)
	for {
		b, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && re.Match(b) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s never matched %s; it is:\n%s", args[0], args[1], b)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// cmdNoOrphan demands that no process of a run is left: noorphan RUNDIR.
func cmdNoOrphan(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: noorphan RUNDIR")
	}
	dir, err := filepath.EvalSymlinks(ts.MkAbs(args[0]))
	ts.Check(err)
	left := processesOf(filepath.Base(dir))
	deadline := time.Now().Add(3 * time.Second)
	for len(left) > 0 && !neg && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
		left = processesOf(filepath.Base(dir))
	}
	if (len(left) > 0) != neg {
		ts.Fatalf("processes left of run %s: %v", filepath.Base(dir), left)
	}
}

// processesOf returns the live processes of a run, by their environment.
func processesOf(id string) []string {
	var out []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		env, err := os.ReadFile(d + "/environ")
		if err != nil || !strings.Contains("\x00"+string(env), "\x00SPARKRUN_RUN_ID="+id+"\x00") {
			continue
		}
		stat, _ := os.ReadFile(d + "/stat")
		if i := strings.LastIndexByte(string(stat), ')'); i > 0 && i+2 < len(stat) && stat[i+2] == 'Z' {
			continue
		}
		cmd, _ := os.ReadFile(d + "/cmdline")
		out = append(out, filepath.Base(d)+" "+strings.ReplaceAll(string(cmd), "\x00", " "))
	}
	return out
}

// hasHolder says whether a holder of the run lives; its command line names it.
func hasHolder(id string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(b), "__hold\x00"+id+"\x00") {
			return true
		}
	}
	return false
}

// cmdSorted demands that the first columns of the files merge into one timeline:
// sorted RUNDIR.
func cmdSorted(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: sorted RUNDIR")
	}
	dir := ts.MkAbs(args[0])
	cmd := exec.Command("bash", "-c", `set -e; cd "$1"; tail -n +2 thermal.csv > "$2/thermal.rows"
times() { cut -c1-23; }
times < run.log | LC_ALL=C sort -c; times < "$2/thermal.rows" | LC_ALL=C sort -c
LC_ALL=C sort -m run.log "$2/thermal.rows" | times | LC_ALL=C sort -c`, "-", dir, ts.Getenv("WORK"))
	if out, err := cmd.CombinedOutput(); err != nil {
		ts.Fatalf("not one timeline: %v\n%s", err, out)
	}
	stamp := regexp.MustCompile(`^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}[ ,]`)
	for _, name := range []string{"run.log", "thermal.csv"} {
		for i, line := range strings.Split(strings.TrimRight(ts.ReadFile(filepath.Join(args[0], name)), "\n"), "\n") {
			if !stamp.MatchString(line) && !(name == "thermal.csv" && i == 0) {
				ts.Fatalf("%s line %d has no timestamp: %q", name, i+1, line)
			}
		}
	}
}
