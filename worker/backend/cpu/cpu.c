/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the CPU backend: it connects the queue (queue.c) with the collectives (collective.c). */
#include "worker/backend/cpu/cpu.h"

#include "worker/backend/cpu/coll/collective.h"
#include "worker/backend/cpu/coll/region.h"
#include "worker/backend/cpu/net/tcp.h"
#include "worker/backend/describe.h"
#include "worker/backend/host_elementwise.h"
#include "worker/backend/message_group.h"
#include "worker/backend/who.h"
#include "worker/store/client.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cdi_backend {
    struct cdi_cpu_comm comm;
    struct cdi_queue *queue;
    struct cdi_world world;
    struct cdi_address reached;
    struct cdi_mapper mapper;
};

/* The program may end now, and peers in other communicators would take that for the cause. */
static void note_lost(const struct cdi_error *why)
{
    if (why->status == CDDP_E_PEER && why->blamed > 0)
        cdi_shm_note_lost(why->blamed - 1);
}

static cddp_status cpu_run_work(void *arg, const struct cdi_work *work, bool on_thread, struct cdi_error *err)
{
    struct cdi_backend *b = arg;
    struct cdi_error why;
    cddp_status st;

    if (work->group != NULL)
        return cdi_group_run(cpu_run_work, b, work, b->comm.rank, on_thread, err);
    if (work->op.kind == CDI_SEND || work->op.kind == CDI_RECV)
        cdi_queue_waits_for(b->queue, cdi_rank_of_job(&b->world, work->op.root));
    st = cdi_cpu_comm_run(&b->comm, work, on_thread, &why);
    if (st == CDDP_OK)
        st = cdi_flight_confirm(b->world.flight, &why);
    if (st == CDDP_OK)
        return CDDP_OK;
    cdi_coll_advise(&work->op, &why);
    note_lost(&why);
    /*
     * All ranks of a node detect a mismatch of collectives themselves; only one of two ranks detects that of a message.
     */
    if (st != CDDP_E_MISMATCH || b->comm.tcp != NULL || work->op.kind == CDI_RECV || work->op.kind == CDI_SEND) {
        struct cdi_error told = why;

        if (st != CDDP_E_MISMATCH)
            (void)cdi_fail_since(&told, &why, "%s gave up: %.480s", cdi_who(b->world.ranks, b->comm.rank).text,
                                 why.msg);
        if (told.blamed == 0)
            told.blamed = cdi_rank_of_job(&b->world, b->comm.rank) + 1;
        if (b->comm.shm != NULL) /* a world of one rank has none */
            cdi_shm_abort(b->comm.shm, &told);
    }
    if (b->comm.tcp != NULL)
        cdi_tcp_pass_abort(b->comm.tcp);
    if (err != NULL)
        *err = why;
    return st;
}

static void abort_if_busy(struct cdi_backend *b)
{
    if (b->queue != NULL && b->comm.shm != NULL && !cdi_queue_idle(b->queue)) {
        struct cdi_error why;

        (void)cdi_fail_by(&why, cdi_rank_of_job(&b->world, b->comm.rank), CDDP_E_ABORTED,
                          "%s left the job while collectives were in flight",
                          cdi_who(b->world.ranks, b->comm.rank).text);
        cdi_shm_abort(b->comm.shm, &why);
    }
}

static void cpu_goodbye(struct cdi_backend *b)
{
    abort_if_busy(b);
    if (b->comm.tcp != NULL)
        cdi_tcp_send_goodbye(b->comm.tcp);
    if (b->comm.shm != NULL)
        cdi_shm_say_goodbye(b->comm.shm);
}

static void cpu_leave(struct cdi_backend *b)
{
    abort_if_busy(b);
    cdi_queue_destroy(b->queue);
    b->queue = NULL;
    cdi_tcp_destroy(b->comm.tcp);
    b->comm.tcp = NULL;
    cdi_shm_leave(b->comm.shm);
}

static void cpu_destroy(struct cdi_backend *b)
{
    if (b == NULL)
        return;
    cpu_leave(b);
    cdi_shm_destroy(b->comm.shm);
    cdi_cpu_comm_release(&b->comm);
    free(b);
}

/* ----------------------------------------------------------------------------------------------- connecting ---- */

/* Connects the nodes. Ends with an operation of all ranks, so that none begins while another may still fail to connect.
 */
static cddp_status cpu_connect_nodes(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = cdi_tcp_create(&b->comm.tcp, &b->world, &b->comm.wait, &b->reached, err);

    if (st == CDDP_OK) {
        b->comm.wait.timeout_ms = b->world.init_timeout_ms;
        st = cdi_cpu_comm_agree(&b->comm, err);
        b->comm.wait.timeout_ms = b->world.timeout_ms;
    }
    if (st != CDDP_OK) {
        cdi_shm_abort(b->comm.shm, err);
        if (b->comm.tcp != NULL)
            cdi_tcp_pass_abort(b->comm.tcp);
    }
    return st;
}

