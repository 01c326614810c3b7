/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Public collectives. Each cddp_coll_args becomes operations of the backend (coll_args.c), which are enqueued and
 * joined at once, or joined by cddp_coll_wait.
 */
#include "common/float_state.h"
#include "worker/backend/describe.h"
#include "worker/base/sized.h"
#include "worker/comm/coll_args.h"
#include "worker/comm/comm.h"
#include "worker/comm/memory.h"

#include <stdlib.h>

/* ------------------------------------------------------------------------------------------------- blocking ---- */

/* name: the public function. */
static cddp_status check_comm(const char *name, const cddp_comm *comm, struct cdi_error *err)
{
    if (comm == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: comm is NULL", name);
    return cdi_comm_own(name, comm, err);
}

/* Checks all reductions before the first operation, so that no rank begins one that the backend does not support. */
static cddp_status check_reductions(cddp_comm *comm, const struct cdi_coll *ops, size_t n, struct cdi_error *err)
{
    const struct cdi_backend_ops *backend = cdi_comm_ops(comm);

    for (size_t i = 0; i < n; i++) {
        bool reduces = ops[i].kind == CDI_ALL_REDUCE || ops[i].kind == CDI_REDUCE || ops[i].kind == CDI_REDUCE_SCATTER;
        char text[192];

        if (!reduces || backend->check_reduction(cdi_comm_backend(comm), ops[i].dtype, ops[i].op, err) == CDDP_OK)
            continue;
        cdi_coll_text(&ops[i], text, sizeof text);
        return cdi_error_wrap(err, "%s", text);
    }
    return CDDP_OK;
}

static cddp_status coll_run(cddp_comm *comm, const char *name, const cddp_coll_args *w, struct cdi_error *err)
{
    struct cdi_coll op;
    uint64_t ticket;
    cddp_status st = check_comm(name, comm, err);

    if (st == CDDP_OK)
        st = cdi_coll_op(cdi_comm_world(comm), w, &op, err);
    if (st == CDDP_OK)
        st = check_reductions(comm, &op, 1, err);
    if (st != CDDP_OK)
        return st;
    cdi_memory_place(comm, &op);
    op.lazy = true;
    cdi_api_mark(&op);
    if (cdi_comm_ops(comm)->run != NULL)
        return cdi_comm_ops(comm)->run(cdi_comm_backend(comm), &op, err);
    st = cdi_comm_ops(comm)->enqueue(cdi_comm_backend(comm), &op, &ticket, err);
    return st == CDDP_OK ? cdi_comm_ops(comm)->join(cdi_comm_backend(comm), ticket, err) : st;
}

static cddp_status coll_result(cddp_status st, struct cdi_error *err)
{
    if (st == CDDP_OK)
        return st;
    err->status = st;
    return cdi_last_error_set(err);
}

static cddp_status coll_run_public(cddp_comm *comm, const char *name, const cddp_coll_args *w)
{
    struct cdi_error err;

    return coll_result(coll_run(comm, name, w, &err), &err);
}

cddp_status cdi_comm_all_reduce(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype,
                                cddp_redop op, struct cdi_error *err)
{
    return coll_run(
        comm, "cddp_all_reduce",
        &(cddp_coll_args){.coll = CDDP_COLL_ALL_REDUCE, .in = in, .out = to, .count = count, .dtype = dtype, .op = op},
        err);
}

cddp_status cdi_comm_broadcast(cddp_comm *comm, void *buf, size_t count, cddp_dtype dtype, int root,
                               struct cdi_error *err)
{
    return coll_run(
        comm, "cddp_broadcast",
        &(cddp_coll_args){.coll = CDDP_COLL_BROADCAST, .out = buf, .count = count, .dtype = dtype, .root = root}, err);
}

cddp_status cdi_comm_all_gather(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype,
                                struct cdi_error *err)
{
    return coll_run(
        comm, "cddp_all_gather",
        &(cddp_coll_args){.coll = CDDP_COLL_ALL_GATHER, .in = in, .out = to, .count = count, .dtype = dtype}, err);
}

cddp_status cddp_all_reduce(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype, cddp_redop op)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;

    return coll_result(cdi_comm_all_reduce(comm, in, to, count, dtype, op, &err), &err);
}

