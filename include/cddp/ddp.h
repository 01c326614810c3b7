/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer: gradients are averaged in buckets while the backward pass runs. */
#ifndef CDDP_DDP_H
#define CDDP_DDP_H

#include <cddp/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --------------------------------------------------------------------------------------------------- reducer ---- */

typedef struct cddp_param {
    size_t size;           /* sizeof(cddp_param), in each of an array */
    const char *name;      /* for messages and checks */
    void *data;            /* the parameter, on the backend's device. Shared: see cddp_ddp_create */
    size_t count;          /* elements, of the parameter and of its gradient */
    cddp_dtype dtype;      /* of data: CDDP_FLOAT32, ... */
    cddp_dtype grad_dtype; /* of the gradient; 0: dtype. Also CDDP_FLOAT32, where dtype has 16 bits */
    void *grad;            /* NULL: in the arena; else the user's own memory: reduced where it lies, or copied in and
                              out (see cddp_ddp_create) */
    const size_t *shape;   /* optional, n_dims long; its product is count */
    size_t n_dims;         /* at most 64 */
    uint32_t flags;        /* 0; in cddp_fsdp_unit also CDDP_PARAM_FROZEN */
    uint32_t zero;         /* 0 */
    void *user;            /* the program's own: cddp_ddp_user() returns it, and nothing else uses it */
} cddp_param;

typedef struct cddp_ddp_options {
    size_t size;               /* sizeof(cddp_ddp_options) */
    uint32_t flags;            /* CDDP_DDP_... below */
    cddp_dtype comm_dtype;     /* CDDP_FLOAT16, CDDP_BFLOAT16: float32 gradients are sent in that type. CDDP_FLOAT32:
                                  those of 16 bits are sent and summed as float32, and rounded once, after the sum.
                                  Others, and all with 0: as they are */
    size_t bucket_bytes;       /* a bucket closes when it reaches this; 0: 25 MiB. 0 with CDDP_DDP_TUNE */
    size_t first_bucket_bytes; /* the same for the first one, so that communication starts early; 0: 1 MiB */
    size_t last_bucket_bytes;  /* the first parameters' gradients, which come last, get a separate bucket that closes
                                  here, so that little is left to wait for at the end of a step; 0: they do not */
    void *stream;              /* GPU: the compute stream, a cudaStream_t; NULL is the legacy one, which waits for all
                                  blocking ones; cudaStreamPerThread is refused. Unused on the CPU */
    const cddp_param *buffers; /* n_buffers of them, for cddp_ddp_sync_buffers: any types, and no `grad` */
    size_t n_buffers;          /* 0: none */
    const char *name;          /* of the model, for error messages, such as "generator"; copied. NULL: none */
} cddp_ddp_options;

/* cddp_ddp_options.flags. */
enum {
    /* Do not broadcast rank 0's parameters at creation: every rank has already loaded the same ones. */
    CDDP_DDP_NO_BROADCAST = 1,
    /*
     * Gradients become the sum over all ranks, not the mean: the optimizer multiplies by cddp_ddp_grad_scale(). For
     * where the mean would cost a pass over the gradients (on a GPU, where nothing else passes over them: no
     * `comm_dtype`, gradients in the arena), or is wanted in higher precision.
     */
    CDDP_DDP_SUM = 2,
    /*
     * Not every gradient is made in every step: cddp_ddp_wait() counts those as zeros that were not reported ready. The
     * ranks tell each other which they used, in one small collective per step. A gradient that no rank used keeps its
     * old value, so that the optimizer can leave that parameter alone; one that only some ranks used gets the mean over
     * all. On a GPU the device decides by what the ranks told each other, and the host waits for nothing; but with an
     * optimizer (cddp_optim_create) or PowerSGD, which have to know, it waits in every step.
     */
    CDDP_DDP_FIND_UNUSED = 4,
    /*
     * The same gradients are made in every step, each as often as in the first one (a parameter that is used several
     * times is reported ready several times, and the last report counts). The first step finds the unused ones, and
     * therefore does not overlap with communication; a later step that differs is an error that names the gradient. On
     * a GPU the host waits for no step but the first, and for that at the end of the second; with an optimizer or
     * PowerSGD, which have to know what is unused, at its own end.
     */
    CDDP_DDP_STATIC_GRAPH = 8,
    /* Ranks may have different numbers of steps: cddp_ddp_join(). Every rank's flags say so. */
    CDDP_DDP_JOIN = 16,
    /* With it: the mean is over the ranks that still train, and not over all. */
    CDDP_DDP_JOIN_ACTIVE = 32,
    /*
     * A gradient larger than bucket_bytes is cut into several buckets of about equal size, of bucket_bytes at most
     * (rounded up to 64 bytes), which hold no other gradient. Results do not change by it, on the CPU not by a bit.
     */
    CDDP_DDP_SPLIT = 64,
    /*
     * The mean may have weights, which the ranks exchange in every step: cddp_ddp_set_weight(). Every rank's flags say
     * so. Without it nothing is exchanged.
     */
    CDDP_DDP_WEIGHTED = 1024
};

