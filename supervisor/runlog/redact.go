package runlog

import (
	"strings"

	"sparkrun/internal/lazyre"
)

// Redacted stands in place of a secret.
const Redacted = "[redacted]"

// assignment finds name=value and "name": "value", and flagInText --name value,
// inside a longer text, such as the script of sh -c or a JSON argument.
var (
	assignment = lazyre.New(`([A-Za-z_][A-Za-z0-9_.-]*)(\\*["']?\s*[=:]\s*\\*["']?)((?:[^\s"',;}&|\\]|\\[^\s"'])+)`)
	flagInText = lazyre.New(`(--?[A-Za-z][A-Za-z0-9_.-]*)(\s+["']?)([^\s"'-][^\s"';|&]*)`)
)

// curlUser finds the user and password of a curl command: -u joe:pw, --user=joe:pw.
// Other programs mean other things by -u.
var curlUser = lazyre.New(`(\bcurl\b[^|;&\n]*?\s(?:-u\s*|-U\s*|--(?:proxy-)?user[\s=]+)["']?[^\s"':]*:)([^\s"'\[][^\s"']*)`)

// RedactText replaces secrets in free text, by their form (see Redact).
func RedactText(s string) string {
	// A command may name both a user for the proxy and one for the server.
	for strings.Contains(s, "curl") {
		hidden := curlUser.ReplaceAllString(s, "${1}"+Redacted)
		if hidden == s {
			break
		}
		s = hidden
	}
	return string(scrubWeb(scrub([]byte(s))))
}

// redactCurlUser replaces the password of a word of a curl command; before is the
// word before it.
func redactCurlUser(before, word string) (string, bool) {
	value := word
	switch before {
	case "-u", "-U", "--user", "--proxy-user":
	default:
		value = ""
		for _, flag := range []string{"--user=", "--proxy-user=", "-u", "-U"} {
			if rest, ok := strings.CutPrefix(word, flag); ok {
				value = rest
				break
			}
		}
	}
	user, password, ok := strings.Cut(value, ":")
	if !ok || password == "" {
		return word, false
	}
	return word[:len(word)-len(value)] + user + ":" + Redacted, true
}

// Redact turns an environment ("NAME=value") into a map in which whatever looks
// like a key, token or password has the value "[redacted]": by the variable's
// name (HF_TOKEN, *_KEY, *SECRET*, *PASSWORD*...) or by the value's form (hf_...,
// ghp_..., AKIA..., a URL with user and password, a secret parameter or a webhook).
func Redact(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || name == "" {
			continue
		}
		m[name] = redactVariable(name, value)
	}
	return m
}

func redactMap(env map[string]string) map[string]string {
	if env == nil {
		return nil
	}
	m := make(map[string]string, len(env))
	for name, value := range env {
		m[name] = redactVariable(name, value)
	}
	return m
}

func redactVariable(name, value string) string {
	if value == "" {
		return ""
	}
	if secretVariable(name) {
		return Redacted
	}
	return redactText(value)
}

// secretVariable judges the name of an environment variable. It is strict:
// nobody needs the value of a *_KEY in a report.
func secretVariable(name string) bool {
	u := strings.ToUpper(name)
	if strings.HasPrefix(u, "SPARKRUN_KNOB_") {
		return false
	}
	for part := range strings.SplitSeq(u, "_") {
		if part == "CRED" || part == "CREDS" {
			return !strings.HasSuffix(u, "_FILE") && !strings.HasSuffix(u, "_PATH") && !strings.HasSuffix(u, "_DIR")
		}
	}
	for _, part := range []string{"SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "APIKEY", "CONNECTION_STRING", "COOKIE"} {
		if strings.Contains(u, part) {
			// A path to a secret is none, and says where to look.
			return !strings.HasSuffix(u, "_FILE") && !strings.HasSuffix(u, "_PATH") && !strings.HasSuffix(u, "_DIR")
		}
	}
	switch last := u[strings.LastIndexByte(u, '_')+1:]; last {
	case "KEY", "TOKEN", "PASS", "PAT", "AUTH", "DSN", "SSHPASS", "JWT":
		return true
	case "PWD":
		return u != "PWD" // the working directory
	}
	return strings.HasSuffix(u, "TOKEN") // AUTHTOKEN
}

// plainTokens are the words before "token" that make it a piece of text rather
// than a secret; plainKeys the same for "key" the other way round.
var (
	plainTokens = map[string]bool{
		"pad": true, "eos": true, "bos": true, "unk": true, "sep": true, "cls": true, "mask": true, "special": true,
		"image": true, "video": true, "audio": true, "per": true, "start": true, "end": true, "stop": true, "next": true,
		"add": true, "last": true, "first": true, "prefix": true, "suffix": true, "middle": true, "boundary": true,
		"instance": true, "trigger": true, "placeholder": true, "decoder": true, "new": true, "think": true, "by": true,
	}
	secretKeys = map[string]bool{
		"api": true, "access": true, "secret": true, "private": true, "auth": true, "encryption": true, "account": true,
		"ssh": true, "wandb": true, "openai": true, "anthropic": true, "service": true, "license": true, "hf": true,
		"signing": true, "deploy": true, "comet": true, "neptune": true, "clearml": true,
	}
)

