package clock

import "time"

// born is an instant that all beats of this process share.
var born = time.Now()

// Beat returns the time until the next whole number of d since this process began. What
// looks at something again and again sleeps until then: a hundred such sleepers wake the
// machine once and not a hundred times, and it is the waking that costs.
func Beat(d time.Duration) time.Duration {
	return d - time.Since(born)%d
}
