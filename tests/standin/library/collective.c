/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's operations on the thread of their stream: ranks compare their calls, then data goes through the segment in
 * chunks. The sender fills a chunk, all wait for each other once, then it is read.
 */
#include "comm.h"
#include "version.h"

#include <stdio.h>
#include <time.h>

static const char *const op_names[] = {"sum", "prod", "max", "min", "avg"};

bool si_is_float8(ncclDataType_t type)
{
    return type == ncclFloat8e4m3 || type == ncclFloat8e5m2;
}

size_t si_type_size(ncclDataType_t type)
{
    static const size_t size[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    return type >= sizeof size / sizeof size[0] || (si_is_float8(type) && !si_version().has_float8) ? 0 : size[type];
}

static bool is_float(ncclDataType_t type)
{
    return type == ncclFloat16 || type == ncclFloat32 || type == ncclFloat64 || type == ncclBfloat16 ||
           si_is_float8(type);
}

/* ---------------------------------------------------------------------------------------------------- comparison -- */

static void coll_describe(const struct segment_word *w, char *buf, size_t cap)
{
    static const char *const kinds[] = {"ncclAllReduce",     "ncclBroadcast", "ncclReduce", "ncclAllGather",
                                        "ncclReduceScatter", "ncclSend",      "ncclRecv"};
    int n = snprintf(buf, cap, "%s #%llu of %llu elements of type %d", kinds[w->kind], (unsigned long long)w->sequence,
                     (unsigned long long)w->count, w->type);

    if (n > 0 && (size_t)n < cap && w->op >= 0)
        n += snprintf(buf + n, cap - (size_t)n, ", %s", op_names[w->op]);
    if (n > 0 && (size_t)n < cap && w->root >= 0)
        n += snprintf(buf + n, cap - (size_t)n, ", root %d", w->root);
    if (n > 0 && (size_t)n < cap && w->offset >= 0)
        n += snprintf(buf + n, cap - (size_t)n, ", at %lld of the window", (long long)w->offset);
    if (n > 0 && (size_t)n < cap && w->of > 1)
        (void)snprintf(buf + n, cap - (size_t)n, ", %u of %u of its launch", w->place, w->of);
}

static bool coll_same(const struct segment_word *a, const struct segment_word *b)
{
    return a->sequence == b->sequence && a->kind == b->kind && a->type == b->type && a->op == b->op &&
           a->root == b->root && a->count == b->count && a->offset == b->offset && a->place == b->place &&
           a->of == b->of;
}

/*
 * Publishes the call of this rank, and compares it with those of the others, also its place among the collectives of
 * its launch: NCCL chooses the algorithm for those of a group together (enqueue.cc:391 of v2.28.9). Returns
 * false if aborted, or if they differ.
 */
static bool ranks_agree(struct ncclComm *comm, const struct si_call *c, uint32_t place, uint32_t of)
{
    struct segment *s = &comm->seg;
    const struct segment_word word = {.sequence = ++comm->sequence,
                                      .kind = (int32_t)c->kind,
                                      .type = (int32_t)c->type,
                                      .op = c->kind == SI_BROADCAST || c->kind == SI_ALL_GATHER ? -1 : (int32_t)c->op,
                                      .root = c->kind == SI_BROADCAST || c->kind == SI_REDUCE ? c->root : -1,
                                      .count = c->count,
                                      .offset = c->offset,
                                      .place = place,
                                      .of = of};
    char here[200], there[200];

    if (!segment_say(s, SEGMENT_OPERATIONS, &word))
        return false;
    for (int r = 0; r < s->n_ranks; r++) {
        const struct segment_word *other = segment_heard(s, SEGMENT_OPERATIONS, r);

        if (coll_same(&word, other))
            continue;
        coll_describe(&word, here, sizeof here);
        coll_describe(other, there, sizeof there);
        si_fault("ranks do not agree: on communicator '%s' rank %d runs %s, rank %d runs %s", comm->name, s->rank, here,
                 r, there);
        __atomic_store_n(&comm->broken, ncclInvalidUsage, __ATOMIC_RELEASE);
        return false;
    }
    return true;
}

/* --------------------------------------------------------------------------------------------------- collectives -- */

/* The factor of elements before they are added; 1: none. */
static double factor(const struct ncclComm *comm, const struct si_call *c)
{
    return c->op == ncclAvg && !c->mean_after_sum && is_float(c->type) ? 1.0 / comm->seg.n_ranks : 1;
}

static void coll_give(struct ncclComm *comm, const struct si_call *c, const char *from, size_t n, double f)
{
    char *chunk = segment_chunk(&comm->seg, comm->seg.rank);

    if (f != 1)
        si_touch_scale(chunk, from, n, c->type, f);
    else
        si_touch_copy(chunk, from, n * si_type_size(c->type));
}

/* The sum, maximum, ... of all ranks' chunks. An average was made while giving, or is made here. */
static void reduce_into(struct ncclComm *comm, const struct si_call *c, char *to, size_t n)
{
    const void *in[SEGMENT_RANKS];
    ncclRedOp_t op = c->op == ncclAvg ? ncclSum : c->op;

    for (int r = 0; r < comm->seg.n_ranks; r++)
        in[r] = segment_chunk_ready(&comm->seg, r);
    si_touch_reduce(to, in, comm->seg.n_ranks, n, c->type, op);
    /* Like the kernel in which the NVLink switch adds: the sum has the type of the elements (reduce_scatter.cuh of
     * v2.30.7). */
    if (c->mean_after_sum)
        si_touch_scale(to, to, n, c->type, 1.0 / comm->seg.n_ranks);
    if (c->op == ncclAvg && !is_float(c->type))
        si_touch_divide(to, n, c->type, comm->seg.n_ranks);
}

/* `count` elements at `from` of every rank, reduced into `to` where it is not NULL. */
static bool coll_reduce(struct ncclComm *comm, const struct si_call *c, const char *from, char *to, size_t count)
{
    size_t size = si_type_size(c->type), most = SEGMENT_CHUNK / size;
    double f = factor(comm, c);

    for (size_t at = 0; at < count; at += most) {
        size_t n = count - at < most ? count - at : most;

        coll_give(comm, c, from + at * size, n, f);
        if (!segment_chunk_done(&comm->seg))
            return false;
        if (to != NULL)
            reduce_into(comm, c, to + at * size, n);
    }
    return true;
}

static bool reduce_scatter(struct ncclComm *comm, const struct si_call *c, const char *send, char *recv)
{
    size_t block = c->count * si_type_size(c->type);

    for (int r = 0; r < comm->seg.n_ranks; r++)
        if (!coll_reduce(comm, c, send + (size_t)r * block, r == comm->seg.rank ? recv : NULL, c->count))
            return false;
    return true;
}

static bool coll_broadcast(struct ncclComm *comm, const struct si_call *c, const char *send, char *recv)
{
    size_t bytes = c->count * si_type_size(c->type);

    for (size_t at = 0; at < bytes; at += SEGMENT_CHUNK) {
        size_t n = bytes - at < SEGMENT_CHUNK ? bytes - at : SEGMENT_CHUNK;

        if (comm->seg.rank == c->root)
            si_touch_copy(segment_chunk(&comm->seg, c->root), send + at, n);
        if (!segment_chunk_done(&comm->seg))
            return false;
        si_touch_copy(recv + at, segment_chunk_ready(&comm->seg, c->root), n);
    }
    return true;
}

static bool coll_all_gather(struct ncclComm *comm, const struct si_call *c, const char *send, char *recv)
{
    size_t bytes = c->count * si_type_size(c->type);

    for (size_t at = 0; at < bytes; at += SEGMENT_CHUNK) {
        size_t n = bytes - at < SEGMENT_CHUNK ? bytes - at : SEGMENT_CHUNK;

        si_touch_copy(segment_chunk(&comm->seg, comm->seg.rank), send + at, n);
        if (!segment_chunk_done(&comm->seg))
            return false;
        for (int r = 0; r < comm->seg.n_ranks; r++)
            si_touch_copy(recv + (size_t)r * bytes + at, segment_chunk_ready(&comm->seg, r), n);
    }
    return true;
}

static bool coll_run(struct ncclComm *comm, const struct si_call *c, uint32_t place, uint32_t of)
{
    const char *send = standin_host(c->send);
    char *recv = standin_host(c->recv);

    if (!ranks_agree(comm, c, place, of))
        return false;
    switch (c->kind) {
    case SI_ALL_REDUCE:
        return coll_reduce(comm, c, send, recv, c->count);
    case SI_REDUCE:
        return coll_reduce(comm, c, send, comm->seg.rank == c->root ? recv : NULL, c->count);
    case SI_REDUCE_SCATTER:
        return reduce_scatter(comm, c, send, recv);
    case SI_BROADCAST:
        return coll_broadcast(comm, c, send, recv);
    case SI_ALL_GATHER:
        return coll_all_gather(comm, c, send, recv);
    case SI_SEND:
    case SI_RECV:
        break;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------- send and recv -- */

static bool coll_is_message(const struct si_call *c)
{
    return c->kind == SI_SEND || c->kind == SI_RECV;
}

static bool coll_post(struct ncclComm *comm, struct si_call *c, size_t bytes)
{
    struct segment_letter *l = segment_letter(&comm->seg, comm->seg.rank, c->root);
    size_t n = bytes - c->moved < SEGMENT_LETTER ? bytes - c->moved : SEGMENT_LETTER;
    const struct segment_word word = {.kind = SI_SEND, .type = (int32_t)c->type, .count = c->count};

    if (__atomic_load_n(&l->full, __ATOMIC_ACQUIRE) != 0)
        return false;
    si_copy(&l->word, &word, sizeof word);
    l->bytes = (uint32_t)n;
    si_touch_copy(l->data, (const char *)standin_host(c->send) + c->moved, n);
    c->moved += n;
    __atomic_store_n(&l->full, 1, __ATOMIC_RELEASE);
    return true;
}

static bool coll_collect(struct ncclComm *comm, struct si_call *c)
{
    struct segment_letter *l = segment_letter(&comm->seg, c->root, comm->seg.rank);

    if (__atomic_load_n(&l->full, __ATOMIC_ACQUIRE) == 0)
        return false;
    if (l->word.count != c->count || l->word.type != (int32_t)c->type) {
        si_fault(
            "ranks do not agree: on communicator '%s' rank %d receives %zu elements of type %d from rank %d, which "
            "sends %llu of type %d",
            comm->name, comm->seg.rank, c->count, (int)c->type, c->root, (unsigned long long)l->word.count,
            l->word.type);
        __atomic_store_n(&comm->broken, ncclInvalidUsage, __ATOMIC_RELEASE);
        (void)__atomic_exchange_n(&comm->abort, 1, __ATOMIC_RELEASE);
        return true;
    }
    si_touch_copy((char *)standin_host(c->recv) + c->moved, l->data, l->bytes);
    c->moved += l->bytes;
    __atomic_store_n(&l->full, 0, __ATOMIC_RELEASE);
    return true;
}

/* One round over all messages of a launch: the first of each kind that is not done, for each peer. */
static bool move_messages(struct si_calls *calls, bool *done)
{
    bool moved = false;

    *done = true;
    for (size_t i = 0; i < calls->n; i++) {
        struct si_call *c = &calls->call[i];
        size_t bytes = c->count * si_type_size(c->type);
        bool behind = false;

        if (!coll_is_message(c) || c->moved == bytes)
            continue;
        *done = false;
        for (size_t j = 0; j < i; j++) {
            const struct si_call *e = &calls->call[j];

            behind =
                behind || (e->kind == c->kind && e->root == c->root && e->moved < e->count * si_type_size(e->type));
        }
        if (!behind && (c->kind == SI_SEND ? coll_post(calls->comm, c, bytes) : coll_collect(calls->comm, c)))
            moved = true;
    }
    return moved;
}

static void messages(struct si_calls *calls)
{
    struct segment *s = &calls->comm->seg;
    bool done = false;

    while (!done && __atomic_load_n(&calls->comm->abort, __ATOMIC_ACQUIRE) == 0) {
        uint32_t seen = segment_changes(s);

        if (move_messages(calls, &done))
            segment_ring(s);
        else if (!done)
            segment_sleep(s, seen);
    }
}

/* A slow launch, until an abort. */
static void linger(const struct ncclComm *comm)
{
    uint64_t left_us = si_settings.collective_us;

    while (left_us > 0 && __atomic_load_n(&comm->abort, __ATOMIC_ACQUIRE) == 0) {
        uint64_t us = left_us < 1000 ? left_us : 1000;
        const struct timespec nap = {.tv_nsec = (long)us * 1000};

        (void)nanosleep(&nap, NULL);
        left_us -= us;
    }
}

void si_run_calls(struct si_calls *calls)
{
    struct ncclComm *comm = calls->comm;
    bool any_message = false, through;
    int planted = si_planted_async();
    uint32_t place = 0, n_collectives = 0;

    if (planted != 0) { /* an error of the network: the operation never ends by itself */
        __atomic_store_n(&comm->broken, planted, __ATOMIC_RELEASE);
        while (__atomic_load_n(&comm->abort, __ATOMIC_ACQUIRE) == 0)
            segment_sleep(&comm->seg, segment_changes(&comm->seg));
    }
    for (size_t i = 0; i < calls->n; i++)
        n_collectives += !coll_is_message(&calls->call[i]);
    for (size_t i = 0; i < calls->n; i++)
        calls->call[i].moved = 0; /* a graph's run again */
    for (size_t i = 0; i < calls->n; i++) {
        if (__atomic_load_n(&comm->abort, __ATOMIC_ACQUIRE) != 0)
            return;
        if (coll_is_message(&calls->call[i])) {
            any_message = true;
            continue;
        }
        if (calls->call[i].deaf)
            (void)__atomic_add_fetch(&comm->deaf, 1, __ATOMIC_ACQ_REL);
        through = coll_run(comm, &calls->call[i], ++place, n_collectives);
        if (calls->call[i].deaf)
            (void)__atomic_sub_fetch(&comm->deaf, 1, __ATOMIC_ACQ_REL);
        if (!through)
            return;
    }
    if (any_message)
        messages(calls);
    linger(comm);
}
