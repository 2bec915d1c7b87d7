package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// underFilter is a Python program that executes its arguments with a filter of system calls,
// as an engine sets one: the calls with the numbers in its first argument fail with the
// errno in its second one.
const underFilter = `
import ctypes, os, struct, sys
calls, errno = [int(n) for n in sys.argv[1].split(",")], int(sys.argv[2])
prog = [(0x20, 0, 0, 0)]
for nr in calls:
    prog += [(0x15, 0, 1, nr), (0x06, 0, 0, 0x50000 | errno)]
prog.append((0x06, 0, 0, 0x7fff0000))
text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *p) for p in prog))
fprog = struct.pack("@HP", len(prog), ctypes.addressof(text))
libc = ctypes.CDLL(None, use_errno=True)
long = ctypes.c_ulong
if libc.prctl(38, long(1), long(0), long(0), long(0)) or libc.prctl(22, long(2), fprog, long(0), long(0)):
    sys.exit("no filter: errno %d" % ctypes.get_errno())
os.execv(sys.argv[3], sys.argv[3:])
`

// TestStoppedWhereAFilterKnowsNoPidfd: in the container of an engine from before 2020 the
// command hears of a stop at once all the same, and not when its grace is over.
func TestStoppedWhereAFilterKnowsNoPidfd(t *testing.T) {
	t.Parallel()
	for name, calls := range map[string]string{"neither call": "434,424", "no signals by it": "424"} {
		for _, errno := range []syscall.Errno{syscall.EPERM, syscall.ENOSYS} {
			t.Run(fmt.Sprintf("%s, %s", name, errno), func(t *testing.T) {
				t.Parallel()
				p := startUnder(t, []string{"python3", "-c", underFilter, calls, fmt.Sprint(int(errno))},
					"--no-preflight", "--no-pty", "--grace", "50s", "--", "sh", "-c", `trap "echo heard; exit 7" TERM; echo up; while :; do sleep 0.05; done`)
				until(t, "it is up", func() bool { return strings.Contains(p.out.String(), "up\n") })
				if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if got := p.wait(30 * time.Second); got != 7 || !strings.Contains(p.out.String(), "heard\n") {
					t.Errorf("status %d\nstdout %s\nstderr %s", got, p.out, p.err)
				}
				var exit struct {
					Stops []struct{ Signal, To string } `json:"stops"`
				}
				readInto(t, filepath.Join(p.runs, "latest", "attempts", "1", "exit.json"), &exit)
				if len(exit.Stops) != 1 || exit.Stops[0].Signal != "SIGTERM" || exit.Stops[0].To != "child" {
					t.Errorf("stops %+v", exit.Stops)
				}
			})
		}
	}
}
