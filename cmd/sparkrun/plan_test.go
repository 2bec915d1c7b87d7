package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"

	"sparkrun/internal/job"
	"sparkrun/supervisor"
)

func parsePlan(t *testing.T, args ...string) (supervisor.PlanOptions, error) {
	t.Helper()
	var p planFlags
	c := &cobra.Command{}
	p.add(c)
	if err := c.Flags().Parse(args); err != nil {
		t.Fatal(err)
	}
	return p.options(c, supervisor.Options{})
}

func TestPlanFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		want supervisor.PlanOptions
	}{
		{"", supervisor.PlanOptions{Told: map[job.Knob]string{}}},
		{"--params 70B --method qlora --fit", supervisor.PlanOptions{Params: "70B", Fit: true, Told: map[job.Knob]string{job.Method: "qlora"}}},
		{
			"--model ./m --optimizer adamw_8bit --rank 64 --batch 2 --seq-len 4096 --grad-checkpointing off --attention eager --dtype fp32 --budget 110GB",
			supervisor.PlanOptions{Budget: 110e9, Told: map[job.Knob]string{
				job.Model: "./m", job.Optimizer: "adamw_8bit", job.LoRARank: "64", job.MicroBatch: "2", job.SeqLen: "4096",
				job.GradCkpt: "false", job.Attention: "eager", job.DType: "fp32",
			}},
		},
		{"--grad-checkpointing on --budget 2GiB", supervisor.PlanOptions{Budget: 2 << 30, Told: map[job.Knob]string{job.GradCkpt: "true"}}},
	} {
		got, err := parsePlan(t, strings.Fields(c.args)...)
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		if diff := cmp.Diff(c.want, got, cmpopts.IgnoreUnexported(supervisor.Options{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.args, diff)
		}
	}
}

func TestPlanFlagsThatAreWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--method", "dora"}, "--method dora: one of full, lora, qlora"},
		{[]string{"--model", "m", "--params", "8B"}, "give one of them"},
		{[]string{"--model", ""}, "--model is empty"},
		{[]string{"--grad-checkpointing", "yes"}, "on or off"},
		{[]string{"--batch", "0"}, "--batch 0: a whole number from 1"},
		{[]string{"--seq-len", "-5"}, "--seq-len -5"},
		{[]string{"--rank", "99999999999"}, "--rank 99999999999"},
		{[]string{"--budget", "lots"}, `"lots" is no size`},
		{[]string{"--budget", "0"}, "at least 1MiB"},
		{[]string{"--dtype", "nonsense"}, `--dtype: "nonsense" is no type that weights are trained in here; one of bf16, fp16, fp32`},
		{[]string{"--attention", "nonsense"}, `--attention: "nonsense" is no attention that is known here; its name must have one of these words in it: eager`},
		{[]string{"--optimizer", "nonsense"}, `--optimizer: "nonsense" is no optimizer that is known here; its name must have one of these words in it: adafactor`},
		{[]string{"--dtype", ""}, "--dtype is empty"},
	} {
		if po, err := parsePlan(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, %+v", c.args, err, po)
		}
	}
}

// TestPlanWidth: COLUMNS is the word of whoever pipes it.
func TestPlanWidth(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for columns, want := range map[string]int{"": 100, "60": 60, "5": 100, "wide": 100} {
		e := environment{stdout: f, getenv: func(string) string { return columns }}
		if got := planWidth(e); got != want {
			t.Errorf("COLUMNS=%q: %d, want %d", columns, got, want)
		}
	}
}

// Every setting that a flag tells has the name of its flag.
func TestPlanFlagNames(t *testing.T) {
	t.Parallel()
	c := &cobra.Command{}
	var p planFlags
	p.add(c)
	for k, name := range supervisor.PlanFlags {
		if c.Flags().Lookup(name) == nil {
			t.Errorf("%s: there is no --%s", k, name)
		}
	}
}

// What the flags complete is what they take.
func TestPlanTakesWhatItCompletes(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"method", "optimizer", "grad-checkpointing", "attention", "dtype"} {
		values := complete(t, nil, "plan", "--"+flag, "")
		if len(values) < 3 {
			t.Errorf("--%s completes %q", flag, values)
		}
		for _, v := range values[:len(values)-1] {
			if _, err := parsePlan(t, "--"+flag, v); err != nil {
				t.Errorf("--%s %s: %v", flag, v, err)
			}
		}
	}
}
