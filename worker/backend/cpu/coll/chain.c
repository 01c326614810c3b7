/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/coll/chain.h"

#include "worker/math/reduce.h"

#include <string.h>
#include <sys/uio.h>

static int links_of(struct cdi_tcp *tcp, struct cdi_link *links[2])
{
    int n = 0;

    if (tcp->prev.rank >= 0)
        links[n++] = &tcp->prev;
    if (tcp->next.rank >= 0)
        links[n++] = &tcp->next;
    return n;
}

cddp_status cdi_run_pump(struct cdi_run *run, struct cdi_link *const *links, int n, cdi_pump_fn fn, void *arg,
                         struct cdi_error *err)
{
    return cdi_tcp_pump(run->t->tcp, links, n, fn, arg, cdi_run_what, run, err);
}

/* ----------------------------------------------------------------------------------------------------- opening ---- */

struct opening {
    struct cdi_link *links[2]; /* n of them */
    int n;
    bool sent[2], received[2];
    const struct cdi_shm_desc *mine; /* NULL: the caller compares the operations */
    int differs;                     /* the first link whose peer is in another operation; -1: none */
    int waited_for;                  /* the link whose opening came last, after the first attempt; -1: none */
    bool again;                      /* this is not the first attempt */
    uint8_t out[CDI_TCP_OP], in[2][CDI_TCP_OP];
};

static cddp_status send_openings(struct opening *g, bool *moved, struct cdi_error *err)
{
    for (int i = 0; i < g->n; i++) {
        cddp_status st =
            g->sent[i] ? CDDP_OK : cdi_link_send(g->links[i], CDI_TCP_IS_OP, g->out, sizeof g->out, moved, err);

        if (st < 0)
            return st;
        g->sent[i] = st == CDDP_OK;
    }
    return CDDP_OK;
}

/*
 * Compares each opening when it arrives, and does not wait for both: if one neighbour is in another operation, the
 * other one may wait for ever and send none.
 */
static cddp_status exchange_descs(void *arg, bool *moved, struct cdi_error *err)
{
    struct opening *g = arg;
    cddp_status st = send_openings(g, moved, err);
    bool all = true;

    for (int i = 0; i < g->n && st >= 0; i++) {
        const struct iovec part = {.iov_base = g->in[i], .iov_len = sizeof g->in[i]};

        if (!g->received[i]) {
            st = g->mine != NULL ? cdi_link_recv_first(g->links[i], CDI_TCP_IS_OP, &part, 1, g->mine, moved, err)
                                 : cdi_link_recv_parts(g->links[i], CDI_TCP_IS_OP, &part, 1, moved, err);
            if (st == CDDP_E_MISMATCH) {
                g->differs = i;
                return CDDP_OK;
            }
            if (st == CDDP_OK && g->again)
                g->waited_for = i;
            g->received[i] = g->links[i]->begun = st == CDDP_OK;
        }
        all = all && g->sent[i] && g->received[i];
    }
    g->again = true;
    return st < 0 ? st : all ? CDDP_OK : CDDP_IN_PROGRESS;
}

void cdi_run_note_late(struct cdi_run *run, const struct cdi_link *waited_for, const uint8_t theirs[CDI_TCP_OP])
{
    const struct cdi_cpu_comm *t = run->t;
    struct cdi_shm_rank *mine = &t->shm->ranks[t->shm->rank];
    struct cdi_shm_desc unused;
    int32_t late = run->late;
    int64_t ns = 0;

    if (waited_for != NULL) {
        cdi_tcp_get_op(theirs, &unused, &late);
        if (late < 0 || late >= t->size)
            late = waited_for->rank;
    }
    if (waited_for != NULL || !run->compared_here)
        ns = cdi_run_arrived(run, late, false);
    run->met_nodes = true;
    atomic_store_explicit(&mine->late, run->late, memory_order_relaxed);
    atomic_store_explicit(&mine->arrived_ns, ns, memory_order_relaxed);
}

cddp_status cdi_run_differs(const struct cdi_run *run, const struct cdi_link *l, const uint8_t theirs[CDI_TCP_OP],
                            struct cdi_error *err)
{
    int me = run->t->rank;
    struct cdi_shm_desc other;
    int32_t late;

    cdi_tcp_get_op(theirs, &other, &late);
    return l->rank < me ? cdi_run_mismatch(run, l->rank, &other, me, &run->desc, "collectives", err)
                        : cdi_run_mismatch(run, me, &run->desc, l->rank, &other, "collectives", err);
}

