package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sparkrun/configs"
	"sparkrun/internal/job"
	"sparkrun/internal/lazyre"
)

// The same run in an experiment tracker across attempts: each tracker is told an ID
// by its own environment, if the job uses it and the user has not said otherwise.

// trackers says which trackers a job uses and what is known of them.
type trackers struct {
	WandB, MLflow, TensorBoard, Comet, SwanLab bool
	// Transformers says that its Trainer talks to them, which reads more environment
	// than the trackers themselves do.
	Transformers bool
	// OutputDir is the output folder as typed, the first attempt's; LogDir is set
	// where the job says itself where TensorBoard's files go.
	OutputDir string
	LogDir    bool
	// MLflowRun is the run that an earlier attempt has made (mlflowRun); Changed says
	// that the next attempt has other settings than that one.
	MLflowRun string
	Changed   bool
}

// maxWandB is the longest ID that Weights & Biases takes in every version.
const maxWandB = 64

// trackerEnv returns the NAME=VALUE words to add to an attempt's environment env.
//
//   - Weights & Biases: an ID made from the run's, and WANDB_RESUME=allow, from the
//     first attempt on.
//   - MLflow knows no ID that it has not given out itself: to start with another one
//     is an error that ends the training. So the first attempt has none, and a later
//     one has that of the run that the first one made, where it can be read. A run
//     refuses settings logged with another value; transformers is told to log none
//     then, and with anything else the attempt gets a run of its own.
//   - TensorBoard: one folder, of which only newer versions of transformers are told
//     by the environment.
//   - Comet and SwanLab: an ID of the form that each demands.
func trackerEnv(env []string, runID string, sees trackers) []string {
	set := map[string]bool{}
	for _, e := range env {
		if name, value, ok := strings.Cut(e, "="); ok && value != "" {
			set[name] = true
		}
	}
	free := func(names ...string) bool {
		for _, n := range names {
			if set[n] {
				return false
			}
		}
		return true
	}
	var out []string
	sum := sha256.Sum256([]byte("sparkrun " + runID))
	id := hex.EncodeToString(sum[:])
	if sees.WandB && free("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID", "WANDB_DISABLED") {
		out = append(out, "WANDB_RUN_ID="+wandbID(runID), "WANDB_RESUME=allow")
	}
	if sees.MLflow && sees.MLflowRun != "" && free("MLFLOW_RUN_ID", "MLFLOW_NESTED_RUN") && (!sees.Changed || sees.Transformers) {
		out = append(out, "MLFLOW_RUN_ID="+sees.MLflowRun)
		if sees.Changed && free("MLFLOW_MAX_LOG_PARAMS") {
			out = append(out, "MLFLOW_MAX_LOG_PARAMS=0")
		}
	}
	if sees.TensorBoard && sees.Transformers && sees.OutputDir != "" && !sees.LogDir && free("TENSORBOARD_LOGGING_DIR") {
		out = append(out, "TENSORBOARD_LOGGING_DIR="+filepath.Join(sees.OutputDir, "runs", runID))
	}
	if sees.Comet && free("COMET_EXPERIMENT_KEY", "COMET_MODE", "COMET_START_MODE") {
		out = append(out, "COMET_EXPERIMENT_KEY="+id[:32])
	}
	if sees.SwanLab && free("SWANLAB_RUN_ID", "SWANLAB_RESUME") {
		out = append(out, "SWANLAB_RUN_ID="+id[:21], "SWANLAB_RESUME=allow")
	}
	return out
}

var notInID = lazyre.New(`[^A-Za-z0-9_-]`)

// wandbID makes an ID that Weights & Biases takes: a slash, a hash and some other
// signs are refused there. The end of a run's ID is what tells it from others.
func wandbID(runID string) string {
	id := notInID.ReplaceAllString(runID, "-")
	return strings.TrimLeft(id[max(0, len(id)-maxWandB):], "-")
}

