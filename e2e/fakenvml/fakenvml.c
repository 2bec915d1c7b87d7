//go:build ignore

/* libnvidia-ml.so.1 that plays a scenario over time and answers as a GB10 does.
 *
 * Environment:
 *   FAKENVML_SCENARIO  file with the scenario; read again when it changes
 *   FAKENVML_T0        unix time (a decimal fraction is allowed) of second 0 of
 *                      the scenario; without it second 0 is the first nvmlInit
 *   FAKENVML_INIT_RC   nvmlReturn_t that nvmlInit answers
 *
 * A scenario line is "at TIME KEY VALUE...", TIME in seconds ("3s", "2.5s"),
 * any number of keys on a line; "#" starts a comment. Values hold until they
 * are changed; "na" makes a reading NOT_SUPPORTED.
 *   temp C | power W | sm MHz | mem MHz | util PCT | pstate N | reasons MASK
 *   ctr_swpower NS | ctr_swthermal NS | ctr_hwthermal NS | ctr_hwpower NS
 *                      "+NS" adds. A counter also runs while its bit is set in
 *                      reasons; energy runs with power.
 *   energy MJ          sets the energy counter, "+MJ" adds
 *   memory MIB         memory of a discrete GPU
 *   proc PID MIB       a process on the GPU; MIB "-" removes it, "na" is unknown
 *   count N            number of GPUs
 *   fail READING RC    RC for that reading (its key, "counters", "processes"
 *                      or "all"); 0 ends it
 *   block DURATION     every call made before TIME + DURATION waits until then, or
 *                      until a later "block 0s" lifts it
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "nvml.h"

enum { R_TEMP, R_POWER, R_SM, R_MEM, R_UTIL, R_PSTATE, R_REASONS, R_MEMORY, R_VALUES,
       R_ENERGY = R_VALUES, R_COUNTERS, R_PROCESSES, R_ALL, R_COUNT };
static const char *const reading_names[R_COUNT] = {
	"temp", "power", "sm", "mem", "util", "pstate", "reasons", "memory",
	"energy", "counters", "processes", "all",
};

enum { C_SWPOWER, C_SWTHERMAL, C_HWTHERMAL, C_HWPOWER, C_COUNT };
static const struct {
	const char *name;
	unsigned int field;
	unsigned long long bit;
} counter_kinds[C_COUNT] = {
	{"ctr_swpower", 74, 0x4},
	{"ctr_swthermal", 269, 0x20},
	{"ctr_hwthermal", 270, 0x40},
	{"ctr_hwpower", 271, 0x80},
};

#define NA (-1.0)
#define LOOK_AGAIN 0.05 /* seconds */
enum { MAX_STEPS = 4096, MAX_PROCS = 64 };

struct step {
	double at;
	char key[24], a[32], b[32];
};

struct proc {
	unsigned int pid;
	double mib;
};

static struct {
	double value[R_VALUES];
	int fail[R_COUNT];
	double energy_mj;
	double counter_ns[C_COUNT];
	struct proc procs[MAX_PROCS];
	int nprocs;
	unsigned int count;
	double block_until;
	double at;
} st;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct step steps[MAX_STEPS];
static int nsteps, next_step, initialised;
static double t0 = -1;
static struct stat loaded;

static double now(void) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void reset(void) {
	memset(&st, 0, sizeof st);
	st.value[R_TEMP] = 45;
	st.value[R_POWER] = 12;
	st.value[R_SM] = 2405;
	st.value[R_MEM] = NA;
	st.value[R_UTIL] = 0;
	st.value[R_PSTATE] = 0;
	st.value[R_REASONS] = 1;
	st.value[R_MEMORY] = NA;
	st.count = 1;
	next_step = 0;
}

static double number(const char *s) {
	if (strcmp(s, "na") == 0) {
		return NA;
	}
	if (strncmp(s, "0x", 2) == 0) {
		return (double)strtoull(s, NULL, 16);
	}
	return strtod(s, NULL);
}

static void set_or_add(double *to, const char *s) {
	*to = s[0] == '+' ? *to + number(s + 1) : number(s);
}

static int reading(const char *name) {
	for (int i = 0; i < R_COUNT; i++) {
		if (strcmp(reading_names[i], name) == 0) {
			return i;
		}
	}
	return -1;
}

static int counter_named(const char *name) {
	for (int i = 0; i < C_COUNT; i++) {
		if (strcmp(counter_kinds[i].name, name) == 0) {
			return i;
		}
	}
	return -1;
}