cddp_status cdi_chain_begin(struct cdi_run *run, struct cdi_error *err)
{
    struct opening g = {.waited_for = -1, .differs = -1, .mine = &run->desc};
    cddp_status st;

    if (run->compared_nodes)
        return CDDP_OK;
    run->compared_nodes = true;
    g.n = links_of(run->t->tcp, g.links);
    for (int i = 0; i < g.n; i++)
        g.links[i]->begun = false;
    cdi_tcp_put_op(g.out, &run->desc, run->late);
    st = cdi_run_pump(run, g.links, g.n, exchange_descs, &g, err);
    if (st == CDDP_OK && g.differs >= 0)
        return cdi_run_differs(run, g.links[g.differs], g.in[g.differs], err);
    if (st == CDDP_OK)
        cdi_run_note_late(run, g.waited_for < 0 ? NULL : g.links[g.waited_for],
                          g.in[g.waited_for < 0 ? 0 : g.waited_for]);
    return st;
}

/* ------------------------------------------------------------------------------------------------ reductions ---- */

/* Returns where piece k begins in the whole operation, and sets *n to its number of elements. */
static size_t piece_begin(const struct cdi_pipeline *p, size_t k, size_t *n)
{
    size_t begin = k / p->per * p->a.stage, left = p->a.count - begin, skip = k % p->per * p->most, lo, hi;

    cdi_share(left < p->a.stage ? left : p->a.stage, p->size, p->run->t->shm->rank, p->tcp->n_chains, &lo, &hi);
    lo = lo + skip < hi ? lo + skip : hi;
    *n = hi - lo < p->most ? hi - lo : p->most;
    return begin + lo;
}

static size_t elements(const struct cdi_pipeline *p, size_t k)
{
    size_t n;

    (void)piece_begin(p, k, &n);
    return n;
}

static uint8_t *partial(const struct cdi_pipeline *p, size_t k)
{
    return p->tcp->ring + k % CDI_TCP_RING * CDI_SHM_PIECE_BYTES;
}

static const uint8_t *input(const struct cdi_pipeline *p, int k_in, size_t k)
{
    const struct cdi_shm *shm = p->run->t->shm;
    size_t n, at = piece_begin(p, k, &n);

    if (p->a.in != NULL)
        return (const uint8_t *)p->a.in[k_in] + at * p->size;
    if (k_in == shm->rank)
        return (const uint8_t *)p->run->w->op.in + at * p->size;
    return cdi_shm_to_read(shm, cdi_shm_stage_in(shm, k_in, k / p->per) + at % p->a.stage * p->size, n * p->size);
}

static uint8_t *result(const struct cdi_pipeline *p, int k_out, size_t k)
{
    const struct cdi_shm *shm = p->run->t->shm;
    size_t n, at = piece_begin(p, k, &n);

    if (p->a.out != NULL)
        return (uint8_t *)p->a.out[k_out] + at * p->size;
    return cdi_shm_stage_out(shm, shm->rank, k / p->per) + at % p->a.stage * p->size;
}

/* Returns the lowest node that needs a part of piece k: the result does not return beyond it. */
static int home_of(const struct cdi_pipeline *p, size_t k)
{
    const struct cdi_coll *op = &p->run->w->op;
    size_t n, at = piece_begin(p, k, &n);

    if (op->kind == CDI_REDUCE)
        return cdi_tcp_node_of(p->tcp, op->root);
    return op->kind == CDI_REDUCE_SCATTER && n > 0 ? cdi_tcp_node_of(p->tcp, (int)(at / op->count)) : 0;
}

static cddp_status take_partial(struct cdi_pipeline *p, bool *moved, struct cdi_error *err)
{
    size_t gone = p->has_next ? p->forwarded : p->reduced;
    cddp_status st = CDDP_OK;

    while (p->has_prev && st == CDDP_OK && p->arrived < p->n_pieces && p->arrived - gone < CDI_TCP_RING) {
        st = cdi_link_recv(&p->tcp->prev, CDI_TCP_IS_DATA, partial(p, p->arrived),
                           elements(p, p->arrived) * p->acc_size, moved, err);
        p->arrived += st == CDDP_OK;
    }
    return st;
}