cddp_status cddp_broadcast(cddp_comm *comm, void *buf, size_t count, cddp_dtype dtype, int root)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;

    return coll_result(cdi_comm_broadcast(comm, buf, count, dtype, root, &err), &err);
}

cddp_status cddp_all_gather(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;

    return coll_result(cdi_comm_all_gather(comm, in, to, count, dtype, &err), &err);
}

cddp_status cddp_all_gatherv(cddp_comm *comm, const void *in, void *to, const size_t *counts, cddp_dtype dtype)
{
    CDI_DEFAULT_FLOAT_STATE;

    return coll_run_public(
        comm, "cddp_all_gatherv",
        &(cddp_coll_args){.coll = CDDP_COLL_ALL_GATHERV, .in = in, .out = to, .out_counts = counts, .dtype = dtype});
}

cddp_status cddp_reduce(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype, cddp_redop op,
                        int root)
{
    CDI_DEFAULT_FLOAT_STATE;

    return coll_run_public(
        comm, "cddp_reduce",
        &(cddp_coll_args){
            .coll = CDDP_COLL_REDUCE, .in = in, .out = to, .count = count, .dtype = dtype, .op = op, .root = root});
}

cddp_status cddp_reduce_scatter(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype,
                                cddp_redop op)
{
    CDI_DEFAULT_FLOAT_STATE;

    return coll_run_public(
        comm, "cddp_reduce_scatter",
        &(cddp_coll_args){
            .coll = CDDP_COLL_REDUCE_SCATTER, .in = in, .out = to, .count = count, .dtype = dtype, .op = op});
}

cddp_status cddp_all_to_all(cddp_comm *comm, const void *in, void *to, size_t count, cddp_dtype dtype)
{
    CDI_DEFAULT_FLOAT_STATE;

    return coll_run_public(
        comm, "cddp_all_to_all",
        &(cddp_coll_args){.coll = CDDP_COLL_ALL_TO_ALL, .in = in, .out = to, .count = count, .dtype = dtype});
}

cddp_status cddp_send(cddp_comm *comm, const void *buf, size_t count, cddp_dtype dtype, int to)
{
    CDI_DEFAULT_FLOAT_STATE;

    return coll_run_public(
        comm, "cddp_send",
        &(cddp_coll_args){.coll = CDDP_COLL_SEND, .in = buf, .count = count, .dtype = dtype, .root = to});
}

cddp_status cddp_recv(cddp_comm *comm, void *buf, size_t count, cddp_dtype dtype, int from)
{
    CDI_DEFAULT_FLOAT_STATE;

    return coll_run_public(
        comm, "cddp_recv",
        &(cddp_coll_args){.coll = CDDP_COLL_RECV, .out = buf, .count = count, .dtype = dtype, .root = from});
}

cddp_status cddp_barrier(cddp_comm *comm)
{
    CDI_DEFAULT_FLOAT_STATE;

    return coll_run_public(comm, "cddp_barrier", &(cddp_coll_args){.coll = CDDP_COLL_BARRIER});
}

/* --------------------------------------------------------------------------------------------- non-blocking ---- */

/* Enqueues operations that form one group. */
static cddp_status enqueue(cddp_comm *comm, const struct cdi_coll *ops, size_t n, uint64_t *ticket,
                           struct cdi_error *err)
{
    const struct cdi_backend_ops *backend = cdi_comm_ops(comm);

    if (n == 1)
        return backend->enqueue(cdi_comm_backend(comm), ops, ticket, err);
    return backend->enqueue_group(cdi_comm_backend(comm), ops, n, ticket, err);
}

/* How the caller waits: see struct cdi_coll. */
struct how {
    bool lazy, streamed;
};

/* Aborts, so that no peer waits for the operations that this rank could not begin. */
static cddp_status coll_abort(cddp_comm *comm, struct cdi_error *err)
{
    cdi_comm_ops(comm)->abort(cdi_comm_backend(comm), err);
    return err->status;
}

/* Once the first part is begun, a refusal of a later one would abort the job. */
static cddp_status check_parts(cddp_comm *comm, const struct cdi_coll_ops *ops, struct cdi_error *err)
{
    size_t parts = 0;

    for (size_t at = 0; at < ops->n; at += cdi_coll_part(ops->ops + at, ops->n - at))
        parts++;
    return cdi_comm_ops(comm)->can_enqueue(cdi_comm_backend(comm), ops->ops, ops->n, parts, err);
}