static int takes_two(const char *key) { return strcmp(key, "proc") == 0 || strcmp(key, "fail") == 0; }

static int known_step(const struct step *s) {
	int r = reading(s->key);
	if (strcmp(s->key, "fail") == 0) {
		return reading(s->a) >= 0;
	}
	return (r >= 0 && r <= R_ENERGY) || counter_named(s->key) >= 0 || strcmp(s->key, "proc") == 0 ||
	       strcmp(s->key, "count") == 0 || strcmp(s->key, "block") == 0;
}

/* load reads the scenario if it has changed. A bad line is reported on stderr:
 * a scenario that silently does nothing would make a test that cannot fail. */
static int load(void) {
	const char *path = getenv("FAKENVML_SCENARIO");
	struct stat s;
	if (path == NULL || stat(path, &s) != 0) {
		if (loaded.st_ino != 0 || st.count == 0) {
			memset(&loaded, 0, sizeof loaded);
			nsteps = 0;
			reset();
		}
		return path == NULL ? 0 : -1;
	}
	if (s.st_ino == loaded.st_ino && s.st_size == loaded.st_size &&
	    s.st_mtim.tv_sec == loaded.st_mtim.tv_sec && s.st_mtim.tv_nsec == loaded.st_mtim.tv_nsec) {
		return 0;
	}
	FILE *f = fopen(path, "r");
	if (f == NULL) {
		return -1;
	}
	loaded = s;
	nsteps = 0;
	reset();
	char line[1024];
	int n = 0, bad = 0;
	while (fgets(line, sizeof line, f) != NULL) {
		n++;
		char *save, *comment = strchr(line, '#');
		if (comment != NULL) {
			*comment = 0;
		}
		char *word = strtok_r(line, " \t\r\n", &save);
		if (word == NULL) {
			continue;
		}
		char *at = strtok_r(NULL, " \t\r\n", &save);
		char *key = at == NULL ? NULL : strtok_r(NULL, " \t\r\n", &save);
		if (strcmp(word, "at") != 0 || key == NULL) {
			fprintf(stderr, "fakenvml: %s:%d: want \"at TIME KEY VALUE...\"\n", path, n);
			bad = 1;
			continue;
		}
		for (; key != NULL; key = strtok_r(NULL, " \t\r\n", &save)) {
			struct step *p = &steps[nsteps];
			char *a = strtok_r(NULL, " \t\r\n", &save);
			char *b = a != NULL && takes_two(key) ? strtok_r(NULL, " \t\r\n", &save) : "";
			memset(p, 0, sizeof *p);
			p->at = strtod(at, NULL);
			snprintf(p->key, sizeof p->key, "%s", key);
			snprintf(p->a, sizeof p->a, "%s", a == NULL ? "" : a);
			snprintf(p->b, sizeof p->b, "%s", b == NULL ? "" : b);
			if (a == NULL || b == NULL || !known_step(p) || nsteps == MAX_STEPS - 1 ||
			    (nsteps > 0 && p->at < steps[nsteps - 1].at)) {
				fprintf(stderr, "fakenvml: %s:%d: bad, unknown or out of order: %s\n", path, n, key);
				bad = 1;
				break;
			}
			nsteps++;
		}
	}
	fclose(f);
	return bad ? -1 : 0;
}

/* run lets time pass up to second t of the scenario. */
static void run(double t) {
	double dt = t - st.at;
	if (dt <= 0) {
		return;
	}
	if (st.value[R_POWER] > 0) {
		st.energy_mj += st.value[R_POWER] * 1000 * dt;
	}
	for (int i = 0; i < C_COUNT; i++) {
		if (st.value[R_REASONS] > 0 && ((unsigned long long)st.value[R_REASONS] & counter_kinds[i].bit)) {
			st.counter_ns[i] += dt * 1e9;
		}
	}
	st.at = t;
}

static void set_proc(unsigned int pid, const char *mib) {
	int i = 0;
	while (i < st.nprocs && st.procs[i].pid != pid) {
		i++;
	}
	if (strcmp(mib, "-") == 0) {
		if (i < st.nprocs) {
			st.procs[i] = st.procs[--st.nprocs];
		}
		return;
	}
	if (i == MAX_PROCS) {
		return;
	}
	if (i == st.nprocs) {
		st.nprocs++;
	}
	st.procs[i] = (struct proc){pid, number(mib)};
}

