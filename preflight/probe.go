package preflight

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/lazyre"
)

// ImageProbe is what an image said of its Python when it was started once to be asked
// (`sparkrun preflight --probe-image`): an answer kept for as long as the image has the
// same ID.
type ImageProbe struct {
	Schema string    `json:"schema"`
	ID     string    `json:"id"`
	Image  string    `json:"image"`
	Time   time.Time `json:"time"`
	// Asked is the Python as the command names it, such as python3 or /opt/venv/bin/python.
	Asked string `json:"asked"`
	// Interpreter is its path inside, Python its version, Machine what it was built for.
	Interpreter string   `json:"interpreter"`
	Python      string   `json:"python"`
	Machine     string   `json:"machine"`
	Sites       []string `json:"sites"`
	// Torch is the path of the torch package, "" for none, and TorchVersion the text of
	// its version file.
	Torch        string            `json:"torch"`
	TorchVersion string            `json:"torch_version_py"`
	Packages     map[string]string `json:"packages"`
}

// ProbeSchema is the schema of a kept probe.
const ProbeSchema = "sparkrun.image/1"

// ProbeScript is what an image's Python is given with -c. It reads names and metadata,
// imports nothing of what it finds, and prints one line.
//
//go:embed probe.py
var ProbeScript string

const (
	probeMarker = "sparkrun-image:"
	// maxProbe bounds the line; an image with 1000 packages makes 60 KiB.
	maxProbe = 1 << 20
	// maxProbed bounds the folders and packages that are kept.
	maxProbed = 5000
)

var imageID = lazyre.New(`^(?:sha256:)?[0-9a-f]{64}$`)

// ParseProbe reads what ProbeScript printed. Other lines, as an entry point may print,
// are left alone.
func ParseProbe(out []byte) (ImageProbe, error) {
	for line := range bytes.Lines(out) {
		text, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte(probeMarker))
		if !ok {
			continue
		}
		if len(text) > maxProbe {
			return ImageProbe{}, errors.New("the image's Python answers with more than 1 MiB")
		}
		var p ImageProbe
		if err := json.Unmarshal(text, &p); err != nil {
			return ImageProbe{}, fmt.Errorf("the image's Python answers with something else than was asked for: %w", err)
		}
		p.Schema = ProbeSchema
		return p, p.check()
	}
	return ImageProbe{}, errors.New("the image's Python did not answer")
}

// ReadProbe reads a kept probe of the image with that ID.
func ReadProbe(data []byte, id string) (ImageProbe, error) {
	var p ImageProbe
	if err := json.Unmarshal(data, &p); err != nil {
		return ImageProbe{}, fmt.Errorf("the kept probe of the image: %w", err)
	}
	if p.Schema != ProbeSchema || p.ID != id || !imageID.MatchString(id) {
		return ImageProbe{}, errors.New("the kept probe is of another image or form")
	}
	return p, p.check()
}

// JSON is the form in which a probe is kept.
func (p ImageProbe) JSON() ([]byte, error) {
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("the answer of the image: %w", err)
	}
	return append(b, '\n'), nil
}

// InsidePython is the Python that a command names behind its image, such as python3 or
// /opt/venv/bin/python; "" where it names none.
func InsidePython(j job.Job) string {
	if j.Container == nil {
		return ""
	}
	return insidePython(j.Argv, j.Container.Image)
}

func (p ImageProbe) check() error {
	if !path.IsAbs(p.Interpreter) || len(p.Sites) > maxProbed || len(p.Packages) > maxProbed || len(p.TorchVersion) > maxRead {
		return errors.New("the image's Python answers with something else than was asked for")
	}
	return nil
}

// facts are what a probe tells, as if the image's files had been read.
func (p ImageProbe) facts(wanted []string) pythonFacts {
	f := pythonFacts{interp: p.Interpreter, sites: p.Sites, exact: true, packages: map[string]string{}}
	for name, version := range p.Packages {
		name = strings.ReplaceAll(strings.ToLower(name), "-", "_")
		if slices.Contains(wanted, name) {
			f.packages[name] = version
		}
	}
	f.torch = torchBuild{state: torchAbsent, interp: p.Interpreter}
	if p.Torch != "" {
		f.torch.state, f.torch.from = torchFound, p.Torch
		f.torch.fromVersionFile(path.Join(p.Torch, "version.py"), []byte(p.TorchVersion))
		if v := f.packages["torch"]; f.torch.version == "" {
			f.torch.version = v
		}
		if f.torch.cuda == "" && !f.torch.noCUDA {
			f.torch.fromTag(path.Join(p.Torch, "version.py"))
		}
	}
	return f
}

// Interrupted is the reason of something that the user ended before it had answered.
const Interrupted = "interrupted"

// withProbe adds to G9 that the image was to be asked and did not answer: what is said of
// what is in it rests on less then.
func withProbe(f Finding, problem string) Finding {
	if problem == "" {
		return f
	}
	f.Evidence = append(slices.Clone(f.Evidence), "--probe-image: "+problem)
	switch {
	case f.Status == Fail, f.Status == Warn:
	case problem == Interrupted:
		f.Status, f.ByDesign, f.Line = Info, false, ""
		f.Detail = "interrupted before the image had answered"
	default:
		f.Status, f.ByDesign, f.Line = Skip, false, ""
		f.Detail = "the image was to be asked what is in it, and gave no answer: " + problem
		f.Fix = "start the image by hand, with python3 --version in place of the command: a training in it starts in the same way"
	}
	return f
}
