package trainer

import (
	"fmt"
	"strings"
)

// parsesWords are words of scripts that read their command line, or hand it to something
// that does.
var parsesWords = []string{
	"HfArgumentParser", "TrlParser", "argparse", "ArgumentParser", "argv", "parse_args", "click", "fire", "typer", "tyro",
	"jsonargparse", "LightningCLI", "absl", "hydra", "optparse", "getopt", "docopt", "from_cli", "draccus", "simple_parsing",
	"cyclopts", "configurator", "pyrallis", "chz", "plac", "Tap)", "configargparse", "get_args(", "parse_arguments(",
}

// heard leaves out flags that a script is given but does not read: where its text shows
// no parser of any kind and gives the setting a value of its own, that value counts.
func (c *command) heard(name string, spec knobSpec, spots []spot, f found) []spot {
	if len(spots) == 0 || c.proven || c.text == "" || c.place.Program != "" || mentions(c.text, parsesWords) {
		return spots
	}
	var typed []string
	for i := range spots {
		if spots[i].m == nil {
			return spots
		}
		typed = append(typed, spots[i].m.typed)
	}
	value, where, ok, _ := c.written(spec, &f)
	if !ok {
		return spots
	}
	note := fmt.Sprintf("%s is typed, but %s reads no command line: %s in %s counts for %s", strings.Join(typed, ", "), c.scriptName(), value, where, name)
	if c.unheard == nil {
		c.unheard = map[string]string{}
	}
	c.unheard[name] = note
	return nil
}