static void apply(const struct step *s) {
	int r = reading(s->key), c = counter_named(s->key);
	if (c >= 0) {
		set_or_add(&st.counter_ns[c], s->a);
	} else if (r == R_ENERGY) {
		set_or_add(&st.energy_mj, s->a);
	} else if (r >= 0) {
		st.value[r] = number(s->a);
	} else if (strcmp(s->key, "proc") == 0) {
		set_proc((unsigned int)strtoul(s->a, NULL, 10), s->b);
	} else if (strcmp(s->key, "count") == 0) {
		st.count = (unsigned int)number(s->a);
	} else if (strcmp(s->key, "fail") == 0) {
		st.fail[reading(s->a)] = (int)number(s->b);
	} else if (strcmp(s->key, "block") == 0) {
		st.block_until = s->at + number(s->a);
	}
}

/* enter brings the state up to date and returns with the lock held, after
 * waiting for as long as the scenario blocks calls. */
static void enter(void) {
	for (;;) {
		pthread_mutex_lock(&mu);
		load();
		double t = now() - t0;
		while (next_step < nsteps && steps[next_step].at <= t) {
			run(steps[next_step].at);
			apply(&steps[next_step++]);
		}
		run(t);
		double wait = st.block_until - t;
		if (wait <= 0) {
			return;
		}
		pthread_mutex_unlock(&mu);
		if (wait > LOOK_AGAIN) {
			wait = LOOK_AGAIN; /* the scenario may have changed meanwhile */
		}
		struct timespec ts = {(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)};
		while (nanosleep(&ts, &ts) != 0 && errno == EINTR) {
		}
	}
}

static nvmlReturn_t leave(nvmlReturn_t rc) {
	pthread_mutex_unlock(&mu);
	return rc;
}

/* check says what a reading is to answer when its value is v. */
static nvmlReturn_t check(int r, double v) {
	if (!initialised) {
		return NVML_ERROR_UNINITIALIZED;
	}
	if (st.fail[R_ALL] != 0) {
		return (nvmlReturn_t)st.fail[R_ALL];
	}
	if (st.fail[r] != 0) {
		return (nvmlReturn_t)st.fail[r];
	}
	return v == NA ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

static nvmlReturn_t value(int r, double *v) {
	enter();
	*v = r < R_VALUES ? st.value[r] : st.energy_mj;
	return leave(check(r, *v));
}

static nvmlReturn_t text(char *to, unsigned int length, const char *s) {
	enter();
	nvmlReturn_t rc = check(R_ALL, 0);
	if (rc == NVML_SUCCESS && strlen(s) >= length) {
		rc = NVML_ERROR_INSUFFICIENT_SIZE;
	}
	if (rc == NVML_SUCCESS) {
		strcpy(to, s);
	}
	return leave(rc);
}

/* --- the library's interface ------------------------------------------- */

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
	(void)flags;
	const char *rc = getenv("FAKENVML_INIT_RC"), *start = getenv("FAKENVML_T0");
	if (rc != NULL && atoi(rc) != 0) {
		return (nvmlReturn_t)atoi(rc);
	}
	pthread_mutex_lock(&mu);
	if (t0 < 0) {
		t0 = start != NULL ? strtod(start, NULL) : now();
	}
	if (load() != 0) {
		fprintf(stderr, "fakenvml: the scenario cannot be played\n");
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	}
	pthread_mutex_unlock(&mu);
	enter();
	initialised++;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
	pthread_mutex_lock(&mu);
	if (initialised == 0) {
		return leave(NVML_ERROR_UNINITIALIZED);
	}
	initialised--;
	return leave(NVML_SUCCESS);
}

