package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sparkrun/internal/job"
	"sparkrun/preflight/headroom"
	"sparkrun/supervisor"
)

// planFlags are the flags of plan beside those of a run.
type planFlags struct {
	model, params, method, optimizer    string
	gradCheckpointing, attention, dtype string
	budget                              string
	rank, batch, seqLen                 int64
	fit, json, schema                   bool
}

// newPlan says how much memory a training will take and whether that fits.
func newPlan(e environment) *cobra.Command {
	var f runFlags
	var p planFlags
	c := &cobra.Command{
		Use:   "plan [flags] [-- COMMAND [ARG...]]",
		Short: "Say how much memory a training will take, and whether that fits; runs nothing",
		Long: `Say how much memory a training will take, part by part, and whether that fits this
machine now. With a command the settings come from the command itself; flags go before
what it says. Without one they come from flags alone.

What is not told is assumed and listed. Nothing is run and nothing is written.

Ends with 0 it fits, 1 it is tight or over by the estimate, 2 it cannot fit: the weights
alone, counted in the model's files, are larger than the budget (125 if nothing could be
reckoned).`,
		Example: fmt.Sprintf("  %[1]s plan -- llamafactory-cli train sft.yaml\n  %[1]s plan --params 70B --method qlora --seq-len 2048\n  %[1]s plan --model ./Qwen3-8B --method lora --fit", progName()),
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if p.schema {
				return printSchema(cmd, "plan")
			}
			o, err := f.options(cmd, args, e)
			if err != nil {
				return err
			}
			po, err := p.options(cmd, o)
			if err != nil {
				return &exitError{supervisor.StatusError, err.Error()}
			}
			ctx := cmd.Context()
			plan, err := supervisor.Plan(ctx, po)
			if err != nil {
				return err
			}
			if p.json {
				if err := printJSON(cmd.OutOrStdout(), plan); err != nil {
					return err
				}
			} else {
				if err := printed(cmd, plan.Text(planWidth(e), colours(e))); err != nil {
					return err
				}
			}
			if plan.Status != supervisor.PlanFits {
				return &exitError{status: plan.Status} // the verdict has said it
			}
			return nil
		},
	}
	c.Flags().SetInterspersed(false)
	f.add(c.Flags())
	f.completions(c, e)
	// The settings of a run count, since ./sparkrun.yaml may hold them; in the help only
	// those that change a plan.
	hideSettings(c.Flags(), "profiles", "knob", "ladder", "allow", "deny", "exact")
	p.add(c)
	c.SetFlagErrorFunc(flagError)
	return c
}

func (p *planFlags) add(c *cobra.Command) {
	set := c.Flags()
	set.StringVar(&p.model, "model", "", "base model: a folder, or a name that is in the Hugging Face cache")
	set.StringVar(&p.params, "params", "", "number of parameters in place of a model, as 70B; its shape is assumed")
	set.StringVar(&p.method, "method", "", "full, lora or qlora")
	set.StringVar(&p.optimizer, "optimizer", "", "optimizer in the words of any trainer, as adamw_8bit")
	set.Int64Var(&p.rank, "rank", 0, "rank of the adapter")
	set.Int64Var(&p.batch, "batch", 0, "rows in one forward pass (micro-batch)")
	set.Int64Var(&p.seqLen, "seq-len", 0, "tokens in one row")
	set.StringVar(&p.gradCheckpointing, "grad-checkpointing", "", "activation checkpointing: on or off")
	set.StringVar(&p.attention, "attention", "", "implementation of attention: eager, sdpa, flash_attention_2...")
	set.StringVar(&p.dtype, "dtype", "", "type of the weights: bf16, fp16 or fp32")
	set.StringVar(&p.budget, "budget", "", "memory to plan for, as 110GB (default: what this machine has now)")
	set.BoolVar(&p.fit, "fit", false, "also find the longest row and the largest batch that fit, for each method")
	set.BoolVar(&p.json, "json", false, "print JSON")
	set.BoolVar(&p.schema, "schema", false, "print the JSON Schema of --json and do nothing else")
	completes(c, "model", folders)
	completes(c, "method", fixed(
		cobra.CompletionWithDesc("full", "all weights"),
		cobra.CompletionWithDesc("lora", "an adapter on weights in 16 bit"),
		cobra.CompletionWithDesc("qlora", "an adapter on quantised weights"),
	))
	completes(c, "optimizer", fixed("adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "adafactor", "muon", "sgd"))
	completes(c, "grad-checkpointing", fixed("on", "off"))
	completes(c, "attention", fixed("eager", "sdpa", "flash_attention_2"))
	completes(c, "dtype", fixed("bf16", "fp16", "fp32"))
}

// planMost bounds the numbers of a plan: more is a mistake.
const planMost = 1 << 31

// options reads the flags of a plan.
func (p *planFlags) options(cmd *cobra.Command, o supervisor.Options) (supervisor.PlanOptions, error) {
	po := supervisor.PlanOptions{Options: o, Params: strings.TrimSpace(p.params), Fit: p.fit, Told: map[job.Knob]string{}}
	given := cmd.Flags().Changed
	if po.Params != "" && p.model != "" {
		return po, errors.New("--model and --params both tell the size of the model; give one of them")
	}
	if given("model") && strings.TrimSpace(p.model) == "" {
		return po, errors.New("--model is empty; name a folder, or a model of the Hugging Face cache")
	}
	for k, text := range map[job.Knob]string{job.Model: p.model, job.Optimizer: p.optimizer, job.Attention: p.attention, job.DType: p.dtype} {
		if text = strings.TrimSpace(text); text != "" {
			po.Told[k] = text
		}
	}
	for _, w := range []struct {
		flag string
		knob job.Knob
		bad  func(string) error
	}{{"optimizer", job.Optimizer, headroom.CheckOptimizer}, {"attention", job.Attention, headroom.CheckAttention}, {"dtype", job.DType, headroom.CheckDType}} {
		if text := po.Told[w.knob]; text != "" {
			if err := w.bad(text); err != nil {
				return po, fmt.Errorf("--%s: %w", w.flag, err)
			}
		} else if given(w.flag) {
			return po, fmt.Errorf("--%s is empty", w.flag)
		}
	}
	switch p.method {
	case "":
	case "full", "lora", "qlora":
		po.Told[job.Method] = p.method
	default:
		return po, fmt.Errorf("--method %s: one of full, lora, qlora", p.method)
	}
	switch p.gradCheckpointing {
	case "":
	case "on", "off":
		po.Told[job.GradCkpt] = strconv.FormatBool(p.gradCheckpointing == "on")
	default:
		return po, fmt.Errorf("--grad-checkpointing %s: on or off", p.gradCheckpointing)
	}
	for _, n := range []struct {
		flag string
		knob job.Knob
		v    int64
	}{{"rank", job.LoRARank, p.rank}, {"batch", job.MicroBatch, p.batch}, {"seq-len", job.SeqLen, p.seqLen}} {
		if !given(n.flag) && n.v == 0 {
			continue
		}
		if n.v < 1 || n.v > planMost {
			return po, fmt.Errorf("--%s %d: a whole number from 1 to %d", n.flag, n.v, int64(planMost))
		}
		po.Told[n.knob] = strconv.FormatInt(n.v, 10)
	}
	if p.budget != "" {
		b, err := parseSize(p.budget)
		if err != nil {
			return po, fmt.Errorf("--budget: %w", err)
		}
		if b < 1<<20 || b > math.MaxInt64/2 {
			return po, fmt.Errorf("--budget %s: at least 1MiB, as 110GB", p.budget)
		}
		po.Budget = int64(b)
	}
	return po, nil
}
