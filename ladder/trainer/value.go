package trainer

import (
	"fmt"
	"strconv"
	"strings"

	"sparkrun/internal/edit"
)

// parseValue reads a setting as Python would and returns it in one spelling:
// integers in decimal, booleans as true or false.
func parseValue(kind, text string) (string, error) {
	switch kind {
	case "int":
		n, err := parseInt(text)
		if err != nil {
			return "", err
		}
		return strconv.FormatInt(n, 10), nil
	case "float":
		if _, err := strconv.ParseFloat(strings.TrimSpace(text), 64); err != nil {
			return "", fmt.Errorf("%q is not a number", text)
		}
		return strings.TrimSpace(text), nil
	case "bool":
		b, ok := edit.AsBool(text)
		if !ok {
			return "", fmt.Errorf("%q is neither true nor false", text)
		}
		return strconv.FormatBool(b), nil
	case "list":
		return joined(text), nil
	}
	return text, nil
}

// joined writes a list as its items with commas between them. It takes what parsers
// take: a,b and "a b" and ['a', 'b'].
func joined(text string) string {
	text = strings.TrimSpace(text)
	if n := len(text); n > 1 && strings.Contains("[] ()", text[:1]+text[n-1:]) {
		text = text[1 : n-1]
	}
	items := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n,", r) })
	for i, item := range items {
		items[i] = strings.Trim(item, `'"`)
	}
	return strings.Join(items, ",")
}

// parseInt follows int() of Python: a sign, and single underscores between
// digits. A leading zero is refused: YAML readers disagree on what it means.
func parseInt(text string) (int64, error) {
	s := strings.TrimSpace(text)
	digits := strings.TrimLeft(s, "+-")
	if len(s)-len(digits) > 1 || digits == "" || digits[0] == '_' ||
		strings.HasSuffix(digits, "_") || strings.Contains(digits, "__") || (digits[0] == '0' && len(digits) > 1) {
		return 0, fmt.Errorf("%q is not a whole number", text)
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", text)
	}
	return n, nil
}

// validName says whether a knob may be called so: it becomes part of an
// environment variable and of a placeholder.
func validName(name string) bool {
	for i := 0; i < len(name); i++ {
		c := name[i]
		if (c < 'a' || c > 'z') && c != '_' && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
