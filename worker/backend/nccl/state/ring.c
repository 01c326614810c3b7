/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/state/ring.h"

#include "common/clock.h"
#include "worker/backend/describe.h"
#include "worker/backend/nccl/device/ticket.h"

#include <stdio.h>
#include <string.h>

static bool ring_grow(struct cdi_backend *b)
{
    size_t size = b->ring_size == 0 ? CDI_RING_FIRST : b->ring_size * 2;
    struct cdi_slot *ring = size <= CDI_RING_LIMIT ? cdi_host->alloc(size, sizeof *ring) : NULL;

    if (ring == NULL)
        return false;
    (void)pthread_mutex_lock(&b->ring_lock);
    for (uint64_t t = b->enqueued - b->ring_size + 1; b->ring_size > 0 && t <= b->enqueued; t++)
        ring[t & (size - 1)] = *cdi_slot_of(b, t);
    cdi_host->release(b->ring);
    b->ring = ring;
    b->ring_size = size;
    (void)pthread_mutex_unlock(&b->ring_lock);
    return true;
}

/* Do n more tickets fit? */
static bool ring_fits(struct cdi_backend *b, size_t n)
{
    return n <= b->ring_size &&
           (b->enqueued + n <= b->ring_size || cdi_ring_is_done(b, b->enqueued + n - b->ring_size));
}

cddp_status cdi_ring_make_room(struct cdi_backend *b, size_t n, struct cdi_error *err)
{
    while (!ring_fits(b, n))
        if (!ring_grow(b))
            return cdi_fail(err, b->ring_size >= CDI_RING_LIMIT ? CDDP_E_LIMIT : CDDP_E_NOMEM,
                            "%zu more collectives do not fit: %zu may be in flight; wait for some of them first", n,
                            b->ring_size);
    return CDDP_OK;
}

cddp_status cdi_ring_next(struct cdi_backend *b, struct cdi_slot **out, struct cdi_error *err)
{
    struct cdi_slot *s;
    cddp_status st = cdi_ring_make_room(b, 1, err);

    if (st != CDDP_OK)
        return st;
    s = cdi_slot_of(b, b->enqueued + 1);
    if (s->done == NULL)
        st = cdi_cuda_check(cdi_cuda.event_create(&s->done, CU_EVENT_DISABLE_TIMING), "creating an event", err);
    *out = s;
    return st;
}

