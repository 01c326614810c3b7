/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define GPUS_MAX 64
#define TEXT_MAX 96 /* NVML_DEVICE_UUID_V2_BUFFER_SIZE; NVML_DEVICE_NAME_V2_BUFFER_SIZE is the same */

/* The part that is used here, as in the NVML API Reference Guide of release 590. A call returns 0, or an error. */
typedef struct nvml_device *device;
struct utilization {
    unsigned gpu, memory; /* percent */
};
struct memory {
    unsigned long long total, free, used;
};
/* X(member, function of the library, whether it is required, its arguments) */
#define NVML_MAP(X)                                                                                             \
    X(init, nvmlInit_v2, true, (void))                                                                          \
    X(count, nvmlDeviceGetCount_v2, true, (unsigned *n))                                                        \
    X(by_index, nvmlDeviceGetHandleByIndex_v2, true, (unsigned index, device *out))                             \
    X(uuid, nvmlDeviceGetUUID, true, (device d, char *text, unsigned cap))                                      \
    X(name, nvmlDeviceGetName, true, (device d, char *text, unsigned cap))                                      \
    X(utilization, nvmlDeviceGetUtilizationRates, true, (device d, struct utilization * out))                   \
    X(memory, nvmlDeviceGetMemoryInfo, true, (device d, struct memory * out))                                   \
    X(mig_mode, nvmlDeviceGetMigMode, false, (device d, unsigned *current, unsigned *pending))                  \
    X(ecc_errors, nvmlDeviceGetTotalEccErrors, false, (device d, int type, int counter, unsigned long long *n)) \
    X(throttle_reasons, nvmlDeviceGetCurrentClocksThrottleReasons, false, (device d, unsigned long long *bits))

/* nvml.h: nvmlMemoryErrorType_t, nvmlEccCounterType_t, and nvmlClocksThrottleReasons: hardware slowdown, thermal
   slowdown by software and by hardware, and the brake of the power supply. */
#define UNCORRECTED 1
#define SINCE_LOADED 0
#define SLOWED 0xe8

struct nvml {
#define X(member, function, needed, args) int(*member) args; /* NOLINT(bugprone-macro-parentheses) */
    NVML_MAP(X)
#undef X
    size_t n;
    device devices[GPUS_MAX];
    struct cdi_gpu gpus[GPUS_MAX];
};

static bool nvml_resolve(void *library, struct nvml *n)
{
    void *at;

#define X(member, function, needed, args)                     \
    if ((at = dlsym(library, #function)) == NULL && (needed)) \
        return false;                                         \
    *(void **)&n->member = at;
    NVML_MAP(X)
#undef X
    return true;
}

/* The library also counts GPUs that this process may not use, and CUDA does not. */
static void list_gpu(struct nvml *n, unsigned i)
{
    struct cdi_gpu *gpu = &n->gpus[n->n];
    char text[TEXT_MAX] = "";
    device d;

    if (n->by_index(i, &d) != 0)
        return;
    *gpu = (struct cdi_gpu){.numa_node = -1};
    if (n->uuid(d, text, sizeof text) == 0)
        (void)snprintf(gpu->uuid, sizeof gpu->uuid, "%.47s", text);
    if (n->name(d, text, sizeof text) == 0)
        (void)snprintf(gpu->model, sizeof gpu->model, "%.63s", text);
    n->devices[n->n++] = d;
}

/* It is never closed: its threads and descriptors are for the process. */
static bool nvml_load_library(const char *name, struct nvml *n)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    unsigned count = 0;

    if (library == NULL || !nvml_resolve(library, n) || n->init() != 0 || n->count(&count) != 0)
        return false;
    for (unsigned i = 0; i < count && n->n < GPUS_MAX; i++)
        list_gpu(n, i);
    return n->n > 0;
}

const struct nvml *nvml_open(const char *library)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool tried, there;
    static struct nvml only;
    bool is_there;

    (void)pthread_mutex_lock(&lock);
    if (!tried)
        there = nvml_load_library(library, &only);
    tried = true;
    is_there = there;
    (void)pthread_mutex_unlock(&lock);
    return is_there ? &only : NULL;
}

const struct cdi_gpu *nvml_gpus(const struct nvml *n, size_t *count)
{
    *count = n->n;
    return n->gpus;
}

struct nvml_load nvml_read(const struct nvml *n, size_t gpu)
{
    struct nvml_load load = {.permille = -1};
    struct utilization utilization = {.gpu = 0};
    struct memory memory = {.total = 0};
    unsigned current = 0, pending = 0;
    device d = gpu < n->n ? n->devices[gpu] : NULL;

    if (d == NULL || (n->mig_mode != NULL && n->mig_mode(d, &current, &pending) == 0 && current != 0))
        return load;
    if (n->utilization(d, &utilization) == 0)
        load.permille = utilization.gpu < 100 ? 10 * (int32_t)utilization.gpu : 1000;
    if (n->memory(d, &memory) == 0) {
        load.used_bytes = memory.used;
        load.total_bytes = memory.total;
    }
    return load;
}

struct nvml_health nvml_health(const struct nvml *n, size_t gpu)
{
    struct nvml_health health = {.uncorrected = 0};
    unsigned long long errors = 0, reasons = 0;
    device d = gpu < n->n ? n->devices[gpu] : NULL;

    if (d == NULL)
        return health;
    if (n->ecc_errors != NULL && n->ecc_errors(d, UNCORRECTED, SINCE_LOADED, &errors) == 0)
        health.uncorrected = errors;
    if (n->throttle_reasons != NULL && n->throttle_reasons(d, &reasons) == 0)
        health.slowed = (reasons & SLOWED) != 0;
    return health;
}