// A word of an option, a key or a line of code that hands tracking on or off.
var (
	reportTo = lazyre.New(`(?i)\b(?:report_to|report-to|log_with|log-with|logger_name)\b["']?\s*[=:]?\s*([^\n#]*(?:\n\s*-\s+[^\n#]*)*)`)
	// usesOf are signs of use in a config or a script's text.
	usesOf = map[string]*lazyre.RE{
		"wandb":       lazyre.New(`(?im)^\s*(?:import|from)\s+wandb\b|\bwandb\.init\(|(?-i:\bWandB\b)|\bWandBLogger\b|\bwandb[-_](?:project|run_?name|run-?name|entity|exp[-_]name|name)\b["']?[ \t]*[=: \t][ \t]*["']?(?:[^\s"'nN#0]|n[^uo])|\b(?:use[-_.])?wandb(?:_log)?\b["']?\s*[=:]\s*["']?(?:true|yes|1\b|\{|\n)`),
		"mlflow":      lazyre.New(`(?m)^\s*(?:import|from)\s+mlflow\b|\bmlflow\.start_run\(|\bML[Ff]lowLogger\b|\bmlflow_(?:tracking_uri|experiment_name)\b["']?\s*[=:]\s*["']?\w`),
		"tensorboard": lazyre.New(`\bSummaryWriter\(|\bTensorBoardLogger\b|\buse_tensorboard\b["']?\s*[=:]\s*["']?(?:[tT]rue|1)|--tensorboard[-_](?:log[-_])?dir\b`),
		"comet":       lazyre.New(`\bcomet_ml\.start\(|\buse_comet\b["']?\s*[=:]\s*["']?(?:[tT]rue|1)`),
		"swanlab":     lazyre.New(`(?m)^\s*(?:import|from)\s+swanlab\b|\bswanlab\.init\(|\buse_swanlab\b["']?\s*[=:]\s*["']?(?:[tT]rue|1)`),
	}
	wandbInit  = lazyre.New(`\bwandb\.(?:init|sweep|agent)\(`)
	mlflowRuns = lazyre.New(`\bmlflow\.start_run\(`)
	cometOld   = lazyre.New(`\bcomet_ml\.(?:Existing|Offline)?Experiment\(|\bimport\s+(?:Offline|Existing)?Experiment\b`)
	searches   = lazyre.New(`\bhyperparameter_search\(|\boptuna\.create_study\(|\bKFold\(`)
	usesHF     = lazyre.New(`\b(?:TrainingArguments|SFTConfig|DPOConfig|HfArgumentParser|TrlParser)\b`)
	logDirSaid = lazyre.New(`\blogging[_-]dir\b`)
)

// trackersOf reads which trackers a job uses from its words, its environment and
// the texts of its config file and script. A tracker that several runs in one
// process talk to is left alone: they would all become the same one.
func trackersOf(j job.Job, env []string, texts ...string) trackers {
	t := trackers{OutputDir: j.Knobs[job.OutputDir].Value, Transformers: j.Resume.Layout == "hf"}
	// An option of its own and its values in one line each.
	words := strings.Join(j.Argv, " ")
	words = strings.ReplaceAll(words, " --", "\n--")
	all := append([]string{words}, texts...)
	uses := map[string]bool{}
	silent := false
	for _, text := range all {
		for _, m := range reportTo.FindAllStringSubmatch(text, 20) {
			value := strings.ToLower(m[1])
			silent = silent || strings.Contains(value, "none") && !strings.Contains(value, "wandb")
			for name := range usesOf {
				uses[name] = uses[name] || strings.Contains(value, name)
			}
			uses["comet"] = uses["comet"] || strings.Contains(value, "comet")
		}
		for name, re := range usesOf {
			uses[name] = uses[name] || re.MatchString(text)
		}
		t.Transformers = t.Transformers || usesHF.MatchString(text)
		t.LogDir = t.LogDir || logDirSaid.MatchString(text)
	}
	if !silent {
		for _, e := range env {
			name, value, _ := strings.Cut(e, "=")
			if value == "" {
				continue
			}
			switch name {
			case "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_NAME", "WANDB_API_KEY":
				uses["wandb"] = true
			case "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID":
				uses["mlflow"] = true
			case "COMET_API_KEY", "COMET_PROJECT_NAME":
				uses["comet"] = t.Transformers
			case "SWANLAB_API_KEY", "SWANLAB_PROJECT":
				uses["swanlab"] = true
			}
		}
	}
	count := func(re *lazyre.RE) int {
		n := 0
		for _, text := range texts {
			n += len(re.FindAllStringIndex(text, 3))
		}
		return n
	}
	many := count(searches) > 0
	t.WandB = uses["wandb"] && !many && count(wandbInit) < 2
	t.MLflow = uses["mlflow"] && !many && count(mlflowRuns) < 2
	t.TensorBoard = uses["tensorboard"]
	t.Comet = uses["comet"] && !many && count(cometOld) == 0
	t.SwanLab = uses["swanlab"] && !many
	return t
}

