package pyread

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// value is what an expression of constants comes to: *big.Int, float64, bool, string or
// nil for None.
type value any

// maxBits bounds whole numbers: 2**2**2**2... must not fill the memory.
const maxBits = 1024

// reader evaluates expressions of literals, of + - * / // % ** over them, and of names
// with one meaning.
type reader struct {
	t  []token
	ns names
	// busy are the names that are being read: one that needs itself has no value. done
	// are those that have been.
	busy map[string]bool
	done map[string]result
	// line is where the last literal stood.
	line int
	at   int
	to   int
	// deep counts brackets and signs that are open.
	deep int
}

type result struct {
	v    value
	line int
	ok   bool
}

// read returns the value of the tokens from..to.
func (r *reader) read(from, to int) (v value, line int, ok bool) {
	at, end := r.at, r.to
	defer func() { r.at, r.to = at, end }()
	r.at, r.to = from, to
	v, ok = r.sum()
	if !ok || r.at != r.to {
		return nil, 0, false
	}
	return v, r.line, true
}

const maxDeep = 100

func (r *reader) sum() (value, bool) {
	if r.deep++; r.deep > maxDeep {
		return nil, false
	}
	defer func() { r.deep-- }()
	v, ok := r.product()
	for ok && r.at < r.to && (is(r.t, r.at, "+") || is(r.t, r.at, "-")) {
		sign := r.t[r.at].text
		r.at++
		var w value
		if w, ok = r.product(); ok {
			v, ok = calculate(sign, v, w)
		}
	}
	return v, ok
}

func (r *reader) product() (value, bool) {
	v, ok := r.factor()
	for ok && r.at < r.to && (is(r.t, r.at, "*") || is(r.t, r.at, "/") || is(r.t, r.at, "//") || is(r.t, r.at, "%")) {
		sign := r.t[r.at].text
		r.at++
		var w value
		if w, ok = r.factor(); ok {
			v, ok = calculate(sign, v, w)
		}
	}
	return v, ok
}

func (r *reader) factor() (value, bool) {
	if r.at < r.to && (is(r.t, r.at, "-") || is(r.t, r.at, "+")) {
		if r.deep++; r.deep > maxDeep {
			return nil, false
		}
		defer func() { r.deep-- }()
		minus := r.t[r.at].text == "-"
		r.at++
		v, ok := r.factor()
		if !ok || !minus {
			_, text := v.(string)
			return v, ok && !text
		}
		return calculate("-", new(big.Int), v)
	}
	v, ok := r.atom()
	if ok && r.at < r.to && is(r.t, r.at, "**") {
		r.at++
		w, ok := r.factor()
		if !ok {
			return nil, false
		}
		return calculate("**", v, w)
	}
	return v, ok
}

func (r *reader) atom() (value, bool) {
	if r.at >= r.to {
		return nil, false
	}
	tok := r.t[r.at]
	switch tok.kind {
	case number:
		r.at, r.line = r.at+1, tok.line
		return parseNumber(tok.text)
	case str:
		var b strings.Builder
		for ; r.at < r.to && r.t[r.at].kind == str; r.at++ {
			if !r.t[r.at].literal {
				return nil, false
			}
			b.WriteString(r.t[r.at].text)
		}
		r.line = tok.line
		return b.String(), true
	case name:
		r.at, r.line = r.at+1, tok.line
		switch tok.text {
		case "True":
			return true, true
		case "False":
			return false, true
		case "None":
			return nil, true
		}
		return r.variable(tok.text)
	case op:
		if tok.text == "(" && tok.pair > r.at && tok.pair < r.to {
			end, to := tok.pair, r.to
			r.at, r.to = r.at+1, end
			v, ok := r.sum()
			ok = ok && r.at == end
			r.at, r.to = end+1, to
			return v, ok
		}
	}
	return nil, false
}

func (r *reader) variable(word string) (value, bool) {
	all := r.ns[word]
	if len(all) != 1 || all[0].to == 0 || r.busy[word] || len(r.busy) > 8 {
		return nil, false
	}
	d, ok := r.done[word]
	if !ok {
		r.busy[word] = true
		d.v, d.line, d.ok = r.read(all[0].from, all[0].to)
		delete(r.busy, word)
		r.done[word] = d
	}
	r.line = d.line
	return d.v, d.ok
}

func parseNumber(text string) (value, bool) {
	text = strings.ReplaceAll(text, "_", "")
	if strings.HasSuffix(text, "j") || strings.HasSuffix(text, "J") {
		return nil, false
	}
	base := 10
	if len(text) > 1 && text[0] == '0' && strings.IndexByte("xXoObB", text[1]) >= 0 {
		base = 0
	}
	if len(text) <= maxBits/4 {
		if n, ok := new(big.Int).SetString(text, base); ok && n.BitLen() <= maxBits {
			return n, true
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil && base == 10 && strings.ContainsAny(text, ".eE")
}

// calculate does one operation as Python does. Only numbers take part.
func calculate(sign string, v, w value) (value, bool) {
	a, aWhole := v.(*big.Int)
	b, bWhole := w.(*big.Int)
	if !aWhole || !bWhole || sign == "/" {
		x, xok := toFloat(v)
		y, yok := toFloat(w)
		if !xok || !yok {
			return nil, false
		}
		var f float64
		switch sign {
		case "+":
			f = x + y
		case "-":
			f = x - y
		case "*":
			f = x * y
		case "/":
			f = x / y
		case "//":
			f = math.Floor(x / y)
		case "**":
			f = math.Pow(x, y)
		default:
			return nil, false
		}
		return f, !math.IsNaN(f) && !math.IsInf(f, 0)
	}
	n := new(big.Int)
	switch sign {
	case "+":
		n.Add(a, b)
	case "-":
		n.Sub(a, b)
	case "*":
		n.Mul(a, b)
	case "//", "%":
		if b.Sign() == 0 {
			return nil, false
		}
		rest := new(big.Int)
		n.QuoRem(a, b, rest)
		if rest.Sign() != 0 && rest.Sign() != b.Sign() { // Python rounds down
			n.Sub(n, big.NewInt(1))
			rest.Add(rest, b)
		}
		if sign == "%" {
			n = rest
		}
	case "**":
		if b.Sign() < 0 || b.BitLen() > 10 || a.BitLen()*int(b.Int64()) > maxBits {
			return nil, false
		}
		n.Exp(a, b, nil)
	}
	return n, n.BitLen() <= maxBits
}

func toFloat(v value) (float64, bool) {
	switch v := v.(type) {
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		return f, true
	case float64:
		return v, true
	}
	return 0, false
}

// printed writes a value as print() of Python does.
func printed(v value) string {
	switch v := v.(type) {
	case *big.Int:
		return v.String()
	case bool:
		if v {
			return "True"
		}
		return "False"
	case string:
		return v
	case float64:
		if size := math.Abs(v); size != 0 && (size < 1e-4 || size >= 1e16) {
			return strconv.FormatFloat(v, 'e', -1, 64)
		}
		text := strconv.FormatFloat(v, 'f', -1, 64)
		if !strings.Contains(text, ".") {
			text += ".0"
		}
		return text
	}
	return "None"
}
