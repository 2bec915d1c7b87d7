package sample

import (
	"encoding/json"
	"testing"
	"time"
)

// TestUnknownIsNeverZero: in CSV an empty cell, in JSON null, and back.
func TestUnknownIsNeverZero(t *testing.T) {
	t.Parallel()
	tests := []struct {
		n    Num
		prec int
		csv  string
		json string
	}{
		{Num{}, 2, "", "null"},
		{Known(0), 2, "0", "0"},
		{Known(97.31), 2, "97.31", "97.31"},
		{Known(97.5), 2, "97.5", "97.5"},
		{Known(100), 1, "100", "100"},
		{Known(-3), 0, "-3", "-3"},
		{Known(1e12), 0, "1000000000000", "1000000000000"},
	}
	for _, tt := range tests {
		if got := tt.n.CSV(tt.prec); got != tt.csv {
			t.Errorf("%v: CSV %q, want %q", tt.n, got, tt.csv)
		}
		b, err := json.Marshal(tt.n)
		if err != nil || string(b) != tt.json {
			t.Errorf("%v: JSON %s (%v), want %s", tt.n, b, err, tt.json)
		}
		var back Num
		if err := json.Unmarshal(b, &back); err != nil || back != tt.n {
			t.Errorf("%s read back as %v (%v)", b, back, err)
		}
	}
	if (Num{}).Or(7) != 7 || Known(1).Or(7) != 1 {
		t.Error("Or")
	}
}

func TestRowFitsHeader(t *testing.T) {
	t.Parallel()
	var empty Sample
	empty.T = time.Unix(0, 0).UTC()
	row := empty.Row()
	if len(row) != len(Header) {
		t.Fatalf("%d cells, %d columns", len(row), len(Header))
	}
	for i, cell := range row {
		switch Header[i] {
		case "t", "mono_s", "missed":
		default:
			if cell != "" {
				t.Errorf("%s of a sample that knows nothing is %q", Header[i], cell)
			}
		}
	}
	s := Sample{T: time.Unix(1, 0).UTC(), Attempt: 2, GPU: GPU{ReasonBits: Known(0x28)}}
	for i, cell := range s.Row() {
		if Header[i] == "reasons_hex" && cell != "0x28" || Header[i] == "attempt" && cell != "2" {
			t.Errorf("%s is %q", Header[i], cell)
		}
	}
}
