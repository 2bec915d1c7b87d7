package runlog

import (
	"bytes"
	"regexp"
	"strings"

	"sparkrun/internal/lazyre"
)

// token is one form of secret that can be told whatever its name is. Texts are
// long and secrets are few: only where the literal that it begins with stands is
// the pattern tried, and there and nowhere else.
type token struct {
	literal string
	re      *regexp.Regexp // anchored
}

func tokenOf(literal, rest string) token {
	return token{literal, regexp.MustCompile(`^` + regexp.QuoteMeta(literal) + rest)}
}

// tokens are the published prefixes of access tokens and a private key block, by
// their first byte. There is no word boundary before the prefixes: a colour code
// or an escape such as \n may stand there. None of them contains a quote or a
// backslash, so that encoded JSON stays well formed when they are replaced in it.
var tokens = func() (table [256][]token) {
	for _, t := range []token{
		tokenOf("hf_", `[A-Za-z0-9]{20,}`), // Hugging Face; hf_transformers is a word
		tokenOf("gh", `[pousr]_[A-Za-z0-9]{16,}`),
		tokenOf("github_pat_", `[A-Za-z0-9_]{16,}`), // GitHub, fine grained
		tokenOf("glpat-", `[A-Za-z0-9_-]{16,}`),     // GitLab
		tokenOf("AKIA", `[A-Z0-9]{16}`),             // AWS key id
		tokenOf("ASIA", `[A-Z0-9]{16}`),
		tokenOf("xox", `[abeoprs]-[A-Za-z0-9-]{10,}`),                             // Slack
		tokenOf("nvapi-", `[A-Za-z0-9_-]{16,}`),                                   // NVIDIA
		tokenOf("AIza", `[A-Za-z0-9_-]{35}`),                                      // Google
		tokenOf("ya29.", `[A-Za-z0-9_-]{20,}`),                                    // Google OAuth
		tokenOf("dckr_pat_", `[A-Za-z0-9_-]{16,}`),                                // Docker
		tokenOf("pypi-", `[A-Za-z0-9_-]{50,}`),                                    // PyPI
		tokenOf("eyJ", `[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}`), // JWT
		tokenOf("-----BEGIN ", `[A-Z ]*PRIVATE KEY-----[^"]*`),
	} {
		table[t.literal[0]] = append(table[t.literal[0]], t)
	}
	return table
}()

// bearer is the value of an Authorization header, in whatever case.
var bearer = lazyre.New(`^(?i:bearer\s+)[A-Za-z0-9._~+/=-]{8,}`)

// tokenAt returns the length of the token that begins at b[i], 0 for none.
func tokenAt(b []byte, i int) int {
	for _, t := range tokens[b[i]] {
		if bytes.HasPrefix(b[i:], []byte(t.literal)) {
			if m := t.re.FindIndex(b[i:]); m != nil {
				return m[1]
			}
		}
	}
	const word = "bearer"
	if b[i]|0x20 == word[0] && len(b)-i > len(word) && bytes.EqualFold(b[i:i+len(word)], []byte(word)) && (i == 0 || !isWord(b[i-1])) {
		if m := bearer.FindIndex(b[i:]); m != nil {
			return m[1]
		}
	}
	if n := basicAt(b, i); n > 0 {
		return n
	}
	return 0
}

// basic is what stands behind "Authorization:": user and password in base64.
var basic = lazyre.New(`^(?i:basic)[ \t]+[A-Za-z0-9+/_-]{4,}={0,2}`)