/* Adds the inputs of the node to one piece. */
static void reduce_piece(struct cdi_pipeline *p, bool *moved)
{
    const struct cdi_coll *op = &p->run->w->op;
    struct cdi_partial how = {.n_total = p->run->t->size};
    int n_in = p->run->t->shm->size;
    size_t k = p->reduced;

    if (k >= p->offered || (p->has_prev && k >= p->arrived) || (p->has_next && k - p->forwarded >= CDI_TCP_RING))
        return;
    how.from = p->has_prev ? partial(p, k) : NULL;
    how.to = p->has_next ? partial(p, k) : NULL;
    for (int i = 0; i < n_in; i++)
        p->in[i] = input(p, i, k);
    for (int i = 0; i < p->a.n_out; i++)
        p->out[i] = result(p, i, k);
    if (elements(p, k) > 0)
        cdi_reduce_partial(&how, p->out, p->a.n_out, p->in, n_in, elements(p, k), op->dtype, op->op);
    p->reduced++;
    *moved = true;
}

static cddp_status forward_partial(struct cdi_pipeline *p, bool *moved, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    while (p->has_next && st == CDDP_OK && p->forwarded < p->reduced) {
        st = cdi_link_send(&p->tcp->next, CDI_TCP_IS_DATA, partial(p, p->forwarded),
                           elements(p, p->forwarded) * p->acc_size, moved, err);
        p->forwarded += st == CDDP_OK;
    }
    return st;
}

static cddp_status take_result(struct cdi_pipeline *p, bool *moved, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    while (p->has_next && st == CDDP_OK && p->returned < p->forwarded) {
        size_t bytes = elements(p, p->returned) * p->size;

        if (p->tcp->node < home_of(p, p->returned)) {
            p->returned++;
            continue;
        }
        st = cdi_link_recv(&p->tcp->next, CDI_TCP_IS_DATA, result(p, 0, p->returned), bytes, moved, err);
        for (int i = 1; i < p->a.n_out && st == CDDP_OK && bytes > 0; i++)
            memcpy(result(p, i, p->returned), result(p, 0, p->returned), bytes);
        p->returned += st == CDDP_OK;
    }
    return st;
}

static cddp_status pass_result(struct cdi_pipeline *p, bool *moved, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    while (p->has_prev && st == CDDP_OK && p->passed < (p->has_next ? p->returned : p->reduced)) {
        size_t bytes = elements(p, p->passed) * p->size;

        if (p->tcp->node <= home_of(p, p->passed)) {
            p->passed++;
            continue;
        }
        st = cdi_link_send(&p->tcp->prev, CDI_TCP_IS_DATA, result(p, 0, p->passed), bytes, moved, err);
        p->passed += st == CDDP_OK;
    }
    return st;
}

static cddp_status pipeline_advance(void *arg, bool *moved, struct cdi_error *err)
{
    struct cdi_pipeline *p = arg;
    cddp_status st = take_partial(p, moved, err);

    if (st < 0)
        return st;
    reduce_piece(p, moved);
    st = forward_partial(p, moved, err);
    if (st >= 0)
        st = take_result(p, moved, err);
    if (st >= 0)
        st = pass_result(p, moved, err);
    if (st < 0)
        return st;
    return p->reduced >= p->until && (!p->has_next || p->returned >= p->until) &&
                   (!p->has_prev || p->passed >= p->until)
               ? CDDP_OK
               : CDDP_IN_PROGRESS;
}

void cdi_pipeline_init(struct cdi_pipeline *p, struct cdi_run *run, const struct cdi_chain_op *a)
{
    struct cdi_cpu_comm *t = run->t;
    size_t lo, hi;

    *p = (struct cdi_pipeline){.run = run, .a = *a, .tcp = t->tcp, .in = t->in, .out = t->out};
    p->has_prev = t->tcp->prev.rank >= 0;
    p->has_next = t->tcp->next.rank >= 0;
    p->size = cddp_dtype_size(run->w->op.dtype);
    p->acc_size = cdi_reduce_acc_size(run->w->op.dtype);
    if (a->in != NULL || a->stage > a->count)
        p->a.stage = a->count;
    p->most =
        cdi_choose_piece(&t->net, a->count / (size_t)t->tcp->n_chains * p->acc_size, t->tcp->n_nodes) / p->acc_size;
    cdi_share(p->a.stage, p->size, 0, t->tcp->n_chains, &lo, &hi);
    p->per = (hi + p->most - 1) / p->most;
    p->n_pieces = (a->count + p->a.stage - 1) / p->a.stage * p->per;
}

