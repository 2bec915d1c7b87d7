package pyread

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"sparkrun/internal/lazyre"
)

// kind is the kind of a token.
type kind byte

const (
	name    kind = iota
	number       // as written
	str          // text is what is in it, if literal
	op           // operators and brackets
	newline      // the end of a statement: a line break outside brackets, or a semicolon
)

type token struct {
	kind kind
	text string
	line int
	// literal is set for a string whose text is known: no f-string, no bytes.
	literal bool
	// pair is the index of the bracket that belongs to this one, -1 for any other token
	// and for a bracket without one.
	pair int
}

var numberWord = lazyre.New(`^(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|(?:[0-9][0-9_]*)?\.[0-9][0-9_]*(?:[eE][-+]?[0-9_]+)?|[0-9][0-9_]*\.?(?:[eE][-+]?[0-9_]+)?)[jJ]?`)

// operators are those of more than one character, the longer ones first.
var operators = []string{
	"**=", "//=", ">>=", "<<=", "...", "**", "//", ">>", "<<", "<=", ">=", "==", "!=", "->",
	"+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "@=", ":=",
}

type lexer struct {
	text   string
	at     int
	line   int
	tokens []token
	open   []int // indices of the brackets that are open
}

// lex splits a script into tokens. Anything goes: what is not Python gives tokens that
// make no call.
func lex(text string) []token {
	// A token has some four letters.
	l := &lexer{text: strings.TrimPrefix(text, "\ufeff"), line: 1, tokens: make([]token, 0, len(text)/4+8)}
	for l.at < len(l.text) {
		l.next()
	}
	l.emit(newline, "\n", false)
	return l.tokens
}

func (l *lexer) emit(k kind, text string, literal bool) {
	l.tokens = append(l.tokens, token{kind: k, text: text, line: l.line, literal: literal, pair: -1})
}

func (l *lexer) next() {
	rest := l.text[l.at:]
	c := rest[0]
	switch {
	case c == '\n':
		if len(l.open) == 0 {
			l.emit(newline, "\n", false)
		}
		l.line++
		l.at++
	case c == ' ' || c == '\t' || c == '\r' || c == '\f':
		l.at++
	case c == '#':
		if i := strings.IndexByte(rest, '\n'); i >= 0 {
			l.at += i
		} else {
			l.at = len(l.text)
		}
	case c == '\\' && strings.HasPrefix(rest, "\\\n"):
		l.at, l.line = l.at+2, l.line+1
	case c == '\\' && strings.HasPrefix(rest, "\\\r\n"):
		l.at, l.line = l.at+3, l.line+1
	case c == ';' && len(l.open) == 0:
		l.emit(newline, ";", false)
		l.at++
	case stringBegins(rest):
		l.str(rest)
	case c >= '0' && c <= '9' || c == '.' && len(rest) > 1 && rest[1] >= '0' && rest[1] <= '9':
		word := numberWord.FindString(rest)
		l.emit(number, word, true)
		l.at += len(word)
	default:
		if n := nameLength(rest); n > 0 {
			l.emit(name, rest[:n], false)
			l.at += n
			return
		}
		l.operator(rest)
	}
}

// stringBegins says whether a string stands here, with its prefix.
func stringBegins(text string) bool {
	for i := 0; i < min(len(text), 3); i++ {
		if text[i] == '"' || text[i] == '\'' {
			return true
		}
		if strings.IndexByte("rRbBuUfFtT", text[i]) < 0 {
			return false
		}
	}
	return false
}

func nameLength(text string) int {
	for i, r := range text {
		if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r)) {
			return i
		}
	}
	return len(text)
}

func isName(text string) bool { return text != "" && nameLength(text) == len(text) }

func (l *lexer) operator(rest string) {
	for _, o := range operators {
		if strings.HasPrefix(rest, o) {
			l.emit(op, o, false)
			l.at += len(o)
			return
		}
	}
	_, size := utf8.DecodeRuneInString(rest)
	l.emit(op, rest[:size], false)
	l.at += size
	here := len(l.tokens) - 1
	switch rest[0] {
	case '(', '[', '{':
		l.open = append(l.open, here)
	case ')', ']', '}':
		if n := len(l.open) - 1; n >= 0 {
			first := l.open[n]
			l.open = l.open[:n]
			if strings.Index("([{", l.tokens[first].text) == strings.Index(")]}", rest[:1]) {
				l.tokens[first].pair, l.tokens[here].pair = here, first
			}
		}
	}
}