cddp_status cdi_slot_copy_counts(const struct cdi_backend *b, struct cdi_slot *s, struct cdi_error *err)
{
    size_t n = (size_t)b->world.size;

    if (s->one.op.kind != CDI_ALL_GATHERV)
        return CDDP_OK;
    s->counts = cdi_host->alloc(n, sizeof *s->counts);
    if (s->counts == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a collective");
    memcpy(s->counts, s->one.op.counts, n * sizeof *s->counts);
    s->one.op.counts = s->counts;
    return CDDP_OK;
}

/* Frees the memory of a slot, except for its event. */
static void slot_clear(struct cdi_slot *s)
{
    cdi_host->release(s->counts);
    cdi_host->release(s->group);
    s->counts = NULL;
    s->group = NULL;
    s->one.staged = NULL;
}

static void ring_retire(struct cdi_backend *b, struct cdi_slot *s)
{
    slot_clear(s);
    b->done++;
}

void cdi_ring_free(struct cdi_backend *b)
{
    for (size_t i = 0; i < b->ring_size; i++) {
        if (b->ring[i].done != NULL)
            (void)cdi_cuda.event_destroy(b->ring[i].done);
        slot_clear(&b->ring[i]);
    }
    cdi_host->release(b->ring);
    b->ring = NULL;
    b->ring_size = 0;
}

struct cdi_ring_op *cdi_slot_op(struct cdi_slot *s, size_t i)
{
    if (s->group != NULL)
        return i < s->group->n ? &s->group->op[i] : NULL;
    return i == 0 ? &s->one : NULL;
}

/* With `ring_lock`. */
static void ring_note_reached(struct cdi_backend *b, const struct cdi_slot *s)
{
    if (s->number > atomic_load(&b->reached))
        atomic_store(&b->reached, s->number);
}

bool cdi_ring_poll(struct cdi_backend *b)
{
    uint32_t done, started;
    bool all_done;

    (void)pthread_mutex_lock(&b->ring_lock);
    /* In this order: otherwise an operation could be done and not started. */
    done = atomic_load_explicit(&b->words->done, memory_order_acquire);
    started = atomic_load_explicit(&b->words->started, memory_order_acquire);
    while (b->done < b->issued) {
        uint64_t ticket = b->done + 1;
        struct cdi_slot *s = cdi_slot_of(b, ticket);

        if (s->started_ms == 0 && cdi_ticket_reached(started, ticket)) {
            s->started_ms = cdi_now_ms();
            ring_note_reached(b, s);
            cdi_host->flight_start(b->record, s->flight_seq);
        }
        if (!cdi_ticket_reached(done, ticket))
            break;
        cdi_host->flight_done(b->record, s->flight_seq);
        ring_retire(b, s);
    }
    all_done = b->done == b->enqueued;
    (void)pthread_mutex_unlock(&b->ring_lock);
    return all_done;
}

bool cdi_ring_is_done(struct cdi_backend *b, uint64_t ticket)
{
    bool is;

    (void)pthread_mutex_lock(&b->ring_lock);
    is = ticket <= b->done;
    (void)pthread_mutex_unlock(&b->ring_lock);
    return is;
}

static size_t slot_n_ops(const struct cdi_slot *s)
{
    return s->group != NULL ? s->group->n : 1;
}

bool cdi_op_is_message(const struct cdi_coll *op)
{
    return (op->kind == CDI_SEND || op->kind == CDI_RECV) && !cdi_api_call_is_coll(op->asked);
}

void cdi_slot_describe(const struct cdi_slot *s, uint64_t ticket, struct cdi_op_info *out)
{
    size_t used;

    out->ticket = ticket;
    out->number = s->number;
    cdi_coll_text(&s->one.op, out->op, sizeof out->op);
    used = strlen(out->op);
    if (cdi_op_is_message(&s->one.op) && slot_n_ops(s) > 1)
        (void)snprintf(out->op + used, sizeof out->op - used, " and %zu more", slot_n_ops(s) - 1);
}

void cdi_ring_current(struct cdi_backend *b, struct cdi_op_info *out)
{
    const struct cdi_slot *s;

    *out = (struct cdi_op_info){.ticket = 0};
    (void)pthread_mutex_lock(&b->ring_lock);
    s = b->done < b->enqueued ? cdi_slot_of(b, b->done + 1) : NULL;
    if (s != NULL) {
        bool begun = s->started_ms == 0 && b->done == b->issued && b->begun > b->issued;

        cdi_slot_describe(s, b->done + 1, out);
        out->since_ms = begun ? b->begun_ms : s->started_ms;
        if (begun)
            ring_note_reached(b, s);
    }
    (void)pthread_mutex_unlock(&b->ring_lock);
}

/* With `ring_lock`. */
static bool slot_has_peer(const struct cdi_slot *s, int rank)
{
    if (s->group == NULL)
        return s->one.op.root == rank;
    for (size_t i = 0; i < s->group->n; i++)
        if (s->group->ops[i]->root == rank)
            return true;
    return false;
}

void cdi_ring_peers(struct cdi_backend *b, uint64_t ticket, struct cdi_rank_list *peers)
{
    (void)pthread_mutex_lock(&b->ring_lock);
    for (int r = 0; r < b->world.size && ticket > b->done && ticket <= b->enqueued; r++)
        if (r != b->world.rank && slot_has_peer(cdi_slot_of(b, ticket), r))
            cdi_rank_list_add(peers, r);
    (void)pthread_mutex_unlock(&b->ring_lock);
}

void cdi_ring_add_time(struct cdi_backend *b, int64_t ms)
{
    int64_t now_ms = cdi_now_ms();

    (void)pthread_mutex_lock(&b->ring_lock);
    for (uint64_t ticket = b->done + 1; ticket <= b->issued; ticket++) {
        struct cdi_slot *s = cdi_slot_of(b, ticket);

        if (s->started_ms > 0)
            s->started_ms = s->started_ms + ms < now_ms ? s->started_ms + ms : now_ms;
    }
    (void)pthread_mutex_unlock(&b->ring_lock);
}

/* ---------------------------------------------------------------------------------------------- several as one ---- */

static size_t group_n_counts(const struct cdi_coll *ops, size_t n)
{
    size_t k = 0;

    for (size_t i = 0; i < n; i++)
        k += ops[i].kind == CDI_ALL_GATHERV;
    return k;
}

cddp_status cdi_op_group_create(struct cdi_op_group **out, const struct cdi_coll *ops, size_t n, int n_ranks,
                                struct cdi_error *err)
{
    size_t one = sizeof(struct cdi_ring_op) + sizeof(const struct cdi_coll *),
           each = (size_t)n_ranks * sizeof *ops->counts;
    size_t bytes = sizeof **out + group_n_counts(ops, n) * each;
    struct cdi_op_group *s = n <= (PTRDIFF_MAX - bytes) / one ? cdi_host->alloc(1, bytes + n * one) : NULL;
    size_t *counts;

    if (s == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a group of %zu operations", n);
    s->ops = (const struct cdi_coll **)(s->op + n);
    counts = (size_t *)(s->ops + n);
    for (size_t i = 0; i < n; i++) {
        struct cdi_coll *op = &s->op[s->n].op;

        if (ops[i].kind == CDI_BARRIER && cdi_api_call_is_coll(ops[i].asked))
            continue;
        *op = ops[i];
        if (op->kind == CDI_ALL_GATHERV) {
            memcpy(counts, op->counts, each);
            op->counts = counts;
            counts += n_ranks;
        }
        s->ops[s->n++] = op;
    }
    *out = s;
    return CDDP_OK;
}
