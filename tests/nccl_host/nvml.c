/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's management library for NCCL's host code: GPUs of one node without NVLink, which reach each other over PCIe.
 */
#include <stdint.h>
#include <stdio.h>

#define NOT_SUPPORTED 3
#define DEVICES 8

int nvmlInit(void);
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetHandleByIndex(unsigned i, void **device);
int nvmlDeviceGetHandleByPciBusId(const char *id, void **device);
int nvmlDeviceGetIndex(void *device, unsigned *i);
const char *nvmlErrorString(int code);
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);
int nvmlDeviceGetP2PStatus(void *a, void *b, int which, int *status);

int nvmlInit(void)
{
    return 0;
}

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = DEVICES;
    return 0;
}

int nvmlDeviceGetHandleByIndex(unsigned i, void **device)
{
    *device = (void *)(uintptr_t)(i + 1);
    return 0;
}

int nvmlDeviceGetHandleByPciBusId(const char *id, void **device)
{
    unsigned domain, bus;

    if (sscanf(id, "%x:%x", &domain, &bus) != 2)
        return NOT_SUPPORTED;
    *device = (void *)(uintptr_t)bus;
    return 0;
}

int nvmlDeviceGetIndex(void *device, unsigned *i)
{
    *i = (unsigned)(uintptr_t)device - 1;
    return 0;
}

const char *nvmlErrorString(int code)
{
    return code == NOT_SUPPORTED ? "not supported" : "an error";
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    (void)device;
    *major = 9;
    *minor = 0;
    return 0;
}

int nvmlDeviceGetP2PStatus(void *a, void *b, int which, int *status)
{
    (void)a, (void)b, (void)which;
    *status = 0;
    return 0;
}

#define LACKING(name)                         \
    int name(void *device, void *a, void *b); \
    int name(void *device, void *a, void *b)  \
    {                                         \
        (void)device, (void)a, (void)b;       \
        return NOT_SUPPORTED;                 \
    }
LACKING(nvmlDeviceGetNvLinkState)
LACKING(nvmlDeviceGetNvLinkRemotePciInfo)
LACKING(nvmlDeviceGetNvLinkCapability)
LACKING(nvmlDeviceGetFieldValues)
LACKING(nvmlDeviceGetGpuFabricInfoV)
LACKING(nvmlDeviceGetPlatformInfo)
LACKING(nvmlSystemGetConfComputeState)
LACKING(nvmlDeviceGetPciInfo_v3)
LACKING(nvmlDeviceGetPciInfoExt)
LACKING(nvmlDeviceGetPcieLinkMaxSpeed)
LACKING(nvmlDeviceGetCurrPcieLinkGeneration)
LACKING(nvmlDeviceGetCurrPcieLinkWidth)
LACKING(nvmlSystemGetConfComputeSettings)
