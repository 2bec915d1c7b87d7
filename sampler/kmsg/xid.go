package kmsg

import (
	"strconv"

	"sparkrun/internal/lazyre"
)

// xid finds the number of a driver error. What stands in the parentheses is the
// device, and that has digits too.
var xid = lazyre.New(`NVRM: Xid\s*(?:\([^)]*\))?\s*:?\s*(\d+)`)

// Xid returns the number of an NVIDIA driver error, "NVRM: Xid (PCI:000f:01:00): 31, ...":
// the one behind the parenthesis. One cause may write a hundred such lines in a second.
func Xid(text string) (n int, ok bool) {
	m := xid.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1])
	return n, err == nil
}
