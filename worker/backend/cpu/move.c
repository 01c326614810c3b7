/* SPDX-License-Identifier: Apache-2.0 */
/* What only moves bytes: broadcast, all_gather(v) and all_to_all over the exchange; send and recv over mailboxes. */
#include "worker/backend/cpu/run.h"

#include <string.h>

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Bytes of the piece at `at` of what rank gives. */
static size_t stretch(const struct cdi_team *t, int rank, size_t at, size_t most)
{
    return at < t->len[rank] ? smaller(most, t->len[rank] - at) : 0;
}

cddp_status cdi_exchange(struct cdi_run *run, const void *mine, cdi_take_fn take, void *arg, struct cdi_error *err)
{
    struct cdi_team *t = run->t;
    size_t longest = 0, at = 0;

    for (int r = 0; r < t->size; r++)
        longest = t->len[r] > longest ? t->len[r] : longest;
    do {
        size_t n = stretch(t, t->rank, at, CDI_SHM_PIECE_BYTES);
        cddp_status st;

        if (n > 0)
            memcpy(cdi_next_slot(t), (const uint8_t *)mine + at, n);
        st = cdi_step(run, err);
        if (st != CDDP_OK)
            return st;
        for (int r = 0; r < t->shm->size; r++) {
            int from = t->shm->first + r;

            n = stretch(t, from, at, CDI_SHM_PIECE_BYTES);
            if (n > 0)
                take(arg, from, at, cdi_slot_of(t, r), n);
        }
        at += CDI_SHM_PIECE_BYTES;
    } while (at < longest);
    return CDDP_OK;
}

/* ---------------------------------------------------------------------------------------------- collectives --------
 */

/* t->at: where in out the part of each rank begins. */
static void take_part(void *arg, int from, size_t at, const uint8_t *p, size_t n)
{
    const struct cdi_run *run = arg;

    if (from != run->t->rank)
        memcpy((uint8_t *)run->w->op.out + run->t->at[from] + at, p, n);
}

static cddp_status broadcast(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_team *t = run->t;
    const struct cdi_op *op = &run->w->op;

    for (int r = 0; r < t->size; r++) {
        t->len[r] = r == op->root ? op->count * cddp_dtype_size(op->dtype) : 0;
        t->at[r] = 0;
    }
    return cdi_exchange(run, op->out, take_part, run, err);
}

static cddp_status all_gather(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_team *t = run->t;
    const struct cdi_op *op = &run->w->op;
    size_t size = cddp_dtype_size(op->dtype), at = 0;
    uint8_t *mine;

    for (int r = 0; r < t->size; r++) {
        t->len[r] = (op->kind == CDI_ALL_GATHERV ? op->counts[r] : op->count) * size;
        t->at[r] = at;
        at += t->len[r];
    }
    mine = (uint8_t *)op->out + t->at[t->rank];
    if (t->len[t->rank] > 0 && op->in != mine)
        memcpy(mine, op->in, t->len[t->rank]);
    return cdi_exchange(run, mine, take_part, run, err);
}

/* Every rank gives all its blocks; each takes the one that is for it. */
static void take_block(void *arg, int from, size_t at, const uint8_t *p, size_t n)
{
    const struct cdi_run *run = arg;
    size_t bytes = run->w->op.count * cddp_dtype_size(run->w->op.dtype), block = bytes * (size_t)run->t->rank;
    size_t lo = at > block ? at : block, hi = smaller(at + n, block + bytes);

    if (lo < hi)
        memcpy((uint8_t *)run->w->op.out + bytes * (size_t)from + (lo - block), p + (lo - at), hi - lo);
}

static cddp_status all_to_all(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_team *t = run->t;
    const struct cdi_op *op = &run->w->op;

    for (int r = 0; r < t->size; r++)
        t->len[r] = op->count * cddp_dtype_size(op->dtype) * (size_t)t->size;
    return cdi_exchange(run, op->in, take_block, run, err);
}

/* ------------------------------------------------------------------------------------------------ mailboxes --------
 */

