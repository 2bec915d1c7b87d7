package runlog

import (
	"bytes"
	"encoding/json"
	"sort"
	"strings"
)

// leastSecret is the shortest value, in bytes, that is looked for by itself: a
// shorter one stands in too many other words.
const leastSecret = 8

// Redactor redacts as Redact, RedactArgv, RedactText and RedactConfig do, and
// also every place where the value of a secret variable of the run's environment
// stands by itself: a shell has put $WANDB_API_KEY into the command before
// anybody could see its name. A nil Redactor knows no values. It may be used from
// several goroutines.
type Redactor struct {
	// text replaces the values as they are, encoded as they stand in JSON.
	text, encoded *strings.Replacer
}

// NewRedactor takes the environment ("NAME=value") in which to look for values.
// A value counts if its variable's name is that of a secret and if it is at least
// 8 bytes long and no number, path or plain word such as "disabled".
func NewRedactor(env []string) *Redactor {
	known := map[string]bool{}
	var values []string
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if !secretVariable(name) {
			continue
		}
		// A file's last newline is not in the command.
		value = strings.TrimSpace(value)
		if known[value] || !telling(value) || mayBeWord(name, value) {
			continue
		}
		known[value] = true
		values = append(values, value)
	}
	if len(values) == 0 {
		return nil
	}
	// Of two that begin at one place the longer one is replaced.
	sort.Slice(values, func(i, j int) bool { return len(values[i]) > len(values[j]) })
	var text, encoded []string
	for _, v := range values {
		text = append(text, v, Redacted)
		if b, err := encodeJSON(v, ""); err == nil {
			inside := bytes.TrimSuffix(bytes.TrimPrefix(bytes.TrimSpace(b), []byte{'"'}), []byte{'"'})
			encoded = append(encoded, string(inside), Redacted)
		}
	}
	return &Redactor{text: strings.NewReplacer(text...), encoded: strings.NewReplacer(encoded...)}
}

// plainWords are values that say something other than a secret.
var plainWords = map[string]bool{
	"disabled": true, "undefined": true, "required": true, "optional": true, "anonymous": true,
	"localhost": true, "password": true, "changeme": true, "sparkrun": true, Redacted: true,
}

// mayBeWord says whether a variable is one that only may be a secret (SORT_KEY,
// USE_AUTH) and has a value that is but a word: "filename" stands in many a command.
func mayBeWord(name, value string) bool {
	last := name[strings.LastIndexByte(name, '_')+1:]
	if !strings.EqualFold(last, "key") && !strings.EqualFold(last, "auth") || len(value) >= 20 {
		return false
	}
	return strings.Trim(value, "abcdefghijklmnopqrstuvwxyz_-.") == ""
}

// telling says whether a value can only mean the secret, wherever it stands.
func telling(v string) bool {
	if len(v) < leastSecret || plainWords[strings.ToLower(v)] {
		return false
	}
	if _, err := json.Number(v).Float64(); err == nil {
		return false
	}
	return !isPath(v)
}

// isPath says whether a value is the path of a file. Base64 may begin with a
// slash too, but has no parts that a person would give a file.
func isPath(v string) bool {
	if !strings.HasPrefix(v, "/") && !strings.HasPrefix(v, "./") && !strings.HasPrefix(v, "../") && !strings.HasPrefix(v, "~/") {
		return false
	}
	for part := range strings.SplitSeq(v, "/") {
		var lower, upper, digit bool
		for i := range len(part) {
			switch c := part[i]; {
			case c >= 'a' && c <= 'z':
				lower = true
			case c >= 'A' && c <= 'Z':
				upper = true
			case c >= '0' && c <= '9':
				digit = true
			case c == '=' || c == '+':
				return false
			}
		}
		if len(part) >= 16 && lower && upper && digit {
			return false
		}
	}
	return true
}

func (r *Redactor) literal(s string) string {
	if r == nil {
		return s
	}
	return r.text.Replace(s)
}

// Argv is RedactArgv.
func (r *Redactor) Argv(argv []string) []string {
	if r == nil || argv == nil {
		return RedactArgv(argv)
	}
	words := make([]string, len(argv))
	for i, w := range argv {
		words[i] = r.literal(w)
	}
	return RedactArgv(words)
}

// Text is RedactText.
func (r *Redactor) Text(s string) string { return RedactText(r.literal(s)) }

// Env is Redact.
func (r *Redactor) Env(env []string) map[string]string {
	m := Redact(env)
	for name, value := range m {
		m[name] = r.literal(value)
	}
	return m
}

// Config is RedactConfig.
func (r *Redactor) Config(text string) string { return RedactConfig(r.literal(text)) }

// contractKeys have values of this program's own in the files it writes: a
// password that is the word "attempts" must not make them unreadable.
var contractKeys = map[string]bool{
	"schema": true, "state": true, "end_kind": true, "ended_by": true, "kind": true, "level": true, "verdict": true,
	"reason": true, "confidence": true, "effect": true, "layer": true, "signal": true, "t": true, "log": true, "boot_id": true,
	"sparkrun_version": true,
}

// JSON returns encoded JSON with the values of secret variables and whatever
// has the form of a secret replaced in its strings. Keys are left alone, and so
// are the words of run.json and events.jsonl that are a contract. It stays well
// formed.
func (r *Redactor) JSON(b []byte) []byte {
	if r != nil {
		b = r.inStrings(b)
	}
	return scrubWeb(scrub(b))
}

func (r *Redactor) inStrings(b []byte) []byte {
	out := make([]byte, 0, len(b))
	key := ""
	for i := 0; i < len(b); {
		if b[i] != '"' {
			if b[i] == '{' || b[i] == '}' || b[i] == ']' {
				key = ""
			}
			out = append(out, b[i])
			i++
			continue
		}
		end := i + 1
		for end < len(b) && b[end] != '"' {
			if b[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(b) {
			return append(out, b[i:]...)
		}
		inside := string(b[i+1 : end])
		next := end + 1
		for next < len(b) && (b[next] == ' ' || b[next] == '\n' || b[next] == '\t') {
			next++
		}
		switch {
		case next < len(b) && b[next] == ':':
			key = inside
		case !contractKeys[key]:
			inside = r.encoded.Replace(inside)
		}
		out = append(append(append(out, '"'), inside...), '"')
		i = end + 1
	}
	return out
}
