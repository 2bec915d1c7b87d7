package preflight

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
	"sparkrun/internal/sample"
	"sparkrun/internal/treefs"
	"sparkrun/preflight/headroom"
)

// planned is what the command is reckoned to need.
type planned struct {
	known bool
	why   string // why nothing is known
	// broken says what is wrong with the model's own files, where that is why: the
	// training will not be able to load them either.
	broken string
	// missing says which files of the weights are not there, fault what is wrong with the
	// model's config.json; "" for nothing. ours tells that the command names the folder
	// itself: nobody completes it.
	missing, fault string
	ours           bool
	// offline tells that the training may not ask the network for what is missing.
	offline bool

	spec headroom.Spec
	est  headroom.Estimate
	// start is the change to start from; nil where nothing has to change or none is known.
	start *Step
	// nodes is how many machines the command spans: the estimate is that of one which
	// holds everything.
	nodes int
	// procs is how many devices of this machine it uses.
	procs int
}

// Planned is the part of a report about the planned workload. All sizes are in bytes.
type Planned struct {
	Model PlannedModel `json:"model"`
	// Method is full, lora or qlora.
	Method   string            `json:"method"`
	Estimate headroom.Estimate `json:"estimate"`
	// Budget is what may be taken now, and Outcome the estimate held against it; nil where
	// it is not known.
	Budget  *Budget           `json:"budget"`
	Outcome *headroom.Outcome `json:"outcome"`
	// Anchor is the closest training that somebody has observed.
	Anchor *headroom.Anchor `json:"anchor"`
	// Start is the change to start from; nil where nothing has to change.
	Start *Step `json:"start_from"`
}

// PlannedModel is the base model of a plan.
type PlannedModel struct {
	// Name is the one in the command; "" where a number of parameters was given in its
	// place.
	Name string `json:"name"`
	// Params counts the parameters, From says what told; Exact that they were counted
	// tensor by tensor.
	Params int64  `json:"params"`
	From   string `json:"from"`
	Exact  bool   `json:"exact"`
	// DType is the type of most of them and Quantised the format of weights that are
	// stored quantised; "" where not known. Path is the folder that was read.
	DType     string `json:"dtype,omitempty"`
	Quantised string `json:"quantised,omitempty"`
	Path      string `json:"path,omitempty"`
}

// ModelOf is the model of a plan by the name that the user gave it.
func ModelOf(name string, s modelsize.Size) PlannedModel {
	return PlannedModel{Name: name, Params: s.Params, From: s.From, Exact: s.Exact, DType: s.DType, Quantised: s.Quantised, Path: s.Path}
}

// Step is the change to start from, where a plan is tight or over.
type Step struct {
	// Rung is its name in the ladder, smaller-model where none helps, "" where nothing has
	// to change; Words say it.
	Rung  string `json:"rung"`
	Words string `json:"words"`
	// Knobs are the settings that change, with their new values.
	Knobs map[string]string `json:"knobs"`
	// Peak is the estimate with them in bytes.
	Peak int64 `json:"peak_bytes"`
	// Line is a command line that is ready to be run; "" where the change must be made
	// by hand, and Changes say where.
	Line    string   `json:"command_line,omitempty"`
	Changes []string `json:"changes"`
	// OtherExperiment says that it is not the training that was asked for.
	OtherExperiment bool `json:"other_experiment,omitempty"`
	// ByHand says that the run's own ladder has no such step for this command: the words
	// are the runbook's.
	ByHand bool `json:"by_hand,omitempty"`
}

// StepOf makes a Step of a rung of the runbook's ladder.
func StepOf(r headroom.Rung) Step {
	s := Step{Rung: r.Name, Words: r.Words, Knobs: r.Knobs, Peak: r.Peak, Changes: []string{}, OtherExperiment: r.Name == "bf16-lora"}
	if s.Knobs == nil {
		s.Knobs = map[string]string{}
	}
	return s
}

