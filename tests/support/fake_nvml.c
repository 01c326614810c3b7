/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for libnvidia-ml.so.1, with five GPUs: one that this process may not use, two that work, one that is
 * divided into instances (MIG), and one whose load is not supported. FAKE_NVML_BLOCK_MS makes each reading of a load
 * slow.
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