/* The reducer: averages the gradients of one model over all ranks, in buckets, while they are being made. */
typedef struct cddp_ddp cddp_ddp;

/*
 * Creates a reducer for n_params parameters, given in forward order. A collective: every rank calls it.
 *
 * First the names, types, shapes and ties are compared between ranks: if any differs, every rank gets CDDP_E_MISMATCH
 * and an error message that names the first such parameter and two ranks that disagree. Then rank 0's parameter values
 * are broadcast into every rank's `data`. Then one arena for all gradients is made and zeroed. With the "nccl" backend
 * `data` and `grad` are memory of the GPU, and the broadcast comes after the work that is on the compute stream. All
 * this holds for the `data` of buffers, too.
 *
 * Gradients in the user's own memory (cddp_param.grad) are reduced where they lie, as fast as in the arena, if it is
 * memory of all ranks (cddp_alloc with CDDP_MEM_COLLECTIVE, cddp_register) and every rank has them at the same places
 * of it. The order of the parameters does not matter. Neighbours within a bucket are reduced together; small gradients
 * (less than 64 KiB together) without such neighbours are copied into the arena and out of it. So are all others: those
 * in other memory, or that are sent in another type (comm_dtype), and those of a reducer with a hook, PowerSGD or an
 * optimizer. Results do not change by it, on the CPU not by a bit.
 *
 * Parameters with the same `data`, count and type are tied: one memory under several names, such as an embedding that
 * is also the output layer. Each has its own gradient and its own mean. The sum of the means is the gradient of the
 * memory: a program with its own update adds them up, and cddp_optim_step() does so itself. If the backward pass adds
 * up the gradients in one place, as PyTorch does, pass the parameter once. All ranks tie the same ones. Any other byte
 * that two of `data`, `grad` and buffers share is CDDP_E_INVALID, with both names: a fused parameter and its parts, one
 * `grad` of two parameters, a buffer in a parameter. Only buffers may overlap each other.
 *
 * params is copied, names and shapes too; the memory at `data` and `grad` stays the caller's and must outlive ddp. opt
 * may be NULL. *out is written on success only; release it with cddp_ddp_destroy(), before cddp_finalize() or after it.
 * Returns CDDP_OK, CDDP_E_INVALID (no parameter, a missing name or data, an integer type, count 0, a shape whose
 * product is not count, memory of the wrong kind, memory that overlaps, a gradient that does not fit its memory of
 * cddp_alloc, bad opt, a CDDP_DEBUG that is not 0 or 1), CDDP_E_MISMATCH, CDDP_E_NOMEM (this machine or a peer cannot
 * hold the arena), or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_create(cddp_ddp **out, cddp_comm *comm, const cddp_param *params,
                                                    size_t n_params, const cddp_ddp_options *opt);

/*
 * Returns where parameter i's gradient lives: `count` elements, 64-byte aligned, zeroed at creation and never
 * afterwards; or the caller's own memory, where `grad` was given, which is not cleared. The address never changes
 * during the life of ddp, also after an error or cddp_finalize(). The backward pass writes it, every step anew. NULL if
 * i is out of range, ddp is NULL, or in a child made by fork(). Any thread.
 */
CDDP_API void *cddp_ddp_grad(cddp_ddp *ddp, size_t i);

/* Returns cddp_param.user of parameter i; NULL if i is out of range. Any thread, also in a communication hook. */
CDDP_API void *cddp_ddp_user(const cddp_ddp *ddp, size_t i);

