/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for libnvidia-ml.so.1, with five GPUs: one that this process may not use, two that work, one that is
 * divided into instances (MIG), and one whose load is not supported. FAKE_NVML_BLOCK_MS makes each reading of a load
 * slow. FAKE_NVML_ECC and FAKE_NVML_HOT are the indices of a GPU with memory errors and of one that is slowed down.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define GPUS 5
#define NOT_SUPPORTED 3
#define NO_PERMISSION 4

struct nvml_device {
    unsigned index;
};
struct utilization {
    unsigned gpu, memory;
};
struct memory {
    unsigned long long total, free, used;
};

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct nvml_device **out);
int nvmlDeviceGetUUID(struct nvml_device *d, char *text, unsigned cap);
int nvmlDeviceGetName(struct nvml_device *d, char *text, unsigned cap);
int nvmlDeviceGetUtilizationRates(struct nvml_device *d, struct utilization *out);
int nvmlDeviceGetMemoryInfo(struct nvml_device *d, struct memory *out);
int nvmlDeviceGetMigMode(struct nvml_device *d, unsigned *current, unsigned *pending);
int nvmlDeviceGetTotalEccErrors(struct nvml_device *d, int type, int counter, unsigned long long *n);
int nvmlDeviceGetCurrentClocksThrottleReasons(struct nvml_device *d, unsigned long long *bits);

static struct nvml_device devices[GPUS] = {{0}, {1}, {2}, {3}, {4}};
static _Atomic int block_ms;

int nvmlInit_v2(void)
{
    const char *ms = getenv("FAKE_NVML_BLOCK_MS");

    if (ms != NULL)
        block_ms = (int)strtol(ms, NULL, 10);
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = GPUS;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct nvml_device **out)
{
    if (index == 0)
        return NO_PERMISSION;
    *out = &devices[index];
    return 0;
}

int nvmlDeviceGetUUID(struct nvml_device *d, char *text, unsigned cap)
{
    (void)snprintf(text, cap, "GPU-%u0000000-1111-2222-3333-444444444444", d->index);
    return 0;
}

int nvmlDeviceGetName(struct nvml_device *d, char *text, unsigned cap)
{
    (void)d;
    (void)snprintf(text, cap, "NVIDIA Fake");
    return 0;
}

int nvmlDeviceGetUtilizationRates(struct nvml_device *d, struct utilization *out)
{
    int ms = block_ms;
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

    (void)nanosleep(&time, NULL);
    if (d->index == 4)
        return NOT_SUPPORTED;
    *out = (struct utilization){.gpu = 70 + 10 * d->index};
    return 0;
}

int nvmlDeviceGetMemoryInfo(struct nvml_device *d, struct memory *out)
{
    *out = (struct memory){.total = 80ULL << 30, .used = (10ULL + d->index) << 30};
    out->free = out->total - out->used;
    return 0;
}

int nvmlDeviceGetMigMode(struct nvml_device *d, unsigned *current, unsigned *pending)
{
    *pending = *current = d->index == 3;
    return 0;
}

/* Does this variable name the device? */
static int is_named(const char *name, const struct nvml_device *d)
{
    const char *index = getenv(name);

    return index != NULL && strtoul(index, NULL, 10) == d->index;
}

/* Corrected errors (type 0), and those of the GPU's whole life (counter 1), do not count. */
int nvmlDeviceGetTotalEccErrors(struct nvml_device *d, int type, int counter, unsigned long long *n)
{
    if (d->index == 4)
        return NOT_SUPPORTED;
    *n = type == 0 || counter == 1 ? 1000 : is_named("FAKE_NVML_ECC", d) ? 2 : 0;
    return 0;
}

/* Every GPU reports that it is idle (0x1) or at the limit of its power (0x4); a hot one also reports heat (0x40). */
int nvmlDeviceGetCurrentClocksThrottleReasons(struct nvml_device *d, unsigned long long *bits)
{
    *bits = 0x5 | (is_named("FAKE_NVML_HOT", d) ? 0x40 : 0);
    return 0;
}
