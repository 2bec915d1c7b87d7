package runlog

import (
	"encoding/json"
	"fmt"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
)

// Step is one observed training step: a line of progress.jsonl.
type Step struct {
	// T is the run's time at which the step was printed.
	T       time.Time
	Attempt int

	Step sample.Num
	Loss sample.Num
	LR   sample.Num
	// MemGB is what the trainer says it holds, in GB as it prints them.
	MemGB sample.Num
	TempC sample.Num
	// Tokens counts from the start of the training.
	Tokens sample.Num
	// StepTimeS is seconds for one optimizer step, TokensPerS tokens in a second, EtaS
	// seconds until the last planned step at the pace of the latest ones.
	StepTimeS, TokensPerS, EtaS sample.Num
}

type stepJSON struct {
	Step      *json.Number `json:"step,omitempty"`
	Loss      *json.Number `json:"loss,omitempty"`
	LR        *json.Number `json:"lr,omitempty"`
	MemGB     *json.Number `json:"mem_gb,omitempty"`
	TempC     *json.Number `json:"temp_c,omitempty"`
	T         string       `json:"t"`
	Attempt   int          `json:"attempt"`
	Tokens    *json.Number `json:"tokens,omitempty"`
	StepTimeS *json.Number `json:"step_time_s,omitempty"`

	TokensPerS *json.Number `json:"tokens_per_s,omitempty"`
	EtaS       *json.Number `json:"eta_s,omitempty"`
}

// MarshalJSON writes the step in the runbook's shape; what is not known, or is no
// number (a loss of NaN), is left out.
func (s Step) MarshalJSON() ([]byte, error) {
	return json.Marshal(stepJSON{
		Step: number(s.Step), Loss: number(s.Loss), LR: number(s.LR), MemGB: number(s.MemGB), TempC: number(s.TempC),
		T: clock.Machine(s.T), Attempt: s.Attempt, Tokens: number(s.Tokens), StepTimeS: number(s.StepTimeS),
		TokensPerS: number(s.TokensPerS), EtaS: number(s.EtaS),
	})
}

func number(n sample.Num) *json.Number {
	if !n.OK {
		return nil
	}
	b, err := json.Marshal(n.V)
	if err != nil {
		return nil
	}
	num := json.Number(b)
	return &num
}

// ProgressLog appends to progress.jsonl. Like events it waits for no disk.
type ProgressLog struct {
	clk clock.Clock
	j   *jsonl
}

// OpenProgress opens progress.jsonl of a run for appending.
func OpenProgress(d *Dir, clk clock.Clock) (*ProgressLog, error) {
	j, err := openJSONL(d.File(ProgressFile), nil, nil)
	if err != nil {
		return nil, fmt.Errorf("opening the run's progress: %w", err)
	}
	return &ProgressLog{clk: clk, j: j}, nil
}

// Add records a step; a zero T is now.
func (p *ProgressLog) Add(s Step) {
	if s.T.IsZero() {
		s.T = p.clk.Now()
	}
	s.T = s.T.In(p.clk.Wall.Location())
	b, err := json.Marshal(s)
	if err != nil {
		return // no value of Step can fail
	}
	p.j.put(append(b, '\n'))
}

// Close writes and syncs what is queued and closes the file.
func (p *ProgressLog) Close() error { return p.j.close() }
