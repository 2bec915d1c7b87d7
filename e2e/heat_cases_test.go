package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// heatCases are about heat, power and sensors, at one pace.
func heatCases() []heatCase {
	return []heatCase{
		{
			// Hours at the cap: the clock sags by 9 % with heat, the power cap's own bit is
			// set, an evaluation lies in between. One plateau, no fault.
			name: "healthy plateau",
			plan: `
begin 0.1
fake temp 68 power 92 sm 2405 util 97 reasons 0x4
train 0.1 until power-cap
fake temp 76 sm 2290 power 90
tree sys/class/thermal/thermal_zone0/temp 86100
train 0.1 15
fake util 20 power 30
rows 5
fake temp 83 sm 2177 power 94 util 96
train 0.1 30`,
			want: []string{"power-cap start info", "power-cap end info"},
			data: []string{"", "ended=run-ended"},
			check: func(t *testing.T, _ *proc, events []heatEvent) {
				if !strings.Contains(events[0].Msg, "not a bug") {
					t.Errorf("%q", events[0].Msg)
				}
			},
		},
		{
			name: "thermal bits for one second",
			plan: `
begin 0.1
train 0.1 5
fake reasons 0x60 temp 84 sm 1859
train 0.1 10
fake reasons 0x0 temp 80 sm 2400
train 0.1 until throttle.end
train 0.1 10`,
			want: []string{"thermal-throttle start info", "thermal-throttle end info"},
			data: []string{"evidence=bits", "evidence=bits pulses=1 ended=quiet reasons=0x60 worst_temp_c=84"},
		},
		{
			// Twice within the merge window, no bit in any sample. The counters had counted
			// before this run.
			name: "counters while bits stay 0",
			fake: "temp 78 power 62 sm 2405 util 96 reasons 0x0 ctr_swthermal 7000000000 ctr_hwthermal 1195000000 ctr_hwpower 0",
			plan: `
begin 0.1
train 0.1 5
fake ctr_hwthermal +40000000
train 0.1 until thermal-throttle
rows 2
fake ctr_swthermal +30000000
train 0.1 until throttle.end
train 0.1 10`,
			want: []string{"thermal-throttle start info", "thermal-throttle end info"},
			data: []string{"evidence=counters reasons=0x0", "evidence=counters pulses=2 throttled_s=0.07 ended=quiet"},
		},
		{
			// Samples lie so far apart that none sees the bit; the counter keeps it.
			name: "pulse between two samples", args: []string{"--telemetry-interval", "2s"},
			plan: `
begin 0.1
rows 1
fake reasons 0x20
train 0.1 3
fake reasons 0x0
train 0.1 until throttle.end`,
			want: []string{"thermal-throttle start info", "thermal-throttle end info"},
			data: []string{"evidence=counters reasons=0x0", "evidence=counters pulses=1 ended=quiet"},
		},
		{
			// From the first step on: nothing to compare the pace with, no slowdown.
			name: "wedge at 611 MHz and 12 W",
			fake: "temp 40 power 11 sm 2411 util 0 pstate 0 reasons 0x1 ctr_swthermal 0 ctr_hwthermal 0 ctr_hwpower 0",
			plan: `
begin 0.1
fake temp 44 power 12 sm 611 util 99 reasons 0x0
train 0.1 until power-wedge
train 0.1 5
fake temp 60 power 62 sm 2405 util 96
train 0.1 until throttle.end
train 0.1 10`,
			want: []string{"power-wedge start warn", "power-wedge end warn"},
			data: []string{"power_w=12 clock_sm_mhz=611 temp_c=44", "ended=recovered"},
			check: func(t *testing.T, p *proc, events []heatEvent) {
				if b, err := os.ReadFile(p.file("summary.txt")); err != nil || !strings.Contains(string(b), "advice: the GPU was in the low-power wedge: shut down") {
					t.Errorf("the summary does not say what helps: %v\n%s", err, b)
				}
				for _, words := range []string{"unplug from the wall and from the unit", "a reboot does not help"} {
					if !strings.Contains(events[0].Msg, words) {
						t.Errorf("not told: %q in %q", words, events[0].Msg)
					}
				}
			},
		},
		{
			// One zone at 95 C, 35 above the die, and the others as they were: that sensor
			// is not believed. Then the same with a warm die, and nobody who agrees.
			name: "hot zone with cool die",
			plan: `
tree sys/class/thermal/thermal_zone3/temp 95000
fake temp 60
train 0.1 20
fake temp 79
train 0.1 20`,
		},
		{
			// The zones of a machine just before it turned itself off.
			name: "hot",
			plan: `
begin 0.1
train 0.1 5
fake temp 82 power 67
tree sys/class/thermal/thermal_zone0/temp 91200
tree sys/class/thermal/thermal_zone4/temp 89800
tree sys/class/thermal/thermal_zone5/temp 91200
train 0.1 until hot-
fake temp 70
tree sys/class/thermal/thermal_zone0/temp 80000
tree sys/class/thermal/thermal_zone4/temp 79000
tree sys/class/thermal/thermal_zone5/temp 80000
train 0.1 until throttle.end
train 0.1 5`,
			want: []string{"hot start warn", "hot end info"},
			data: []string{"", "ended=quiet worst_temp_zone_c=91.2"},
		},
		{
			// One reading fails and comes back, a zone is gone for good.
			name: "sensor dropping out",
			plan: `
begin 0.1
train 0.1 5
fake fail power 999
train 0.1 until sensor.gap
gone sys/class/thermal/thermal_zone2/temp
train 0.1 10
fake fail power 0
train 0.1 until came
train 0.1 5`,
			want: []string{"power_gpu_w gap start warn", "power_gpu_w gap end info"},
		},
		{
			// A plateau, and then the GPU falls off the bus: nobody knows how it goes on.
			name: "GPU lost",
			plan: `
begin 0.1
fake temp 74 power 92 sm 2405 util 97 reasons 0x4
train 0.1 until power-cap
fake fail all 15
train 0.1 until throttle.end
train 0.1 10`,
			want: []string{"power-cap start info", "nvml gap start warn", "power-cap end info"},
			data: []string{"", "", "ended=unknown"},
			check: func(t *testing.T, p *proc, events []heatEvent) {
				// The other sensors go on.
				rows := rowsWith(p, ",78.4,")
				if at, _, _ := strings.Cut(rows[len(rows)-1], ","); at <= events[2].T {
					t.Errorf("the last row with zones is of %s", at)
				}
			},
		},
		{
			// A call that would hang for 400 s and comes back earlier here. Meanwhile the
			// counters have moved, nobody knows when.
			name: "driver call that blocks for 400 s",
			plan: `
begin 0.1
train 0.1 5
fake block 400s
train 0.1 until sensor.gap
train 0.1 70
fake ctr_swthermal +3000000000 block 0s
train 0.1 until came
train 0.1 10`,
			want: []string{"nvml gap start warn", "nvml gap end info"},
		},
		{
			// A clock lock that somebody forgot.
			name: "low cap",
			plan: `
begin 0.1
fake temp 62 power 52 sm 1890 util 97
train 0.1 until low-cap
train 0.1 5`,
			want: []string{"low-cap start warn", "low-cap end warn"},
			data: []string{"certain=false", "certain=false ended=run-ended"},
		},
		{
			// The power firmware itself tells it.
			name: "low cap by the firmware", spbm: true,
			plan: `
begin 0.1
fake temp 62 power 48 sm 2100 util 97
tree sys/class/hwmon/hwmon3/power2_cap 60000000
tree sys/class/hwmon/hwmon3/power2_input 59800000
train 0.1 until low-cap
train 0.1 5`,
			want: []string{"low-cap start warn", "low-cap end warn"},
			data: []string{"certain=true power_cap_pl1_w=60", "certain=true"},
		},
		{
			name: "hardware brake",
			plan: `
begin 0.1
fake reasons 0x80 power 30 sm 1100
train 0.1 10
fake reasons 0x0 power 62 sm 2405
train 0.1 until throttle.end
train 0.1 5`,
			want: []string{"hw-brake start info", "hw-brake end info"},
			data: []string{"reasons=0x80", "reasons=0x80 ended=quiet"},
		},
		{
			name: "idle at 2411 MHz",
			fake: "temp 41 power 11 sm 2411 util 0 pstate 0 reasons 0x1 ctr_swthermal 0 ctr_hwthermal 0 ctr_hwpower 0",
			plan: `
say tokenizing
rows 40`,
		},
	}
}