const char *nvmlErrorString(nvmlReturn_t result) {
	(void)result;
	return "an error of the fake library";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
	return text(version, length, "580.95.05");
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
	return text(version, length, "13.580.95.05");
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
	enter();
	*version = 13000;
	return leave(check(R_ALL, 0));
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
	enter();
	*count = st.count;
	return leave(check(R_ALL, 0));
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
	enter();
	nvmlReturn_t rc = check(R_ALL, 0);
	if (rc == NVML_SUCCESS && index >= st.count) {
		rc = NVML_ERROR_INVALID_ARGUMENT;
	}
	device->handle = (struct nvmlDevice_st *)&st;
	return leave(rc);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
	(void)device;
	return text(name, length, "NVIDIA GB10");
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
	(void)device;
	return text(uuid, length, "GPU-00000000-1111-2222-3333-444444444444");
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
	(void)device;
	enter();
	*major = 12;
	*minor = 1;
	return leave(check(R_ALL, 0));
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
	(void)device;
	double v;
	nvmlReturn_t rc = value(R_MEMORY, &v);
	if (rc == NVML_SUCCESS) {
		memory->total = (unsigned long long)v << 20;
		memory->used = memory->total / 4;
		memory->free = memory->total - memory->used;
	}
	return rc;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
	nvmlMemory_t m;
	nvmlReturn_t rc = nvmlDeviceGetMemoryInfo(device, &m);
	if (rc == NVML_SUCCESS) {
		memory->total = m.total;
		memory->reserved = 0;
		memory->used = m.used;
		memory->free = m.free;
	}
	return rc;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *temp) {
	(void)device;
	double v;
	if (sensor != NVML_TEMPERATURE_GPU) {
		return NVML_ERROR_INVALID_ARGUMENT;
	}
	nvmlReturn_t rc = value(R_TEMP, &v);
	*temp = (unsigned int)v;
	return rc;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power) {
	(void)device;
	double v;
	nvmlReturn_t rc = value(R_POWER, &v);
	*power = (unsigned int)(v * 1000 + 0.5);
	return rc;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) {
	(void)device;
	double v;
	if (type != NVML_CLOCK_SM && type != NVML_CLOCK_GRAPHICS && type != NVML_CLOCK_MEM) {
		return NVML_ERROR_NOT_SUPPORTED;
	}
	nvmlReturn_t rc = value(type == NVML_CLOCK_MEM ? R_MEM : R_SM, &v);
	*clock = (unsigned int)v;
	return rc;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) {
	(void)device;
	enter();
	*clock = 3003;
	return leave(check(R_ALL, type == NVML_CLOCK_MEM ? NA : 0));
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *u) {
	(void)device;
	double v;
	nvmlReturn_t rc = value(R_UTIL, &v);
	u->gpu = (unsigned int)v;
	u->memory = 0;
	return rc;
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *state) {
	(void)device;
	double v;
	nvmlReturn_t rc = value(R_PSTATE, &v);
	*state = (nvmlPstates_t)v;
	return rc;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
	(void)device;
	double v;
	nvmlReturn_t rc = value(R_REASONS, &v);
	*reasons = (unsigned long long)v;
	return rc;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
	return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy) {
	(void)device;
	double v;
	nvmlReturn_t rc = value(R_ENERGY, &v);
	*energy = (unsigned long long)v;
	return rc;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int n, nvmlFieldValue_t *values) {
	(void)device;
	enter();
	nvmlReturn_t rc = check(R_COUNTERS, 0);
	for (int i = 0; i < n && rc == NVML_SUCCESS; i++) {
		values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		for (int c = 0; c < C_COUNT; c++) {
			if (counter_kinds[c].field != values[i].fieldId || st.counter_ns[c] == NA) {
				continue;
			}
			values[i].nvmlReturn = NVML_SUCCESS;
			values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
			values[i].value.ullVal = (unsigned long long)st.counter_ns[c];
		}
	}
	return leave(rc);
}

#define PROCESSES(name, type) \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos) { \
		(void)device; \
		enter(); \
		nvmlReturn_t rc = check(R_PROCESSES, 0); \
		if (rc == NVML_SUCCESS && *count < (unsigned int)st.nprocs) { \
			rc = NVML_ERROR_INSUFFICIENT_SIZE; \
		} \
		*count = (unsigned int)st.nprocs; \
		for (int i = 0; i < st.nprocs && rc == NVML_SUCCESS; i++) { \
			memset(&infos[i], 0, sizeof infos[i]); \
			infos[i].pid = st.procs[i].pid; \
			infos[i].usedGpuMemory = st.procs[i].mib == NA \
				? (unsigned long long)NVML_VALUE_NOT_AVAILABLE \
				: (unsigned long long)(st.procs[i].mib * 1048576); \
		} \
		return leave(rc); \
	}

PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *speed) {
	(void)device;
	(void)speed;
	return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *limit) {
	(void)device;
	(void)limit;
	return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit) {
	return nvmlDeviceGetPowerManagementLimit(device, limit);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t kind, unsigned int *temp) {
	(void)device;
	(void)kind;
	(void)temp;
	return NVML_ERROR_NOT_SUPPORTED;
}