static cddp_status cpu_connect_all(struct cdi_backend *b, struct cdi_error *err)
{
    const struct cdi_world *world = &b->world;
    struct cdi_error why;
    cddp_status st = cdi_cpu_comm_init(&b->comm, &why);

    if (st != CDDP_OK)
        cdi_shm_bootstrap_refuse(world, &why);
    if (st == CDDP_OK && world->size > 1)
        st = cdi_shm_bootstrap_control(&b->comm.shm, world, &b->mapper, &why);
    if (st == CDDP_OK && world->size > 1)
        cdi_wait_init(&b->comm.wait, b->comm.shm, world->flight, world->timeout_ms);
    b->comm.wait.ranks = world->ranks;
    if (st == CDDP_OK && world->n_nodes > 1)
        st = cpu_connect_nodes(b, &why);
    if (st != CDDP_OK && world->n_nodes > 1)
        cdi_tcp_report_failure(&world->keys, &why);
    b->world.watch = (struct cdi_watch){.fn = NULL};
    if (st == CDDP_OK) {
        st = cdi_queue_create(&b->queue, cpu_run_work, b, cdi_world_record(world), b->comm.wait.spins_thread, err);
        if (st == CDDP_OK)
            cdi_queue_set_name(b->queue, b->world.name);
        b->comm.queue = st == CDDP_OK ? b->queue : NULL;
        return st;
    }
    if (err != NULL)
        *err = why;
    return st;
}

cddp_status cdi_cpu_create_at(struct cdi_backend **out, const struct cdi_world *world, const struct cdi_mapper *mapper,
                              const struct cdi_address *reached, const struct cdi_choice_net *net,
                              struct cdi_error *err)
{
    struct cdi_backend *b = calloc(1, sizeof *b);
    cddp_status st;

    if (b == NULL) {
        cdi_shm_bootstrap_refuse(world, &(struct cdi_error){.status = CDDP_E_NOMEM, .msg = "out of memory"});
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    }
    b->world = *world;
    if (mapper != NULL)
        b->mapper = *mapper;
    if (reached != NULL)
        b->reached = *reached;
    if (net != NULL)
        b->comm.net = *net;
    b->comm.rank = world->rank;
    b->comm.size = world->size;
    st = cpu_connect_all(b, err);
    if (st != CDDP_OK) {
        cpu_destroy(b);
        return st;
    }
    *out = b;
    return CDDP_OK;
}

static cddp_status cpu_create(struct cdi_backend **out, const struct cdi_world *world, struct cdi_error *err)
{
    struct cdi_address reached = {.len = 0};

    if (world->store != NULL)
        cdi_store_local_address(world->store, &reached.u.room, &reached.len);
    return cdi_cpu_create_at(out, world, NULL, &reached, NULL, err);
}

/* ------------------------------------------------------------------------------------------------- the table ---- */

static cddp_status cpu_enqueue_group(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, uint64_t *ticket,
                                     struct cdi_error *err)
{
    struct cdi_work work;
    cddp_status st = cdi_group_make(&work, ops, n, b->comm.rank, b->comm.size, err);

    if (st != CDDP_OK)
        return st;
    st = cdi_queue_enqueue(b->queue, &work, ticket, err);
    if (st != CDDP_OK)
        free(work.group);
    return st;
}

static cddp_status cpu_enqueue(struct cdi_backend *b, const struct cdi_coll *op, uint64_t *ticket,
                               struct cdi_error *err)
{
    const struct cdi_work work = {.op = *op};

    if (op->kind == CDI_ALL_GATHERV)
        return cpu_enqueue_group(b, op, 1, ticket, err);
    return cdi_queue_enqueue(b->queue, &work, ticket, err);
}

static cddp_status cpu_can_enqueue(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, size_t calls,
                                   struct cdi_error *err)
{
    (void)ops;
    (void)n;
    return cdi_queue_has_room(b->queue, calls, err);
}

static cddp_status cpu_run(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err)
{
    struct cdi_work work = {.op = *op};
    uint64_t ticket;
    cddp_status st;

    if (op->kind != CDI_ALL_GATHERV)
        return cdi_queue_run(b->queue, &work, err);
    st = cpu_enqueue_group(b, op, 1, &ticket, err);
    return st == CDDP_OK ? cdi_queue_join(b->queue, ticket, err) : st;
}

static cddp_status cpu_test(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    return cdi_queue_test(b->queue, ticket, err);
}

static cddp_status cpu_join(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    return cdi_queue_join(b->queue, ticket, err);
}

/* Between nodes with one rank each, data go directly to the network. */
static bool cpu_copies_private(const struct cdi_backend *b)
{
    return b->comm.size > 1 && (b->comm.tcp == NULL || b->comm.tcp->largest > 1);
}

