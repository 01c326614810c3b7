/* SPDX-License-Identifier: Apache-2.0 */
/* Your own communication in place of the all-reduce of each bucket. */
#ifndef CDDP_EXPERIMENTAL_HOOK_H
#define CDDP_EXPERIMENTAL_HOOK_H

#ifndef CDDP_EXPERIMENTAL
#error "this may change in any version: define CDDP_EXPERIMENTAL to use it"
#endif

#include <cddp/ddp.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------- experimental hooks ---- */

/* A full bucket, as a communication hook sees it. */
typedef struct cddp_bucket {
    size_t size;  /* sizeof(cddp_bucket) of the library */
    size_t index; /* in the order of their launch, the same on every rank */
    int is_last;
    cddp_dtype dtype;
    void *data;           /* this rank's gradients, in the arena, one after another, each 64-byte aligned */
    size_t count;         /* elements from the first gradient to the last; the padding between them is zeros */
    const size_t *params; /* whose gradients they are, by number; valid during the call */
    size_t n_params;
    size_t offset; /* data begins at this element of the first gradient: 0, but where CDDP_DDP_SPLIT has cut it */
    void *stream;  /* GPU: the communication stream, a cudaStream_t; NULL on the CPU */
} cddp_bucket;

/*
 * Two functions that replace the all-reduce of each bucket. Both return CDDP_OK, or a status that ends the job. They
 * must not call functions of the reducer, which return CDDP_E_STATE then.
 *
 * On a GPU work is only queued when they are called, and neither has to wait. `data` is memory of the GPU, and
 * bucket->stream is the stream on which libcddp's collectives run. After the work on it when begin is called, the
 * gradients are complete. After the work on it when end is called, everything that begin began is done. A hook puts its
 * kernels and copies on that stream, or on another stream that waits for that one, by an event, and for which that one
 * waits before the function returns; collectives by cddp_coll_start, on memory of the GPU (cddp_alloc). All of it runs
 * in the order in which it was put there, so work that begin queues after a cddp_coll_start finds its result.
 * cddp_ddp_wait, and cddp_ddp_wait_param, make the compute stream wait for all of it. Neither a cddp_coll_wait nor a
 * ticket is needed for that; and memory that the hook uses may be freed once ddp was destroyed or the compute stream
 * was waited for.
 *
 * The GPU is the calling thread's current device while a function of the hook runs. Waits for the GPU (blocking
 * collectives, cddp_coll_wait, cddp_copy, cudaStreamSynchronize) are allowed in end, at the price that the host waits
 * in that step. A hook does not keep the stream's handle for later, and does not destroy or capture it.
 */
typedef struct cddp_hook {
    size_t size; /* sizeof(cddp_hook) */
    /*
     * The bucket is full: begin what is to be done, by cddp_coll_start on comm. *ticket is 0, and becomes what
     * cddp_coll_start gave last. Called in the order of the buckets, the same on every rank, by the thread that
     * reported the last gradient; it should not wait for peers.
     */
    cddp_status (*begin)(void *arg, cddp_comm *comm, const cddp_bucket *bucket, uint64_t *ticket);
    /*
     * The work that begin started is done (on a GPU: see above): leave in bucket->data the final gradients, usually
     * their mean. In the order of the buckets, by the thread that waits; it may use collectives, as all ranks come to
     * the same bucket. NULL: nothing.
     */
    cddp_status (*end)(void *arg, cddp_comm *comm, const cddp_bucket *bucket);
    void *arg; /* for both; the caller's, and must outlive the reducer */
} cddp_hook;

/*
 * Makes the reducer communicate by a hook; hook is copied, NULL goes back to the all-reduce. Every rank does the same,
 * between the same two steps; a collective where gradients were reduced where they lie, which are copied from now on.
 *
 * Returns CDDP_OK; CDDP_E_INVALID (a bad hook, a reducer that compresses or skips); CDDP_E_STATE (in the middle of a
 * step, or bucket sizes are still being tried); CDDP_E_UNSUPPORTED (parameters are frozen: cddp_ddp_set_frozen);
 * CDDP_E_NOMEM; where it is a collective also CDDP_E_MISMATCH (a rank passes NULL, and another one does not), or what
 * a collective may return, and all ranks get the error of one. One thread. It ends PowerSGD, too.
 */
CDDP_API cddp_status cddp_ddp_set_hook(cddp_ddp *ddp, const cddp_hook *hook);

#ifdef __cplusplus
}
#endif

#endif