// secretFlag judges the name of a flag or of a key in a command. It is more
// careful than secretVariable: training commands are full of --pad_token and
// --text_key, and a rung must be able to show them.
func secretFlag(name string) bool {
	name = strings.TrimLeft(name, "-+")
	if name == "" {
		return false
	}
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		name = name[i+1:] // trainer.logger.api_key
	}
	if strings.ContainsRune(name, '_') && name == strings.ToUpper(name) {
		return secretVariable(name) // HF_TOKEN=..., as behind env or docker -e
	}
	parts := nameParts(name)
	if len(parts) == 0 {
		return false
	}
	last := parts[len(parts)-1]
	before := ""
	if len(parts) > 1 {
		before = parts[len(parts)-2]
	}
	for _, p := range parts {
		switch p {
		case "secret", "secrets", "password", "passwd", "passphrase", "apikey", "credential", "credentials", "cred", "creds":
			return last != "file" && last != "path" && last != "dir"
		}
	}
	switch last {
	case "token":
		return !plainTokens[before]
	case "key":
		return secretKeys[before]
	case "authtoken", "pat", "jwt", "sshpass":
		return true
	}
	return false
}

// nameParts splits a name at _ and -, and where a lower case letter meets an
// upper case one, into lower case words.
func nameParts(name string) []string {
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if i > 0 && c >= 'A' && c <= 'Z' && name[i-1] >= 'a' && name[i-1] <= 'z' {
			b.WriteByte('_')
		}
		b.WriteByte(c)
	}
	return strings.FieldsFunc(strings.ToLower(b.String()), func(r rune) bool { return r == '_' || r == '-' })
}

// RedactArgv returns a copy of argv with secrets replaced: the word behind a
// secret flag (--hf_token X), the value in --api-key=X, hub_token=X and
// -e HF_TOKEN=X, assignments inside a longer word (sh -c '...', JSON), and
// whatever has the form of a token. argv itself is left alone.
func RedactArgv(argv []string) []string {
	if argv == nil {
		return nil
	}
	out := make([]string, len(argv))
	hide, curl := false, false
	for i, word := range argv {
		curl = curl || word == "curl" || strings.HasSuffix(word, "/curl")
		if curl && i > 0 {
			if w, ok := redactCurlUser(argv[i-1], word); ok {
				out[i], hide = w, false
				continue
			}
		}
		isFlag := len(word) > 1 && word[0] == '-'
		if hide && !isFlag {
			hide = false
			if word != "" && !isSwitch(word) {
				out[i] = Redacted
				continue
			}
		}
		hide = isFlag && !strings.Contains(word, "=") && secretFlag(word)
		out[i] = redactWord(word)
	}
	return out
}

// isSwitch says whether a value is only on or off: --use_auth_token True.
func isSwitch(v string) bool {
	switch strings.ToLower(v) {
	case "true", "false", "yes", "no", "on", "off", "0", "1", "none", "null":
		return true
	}
	return false
}

func redactWord(word string) string {
	name, value, ok := strings.Cut(word, "=")
	if !ok || strings.ContainsAny(name, " \t\n\"'{?&#") {
		return redactText(word) // also a URL, whose parameters are read one by one
	}
	if name[:min(1, len(name))] != "-" && strings.ContainsAny(value, " \t\n") {
		return redactText(word) // NAME=value COMMAND, as in sh -c
	}
	if secretFlag(name) && value != "" && !isSwitch(value) {
		return name + "=" + Redacted
	}
	return RedactText(name + "=" + redactWord(value))
}

// redactText looks for assignments and flags in a word that is more than one
// value.
func redactText(s string) string {
	if strings.ContainsAny(s, " \t\n\"'{") {
		s = redactNamed(s)
	}
	return RedactText(s)
}

// redactNamed replaces the values behind the names of secrets.
func redactNamed(s string) string {
	if !namesSecret(s) {
		return s
	}
	return flagInText.ReplaceAllStringFunc(redactAssignments(s), func(m string) string {
		p := flagInText.FindStringSubmatch(m)
		if !secretFlag(p[1]) || isShown(p[3]) {
			return m
		}
		return p[1] + p[2] + Redacted
	})
}

// isShown says of the value of a secret's name that it is none.
func isShown(v string) bool { return isSwitch(v) || v == Redacted || isReference(v) }

// nested is how many assignments are looked for inside the value of another: more are
// in no command, and each reads the rest of the value again.
const nested = 16

// redactAssignments replaces the values of secrets. The value of what is none may have
// one inside: https://HOST?token=X, --header=X-Api-Key:X.
func redactAssignments(s string) string {
	var b strings.Builder
	copied, outer, depth := 0, 0, 0
	for at := 0; ; {
		m := assignment.FindStringSubmatchIndex(s[at:])
		if m == nil {
			return b.String() + s[copied:]
		}
		value, end := at+m[6], at+m[7]
		switch secret := secretFlag(s[at+m[2] : at+m[3]]); {
		case secret && isShown(s[value:end]):
			at = end
		case secret:
			b.WriteString(s[copied:value])
			b.WriteString(Redacted)
			copied, at = end, end
		default:
			if value >= outer {
				outer, depth = end, 0
			}
			if depth++; depth > nested {
				at = max(outer, end)
			} else {
				at = value
			}
		}
	}
}

// RedactConfig replaces secrets in the text of a config file, YAML, JSON or
// NAME=VALUE: by their form in the whole text (a private key has many lines),
// then line by line by the key's name (see Redact). What is no secret stays byte
// for byte.
func RedactConfig(text string) string {
	var b strings.Builder
	for line := range strings.Lines(RedactText(text)) {
		b.WriteString(redactNamed(line))
	}
	return b.String()
}

func redactChanges(changes []Change) []Change {
	if changes == nil {
		return nil
	}
	out := make([]Change, len(changes))
	for i, c := range changes {
		key := strings.Trim(c.Where, "{}") // {placeholder}
		if j := strings.LastIndexAny(key, ": "); j >= 0 {
			key = key[j+1:] // FILE:LINE KEY
		}
		secret := secretFlag(key)
		for _, v := range []*string{&c.Before, &c.After} {
			if secret && *v != "" {
				*v = Redacted
			} else {
				*v = redactWord(*v)
			}
		}
		out[i] = c
	}
	return out
}