static cddp_status cpu_region_create(struct cdi_backend *b, size_t bytes, struct cdi_region **out,
                                     struct cdi_error *err)
{
    struct cdi_error agreed = {.status = CDDP_OK};
    struct cdi_region *region = NULL;
    struct cdi_work work = {.is_region = true, .region_out = &region, .region_err = &agreed};
    uint64_t ticket;
    cddp_status st;

    if (bytes > SIZE_MAX / 4)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %zu bytes", bytes);
    work.op.lazy = true;
    work.op.bucket = -1;
    work.region_bytes = bytes == 0 ? 4096 : (bytes + 4095) / 4096 * 4096;
    st = cdi_queue_enqueue(b->queue, &work, &ticket, err);
    if (st == CDDP_OK)
        st = cdi_queue_join(b->queue, ticket, err);
    if (st != CDDP_OK)
        return st;
    if (agreed.status != CDDP_OK)
        return cdi_fail_since(err, &agreed, "%s", agreed.msg);
    *out = region;
    return CDDP_OK;
}

static void cpu_region_destroy(struct cdi_backend *b, struct cdi_region *r)
{
    cdi_cpu_region_destroy(&b->comm, r);
}

static cddp_status cpu_health(struct cdi_backend *b, struct cdi_error *err)
{
    return cdi_queue_health(b->queue, err);
}

/* ------------------------------------------------------------------------------------------- memory, streams ---- */

/* Work of the caller is done before this call. */
static cddp_status cpu_wait_stream(struct cdi_backend *b, void *stream, bool timed, struct cdi_error *err)
{
    (void)stream;
    (void)timed;
    return cdi_queue_health(b->queue, err);
}

static cddp_status cpu_stream_wait(struct cdi_backend *b, uint64_t ticket, void *stream, struct cdi_error *err)
{
    (void)stream;
    return cdi_queue_join(b->queue, ticket != 0 ? ticket : cdi_queue_needed(b->queue), err);
}

static void cpu_describe(struct cdi_backend *b, cddp_device_info *out)
{
    (void)b;
    *out = (cddp_device_info){.size = out->size, .device = -1, .numa_node = -1};
    (void)snprintf(out->name, sizeof out->name, "cpu");
}

static void cpu_abort(struct cdi_backend *b, const struct cdi_error *why)
{
    struct cdi_error err = cdi_abort_of(&b->world, why);

    if (b->comm.shm != NULL)
        cdi_shm_abort(b->comm.shm, &err);
    if (b->comm.tcp != NULL)
        cdi_tcp_pass_abort(b->comm.tcp);
    cdi_queue_fail(b->queue, &err);
}

static cddp_status cpu_peek(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = cdi_queue_health(b->queue, err);

    if (st != CDDP_OK || b->comm.shm == NULL)
        return st;
    st = cdi_wait_peek(&b->comm.wait, err);
    if (st != CDDP_OK)
        note_lost(err);
    return st;
}

static cddp_status cpu_check_ranks(struct cdi_backend *b, const int *of_job, int n, struct cdi_error *err)
{
    return b->comm.shm != NULL ? cdi_wait_check_ranks(&b->comm.wait, of_job, n, err) : CDDP_OK;
}

static bool cpu_is_aborted(struct cdi_backend *b)
{
    return b->comm.shm != NULL && cdi_shm_aborted(b->comm.shm, NULL) != CDDP_OK;
}

const struct cdi_backend_ops cdi_cpu_backend = {
    .name = "cpu",
    .create = cpu_create,
    .goodbye = cpu_goodbye,
    .leave = cpu_leave,
    .destroy = cpu_destroy,
    .region_create = cpu_region_create,
    .region_destroy = cpu_region_destroy,
    .enqueue = cpu_enqueue,
    .can_enqueue = cpu_can_enqueue,
    .enqueue_group = cpu_enqueue_group,
    .check_reduction = cdi_element_check_reduction,
    .run = cpu_run,
    .join = cpu_join,
    .test = cpu_test,
    .wait_stream = cpu_wait_stream,
    .stream_wait = cpu_stream_wait,
    .alloc = cdi_host_memory_alloc,
    .release = cdi_host_memory_release,
    .copies_private = cpu_copies_private,
    .copy = cdi_host_memory_copy,
    .describe = cpu_describe,
    .health = cpu_health,
    .peek = cpu_peek,
    .check_ranks = cpu_check_ranks,
    .abort = cpu_abort,
    .is_aborted = cpu_is_aborted,
    .pack = cdi_element_pack,
    .unpack = cdi_element_unpack,
    .pack_scaled = cdi_element_pack_scaled,
    .cast = cdi_element_cast,
    .scale = cdi_element_scale,
    .norm = cdi_element_norm,
    .norm_round = cdi_element_norm_round,
    .clip = cdi_element_clip,
};
