/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for parameters and gradients, on the host or on a GPU. */
#ifndef CDDP_MEMORY_H
#define CDDP_MEMORY_H

#include <cddp/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- memory ---- */

/* Where a communicator's memory and work are. */
typedef struct cddp_device_info {
    size_t size;           /* sizeof(cddp_device_info), set by the caller */
    int device;            /* CUDA's number of the GPU in this process; -1: the CPU */
    int numa_node;         /* that the GPU is near to; -1: unknown */
    uint64_t memory_bytes; /* of the GPU; 0: the CPU */
    char name[96];         /* "NVIDIA H200"; "cpu" */
    char pci[32];          /* "0000:17:00.0"; "" for the CPU */
} cddp_device_info;

/* Writes into *info where comm works. Returns CDDP_OK; CDDP_E_INVALID (info, or its size). Any thread. */
CDDP_API cddp_status cddp_get_device_info(cddp_comm *comm, cddp_device_info *info);

/* For cddp_alloc and cddp_register. 0: memory of this rank only. */
enum {
    /*
     * Memory of all ranks: every rank makes the same call, with the same size, and in the same order among its
     * collectives. Where the backend is "cpu", the ranks of a node share it, and reduce it in place without a copy.
     */
    CDDP_MEM_COLLECTIVE = 1,
    CDDP_MEM_HOST = 2 /* memory of the host, pinned where there is a GPU, so that copies to and from it are faster */
};

/*
 * Allocates memory for parameters and gradients where the backend works, on its GPU or on the host: 64-byte aligned,
 * not cleared. A program that uses these and nothing else of CUDA runs on both. flags: 0, or CDDP_MEM_... above.
 *
 * In memory with CDDP_MEM_COLLECTIVE reducers work without a copy (cddp_param.grad), and so do cddp_all_reduce,
 * cddp_all_gather and cddp_reduce_scatter in place, if all ranks of a node pass the same place of it. They may pass
 * different places, or other memory, and get the same result, at the price of copies. The call is a collective then.
 *
 * *out is written on success only and is released by cddp_free before cddp_finalize; with CDDP_MEM_COLLECTIVE after the
 * reducers that use it. Returns CDDP_OK; CDDP_E_INVALID (unknown flags); CDDP_E_NOMEM (also more than the node, or a
 * cgroup of it, has left); CDDP_E_SYSTEM; with CDDP_MEM_COLLECTIVE also CDDP_E_MISMATCH (ranks give different sizes or
 * flags), CDDP_E_UNSUPPORTED (with CDDP_MEM_HOST, where the backend works on a GPU), or what a collective may return.
 * After an error no rank has the memory. Any thread; with CDDP_MEM_COLLECTIVE one thread at a time.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_alloc(cddp_comm *comm, size_t bytes, uint32_t flags, void **out);
/*
 * Frees memory of cddp_alloc, which nothing uses any more; NULL is allowed. Local: no peer takes part. On a GPU it
 * waits for all work there: call it while no other thread has a collective in flight. Any thread.
 */
CDDP_API void cddp_free(cddp_comm *comm, void *p);
/*
 * Registers the program's own `bytes` bytes at p, so that reducers work on gradients in it without a copy
 * (cddp_param.grad). flags is CDDP_MEM_COLLECTIVE: every rank calls it, as cddp_alloc with that flag. The memory is
 * where the backend works, and does not overlap other registered memory or that of cddp_alloc. It stays the caller's,
 * and must stay until cddp_unregister.
 *
 * Returns CDDP_OK; CDDP_E_INVALID (p, bytes, flags, memory that overlaps, or not of the backend's kind);
 * CDDP_E_UNSUPPORTED (flags 0, which would gain nothing; or the backend is "cpu" and a node has several ranks, which
 * cannot share the caller's own memory: cddp_alloc has what they can); CDDP_E_MISMATCH; CDDP_E_NOMEM; or what a
 * collective may return. After an error it is registered on no rank, and gradients in it are copied. One thread at a
 * time.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_register(cddp_comm *comm, void *p, size_t bytes, uint32_t flags);
/*
 * Ends the registration of the memory at p: to be called after the reducers that use it were destroyed, and before the
 * memory is freed. Every registration ends with comm. Local: no peer takes part. Returns CDDP_OK or CDDP_E_INVALID
 * (nothing registered begins at p). Any thread.
 */
CDDP_API cddp_status cddp_unregister(cddp_comm *comm, void *p);
/*
 * Copies `bytes` bytes between host memory and the GPU's, or within either. It runs after the collectives and reducer
 * steps that were begun before, and is done on return; streams of the program's own that use the memory must have been
 * waited for. CDDP_OK, CDDP_E_INVALID, CDDP_E_SYSTEM, or what a collective may return. Any thread.
 *
 * Here and in collectives, memory of another GPU than this rank's is CDDP_E_INVALID, and the error message names both:
 * usually cudaSetDevice was not called. So is memory of a context of the GPU's that is not the primary one, which the
 * CUDA runtime uses. Managed memory is taken as the GPU's. Memory from malloc is host memory on every machine, even
 * where the GPU could reach it (HMM, Grace): NCCL does not take it, so collectives on it pass through pinned memory,
 * and a reducer refuses it.
 */
CDDP_API cddp_status cddp_copy(cddp_comm *comm, void *to, const void *from, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