// readPlan reads the headers of the model's files. It may hang with their file system.
func readPlan(_ context.Context, v view) planned {
	if v.job == nil {
		return planned{why: "no command"}
	}
	name := v.job.Knobs[job.Model].Value
	where := name
	if path := v.modelPath(); path != "" {
		where = path
	}
	if where == "" {
		return planned{why: "the command does not say which model it trains"}
	}
	at := v.modelPlace()
	if v.job.Container != nil && where == name {
		path, ok := hostPath(v, name)
		if there, err := v.root.exists(path); ok && there && err == nil {
			where = path
		} else {
			at.NoFolders = true
		}
	}
	model, err := at.Read(where)
	if err == nil && v.in.ModelRead != nil {
		v.in.ModelRead(model)
	}
	if v.job.Image {
		return planned{why: "it trains a model of images, whose memory is not reckoned"}
	}
	p := planned{missing: model.Missing, fault: model.Fault, ours: v.namesFolder(where), nodes: v.job.Nodes, procs: v.job.Procs}
	for _, name := range []string{"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"} {
		p.offline = p.offline || slices.Contains([]string{"1", "true", "yes", "on"}, strings.ToLower(v.getenv(name)))
	}
	if v.job.Container != nil && v.modelPath() == "" {
		p.missing, p.fault = "", "" // what a container will see is not known
	}
	if err != nil {
		p.why = err.Error()
		if !errors.Is(err, modelsize.ErrUnknown) && !errors.Is(err, os.ErrPermission) && p.ours {
			p.broken = err.Error()
		}
		return p
	}
	spec := headroom.FromJob(v.job, model)
	if spec.ModelName == "" {
		spec.ModelName = name
	}
	est, err := spec.Estimate()
	if err != nil {
		p.why = err.Error()
		return p
	}
	p.known, p.spec, p.est = true, spec, est
	return p
}

// modelPlace is where the training looks for models: on this machine, or in the recorded
// tree and nowhere else.
func (v view) modelPlace() modelsize.Place {
	p := modelsize.Place{Dir: v.dir(), Getenv: v.getenv}
	if !v.live() {
		p.Root = treefs.Root(v.root)
	}
	return p
}

// namesFolder says whether the model is a folder or file that the command names, and
// not one of a cache, which the trainer may complete by itself.
func (v view) namesFolder(name string) bool {
	if v.job.Container != nil && v.modelPath() == "" {
		return false // a folder of that name here is another one
	}
	there, err := v.root.exists(v.abs(name))
	return err == nil && there
}

// report fills in the plan of a report.
func (p planned) report(r *Report, b Budget) {
	if !p.known {
		return
	}
	out := &Planned{
		Model: ModelOf(p.spec.ModelName, p.spec.Model), Method: string(p.est.Spec.Method),
		Estimate: p.est, Start: p.start,
	}
	if a, ok := headroom.Closest(p.est.Spec); ok {
		out.Anchor = &a
	}
	if b.Known {
		o := p.outcome(b)
		out.Budget, out.Outcome = &b, &o
	}
	r.Plan = out
}

// outcome holds the plan against a budget. A machine or GPU of several may leave some of
// the weights elsewhere: then nothing is certain not to fit.
func (p planned) outcome(b Budget) headroom.Outcome {
	o := headroom.Judge(p.est, b.Bytes)
	o.Blocks = o.Blocks && !b.GPU && p.nodes <= 1 && p.procs <= 1
	return o
}

// findStart looks for the change to start from, where one is needed. The run's own ladder
// is asked where there is one, which may read the command's files and is waited for no
// longer than limit.
func (p *planned) findStart(ctx context.Context, in Input, b Budget, limit time.Duration) {
	if !p.known || !b.Known || p.nodes > 1 || headroom.Judge(p.est, b.Bytes).Verdict == headroom.Fits {
		return
	}
	// Copies: a call that is left behind must not share p.
	spec, est, find := p.spec, p.est, in.FirstStep
	if find == nil {
		find = firstStep
	}
	if s, ok := within(ctx, limit, func(context.Context) *Step { return find(spec, est, b) }); ok {
		p.start = s
	}
}

// firstStep is the change to start from where there is no command: the runbook's ladder.
func firstStep(spec headroom.Spec, _ headroom.Estimate, b Budget) *Step {
	rung, err := headroom.FirstRung(spec, b.Bytes)
	if err != nil || rung.Words == "" {
		return nil
	}
	s := StepOf(rung)
	return &s
}

