package preflight

import (
	"context"
	"fmt"
	"strings"
)

// parallelism is what the command says of machines and of tensor parallelism.
type parallelism struct {
	request
	tensor, rollout []setting
	machines, world []setting
}

func lookParallelism(_ context.Context, v view) parallelism {
	r := readAsked(v)
	return parallelism{
		request: r,
		tensor:  r.named("tensor_parallel"), rollout: r.named("rollout"),
		machines: r.named("machines"), world: r.named("world_size"),
	}
}

// judgeParallelism is G10: two Sparks are joined by a network, not by NVLink. Tensor
// parallelism sends every layer's results across it and hangs, fails or is slower than
// one machine; DDP and FSDP are what works. Only a job of several machines can get that
// wrong, and what counts is the value, not the word.
func judgeParallelism(p parallelism, f facts) Finding {
	if f.job == nil {
		return byDesign("no command that could span two machines")
	}
	nodes, why := p.spans(f)
	if nodes < 2 {
		return p.onOne(f, why)
	}
	if !f.spark() {
		return notHere(f)
	}
	devices := f.devices()
	evidence := []string{why}
	var over, unclear []setting
	for _, s := range p.tensor {
		switch n, ok := s.number(); {
		case s.off(), ok && n <= 1:
			evidence = append(evidence, s.said()+", which is no tensor parallelism")
		case ok && n > devices:
			over = append(over, s)
		case ok:
			evidence = append(evidence, s.said()+", within one machine")
		default:
			unclear = append(unclear, s)
		}
	}
	for _, s := range append(over, unclear...) {
		evidence = append(evidence, s.said())
	}
	for _, u := range p.unread {
		evidence = append(evidence, "not read: "+u)
	}
	switch {
	case len(over) > 0:
		n, _ := over[0].number()
		return Finding{
			Status: Fail, Evidence: evidence,
			Detail: fmt.Sprintf("tensor parallelism %d (%s) over %d machines of %s: it cannot leave one machine", n, over[0].where, nodes, plural(int(devices), "GPU")),
			Fix:    p.fix(over, devices),
		}
	case len(unclear) > 0:
		return Finding{
			Status: Warn, Evidence: evidence,
			Detail: fmt.Sprintf("%s over %d machines: if that becomes more than %d, the job hangs or fails", unclear[0].said(), nodes, devices),
			Fix:    p.fix(unclear, devices),
		}
	case len(p.unread) > 0:
		return Finding{
			Status: Warn, Evidence: evidence,
			Detail: fmt.Sprintf("a job of %d machines, and not all of its settings can be read (%s): tensor parallelism may stand there", nodes, p.unread[0]),
			Fix:    "make the file readable, or look in it yourself: tensor parallelism of more than 1 cannot span two Sparks",
		}
	case len(p.tensor) > 0:
		return Finding{Status: Pass, Evidence: evidence, Detail: fmt.Sprintf("%d machines, and tensor parallelism stays on one", nodes)}
	}
	return Finding{Status: Pass, Evidence: evidence, Detail: fmt.Sprintf("%d machines, and no tensor parallelism is asked for", nodes)}
}

// onOne is the finding where nothing says that the job leaves this machine.
func (p parallelism) onOne(f facts, why string) Finding {
	beside := make(map[string]bool)
	for _, s := range p.rollout {
		beside[s.name+s.where] = true
	}
	for _, s := range p.tensor {
		n, ok := s.number()
		if !ok || n < 2 || beside[s.name+s.where] || !f.spark() {
			continue
		}
		evidence := []string{s.said()}
		if why != "" {
			evidence = append(evidence, why)
		}
		return Finding{
			Status: Info, Evidence: evidence,
			Detail: fmt.Sprintf("one machine, %s: tensor parallelism %d (%s) needs as many", plural(int(f.devices()), "GPU"), n, s.where),
		}
	}
	return byDesign("one machine")
}

// spans is how many machines the job spans, 0 where nothing tells, and what told it.
func (p parallelism) spans(f facts) (nodes int64, why string) {
	if f.job.Nodes > 0 {
		return int64(f.job.Nodes), fmt.Sprintf("the command names %s", plural(f.job.Nodes, "machine"))
	}
	for _, s := range p.machines {
		if n, ok := s.number(); ok && n > 0 {
			return n, s.said()
		}
	}
	for _, s := range p.world {
		// Each device has its process.
		if n, ok := s.number(); ok && n > 0 {
			return (n + f.devices() - 1) / f.devices(), s.said()
		}
	}
	return 0, ""
}

// devices is how many GPUs this machine has; at least 1, which is what a Spark has.
func (f facts) devices() int64 {
	if f.gpu.ok() && f.gpu.dev.Count > 0 {
		return int64(f.gpu.dev.Count)
	}
	return 1
}

func (p parallelism) fix(list []setting, devices int64) string {
	var b strings.Builder
	for _, s := range list {
		switch _, number := s.number(); {
		case number:
			fmt.Fprintf(&b, "set %s to %d (%s)\n", s.name, devices, s.where)
		case s.computed:
			fmt.Fprintf(&b, "see that %s stays at %d, or leave it out (%s)\n", s.name, devices, s.where)
		default: // tp_plan, switches: no number is a value of theirs
			fmt.Fprintf(&b, "leave %s out (%s)\n", s.name, s.where)
		}
	}
	b.WriteString("spread the job over the machines with DDP or FSDP instead: torchrun --nnodes 2 or accelerate launch --num_machines 2, with fsdp if one machine's memory is too small")
	return b.String()
}
