package modelsize

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// maxHeader bounds the header of one file. The format allows 100 MB; the largest ones
// in use have a few.
const (
	maxHeader = 32 << 20
	// maxHeaders bounds those of one model together: a mixture of half a million tensors
	// has some 80 MB.
	maxHeaders = 128 << 20
)

// bitsOf is the width of each type of the format.
var bitsOf = map[string]int64{
	"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64,
	"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
	"I64": 64, "U64": 64, "I32": 32, "U32": 32, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8,
}

// entry is one tensor of a header.
type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// elements multiplies the shape; false where that is no sensible number.
func (e entry) elements() (int64, bool) {
	n := int64(1)
	for _, d := range e.Shape {
		if d < 0 || d > 0 && n > math.MaxInt64/64/d {
			return 0, false
		}
		n *= d
	}
	return n, true
}

// count sums up the tensors of all files of a model.
type count struct {
	files []tensor
	bytes int64
	// headers is what was read so far.
	headers uint64
	params  map[string]int64
}

// tensor is an entry that has been checked.
type tensor struct {
	name, dtype string
	n           int64
	dims        int
	// first and last are the outer dimensions of the shape; 0 where it has none.
	first, last int64
	bytes       int64
}

// file reads the header of one file and proves that its tensors are there.
func (c *count) file(p Place, path string) error {
	f, err := p.openRegular(path)
	if err != nil {
		return fmt.Errorf("reading weights: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("reading weights: %w", err)
	}
	var head [8]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return fmt.Errorf("%s is torn: it has no header", path)
	}
	n := binary.LittleEndian.Uint64(head[:])
	size := uint64(info.Size()) - 8
	switch {
	case n > size:
		return fmt.Errorf("%s is torn or no safetensors file: a header of %d bytes in a file of %d", path, n, info.Size())
	case n > maxHeader:
		return fmt.Errorf("%s has a header of %d MiB, which is too much to be one", path, n>>20)
	case n < 2:
		return fmt.Errorf("%s has no header", path)
	}
	if c.headers += n; c.headers > maxHeaders {
		return fmt.Errorf("the headers of the files up to %s have more than %d MiB together, which is too much to be those of one model", path, maxHeaders>>20)
	}
	tensors, end, err := readHeader(io.LimitReader(f, int64(n)))
	if err != nil {
		return fmt.Errorf("the header of %s: %w", path, err)
	}
	if have := int64(size - n); end != have {
		return fmt.Errorf("%s is torn: its header promises %d bytes of tensors and there are %d", path, end, have)
	}
	c.files = append(c.files, tensors...)
	c.bytes += info.Size()
	return nil
}

// readHeader reads the tensors of a header one after the other, so that memory goes
// with what stands there and not with what it claims.
func readHeader(r io.Reader) (tensors []tensor, end int64, err error) {
	d := json.NewDecoder(bufio.NewReader(r))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, 0, errors.New("it is no JSON object")
	}
	var sum int64
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, 0, err
		}
		name, ok := key.(string)
		if !ok {
			return nil, 0, errors.New("a tensor without a name")
		}
		if name == "__metadata__" {
			var skip json.RawMessage
			if err := d.Decode(&skip); err != nil {
				return nil, 0, err
			}
			continue
		}
		var e entry
		if err := d.Decode(&e); err != nil {
			return nil, 0, fmt.Errorf("tensor %.80q: %w", name, err)
		}
		n, ok := e.elements()
		bits, known := bitsOf[e.DType]
		begin, stop := e.Offsets[0], e.Offsets[1]
		switch {
		case !ok || begin < 0 || stop < begin:
			return nil, 0, fmt.Errorf("tensor %.80q has an impossible shape or place", name)
		case known && (n*bits+7)/8 != stop-begin:
			return nil, 0, fmt.Errorf("tensor %.80q needs %d bytes and has %d", name, (n*bits+7)/8, stop-begin)
		case sum > math.MaxInt64-(stop-begin):
			return nil, 0, fmt.Errorf("tensor %.80q is too large", name)
		}
		sum += stop - begin
		end = max(end, stop)
		t := tensor{name: name, dtype: e.DType, n: n, dims: len(e.Shape), bytes: stop - begin}
		if t.dims > 0 {
			t.first, t.last = e.Shape[0], e.Shape[t.dims-1]
		}
		tensors = append(tensors, t)
	}
	if _, err := d.Token(); err != nil {
		return nil, 0, fmt.Errorf("it ends too early: %w", err)
	}
	if sum != end {
		return nil, 0, fmt.Errorf("its tensors take %d bytes and reach to %d", sum, end)
	}
	return tensors, end, nil
}