static cddp_status wait_for(struct cdi_run *run, int local, struct cdi_counter *c, uint32_t step, struct cdi_error *err)
{
    return cdi_wait_counter(&run->t->wait, local, c, step, run->on_thread, cdi_run_what, run, err);
}

static cddp_status mail_send(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_shm *s = run->t->shm;
    struct cdi_shm_mail *m = &s->ranks[s->rank].mail;
    int to = run->w->op.root - s->first;
    const uint8_t *in = run->w->op.in;
    size_t left = run->w->op.count * cddp_dtype_size(run->w->op.dtype);
    uint32_t piece = atomic_load(&m->sent.value);
    cddp_status st;

    do {
        size_t n = smaller(left, sizeof m->data);

        piece++;
        m->desc = run->desc;
        if (n > 0)
            memcpy(m->data, in, n);
        atomic_store(&m->address, (uint64_t)piece << 32 | (uint32_t)to);
        cdi_counter_post(&m->sent, piece);
        st = wait_for(run, to, &m->taken, piece, err);
        in += n;
        left -= n;
    } while (st == CDDP_OK && left > 0);
    return st;
}

/* Until there is a piece in rank `from`'s mailbox that is for this rank. */
static cddp_status await_mail(struct cdi_run *run, int from, uint32_t *piece, struct cdi_error *err)
{
    struct cdi_shm *s = run->t->shm;
    struct cdi_shm_mail *m = &s->ranks[from].mail;

    for (;;) {
        uint32_t taken = atomic_load(&m->taken.value);
        cddp_status st = wait_for(run, from, &m->sent, taken + 1, err);

        if (st != CDDP_OK)
            return st;
        if (atomic_load(&m->address) == ((uint64_t)(taken + 1) << 32 | (uint32_t)s->rank)) {
            *piece = taken + 1;
            return CDDP_OK;
        }
        st = wait_for(run, from, &m->taken, taken + 1, err); /* it is for somebody else: until they have it */
        if (st != CDDP_OK)
            return st;
    }
}

static cddp_status compare_mail(const struct cdi_run *run, const struct cdi_shm_desc *sent, struct cdi_error *err)
{
    char a[160], b[160];

    if (sent->count == run->desc.count && sent->dtype == run->desc.dtype)
        return CDDP_OK;
    cdi_desc_text(sent, a, sizeof a);
    cdi_desc_text(&run->desc, b, sizeof b);
    return cdi_fail(err, CDDP_E_MISMATCH, "ranks called different operations: rank %d called %s, rank %d called %s",
                    run->w->op.root, a, run->t->rank, b);
}

static cddp_status mail_recv(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_shm *s = run->t->shm;
    int from = run->w->op.root - s->first;
    struct cdi_shm_mail *m = &s->ranks[from].mail;
    uint8_t *out = run->w->op.out;
    size_t left = run->w->op.count * cddp_dtype_size(run->w->op.dtype);

    do {
        size_t n = smaller(left, sizeof m->data);
        uint32_t piece;
        cddp_status st = await_mail(run, from, &piece, err);

        if (st == CDDP_OK)
            st = compare_mail(run, &m->desc, err);
        if (st != CDDP_OK)
            return st;
        if (n > 0)
            memcpy(out, m->data, n);
        cdi_counter_post(&m->taken, piece);
        out += n;
        left -= n;
    } while (left > 0);
    return CDDP_OK;
}

cddp_status cdi_run_move(struct cdi_run *run, struct cdi_error *err)
{
    switch (run->w->op.kind) {
    case CDI_BROADCAST:
        return broadcast(run, err);
    case CDI_ALL_GATHER:
    case CDI_ALL_GATHERV:
        return all_gather(run, err);
    case CDI_ALL_TO_ALL:
        return all_to_all(run, err);
    case CDI_SEND:
        return mail_send(run, err);
    case CDI_RECV:
        return mail_recv(run, err);
    case CDI_ALL_REDUCE:
    case CDI_BARRIER:
    case CDI_REDUCE:
    case CDI_REDUCE_SCATTER:
        break;
    }
    return cdi_fail(err, CDDP_E_INVALID, "no such collective");
}
