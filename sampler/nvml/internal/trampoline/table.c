//go:build linux && cgo && (amd64 || arm64)

#define _GNU_SOURCE
#include "trampoline.h"

#include <dlfcn.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* NVML_ERROR_FUNCTION_NOT_FOUND of nvml.h. Called with the arguments of any
 * function of the library; the C calling conventions of amd64 and arm64 let the
 * callee ignore them. */
static int missing(void) { return 13; }

static const char *missing_text(void) {
	return "the NVIDIA management library has no text for this error";
}

/* The pointers that trampolines.S jumps through. They are written by
 * sparkrun_nvml_load before the first call, by the thread that then calls. */
#define NVML_STATUS(name) HIDDEN void *sparkrun_ptr_##name = (void *)missing;
#define NVML_TEXT(name) HIDDEN void *sparkrun_ptr_##name = (void *)missing_text;
#include "symbols.h"
#undef NVML_STATUS
#undef NVML_TEXT

#define NVML_STATUS(name) {#name, &sparkrun_ptr_##name, (void *)missing},
#define NVML_TEXT(name) {#name, &sparkrun_ptr_##name, (void *)missing_text},
static const struct {
	const char *name;
	void **ptr;
	void *missing;
} table[] = {
#include "symbols.h"
};
#undef NVML_STATUS
#undef NVML_TEXT

enum { COUNT = sizeof table / sizeof table[0] };

const char *sparkrun_nvml_load(const char *path) {
	/* The same flag as go-nvml but for RTLD_GLOBAL: every symbol is looked up
	 * on this handle and nowhere else. */
	void *handle = dlopen(path, RTLD_LAZY);
	if (handle == NULL) {
		return dlerror();
	}
	for (int i = 0; i < COUNT; i++) {
		void *symbol = dlsym(handle, table[i].name);
		*table[i].ptr = symbol != NULL ? symbol : table[i].missing;
	}
	return NULL;
}

int sparkrun_nvml_has(const char *name) {
	for (int i = 0; i < COUNT; i++) {
		if (strcmp(table[i].name, name) == 0) {
			return *table[i].ptr != table[i].missing;
		}
	}
	return 0;
}

int sparkrun_nvml_count(void) { return COUNT; }

const char *sparkrun_nvml_name(int i) { return table[i].name; }
