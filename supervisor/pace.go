package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkrun/configs"
	"sparkrun/internal/job"
	"sparkrun/internal/lazyre"
	"sparkrun/ladder/trainer/progress"
	"sparkrun/sampler/throttle"
	"sparkrun/supervisor/gate"
	"sparkrun/supervisor/runlog"
)

// The pace of a run against that of this machine's earlier runs of the same job: read
// when an attempt starts, noted when a run ends.

const (
	// paceSteps is how many steady steps a run needs for its pace to be noted.
	paceSteps = 50
	// paceSlowed is the part of the time from which on a slowdown leaves too little of a
	// run to tell its pace. (Own choice.)
	paceSlowed = 0.25
	// paceThrottled is the part of the time from which a run was throttled: its pace is
	// none to compare others with.
	paceThrottled = 0.01
	// paceDataMost bounds how much of a script or config file is looked through for
	// the lines that name its data.
	paceDataMost = 256 << 10
)

// paceKnobs are the settings that change how long a step takes.
var paceKnobs = []job.Knob{
	job.Model, job.Method, job.SeqLen, job.Packing, job.MicroBatch, job.Accumulation, job.GlobalBatch, job.LoadIn4Bit,
	job.DType, job.GradCkpt, job.Optimizer, job.Attention, job.LoRARank, job.LoRATargets, job.NumWorkers, job.TruncPolicy,
}

// paceKey is what makes another run the same job as this attempt. What is not known
// must not make two jobs one: then the words of the whole command count as well.
func paceKey(j job.Job, host, gpu string, texts map[string]string) runlog.PaceKey {
	k := runlog.PaceKey{"host": host, "gpu": gpu, "trainer": j.Profile, "program": paceProgram(j)}
	for _, name := range paceKnobs {
		if v := j.Knobs[name].Value; v != "" {
			k[string(name)] = v
		}
	}
	k["procs"], k["nodes"] = strconv.Itoa(max(j.Procs, 1)), strconv.Itoa(max(j.Nodes, 1))
	if j.Container != nil {
		k["image"] = j.Container.Image
	}
	if data := paceData(j, texts); data != "" {
		k["data"] = data
	}
	if !paceKnown(j) {
		k["command"] = paceSum(append(paceWords(j), texts["script"], texts["config"]))
	}
	return k
}

// paceKnown says that the settings which decide most are known.
func paceKnown(j job.Job) bool {
	has := func(k job.Knob) bool { return j.Knobs[k].Value != "" }
	return j.Profile != "" && has(job.Model) && (has(job.SeqLen) || j.Image) && (has(job.MicroBatch) || has(job.GlobalBatch)) && len(j.Unclear) == 0
}

// paceProgram is the trainer's own name: its script or its program, without the folder.
func paceProgram(j job.Job) string {
	switch {
	case j.Module:
		return "-m " + j.Script
	case j.Script != "":
		return filepath.Base(j.Script)
	case j.TrainerAt < len(j.Argv):
		return filepath.Base(j.Argv[j.TrainerAt])
	}
	return ""
}

// paceWords are the words of the command but for where it saves, which every run of a
// night names anew.
func paceWords(j job.Job) []string {
	out := j.Knobs[job.OutputDir].Value
	var words []string
	for _, w := range j.Argv {
		if out != "" && (w == out || strings.HasSuffix(w, "="+out)) {
			w = strings.TrimSuffix(w, out)
		}
		words = append(words, w)
	}
	return words
}

// dataLine is a line of a script or config file that names the data: rows of another
// length take another time.
var dataLine = lazyre.New(`(?im)^.*(?:data|corpus|train_?(?:files?|sets?|split|path|dir)\b|(?:text|input)_?(?:files?|path|dir)\b|parquet|jsonl|` + dataName + `).*$`)

// dataName is what names of files with rows end in.
const dataName = `\.(?:txt|json|csv|tsv|arrow|npy|npz|bin|tar|zst|gz|parquet|jsonl|mds|h5)\b`

