package runlog

import (
	"bytes"
	"strings"

	"sparkrun/internal/lazyre"
)

// scrubWeb replaces what gives access to a service of the web: secret parameters of
// URLs, the paths of webhooks, which are passwords themselves, and the headers of keys.
// Of a URL the scheme and the host stay. It is safe on encoded JSON: nothing that it
// replaces has a quote, a backslash or a newline in it. It returns b itself where there
// is none.
func scrubWeb(b []byte) []byte {
	// Again where something was replaced: one address may stand inside of another, and
	// was hidden by it.
	for range inOneAnother {
		out := scrubHeaders(scrubHooks(scrubQuery(b)))
		if bytes.Equal(out, b) {
			break
		}
		b = out
	}
	return b
}

// inOneAnother bounds how deep addresses are looked for in one another.
const inOneAnother = 64

// scrubQuery replaces the values of secret parameters: ?token=X, &sig=X, #access_token=X.
func scrubQuery(b []byte) []byte {
	out, from := []byte(nil), 0
	for i := 0; ; {
		n := bytes.IndexByte(b[i:], '=')
		if n < 0 {
			return spliced(out, b, from)
		}
		eq := i + n
		i = eq + 1
		start := eq
		for start > from && (isWord(b[start-1]) || strings.IndexByte(".-~%", b[start-1]) >= 0) {
			start--
		}
		if start == 0 || start == eq {
			continue
		}
		switch b[start-1] {
		case '?', '&', '#':
		case '\\': // as other programs write & into JSON
			if !bytes.HasPrefix(b[start:eq], []byte("u0026")) {
				continue
			}
			start += len("u0026")
		default:
			continue
		}
		end := i
		for end < len(b) && b[end] > ' ' && strings.IndexByte("\"'`\\&#;|<>)}", b[end]) < 0 {
			end++
		}
		if !secretParameter(string(b[start:eq]), string(b[i:end])) {
			continue
		}
		out = append(append(out, b[from:i]...), Redacted...)
		from = end
		i = end
	}
}

// secretParameter judges a parameter of a URL. Names that elsewhere may be anything, such
// as sig and auth, are a secret's there.
func secretParameter(name, value string) bool {
	if value == "" || isSwitch(value) || isReference(value) {
		return false
	}
	if secretFlag(name) {
		return true
	}
	parts := nameParts(name)
	if len(parts) == 0 {
		return false
	}
	switch last := parts[len(parts)-1]; last {
	case "sig", "signature", "pass", "pwd", "auth":
		return true
	case "key", "code":
		return len(parts) == 1 && looksDrawn(value)
	default:
		before, ok := strings.CutSuffix(last, "token") // accesstoken
		return ok && before != "" && !plainTokens[before]
	}
}

// reference is a variable or a placeholder such as {token}, whose name is no secret and is needed to type a command again.
// One in lower case may as well be a password that begins with a dollar.
var reference = lazyre.New(`^(?:\$\{[A-Z_][A-Z0-9_]*\}?|\$[A-Z_][A-Z0-9_]*|\{[a-z][a-z0-9_]*\}?)$`)

// isReference says whether a value is taken from somewhere: $HF_TOKEN, ${HF_TOKEN},
// $(cat FILE).
func isReference(v string) bool {
	return strings.HasPrefix(v, "$(") || reference.MatchString(v)
}

// looksDrawn says whether a value has been drawn by a machine, and is no word or name with
// a number: letters and digits take turns in it.
func looksDrawn(v string) bool {
	const shortest, turns = 12, 3
	n, before := 0, byte(0)
	for i := range len(v) {
		class := byte('a')
		switch c := v[i]; {
		case c >= '0' && c <= '9':
			class = '0'
		case !isAlnum(c):
			continue
		}
		if before != 0 && class != before {
			n++
		}
		before = class
	}
	return len(v) >= shortest && n >= turns
}

// inPath is one character of a path that may be replaced. Neither a shell's variable nor
// Redacted has one at its beginning.
const inPath = "[^\\s\"'`\\\\?#;|&<>()\\[\\]{}$,]"

// edge is the beginning of a word, also behind an escape of JSON.
const edge = `(?:\b|\\[bfnrt])`

