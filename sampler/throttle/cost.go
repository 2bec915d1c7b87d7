package throttle

import "sparkrun/internal/sample"

// cost is the training time lost while anything held the GPU back. Episodes of
// several types that overlap are one stretch: what a step lost is lost once.
type cost struct {
	base         sample.Num
	steps, stepS float64
	// heldS is for how long the GPU was held back in this stretch: it cannot have cost
	// more than that, whatever else made the steps longer.
	heldS  float64
	closed sample.Num
}

// add takes n steps of stepS seconds each; base is the attempt's own pace.
func (c *cost) add(n, stepS float64, base sample.Num) {
	if c.steps == 0 {
		c.base = base
	}
	if outlier(stepS, c.base) {
		return
	}
	c.steps += n
	c.stepS += n * stepS
}

func (c *cost) open() sample.Num {
	if !c.base.OK || c.steps == 0 {
		return sample.Num{}
	}
	return sample.Known(min(c.heldS, max(0, c.stepS-c.steps*c.base.V)))
}

// close ends a stretch.
func (c *cost) close() {
	c.closed = c.total()
	c.base, c.steps, c.stepS, c.heldS = sample.Num{}, 0, 0, 0
}

func (c *cost) total() sample.Num {
	now := c.open()
	if !now.OK {
		return c.closed
	}
	return sample.Known(c.closed.Or(0) + now.V)
}