// checkpoint is the size of one checkpoint of the command in bytes, and how that was
// reckoned; ok is false where it is not known.
func (p planned) checkpoint() (bytes int64, how string, ok bool) {
	if !p.known || p.est.Checkpoint <= 0 || p.est.MethodAssumed || p.est.Impossible != "" {
		return 0, "", false // of an adapter, or of all weights: a hundred times as much
	}
	return p.est.Checkpoint, p.est.CheckpointHow, true
}

// weightsExact says that the weights were counted in the model's own files.
func (p planned) weightsExact() bool { return p.known && p.est.WeightsExact }

// need is the memory that the command is reckoned to take at its peak, in bytes; ok is
// false where it is not known.
func (p planned) need() (bytes int64, ok bool) { return p.est.Peak, p.known && p.est.Peak > 0 }

// Budget is the memory that a training may take on a machine now, in bytes. A figure
// that is not known is nil.
type Budget struct {
	// Known is false where nothing could be read; the other fields mean nothing then.
	Known bool `json:"-"`
	// Bytes is what may be taken: Available less Reserve, never below 0.
	Bytes int64 `json:"bytes"`
	// Total is all there is, Available what the kernel can give, Reserve what of it stays
	// with the operating system and the driver.
	Total     int64 `json:"total_bytes"`
	Available int64 `json:"available_bytes"`
	Reserve   int64 `json:"reserve_bytes"`
	// Free is what nobody uses, not even the page cache (what cudaMemGetInfo sees); Cache
	// is page cache that the kernel gives back by itself and Available counts already.
	Free  *int64 `json:"free_bytes"`
	Cache *int64 `json:"cache_bytes"`
	// GPU says that it is the memory of a GPU of its own, and no part of the machine's.
	GPU bool `json:"gpu"`
}

// BudgetNow reads the memory figures under root ("/", also when empty, is this machine).
// A GPU with memory of its own, as dev and gpu tell of it, decides in their place; the
// zero values are no GPU.
func BudgetNow(rootDir string, dev sample.Device, gpu sample.GPU) (Budget, error) {
	if dev.MemoryTotalMiB.OK && dev.MemoryTotalMiB.V > 0 {
		if dev.Count > 1 {
			return Budget{}, fmt.Errorf("this machine has %d GPUs, and how a training divides itself among them is not known", dev.Count)
		}
		return deviceBudget(dev, gpu), nil
	}
	m := readMemory(rootOf(rootDir))
	if m.err != nil {
		return Budget{}, m.err
	}
	b := m.budget()
	if !b.Known {
		return Budget{}, errors.New("/proc/meminfo gives no MemTotal or no MemAvailable")
	}
	return b, nil
}

// budget is that of the machine's memory. MemAvailable already counts the page cache
// that can be reclaimed, so nothing is added for it, and swap never counts.
func (m memory) budget() Budget {
	available, total := m.num("MemAvailable"), m.num("MemTotal")
	if m.err != nil || !available.OK || !total.OK {
		return Budget{}
	}
	b := Budget{
		Known: true, Available: bytesOf(available), Total: bytesOf(total),
		Free: maybeBytes(m.num("MemFree")), Cache: maybeBytes(m.cacheKiB()),
	}
	b.Reserve, b.Bytes = headroom.Reserve(b.Total), headroom.Budget(b.Available, b.Total)
	return b
}

// deviceBudget is that of a GPU's own memory. What the driver itself takes of it is part
// of the estimate (the runtime).
func deviceBudget(dev sample.Device, gpu sample.GPU) Budget {
	left := dev.MemoryTotalMiB.V
	for _, p := range gpu.Processes {
		left -= p.UsedMiB.Or(0)
	}
	b := Budget{Known: true, GPU: true, Total: int64(dev.MemoryTotalMiB.V) << 20, Available: int64(math.Max(0, left)) << 20}
	b.Bytes = b.Available
	b.Free = &b.Bytes
	return b
}

func bytesOf(kib sample.Num) int64 { return int64(math.Min(kib.V, 1<<50)) * 1024 }

