package trainer

import (
	"regexp"

	"sparkrun/internal/lazyre"
)

var (
	// startCall is a call that starts a training.
	startCall = lazyre.New(`\.\s*(?:train|fit)\s*\(`)
	// asksFor is a word in its arguments that hands a checkpoint over.
	asksFor = lazyre.New(`(?i)resume|checkpoint|ckpt`)
	// makesTrainer is a library's trainer, which loads a checkpoint by itself if it is
	// given one there and not otherwise.
	makesTrainer = lazyre.New(`\b\w*Trainer\s*\(`)
	// loads is a call with which a loop of one's own loads a checkpoint.
	loads = lazyre.New(`\b(?:load_state|load_checkpoint|load_model_and_optimizer|load_state_dict|torch\.load|load)\s*\(`)
)

// handsOn says whether a script does something with the checkpoint that it is told by a
// setting called one of words. To declare the setting, or to speak of it, is not enough:
// a library's trainer must be given it where the training starts, and a loop of one's own
// must use the value and load something.
func handsOn(text string, words []string) bool {
	if text == "" {
		return false
	}
	for _, at := range startCall.FindAllStringIndex(text, -1) {
		if commented(text, at[0]) {
			continue
		}
		call := callText(text[at[0]:])
		if i := len(text[at[0]:at[1]]); len(call) > i && asksFor.MatchString(call[i:]) {
			return true
		}
	}
	if makesTrainer.MatchString(text) || !loads.MatchString(text) {
		return false
	}
	for _, w := range words {
		used := regexp.MustCompile(`(?:\.\s*|\[["'])` + regexp.QuoteMeta(normalise(w)) + `\b`)
		for _, at := range used.FindAllStringIndex(text, -1) {
			if !commented(text, at[0]) {
				return true
			}
		}
	}
	return false
}
