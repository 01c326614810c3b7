/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in's communicators: the interface of comm.c (their life), call.c (operations, groups) and collective.c
 * (data).
 */
#ifndef SI_COMM_H
#define SI_COMM_H

#include "core.h"
#include "segment.h"

#include <nccl.h>

/* Queried by dlsym: a function that resolves to NULL does not exist. */
#define SI_NEWER(function, code, implementation)                                \
    __attribute__((used)) static __typeof__(function) *resolve_##function(void) \
    {                                                                           \
        return si_version_code() >= (code) ? (implementation) : NULL;           \
    }                                                                           \
    SI_EXPORT __typeof__(function) function __attribute__((ifunc("resolve_" #function)));

/* By number, since the oldest supported header has no name for them. */
#define SI_CONFIG_MAGIC 0xcafebeefu
#define SI_WINDOW_ALIGNMENT 4096
#define SI_TIMEOUT 8

#define SI_GROUP_CALLS 512
#define SI_CONNECTED 256

struct si_window {
    struct si_window *next;
    struct si_alloc *alloc;
    const char *at;
    size_t bytes;
    bool symmetric; /* all ranks have it */
    uint64_t place; /* the offset of this rank in the memory of all symmetric ones */
};

struct ncclComm {
    uint32_t refs; /* the handle, each queued operation, a task. Locked */
    CUcontext ctx;
    struct segment seg;
    char name[64];
    uint8_t number; /* of its creation in this process: 1, 2, ... */
    struct standin_config config;
    bool blocking, finalized, revoked;
    uint32_t abort;
    int32_t state;     /* ncclResult_t, atomic: of the last call or its thread */
    int32_t broken;    /* ncclResult_t, atomic: an error on the network or a stream; it is never cleared */
    uint32_t tasks;    /* running; a wait for their end sleeps on it */
    uint32_t captured; /* launches that graphs hold; likewise */
    uint32_t deaf;     /* operations that run, and that no abort ends */
    uint32_t inside;   /* callers of a blocking communicator that may wait for peers */
    uint64_t sequence;
    uint64_t random;
    struct si_stop *last;             /* after the last operation that was pushed. Locked */
    bool met[SEGMENT_RANKS];          /* a message was sent to this rank, or received from it */
    uint64_t connected[SI_CONNECTED]; /* launches so far (connect.c) */
    size_t n_connected;
    struct si_window *windows, *buffers; /* registered. Locked */
    char last_error[256];
};

enum si_call_kind {
    SI_ALL_REDUCE,
    SI_BROADCAST,
    SI_REDUCE,
    SI_ALL_GATHER,
    SI_REDUCE_SCATTER,
    SI_SEND,
    SI_RECV,
};

struct si_call {
    enum si_call_kind kind;
    const char *name;
    const char *send;
    char *recv;
    size_t count; /* of the input of each rank; reduce_scatter: of its output */
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;       /* send, recv: the other rank */
    int64_t offset; /* in the symmetric window; -1: in none */
    bool mean_after_sum;
    bool deaf;    /* its kernel looks at no abort flag */
    size_t moved; /* send, recv: bytes so far */
};

/* The work of one launch on one stream. */
struct si_calls {
    struct ncclComm *comm;
    bool captured;
    size_t n;
    struct si_call call[];
};

/* Rejects a call: keeps the error message for ncclGetLastError (comm may be NULL), prints it on stderr, returns rc. */
ncclResult_t si_comm_refuse(struct ncclComm *comm, ncclResult_t rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool si_comm_is_alive(const struct ncclComm *comm);
ncclResult_t si_comm_state(const struct ncclComm *comm);
/* Returns ncclRemoteError for an internal error rc that follows the end of a rank (segment_lost), otherwise rc. */
ncclResult_t si_comm_cut(struct ncclComm *comm, ncclResult_t rc);
/* Makes the status of a rejected call the state of a communicator that does not block. Returns rc. */
ncclResult_t si_comm_keep(struct ncclComm *comm, ncclResult_t rc);
/* Returns ncclSuccess if it is alive and idle, otherwise the result for the call. */
ncclResult_t si_comm_check(struct ncclComm *comm, const char *function);
void si_comm_ref(struct ncclComm *comm);
void si_comm_unref(struct ncclComm *comm);
/*
 * Starts work that NCCL does beside the caller: at once in a blocking communicator (*arg and the result are the
 * caller's); otherwise in a separate thread, with ncclInProgress. fn frees arg.
 */
ncclResult_t si_comm_task(struct ncclComm *comm, ncclResult_t (*fn)(struct ncclComm *comm, void *arg), void *arg);
/*
 * Does the same in a separate thread in any case; the other waits until no task runs, and returns the communicator's
 * state.
 */
ncclResult_t si_comm_launch(struct ncclComm *comm, ncclResult_t (*fn)(struct ncclComm *comm, void *arg), void *arg);
ncclResult_t si_comm_await(struct ncclComm *comm);
/* Waits a random time, for events beside the caller. */
void si_comm_dawdle(struct ncclComm *comm);

/* Collects this task until the group ends, if there is a group. */
bool si_group_defers(struct ncclComm *comm, ncclResult_t (*fn)(struct ncclComm *comm, void *arg), void *arg);

/* Waits for all ranks if this launch needs connections that do not exist yet. Returns false if aborted. */
bool si_connect(const struct si_calls *c);

/* Executes the calls of one launch, on the thread of the stream. */
void si_run_calls(struct si_calls *c);
size_t si_type_size(ncclDataType_t type); /* 0: not offered */
bool si_is_float8(ncclDataType_t type);

/* Instrumented (touch_data.c). */
void si_touch_reduce(void *out, const void *const *in, int n, size_t count, ncclDataType_t type, ncclRedOp_t op);
void si_touch_scale(void *to, const void *from, size_t count, ncclDataType_t type, double factor);
/* x /= n, for integers. */
void si_touch_divide(void *x, size_t count, ncclDataType_t type, int n);

#endif