func maybeBytes(kib sample.Num) *int64 {
	if !kib.OK {
		return nil
	}
	n := bytesOf(kib)
	return &n
}

// whole is what would be the budget if the training had the machine to itself.
func (b Budget) whole() int64 {
	if b.GPU {
		return b.Total
	}
	return headroom.Budget(b.Total, b.Total)
}

// NeedsCaches says that a plan fits what is available but not what is free, so that page
// cache must make room for it.
func (b Budget) NeedsCaches(e headroom.Estimate) bool {
	return b.Known && !b.GPU && b.Free != nil && headroom.NeedsCaches(e, b.Bytes, sample.Known(float64(*b.Free)))
}

// budget is that of the memory which the training lives in: the machine's, or that of
// its one GPU.
func (f facts) budget() Budget {
	if f.platform != GenericNVIDIA {
		return f.memory.budget()
	}
	if !f.gpu.ok() || !f.gpu.dev.MemoryTotalMiB.OK || f.gpu.dev.Count > 1 {
		return Budget{GPU: true}
	}
	return deviceBudget(f.gpu.dev, f.gpu.gpu)
}

// evidence lists how the plan was reckoned.
func (p planned) evidence(b Budget) []string {
	if !p.known {
		if p.why == "" || p.why == "no command" {
			return nil
		}
		return []string{"the plan is not reckoned: " + p.why}
	}
	lines := []string{fmt.Sprintf("plan: %s, %s, %s parameters (%s)", p.modelName(), p.est.Spec.Method, billions(p.spec.Model.Params), p.spec.Model.From)}
	for _, t := range p.est.Terms {
		lines = append(lines, fmt.Sprintf("plan: %s %s (%s)", t.Name, headroom.GB(t.Bytes), t.How))
	}
	lines = append(lines, fmt.Sprintf("plan: peak %s, most likely %s to %s", headroom.GB(p.est.Peak), headroom.GB(p.est.Low), headroom.GB(p.est.High)))
	if b.Known {
		lines = append(lines, "plan: budget "+headroom.GB(b.Bytes))
	}
	if a, ok := headroom.Closest(p.est.Spec); ok {
		lines = append(lines, "plan: closest anchor "+a.String())
	}
	for _, what := range p.est.Assumed {
		lines = append(lines, "plan, assumed: "+what)
	}
	for _, what := range p.est.Notes {
		lines = append(lines, "plan: "+what)
	}
	return lines
}

func (p planned) modelName() string {
	if p.spec.ModelName == "" {
		return "the model"
	}
	return p.spec.ModelName
}

// judgePlan holds the plan against the budget. Only weights that were counted can make
// it a failure.
func judgePlan(seen headroomSeen, f facts) []remark {
	return append(judgeModelFiles(f.plan), judgeFit(seen, f)...)
}

// judgeModelFiles tells of files of the model that are missing or no such files. What is
// missing in the cache is fetched by the trainer itself.
func judgeModelFiles(p planned) []remark {
	const again = "download or copy the model again, then compare the sizes of its files"
	var out []remark
	switch {
	case p.broken != "":
		out = append(out, remark{Warn, "the model's files are not whole: " + p.broken, again})
	case p.missing != "" && p.ours:
		out = append(out, remark{Warn, "the model's files are not whole: " + p.missing, again})
	case p.missing != "" && p.offline:
		out = append(out, remark{Warn, "the copy of the model in the cache is not whole, and the command's environment forbids the download of the rest: " + p.missing, "fetch it before the start: hf download MODEL\nor leave HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE out of the environment"})
	case p.missing != "":
		out = append(out, remark{Info, "the copy of the model in the cache is not whole (" + p.missing + "): the trainer fetches the rest when it starts", ""})
	}
	if p.fault != "" {
		out = append(out, remark{Warn, "the model cannot be loaded as it is: " + p.fault, again})
	}
	return out
}

