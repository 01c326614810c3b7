/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives for users. Each is described by a cddp_coll_args, whose arguments are checked here and nowhere else, and
 * becomes one operation of the backend: enqueued and joined at once, or by cddp_coll_wait.
 */
#include "worker/comm.h"
#include "worker/dtype.h"
#include "worker/memory.h"
#include "worker/sized.h"

#include <stdint.h>
#include <string.h>

/* How many times `count` elements a buffer holds. */
enum extent { NONE, ONE, ALL, COUNTED }; /* ALL: one for each rank; COUNTED: the sum of counts, or counts[rank] */

enum needs {
    REDUCES = 1,      /* op is used */
    ROOTED = 2,       /* root is a rank */
    PEER = 4,         /* root is another rank */
    ON_ROOT_ONLY = 8, /* out is written on root alone */
    ONE_BUFFER = 16   /* out is in, too */
};

static const struct {
    const char *name;
    enum cdi_op_kind kind;
    enum extent in, out;
    unsigned needs;
} kinds[] = {
    [CDDP_COLL_ALL_REDUCE] = {"cddp_all_reduce", CDI_ALL_REDUCE, ONE, ONE, REDUCES},
    [CDDP_COLL_BROADCAST] = {"cddp_broadcast", CDI_BROADCAST, NONE, ONE, ROOTED | ONE_BUFFER},
    [CDDP_COLL_ALL_GATHER] = {"cddp_all_gather", CDI_ALL_GATHER, ONE, ALL, 0},
    [CDDP_COLL_BARRIER] = {"cddp_barrier", CDI_BARRIER, NONE, NONE, 0},
    [CDDP_COLL_REDUCE] = {"cddp_reduce", CDI_REDUCE, ONE, ONE, REDUCES | ROOTED | ON_ROOT_ONLY},
    [CDDP_COLL_ALL_GATHERV] = {"cddp_all_gatherv", CDI_ALL_GATHERV, ONE, COUNTED, 0},
    [CDDP_COLL_REDUCE_SCATTER] = {"cddp_reduce_scatter", CDI_REDUCE_SCATTER, ALL, ONE, REDUCES},
    [CDDP_COLL_ALL_TO_ALL] = {"cddp_all_to_all", CDI_ALL_TO_ALL, ALL, ALL, 0},
    [CDDP_COLL_SEND] = {"cddp_send", CDI_SEND, ONE, NONE, ROOTED | PEER},
    [CDDP_COLL_RECV] = {"cddp_recv", CDI_RECV, NONE, ONE, ROOTED | PEER},
};

/* ----------------------------------------------------------------------------------------- checking arguments ---- */

/* Bytes of a buffer that holds `copies` times `count` elements; false: no memory is that large. */
static bool bytes_of(size_t count, size_t copies, cddp_dtype dtype, size_t *bytes)
{
    return !__builtin_mul_overflow(count, copies, bytes) &&
           !__builtin_mul_overflow(*bytes, cddp_dtype_size(dtype), bytes) && *bytes <= PTRDIFF_MAX;
}