// str reads a string with its prefix.
func (l *lexer) str(rest string) {
	at := strings.IndexAny(rest, `"'`)
	prefix := strings.ToLower(rest[:at])
	quote := rest[at : at+1]
	if strings.HasPrefix(rest[at:], strings.Repeat(quote, 3)) {
		quote = strings.Repeat(quote, 3)
	}
	formatted := strings.ContainsAny(prefix, "ft")
	end, closed := -1, false
	if formatted {
		end, closed = formattedEnd(rest, at+len(quote), quote, 0)
	}
	if !closed {
		end, closed = stringEnd(rest, at+len(quote), quote)
	}
	inside := ""
	known := closed && !formatted && !strings.Contains(prefix, "b")
	if known {
		inside = rest[at+len(quote) : end-len(quote)]
		if !strings.Contains(prefix, "r") {
			inside, known = unescape(inside)
		}
	}
	l.emit(str, inside, known)
	l.line += strings.Count(rest[:end], "\n")
	l.at += end
}

// stringEnd returns the offset behind the closing quote. A string that is not closed
// ends with its line, or with the text for triple quotes.
func stringEnd(text string, at int, quote string) (end int, closed bool) {
	for ; at < len(text); at++ {
		switch {
		case text[at] == '\\':
			at++
		case text[at] == '\n' && len(quote) == 1:
			return at, false
		case strings.HasPrefix(text[at:], quote):
			return at + len(quote), true
		}
	}
	return len(text), false
}

// maxNested bounds strings in braces of f-strings in braces of f-strings.
const maxNested = 8

// formattedEnd is stringEnd for f-strings, in whose braces strings with the same
// quotes may stand.
func formattedEnd(text string, at int, quote string, nested int) (end int, closed bool) {
	braces := 0
	for ; at < len(text); at++ {
		c := text[at]
		switch {
		case c == '\\' && braces == 0:
			at++
		case c == '{' && braces == 0 && strings.HasPrefix(text[at:], "{{"):
			at++
		case c == '{':
			braces++
		case c == '}' && braces > 0:
			braces--
		case c == '\n' && len(quote) == 1 && braces == 0:
			return at, false
		case braces == 0 && strings.HasPrefix(text[at:], quote):
			return at + len(quote), true
		case braces > 0 && (c == '"' || c == '\''):
			if nested >= maxNested {
				return len(text), false
			}
			inner := text[at : at+1]
			if strings.HasPrefix(text[at:], strings.Repeat(inner, 3)) {
				inner = strings.Repeat(inner, 3)
			}
			scan := stringEnd
			if at > 0 && strings.IndexByte("fFtT", text[at-1]) >= 0 {
				scan = func(text string, at int, quote string) (int, bool) {
					return formattedEnd(text, at, quote, nested+1)
				}
			}
			next, ok := scan(text, at+len(inner), inner)
			if !ok {
				return len(text), false
			}
			at = next - 1
		}
	}
	return len(text), false
}

// unescape resolves the escapes of a string; names of characters it leaves unknown.
func unescape(s string) (string, bool) {
	if !strings.Contains(s, `\`) {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		if at := strings.IndexByte(`abfnrtv\'"`, s[i]); at >= 0 {
			b.WriteByte("\a\b\f\n\r\t\v\\'\""[at])
			continue
		}
		var digits int
		switch c := s[i]; {
		case c == '\n':
			continue
		case c == 'x':
			digits = 2
		case c == 'u':
			digits = 4
		case c == 'U':
			digits = 8
		case c == 'N', c >= '0' && c <= '7', c == '\r':
			return "", false
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
			continue
		}
		if i+digits >= len(s) {
			return "", false
		}
		r, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32)
		if err != nil || r > unicode.MaxRune || r >= 0xd800 && r < 0xe000 {
			return "", false
		}
		b.WriteRune(rune(r))
		i += digits
	}
	return b.String(), true
}