/*
 * Reports parameter i's gradient of this step as complete: the caller must neither read nor write it until
 * cddp_ddp_wait(). When the last gradient of a bucket is ready, and every earlier bucket was launched, the bucket's
 * all-reduce starts on the communication thread, or on the communication stream of the GPU, after all work that the
 * compute stream has been given until then. On the CPU the last bucket of a step is left to the thread that calls
 * cddp_ddp_wait(), which saves the hand-over. If nobody waits within 50 us, the communication thread takes it, so that
 * work before cddp_ddp_wait() does not hold up the peers. (Where steps take less than a millisecond, the first late
 * wait may hold them up for about 1 ms.) Never blocks on peers, except with CDDP_DDP_WEIGHTED (cddp_ddp_set_weight).
 * Any thread, several at once.
 *
 * Returns CDDP_OK, CDDP_E_INVALID (no such parameter), CDDP_E_STATE (already ready in this step), or the sticky error.
 * CDDP_E_INVALID and CDDP_E_STATE become the sticky error: this rank cannot end the step, and its peers hear why. (How
 * a step becomes part of a CUDA graph, and what this returns then: cddp/experimental/stream.h.)
 */
CDDP_API cddp_status cddp_ddp_grad_ready(cddp_ddp *ddp, size_t i);

/*
 * Reports a gradient that is made on another stream of the GPU: communication waits for the work that `stream` has been
 * given until the bucket starts, and so the stream must live until cddp_ddp_wait(). On the CPU the stream is not used,
 * since the backend, and not NULL, tells host from device: the gradient must be there, as for cddp_ddp_grad_ready().
 * Also CDDP_E_INVALID: cudaStreamPerThread, which is another stream in the thread that starts the bucket.
 */
CDDP_API cddp_status cddp_ddp_grad_ready_on(cddp_ddp *ddp, size_t i, void *stream);

/*
 * Waits until parameter i's gradient alone is the mean over all ranks, so that an optimizer can begin with the first
 * buckets while the last ones are under way. On the CPU it blocks; on a GPU it makes the compute stream wait, and not
 * the host. Every gradient of the bucket must have been ready, and those of the buckets before. cddp_ddp_wait() is
 * still to be called. Any thread. Returns CDDP_OK; CDDP_E_INVALID (no such parameter); CDDP_E_STATE (its bucket has not
 * started: nothing is broken, it may be asked again); or what a collective may return.
 */
CDDP_API cddp_status cddp_ddp_wait_param(cddp_ddp *ddp, size_t i);