var (
	// dataFlag is an option of a command that names the data, notDataFlag one that looks
	// like it and names something else.
	dataFlag    = lazyre.New(`(?i)data|corpus|train|text|input|parquet|jsonl|rows|docs|prompts?\b|shards?\b`)
	notDataFlag = lazyre.New(`(?i)output|save|log|cache|context|resume|checkpoint|trainer|tokeni[sz]er`)
	dataFile    = lazyre.New(`(?i)` + dataName)
)

// paceData is a sum of what names the data; empty where nothing does. Numbers and
// yes or no (of epochs, of batches) are other settings.
func paceData(j job.Job, texts map[string]string) string {
	var found []string
	out := j.Knobs[job.OutputDir].Value
	words := j.Argv[min(len(j.Argv), max(j.TrainerAt, 0)):]
	for i, w := range words {
		name, value, joined := strings.Cut(w, "=")
		switch {
		case out != "" && (w == out || value == out || strings.HasPrefix(w, strings.TrimSuffix(out, "/")+"/")):
			continue
		case !strings.HasPrefix(w, "-") && !joined:
			// The value of an option, or a word by itself.
			if dataFile.MatchString(w) && w != j.Script && w != j.ConfigFile && (i == 0 || !notDataFlag.MatchString(optionName(words[i-1]))) {
				found = append(found, w)
			}
			continue
		case notDataFlag.MatchString(name) || !dataFlag.MatchString(name) && !dataFile.MatchString(value):
			continue
		case !joined && i+1 < len(words) && !strings.HasPrefix(words[i+1], "-"):
			value = words[i+1]
		}
		if value != "" && !plainValue(value) {
			found = append(found, name, value)
		}
	}
	for _, name := range []string{"script", "config"} {
		for _, line := range dataLine.FindAllString(texts[name], 200) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return paceSum(found)
}

// optionName is a word where it is an option, which takes the next word as its value.
func optionName(w string) string {
	if strings.HasPrefix(w, "-") && !strings.Contains(w, "=") {
		return w
	}
	return ""
}

// plainValue tells whether a value is a number or a yes or no, and so names nothing.
func plainValue(v string) bool {
	if _, err := strconv.ParseFloat(v, 64); err == nil {
		return true
	}
	_, err := strconv.ParseBool(strings.ToLower(v))
	return err == nil
}

// paceSum is a hash: words of a command may hold secrets.
func paceSum(words []string) string {
	h := sha256.New()
	for _, w := range words {
		fmt.Fprintf(h, "%d:%s", len(w), w)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// paceTexts reads the command's own script and config file.
func (r *run) paceTexts() map[string]string {
	out := map[string]string{}
	for key, name := range map[string]string{"script": r.asked.Script, "config": r.asked.ConfigFile} {
		if name == "" || r.asked.Module && key == "script" {
			continue
		}
		if path, ok := r.set.HostPath(r.asked, name); ok {
			if data, err := configs.ReadFile(path); err == nil {
				out[key] = string(data[:min(len(data), paceDataMost)])
			}
		}
	}
	return out
}

// paceKeyOf is the key of an attempt.
func (r *run) paceKeyOf(a *attempt, gpu string) runlog.PaceKey {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	j := a.theJob()
	// A resumed attempt is the same job from another step.
	j.Argv = r.asked.Argv
	return paceKey(j, host, gpu, r.paceTexts())
}

// meetPace gives the detector the pace of earlier runs of this attempt's job. It runs
// beside the attempt: the state folder may hang, and the GPU may take its time to tell
// its name.
func (r *run) meetPace(ctx context.Context, a *attempt) {
	if r.samp == nil {
		return
	}
	// Not the one of the attempt before, whose settings were others.
	r.setHistory(a, throttle.History{})
	dev, err := r.samp.Device(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		dev.Name = ""
	}
	runs, err := r.places.PaceRuns(r.paceKeyOf(a, dev.Name))
	if err != nil {
		// Worth no line in the log of the training: it is only not compared.
		r.diag.Warn("no comparison with earlier runs", "err", err)
	}
	r.setHistory(a, historyOf(runs))
}

// setHistory gives the detector earlier runs, unless the attempt is over.
func (r *run) setHistory(a *attempt, h throttle.History) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nowN == a.n {
		r.detector.SetHistory(h)
	}
}

// historyOf sums up earlier runs.
func historyOf(runs []runlog.PaceRun) throttle.History {
	var steps, tokens []float64
	newest := ""
	for _, p := range runs {
		newest = p.ID
		if p.StepTimeS.OK {
			steps = append(steps, p.StepTimeS.V)
		}
		if p.TokensPerS.OK {
			tokens = append(tokens, p.TokensPerS.V)
		}
	}
	// A rate that only some runs told is compared with those alone.
	h := throttle.HistoryOf(steps, tokens, newest)
	h.Runs = len(runs)
	return h
}

// worthNoting says whether a run's pace is one to compare later runs with, else why not.
func worthNoting(s throttle.Summary) (string, bool) {
	switch {
	case s.Pace.Steps < paceSteps || !s.Pace.BaselineS.OK:
		return fmt.Sprintf("%d steady steps, %d are needed", s.Pace.Steps, paceSteps), false
	case s.ThrottledShare.OK && s.ThrottledShare.V > paceThrottled:
		return fmt.Sprintf("the GPU was throttled for %.0f %% of the time", 100*s.ThrottledShare.V), false
	case s.Pace.Compared == throttle.ComparedSlow:
		return "it was slower than earlier runs", false
	}
	if slow := s.ByType[throttle.Slowdown].Seconds; slow > paceSlowed*(slow+float64(s.Pace.Steps)*s.Pace.BaselineS.V) {
		return fmt.Sprintf("it was slower than its own pace for %.0f s", slow), false
	}
	for _, typ := range []string{throttle.PowerWedge, throttle.LowCap, throttle.HWBrake} {
		if s.ByType[typ].Episodes > 0 {
			return "there was a " + typ + " episode", false
		}
	}
	return "", true
}

// keepPace notes how fast the run's last attempt went, for later runs of the same job.
// It is called once the sampler has stopped; it may hang with the state folder.
func (r *run) keepPace(s throttle.Summary) {
	a := r.att
	if a == nil || !a.haveStepNow() {
		return
	}
	if why, ok := worthNoting(s); !ok {
		r.diag.Debug("pace not noted", "why", why)
		return
	}
	r.mu.Lock()
	gpu := r.found.gpu
	r.mu.Unlock()
	err := r.places.AddPace(r.paceKeyOf(a, gpu), runlog.PaceRun{
		ID: r.dir.ID, T: r.clk.Now(), StepTimeS: s.Pace.BaselineS, TokensPerS: s.Pace.TokensPerS, Steps: s.Pace.Steps,
	})
	if err != nil {
		r.diag.Warn("pace not noted", "err", err)
	}
}

func (a *attempt) haveStepNow() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.haveStep
}

// markPace tells the detector of checkpoints and evaluations, which make a step long
// without making it slow.
func (r *run) markPace(s progress.Step, t time.Time) {
	if s.Checkpoint == "" && !s.Eval {
		return
	}
	kind := throttle.MarkEval
	if s.Checkpoint != "" {
		kind = throttle.MarkCheckpoint
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.detector.Mark(t, kind)
}

// gpuNames tells whose a process on the GPU is: "" for the training's own. A name is
// looked up once, since a process that hangs in the driver is waited for.
func (r *run) gpuNames() throttle.NamesFunc {
	names := map[int]string{}
	var order []int
	return func(pid int) string {
		if r.isOurs(pid) {
			return ""
		}
		if name, ok := names[pid]; ok {
			return name
		}
		name := nameSoon(pid)
		if name == "?" {
			name = "" // gone
		}
		name = r.secrets.Text(name)
		names[pid] = name
		if order = append(order, pid); len(order) > 64 {
			delete(names, order[0])
			order = slices.Delete(order, 0, 1)
		}
		return name
	}
}

// nameWait is how long a name may take: the sampler waits for it.
const nameWait = 50 * time.Millisecond

// nameSoon is the name of a process, "?" where it cannot be told at once: one that hangs
// in a driver may hold what its command line is read under.
func nameSoon(pid int) string {
	got := make(chan string, 1)
	go func() { got <- gate.Name("/", pid) }()
	select {
	case name := <-got:
		return name
	case <-time.After(nameWait):
		return "?"
	}
}
