//go:build linux && cgo && (amd64 || arm64)

// Package trampoline defines every symbol of NVIDIA's management library that
// go-nvml leaves undefined, so that nothing is left for the dynamic loader.
//
// go-nvml counts on lazy binding: 428 symbols stay undefined in the program
// and are looked up when first called. That has three costs, all measured:
// with a toolchain that links with -z now, or under LD_BIND_NOW=1, the program
// dies before main; and a call to a symbol that the installed driver does not
// have ends the process with status 127, which no Go code can catch.
//
// Here each symbol is a hidden function of one jump through a pointer. The
// pointers start at a function that answers NVML_ERROR_FUNCTION_NOT_FOUND, and
// Load points them into the driver's library. A missing symbol is then an error
// code like any other. The functions are hidden because Go links programs that
// use go-nvml with --export-dynamic: visible ones would stand in front of the
// library's own for the calls that it makes to itself.
package trampoline

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "trampoline.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

//go:generate go run ./gen -out symbols.h

// Load opens the library at path, or by the loader's search where path has no
// slash, and points every symbol that it has into it. The library stays loaded
// for good. Load must not run at the same time as a call into the library.
func Load(path string) error {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	// dlerror is kept per thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if reason := C.sparkrun_nvml_load(p); reason != nil {
		return fmt.Errorf("opening the NVIDIA management library: %w", errors.New(C.GoString(reason)))
	}
	return nil
}

// Has reports whether the loaded library has the symbol.
func Has(name string) bool {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	return C.sparkrun_nvml_has(n) != 0
}

// Names returns every symbol that this package defines.
func Names() []string {
	names := make([]string, 0, int(C.sparkrun_nvml_count()))
	for i := range cap(names) {
		names = append(names, C.GoString(C.sparkrun_nvml_name(C.int(i))))
	}
	return names
}