static cddp_status start_ops(cddp_comm *comm, struct cdi_coll_ops *ops, struct how how, uint64_t *ticket,
                             struct cdi_error *err)
{
    enum cdi_api_call asked = cdi_api_caller();
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < ops->n; i++) {
        ops->ops[i].lazy = how.lazy;
        ops->ops[i].streamed = how.streamed;
        if (!how.streamed)
            cdi_memory_place(comm, &ops->ops[i]);
        if (ops->ops[i].asked == CDI_API_ITSELF)
            ops->ops[i].asked = asked;
    }
    if (cdi_coll_part(ops->ops, ops->n) < ops->n)
        st = check_parts(comm, ops, err);
    for (size_t at = 0, n; at < ops->n && st == CDDP_OK; at += n) {
        n = cdi_coll_part(ops->ops + at, ops->n - at);
        st = enqueue(comm, ops->ops + at, n, ticket, err);
        if (st != CDDP_OK && at > 0)
            st = coll_abort(comm, err);
    }
    return st;
}

/* Starts one operation of the backend, without an allocation. */
static cddp_status start_one(cddp_comm *comm, const cddp_coll_args *a, struct how how, uint64_t *ticket,
                             struct cdi_error *err)
{
    struct cdi_coll op;
    cddp_status st = cdi_coll_check_unused(a, err);

    if (st == CDDP_OK)
        st = cdi_coll_op(cdi_comm_world(comm), a, &op, err);
    if (st == CDDP_OK)
        st = check_reductions(comm, &op, 1, err);
    if (st != CDDP_OK)
        return st;
    op.lazy = how.lazy;
    op.streamed = how.streamed;
    if (!how.streamed)
        cdi_memory_place(comm, &op);
    op.asked = cdi_api_caller();
    return enqueue(comm, &op, 1, ticket, err);
}

static cddp_status start_group(cddp_comm *comm, const cddp_coll_args *args, size_t n, struct how how, uint64_t *ticket,
                               struct cdi_error *err)
{
    struct cdi_coll_ops ops = {0};
    cddp_status st = cdi_coll_ops(cdi_comm_world(comm), args, n, &ops, err);

    if (st == CDDP_OK)
        st = check_reductions(comm, ops.ops, ops.n, err);
    if (st == CDDP_OK)
        st = start_ops(comm, &ops, how, ticket, err);
    cdi_coll_release(&ops);
    return st;
}

static cddp_status start_list(cddp_comm *comm, const cddp_coll_args *args, size_t n, struct how how, uint64_t *ticket,
                              struct cdi_error *err)
{
    cddp_coll_args *copy = cdi_sized_get_list(sizeof *copy, args, n, "cddp_coll_args", err);
    cddp_status st;

    if (copy == NULL)
        return err->status;
    st = start_group(comm, copy, n, how, ticket, err);
    free(copy);
    return st;
}

/* name: the public function. *ticket is 0 if there is nothing to wait for. */
static cddp_status coll_start(cddp_comm *comm, const char *name, const cddp_coll_args *args, size_t n, struct how how,
                              uint64_t *ticket, struct cdi_error *err)
{
    cddp_coll_args one;
    cddp_status st = check_comm(name, comm, err);

    *ticket = 0;
    if (st == CDDP_OK && n > 0 && args == NULL)
        st = cdi_fail(err, CDDP_E_INVALID, "%s: args is NULL", name);
    if (st != CDDP_OK)
        return st;
    if (n == 0)
        return cdi_comm_ops(comm)->health(cdi_comm_backend(comm), err);
    if (n > 1)
        return start_list(comm, args, n, how, ticket, err);
    st = cdi_sized_get(&one, sizeof one, args, "cddp_coll_args", err);
    if (st != CDDP_OK)
        return st;
    return cdi_coll_is_made(&one) ? start_group(comm, &one, 1, how, ticket, err)
                                  : start_one(comm, &one, how, ticket, err);
}

