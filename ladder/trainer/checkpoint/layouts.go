package checkpoint

import (
	"strings"

	"sparkrun/internal/lazyre"
)

var (
	tuneName     = lazyre.New(`^(?:epoch|step)_(\d{1,18})$`)
	modelName    = lazyre.New(`^epoch_\d{1,18}_step_(\d{1,18})$`)
	iterName     = lazyre.New(`^iter_(\d{7,18})$`)
	verlName     = lazyre.New(`^global_step_(\d{1,18})$`)
	titanName    = lazyre.New(`^step-(\d{1,18})$`)
	litName      = lazyre.New(`^step-(\d{1,18})(?:\.ckpt)?$`)
	kohyaName    = lazyre.New(`^.+-state$`)
	nanochatName = lazyre.New(`^model_(\d{1,18})\.pt$`)
	composerName = lazyre.New(`^ep\d{1,18}-ba(\d{1,18})(?:-rank0\.pt)?$`)
	aiName       = lazyre.New(`^.+_(\d{9})(?:\.safetensors)?$`)
)

// layouts has one entry for each trainer's way of saving. It is filled in here and
// never changed.
var layouts = map[string]layout{
	None:       {},
	HF:         {find: findHF, at: atHF},
	Diffusers:  {find: folders(hfName, nil, lookAccelerate), at: atFolder(hfName, lookAccelerate)},
	Torchtune:  {find: folders(tuneName, nil, lookTorchtune), at: atFolder(tuneName, lookTorchtune)},
	AutoModel:  {find: folders(modelName, nil, lookAutoModel), at: atFolder(modelName, lookAutoModel)},
	Megatron:   {find: folders(iterName, nil, lookMegatron), at: atFolder(iterName, lookMegatron)},
	Verl:       {find: folders(verlName, nil, lookVerl), at: atFolder(verlName, lookVerl)},
	Torchtitan: {find: folders(titanName, named("checkpoint", "checkpoints"), lookTorchtitan), at: atFolder(titanName, lookTorchtitan)},
	OpenRLHF: {
		find: folders(deepspeed, func(n string) bool { return strings.HasPrefix(n, "_") }, lookOpenRLHF),
		at:   atFolder(deepspeed, lookOpenRLHF),
	},
	LitGPT:    {find: folders(litName, nil, lookLitGPT), at: atFolder(litName, lookLitGPT)},
	Kohya:     {find: folders(kohyaName, nil, lookKohya), at: atFolder(kohyaName, lookKohya)},
	NanoGPT:   {find: findNanoGPT},
	NanoChat:  {find: findFiles(nanochatName, lookNanoChat)},
	AIToolkit: {find: findFiles(aiName, lookAIToolkit)},
	Composer:  {find: findFiles(composerName, lookComposer)},
	Lightning: {find: walking(lightningName, lookLightning), at: atAny(lightningName, lookLightning)},
	NeMo:      {find: walking(nemoName, lookNeMo), at: atAny(nemoName, lookNeMo)},
}

func named(names ...string) func(string) bool {
	return func(n string) bool {
		for _, x := range names {
			if n == x {
				return true
			}
		}
		return false
	}
}