/*
 * Waits until every gradient of this step is the mean over all ranks; then the next step may begin. On the CPU it
 * blocks until then. On a GPU it makes the compute stream wait, and never the host: work that is launched there
 * afterwards finds the means; an error that comes later is returned by the next call. Call it once per step, from one
 * thread, after the last cddp_ddp_grad_ready(). Of a captured step it is the last call (see cddp_ddp_grad_ready).
 *
 * Returns CDDP_OK; CDDP_E_STATE (gradients are missing: the error message names them, and the error is sticky, since
 * peers now wait for them. Or another thread is in this function: then the call does nothing); or what a collective may
 * return, also for calls of this step whose status was ignored. With CDDP_NAN_CHECK=error also CDDP_E_NONFINITE: a rank
 * had a NaN or an infinity in its gradients. With CDDP_CHECK_REPLICAS=N also CDDP_E_MISMATCH, every N steps: parameters
 * differ between ranks. Every rank gets these two with the same message, which names parameter and rank; the step is
 * over, and the next one may begin. CDDP_E_INVALID, on every rank: the sum of the step's weights is 0
 * (cddp_ddp_set_weight); the gradients are zeros, the step is over, and the next one may begin.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_wait(cddp_ddp *ddp);

/*
 * Tells whether any rank used parameter i in the last step. *used is 1 if some rank reported its gradient as ready. It
 * is 0 if no rank did, so that the gradient has its old value. Every rank gets the same answer, without communication:
 * the ranks have exchanged it in the step. Without CDDP_DDP_FIND_UNUSED and CDDP_DDP_STATIC_GRAPH every parameter is
 * used that was not frozen (cddp_ddp_set_frozen), also in captured steps. Where gradients accumulate over several
 * backward passes, the step is the one whose gradients were reported. A report by a rank of weight 0 counts, too.
 *
 * Call it between two steps, from any thread. On a GPU the host waits for the last step. *used is written on success
 * only. Returns CDDP_OK; CDDP_E_INVALID (no such parameter, NULL); CDDP_E_STATE (in the middle of a step; no step has
 * ended yet, or none since cddp_ddp_join or cddp_ddp_set_frozen; nothing is broken); CDDP_E_UNSUPPORTED (the stream
 * captures a graph); or the error of a communicator that has failed.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_was_used(cddp_ddp *ddp, size_t i, int *used);

/*
 * Sets this rank's weight in the mean of the next step, such as its number of samples or tokens, which may be 0. The
 * gradients become sum(w g) / sum(w) over all ranks. So if each rank's gradients are the mean over its own samples, the
 * result is the mean over the samples of all ranks. Call it between two steps, before the first cddp_ddp_grad_ready();
 * it holds for one step, and the last call counts. With gradients that are accumulated over several backward passes it
 * is called once, too. Needs CDDP_DDP_WEIGHTED.
 *
 * In a step in which no rank sets a weight, the mean is as without the flag, also its divisor with CDDP_DDP_JOIN. In a
 * step in which any rank sets one, a rank that sets none counts as 1, and one that is in cddp_ddp_join() as 0, with
 * CDDP_DDP_JOIN_ACTIVE or without. If all weights are equal, the means have the bits of a reducer without weights. A
 * rank with weight 0 adds zeros, whatever its gradients are, also a NaN. With CDDP_DDP_SUM the sum is that by which
 * cddp_ddp_grad_scale() gives this mean. A communication hook gets gradients whose plain mean it is, as does PowerSGD.
 *
 * Each rank multiplies its gradients by w / sum(w), in float32 unless they are float64, and all get the same sum. For
 * that the ranks exchange their weights when a step begins: the cddp_ddp_grad_ready() that fills the first bucket waits
 * until every rank has begun the step, on a GPU in the host. A step with weights cannot be captured in a CUDA graph.
 *
 * If the sum is 0, the end of the step (cddp_ddp_wait, cddp_optim_step) returns CDDP_E_INVALID on every rank, and the
 * gradients are zeros; nothing is broken, and the next step may begin. Any thread. Never blocks on peers. Returns
 * CDDP_OK; CDDP_E_INVALID (ddp is NULL; a weight that is negative, infinite or NaN); CDDP_E_STATE (no
 * CDDP_DDP_WEIGHTED, or in the middle of a step: nothing is broken); or the sticky error.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_set_weight(cddp_ddp *ddp, double weight);

/*
 * Freezes the n parameters that `params` numbers, from the next step on, or with `frozen` 0 trains them again: for
 * groups of layers that are trained by turns. A frozen parameter's gradient is not reported ready, and has the value of
 * before when a step has ended (in between, one in the arena may show zeros). A bucket in which all are frozen is not
 * sent, and zeros travel in the place of the others. An optimizer (cddp_optim_create) leaves the parameter and its
 * state as they are; a norm without one counts the gradient as it is. Tied parameters are one: all of them are frozen,
 * or none.
 *
 * A collective, between two steps, with the same parameters on every rank, which are compared; it blocks. Not while a
 * rank is in cddp_ddp_join(). A step with frozen parameters cannot be captured in a CUDA graph. Returns CDDP_OK;
 * CDDP_E_INVALID (NULL, no such parameter, one of tied parameters without the others); CDDP_E_STATE (in the middle of a
 * step); CDDP_E_UNSUPPORTED (with CDDP_DDP_FIND_UNUSED, where it suffices to report nothing, CDDP_DDP_STATIC_GRAPH, a
 * communication hook or PowerSGD); CDDP_E_MISMATCH (on every rank; nothing has changed); CDDP_E_NOMEM; or what a
 * collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_set_frozen(cddp_ddp *ddp, const size_t *params, size_t n, int frozen);

/*
 * Copies rank 0's buffers (cddp_ddp_options) to every rank: running statistics, and anything else that a model has
 * beside its parameters. Call it before the first forward pass of a step. Without it each rank keeps its own. A
 * collective (small buffers travel together), on the CPU a blocking one; on a GPU the compute stream waits for it, and
 * not the host.
 *
 * With CDDP_DDP_JOIN they become those of the highest rank that still trains, as in PyTorch (which takes one tiny
 * collective more, that blocks on a GPU, too): then, if there are buffers, it must be called once at the start of every
 * step; and cddp_ddp_join hands them out at its end together with the parameters. Without buffers it does nothing.
 *
 * From one thread, between two steps. Returns CDDP_OK; CDDP_E_INVALID (ddp is NULL); CDDP_E_STATE (in the middle of a
 * step, or with CDDP_DDP_JOIN twice in a step; it is sticky); or what a collective may return.
 */
CDDP_API cddp_status cddp_ddp_sync_buffers(cddp_ddp *ddp);

