package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sparkrun/internal/lazyre"
)

var (
	hfName    = lazyre.New(`^checkpoint-(\d{1,18})$`)
	swiftName = lazyre.New(`^v\d+-\d{8}-\d{6}$`)
	// sameWeights match files that hold weights, whole or of an adapter. The last
	// three are what trainers without torch write.
	sameWeights = lazyre.New(`^(model.*\.safetensors|adapter_model\.(safetensors|bin)|pytorch_model.*\.bin|diffusion_pytorch_model.*|model\.json|model\.pt|weights\..*|vit\.safetensors|value_head\..*)$`)
	shardedFSDP = lazyre.New(`^pytorch_model_fsdp(_\d+)?$`)
	optimFSDP   = lazyre.New(`^optimizer_\d+$`)
	deepspeed   = lazyre.New(`^global_step(\d{1,18})$`)
	otherOptim  = lazyre.New(`^(optimizer(_\d+)?\.(pt|bin|pth|safetensors)|optim.*\.(pt|bin))$`)
)

var findHF = folders(hfName, swiftName.MatchString, lookHF)

// incompleteMark is what newer transformers leaves in a checkpoint that it began to
// write on SIGTERM and did not end.
const incompleteMark = "checkpoint-is-incomplete.txt"

// trainerState is what is read of trainer_state.json.
type trainerState struct {
	GlobalStep     *int64          `json:"global_step"`
	TrainBatchSize json.RawMessage `json:"train_batch_size"`
}

// lookHF tests a checkpoint of the Hugging Face Trainer. trainer_state.json is
// written last, in place: a kill while saving leaves it out, or torn.
func lookHF(l *look, c *Checkpoint) {
	// The state first: what it says is the shortest way to say what happened.
	var st trainerState
	state := filepath.Join(c.Path, "trainer_state.json")
	switch err := readJSON(state, &st); {
	case errors.Is(err, fs.ErrNotExist):
		l.fault("trainer_state.json is missing: it is written last, so saving was cut short")
	case err != nil:
		l.fault(err.Error())
	case st.GlobalStep == nil:
		l.fault("trainer_state.json is torn or has no global_step")
	case c.Step != Unknown && *st.GlobalStep != c.Step:
		l.fault(fmt.Sprintf("trainer_state.json is of step %d", *st.GlobalStep))
	default:
		c.Step = *st.GlobalStep
	}
	t := l.folder(c.Path)
	if t.has(incompleteMark) {
		l.fault(incompleteMark + " is there: saving on a signal was cut short")
	}
	if t.has("adapter_model.safetensors") || t.has("adapter_model.bin") {
		if !t.has("adapter_config.json") && !t.has("trainer_state.json") {
			l.fault("adapter_config.json is missing")
		}
	}
	weights := len(t.like(sameWeights)) > 0 || len(t.like(shardedFSDP)) > 0
	if !weights {
		weights = adapters(t)
	}
	if tags := t.like(deepspeed); len(tags) > 0 {
		l.fault(zero(c.Path, t))
		weights, c.HasOptimizer = true, zeroOptimizer(t, tags)
	}
	if !weights {
		l.fault("there are no weights in it")
	}
	if len(t.like(otherOptim)) > 0 || len(t.like(optimFSDP)) > 0 {
		c.HasOptimizer = true
	}
	if !t.has("trainer_state.json") && l.wrong == "" {
		l.fault("trainer_state.json is missing")
	}
}

// atHF lets a folder of any name be one of the Trainer's, if somebody names it and it
// is no output folder with checkpoints of its own.
func atHF(path string) (candidate, error) {
	if c, err := atFolder(hfName, lookHF)(path); err == nil {
		return c, nil
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() || len(findHF(path)) > 0 {
		return candidate{}, errors.New("no checkpoint folder")
	}
	return candidate{path: path, step: Unknown, look: lookHF}, nil
}

// adapters says whether a folder below holds an adapter of its own name, as PEFT
// writes those that are not called default.
func adapters(t tree) bool {
	for _, name := range t.like(anything) {
		e := t[name]
		if !e.dir {
			continue
		}
		list, err := readDir(e.path, func(n string) bool { return strings.HasPrefix(n, "adapter_model.") })
		if err == nil && len(list) > 0 {
			return true
		}
	}
	return false
}

var (
	zeroState = lazyre.New(`model_states\.pt$`)
	zeroOptim = lazyre.New(`optim_states\.pt$`)
	zeroRank  = lazyre.New(`^(?:bf16_)?zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})_(\w+)\.pt$`)
)

// zero returns what is wrong with what DeepSpeed has written into a checkpoint:
// latest is written last and names the folder.
func zero(dir string, t tree) string {
	tag, _, err := pointer(filepath.Join(dir, "latest"))
	if err != nil {
		return "DeepSpeed's file latest is missing or empty: it is written last"
	}
	e, ok := t[tag]
	if !ok || !e.dir {
		return "DeepSpeed's file latest names " + quoteShort(tag) + ", which is not there"
	}
	list, err := readDir(e.path, nil)
	if err != nil {
		return tag + " cannot be read: " + reason(err)
	}
	in := tree{}
	for _, e := range list {
		in[e.name] = e
	}
	if len(in.like(zeroState)) == 0 {
		return tag + " has no model states"
	}
	// One file for each rank: a hole in the numbers is a rank that did not get to it.
	ranks := map[string]map[string]bool{}
	for n := range in {
		if m := zeroRank.FindStringSubmatch(n); m != nil {
			kind := m[2] + m[3]
			if ranks[kind] == nil {
				ranks[kind] = map[string]bool{}
			}
			ranks[kind][m[1]] = true
		}
	}
	most := 0
	for _, r := range ranks {
		most = max(most, len(r))
	}
	for _, r := range ranks {
		if len(r) < most || !r[fmt.Sprint(len(r)-1)] {
			return fmt.Sprintf("%s lacks the states of some ranks", tag)
		}
	}
	return ""
}

func zeroOptimizer(t tree, tags []string) bool {
	for _, tag := range tags {
		list, err := readDir(t[tag].path, zeroOptim.MatchString)
		if err == nil && len(list) > 0 {
			return true
		}
	}
	return false
}

// quoteShort shows a name from a file of somebody else's.
func quoteShort(s string) string {
	if len(s) > 64 {
		s = s[:64] + "..."
	}
	return fmt.Sprintf("%q", s)
}