const (
	// mostExperiments and mostRuns bound what is looked through of an MLflow folder.
	mostExperiments = 200
	mostRuns        = 5000
)

var mlflowID = lazyre.New(`^[0-9a-f]{32}$`)

// mlflowRun returns the one run that came into being since a moment in MLflow's
// folder on this machine; empty if there is none, or more than one, or if the runs
// are kept on a server or in a database.
func mlflowRun(dir string, env []string, since time.Time) string {
	folder := filepath.Join(dir, "mlruns")
	for _, e := range env {
		if uri, ok := strings.CutPrefix(e, "MLFLOW_TRACKING_URI="); ok && uri != "" {
			if folder = localFolder(dir, uri); folder == "" {
				return ""
			}
		}
	}
	found := ""
	for _, experiment := range someNames(folder, mostExperiments) {
		base := filepath.Join(folder, experiment)
		for _, name := range someNames(base, mostRuns) {
			if !mlflowID.MatchString(name) {
				continue
			}
			// The folder of a run's artifacts is made with it and never again.
			info, err := os.Stat(filepath.Join(base, name, "artifacts"))
			if err != nil || info.ModTime().Before(since) {
				continue
			}
			if _, err := os.Stat(filepath.Join(base, name, "meta.yaml")); err != nil {
				continue
			}
			if found != "" {
				return ""
			}
			found = name
		}
	}
	return found
}

// localFolder is the folder of an MLflow store, empty where it is none on this
// machine.
func localFolder(dir, uri string) string {
	u, err := url.Parse(uri)
	switch {
	case err != nil:
		return ""
	case u.Scheme == "file" && u.Host == "":
		return u.Path
	case u.Scheme != "":
		return ""
	case filepath.IsAbs(uri):
		return uri
	}
	return filepath.Join(dir, uri)
}

// someNames returns at most so many names of folders in a folder.
func someNames(dir string, most int) []string {
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	list, _ := f.ReadDir(most)
	var names []string
	for _, d := range list {
		if d.IsDir() || d.Type()&fs.ModeSymlink != 0 {
			names = append(names, d.Name())
		}
	}
	return names
}

// textMost bounds how much of a script or config file is looked through for trackers.
const textMost = 256 << 10

// findTrackers reads the job's own files for the trackers it talks to.
func (r *run) findTrackers() trackers {
	var texts []string
	for _, name := range []string{r.asked.Script, r.asked.ConfigFile} {
		if name == "" || r.asked.Module && name == r.asked.Script {
			continue
		}
		path, ok := r.set.HostPath(r.asked, name)
		if !ok {
			continue
		}
		if data, err := configs.ReadFile(path); err == nil {
			texts = append(texts, string(data[:min(len(data), textMost)]))
		}
	}
	return trackersOf(r.asked, r.o.Env, texts...)
}

// trackerEnv is what an attempt's trackers are told. A run that an earlier attempt has
// made is looked for where MLflow keeps them on this machine.
func (r *run) trackerEnv(a *attempt) []string {
	t := r.trackers
	if t.MLflow && a.n > 1 {
		t.MLflowRun, t.Changed = mlflowRun(r.o.Dir, r.o.Env, r.since()), len(a.rewrite.Changes) > 0
	}
	return trackerEnv(r.o.Env, r.dir.ID, t)
}
