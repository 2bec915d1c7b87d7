package checkpoint

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"sparkrun/internal/lazyre"
)

// Trainers that save with accelerate's save_state: weights, optimizer, scheduler,
// sampler, scaler, and the states of the random numbers last.

var (
	imageWeights = lazyre.New(`\.safetensors$|^pytorch_model.*\.bin$|^(unet|transformer|text_encoder|controlnet|lora|model|pytorch_model)(_\w+)?$`)
	randomState  = lazyre.New(`^random_states_(\d{1,6})\.pkl$`)
)

// accelerated tests what save_state writes.
func accelerated(l *look, c *Checkpoint) tree {
	t := l.folder(c.Path)
	if len(t.like(imageWeights)) == 0 {
		l.fault("there are no weights in it")
	}
	ranks := t.like(randomState)
	if len(ranks) == 0 {
		l.fault("random_states_0.pkl is missing: it is written last")
	}
	for r := range ranks {
		if n := "random_states_" + strconv.Itoa(r) + ".pkl"; !t.has(n) {
			l.fault(n + " is missing")
		}
	}
	c.HasOptimizer = len(t.like(otherOptim)) > 0 || len(t.like(optimFSDP)) > 0
	// DeepSpeed keeps the optimizer in a folder named after the model.
	if !c.HasOptimizer && t.has("latest") && filled(t, "pytorch_model") {
		l.fault(zero(c.Path, t))
		c.HasOptimizer = zeroOptimizer(t, []string{"pytorch_model"})
	}
	return t
}

// lookAccelerate tests a checkpoint of the diffusers scripts.
func lookAccelerate(l *look, c *Checkpoint) { accelerated(l, c) }

var (
	kohyaStep  = lazyre.New(`-step(\d{8})-state$`)
	kohyaEpoch = lazyre.New(`-(\d{6})-state$`)
)

// lookKohya tests a state folder of kohya's sd-scripts, there only with
// --save_state. Its train_state.json, which old versions do not write, has the step.
func lookKohya(l *look, c *Checkpoint) {
	c.Step = Unknown
	base := filepath.Base(c.Path)
	if m := kohyaStep.FindStringSubmatch(base); m != nil {
		c.Step, _ = strconv.ParseInt(m[1], 10, 64)
	} else if m := kohyaEpoch.FindStringSubmatch(base); m != nil {
		c.order, _ = strconv.ParseInt(m[1], 10, 64)
	} else if strings.HasSuffix(base, "-state") {
		c.order = 1 << 32 // of the end, after every epoch
	}
	var st struct {
		Step *int64 `json:"current_step"`
	}
	switch err := readJSON(filepath.Join(c.Path, "train_state.json"), &st); {
	case err == nil && st.Step != nil:
		c.Step = *st.Step
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		l.fault(err.Error())
	}
	accelerated(l, c)
}
