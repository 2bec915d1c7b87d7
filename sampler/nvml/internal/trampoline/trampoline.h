#ifndef SPARKRUN_NVML_TRAMPOLINE_H
#define SPARKRUN_NVML_TRAMPOLINE_H

/* Returns NULL, or why the library could not be opened. */
const char *sparkrun_nvml_load(const char *path);
int sparkrun_nvml_has(const char *name);
int sparkrun_nvml_count(void);
const char *sparkrun_nvml_name(int i);

#endif