/* What a rank gives to the whole of an uneven gather, and where its own part begins. */
static cddp_status check_counts(const cddp_comm *comm, const cddp_coll_args *w, size_t *sum, size_t *before,
                                struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(comm);

    if (w->counts == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_all_gatherv: counts is NULL, but says how much each rank gives");
    *sum = *before = 0;
    for (int r = 0; r < world->size; r++) {
        *before = r == world->rank ? *sum : *before;
        if (__builtin_add_overflow(*sum, w->counts[r], sum))
            return cdi_fail(err, CDDP_E_INVALID, "cddp_all_gatherv: no memory holds what all ranks give");
    }
    return CDDP_OK;
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

    return x < y + b_bytes && y < x + a_bytes;
}

/* Buffers: there, of a size that memory has, apart from one another or exactly in place. */
static cddp_status check_buffers(const cddp_comm *comm, const cddp_coll_args *w, struct cdi_op *op,
                                 struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(comm);
    const char *name = kinds[w->coll].name;
    enum extent in = kinds[w->coll].in, to = kinds[w->coll].out;
    size_t size = (size_t)world->size, given = w->count, sum = 0, before = 0, part, in_bytes = 0, to_bytes = 0;
    bool writes = (kinds[w->coll].needs & ON_ROOT_ONLY) == 0 || w->root == world->rank;
    cddp_status st = to == COUNTED ? check_counts(comm, w, &sum, &before, err) : CDDP_OK;

    if (st != CDDP_OK)
        return st;
    if (to == COUNTED && w->counts != NULL)
        given = w->counts[world->rank];
    if ((in != NONE && !bytes_of(given, in == ALL ? size : 1, w->dtype, &in_bytes)) ||
        (to != NONE && !bytes_of(to == COUNTED ? sum : w->count, to == ALL ? size : 1, w->dtype, &to_bytes)))
        return cdi_fail(err, CDDP_E_INVALID, "%s: no memory holds %zu elements", name, to == COUNTED ? sum : w->count);
    if (in_bytes > 0 && w->in == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: in is NULL", name);
    if (writes && to_bytes > 0 && w->out == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: out is NULL", name);
    if ((kinds[w->coll].needs & ONE_BUFFER) != 0)
        op->in = w->out;
    if (in_bytes == 0 || to_bytes == 0 || !writes || !overlap(w->in, in_bytes, w->out, to_bytes))
        return CDDP_OK;
    if (w->coll == CDDP_COLL_ALL_TO_ALL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: in and out overlap", name);
    part = (to == COUNTED ? before : (size_t)world->rank * w->count) * cddp_dtype_size(w->dtype);
    if (in == to && w->in != w->out)
        return cdi_fail(err, CDDP_E_INVALID, "%s: in and out overlap, but are not the same", name);
    if (in == ONE && to != ONE && w->in != (const char *)w->out + part)
        return cdi_fail(err, CDDP_E_INVALID, "%s: in overlaps out, but is not this rank's part of it", name);
    if (in == ALL && w->out != (const char *)w->in + part)
        return cdi_fail(err, CDDP_E_INVALID, "%s: out overlaps in, but is not this rank's part of it", name);
    return CDDP_OK;
}

static cddp_status check_reduction(const cddp_coll_args *w, struct cdi_error *err)
{
    const char *name = kinds[w->coll].name;

    if (!cdi_op_valid(w->op))
        return cdi_fail(err, CDDP_E_INVALID, "%s: %d is no cddp_redop", name, (int)w->op);
    if (w->op == CDDP_AVG && !cdi_dtype_is_float(w->dtype))
        return cdi_fail(err, CDDP_E_INVALID, "%s: a mean of %s is not defined, use a floating-point type", name,
                        cdi_dtype_name(w->dtype));
    return CDDP_OK;
}

static cddp_status check_root(const cddp_comm *comm, const cddp_coll_args *w, struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(comm);
    const char *name = kinds[w->coll].name;
    bool peer = (kinds[w->coll].needs & PEER) != 0;

    if (w->root < 0 || w->root >= world->size)
        return cdi_fail(err, CDDP_E_INVALID, "%s: %s %d is not a rank of a world of %d", name, peer ? "peer" : "root",
                        w->root, world->size);
    if (peer && w->root == world->rank)
        return cdi_fail(err, CDDP_E_INVALID, "%s: rank %d cannot exchange a message with itself", name, w->root);
    return CDDP_OK;
}

/* From what the user says to what the backend does. */
static cddp_status translate(cddp_comm *comm, const cddp_coll_args *w, struct cdi_op *op, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    unsigned needs;

    if (w->coll < CDDP_COLL_ALL_REDUCE || w->coll > CDDP_COLL_RECV)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_coll_args.coll is %d, which is no collective", (int)w->coll);
    if (comm == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: comm is NULL", kinds[w->coll].name);
    st = cdi_comm_own(kinds[w->coll].name, comm, err);
    if (st != CDDP_OK)
        return st;
    needs = kinds[w->coll].needs;
    *op = (struct cdi_op){.kind = kinds[w->coll].kind,
                          .in = w->in,
                          .out = w->out,
                          .count = w->count,
                          .counts = w->counts,
                          .dtype = w->dtype,
                          .op = w->op,
                          .root = w->root,
                          .bucket = -1};
    if (w->coll == CDDP_COLL_BARRIER)
        return CDDP_OK;
    if (!cdi_dtype_valid(w->dtype))
        return cdi_fail(err, CDDP_E_INVALID, "%s: %d is no cddp_dtype", kinds[w->coll].name, (int)w->dtype);
    if ((needs & ROOTED) != 0)
        st = check_root(comm, w, err);
    if (st == CDDP_OK && (needs & REDUCES) != 0)
        st = check_reduction(w, err);
    if (st == CDDP_OK)
        st = check_buffers(comm, w, op, err);
    if (st == CDDP_OK)
        cdi_memory_place(comm, op);
    return st;
}

/* ------------------------------------------------------------------------------------------------- blocking ---- */

static cddp_status run(cddp_comm *comm, const cddp_coll_args *w, struct cdi_error *err)
{
    struct cdi_op op;
    uint64_t ticket;
    cddp_status st = translate(comm, w, &op, err);

    op.lazy = true;
    op.asked = cdi_comm_asked();
    if (st == CDDP_OK)
        st = cdi_comm_ops(comm)->enqueue(cdi_comm_backend(comm), &op, &ticket, err);
    return st == CDDP_OK ? cdi_comm_ops(comm)->join(cdi_comm_backend(comm), ticket, err) : st;
}

static cddp_status told(cddp_status st, struct cdi_error *err)
{
    if (st == CDDP_OK)
        return st;
    err->status = st;
    return cdi_last_error_set(err);
}

static cddp_status run_aloud(cddp_comm *comm, const cddp_coll_args *w)
{
    struct cdi_error err;

    return told(run(comm, w, &err), &err);
}

cddp_status cdi_comm_all_reduce(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype,
                                cddp_redop op, struct cdi_error *err)
{
    return run(
        comm,
        &(cddp_coll_args){.coll = CDDP_COLL_ALL_REDUCE, .in = in, .out = to, .count = count, .dtype = dtype, .op = op},
        err);
}

cddp_status cdi_comm_broadcast(cddp_comm *comm, void *buf, size_t count, cddp_dtype dtype, int root,
                               struct cdi_error *err)
{
    return run(comm,
               &(cddp_coll_args){.coll = CDDP_COLL_BROADCAST, .out = buf, .count = count, .dtype = dtype, .root = root},
               err);
}

cddp_status cdi_comm_all_gather(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype,
                                struct cdi_error *err)
{
    return run(comm,
               &(cddp_coll_args){.coll = CDDP_COLL_ALL_GATHER, .in = in, .out = to, .count = count, .dtype = dtype},
               err);
}

cddp_status cddp_all_reduce(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype, cddp_redop op)
{
    struct cdi_error err;

    return told(cdi_comm_all_reduce(comm, in, to, count, dtype, op, &err), &err);
}

cddp_status cddp_broadcast(cddp_comm *comm, void *buf, size_t count, cddp_dtype dtype, int root)
{
    struct cdi_error err;

    return told(cdi_comm_broadcast(comm, buf, count, dtype, root, &err), &err);
}

cddp_status cddp_all_gather(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype)
{
    struct cdi_error err;

    return told(cdi_comm_all_gather(comm, in, to, count, dtype, &err), &err);
}

cddp_status cddp_all_gatherv(cddp_comm *comm, const void *in, void *to, const size_t *counts, cddp_dtype dtype)
{
    return run_aloud(
        comm, &(cddp_coll_args){.coll = CDDP_COLL_ALL_GATHERV, .in = in, .out = to, .counts = counts, .dtype = dtype});
}

cddp_status cddp_reduce(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype, cddp_redop op,
                        int root)
{
    return run_aloud(
        comm,
        &(cddp_coll_args){
            .coll = CDDP_COLL_REDUCE, .in = in, .out = to, .count = count, .dtype = dtype, .op = op, .root = root});
}

cddp_status cddp_reduce_scatter(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype,
                                cddp_redop op)
{
    return run_aloud(
        comm, &(cddp_coll_args){
                  .coll = CDDP_COLL_REDUCE_SCATTER, .in = in, .out = to, .count = count, .dtype = dtype, .op = op});
}

cddp_status cddp_all_to_all(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype)
{
    return run_aloud(
        comm, &(cddp_coll_args){.coll = CDDP_COLL_ALL_TO_ALL, .in = in, .out = to, .count = count, .dtype = dtype});
}

cddp_status cddp_send(cddp_comm *comm, const void *buf, size_t count, cddp_dtype dtype, int to)
{
    return run_aloud(comm,
                     &(cddp_coll_args){.coll = CDDP_COLL_SEND, .in = buf, .count = count, .dtype = dtype, .root = to});
}

cddp_status cddp_recv(cddp_comm *comm, void *buf, size_t count, cddp_dtype dtype, int from)
{
    return run_aloud(
        comm, &(cddp_coll_args){.coll = CDDP_COLL_RECV, .out = buf, .count = count, .dtype = dtype, .root = from});
}

cddp_status cddp_barrier(cddp_comm *comm)
{
    return run_aloud(comm, &(cddp_coll_args){.coll = CDDP_COLL_BARRIER});
}

/* --------------------------------------------------------------------------------------------- non-blocking ---- */

static cddp_status start(cddp_comm *comm, const cddp_coll_args *work, uint64_t *ticket, struct cdi_error *err)
{
    cddp_coll_args w;
    struct cdi_op op;
    cddp_status st;

    if (work == NULL || ticket == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_coll_start: work and ticket must not be NULL");
    st = cdi_sized_get(&w, sizeof w, work, "cddp_coll_args", err);
    if (st == CDDP_OK)
        st = translate(comm, &w, &op, err);
    return st == CDDP_OK ? cdi_comm_ops(comm)->enqueue(cdi_comm_backend(comm), &op, ticket, err) : st;
}

cddp_status cddp_coll_start(cddp_comm *comm, const cddp_coll_args *work, uint64_t *ticket)
{
    struct cdi_error err;

    return told(start(comm, work, ticket, &err), &err);
}

cddp_status cddp_coll_wait(cddp_comm *comm, uint64_t ticket)
{
    struct cdi_error err;

    if (comm == NULL)
        return told(cdi_fail(&err, CDDP_E_INVALID, "cddp_coll_wait: comm is NULL"), &err);
    if (cdi_comm_own("cddp_coll_wait", comm, &err) != CDDP_OK)
        return told(CDDP_E_STATE, &err);
    return told(cdi_comm_ops(comm)->join(cdi_comm_backend(comm), ticket, &err), &err);
}
