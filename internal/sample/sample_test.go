package sample

import (
	"encoding/json"
	"strings"
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
		{Known(1.5e22), 0, "15000000000000000000000", "1.5e+22"},
		{Known(0.25e-6), 3, "0", "2.5e-07"},
		{Known(12.3456), 3, "12.346", "12.3456"},
		{Known(200), 2, "200", "200"},
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
	if line, want := string(s.AppendRow(nil)), strings.Join(s.Row(), ",")+"\n"; line != want {
		t.Errorf("line %q, cells %q", line, want)
	}
	for i, cell := range s.Row() {
		if Header[i] == "reasons_hex" && cell != "0x28" || Header[i] == "attempt" && cell != "2" {
			t.Errorf("%s is %q", Header[i], cell)
		}
	}
}

// TestEachFigureHasItsColumn: each field of a sample shows in one column, its own.
func TestEachFigureHasItsColumn(t *testing.T) {
	t.Parallel()
	for column, set := range map[string]func(*Sample, Num){
		"step": func(s *Sample, n Num) { s.Step = n }, "temp_gpu_c": func(s *Sample, n Num) { s.TempC = n },
		"power_sys_w": func(s *Sample, n Num) { s.PowerSys = n }, "ctr_hwpower_ns": func(s *Sample, n Num) { s.CtrHWPowerNS = n },
		"energy_j": func(s *Sample, n Num) { s.EnergyJ = n }, "mem_available_kib": func(s *Sample, n Num) { s.MemAvailableKiB = n },
		"tree_procs": func(s *Sample, n Num) { s.TreeProcs = n }, "cgroup_current_kib": func(s *Sample, n Num) { s.CgroupKiB = n },
		"load1": func(s *Sample, n Num) { s.Load1 = n }, "cpu_busy_pct": func(s *Sample, n Num) { s.CPUBusyPct = n },
		"cpu_mhz": func(s *Sample, n Num) { s.CPUMHz = n }, "psi_cpu_some10": func(s *Sample, n Num) { s.PSICPUSome10 = n },
		"psi_io_full10": func(s *Sample, n Num) { s.PSIIOFull10 = n }, "tree_cpu_s": func(s *Sample, n Num) { s.TreeCPUS = n },
		"tree_read_b": func(s *Sample, n Num) { s.TreeReadB = n }, "tree_write_b": func(s *Sample, n Num) { s.TreeWriteB = n },
		"tree_net_b": func(s *Sample, n Num) { s.TreeNetB = n }, "swap_in_pages": func(s *Sample, n Num) { s.SwapInPages = n },
		"swap_out_pages": func(s *Sample, n Num) { s.SwapOutPages = n }, "tokens": func(s *Sample, n Num) { s.Tokens = n },
		"power_cap_pl1_w": func(s *Sample, n Num) { s.CapSoCW = n }, "power_cap_sys_w": func(s *Sample, n Num) { s.CapSysW = n },
		"energy_soc_j": func(s *Sample, n Num) { s.EnergySoCJ = n },
	} {
		s := Sample{T: time.Unix(1, 0).UTC()}
		set(&s, Known(42))
		for i, cell := range s.Row() {
			if is := Header[i] == column; is != (cell == "42") {
				t.Errorf("%s = 42 shows in column %s as %q", column, Header[i], cell)
			}
		}
	}
}
