package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// CanResume says whether the layout's trainer can go on from a checkpoint, and why
// not, or what it would lose.
func CanResume(layout string, c Checkpoint) (ok bool, why string) {
	switch {
	case !c.Complete, c.HasOptimizer:
		return c.Complete, c.Why
	}
	switch canonical(layout) {
	case HF, AIToolkit:
		return true, c.Why
	}
	return false, c.Why
}

// NewestResumable returns the checkpoint with the most steps that the layout's
// trainer can go on from.
func NewestResumable(layout string, all []Checkpoint) (Checkpoint, bool) {
	for _, c := range slices.Backward(all) {
		if ok, _ := CanResume(layout, c); ok {
			return c, true
		}
	}
	return Checkpoint{}, false
}

// TakesNewest says whether trainers of the layout that look for a checkpoint by
// themselves take the one with the highest number, whole or not. The others keep a
// file or a mark that tells them which one is complete.
func TakesNewest(layout string) bool {
	switch canonical(layout) {
	case HF, Diffusers, AutoModel, AIToolkit, NanoChat, Lightning, Composer, LitGPT, Torchtitan, NanoGPT:
		return true
	}
	return false
}

// Want is what ForResume is asked for.
type Want struct {
	// Layout is the one of the trainer; only that of the Hugging Face Trainer ever
	// needs a copy.
	Layout string
	// Micro is the micro-batch for one device in the attempt that resumes; 0 if it
	// stays what it was.
	Micro int64
	// WasMicro is the one in the attempt that saved the checkpoint, for where the
	// checkpoint itself does not tell; 0 is not known.
	WasMicro int64
	// Half stands for Micro where that is not known, only that it is half of what it
	// was when the checkpoint was saved.
	Half bool
	// Into lists folders that may be made for the copy, best first, none of which
	// exists (see Places).
	Into []string
}

// Ready is a checkpoint that can be passed to a trainer.
type Ready struct {
	// Path is the one to pass: the checkpoint's own, or the copy's.
	Path string
	// Note says what was done and why, empty if nothing was.
	Note string
	// Made lists what was created, each to be removed with all that is in it when the
	// run ends. Its files are other names of the checkpoint's own; removing them takes
	// nothing from it.
	Made []string
}

// Places returns the folders in which ForResume may make its copy: beside the
// output folder, or in it under a name that no trainer takes for a checkpoint
// (within a container only that one may be mounted). Those on the checkpoint's own
// file system, where files can have a second name, come first.
func Places(c Checkpoint, outputDir, runID string, attempt int) []string {
	name := fmt.Sprintf(".sparkrun-%s-a%d-%s", runID, attempt, filepath.Base(c.Path))
	parents := []string{filepath.Dir(filepath.Clean(outputDir)), filepath.Clean(outputDir)}
	if p, err := filepath.EvalSymlinks(outputDir); err == nil && filepath.Dir(p) != parents[0] {
		parents = append(parents, filepath.Dir(p))
	}
	home, known := device(c.Path)
	var near, far []string
	for i, p := range parents {
		if slices.Contains(parents[:i], p) {
			continue
		}
		d, ok := device(p)
		if known && ok && d == home {
			near = append(near, filepath.Join(p, name))
		} else {
			far = append(far, filepath.Join(p, name))
		}
	}
	return append(near, far...)
}

func device(path string) (uint64, bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return uint64(st.Dev), true //nolint:unconvert // its type differs between platforms
}

