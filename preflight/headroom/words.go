package headroom

import (
	"fmt"
	"strings"
)

// CheckOptimizer refuses the name of an optimizer of which nothing is known, and lists
// those of which something is. A command may have such a one: then something is assumed
// and said; who types it for a plan means it.
func CheckOptimizer(name string) error {
	t, err := loadTable()
	if err != nil {
		return err
	}
	if _, ok := t.optimizerOf(name); ok {
		return nil
	}
	var words []string
	for _, o := range t.Optimizers {
		words = append(words, o.Words[0])
	}
	return fmt.Errorf("%q is no optimizer that is known here; its name must have one of these words in it: %s", name, strings.Join(words, ", "))
}

// CheckAttention is CheckOptimizer for an implementation of attention.
func CheckAttention(name string) error {
	t, err := loadTable()
	if err != nil {
		return err
	}
	known := append(append([]string{}, t.Activations.WithScores...), t.Activations.WithoutScores...)
	for _, w := range known {
		if strings.Contains(strings.ToLower(name), w) {
			return nil
		}
	}
	return fmt.Errorf("%q is no attention that is known here; its name must have one of these words in it: %s", name, strings.Join(known, ", "))
}

// CheckDType is CheckOptimizer for the type of the weights.
func CheckDType(word string) error {
	if dtypeOf(word) != "" {
		return nil
	}
	return fmt.Errorf("%q is no type that weights are trained in here; one of bf16, fp16, fp32 (also bfloat16, float16, float32, and bf16-mixed or fp16-mixed for weights in 32 bit that are computed with in 16)", word)
}