// judgeFit holds the estimate against the budget.
func judgeFit(seen headroomSeen, f facts) []remark {
	p, b := f.plan, f.budget()
	if !p.known || !b.Known {
		return nil
	}
	if p.nodes > 1 {
		return []remark{{Info, fmt.Sprintf("the plan takes about %s on one machine that holds all of it; how %d machines share it is not known", headroom.GB(p.est.Peak), p.nodes), ""}}
	}
	o := headroom.Judge(p.est, b.Bytes)
	switch {
	case p.outcome(b).Blocks:
		return []remark{{Fail, o.Why, p.fixOfBlock(b)}}
	case o.Blocks:
		return []remark{{Warn, o.Why, p.fixOfWarn(b)}}
	case o.Verdict == headroom.Over, o.Verdict == headroom.Tight:
		takes := "the plan takes "
		if p.est.Impossible != "" {
			takes = "the plan "
		}
		return []remark{{Warn, takes + o.Why, p.fixOfWarn(b)}}
	}
	fits := fmt.Sprintf("the plan takes about %s (%s to %s) of a budget of %s", headroom.GB(p.est.Peak), headroom.GB(p.est.Low), headroom.GB(p.est.High), headroom.GB(b.Bytes))
	if !f.spark() || !b.NeedsCaches(p.est) {
		return []remark{{Info, fits, ""}}
	}
	needs := fmt.Sprintf("%s, but only %s are free: the page cache must make room for the rest", fits, headroom.GB(*b.Free))
	if seen.drop != dropRefused {
		return []remark{{Info, needs, ""}}
	}
	where := "before the start, with nothing else running: "
	if f.container.marker != "" || f.container.cgroup != "" {
		where = "on the host, before the start and with nothing else running: "
	}
	return []remark{{Warn, needs + ", and this user may not drop it", where + "sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'\n(the whole machine loses its cached files; they are read again when wanted)"}}
}

// Text says a step in one line.
func (s Step) Text() string {
	if s.Rung == "" || s.Rung == "smaller-model" || s.Peak <= 0 {
		return s.Words
	}
	return fmt.Sprintf("%s: %s; then about %s", s.Rung, s.Words, headroom.GB(s.Peak))
}

// Elsewhere says that a plan which does not fit what is left now would fit the whole
// machine, so that others have what it lacks; "" where that is not so.
func (b Budget) Elsewhere(e headroom.Estimate) string {
	whole := b.whole()
	now, alone := headroom.Judge(e, b.Bytes).Verdict, headroom.Judge(e, whole).Verdict
	if !b.Known || whole-b.Bytes <= headroom.Margin(whole) || now == headroom.Fits || alone == headroom.Over || now == alone {
		return ""
	}
	would := "it fits"
	if alone == headroom.Tight {
		would = "it is tight"
	}
	return fmt.Sprintf("see first who has the rest of the memory (G6 of sparkrun preflight): with the machine to itself %s, and %s of what it could have then are taken", would, headroom.GB(whole-b.Bytes))
}

// fixOfWarn is what to start with.
func (p planned) fixOfWarn(b Budget) string {
	var lines []string
	elsewhere := b.Elsewhere(p.est)
	if elsewhere != "" {
		lines = append(lines, elsewhere)
	}
	if s := p.start; s != nil && s.Words != elsewhere && (elsewhere == "" || s.Rung != headroom.Smaller) {
		lines = append(lines, "start from: "+s.Text())
		if s.Line != "" {
			lines = append(lines, s.Line)
		}
	}
	if a, ok := headroom.Closest(p.est.Spec); ok {
		lines = append(lines, "closest anchor: "+a.String())
		if far := headroom.FarAbove(p.est, a); far != "" {
			lines = append(lines, far)
		}
	}
	return strings.Join(append(lines, "sparkrun plan -- COMMAND shows the parts, and a command line to start from"), "\n")
}

// fixOfBlock is what to do where the weights alone are too large.
func (p planned) fixOfBlock(b Budget) string {
	if p.est.Weights > b.whole() {
		return p.fixOfWarn(b)
	}
	return fmt.Sprintf("free memory first: of the %s that this machine has, other processes (G6) or the driver hold too much; with the machine to itself the weights fit", headroom.GB(b.Total)) +
		"\n" + p.fixOfWarn(b)
}

// billions writes a number of parameters as people do.
func billions(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.3gB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.3gM", float64(n)/1e6)
	}
	return fmt.Sprint(n)
}
