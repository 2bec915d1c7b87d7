package throttle

import (
	"math"
	"strings"
	"testing"

	"sparkrun/internal/sample"
)

func TestUserFileReplacesOnlyWhatItNames(t *testing.T) {
	t.Parallel()
	built, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := Parse("mine.yaml", []byte("merge_s: 2\npower_wedge:\n  for_s: 3\n"))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.MergeS != 2 || cfg.Wedge.ForS != 3 {
		t.Errorf("not taken: %+v", cfg)
	}
	cfg.MergeS, cfg.Wedge.ForS = built.MergeS, built.Wedge.ForS
	if cfg.Wedge != built.Wedge || cfg.PowerCap != built.PowerCap || cfg.Thermal != built.Thermal || cfg.MergeS != built.MergeS {
		t.Errorf("other thresholds changed: %+v", cfg)
	}
}

func TestBadFilesNameTheLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                   "mine.yaml: the file is empty",
		"merge_s: 60\nmerge: 2\n":            "mine.yaml:2: ",
		"gap_s: 30\nmerge_s: 0\n":            `mine.yaml:2: "0" is no threshold`,
		"thermal:\n\n  counter_ms: soon\n":   `mine.yaml:3: "soon" is no threshold`,
		"merge_s: .nan\n":                    "mine.yaml:1: ",
		"merge_s: -.inf\n":                   "mine.yaml:1: ",
		"power_cap: {min_w: 200}\n":          "mine.yaml: power_cap.min_w (200) must be below power_cap.max_w (105)",
		"signature: {power_drop: 10}\n":      "mine.yaml: signature.power_drop",
		"thermal: {warn_share: 5}\n":         "mine.yaml: thermal.warn_share",
		"thermal: {report_s: -1}\n":          `mine.yaml:1: "-1" is no threshold`,
		"hot:\n  zone_c: 80\n":               "mine.yaml: hot.zone_off_c (87) must be below hot.zone_c (80)",
		"low_cap:\n  min_w: 70\n":            "mine.yaml: low_cap.min_w (70) must be below low_cap.max_w (70)",
		"low_cap:\n  zone_c: 70\n":           "mine.yaml:2: ",
		"low_cap: {cap_used: 1.5}\n":         "mine.yaml: low_cap.cap_used",
		"low_cap: {busy_share: 2}\n":         "mine.yaml: low_cap.busy_share",
		"power_wedge: {quiet_s: 0}\n":        `mine.yaml:1: "0" is no threshold`,
		"hot:\n  die_alone: 90\n":            "mine.yaml:2: ",
		"own_cap_part: 2\n":                  "mine.yaml: own_cap_part",
		"merge_s: [1]\n":                     "mine.yaml:1: ",
		"merge_s: 1\n---\nmerge_s: 2\n":      "mine.yaml: more than one YAML document",
		"power_wedge:\n  for_s:\n    - 60\n": "mine.yaml:3: ",
	} {
		if _, err := Parse("mine.yaml", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A file of before the newer keys keeps its meaning: the wedge's clock and utilisation
// bound those of the means.
func TestMeansFollowAFileThatDoesNotNameThem(t *testing.T) {
	t.Parallel()
	cfg, err := Parse("mine.yaml", []byte("power_wedge: {clock_mhz: 500, util_pct: 40}\n"))
	if err != nil {
		t.Fatal(err)
	}
	// Faster than that it is no wedge, but not well either.
	check(t, play(New(cfg), 0, 1200, wedged, nil), "600 low-cap start warn")
	got := play(New(cfg), 0, 1200, wedged, func(s float64, x *sample.Sample) {
		x.ClockSMMHz, x.UtilPct = sample.Known(480), sample.Known(45)
		if math.Mod(s, 30) == 0 {
			x.UtilPct = sample.Known(10)
		}
	})
	if len(got) != 1 || got[0].Data["evidence"] != "means" || got[0].T.Before(at(600)) {
		t.Errorf("events:\n%s", outline(got))
	}
}

func TestMissingThresholdIsNamed(t *testing.T) {
	t.Parallel()
	cfg, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Pace.Up = 0
	if err := cfg.check("x.yaml"); err == nil || err.Error() != "x.yaml: pace.up is missing" {
		t.Errorf("got %v", err)
	}
}
