package place

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// word draws any text that can be a word of a command line.
func word() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{
			"--lr", "1e-5", "--a=b c", "", "it's", `say "hi"`, "$HOME", "`x`", "*.json", "{a,b}", "~", "a\\b", "# no comment", "!", "=x",
			"key=value", "model.list=[1, 2]", "a\nb", "\t", "é漢", "--", "-", ";", "&&", "|", "%", "x\x7f",
		}),
		rapid.StringMatching(`[a-z=.,_/-]{1,8}`),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 6), func(b []byte) string {
			return strings.Map(func(r rune) rune {
				if r == 0 || r == '\r' {
					return -1
				}
				return r
			}, string(b))
		}),
	)
}

// quoted writes a word in one of the ways a person may.
func quoted(t *rapid.T, w string) string {
	switch rapid.IntRange(0, 3).Draw(t, "quoting") {
	case 0:
		return quote(w)
	case 1:
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`").Replace(w) + `"`
	case 2:
		if w == "" || strings.ContainsAny(w, "\n") || strings.ContainsFunc(w, func(r rune) bool { return r > 0x7e }) {
			return quote(w)
		}
		var b strings.Builder
		for i := range len(w) {
			b.WriteString(`\` + w[i:i+1])
		}
		return b.String()
	default:
		half := len(string([]rune(w)[:len([]rune(w))/2]))
		return "'" + strings.ReplaceAll(w[:half], "'", `'\''`) + "'" + `"` +
			strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`").Replace(w[half:]) + `"`
	}
}

// trainerCommand draws the innermost command: its words, and what stands in front
// that belongs to a launcher.
func trainerCommand(t *rapid.T) (before, words []string, args int) {
	rest := rapid.SliceOfN(word(), 0, 6).Draw(t, "args")
	switch rapid.IntRange(0, 4).Draw(t, "trainer") {
	case 0:
		return nil, append([]string{"python", "-u", "train.py"}, rest...), 3
	case 1:
		return nil, append([]string{"/opt/v/bin/python3", "-m", "pkg.train"}, rest...), 3
	case 2:
		return []string{"accelerate", "launch", "--num_processes", "1"}, append([]string{"train.py"}, rest...), behindDash(rest)
	case 3:
		return []string{"python", "-m", "torch.distributed.run", "-m"}, append([]string{"pkg.train"}, rest...), behindDash(rest)
	default:
		return nil, append([]string{"llamafactory-cli", "train"}, rest...), 1
	}
}

// behindDash is where the arguments start behind a launcher's script: it takes a --
// right behind that for its own.
func behindDash(rest []string) int {
	if len(rest) > 0 && rest[0] == "--" {
		return 2
	}
	return 1
}

// wrap puts something in front of a command.
func wrap(t *rapid.T, words []string, container *bool) []string {
	pre := rapid.SampledFrom([]string{"nohup", "env", "env-i", "nice", "sudo", "sudo--", "uv", "timeout", "exec", "bash", "sh", "zsh", "docker", "conda", "systemd"}).Draw(t, "prefix")
	switch pre {
	case "nohup":
		return append([]string{"nohup"}, words...)
	case "env":
		return append([]string{"env", "A=1", "B=" + word().Draw(t, "value")}, words...)
	case "env-i":
		return append([]string{"env", "-i", "PATH=/bin", "PYTHONPATH=/typed"}, words...)
	case "nice":
		return append([]string{"nice", "-n5"}, words...)
	case "sudo":
		return append([]string{"sudo", "-E", "X=1", "-u", "me"}, words...)
	case "sudo--":
		return append([]string{"sudo", "-nE", "--"}, words...)
	case "uv":
		return append([]string{"uv", "run", "--with", "trl", "--"}, words...)
	case "timeout":
		return append([]string{"timeout", "-k5", "10h"}, words...)
	case "conda":
		return append([]string{"conda", "run", "-s", "-n", "x"}, words...)
	case "systemd":
		return append([]string{"systemd-run", "--user", "-t", "-E", "Z=1"}, words...)
	case "docker":
		if *container {
			return words
		}
		*container = true
		return append([]string{"docker", "run", "--rm", "-it", "-e", "PYTHONPATH=/typed", "-v", "/home/me/p:/w", "-w", "/w", "img"}, words...)
	}
	var b strings.Builder
	b.WriteString(rapid.SampledFrom([]string{"", "cd sub && ", "cd /x; ", "pip install -q trl # with a comment\n", "export PYTHONPATH=/typed; ", "C=d ", "  "}).Draw(t, "before"))
	for i, w := range words {
		if i > 0 {
			b.WriteString(rapid.SampledFrom([]string{" ", "  ", " \\\n\t"}).Draw(t, "space"))
		}
		if i == 0 {
			b.WriteString(w)
			continue
		}
		b.WriteString(quoted(t, w))
	}
	b.WriteString(rapid.SampledFrom([]string{"", " ", ";", "\n", " # done", " \\\n"}).Draw(t, "after"))
	if pre == "exec" {
		return []string{"bash", "-ec", "exec " + strings.TrimLeft(b.String()[strings.Index(b.String(), words[0]):], " ")}
	}
	return []string{pre, rapid.SampledFrom([]string{"-c", "-lc", "-ec"}).Draw(t, "flag"), b.String(), "arg0"}
}

// TestNestings: whatever stands in front, the trainer's words are found; put back
// unchanged they give the command as it was; changed, they are found again, and
// the environment reaches them.
func TestNestings(t *testing.T) {
	t.Parallel()
	tab := table(t)
	env := map[string]string{"HOME": "/home/me", "PATH": "/usr/bin:/bin"}
	rapid.Check(t, func(t *rapid.T) {
		before, words, args := trainerCommand(t)
		argv := slices.Concat(before, words)
		container := false
		for range rapid.IntRange(0, 4).Draw(t, "depth") {
			argv = wrap(t, argv, &container)
		}
		p := tab.Find(argv, "/home/me/p", env)
		if !p.Seen() || !slices.Equal(p.Words, words) || p.Args != args {
			t.Fatalf("%q: found %q (args at %d, %s%s), not %q", argv, p.Words, p.Args, p.Unsure, p.Opaque, words)
		}
		same, hostEnv, err := p.Command(p.Words, nil, nil)
		if err != nil || !slices.Equal(same, argv) || len(hostEnv) > 0 {
			t.Fatalf("%q: unchanged it becomes %q, %q, %v", argv, same, hostEnv, err)
		}
		// Other words: some replaced, some taken away, some added.
		changed := slices.Clone(words[:args])
		for _, w := range words[args:] {
			switch rapid.IntRange(0, 3).Draw(t, "change") {
			case 0:
				changed = append(changed, word().Draw(t, "instead"))
			case 1:
			default:
				changed = append(changed, w)
			}
		}
		changed = append(changed, rapid.SliceOfN(word(), 0, 3).Draw(t, "added")...)
		other, _, err := p.Command(changed, nil, nil)
		if err != nil {
			t.Fatalf("%q with %q: %v", argv, changed, err)
		}
		again := tab.Find(other, "/home/me/p", env)
		if len(before) > 0 {
			args = behindDash(changed[1:])
		}
		if !slices.Equal(again.Words, changed) || again.Args != args || !slices.Equal(again.Launchers, p.Launchers) || again.Dir != p.Dir {
			t.Fatalf("%q with %q becomes %q, where %q is found", argv, changed, other, again.Words)
		}
		var mounts []Mount
		if container {
			mounts = []Mount{{Host: "/runs/1", Inside: "/sparkrun", ReadOnly: true}}
		}
		given, hostEnv, err := p.Command(changed, []string{"PYTHONPATH=/sparkrun/shim", "SPARKRUN_X=it's"}, mounts)
		if (err != nil) != (p.ShimRefused != "") {
			t.Fatalf("%q: %v, but shim refused is %q", argv, err, p.ShimRefused)
		}
		if err != nil {
			return
		}
		host := maps.Clone(env)
		maps.Copy(host, Environ(hostEnv))
		again = tab.Find(given, "/home/me/p", host)
		around := again.Surroundings(host)
		typed := p.Surroundings(env)["PYTHONPATH"]
		want := strings.TrimSuffix("/sparkrun/shim:"+typed, ":")
		if around["PYTHONPATH"] != want || around["SPARKRUN_X"] != "it's" || !slices.Equal(again.Words, changed) {
			t.Fatalf("%q becomes %q: PYTHONPATH %q, want %q; words %q", argv, given, around["PYTHONPATH"], want, again.Words)
		}
		if host, ok := again.HostPath("/sparkrun/shim"); container && (!ok || host != "/runs/1/shim") {
			t.Fatalf("%q: the mount is not seen: %q", given, host)
		}
	})
}

// TestHostileWords: no command line makes Find fail or lose a byte.
func TestHostileWords(t *testing.T) {
	t.Parallel()
	tab := table(t)
	var names []string
	for _, f := range tab.Prefixes {
		names = append(names, f.Name)
		names = append(names, f.Plain...)
		names = append(names, f.Value...)
		if f.Sub != "" {
			names = append(names, f.Sub)
		}
	}
	for _, e := range tab.Engines {
		names = append(names, e.Name, "run", "exec", "compose", "-v", "--mount", "-e", "-w", "--entrypoint", "--env-file")
	}
	names = append(names, "bash", "sh", "-c", "-lc", "--", "-", "A=1", "python", "-m", "torch.distributed.run", "a:b:c", "type=bind,src=x", "x.py", "/w")
	rapid.Check(t, func(t *rapid.T) {
		argv := rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom(names), word()), 0, 12).Draw(t, "argv")
		p := tab.Find(argv, "/nowhere", map[string]string{})
		same, hostEnv, err := p.Command(p.Words, nil, nil)
		if err != nil || !slices.Equal(same, argv) || len(hostEnv) > 0 {
			t.Fatalf("%q: unchanged it becomes %q, %v", argv, same, err)
		}
		if p.Args < 0 || p.Args > len(p.Words) {
			t.Fatalf("%q: arguments at %d of %q", argv, p.Args, p.Words)
		}
		if p.Unsure+p.Opaque == "" && !p.Seen() {
			t.Fatalf("%q: nothing is seen, and nothing says why", argv)
		}
	})
}

// TestShellTexts: any text given to a shell is either left alone or read, and then
// its words can be replaced by themselves.
func TestShellTexts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom([]string{
			"python", "train.py", " ", " ", "&&", ";", "\n", "'a b'", `"c"`, "$x", "\\", "`", "(", ")", "{", "}", "#", "<<E\nx\nE\n", "A=", "export", "cd", "\\\n", "|", ">", "é", "$'\\n'", "time", "!", "[",
		}), word()), 0, 12).Draw(t, "pieces")
		text := strings.Join(pieces, "")
		for _, d := range dialects {
			s, why := parseShell(text, d)
			if why != "" {
				continue
			}
			same, err := s.with(s.words(), nil)
			if err != nil || same != text {
				t.Fatalf("%q: unchanged it becomes %q, %v", text, same, err)
			}
			if _, err := s.with(append(s.words(), "it's"), []string{"A=b c"}); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
		}
	})
}
