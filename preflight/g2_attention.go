package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"sparkrun/internal/job"
)

// attention is what the command says of attention and of Unsloth.
type attention struct {
	// wanted are the implementations asked for, the one that holds first.
	wanted []setting
	unread []string
	// unsloth says by what the command is known to use Unsloth, "" if by nothing.
	unsloth string
	// modelType is the model_type of the model's config.json; "" is not known.
	modelType string
	// elsewhere says why the model does not go through the loader that ignores the
	// request, "" where it may.
	elsewhere string
	// override is where the script switches Unsloth's flash-attn off by hand.
	override string
}

func lookAttention(_ context.Context, v view) attention {
	if v.job == nil {
		return attention{}
	}
	r := readAsked(v)
	a := attention{wanted: r.named("attention"), unread: r.unread, unsloth: usesUnsloth(v.job, r)}
	// The trainer's own reading of its config files counts where the files are not seen.
	if k, ok := v.job.Knobs[job.Attention]; ok && len(a.wanted) == 0 && k.Source != job.FromDefault {
		s := setting{name: string(job.Attention), value: k.Value, where: k.Where, from: k.Source}
		s.means = strings.ToLower(k.Value)
		a.wanted = append(a.wanted, s)
	}
	for _, s := range r.named("unsloth_override") {
		if strings.EqualFold(s.value, "false") {
			a.override = s.where
		}
	}
	if a.unsloth != "" {
		a.modelType = modelType(v, r)
		a.elsewhere = otherLoader(a.modelType, r)
	}
	return a
}

// usesUnsloth says by what the command is known to train with Unsloth.
func usesUnsloth(j *job.Job, r request) string {
	for _, s := range r.named("unsloth") {
		if !s.off() {
			return s.said()
		}
	}
	for _, m := range r.imports {
		if m == "unsloth" || strings.HasPrefix(m, "unsloth.") {
			return importsUnsloth
		}
	}
	if strings.HasPrefix(j.Profile, "unsloth") {
		return "trainer " + j.Profile
	}
	return ""
}

const importsUnsloth = "the script imports it"

// modelType reads the model_type of the model's config.json, where the model is a
// folder that can be seen.
func modelType(v view, r request) string {
	dirs := []string{v.modelPath()}
	add := func(name string) {
		if dir, ok := v.onHost(name); ok {
			dirs = append(dirs, dir)
		}
	}
	add(v.job.Knobs[job.Model].Value)
	for _, s := range r.named("model") {
		if !s.computed {
			add(s.value)
		}
	}
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		data, err := v.root.read(filepath.Join(dir, "config.json"))
		if err != nil {
			continue
		}
		var c struct {
			ModelType string `json:"model_type"`
		}
		if json.Unmarshal(data, &c) == nil && c.ModelType != "" {
			return c.ModelType
		}
	}
	return ""
}

// otherLoader says why Unsloth loads the model by a way that asks for no flash-attn of
// its own accord.
func otherLoader(modelType string, r request) string {
	table, _ := loadAsked() // part of the binary, and a test reads it
	if modelType != "" && !slices.Contains(table.UnslothLoader, modelType) {
		return "a model of type " + modelType
	}
	for _, name := range []string{"full_finetuning", "load_in_8bit"} {
		for _, s := range r.named(name) {
			if !s.off() && !s.computed {
				return s.said()
			}
		}
	}
	general := ""
	for _, c := range r.calls {
		switch {
		case strings.HasSuffix(c, "FastLanguageModel.from_pretrained"):
			return ""
		case strings.HasSuffix(c, "FastModel.from_pretrained"), strings.HasSuffix(c, "FastVisionModel.from_pretrained"):
			general = c
		}
	}
	return general
}

