/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the CUDA driver and NCCL on host memory, for tests: libcddp_standin.so offers the functions of both
 * under their own names. Streams are threads that delay at random; a vector clock reports at once that two operations
 * use the same memory and no event orders them. This header is the interface for a test, or an example with its own
 * kernels, beside cuda.h and nccl.h: host twins of kernels, and the results of the stand-in.
 *
 * Misuse that on a real GPU gives wrong results or remains unnoticed (unordered access, memory out of bounds, ranks
 * that call different collectives, freeing what is registered) is a *fault*: one line on stderr that begins with
 * "standin: fault:", and the process ends at once with status STANDIN_EXIT.
 *
 * The environment, read when the library is loaded:
 *   CDDP_STANDIN_SEED=N          of the delays and of NCCL's "in progress"; faults print it. Default: chosen at random
 *   CDDP_STANDIN_DELAY=P         none; device (default: a slow device); host (a slow host, a fast device); both
 *   CDDP_STANDIN_DEVICES=N       devices, 8 if unset; CUDA_VISIBLE_DEVICES chooses among them
 *   CDDP_STANDIN_DRIVER=N        the version that the driver reports: 12040 is CUDA 12.4. Default: that of cuda.h
 *   CDDP_STANDIN_CAPABILITY=N    the compute capability of this process's GPUs, 80 for 8.0. Default: 90
 *   CDDP_STANDIN_MEMORY_MB=N     memory of each device, 4096 if unset
 *   CDDP_STANDIN_REPORT=count    count faults (standin_faults) instead of ending
 *   CDDP_STANDIN_LEAKS=1         memory, streams, events and communicators left at exit are a fault
 *   CDDP_STANDIN_CONTEXT_LOCK=1  cuMemFree and cuMemFreeHost hold the context while they wait for the device: until
 *                                they return, every other call of the driver waits
 *   CDDP_STANDIN_QUEUE=N         operations that a stream holds, 1024 if unset: calls that put more there wait for room
 *   CDDP_STANDIN_COLLECTIVE_US=N each launch of NCCL takes so many us longer, on its stream
 *   CDDP_STANDIN_NCCL_VERSION=C  behave as that NCCL (22809: 2.28.9): functions, return codes, permanent errors,
 *                                windows, means (version.h). Default: that of nccl.h
 *   CDDP_STANDIN_PROGRESS=P      how many percent of the launches that NCCL leaves to a thread are "in progress" when
 *                                the call returns, 25 if unset
 *   CDDP_STANDIN_WINDOWS=0       no symmetric memory on this node; lost: calls for a window succeed, and give none
 *   CDDP_STANDIN_INSTANCES=N     this number of consecutive devices share a PCI address, as MIG instances do
 *   CDDP_STANDIN_SKIP_WAIT=K     plant a bug: ignore the K-th cuStreamWaitEvent of the process (K+: and all later ones)
 *   CDDP_STANDIN_SKIP_CAPTURED_WAIT=K  the same for waits that become part of a graph
 *   CDDP_STANDIN_CAPTURE=fault   a call that a capture forbids is a fault; otherwise it has CUDA's error and effect
 *   CDDP_STANDIN_UNSAFE=F:K      plant a bug: with the K-th kernel that is captured, the thread also calls F, which a
 *                                capture forbids (capture.c has the list)
 *   CDDP_STANDIN_NEVER_RELAXED=1 plant a bug: cuThreadExchangeStreamCaptureMode changes nothing
 *   CDDP_STANDIN_SWAP_LAUNCH=K   the K-th launch of NCCL operations (a group is one) changes places with the next one
 *   CDDP_STANDIN_RANK=R          plant only in the process whose RANK is R
 *   CDDP_STANDIN_FAIL=F:K:C,...  the K-th call of function F (K+: and all later ones; cuMemAlloc, without _v2; alloc:
 * of any function that allocates) fails with the numeric code C; F = kernel: the K-th kernel that runs meets a fault of
 * the device, which all later calls return (700: an illegal address) CDDP_STANDIN_CONNECT=1       blocking
 * communicators wait for all ranks at a collective of a new kind, size or type CDDP_STANDIN_NOTICE=1        NCCL
 * notices the end of a rank's process, as over sockets: waits outside streams fail, and the state of the communicator
 * is that error CDDP_STANDIN_NVML=0          the management library is missing, which NCCL needs to join
 *   CDDP_STANDIN_STUCK_ABORT=1   ncclCommAbort does not return
 *   CDDP_STANDIN_KERNELS=P:...   shared libraries to open, each with a table `const struct standin_kernel
 *                                standin_kernels[]` that ends with a NULL name
 */
#ifndef CDDP_STANDIN_H
#define CDDP_STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STANDIN_API __attribute__((visibility("default")))
#define STANDIN_EXIT 86
#define STANDIN_ARGS 12