cddp_status cddp_coll_start(cddp_comm *comm, const cddp_coll_args *args, size_t n, uint64_t *ticket)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    uint64_t given;
    cddp_status st = coll_start(comm, "cddp_coll_start", args, n, (struct how){.lazy = false}, &given, &err);

    if (st == CDDP_OK && ticket != NULL)
        *ticket = given;
    return coll_result(st, &err);
}

static cddp_status coll_wait(cddp_comm *comm, uint64_t ticket, struct cdi_error *err)
{
    if (ticket == 0)
        return cdi_comm_ops(comm)->health(cdi_comm_backend(comm), err);
    return cdi_comm_ops(comm)->join(cdi_comm_backend(comm), ticket, err);
}

cddp_status cddp_coll_wait(cddp_comm *comm, uint64_t ticket)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = check_comm("cddp_coll_wait", comm, &err);

    return coll_result(st == CDDP_OK ? coll_wait(comm, ticket, &err) : st, &err);
}

cddp_status cddp_coll_test(cddp_comm *comm, uint64_t ticket)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = check_comm("cddp_coll_test", comm, &err);

    if (st == CDDP_OK && ticket == 0)
        st = coll_wait(comm, 0, &err);
    else if (st == CDDP_OK)
        st = cdi_comm_ops(comm)->test(cdi_comm_backend(comm), ticket, &err);
    return st == CDDP_IN_PROGRESS ? st : coll_result(st, &err);
}

cddp_status cddp_coll_run(cddp_comm *comm, const cddp_coll_args *args, size_t n)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    uint64_t ticket;
    cddp_status st = coll_start(comm, "cddp_coll_run", args, n, (struct how){.lazy = true}, &ticket, &err);

    return coll_result(st == CDDP_OK ? coll_wait(comm, ticket, &err) : st, &err);
}

/* The stream captures graph `id`: adds the group to it. */
static cddp_status coll_capture(cddp_comm *comm, const cddp_coll_args *args, size_t n, void *stream, uint64_t id,
                                struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);
    struct cdi_backend *b = cdi_comm_backend(comm);
    cddp_status st = ops->capture_enter(b, stream, id, err), led;
    uint64_t ticket;

    if (st != CDDP_OK)
        return st;
    st = ops->wait_stream(b, stream, true, err);
    if (st == CDDP_OK)
        st = coll_start(comm, "cddp_coll_enqueue", args, n, (struct how){.streamed = true}, &ticket, err);
    led = ops->stream_wait(b, 0, stream, st == CDDP_OK ? err : NULL); /* otherwise the capture could not end */
    ops->capture_leave(b);
    return st == CDDP_OK ? led : st;
}

static cddp_status enqueue_on_device(cddp_comm *comm, const cddp_coll_args *args, size_t n, void *stream,
                                     struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);
    struct cdi_backend *b = cdi_comm_backend(comm);
    uint64_t ticket, id = 0;
    cddp_status st = ops->capture_of != NULL ? ops->capture_of(b, stream, &id, err) : CDDP_OK;

    if (st == CDDP_OK && id != 0)
        return coll_capture(comm, args, n, stream, id, err);
    if (st == CDDP_OK)
        st = ops->wait_stream(b, stream, true, err);
    if (st == CDDP_OK)
        st = coll_start(comm, "cddp_coll_enqueue", args, n, (struct how){.streamed = true}, &ticket, err);
    return st == CDDP_OK && ticket != 0 ? ops->stream_wait(b, ticket, stream, err) : st;
}

static cddp_status enqueue_on(cddp_comm *comm, const cddp_coll_args *args, size_t n, void *stream,
                              struct cdi_error *err)
{
    uint64_t ticket;
    cddp_status st = check_comm("cddp_coll_enqueue", comm, err);

    if (st != CDDP_OK)
        return st;
    if (cdi_comm_ops(comm)->on_device)
        return enqueue_on_device(comm, args, n, stream, err);
    st = coll_start(comm, "cddp_coll_enqueue", args, n, (struct how){.lazy = true}, &ticket, err);
    return st == CDDP_OK && ticket != 0 ? coll_wait(comm, ticket, err) : st;
}

cddp_status cddp_coll_enqueue(cddp_comm *comm, const cddp_coll_args *args, size_t n, void *stream)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;

    return coll_result(enqueue_on(comm, args, n, stream, &err), &err);
}