// Suffixes of what quantisers keep beside the weights: scales, zero points, states.
var besides = []string{
	".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", // bitsandbytes, 4 bit
	".SCB", ".weight_format", // bitsandbytes, 8 bit
	".qzeros", ".scales", ".g_idx", // gptq, awq
	"_scales", "_scale_inv", "_scale", "_scale_2", "_zero_point", "_shape", "_global_scale", "_g_idx", // mxfp4, fp8, nvfp4, compressed-tensors
	"_scale_bias", ".inv_freq", ".position_ids", ".masked_bias", ".num_batches_tracked",
}

const state4Bit = ".quant_state.bitsandbytes__"

// size counts what the tensors stand for.
func (c *count) size(cfg config, path string) Size {
	s := Size{Bytes: c.bytes, Exact: true, Quantised: cfg.quantised, Experts: cfg.experts, ActiveExperts: cfg.active, Path: path, From: "counted in the headers of its weights"}
	states := map[string]bool{}
	seen := map[string]bool{}
	for _, t := range c.files {
		if at := strings.Index(t.name, state4Bit); at >= 0 {
			states[t.name[:at]] = true
		}
		if t.dtype == "U8" && strings.HasSuffix(t.name, "_blocks") {
			states[t.name] = true
		}
		seen[t.name] = true
	}
	c.params = map[string]int64{}
	note := func(format string) {
		if s.Quantised == "" {
			s.Quantised = format
		}
	}
	for _, t := range c.files {
		s.TensorBytes += t.bytes
		per := int64(1)
		switch {
		case strings.Contains(t.name, state4Bit) || beside(t.name):
			continue
		case states[t.name] && strings.HasSuffix(t.name, "_blocks"):
			per = 2
			note("mxfp4")
		case states[t.name]:
			per = 2
			note("bnb-4bit")
		case strings.HasSuffix(t.name, ".qweight") || strings.HasSuffix(t.name, ".weight_packed"):
			per = packed(t.dtype, cfg.bits)
			if per == 0 {
				per, s.Exact = packed(t.dtype, 4), false
			}
			format := "awq"
			if seen[strings.TrimSuffix(t.name, "qweight")+"g_idx"] {
				format = "gptq"
			}
			if strings.HasSuffix(t.name, ".weight_packed") {
				format = "compressed-tensors"
			}
			note(format)
		case t.dtype == "U8" && seen[t.name+"_scale"]:
			per = 2 // modelopt's nvfp4
			note("nvfp4")
		case t.dtype == "I8" && seen[strings.TrimSuffix(t.name, "weight")+"SCB"]:
			note("bnb-8bit")
		case strings.HasPrefix(t.dtype, "F8_"):
			note("fp8")
		case strings.HasPrefix(t.dtype, "F"), t.dtype == "BF16", t.dtype == "C64":
		case cfg.quantised != "":
			// A format that is not known here: what its integers stand for is a guess.
			s.Exact = false
			if p := packed(t.dtype, cfg.bits); p > 0 {
				per = p
			}
		default:
			continue // masks, counters
		}
		if s.Params > math.MaxInt64-t.n*per {
			s.Exact = false
			break
		}
		s.Params += t.n * per
		c.params[t.dtype] += t.n * per
		s.Parts.add(t, t.n*per)
		if cfg.arch.Tied && kindOf(t.name) == headPart {
			s.TensorBytes -= t.bytes
		}
	}
	s.Arch = c.shape()
	for _, d := range sortedKeys(c.params) {
		if s.DType == "" || c.params[d] > c.params[s.DType] {
			s.DType = d
		}
	}
	return s
}

// packed is how many weights of so many bits one element of a type holds; 0 where
// that is not known.
func packed(dtype string, bits int64) int64 {
	width := bitsOf[dtype]
	if bits < 1 || width < bits {
		return 0
	}
	return width / bits
}

// beside says whether a tensor is not a weight but something kept beside one.
func beside(name string) bool {
	for _, suffix := range besides {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}
