//go:build linux && cgo && (amd64 || arm64)

/* One hidden function per symbol: a jump through its pointer in table.c. All
 * argument registers and the stack pass through untouched. */

#if defined(__x86_64__)

#define TRAMPOLINE(name) \
	.globl name; .hidden name; .type name, @function; .balign 16; \
	name: endbr64; jmp *sparkrun_ptr_##name(%rip); \
	.size name, . - name;

#elif defined(__aarch64__)

/* x16 is the register that the calling convention leaves to such veneers. */
#define TRAMPOLINE(name) \
	.globl name; .hidden name; .type name, %function; .balign 16; \
	name: hint 34; adrp x16, sparkrun_ptr_##name; \
	ldr x16, [x16, :lo12:sparkrun_ptr_##name]; br x16; \
	.size name, . - name;

#endif

#define NVML_STATUS(name) TRAMPOLINE(name)
#define NVML_TEXT(name) TRAMPOLINE(name)

	.text
#include "symbols.h"

	.section .note.GNU-stack, "", %progbits
