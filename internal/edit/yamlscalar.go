package edit

import (
	"fmt"
	"strings"

	"sparkrun/internal/lazyre"
)

// What a word without quotes is to PyYAML, which follows YAML 1.1. The rules are those
// of the types of yaml.org/type with PyYAML's narrowings: floats need a point, exponents
// a sign, y and n are text.
var (
	bool11      = lazyre.New(`^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$`)
	float11     = lazyre.New(`^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$`)
	int11       = lazyre.New(`^[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|[1-9][0-9_]*(?::[0-5]?[0-9])+)$`)
	timestamp11 = lazyre.New(`^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:$|[Tt \t])`)
	null11      = lazyre.New(`^(?:~|null|Null|NULL)?$`)
)

func yaml11(word string) string {
	switch {
	case bool11.MatchString(word):
		return "bool"
	case float11.MatchString(word):
		return "float"
	case int11.MatchString(word):
		return "int"
	case null11.MatchString(word):
		return "null"
	case timestamp11.MatchString(word), word == "=", word == "<<":
		return "other"
	}
	return "str"
}

// The core schema of YAML 1.2.
var (
	bool12  = lazyre.New(`^(?:true|True|TRUE|false|False|FALSE)$`)
	int12   = lazyre.New(`^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$`)
	float12 = lazyre.New(`^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$`)
)

func yaml12(word string) string {
	switch {
	case bool12.MatchString(word):
		return "bool"
	case int12.MatchString(word):
		return "int"
	case float12.MatchString(word):
		return "float"
	case null11.MatchString(word):
		return "null"
	}
	return "str"
}

// plainText is what may stand in YAML without quotes wherever a value may.
const plainText = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+"

func plainSafe(word string) bool {
	switch strings.ToLower(word) {
	case "", "y", "n":
		return false
	}
	return strings.Trim(word, plainText) == "" && word[0] != '-' && word[0] != '.' && word[0] != '+' &&
		yaml11(word) == "str" && yaml12(word) == "str"
}

func (yamlFormat) spell(value, kind string, old *node) (string, *node, error) {
	var quote byte
	before := ""
	if old != nil {
		before, quote = old.text, old.quote
	}
	switch kind {
	case "null":
		return "null", &node{kind: Null}, nil
	case "str":
	default:
		word, err := plainValue(value, kind, before)
		if err != nil {
			return "", nil, err
		}
		if quote == 0 || !readsAs(kind, before) {
			leaf := &node{text: word, typ: yaml11(word) + "/" + yaml12(word)}
			if kind != "float" && leaf.typ != kind+"/"+kind || kind == "float" && strings.Contains(leaf.typ, "str") {
				return "", nil, fmt.Errorf("%q is read differently by different readers of YAML", word)
			}
			return word, leaf, nil
		}
		value = word
	}
	leaf := &node{text: value, typ: "str/str"}
	switch {
	case quote == '"':
		return yamlQuoted(value), leaf, nil
	case quote == '\'' && !strings.ContainsFunc(value, needsEscape):
		return "'" + strings.ReplaceAll(value, "'", "''") + "'", leaf, nil
	case quote == 0 && plainSafe(value):
		return value, leaf, nil
	}
	return yamlQuoted(value), leaf, nil
}

// needsEscape says whether a character cannot stand as itself in quotes.
func needsEscape(r rune) bool {
	return r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r >= 0xd800 && r < 0xe000 || r == 0xfeff || r == 0xfffe || r == 0xffff
}

func yamlQuoted(s string) string { return quoted(s, needsEscape) }

// quoted writes a text in double quotes, with the escapes that YAML and TOML both have.
func quoted(s string, escaped func(rune) bool) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case escaped(r) && r <= 0xffff:
			fmt.Fprintf(&b, `\u%04X`, r)
		case escaped(r):
			fmt.Fprintf(&b, `\U%08X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func yamlKey(key string) string {
	if plainSafe(key) {
		return key
	}
	return yamlQuoted(key)
}