cddp_status cdi_pipeline_run(struct cdi_pipeline *p, size_t offered, size_t until, struct cdi_error *err)
{
    struct cdi_link *links[2];
    int n = links_of(p->tcp, links);
    cddp_status st = cdi_chain_begin(p->run, err);

    p->offered = offered * p->per;
    p->until = until * p->per;
    return st == CDDP_OK ? cdi_run_pump(p->run, links, n, pipeline_advance, p, err) : st;
}

/* ---------------------------------------------------------------------------------------------------- blocks ---- */

struct transfer {
    struct cdi_link *link;
    bool out;
    enum cdi_tcp_type type;
    void *body;
    size_t len;
};

static cddp_status chain_transfer(void *arg, bool *moved, struct cdi_error *err)
{
    struct transfer *x = arg;

    return x->out ? cdi_link_send(x->link, x->type, x->body, x->len, moved, err)
                  : cdi_link_recv(x->link, x->type, x->body, x->len, moved, err);
}

static cddp_status chain_move(struct cdi_run *run, struct cdi_link *link, bool out, enum cdi_tcp_type type, void *body,
                              size_t len, struct cdi_error *err)
{
    struct transfer x = {.link = link, .out = out, .type = type, .body = body, .len = len};

    return cdi_run_pump(run, &link, 1, chain_transfer, &x, err);
}

/*
 * One direction at a time, without deadlock: all nodes handle the blocks in the same order, and no node begins the next
 * block before it has passed this one on.
 */
cddp_status cdi_chain_relay(struct cdi_run *run, int from, const struct cdi_reach *reach, uint8_t *block, size_t len,
                            struct cdi_error *err)
{
    struct cdi_tcp *tcp = run->t->tcp;
    struct cdi_link *prev = tcp->prev.rank >= 0 ? &tcp->prev : NULL, *next = tcp->next.rank >= 0 ? &tcp->next : NULL;
    cddp_status st = cdi_chain_begin(run, err);

    if (st == CDDP_OK && from != tcp->node)
        st = chain_move(run, from < tcp->node ? prev : next, false, CDI_TCP_IS_DATA, block, len, err);
    if (st == CDDP_OK && next != NULL && from <= tcp->node && tcp->node < reach->last)
        st = chain_move(run, next, true, CDI_TCP_IS_DATA, block, len, err);
    if (st == CDDP_OK && prev != NULL && from >= tcp->node && tcp->node > reach->first)
        st = chain_move(run, prev, true, CDI_TCP_IS_DATA, block, len, err);
    return st;
}

/* -------------------------------------------------------------------------------------------------- messages ---- */

cddp_status cdi_chain_message(struct cdi_run *run, struct cdi_error *err)
{
    const struct cdi_coll *op = &run->w->op;
    bool out = op->kind == CDI_SEND;
    uint8_t *p = out ? (uint8_t *)(uintptr_t)op->in : op->out;
    size_t left = op->count * cddp_dtype_size(op->dtype);
    struct opening g = {.n = 1, .waited_for = -1, .differs = -1};
    struct cdi_link *link = NULL;
    struct cdi_shm_desc other;
    int32_t late;
    cddp_status st = cdi_tcp_pair(run->t->tcp, op->root, &link, err);

    if (st != CDDP_OK || link == NULL)
        return st;
    link->begun = false;
    g.links[0] = link;
    cdi_tcp_put_op(g.out, &run->desc, run->late);
    st = cdi_run_pump(run, g.links, 1, exchange_descs, &g, err);
    if (st != CDDP_OK)
        return st;
    (void)cdi_run_arrived(run, g.waited_for < 0 ? run->t->rank : op->root, false);
    cdi_tcp_get_op(g.in[0], &other, &late);
    if (other.count != run->desc.count || other.dtype != run->desc.dtype ||
        other.kind != (uint32_t)(out ? CDI_RECV : CDI_SEND))
        return out ? cdi_run_mismatch(run, run->t->rank, &run->desc, op->root, &other, "operations", err)
                   : cdi_run_mismatch(run, op->root, &other, run->t->rank, &run->desc, "operations", err);
    while (left > 0 && st == CDDP_OK) {
        size_t n = left < CDI_TCP_PAYLOAD_MAX ? left : CDI_TCP_PAYLOAD_MAX;

        st = chain_move(run, link, out, CDI_TCP_IS_DATA, p, n, err);
        p += n;
        left -= n;
    }
    return st;
}