// hook is one form of URL whose path is a secret. It ends in the part that is replaced.
type hook struct {
	// hints are lower case texts of which a URL of this form has one.
	hints []string
	re    *lazyre.RE
	// drawn says that only a part of the path that looksDrawn is a secret, and what follows.
	drawn bool
}

// hooks are the services that people send messages to, as they publish their URLs, and
// what the paths of others have in common.
var hooks = []hook{
	{[]string{"hooks.slack"}, lazyre.New(`(?i)(` + edge + `hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/)` + inPath + `+`), false},
	{[]string{"webhook"}, lazyre.New(`(?i)((?:` + edge + `discord(?:app)?\.com|://[^\s"'\\/]+)/(?:[^\s"'\\?#]*?/)?webhooks?(?:b2)?/)` + inPath + `+`), false},
	{[]string{"webhook"}, lazyre.New(`(?i)(://(?:[^\s"'\\/]*\.)?webhooks?\.[^\s"'\\/.]+/)` + inPath + `+`), false},
	{[]string{"/bot"}, lazyre.New(`(?i)(` + edge + `api\.telegram\.org/(?:file/)?bot)[^\s"'\\/?#;|&<>()\[\]{}$]+`), false},
	{[]string{"/bot"}, lazyre.New(`(?i)(/bot)[0-9]{5,}:[A-Za-z0-9_-]{10,}`), false},
	{[]string{"hooks.zapier"}, lazyre.New(`(?i)(` + edge + `hooks\.zapier\.com/hooks/)` + inPath + `+`), false},
	{[]string{"ntfy.sh/"}, lazyre.New(`(?i)((?:^|://|[\s"'@]|\\[bfnrt])ntfy\.sh/)` + inPath + `+`), false},
	{[]string{"hc-ping"}, lazyre.New(`(?i)(` + edge + `hc-ping\.com/)` + inPath + `+`), false},
	{[]string{"/with/key/"}, lazyre.New(`(?i)(://[^\s"'\\?#]+/with/key/)` + inPath + `+`), false},
	{[]string{"pagerduty"}, lazyre.New(`(?i)(` + edge + `events\.pagerduty\.com/integration/)` + inPath + `+`), false},
	{
		[]string{"hook", "/ping/", "/push/", "/heartbeat/"},
		lazyre.New(`(?i)(://[^\s"'\\/]+/(?:[^\s"'\\?#]*?/)?(?:hooks?|ping|push|heartbeat)/)(` + inPath + `+)`), true,
	},
}

// wide is as far, in bytes, as a URL is read to both sides of what it was found by.
const wide = 4 << 10

func scrubHooks(b []byte) []byte {
	if bytes.IndexByte(b, '/') < 0 {
		return b
	}
	lower := lowered(b)
	for i := range hooks {
		for _, hint := range hooks[i].hints {
			if !bytes.Contains(lower, []byte(hint)) {
				continue
			}
			b = scrubAround(b, lower, []byte(hint), hooks[i].scrub)
			lower = lowered(b)
		}
	}
	return b
}

// scrubAround gives what stands around each hint, up to where no URL goes on, to scrub: the
// patterns are slow and texts are long. lower is b in lower case.
func scrubAround(b, lower, hint []byte, scrub func([]byte) []byte) []byte {
	out, from := []byte(nil), 0
	for i := 0; ; {
		n := bytes.Index(lower[i:], hint)
		if n < 0 {
			return spliced(out, b, from)
		}
		at := i + n
		start, end := at, at+len(hint)
		for start > from && at-start < wide && !endsURL(b[start-1]) {
			start--
		}
		if start > from {
			start-- // an escape is told by its backslash
		}
		for end < len(b) && end-at < wide && !endsURL(b[end]) {
			end++
		}
		if now := scrub(b[start:end]); !bytes.Equal(now, b[start:end]) {
			out = append(append(out, b[from:start]...), now...)
			from = end
		}
		i = end
	}
}

func endsURL(c byte) bool { return c <= ' ' || c == '"' || c == '\'' || c == '\\' }

// lowered is ASCII in lower case, byte for byte: bytes.ToLower may change the length.
func lowered(b []byte) []byte {
	out := bytes.Clone(b)
	for i, c := range out {
		if c >= 'A' && c <= 'Z' {
			out[i] = c | 0x20
		}
	}
	return out
}

