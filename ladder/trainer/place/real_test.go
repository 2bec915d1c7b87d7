package place

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// run runs a command to its end and returns what it printed.
func run(t *testing.T, dir string, env []string, argv ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, errs.String())
	}
	return out.String(), err
}

// TestShellsAgree: what is read as the words of a text is what a real shell makes
// of it.
func TestShellsAgree(t *testing.T) {
	t.Parallel()
	pieces := []string{
		"a", "'b c'", `"d e"`, `"f\"g\$h\i\\j"`, `\k`, `\ `, `l\m`, "n'o'\"p\"q", "''", `""`, "--x=y", "--a.b=c", "x=1", "#no", "é", "a#b", "~x", "x~", "{a}", "a{b", "a,b", "{}",
		"]", "!", "^", "%", "@", "+", ":", "a..b", "\\\n", "x\\\ny", "'x\ny'", "\"x\ny\"", "\"x\\\ny\"", `'\n'`, `"\n"`, "a'$b'", `"a\` + "`" + `"`, "=x", "-", "--",
	}
	bashOnly := []string{`$'a\tb\x41\101\u00e9\'\\'`, `$'\e[0m'`}
	for shell, dialect := range map[string]string{"bash": "bash", "dash": "posix", "sh": "posix", "zsh": "zsh"} {
		if _, err := exec.LookPath(shell); err != nil {
			if shell == "bash" || shell == "sh" {
				t.Errorf("no %s on this machine: %v", shell, err)
			}
			continue
		}
		all := slices.Clone(pieces)
		if dialect != "posix" {
			all = append(all, bashOnly...)
		}
		read := 0
		for i := range all {
			// Each piece alone, joined to its neighbour, and three in a row.
			next, after := all[(i+1)%len(all)], all[(i+7)%len(all)]
			for _, text := range []string{all[i], all[i] + next, next + all[i], all[i] + " " + next + "\t" + after} {
				text = `printf '<%s>' ` + text
				s, why := parseShell(text, dialects[dialect])
				if why != "" {
					continue
				}
				read++
				var want strings.Builder
				for _, w := range s.words()[2:] {
					want.WriteString("<" + w + ">")
				}
				if len(s.words()) == 2 {
					want.WriteString("<>")
				}
				got, err := run(t, t.TempDir(), nil, shell, "-c", text)
				if err != nil || got != want.String() {
					t.Errorf("%s: %q prints %q (%v), read as %q", shell, text, got, err, want.String())
				}
			}
		}
		if read < 3*len(all) {
			t.Errorf("%s: only %d of %d texts were read", shell, read, 4*len(all))
		}
	}
}

// TestRealCommands runs changed commands: a program at their end prints what it
// is given.
func TestRealCommands(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "bin/show"), "#!/bin/sh\necho \"PYTHONPATH=$PYTHONPATH\"\necho \"SPARKRUN_X=$SPARKRUN_X\"\nprintf '<%s>' \"$@\"\n", 0o755)
	write(t, filepath.Join(root, "sub/keep"), "", 0o644)
	path := filepath.Join(root, "bin") + ":/usr/bin:/bin"
	tab := table(t)
	for _, line := range []string{
		"show --lr 1",
		"env A=1 nohup nice -n1 show --lr 1",
		"env -i PATH=" + path + " PYTHONPATH=/u show --lr 1",
		"env -u PYTHONPATH timeout -k5 20 show --lr 1",
		"bash -c 'cd sub && show --lr \"1\"; '",
		"bash -ec 'export PYTHONPATH=/u; time show --lr 1 # done'",
		"sh -c 'PYTHONPATH=/u exec show --lr 1' arg0",
		"sh -c 'set -eu\ncd sub\nexec env -i PATH=\"" + path + "\" show --lr \\\n  1 \n'",
		"bash -c 'bash -c \"exec stdbuf -oL show --lr 1\"'",
		"bash -c 'A=1 command show --lr 1'",
		"setsid -w ionice -c3 show --lr 1",
		"flock lock show --lr 1",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			argv := split(t, line)
			env := []string{"PATH=" + path, "HOME=" + root}
			if _, err := exec.LookPath(argv[0]); err != nil && argv[0] != "show" {
				t.Fatalf("no %s on this machine", argv[0])
			}
			p := tab.Find(argv, root, Environ(env))
			if p.Program != "show" {
				t.Fatalf("found %q: %s%s", p.Words, p.Unsure, p.Opaque)
			}
			words := append(slices.Clone(p.Words), "--run", "it's $HOME\n", "--x=*")
			words[2] = "2 3"
			changed, host, err := p.Command(words, []string{"PYTHONPATH=/s", "SPARKRUN_X=a'b c"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if found := lookPath("", changed[0], path, root); found != "" {
				changed[0] = found
			}
			out, err := run(t, root, append(env, host...), changed...)
			if err != nil {
				t.Fatalf("%q: %v", changed, err)
			}
			typed := p.Surroundings(Environ(env))["PYTHONPATH"]
			want := strings.TrimSuffix("PYTHONPATH=/s:"+typed, ":") + "\nSPARKRUN_X=a'b c\n<--lr><2 3><--run><it's $HOME\n><--x=*>"
			if out != want {
				t.Errorf("%q prints %q, want %q", changed, out, want)
			}
		})
	}
}

var helpLine = regexp.MustCompile(`^ {2,6}(?:(-[a-zA-Z]), )?(--[a-z0-9-]+)(?: (\S+))?`)

// TestClientsAgree: every option that the container client of this machine knows is
// in the table, with or without a value as the client says.
func TestClientsAgree(t *testing.T) {
	t.Parallel()
	tab := table(t)
	for _, name := range []string{"docker", "podman"} {
		for _, verb := range []string{"run", "exec"} {
			t.Run(name+" "+verb, func(t *testing.T) {
				t.Parallel()
				if _, err := exec.LookPath(name); err != nil {
					t.Skipf("no %s on this machine", name)
				}
				help, err := run(t, t.TempDir(), []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + t.TempDir()}, name, verb, "--help")
				if err != nil {
					t.Skipf("%s does not print its options: %v", name, err)
				}
				set := &tab.engineNamed(name).optionSet
				if verb == "exec" {
					set = &tab.engineNamed(name).Exec
				}
				n := 0
				for _, line := range strings.Split(help, "\n") {
					m := helpLine.FindStringSubmatch(line)
					if m == nil || m[2] == "--help" {
						continue
					}
					n++
					// The type of a value is one word, close behind; a description is not.
					gap := strings.Contains(line, m[2]+"  ")
					value := m[3] != "" && !gap
					for _, o := range []string{m[1], m[2]} {
						if o == "" {
							continue
						}
						if in := slices.Contains(set.Value, o); in != value || !value && !slices.Contains(set.Plain, o) {
							t.Errorf("%s %s: option %s: with a value %v, in the table %v", name, verb, o, value, in)
						}
					}
				}
				if n < 8 {
					t.Errorf("only %d options in the help of %s %s", n, name, verb)
				}
			})
		}
	}
}