/*
 * Takes part, with zeros, in the steps of the other ranks until none has samples left (of this epoch): a rank calls it
 * after its last sample. Then the rank that trained longest (of several, the highest) gives its parameters to all, and
 * a new epoch may begin. Every rank calls it, also those that end last. It mirrors the reducer's own collectives only,
 * and no others that a program makes in each step. Needs CDDP_DDP_JOIN. A rank that sums (CDDP_DDP_SUM) divides as
 * always. Blocks, on a GPU too. Call it between two steps, from one thread. Returns CDDP_OK; CDDP_E_INVALID;
 * CDDP_E_STATE (no CDDP_DDP_JOIN, or in the middle of a step: nothing is broken); or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_join(cddp_ddp *ddp);

/*
 * Computes the norm of all gradients together, as if they were one vector: norm_type 2 (Euclidean) or INFINITY (the
 * largest magnitude). Call it between cddp_ddp_wait() and the next step, from one thread, on every rank: each rank sums
 * a part, and the parts' sums are reduced. With CDDP_DDP_JOIN, whose ranks may have no step to call it in, each rank
 * sums everything, and nothing is communicated. With CDDP_DDP_SUM it is the norm of the mean. A gradient that no rank
 * used counts as it is, and tied parameters' gradients one by one. A NaN gives NaN, else an infinity gives infinity.
 * Blocks, on a GPU too, since *norm is the host's. *norm is written on success only.
 *
 * Squares are added up in float64 within each 64 bytes of a gradient; the sum of those sums is exact, and rounded once.
 * So the same gradients give the same bits on any number of ranks, in any buckets, with or without an optimizer, on the
 * CPU and on a GPU.
 *
 * With an optimizer (cddp_optim_create), which overwrites the gradients, call it after the last cddp_ddp_grad_ready()
 * and before cddp_optim_step(): it waits for all gradients of the step, each rank sums its share of them, and a
 * gradient that no rank used does not count. Tied parameters count once, with the sum of their means.
 *
 * Returns CDDP_OK; CDDP_E_INVALID (NULL, norm_type); CDDP_E_STATE (in the middle of a step; with an optimizer:
 * gradients are missing, and the error is sticky, as that of cddp_ddp_wait()); CDDP_E_NOMEM; or what a collective may
 * return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_grad_norm(cddp_ddp *ddp, double norm_type, double *norm);

/*
 * Scales the gradients so that their norm is at most max_norm (>= 0), as torch.nn.utils.clip_grad_norm_: they are
 * multiplied by max_norm / (norm + 1e-6) where that is below 1. *norm (may be NULL) is the norm from before. If it is
 * not finite, the gradients become zeros and NaNs by the same formula, or, with error_if_nonfinite, CDDP_E_NONFINITE is
 * returned on every rank and they stay as they are. Otherwise as cddp_ddp_grad_norm. On a GPU norm and factor are made
 * there, and the compute stream waits for the product; the host waits only where it has to know: norm is not NULL, or
 * error_if_nonfinite is not 0.
 *
 *     cddp_ddp_wait(ddp);   cddp_ddp_clip_grad_norm(ddp, 1.0, 2, 1, NULL);   your own optimizer
 *     cddp_ddp_clip_grad_norm(ddp, 1.0, 2, 1, NULL);   cddp_optim_step(optim, NULL);   // with cddp_optim_create
 *
 * Both lines have the same norm, bit for bit, and clip by it. After CDDP_E_NONFINITE cddp_optim_skip() ends the step.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_clip_grad_norm(cddp_ddp *ddp, double max_norm, double norm_type,
                                                            int error_if_nonfinite, double *norm);

/* Returns the factor by which an optimizer multiplies the gradients: 1, or 1/world size with CDDP_DDP_SUM. */
CDDP_API double cddp_ddp_grad_scale(const cddp_ddp *ddp);

/*
 * Frees everything; NULL is allowed. It is local: no peer has to call it, and it waits for none. Communication in
 * flight goes on without the reducer, and the memory that it needs is freed by cddp_finalize. On a GPU, and with
 * gradients that are reduced where they lie, that is the caller's memory: it waits until buckets that have started are
 * done. After an error it returns at once.
 *
 * Nobody hears of it: a peer that counts on the rest of a step, or begins another one, waits as for a late rank, until
 * this one calls cddp_finalize(), and the peer gets CDDP_E_PEER, or timeout_ms is over. After an error in the middle of
 * a step call cddp_abort(), which all hear at once.
 *
 * On a GPU whose gradients lie in a symmetric window (NCCL 2.29.7 and newer) their memory stays until all ranks have
 * destroyed the reducer and the next one is made, or until cddp_finalize().
 */
CDDP_API void cddp_ddp_destroy(cddp_ddp *ddp);

#ifdef __cplusplus
}
#endif

#endif