func (h *hook) scrub(url []byte) []byte {
	if !h.drawn {
		return h.re.ReplaceAll(url, []byte("${1}"+Redacted))
	}
	return h.re.ReplaceAllFunc(url, func(m []byte) []byte {
		p := h.re.FindSubmatch(m)
		parts := strings.Split(string(p[2]), "/")
		for i, part := range parts {
			if looksDrawn(part) {
				return append(bytes.Clone(p[1]), strings.Join(append(parts[:i], Redacted), "/")...)
			}
		}
		return m
	})
}

// schemes are the words that stand before the secret of an Authorization.
var schemes = map[string]bool{
	"basic": true, "bearer": true, "token": true, "apikey": true, "api-key": true, "key": true, "geniekey": true,
	"splunk": true, "ssws": true, "bot": true, "negotiate": true, "oauth": true,
}

// scrubHeaders replaces the values of headers, NAME: VALUE. The name stands just before the
// colon, so that in JSON both are within one string.
func scrubHeaders(b []byte) []byte {
	out, from := []byte(nil), 0
	for i := 0; ; {
		n := bytes.IndexByte(b[i:], ':')
		if n < 0 {
			return spliced(out, b, from)
		}
		colon := i + n
		i = colon + 1
		name := headerName(b[from:colon])
		for i < len(b) && (b[i] == ' ' || b[i] == '\t') {
			i++
		}
		var start, end int // of the secret, from i
		switch {
		case name == "authorization" || name == "proxy-authorization":
			start, end = authorization(b[i:])
		case name == "cookie" || name == "set-cookie":
			end = cookie(b[i:])
		case keyHeader(name):
			end = headerValue(b[i:])
		}
		value := b[i+start : i+end]
		if len(value) == 0 || value[0] == '[' || isReference(string(value)) || isSwitch(string(value)) {
			continue
		}
		out = append(append(out, b[from:i+start]...), Redacted...)
		i += end
		from = i
	}
}

// headerName is the name of a header at the end of a text, in lower case, "" for none.
func headerName(b []byte) string {
	const longest = 64
	start := len(b)
	for start > 0 && len(b)-start <= longest && (isAlnum(b[start-1]) || b[start-1] == '-') {
		start--
	}
	name := strings.ToLower(string(b[start:]))
	switch {
	case len(name) > longest || name == "" || start > 0 && b[start-1] == '_':
		return ""
	case start > 0 && b[start-1] == '\\' && strings.IndexByte("bfnrt", b[start]) >= 0:
		name = name[1:] // an escape
	}
	return strings.TrimLeft(strings.TrimPrefix(name, "-h"), "-") // curl -HNAME:
}

// keyHeader says whether a header is one of those that have a secret.
func keyHeader(name string) bool {
	for _, end := range []string{
		"api-key", "apikey", "subscription-key", "access-key", "auth-key", "secret-key",
		"private-token", "access-token", "auth-token", "job-token", "deploy-token", "security-token",
	} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	if !strings.HasPrefix(name, "x-") {
		return false
	}
	for _, end := range []string{"key", "token", "secret", "signature", "signature-256", "auth", "password"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}

// headerValue is the length of the word that a header's value begins with.
func headerValue(b []byte) int {
	n := 0
	for n < len(b) && b[n] > ' ' && strings.IndexByte("\"'`\\,;|&<>)[", b[n]) < 0 {
		n++
	}
	return n
}

// cookie is the length of the value of a header that sets cookies: to the end of the string.
func cookie(b []byte) int {
	if n := headerValue(b); !bytes.Contains(b[:n], []byte{'='}) {
		return 0 // a sentence about cookies
	}
	n := 0
	for n < len(b) && b[n] >= ' ' && strings.IndexByte("\"'`\\", b[n]) < 0 {
		n++
	}
	return n
}

// authorization is where the secret of an Authorization header begins and ends.
func authorization(b []byte) (start, end int) {
	end = headerValue(b)
	if !schemes[strings.ToLower(string(b[:end]))] {
		// Without a scheme: a secret, or a sentence's next word.
		if end < 6 || !bytes.ContainsAny(b[:end], "0123456789") {
			return 0, 0
		}
		return 0, end
	}
	start = end
	for start < len(b) && (b[start] == ' ' || b[start] == '\t') {
		start++
	}
	if start == end {
		return 0, 0
	}
	return start, start + headerValue(b[start:])
}
