package headroom

import (
	"fmt"
	"math"
)

const gigabyte = 1e9

// bytesOf turns a number of bytes into one that stops at the largest there is: numbers of
// a config or a command line may be absurd, and a sum must never wrap.
func bytesOf(v float64) int64 {
	switch {
	case !(v > 0):
		return 0
	case v >= math.MaxInt64:
		return math.MaxInt64
	}
	return int64(v)
}

// plus adds without wrapping.
func plus(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// GB writes bytes in decimal gigabytes.
func GB(bytes int64) string {
	v := float64(bytes) / gigabyte
	switch a := math.Abs(v); {
	case a >= 1e6:
		return fmt.Sprintf("%.3g GB", v)
	case a >= 99.95:
		return fmt.Sprintf("%.0f GB", v)
	case a > 0 && a < 0.05:
		return fmt.Sprintf("%.2g GB", v)
	}
	return fmt.Sprintf("%.1f GB", v)
}

// count writes a number of parameters.
func count(n float64) string {
	switch {
	case n >= 1e15:
		return fmt.Sprintf("%.3g", n)
	case n >= 99.5e9:
		return fmt.Sprintf("%.0fB", n/1e9)
	case n >= 0.995e9:
		return fmt.Sprintf("%.3gB", n/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.3gM", n/1e6)
	}
	return fmt.Sprintf("%.0f", n)
}
