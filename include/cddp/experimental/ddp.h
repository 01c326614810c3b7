/* SPDX-License-Identifier: Apache-2.0 */
/* More of the reducer: sizes of buckets, unused buckets, ranks that must not end early. */
#ifndef CDDP_EXPERIMENTAL_DDP_H
#define CDDP_EXPERIMENTAL_DDP_H

#ifndef CDDP_EXPERIMENTAL
#error "this may change in any version: define CDDP_EXPERIMENTAL to use it"
#endif

#include <cddp/ddp.h>

#ifdef __cplusplus
extern "C" {
#endif

/* -------------------------------------------------------------------------------------- experimental reducer ---- */

/* More of cddp_ddp_options.flags. */
enum {
    /*
     * With CDDP_DDP_JOIN: a rank that has no more samples while others still train is an error, for all: cddp_ddp_wait
     * and cddp_ddp_join of that step return CDDP_E_STATE and an error message with its rank; the reducer, but not the
     * communicator, then keeps that error. On a GPU the host waits for every step.
     */
    CDDP_DDP_JOIN_STRICT = 128,
    /*
     * With CDDP_DDP_FIND_UNUSED or CDDP_DDP_STATIC_GRAPH: a bucket of which no rank used any gradient is not reduced,
     * as with PyTorch's skip_all_reduce_unused_params. A bucket that nobody used in the step before has no turn: others
     * do not wait for it, and if some rank uses it after all (from which PyTorch hangs), it is reduced at the end of
     * the step. Results do not change by it. On a GPU it is the host that starts collectives, so it has to know which
     * buckets somebody uses: it waits for each step when the first gradient of the next one is ready; where buckets
     * were not used in the step before, at the end of the step itself. Not with communication hooks or PowerSGD.
     */
    CDDP_DDP_SKIP_UNUSED = 256,
    /*
     * The first steps find out which size of buckets is best here. first_bucket_bytes times 1, 4, 10, 25, 50 and 100 (1
     * to 100 MiB), as far as they cut this model differently, take turns from the third step on, seven steps each. The
     * one with the smallest median of rank 0's times, from a step's first gradient to the end of its cddp_ddp_wait,
     * stays, on all ranks. Results do not change by it, on the CPU not by a bit. While it lasts (45 steps at most)
     * bucket counts change from step to step; on a GPU the host waits for these steps. Not with cddp_optim_create.
     */
    CDDP_DDP_TUNE = 512
};

/*
 * Returns the bucket_bytes in force: that of the options, or 25 MiB; with CDDP_DDP_TUNE the chosen one, and 0 until
 * then. From the thread that calls cddp_ddp_wait, as the next two.
 */
CDDP_API size_t cddp_ddp_bucket_cap(const cddp_ddp *ddp);
/* Return the number of buckets, and the size in bytes of bucket b (0 if there is none), in the order of their launch.
 */
CDDP_API size_t cddp_ddp_bucket_count(const cddp_ddp *ddp);
CDDP_API size_t cddp_ddp_bucket_bytes(const cddp_ddp *ddp, size_t b);

/*
 * The times of a reducer's steps on this rank: sums over `steps` steps, and those of the last one. A step lasts from
 * the end of the one before to its own end, so the first one does not count. A bucket counts as communicated from the
 * start of its all-reduce to its end, and with a divided optimizer (optim.h) also while its parameters are exchanged;
 * buckets of a hook or of PowerSGD do not count.
 *
 * On a GPU all times are those of the GPU. A bucket is communicated from the moment at which the compute stream has
 * made its gradients and the bucket before it is done. The program "waits" where the compute stream does. Steps in CUDA
 * graphs do not count. Of the others only the first ten and each eighth are measured, since it costs a short step 2 to
 * 3 % of its time; with CDDP_TIMING=all in the environment each one is. Sums are of steps that were measured. A step
 * counts when the GPU has ended it and libcddp has noticed, which takes some milliseconds; it is left out if the host
 * is far ahead (16 steps, or about 1,000 buckets).
 */
typedef struct cddp_ddp_stats {
    size_t size; /* sizeof(cddp_ddp_stats) */
    uint64_t steps;
    int64_t step_ns;     /* the next four are parts of it */
    int64_t forward_ns;  /* until the first gradient is ready: optimizer, next batch, forward pass */
    int64_t backward_ns; /* from there until the last bucket is ready */
    int64_t comm_ns;     /* some bucket is communicated */
    int64_t exposed_ns;  /* of comm_ns: while the program waits for it */
    int64_t hidden_ns;   /* of comm_ns: while it does not */
    int64_t thread_ns;   /* of hidden_ns: processor time of libcddp's thread, which is lost where no core is spare */
    int64_t late_ns;     /* of exposed_ns: until the last rank has arrived */
    uint64_t bytes;      /* of gradients that were averaged */
    /* The same of the last step. */
    int64_t last_step_ns, last_forward_ns, last_backward_ns, last_comm_ns, last_exposed_ns, last_hidden_ns,
        last_thread_ns, last_late_ns;
    uint64_t last_bytes;
    /*
     * As this rank has seen it, without a word from the others: the rank of the job that it has waited for longest in
     * all steps, and in how many steps it waited for that one longest; -1: none. The slowest rank itself waits for
     * nobody, and so may name any other, with a small late_ns. Over several nodes, a rank sees its own node and the two
     * beside it. Over MPI and on a GPU it is not known, and late_ns is 0.
     */
    uint64_t slowest_steps;
    int32_t slowest_rank;
    int32_t last_slowest_rank; /* in the last step */
    size_t n_buckets;
    size_t bucket_bytes; /* of all buckets together */
    size_t largest_bucket_bytes;
    uint64_t rebuilds; /* how often the buckets were cut or ordered anew */
    /* The parts of comm_ns, hidden or not; where nobody knows who is late, all of it is transfer_ns. */
    int64_t waiting_ns;  /* every bucket that has started waits for its last rank */
    int64_t transfer_ns; /* all ranks have begun some bucket, and it is moved and summed */
    int64_t last_waiting_ns, last_transfer_ns;
} cddp_ddp_stats;

/*
 * Fills in *stats, whose size the caller has set. With CDDP_TIMING=off in the environment only the buckets are known,
 * and the rest is 0. Never blocks on peers. Any thread. Returns CDDP_OK; CDDP_E_INVALID (NULL, or a size that was not
 * set); CDDP_E_STATE (in a child of the process that made ddp).
 */
CDDP_API cddp_status cddp_ddp_get_stats(cddp_ddp *ddp, cddp_ddp_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
