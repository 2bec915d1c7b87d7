//go:build !(linux && cgo && (amd64 || arm64))

package nvml

import "sparkrun/internal/sample"

// Built says whether this build can read NVML at all.
const Built = false

// Reader reads one GPU. In this build there is none: Open always fails.
type Reader struct{}

// Open says that this build has no NVML.
func Open() (*Reader, error) {
	return nil, &Error{Kind: NoLibrary, Text: "built without cgo: no NVML"}
}

// Device returns what does not change while the driver is loaded.
func (r *Reader) Device() sample.Device { return sample.Device{Source: "none"} }

// Read fills the GPU readings of g.
func (r *Reader) Read(g *sample.GPU) {}

// Dead returns why the GPU as a whole did not answer the last Read.
func (r *Reader) Dead() *Error { return nil }

// Close shuts NVML down.
func (r *Reader) Close() {}