// judgeAttention is G2. flash-attn has no wheel for this machine: pip builds for an hour
// or fails, and its absence is as it should be, since PyTorch's own SDPA is as fast. NGC
// images bring one that works. The trap is Unsloth beside it: the loader of its
// llama-like models takes flash-attn wherever it can import it, and drops the request
// for SDPA without a word.
func judgeAttention(a attention, f facts) Finding {
	p := f.python
	if found, inside := inImage(f); inside && len(p.packages) == 0 {
		return found
	}
	if !f.gpuHere() {
		return byDesign("no NVIDIA GPU on this machine")
	}
	if f.torch.late {
		return f.noAnswer()
	}
	if p.interp == "" && len(p.packages) == 0 {
		if f.job == nil {
			return byDesign("no Python was found, and no command named that needs one")
		}
		return notSeen(f)
	}
	flash, unsloth := flashVersion(p.packages), p.packages["unsloth"]
	evidence := a.evidence(f, flash, unsloth)
	want := a.want()
	needs := needsFlash(want.means)
	switch {
	case len(p.packages) == 0 && !p.exact:
		if !needs && a.unsloth == "" {
			found := byDesign("which packages the command imports cannot be told without starting it, and it asks for no kind of attention that needs one")
			found.Evidence = evidence
			return found
		}
		return Finding{
			Status: Skip, Evidence: evidence,
			Detail: "could not tell which packages " + p.interp + " would import",
			Fix:    `python3 -c "import flash_attn; print(flash_attn.__version__)", with the Python of the command, tells whether flash-attn is there`,
		}
	case needs && flash == "", want.means == "flash_attention_3" && f.spark():
		return a.missing(want, f, evidence)
	case a.trapped(want, flash):
		return a.trap(want, flash, evidence)
	case flash == "" && f.spark():
		return Finding{Status: Pass, Evidence: evidence, Detail: "no flash-attn, which is as it should be: attention goes through PyTorch's SDPA"}
	case flash == "":
		return Finding{Status: Pass, Evidence: evidence, Detail: "no flash-attn: attention goes through PyTorch's SDPA"}
	case needs:
		return Finding{Status: Pass, Evidence: evidence, Detail: fmt.Sprintf("flash-attn %s is there, as asked for (%s)", flash, want.where)}
	case want.means == "sdpa" && a.unsloth != "" && a.override != "":
		return Finding{Status: Pass, Evidence: evidence, Detail: fmt.Sprintf("SDPA is asked for beside flash-attn %s, and %s keeps Unsloth from taking it", flash, a.override)}
	case a.unsloth != "" && want.means == "" && a.elsewhere == "":
		return Finding{Status: Info, Evidence: evidence, Detail: fmt.Sprintf("flash-attn %s is there, and Unsloth takes it by itself", flash)}
	}
	return Finding{Status: Pass, Evidence: evidence, Detail: fmt.Sprintf("flash-attn %s is there", flash)}
}

// flashVersion is the version of the flash-attn that would be imported, "" for none.
func flashVersion(packages map[string]string) string { return packages["flash_attn"] }

// want is the implementation asked for; a value that leaves the choice to the trainer
// asks for none. What the code works out is passed over: the default of the flag that
// it comes from may stand below.
func (a attention) want() setting {
	for _, s := range a.wanted {
		switch {
		case (s.computed || s.off()) && s.from == job.FromScript, s.off() && s.from == job.FromConfig:
		case s.computed, s.off(), s.means == "auto":
			return setting{}
		default:
			return s
		}
	}
	return setting{}
}

// needsFlash tells whether an implementation is the flash-attn package's. Kernels of the
// Hugging Face hub (kernels-community/flash-attn2) bring their own.
func needsFlash(means string) bool { return means == "flash_attention_2" }

func (a attention) trapped(want setting, flash string) bool {
	return flash != "" && a.unsloth != "" && want.means == "sdpa" && a.override == "" && a.elsewhere == ""
}

