// Package examples holds the training script of the README. The tests here run it as
// a person would: sparkrun's own main test stands on what they promise.
package examples

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// result is what one call of train.py left behind.
type result struct {
	stdout, stderr string
	status         int
}

// losses returns the text of every loss that was logged: exact, so that two runs
// can be compared to the last digit.
func (r result) losses() []string {
	var out []string
	for _, m := range regexp.MustCompile(`(?m)^\{'loss': ([0-9.]+), 'grad_norm': [0-9.e-]+, 'learning_rate': [0-9.e-]+, 'epoch': [0-9.]+\}$`).FindAllStringSubmatch(r.stdout, -1) {
		out = append(out, m[1])
	}
	return out
}

// train runs the script with a minute's patience.
func train(t *testing.T, args ...string) result {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3 in PATH")
	}
	// Only files that the test itself looks at count for go test's cache.
	if _, err := os.Stat("train.py"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, append([]string{"train.py"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("running train.py: %v", err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// mustTrain is train for calls that have to succeed.
func mustTrain(t *testing.T, args ...string) result {
	t.Helper()
	r := train(t, args...)
	if r.status != 0 {
		t.Fatalf("train.py %s: status %d\n%s", strings.Join(args, " "), r.status, r.stderr)
	}
	return r
}

func TestTrainLearnsAndLogsLikeTheTrainer(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	r := mustTrain(t, "--max_length", "512", "--max_steps", "20", "--logging_steps", "5", "--save_steps", "10", "--output_dir", out)

	losses := r.losses()
	if len(losses) != 4 {
		t.Fatalf("%d loss lines instead of 4 in\n%s", len(losses), r.stdout)
	}
	first, _ := strconv.ParseFloat(losses[0], 64)
	last, _ := strconv.ParseFloat(losses[3], 64)
	// ln 256 = 5.55 is where an untrained byte model stands; bigrams of source text reach about 2.4.
	if first > 5.55 || last > first-1 {
		t.Errorf("loss went from %v to %v, which is no learning", first, last)
	}
	if !regexp.MustCompile(`(?m)^\{'train_runtime': [0-9.]+, 'train_samples_per_second': .*'train_loss': .*\}$`).MatchString(r.stdout) {
		t.Errorf("no train_runtime line in\n%s", r.stdout)
	}
	if !regexp.MustCompile(`\r100%\|█+\| 20/20 \[\d\d:\d\d<00:00, [0-9.]+(it/s|s/it)\] *\n$`).MatchString(r.stderr) {
		t.Errorf("stderr does not end in a full bar: %q", r.stderr)
	}
	for _, step := range []int{10, 20} {
		checkCheckpoint(t, filepath.Join(out, fmt.Sprintf("checkpoint-%d", step)), step)
	}
	checkSafetensors(t, filepath.Join(out, "model.safetensors"), "bigram.weight")
}

func TestTrainResumesWhereItStopped(t *testing.T) {
	t.Parallel()
	whole, half := t.TempDir(), t.TempDir()
	common := []string{"--max_length", "256", "--max_steps", "20", "--logging_steps", "2", "--save_steps", "10", "--output_dir"}
	want := mustTrain(t, append(common, whole)...).losses()

	checkpoint := filepath.Join(whole, "checkpoint-10")
	explicit := mustTrain(t, append(common, half, "--resume_from_checkpoint", checkpoint)...)
	if diff := cmp.Diff(want[5:], explicit.losses()); diff != "" {
		t.Errorf("the resumed run has another loss curve (-whole +resumed):\n%s", diff)
	}
	if !strings.Contains(explicit.stdout, "Resuming from "+checkpoint+" at step 10") {
		t.Errorf("the resumed run does not say where it starts:\n%s", explicit.stdout)
	}

	// A folder without trainer_state.json was being written when the run died: not a choice.
	if err := os.Remove(filepath.Join(whole, "checkpoint-20", "trainer_state.json")); err != nil {
		t.Fatal(err)
	}
	newest := mustTrain(t, append(common, whole, "--resume_from_checkpoint", "True")...)
	if diff := cmp.Diff(want[5:], newest.losses()); diff != "" {
		t.Errorf("True did not resume from the newest complete checkpoint (-whole +resumed):\n%s", diff)
	}
}

// Halving the micro-batch and doubling the accumulation is what sparkrun does when it
// promises the same training: it must be the same here to the last digit.
func TestTrainKeepsTheEffectiveBatch(t *testing.T) {
	t.Parallel()
	common := []string{"--max_length", "256", "--max_steps", "6", "--logging_steps", "1", "--save_steps", "0", "--output_dir", t.TempDir()}
	want := mustTrain(t, append(common, "--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "1")...).losses()
	got := mustTrain(t, append(common, "--per-device-train-batch-size=4", "--gradient-accumulation-steps=2")...).losses()
	if len(want) != 6 {
		t.Fatalf("%d loss lines instead of 6", len(want))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("4 x 2 trains differently from 8 x 1 (-8x1 +4x2):\n%s", diff)
	}
}

// The numbers of the README's main command: 4096 x 4 needs 160 MiB, 2048 x 4 needs 80.
func TestTrainMemoryFollowsLengthTimesBatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		length, batch int
		limit         string
		fits          bool
	}{
		{4096, 4, "128M", false},
		{2048, 4, "128M", true},
		{1024, 4, "128M", true},
		{4096, 2, "128M", true},
		{4096, 8, "300M", false},
		{2048, 8, "300M", true},
		{4096, 4, "1M", false},
	} {
		t.Run(fmt.Sprintf("%dx%d in %s", c.length, c.batch, c.limit), func(t *testing.T) {
			t.Parallel()
			r := train(t, "--max_length", strconv.Itoa(c.length), "--per_device_train_batch_size", strconv.Itoa(c.batch),
				"--memory-limit", c.limit, "--max_steps", "2", "--save_steps", "0", "--output_dir", t.TempDir())
			if c.fits {
				if r.status != 0 {
					t.Errorf("does not fit: status %d\n%s", r.status, r.stderr)
				}
				return
			}
			if r.status != 1 {
				t.Errorf("status %d instead of 1", r.status)
			}
			if !strings.Contains(r.stderr, "Traceback (most recent call last):\n") || !strings.HasSuffix(r.stderr, "\nMemoryError\n") {
				t.Errorf("stderr is no traceback of a MemoryError:\n%s", r.stderr)
			}
			if !strings.Contains(r.stderr, "in train_step") {
				t.Errorf("the error is not from inside a training step:\n%s", r.stderr)
			}
		})
	}
}

func TestTrainRefusesNonsense(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--max_length", "many"},
		{"--max_length", "0"},
		{"--memory-limit", "plenty"},
		{"--memory-limit", "-3M"},
		{"--packing", "perhaps"},
		{"--no_such_flag"},
		{"--max_len", "128"}, // argparse would take it for max_length; a script that guesses is no example
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			if r := train(t, args...); r.status != 2 || !strings.Contains(r.stderr, "usage:") {
				t.Errorf("status %d, stderr %q; want argparse's status 2 and usage", r.status, r.stderr)
			}
		})
	}
}

// DGX OS brings 3.12, Debian 12 brings 3.11, an old container 3.8.
func TestTrainParsesAsPython38(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3 in PATH")
	}
	source, err := os.ReadFile("train.py")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-c", "import ast, sys; ast.parse(sys.stdin.buffer.read(), feature_version=(3, 8))")
	cmd.Stdin = bytes.NewReader(source)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("not Python 3.8: %v\n%s", err, out)
	}
}

