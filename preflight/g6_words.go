package preflight

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"sparkrun/internal/lazyre"
)

// roomWords says what is left for the command.
func (s survey) roomWords() string {
	left := gbOf(int64(s.room.V)) + " stay for this command"
	if s.need.OK {
		left += ", which needs about " + gbOf(int64(s.need.V))
	}
	return left
}

// name is what a person calls a holder.
func (h holder) name() string {
	switch {
	case h.foreign:
		return fmt.Sprintf("a process that cannot be seen from here (pid %d of the machine)", h.root.pid)
	case h.run != "":
		return fmt.Sprintf("another run of sparkrun, %s (pid %d)", h.run, h.root.pid)
	case h.program == nil, h.program.Name == h.root.label:
		return h.root.words()
	case h.program.Kind == kindTrainer, h.program.Kind == kindNotebook, h.program.Kind == kindDesktop:
		return fmt.Sprintf("%s %s", h.program.Name, h.root.words())
	}
	return fmt.Sprintf("%s (pid %d)", h.program.Name, h.root.pid)
}

// size says what it holds.
func (h holder) size() string {
	switch {
	case h.noGPU && h.gpu == 0:
		return "GPU memory of unknown size"
	case h.gpu > 0 && h.rss > 0:
		return fmt.Sprintf("%s (%s of it GPU memory)", gbOf(h.rss+h.gpu), gbOf(h.gpu))
	case h.gpu > 0:
		return gbOf(h.gpu) + " of GPU memory"
	}
	return gbOf(h.rss)
}

// short is a holder in one clause.
func (h holder) short(s survey) string {
	text := h.name() + " holds " + h.size()
	if h.server() {
		text += ", " + h.capWords(s)
	}
	return text
}

// capWords says its cap, and the most that it comes to.
func (h holder) capWords(s survey) string {
	text := h.caps.words()
	if h.waiting() {
		text += ": it takes memory with the next request"
	}
	if reserved, ok := s.reserved(h); ok && s.total > 0 && h.caps.is != capFixed {
		text += ", " + gbOf(reserved) + " at most"
	}
	return text
}

// fix says how a holder is capped or stopped.
func (h holder) fix(s survey) string {
	stop, name := h.stop(), oneLine(h.name())
	if h.run != "" {
		return fmt.Sprintf("%s: wait for its end, or stop it: %s", name, stop)
	}
	if h.program != nil && h.program.Cap != "" {
		if text, ok := h.capFix(s); ok {
			return fmt.Sprintf("%s: %s; or stop it: %s", name, text, stop)
		}
		return fmt.Sprintf("%s: no cap leaves enough for this command: stop it for that time: %s", name, stop)
	}
	return fmt.Sprintf("%s: stop it, if it is not needed: %s", name, stop)
}

// usualCap is a fraction in the words of the table.
var usualCap = lazyre.New(`\{(0?\.\d+)\}`)

// leastCap is the smallest fraction with which a server still starts; the weights of a
// small model alone take that.
const leastCap = 0.1

// capFix is how a server is capped, in the table's words, with a fraction that leaves what
// the command needs, where that is known, and is lower than what it has. ok is false where
// there is none.
func (h holder) capFix(s survey) (text string, ok bool) {
	text = strings.ReplaceAll(h.program.Cap, "{pid}", fmt.Sprint(h.root.pid))
	m := usualCap.FindStringSubmatchIndex(text)
	if m == nil {
		return text, true
	}
	usual, err := strconv.ParseFloat(text[m[2]:m[3]], 64)
	if err != nil {
		return text, true // a test reads the table
	}
	fraction := usual
	now := h.caps.byDefault
	if h.caps.is == capFraction || h.caps.is == capFreeFraction {
		now = h.caps.value
	}
	if now > 0 && now <= fraction {
		fraction = now / 2
	}
	if s.need.OK && s.room.OK && s.total > 0 && h.caps.is != capFreeFraction {
		// What it would hold of the GPU's memory, beside all that others may take.
		gpu := float64(h.gpu)
		if reserved, capped := s.reserved(h); capped {
			gpu = float64(reserved - (s.held(h) - h.gpu))
		}
		fraction = (s.room.V - float64(s.lacks) + gpu - s.need.V) / float64(s.total)
		if now > 0 {
			fraction = min(fraction, now)
		}
	}
	// A step of five hundredths, with a little for the arithmetic.
	fraction = math.Floor(fraction*20+1e-9) / 20
	if fraction < leastCap {
		return "", false
	}
	return text[:m[0]] + fmt.Sprintf("%g", fraction) + text[m[1]:], true
}

// stop is the command that ends a holder: a container or unit would start again what is
// only killed.
func (h holder) stop() string {
	p := h.root
	switch {
	case h.foreign:
		return "outside this container, nvidia-smi names it"
	case p.engine == "kubernetes":
		return "scale its pod down (kubectl)"
	case p.engine == "podman", p.engine == "docker":
		return p.engine + " stop " + p.container[:12]
	case p.engine != "":
		return "sudo nerdctl stop " + p.container[:12]
	case strings.HasPrefix(p.unit, "--user ") && !h.sudo:
		return "systemctl " + strings.Replace(p.unit, "--user ", "--user stop ", 1)
	case p.unit != "" && !strings.HasPrefix(p.unit, "--user "):
		return "sudo systemctl stop " + p.unit
	}
	if h.run != "" {
		// The holder itself only waits for the command, and stops what is left.
		return fmt.Sprintf("Ctrl-C in its terminal, or %s", h.killed(h.commandPID()))
	}
	return h.killed(p.pid)
}

// killed is the command that ends one process; another user's takes root.
func (h holder) killed(pid int) string {
	if h.sudo {
		return fmt.Sprintf("sudo kill %d (it is another user's, with the number %d)", pid, h.root.uid)
	}
	return fmt.Sprintf("kill %d", pid)
}

// commandPID is the process to end: of a run the command, which stands first below its
// holder.
func (h holder) commandPID() int {
	if h.root.holder && len(h.pids) > 1 {
		return h.pids[1]
	}
	return h.root.pid
}

// mostHolders bounds the evidence.
const mostHolders = 12

// evidence lists the holders and the numbers of the rule.
func (s survey) evidence() []string {
	lines := []string{fmt.Sprintf("%d processes looked at%s", s.count, s.where())}
	for i, h := range s.holders {
		if i == mostHolders {
			lines = append(lines, fmt.Sprintf("and %d more", len(s.holders)-mostHolders))
			break
		}
		line := fmt.Sprintf("%s: %s, resident %s, GPU %s", h.name(), countOf(len(h.pids), "process", "processes"), gbOf(h.rss), gbOf(h.gpu))
		if h.foreign {
			line = h.name() + ": " + h.size()
		}
		if p := h.root; p.container != "" {
			line += fmt.Sprintf(", container %s (%s)", p.container[:12], p.engine)
		} else if p.unit != "" {
			line += ", unit " + strings.TrimPrefix(p.unit, "--user ")
		}
		if h.server() || h.caps.is != "" {
			line += ", " + h.capWords(s)
		}
		if len(h.caps.shows) > 0 {
			line += "; " + strings.Join(h.caps.shows, ", ")
		}
		lines = append(lines, line)
	}
	if s.servers() {
		lines = append(lines, fmt.Sprintf("rule: a server with a cap may stay where the command fits beside all it may take; seen to go well: less than %g GB beside a cap of %g (%s)",
			s.table.Coexist.JobGB, s.table.Coexist.Fraction, s.table.AsOf))
		if s.room.OK {
			lines = append(lines, s.roomWords())
		}
	}
	return append(lines, s.notes...)
}