// ForResume returns the path with which a trainer goes on from a checkpoint with
// the micro-batch wanted.
//
// transformers 4.36 to 5.1 take the micro-batch of the resumed run from
// train_batch_size in trainer_state.json, whatever was asked for: after a rung that
// halves it, the run would have the old micro-batch with twice the accumulation,
// die again, and not be the same experiment. Where that number is not the new one,
// the checkpoint is passed as a copy with the number changed. The copy's other files
// are second names of the checkpoint's (hard links), or links to them; no byte, no
// time of writing and no mode of the checkpoint's own changes, only the count of
// names of its files while the copy lasts. null is never written: transformers
// divides the number.
func ForResume(c Checkpoint, w Want) (Ready, error) {
	same := Ready{Path: c.Path}
	if canonical(w.Layout) != HF || w.Micro == 0 && !w.Half {
		return same, nil
	}
	state := filepath.Join(c.Path, "trainer_state.json")
	data, err := readSmall(state, maxState)
	if err != nil {
		return Ready{}, fmt.Errorf("%s cannot be read: %w", state, err)
	}
	var st trainerState
	if err := json.Unmarshal(lenient(data), &st); err != nil {
		return Ready{}, fmt.Errorf("%s is torn: %w", state, err)
	}
	if st.TrainBatchSize == nil {
		return same, nil // before 4.36: nothing is taken from it
	}
	was, number, err := batchSizes(c.Path, st, w)
	if err != nil {
		return Ready{}, fmt.Errorf("%s: %w", state, err)
	}
	if was == number {
		return same, nil
	}
	changed, err := setTopLevel(data, "train_batch_size", strconv.FormatInt(number, 10))
	if err != nil {
		return Ready{}, fmt.Errorf("%s: %w", state, err)
	}
	if len(w.Into) == 0 {
		return Ready{}, errors.New("there is no place for the copy of the checkpoint that the smaller micro-batch needs")
	}
	var errs []error
	for _, into := range w.Into {
		path, how, err := copyOf(c.Path, into, changed)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		return Ready{Path: path, Made: []string{into}, Note: fmt.Sprintf("the checkpoint is passed as a copy (%s) whose trainer_state.json says train_batch_size %d instead of %s: transformers 4.36 to 5.1 would take the old one from there", how, number, string(st.TrainBatchSize))}, nil
	}
	return Ready{}, fmt.Errorf("the copy of the checkpoint that the smaller micro-batch needs cannot be made: %w", errors.Join(errs...))
}

// batchSizes returns the number in the state (0 for null) and the one that must
// stand there: the new micro-batch times the devices that the old one was counted
// with, more than one only where one process drives several.
func batchSizes(dir string, st trainerState, w Want) (was, number int64, err error) {
	if string(st.TrainBatchSize) == "null" && w.Micro > 0 {
		return 0, w.Micro, nil
	}
	was, err = strconv.ParseInt(string(st.TrainBatchSize), 10, 64)
	if err != nil || was < 1 {
		return 0, 0, fmt.Errorf("train_batch_size is %s, no count of rows", quoteShort(string(st.TrainBatchSize)))
	}
	if w.Half {
		if was%2 != 0 {
			return 0, 0, fmt.Errorf("train_batch_size is %d, which has no half", was)
		}
		return was, was / 2, nil
	}
	args := torchPickle(filepath.Join(dir, "training_args.bin"))
	if micro, ok := pickleInt(args, "per_device_train_batch_size"); ok && micro > 0 && was%micro == 0 {
		return was, w.Micro * (was / micro), nil
	}
	if w.WasMicro > 0 && was*w.Micro%w.WasMicro == 0 && was*w.Micro >= w.WasMicro {
		return was, was * w.Micro / w.WasMicro, nil
	}
	return 0, 0, fmt.Errorf("train_batch_size is %d, and what that is with a micro-batch of %d cannot be told", was, w.Micro)
}

// setTopLevel replaces the value of a key of the outermost object, and no other
// byte. Python's JSON may hold NaN, which is why it is not decoded and encoded.
func setTopLevel(data []byte, key, value string) ([]byte, error) {
	quoted, err := json.Marshal(key)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	depth, done, found := 0, 0, false
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			end := stringEnd(data, i)
			if end < 0 {
				return nil, errors.New("it is torn")
			}
			word := data[i:end]
			i = end - 1
			if depth != 1 || !bytes.Equal(word, quoted) {
				continue
			}
			at := end + spaces(data[end:])
			if at >= len(data) || data[at] != ':' {
				continue
			}
			at += 1 + spaces(data[at+1:])
			stop := at + bytes.IndexAny(data[at:], ",}\n\r\t ")
			if stop < at {
				return nil, errors.New("it is torn")
			}
			out.Write(data[done:at])
			out.WriteString(value)
			done, i, found = stop, stop-1, true
		}
	}
	if !found {
		return nil, fmt.Errorf("%s does not stand where it should", key)
	}
	out.Write(data[done:])
	var check map[string]json.RawMessage
	if err := json.Unmarshal(lenient(out.Bytes()), &check); err != nil || string(check[key]) != value {
		return nil, fmt.Errorf("%s cannot be changed alone", key)
	}
	return out.Bytes(), nil
}