// TestHeatXid: the kernel's own line about a GPU that is lost comes with it. The kernel
// log is one that only this run sees: a mount namespace hides the machine's, and
// journalctl is played by a script.
func TestHeatXid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if out, err := exec.Command("unshare", "-m", "mount", "-t", "tmpfs", "none", "/var/log").CombinedOutput(); err != nil {
		t.Skipf("no mount namespace can be made here (root is needed): %v %s", err, out)
	}
	if out, err := exec.Command("mkfifo", filepath.Join(dir, "kmsg")).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	log := writeScript(t, dir, "kernel.log", "")
	tools := filepath.Join(dir, "tools")
	if err := os.Mkdir(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	journalctl := writeScript(t, tools, "journalctl", "#!/bin/sh\ncase \" $* \" in *\" -k \"*) exec tail -n 0 -F "+log+" ;; esac\nexec sleep 600\n")
	if err := os.Chmod(journalctl, 0o755); err != nil {
		t.Fatal(err)
	}
	c := heatCase{
		before: []string{"unshare", "-m", "sh", "-c", "mount -t tmpfs none /var/log && mkdir -p /var/log/journal/m && : > /var/log/journal/m/system.journal && mount --bind " +
			filepath.Join(dir, "kmsg") + ` /dev/kmsg && exec "$@"`, "sh"},
		env: []string{"PATH=" + tools + ":" + os.Getenv("PATH")},
		plan: `
begin 0.1
append ` + log + ` [MONO] spark kernel: NVRM: Xid (PCI:000f:01:00): 79, pid=4242, name=python3, GPU has fallen off the bus.
append ` + log + ` [MONO] spark kernel: NVRM: Xid (PCI:000f:01:00): 79, pid=4242, name=python3, GPU has fallen off the bus.
train 0.1 until kernel.xid
fake fail all 15
train 0.1 until sensor.gap
train 0.1 10`,
		want: []string{"xid 79 warn", "nvml gap start warn"},
	}
	checkHeat(t, startHeat(t, dir, c), c)
}
