package headroom

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// The colours of the bars.
const (
	colourOff   = "\x1b[0m"
	colourExact = "\x1b[36m" // counted
	colourRows  = "\x1b[33m" // goes with the rows
	colourLoad  = "\x1b[2m"  // only while loading
	colourOver  = "\x1b[31m"
	colourFits  = "\x1b[32m"
)

// minBar is the narrowest bar that still says something.
const minBar = 8

// Chart draws the terms against a budget in bytes, one line each, no line wider than width
// columns. A budget of 0 or less is left out. Where there is no room for bars it is a list.
func (e Estimate) Chart(budget int64, width int, colour bool) string {
	type row struct {
		name, text, note string
		bytes            int64
		colour           string
		// from is where the bar begins.
		from int64
	}
	var rows []row
	var at int64
	for _, t := range e.Terms {
		r := row{name: t.Name, bytes: t.Bytes, from: at}
		switch {
		case t.Exact:
			r.colour = colourExact
		case t.Loading:
			r.colour, r.from, r.note = colourLoad, e.Load-t.Bytes, "while loading"
		case t.Name == TermActivations || t.Name == TermLogits || t.Name == TermAllocator:
			r.colour = colourRows
		}
		if !t.Loading {
			at = plus(at, t.Bytes)
		}
		rows = append(rows, r)
	}
	end := row{name: "peak", bytes: e.Peak, colour: colourFits}
	if budget > 0 && e.Peak > budget {
		end.colour = colourOver
	}
	rows = append(rows, end)
	if budget > 0 {
		rows = append(rows, row{name: "budget", bytes: budget})
	}
	wide, figures := 0, 0
	for i := range rows {
		rows[i].text = GB(rows[i].bytes)
		wide, figures = max(wide, len(rows[i].name)), max(figures, len(rows[i].text))
	}
	scale := float64(max(e.Peak, e.Load, budget, 1))
	// What only comes while loading may be many times the rest: the bars are those of the rest.
	if most := float64(max(e.Peak, budget, 1)); scale > 2*most {
		scale = 2 * most
	}
	room := width - wide - figures - 4
	var b strings.Builder
	for _, r := range rows {
		line := fmt.Sprintf("%-*s  %*s", wide, r.name, figures, r.text)
		bar := ""
		if room >= minBar {
			bar = drawn(float64(r.from)/scale, float64(r.bytes)/scale, room)
		}
		line = cut(line, width)
		if bar != "" {
			line += "  "
			if colour && r.colour != "" {
				blank := len(bar) - len(strings.TrimLeft(bar, " "))
				bar = bar[:blank] + r.colour + bar[blank:] + colourOff
			}
			line += bar
		}
		b.WriteString(strings.TrimRight(line, " "))
		b.WriteByte('\n')
	}
	return b.String()
}

// drawn is a bar of part of room columns that begins after from of them.
func drawn(from, part float64, room int) string {
	begin := int(math.Round(math.Max(0, math.Min(1, from)) * float64(room)))
	stop := int(math.Round(math.Max(0, math.Min(1, from+part)) * float64(room)))
	if part > 0 && stop <= begin {
		// Something is there, if too little for a column.
		begin = min(begin, room-1)
		return strings.Repeat(" ", begin) + "▏"
	}
	return strings.Repeat(" ", begin) + strings.Repeat("█", stop-begin)
}

// cut shortens a line to so many columns.
func cut(line string, width int) string {
	if width < 1 {
		return ""
	}
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width])
}