// stringEnd returns where the JSON string that begins at i ends, -1 if it does not.
func stringEnd(data []byte, i int) int {
	for i++; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

func spaces(data []byte) int { return len(data) - len(bytes.TrimLeft(data, " \t\r\n")) }

const (
	hardLinks = "hard links"
	softLinks = "links"
	// smallFile is what is copied where nothing can be linked.
	smallFile = 16 << 20
)

// copier makes the copy of one checkpoint.
type copier struct {
	how   string
	files int
}

// copyOf makes the folder into, and in it the copy, under the checkpoint's own name
// since a trainer may read the step from that. What it made is gone again if it
// fails.
func copyOf(from, into string, state []byte) (path, how string, err error) {
	real, err := filepath.EvalSymlinks(from)
	if err != nil {
		return "", "", fmt.Errorf("%s cannot be followed: %w", from, err)
	}
	if err := os.Mkdir(into, 0o777); err != nil {
		return "", "", fmt.Errorf("making the folder for the copy: %w", err)
	}
	c := &copier{how: hardLinks}
	path = filepath.Join(into, filepath.Base(from))
	if err := c.folder(real, path, 0); err == nil {
		err = c.state(filepath.Join(real, "trainer_state.json"), filepath.Join(path, "trainer_state.json"), state)
		if err == nil {
			return path, c.how, nil
		}
		return "", "", errors.Join(err, os.RemoveAll(into))
	}
	return "", "", errors.Join(err, os.RemoveAll(into))
}

// state writes the changed trainer_state.json.
func (c *copier) state(old, path string, data []byte) error {
	info, err := os.Stat(old)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

func (c *copier) folder(from, to string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s is nested too deep", from)
	}
	if err := os.Mkdir(to, 0o777); err != nil {
		return err
	}
	list, err := readDir(from, nil)
	if err != nil {
		return err
	}
	for _, e := range list {
		if c.files++; c.files > maxFiles {
			return fmt.Errorf("%s has more files than a checkpoint has", from)
		}
		path := filepath.Join(to, e.name)
		switch {
		case depth == 0 && e.name == "trainer_state.json":
		case e.info == nil: // a link to nowhere, or gone: nobody reads it
		case e.dir && !e.link:
			err = c.folder(e.path, path, depth+1)
		case e.link:
			err = soft(e.path, path)
		case e.info.Mode().IsRegular():
			err = c.file(e, path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// file gives a file a second name; where its file system or the kernel does not
// allow that (another one, a file of somebody else's), a link leads to it.
func (c *copier) file(e entry, path string) error {
	if c.how == hardLinks {
		err := os.Link(e.path, path)
		if err == nil {
			return nil
		}
		if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOSPC) {
			return err
		}
		c.how = softLinks
	}
	err := soft(e.path, path)
	if err == nil || e.size() > smallFile {
		return err
	}
	return duplicate(e.path, path, e.info.Mode().Perm())
}

// soft makes a link to what a path leads to, relative, so that it holds where the
// same folders have another name in front, as in a container.
func soft(target, path string) error {
	target, err := filepath.EvalSymlinks(target)
	if err != nil {
		return err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	if target, err = filepath.Abs(target); err != nil {
		return err
	}
	rel, err := filepath.Rel(dir, target)
	if err != nil {
		return err
	}
	return os.Symlink(rel, path)
}

func duplicate(from, to string, mode fs.FileMode) error {
	in, _, err := openFile(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