// basicAt is tokenAt for the Basic scheme. It is an ordinary word, so only the
// name of the header before it makes it one.
func basicAt(b []byte, i int) int {
	const word, header = "basic", "authorization"
	if b[i]|0x20 != word[0] || len(b)-i <= len(word) || !bytes.EqualFold(b[i:i+len(word)], []byte(word)) {
		return 0
	}
	before := bytes.TrimRight(b[max(0, i-len(header)-8):i], "\\\"' \t:=")
	if len(before) == i || len(before) < len(header) || !bytes.EqualFold(before[len(before)-len(header):], []byte(header)) {
		return 0
	}
	if m := basic.FindIndex(b[i:]); m != nil {
		return m[1]
	}
	return 0
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

func isWord(c byte) bool { return c == '_' || isAlnum(c) }

// scrub replaces secrets that can be told by their own form. It is safe on
// encoded JSON. It returns b itself where there is none.
func scrub(b []byte) []byte {
	out, from := []byte(nil), 0
	for i := 0; i < len(b); i++ {
		if n := tokenAt(b, i); n > 0 {
			out = append(append(out, b[from:i]...), Redacted...)
			from = i + n
			i = from - 1
		}
	}
	return scrubUsers(scrubSK(spliced(out, b, from)))
}

// spliced ends a copy that has the first bytes of b already.
func spliced(out, b []byte, from int) []byte {
	if from == 0 {
		return b
	}
	return append(out, b[from:]...)
}

// afterWord says whether a letter or digit before b[at] belongs to a word, and is
// not the end of an escape such as \n or of a colour code.
func afterWord(b []byte, at int) bool {
	if at == 0 || !isAlnum(b[at-1]) {
		return false
	}
	if at > 1 && b[at-2] == '\\' && strings.IndexByte("bfnrt", b[at-1]) >= 0 {
		return false
	}
	if b[at-1] != 'm' {
		return true
	}
	k := at - 2
	for k >= 0 && (b[k] >= '0' && b[k] <= '9' || b[k] == ';') {
		k--
	}
	return k < 0 || b[k] != '['
}

// scrubSK replaces OpenAI's and Anthropic's keys, whose prefix ordinary words
// (task-) may have too: it counts at the start of a word, and with a digit in it.
func scrubSK(b []byte) []byte {
	const prefix, least = "sk-", 16
	out, from := []byte(nil), 0
	for i := 0; ; {
		n := bytes.Index(b[i:], []byte(prefix))
		if n < 0 {
			return spliced(out, b, from)
		}
		at := i + n
		i = at + len(prefix)
		if afterWord(b, at) {
			continue
		}
		end, digit := i, false
		for end < len(b) && (isWord(b[end]) || b[end] == '-') {
			digit = digit || b[end] >= '0' && b[end] <= '9'
			end++
		}
		if end-i < least {
			continue
		}
		if digit {
			out = append(append(out, b[from:at]...), Redacted...)
			from = end
		}
		i = end
	}
}

// scrubUsers replaces user and password of URLs.
func scrubUsers(b []byte) []byte {
	const sep = "://"
	out, from := []byte(nil), 0
	for i := 0; ; {
		n := bytes.Index(b[i:], []byte(sep))
		if n < 0 {
			return spliced(out, b, from)
		}
		at := i + n
		i = at + len(sep)
		letter := false
		for k := at - 1; k >= from && !letter && (isAlnum(b[k]) || strings.IndexByte("+.-", b[k]) >= 0); k-- {
			letter = b[k]|0x20 >= 'a' && b[k]|0x20 <= 'z'
		}
		end := bytes.IndexAny(b[i:], "/ \t\n\f\r\"'\\@?#")
		if !letter || end < 1 || b[i+end] != '@' {
			continue
		}
		out = append(append(out, b[from:i]...), Redacted+"@"...)
		from = i + end + 1
		i = from
	}
}

// secretWords are the words of which one is in every name that secretFlag and
// secretVariable call secret, in lower case; lastWords the same where it must be
// the end of the name.
var (
	secretWords = [...]string{
		"secret", "passw", "passphrase", "cred", "apikey", "connection_string", "cookie", "token",
	}
	lastWords = [...]string{"key", "pass", "pat", "auth", "dsn", "jwt", "pwd"}
)

// namesSecret says whether a text may have the name of a secret in it: the cheap
// question before the dear one.
func namesSecret(s string) bool {
	s = strings.ToLower(s)
	for _, w := range secretWords {
		if strings.Contains(s, w) {
			return true
		}
	}
	for _, w := range lastWords {
		for i := 0; ; {
			n := strings.Index(s[i:], w)
			if n < 0 {
				break
			}
			i += n + len(w)
			if i == len(s) || !isAlnum(s[i]) {
				return true
			}
		}
	}
	return false
}
