/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's own memory: an arena in an anonymous file, so that a handle for another process is a place in that file. */
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA ((size_t)64 << 30) /* addresses; only what is touched takes memory */
#define PAGE 4096u

static struct {
    char *at;
    int fd;
    size_t used;
} arena;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What a process needs to map memory of another one. */
struct handle {
    int32_t pid, fd;
    uint64_t offset, bytes;
};
_Static_assert(sizeof(struct handle) <= sizeof(cudaIpcMemHandle_t), "handle");

/* The size stands in a page before each block. */
struct head {
    size_t bytes;
};

static bool arena_open(void)
{
    if (arena.at != NULL)
        return true;
    arena.fd = memfd_create("nccl-host", MFD_CLOEXEC);
    if (arena.fd < 0 || ftruncate(arena.fd, (off_t)ARENA) != 0)
        return false;
    arena.at = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena.fd, 0);
    if (arena.at == MAP_FAILED)
        arena.at = NULL;
    return arena.at != NULL;
}

void *host_alloc(size_t bytes)
{
    size_t room = (bytes + PAGE - 1) / PAGE * PAGE;
    char *at = NULL;

    (void)pthread_mutex_lock(&lock);
    if (arena_open() && room + PAGE <= ARENA - arena.used) {
        ((struct head *)(arena.at + arena.used))->bytes = room;
        at = arena.at + arena.used + PAGE;
        arena.used += room + PAGE;
    }
    (void)pthread_mutex_unlock(&lock);
    return at;
}

/* No address is used again: a late reader of freed memory reads zeros. */
void host_free(void *at)
{
    if (host_owns(at))
        (void)fallocate(arena.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (char *)at - arena.at,
                        (off_t)((struct head *)((char *)at - PAGE))->bytes);
}

bool host_owns(const void *at)
{
    return arena.at != NULL && (const char *)at >= arena.at && (const char *)at < arena.at + ARENA;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *at)
{
    struct handle h = {.pid = getpid(), .fd = arena.fd};

    if (!host_owns(at))
        return cudaErrorInvalidValue;
    h.offset = (uint64_t)((char *)at - arena.at);
    h.bytes = ((struct head *)((char *)at - PAGE))->bytes;
    (void)memset(handle, 0, sizeof *handle);
    (void)memcpy(handle, &h, sizeof h);
    return cudaSuccess;
}

/* The size of what a process has mapped, by its address. */
static struct {
    void *at;
    size_t bytes;
} mapped[4096];
static size_t n_mapped;

cudaError_t cudaIpcOpenMemHandle(void **at, cudaIpcMemHandle_t handle, unsigned int flags)
{
    struct handle h;
    char path[64];
    int fd;

    (void)flags;
    (void)memcpy(&h, &handle, sizeof h);
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return cudaErrorMapBufferObjectFailed;
    *at = mmap(NULL, h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)h.offset);
    (void)close(fd);
    if (*at == MAP_FAILED)
        return cudaErrorMapBufferObjectFailed;
    (void)pthread_mutex_lock(&lock);
    if (n_mapped < sizeof mapped / sizeof mapped[0]) {
        mapped[n_mapped].at = *at;
        mapped[n_mapped++].bytes = h.bytes;
    }
    (void)pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *at)
{
    cudaError_t rc = cudaErrorInvalidValue;

    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_mapped && rc != cudaSuccess; i++) {
        if (mapped[i].at != at)
            continue;
        (void)munmap(at, mapped[i].bytes);
        mapped[i] = mapped[--n_mapped];
        rc = cudaSuccess;
    }
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

/* ------------------------------------------------------------------------------------------- the runtime's functions
 */

static cudaError_t allocate(void **at, size_t bytes)
{
    host_context();
    *at = host_alloc(bytes);
    return *at != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

/* ncclMemAlloc's memory is the program's: its kernels and copies use it, and the stand-in watches that. */
static bool is_for_program(const void *caller)
{
    Dl_info info;

    return dladdr(caller, &info) != 0 && info.dli_sname != NULL && strcmp(info.dli_sname, "ncclMemAlloc") == 0;
}

cudaError_t cudaMalloc(void **at, size_t bytes)
{
    return is_for_program(__builtin_return_address(0)) ? (cudaError_t)cuMemAlloc((CUdeviceptr *)at, bytes)
                                                       : allocate(at, bytes);
}

cudaError_t cudaHostAlloc(void **at, size_t bytes, unsigned int flags)
{
    (void)flags;
    return allocate(at, bytes);
}

cudaError_t cudaMallocAsync(void **at, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    return allocate(at, bytes);
}

cudaError_t cudaMallocFromPoolAsync(void **at, size_t bytes, cudaMemPool_t pool, cudaStream_t stream)
{
    (void)pool, (void)stream;
    return allocate(at, bytes);
}

cudaError_t cudaFree(void *at)
{
    if (standin_host(at) != at)
        return (cudaError_t)cuMemFree((CUdeviceptr)at);
    host_free(at);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *at)
{
    host_free(at);
    return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *at, cudaStream_t stream)
{
    return (cudaError_t)cuLaunchHostFunc(stream, host_free, at);
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned int flags)
{
    (void)at, (void)bytes, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at)
{
    (void)at;
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags)
{
    (void)flags;
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *props)
{
    (void)props;
    *pool = (cudaMemPool_t)host_alloc(1);
    return *pool != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    host_free(pool);
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value)
{
    (void)pool, (void)which, (void)value;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *at)
{
    CUmemorytype type = 0;
    int device = 0;

    *out = (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered, .device = -1, .hostPointer = (void *)at};
    if (host_owns(at)) {
        (void)cudaGetDevice(&device);
        *out = (struct cudaPointerAttributes){cudaMemoryTypeDevice, device, (void *)at, (void *)at, {0}};
    } else if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)at) == CUDA_SUCCESS) {
        (void)cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)at);
        *out = (struct cudaPointerAttributes){type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice,
                                              device,
                                              (void *)at,
                                              (void *)at,
                                              {0}};
    }
    return cudaSuccess;
}

/* -------------------------------------------------------------------------------------------------------------- copies
 */

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    (void)memcpy(standin_host(to), standin_host(from), bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    (void)memset(standin_host(to), value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    return (cudaError_t)host_copy(to, from, bytes, stream);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    return (cudaError_t)host_fill(to, value, bytes, stream);
}

/* NCCL's copies by copy engines need symmetric memory, which there is none of. */
cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *bytes, size_t n,
                                 struct cudaMemcpyAttributes *attributes, size_t *index, size_t n_attributes,
                                 cudaStream_t stream)
{
    (void)to, (void)from, (void)bytes, (void)n, (void)attributes, (void)index, (void)n_attributes, (void)stream;
    return cudaErrorNotSupported;
}
