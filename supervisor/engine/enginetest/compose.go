package enginetest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ComposeService is the service of the compose file that Compose writes.
const ComposeService = "trainer"

// composeScript does what run, exec and up of compose come to: the engine's own client
// with what the service says. What stands before the verb is skipped, as are -T and
// --no-deps.
const composeScript = `#!/bin/sh
while [ "$1" != run ] && [ "$1" != exec ] && [ "$1" != up ]; do shift; done
verb=$1
shift
flags="%[2]s --label com.docker.compose.project=sparkrun-test"
if [ $verb = up ]; then
	exec %[1]s run $flags "$@" %[3]s sleep 300
fi
n=$# i=0 in=options
while [ $i -lt $n ]; do
	a=$1
	shift
	i=$((i + 1))
	case $in$a in
	options-T | options--no-deps) ;;
	options-[evwul] | options--name | options--label)
		set -- "$@" "$a" "$1"
		shift
		i=$((i + 1))
		;;
	options-*) set -- "$@" "$a" ;;
	options*)
		in=command
		if [ $verb = run ]; then set -- "$@" %[3]s; else set -- "$@" "$(%[1]s ps -q --filter label=com.docker.compose.service="$a" | head -n 1)"; fi
		;;
	*) set -- "$@" "$a" ;;
	esac
done
if [ $verb = run ]; then
	exec %[1]s run $flags "$@"
fi
exec %[1]s exec "$@"
`

// Compose returns the words of compose up to its verb, for a file with the service
// ComposeService: of the program that $SPARKRUN_COMPOSE names, else of a script that
// calls the engine's client the way compose would.
func (e *Engine) Compose(t testing.TB, volumes ...string) []string {
	t.Helper()
	dir := folder(t)
	t.Cleanup(func() { remove(t, dir) })
	file := filepath.Join(dir, "compose.yml")
	var mounts strings.Builder
	for _, v := range append([]string{"/usr:/usr:ro"}, volumes...) {
		fmt.Fprintf(&mounts, "      - %q\n", v)
	}
	text := fmt.Sprintf("services:\n  %s:\n    image: %s\n    network_mode: none\n    command: [sleep, \"300\"]\n    volumes:\n%s", ComposeService, Image, mounts.String())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(os.Getenv("SPARKRUN_COMPOSE"))
	// A program of the other engine's is not meant.
	if i := len(words) - 1; i < 0 || !strings.HasPrefix(filepath.Base(words[i]), e.Name) && words[i] != "compose" {
		flags := slices.Clone(e.RunFlags)
		for _, v := range volumes {
			flags = append(flags, "-v", v)
		}
		program := filepath.Join(dir, e.Name+"-compose")
		script := fmt.Sprintf(composeScript, e.Client, strings.Join(flags, " ")+" --label com.docker.compose.service="+ComposeService, Image)
		if err := os.WriteFile(program, []byte(script), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		words = []string{program}
	}
	return append(words, "-f", file, "-p", "sparkrun-test")
}
