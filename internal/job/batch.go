package job

import "strconv"

// number returns a whole-number setting above zero.
func (j Job) number(k Knob) (int64, bool) {
	n, err := strconv.ParseInt(j.Knobs[k].Value, 10, 64)
	return n, err == nil && n > 0
}

// EffectiveBatch is how many rows one optimizer step takes over all devices: the
// global batch where the trainer fixes that, else micro-batch x accumulation x
// processes. Processes that are not told count as one, machines too. Nil is unknown.
func (j Job) EffectiveBatch() *int64 {
	if j.Family == "global" {
		if n, ok := j.number(GlobalBatch); ok {
			return &n
		}
		return nil
	}
	micro, ok1 := j.number(MicroBatch)
	acc, ok2 := j.number(Accumulation)
	procs, nodes := int64(max(j.Procs, 1)), int64(max(j.Nodes, 1))
	if !ok1 || !ok2 || micro > 1<<20 || acc > 1<<20 || procs > 1<<12 || nodes > 1<<12 {
		return nil
	}
	n := micro * acc * procs * nodes
	return &n
}

// TrainingMethod is full, lora, qlora or unknown.
func (j Job) TrainingMethod() string {
	switch m := j.Knobs[Method].Value; m {
	case "full", "lora", "qlora":
		return m
	}
	return "unknown"
}
