package edit

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"sparkrun/internal/lazyre"
)

// wholeNumber is what int() of Python takes, decimal only. A leading zero is left
// out: readers disagree on what it means.
var wholeNumber = lazyre.New(`^([+-]?)(0|[1-9][0-9]*(?:_[0-9]+)*)$`)

// asInt returns the number in plain decimal digits.
func asInt(text string) (string, error) {
	m := wholeNumber.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return "", fmt.Errorf("%q is not a whole number", text)
	}
	return strings.TrimPrefix(m[1], "+") + strings.ReplaceAll(m[2], "_", ""), nil
}

// number is a decimal number: sign, whole part, fraction, exponent.
var number = lazyre.New(`^([+-]?)([0-9]*)(?:(\.)([0-9]*))?(?:[eE]([+-]?)([0-9]+))?$`)

// asFloat returns the number in a spelling that every reader takes for one: with
// digits on both sides of the point and a sign in the exponent. PyYAML reads 1e-5 as
// text. A whole number gets a point unless whole is set.
func asFloat(text string, whole bool) (string, error) {
	text = strings.TrimSpace(text)
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return "", fmt.Errorf("%q is not a number", text)
	}
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return "", fmt.Errorf("%q is not a finite number", text)
	}
	m := number.FindStringSubmatch(strings.ReplaceAll(text, "_", ""))
	if m == nil { // hexadecimal
		m = number.FindStringSubmatch(strconv.FormatFloat(v, 'g', -1, 64))
	}
	sign, units, fraction, mark, exponent := m[1], m[2], m[4], m[5], m[6]
	if sign == "+" {
		sign = ""
	}
	units = strings.TrimLeft(units, "0")
	if units == "" {
		units = "0"
	}
	if whole && m[3] == "" && exponent == "" {
		return sign + units, nil
	}
	if fraction == "" {
		fraction = "0"
	}
	out := sign + units + "." + fraction
	if exponent != "" {
		if mark == "" {
			mark = "+"
		}
		out += "e" + mark + exponent
	}
	return out, nil
}

// AsBool takes the words that HfArgumentParser and YAML take. ok is false for others.
func AsBool(text string) (value, ok bool) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "true", "t", "yes", "y", "on", "1":
		return true, true
	case "false", "f", "no", "n", "off", "0":
		return false, true
	}
	return false, false
}

// readsAs says whether a text by itself is a value of the kind.
func readsAs(kind, text string) bool {
	switch kind {
	case "int":
		_, err := asInt(text)
		return err == nil
	case "float":
		_, err := asFloat(text, true)
		return err == nil
	case "bool":
		_, ok := AsBool(text)
		return ok && strings.Trim(text, "01") != ""
	}
	return false
}

// plainValue writes a number or a truth value. old is the text that stands there now,
// whose capitals are kept: True stays a word like True.
func plainValue(value, kind, old string) (string, error) {
	switch kind {
	case "int":
		return asInt(value)
	case "float":
		return asFloat(value, wholeNumber.MatchString(old))
	case "bool":
		b, ok := AsBool(value)
		if !ok {
			return "", fmt.Errorf("%q is neither true nor false", value)
		}
		word := strconv.FormatBool(b)
		switch {
		case old == "True" || old == "False":
			return strings.ToUpper(word[:1]) + word[1:], nil
		case old == "TRUE" || old == "FALSE":
			return strings.ToUpper(word), nil
		}
		return word, nil
	}
	return "", fmt.Errorf("%q is not a kind of value (int, float, bool, str, null)", kind)
}

var errNoNull = errors.New("the format has no null: the key must be removed instead")
