package oom

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// preflightNumber is how an advice names a check of preflight.
var preflightNumber = regexp.MustCompile("preflight [GH]\\d+\\b.*`sparkrun preflight|`sparkrun preflight.*preflight [GH]\\d+\\b|`sparkrun preflight` has no number for it")

// Whoever is told that the environment is wrong is told which check of preflight looks at
// it and what to type, and the summary, which cuts at 300 letters, shows all of it.
func TestEnvironmentAdviceNamesTheCheck(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	causes := map[string]string{}
	for i := range tab.Patterns {
		if p := &tab.Patterns[i]; p.Reason != "" && p.Cause != "" {
			causes[p.Cause] = p.Reason
		}
	}
	if len(causes) < 10 {
		t.Fatalf("only %d causes of the environment: the test looks past the table", len(causes))
	}
	for cause, reason := range causes {
		v := Verdict{Answer: NotOOM, Reason: reason, Cause: cause}
		advice := tab.advice(&v, reason)
		if len(advice) != 1 {
			t.Errorf("%s: %d pieces of advice, want one: %q", cause, len(advice), advice)
			continue
		}
		a := advice[0]
		if !preflightNumber.MatchString(a) {
			t.Errorf("%s: names no check of preflight: %s", cause, a)
		}
		// What names a command of sparkrun behind a colon is no advice of the summary.
		if len(a) > 300 || strings.Contains(a, ": sparkrun ") {
			t.Errorf("%s: %d letters, or no line of the summary: %s", cause, len(a), a)
		}
	}
}

// The exact fixes, by the words of the death.
func TestEnvironmentAdviceByWords(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	for line, want := range map[string][]string{
		"ImportError: torchao 0.13.0, but only versions above 0.16.0 are supported":                                              {"G9", `pip install -U "torchao==0.17.0"`},
		"triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error":                                       {"H16", "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas"},
		"ImportError: /a.so: undefined symbol: cudaGraphInstantiateWithFlags":                                                    {"G1", "whl/cu130", "container"},
		"ImportError: libcudart.so.12: cannot open shared object file: No such file or directory":                                {"G1", "whl/cu130", "container"},
		"OSError: libcudart.so.13: cannot open shared object file: No such file or directory":                                    {"G1", "H1", "not of the wheel"},
		"AssertionError: Torch not compiled with CUDA enabled":                                                                   {"G1", "whl/cu130"},
		"RuntimeError: CUDA error: no kernel image is available for execution on the device":                                     {"G1", "G7", "TORCH_CUDA_ARCH_LIST"},
		"RuntimeError: Found no NVIDIA driver on your system.":                                                                   {"H1", "H7", "--gpus all", "dmesg"},
		"RuntimeError: No CUDA GPUs are available":                                                                               {"H1", "H7", "CUDA_VISIBLE_DEVICES", "empty"},
		"ValueError: When padding_free=True without packing, max_length is not enforced":                                         {"padding_free=False"},
		"ModuleNotFoundError: No module named 'trl'":                                                                             {"G9"},
		"ImportError: /a.so: undefined symbol: PyUnicode_Of_Another_Python":                                                      {"G9"},
		"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it is installed.":          {"H1", "dmesg", "lsmod", "/proc/driver/nvidia/version"},
		`docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].`:                      {"H7", "nvidia-ctk"},
		"ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm). raised it": {"H5", "H7", "--ipc=host"},
	} {
		log := line
		if exceptionLine.MatchString(line) && !strings.HasPrefix(line, "docker") && !strings.HasPrefix(line, "ERROR") {
			log = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n" + line
		}
		v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, Output: scanText(tab, log)})
		if len(v.Advice) == 0 {
			t.Errorf("%s: %s %s: no advice", line, v.Answer, v.Reason)
			continue
		}
		for _, w := range want {
			if !strings.Contains(v.Advice[0], w) {
				t.Errorf("%s: %s %s: %q is not in %s", line, v.Answer, v.Reason, w, v.Advice[0])
			}
		}
		if slices.ContainsFunc(v.Advice, func(a string) bool { return strings.Contains(a, "CUDA_LAUNCH_BLOCKING") }) {
			t.Errorf("%s: sends into a search for a kernel's bug: %q", line, v.Advice)
		}
	}
}

// A ptxas that was killed says so with a number: that is no ptxas which is too old.
func TestKilledPtxasIsNoOldOne(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	log := "Traceback (most recent call last):\n  File \"a.py\", line 1, in make_cubin\ntriton.runtime.errors.PTXASError: PTXAS error: `ptxas` failed with error code -9"
	v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, Output: scanText(tab, log)})
	if v.Cause != "" || v.Reason != "exception" {
		t.Errorf("%s %s, cause %q", v.Answer, v.Reason, v.Cause)
	}
}

// What stands in a traceback of its own further down is no continuation of the first.
func TestOnlyTheMessageContinues(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	const first = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nKeyError: 'x'\n"
	for name, rest := range map[string]string{
		"a traceback of its own": "Traceback (most recent call last):\n  File \"a.py\", line 2, in done\nImportError: Found an incompatible version of torchao.",
		"far below":              strings.Repeat("shutting down\n", 8) + "/v/a.so: undefined symbol: _ZN3c104cuda9SetDeviceEa",
		"another rank":           "[rank1]: /v/a.so: undefined symbol: _ZN3c104cuda9SetDeviceEa",
	} {
		v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, Output: scanText(tab, first+rest)})
		if v.Reason != "exception" || v.Cause != "" || v.Quote != "KeyError: 'x'" {
			t.Errorf("%s: %s, cause %q, %s", name, v.Reason, v.Cause, v.Quote)
		}
	}
}

// Who was stopped by hand after such a line is told nothing about the environment.
func TestCauseIsOfTheReason(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	log := "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nImportError: Found an incompatible version of torchao."
	ev := Evidence{
		Exit: Exit{Known: true, Code: 130, T: t0}, Signals: []SignalSent{{Name: "SIGINT", By: "user"}}, Output: scanText(tab, log),
	}
	if v := tab.Decide(ev); v.Reason != "user" || v.Cause != "" || strings.Contains(strings.Join(v.Advice, ""), "preflight") {
		t.Errorf("%s, cause %q, %q", v.Reason, v.Cause, v.Advice)
	}
	ev.Signals = nil
	ev.Exit.Code = 1
	if v := tab.Decide(ev); v.Reason != "import" || v.Cause != "torchao" {
		t.Errorf("%s, cause %q", v.Reason, v.Cause)
	}
}