// checkCheckpoint holds the folder against what a resume needs.
func checkCheckpoint(t *testing.T, folder string, step int) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(folder, "trainer_state.json"))
	if err != nil {
		t.Error(err)
		return
	}
	var state struct {
		GlobalStep     int              `json:"global_step"`
		MaxSteps       int              `json:"max_steps"`
		TrainBatchSize int              `json:"train_batch_size"`
		LogHistory     []map[string]any `json:"log_history"`
	}
	if err := json.Unmarshal(raw, &state); err != nil {
		t.Errorf("%s: %v", folder, err)
	}
	if state.GlobalStep != step || state.MaxSteps != 20 || state.TrainBatchSize != 8 || len(state.LogHistory) != step/5 {
		t.Errorf("%s: trainer_state.json says %+v", folder, state)
	}
	checkSafetensors(t, filepath.Join(folder, "model.safetensors"), "bigram.weight")
	checkSafetensors(t, filepath.Join(folder, "optimizer.safetensors"), "exp_avg", "exp_avg_sq")
}

// checkSafetensors reads a file as any safetensors reader would and demands that the
// header's offsets fit the file to the byte.
func checkSafetensors(t *testing.T, path string, names ...string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil || len(data) < 8 {
		t.Errorf("%s: %d bytes, %v", path, len(data), err)
		return
	}
	size := binary.LittleEndian.Uint64(data)
	if size > uint64(len(data)-8) {
		t.Errorf("%s: a header of %d bytes in a file of %d", path, size, len(data))
		return
	}
	var header map[string]struct {
		DType   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets []uint64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(data[8:8+size], &header); err != nil {
		t.Errorf("%s: %v", path, err)
		return
	}
	var end uint64
	for _, name := range names {
		tensor := header[name]
		want := []uint64{end, end + 8*256*256}
		if tensor.DType != "F64" || !cmp.Equal(tensor.Shape, []int{256, 256}) || !cmp.Equal(tensor.Offsets, want) {
			t.Errorf("%s: tensor %s is %+v", path, name, tensor)
		}
		end = want[1]
	}
	if got := uint64(len(data)) - 8 - size; got != end {
		t.Errorf("%s: %d bytes of data, the header promises %d", path, got, end)
	}
}