// missing is the finding of flash-attn asked for where there is none.
func (a attention) missing(want setting, f facts, evidence []string) Finding {
	found := Finding{
		Status: Warn, Evidence: evidence,
		Detail: fmt.Sprintf("%s asks for flash-attn (%s), which is not installed: the trainer ends at loading the model, or takes another without a word", want.value, want.where),
		Fix:    fmt.Sprintf("ask for sdpa in its place: %s (%s)", asSDPA(want), want.where),
	}
	if want.means == "flash_attention_3" {
		found.Detail = fmt.Sprintf("%s (%s) is for Hopper GPUs: there is none of it for this one", want.value, want.where)
		return found
	}
	found.Fix += "\nfor flash-attn itself take an image that brings one, such as NVIDIA's PyTorch image"
	if f.spark() {
		found.Fix += "; there is no wheel of it for this machine"
	}
	return found
}

// asSDPA writes a setting with the value for SDPA, as it is spelled.
func asSDPA(s setting) string {
	table, _ := loadAsked()
	name := plain(s.name)
	last := name[strings.LastIndexByte(name, '.')+1:]
	value := "sdpa"
	if _, is := table.Subjects["attention"].Switches[last]; is && (s.value == "true" || s.value == "True") {
		value = "false"
		if s.from == job.FromArgv && strings.HasPrefix(s.name, "-") {
			return "leave " + s.name + " out"
		}
	}
	switch {
	case s.from == job.FromScript:
		return fmt.Sprintf("%s=%q", s.name, value)
	case s.from == job.FromConfig:
		return s.name + ": " + value
	case strings.HasPrefix(s.name, "-"):
		return s.name + " " + value
	}
	return s.name + "=" + value
}

// trap is the finding of Unsloth that ignores the request for SDPA.
func (a attention) trap(want setting, flash string, evidence []string) Finding {
	detail := fmt.Sprintf("SDPA is asked for (%s), but Unsloth takes flash-attn %s where it finds it, without a word", want.where, flash)
	if a.modelType == "" {
		table, _ := loadAsked()
		evidence = append(evidence, "the model's type is not known here; it concerns "+strings.Join(table.UnslothLoader, ", "))
	}
	fix := scopedOverride
	if a.unsloth != importsUnsloth {
		fix = "the trainer loads the model in code of its own: train without Unsloth (plain TRL and PEFT keep to the request), or in an environment without flash-attn.\nIn a script of your own:\n" + fix
	}
	return Finding{Status: Warn, Evidence: evidence, Detail: detail, Fix: fix}
}

// scopedOverride makes Unsloth's loader resolve to SDPA for one model. The switch is
// the module's, so that it must be put back for models loaded later.
const scopedOverride = `load the model with Unsloth's switch off, and put it back:
import unsloth.models._utils as unsloth_utils
before = unsloth_utils.HAS_FLASH_ATTENTION
try:
    unsloth_utils.HAS_FLASH_ATTENTION = False
    model, tokenizer = FastLanguageModel.from_pretrained(...)  # your call as it is
    assert model.config._attn_implementation == "sdpa", model.config._attn_implementation
finally:
    unsloth_utils.HAS_FLASH_ATTENTION = before`

func (a attention) evidence(f facts, flash, unsloth string) []string {
	var out []string
	p := f.python
	if f.image.known {
		out = append(out, f.image.name())
	}
	if p.interp != "" {
		out = append(out, "interpreter "+p.interp)
	}
	if len(p.packages) > 0 || p.exact {
		for _, x := range []struct{ name, version string }{{"flash-attn", flash}, {"unsloth", unsloth}} {
			if x.version == "" {
				x.version = "not installed"
			}
			out = append(out, x.name+" "+x.version)
		}
	}
	for _, s := range a.wanted {
		out = append(out, s.said())
	}
	if a.unsloth != "" {
		out = append(out, "Unsloth: "+a.unsloth)
	}
	if a.elsewhere != "" {
		out = append(out, "not through Unsloth's own loader of llama-like models: "+a.elsewhere)
	}
	for _, u := range a.unread {
		out = append(out, "not read: "+u)
	}
	return append(out, "torch.backends.cuda.flash_sdp_enabled(): not read, which needs torch imported")
}