/* The place of a twin in its grid: the built-in variables of a kernel. */
struct standin_dim {
    unsigned x, y, z;
};
struct standin_thread {
    struct standin_dim grid, block; /* gridDim, blockDim */
    struct standin_dim at;          /* blockIdx */
    struct standin_dim thread;      /* threadIdx; 0 in a body that serves a whole block */
};

struct standin_ranges; /* memory that an operation reads and writes */
struct CUstream_st;

/*
 * The host twin of one kernel. args[] points to copies of the arguments that the host passed, so pointers in them are
 * device pointers: standin_host() makes them usable.
 */
struct standin_kernel {
    const char *name; /* the name for cuLibraryGetKernel */
    size_t n_args, arg_size[STANDIN_ARGS];
    /* One of the two: for each thread of each block, or for each block (if the threads of a block synchronise). */
    void (*thread)(const struct standin_thread *t, void *const *args);
    void (*block)(const struct standin_thread *t, void *const *args);
    /* Optional: makes the pointers in the copies usable, once per launch, before its first thread. */
    void (*usable)(void *const *args);
    /* Reports the memory of a launch with standin_reads and standin_writes. Called at the launch; must not touch
     * memory. */
    void (*ranges)(const struct standin_thread *grid, void *const *args, struct standin_ranges *r);
};

/* Registers a kernel for every library that is loaded. The struct must live as long as the process. Any thread. */
STANDIN_API void standin_kernel_register(const struct standin_kernel *k);

STANDIN_API void standin_reads(struct standin_ranges *r, const void *at, size_t bytes);
STANDIN_API void standin_writes(struct standin_ranges *r, const void *at, size_t bytes);

/*
 * Returns the host address of a device pointer, which cannot be dereferenced itself; other pointers, and NULL, are
 * unchanged.
 */
STANDIN_API void *standin_host(const void *device);

/*
 * Returns the number of faults so far (CDDP_STANDIN_REPORT=count). And: the text of the last one, valid until the next.
 */
STANDIN_API unsigned standin_faults(void);
STANDIN_API const char *standin_last_fault(void);

/*
 * Reads the environment again, for a test that has changed it; planted faults are counted anew. No other call may be
 * running.
 */
STANDIN_API void standin_configure(void);

/* Returns how often the calling thread has called ncclCommGetAsyncError. */
STANDIN_API uint64_t standin_asked(void);

/*
 * Writes the communicators of NCCL's first launches, at most cap, in the order in which they came on streams, also on
 * ones that capture: a communicator is its number in the order of creation in this process, from 1. Returns how many.
 */
STANDIN_API size_t standin_launch_order(uint8_t *out, size_t cap);

/* Returns the number of launches of this kernel that were put on a stream. Any thread. */
STANDIN_API uint64_t standin_launched(const char *kernel);
/* Returns how often memory of a device, or pinned memory, was allocated or freed in this process. */
STANDIN_API uint64_t standin_allocations(void);

/*
 * Returns how often the calling thread has made a call of the driver that waits for the device, or may: a
 * synchronisation, a blocking copy, an allocation or release of memory. A query of an event does not count.
 */
STANDIN_API uint64_t standin_waits(void);

/* Returns the number of driver calls of the calling thread. */
STANDIN_API uint64_t standin_calls(void);

/* Returns how many calls of this process have failed because CDDP_STANDIN_FAIL says so. Any thread. */
STANDIN_API uint64_t standin_failures(void);

/* Returns the number of threads that were started for streams, and for NCCL. */
STANDIN_API uint64_t standin_threads(void);

/* Returns whether a call of the driver holds the context (CDDP_STANDIN_CONTEXT_LOCK). */
STANDIN_API bool standin_context_held(void);

/*
 * For a stream that captures, as with CUDA's graph API: drop is called with data once nothing needs the graph any more,
 * on any thread, and makes no call of the driver. And: what the stream has captured so far needs no other to wait for
 * it.
 */
STANDIN_API void standin_graph_keeps(struct CUstream_st *s, void (*drop)(void *data), void *data);
STANDIN_API void standin_graph_joins(struct CUstream_st *s);

/* Creates a context that is not the primary one, like cuCtxCreate; it is never destroyed. After cuInit. */
STANDIN_API struct CUctx_st *standin_second_context(int device);

/* Returns the members of the newest communicator's configuration that this version of NCCL reads; others are 0, "". */
struct standin_config {
    char name[64];
    int max_ctas, cta_policy;
};
STANDIN_API void standin_config(struct standin_config *out);

/* Returns what exists now. */
struct standin_live {
    unsigned device_memory, pinned_memory, streams, events, libraries, communicators;
    unsigned registered; /* with NCCL, as windows or not */
};
STANDIN_API void standin_live(struct standin_live *out);

#endif
