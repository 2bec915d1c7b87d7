//go:build cgo

package main

// withNVML says whether this build can load NVML.
const withNVML = true
