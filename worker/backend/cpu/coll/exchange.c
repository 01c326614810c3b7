/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that only move bytes: broadcast, all_gather(v) and all_to_all by an exchange, send and recv by mailboxes.
 */
#include "worker/backend/cpu/coll/exchange.h"

#include "worker/backend/cpu/coll/bruck.h"
#include "worker/backend/cpu/coll/chain.h"
#include "worker/backend/cpu/coll/choose.h"
#include "worker/backend/who.h"

#include <string.h>

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Returns the bytes of the piece at `at` of a rank's data. */
static size_t stretch(const struct cdi_cpu_comm *t, int rank, size_t at, size_t most)
{
    return at < t->len[rank] ? smaller(most, t->len[rank] - at) : 0;
}

/* Returns the longest piece at `at` of the node's ranks: all of them choose the same place for their pieces. */
static size_t longest_here(const struct cdi_cpu_comm *t, size_t at, size_t most)
{
    size_t longest = 0;

    for (int r = 0; r < t->shm->size; r++) {
        size_t n = stretch(t, t->shm->first + r, at, most);

        longest = n > longest ? n : longest;
    }
    return longest;
}

/* Passes on the pieces of the ranks [first, end), which lie one after another at p. */
static void take_all(const struct cdi_cpu_comm *t, int first, int end, size_t at, size_t most, const uint8_t *p,
                     cdi_take_fn take, void *arg)
{
    for (int r = first; r < end; r++) {
        size_t n = stretch(t, r, at, most);

        if (n > 0)
            take(arg, r, at, p, n);
        p += n;
    }
}

/*
 * Of a piece of *n bytes at `at`, sets [*skip, *skip + *n) to those that this rank reads: its own block for all_to_all,
 * otherwise all. Returns false for none.
 */
static bool wants(const struct cdi_run *run, size_t at, size_t *skip, size_t *n)
{
    const struct cdi_coll *op = &run->w->op;
    size_t bytes = op->count * cddp_dtype_size(op->dtype), block = bytes * (size_t)run->t->rank;
    size_t lo = at > block ? at : block, hi = smaller(at + *n, block + bytes);

    *skip = 0;
    if (op->kind != CDI_ALL_TO_ALL)
        return *n > 0;
    *skip = lo - at;
    *n = lo < hi ? hi - lo : 0;
    return *n > 0;
}

/* One step: moves the piece at `at` of every rank to all ranks of the node. */
static cddp_status exchange_here(struct cdi_run *run, const uint8_t *mine, size_t at, size_t most, cdi_take_fn take,
                                 void *arg, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    size_t n = stretch(t, t->rank, at, most), longest = longest_here(t, at, most);
    cddp_status st;

    if (n > 0)
        memcpy(cdi_next_room(t, longest), mine + at, n);
    st = cdi_step(run, err);
    for (int r = 0; r < t->shm->size && st == CDDP_OK; r++) {
        int from = t->shm->first + r;
        size_t skip;

        n = stretch(t, from, at, most);
        if (wants(run, at, &skip, &n))
            take(arg, from, at + skip, cdi_room_of(t, r, longest, skip, n), n);
    }
    return st;
}

/* Copies all pieces of the node's last step into one block. */
static void collect_block(const struct cdi_cpu_comm *t, size_t at, size_t most, uint8_t *block)
{
    size_t longest = longest_here(t, at, most);

    for (int r = 0; r < t->shm->size; r++) {
        size_t n = stretch(t, t->shm->first + r, at, most);

        if (n > 0)
            memcpy(block, cdi_room_of(t, r, longest, 0, n), n);
        block += n;
    }
}

/* Returns the nodes that need the pieces at `at`: those of a few ranks for all_to_all, otherwise all. */
static struct cdi_reach reach_of(const struct cdi_run *run, size_t at, size_t most)
{
    const struct cdi_tcp *tcp = run->t->tcp;
    const struct cdi_coll *op = &run->w->op;
    size_t block = op->count * cddp_dtype_size(op->dtype), all = block * (size_t)run->t->size;

    if (op->kind != CDI_ALL_TO_ALL || block == 0)
        return (struct cdi_reach){.first = 0, .last = tcp->n_nodes - 1};
    return (struct cdi_reach){.first = cdi_tcp_node_of(tcp, (int)(at / block)),
                              .last = cdi_tcp_node_of(tcp, (int)((smaller(at + most, all) - 1) / block))};
}

/*
 * Moves the same pieces to and from the other nodes, in the order of the nodes: local rank 0 moves the blocks, and the
 * other ranks read them in its slot.
 */
static cddp_status exchange_multinode(struct cdi_run *run, size_t at, size_t most, cdi_take_fn take, void *arg,
                                      struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    struct cdi_tcp *tcp = t->tcp;
    const struct cdi_reach reach = reach_of(run, at, most);
    bool leads = t->shm->rank == 0;
    cddp_status st = CDDP_OK;

    if (leads) {
        collect_block(t, at, most, tcp->ring);
        st = cdi_chain_begin(run, err);
    }
    if (st == CDDP_OK && at == 0) /* no rank ends the operation before the nodes have compared it */
        st = cdi_step_after_network(run, err);
    for (int node = 0; node < tcp->n_nodes && st == CDDP_OK; node++) {
        size_t len = 0;

        for (int r = tcp->first[node]; r < tcp->first[node + 1]; r++)
            len += stretch(t, r, at, most);
        if (len == 0 || !cdi_chain_passes(&reach, node, tcp->node))
            continue;
        if (leads)
            st = cdi_chain_relay(run, node, &reach, node == tcp->node ? tcp->ring : cdi_next_slot(t), len, err);
        if (node == tcp->node || st != CDDP_OK)
            continue;
        st = cdi_step_after_network(run, err);
        if (st == CDDP_OK)
            take_all(t, tcp->first[node], tcp->first[node + 1], at, most, cdi_slot_of(t, 0, 0, len), take, arg);
    }
    return st;
}

/* Few bytes: all ranks get all of them at once. */
static cddp_status exchange_small(struct cdi_run *run, const void *mine, cdi_take_fn take, void *arg,
                                  struct cdi_error *err)
{
    const struct cdi_cpu_comm *t = run->t;
    const uint8_t *all;
    cddp_status st = cdi_bruck_gather(run, mine, &all, err);

    for (int r = 0; r < t->size && st == CDDP_OK; r++) {
        if (t->len[r] > 0)
            take(arg, r, 0, all, t->len[r]);
        all += t->len[r];
    }
    return st;
}

static enum cdi_algorithm choose(const struct cdi_run *run)
{
    const struct cdi_cpu_comm *t = run->t;
    struct cdi_choice_of of = {.kind = run->w->is_region ? CDI_ALL_GATHER : run->w->op.kind, .nodes = t->tcp->n_nodes};

    for (int r = 0; r < t->size; r++) {
        of.bytes = t->len[r] > of.bytes ? t->len[r] : of.bytes;
        of.total += t->len[r];
    }
    return cdi_choose(&run->t->net, &of);
}

cddp_status cdi_exchange(struct cdi_run *run, const void *mine, cdi_take_fn take, void *arg, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    size_t longest = 0, at = 0, most = CDI_SHM_PIECE_BYTES;

    if (t->tcp != NULL && choose(run) == CDI_BY_ROUNDS)
        return exchange_small(run, mine, take, arg, err);
    if (t->tcp != NULL) /* a block of the largest node must fit a slot */
        most = most / (size_t)t->tcp->largest / 64 * 64;
    for (int r = 0; r < t->size; r++)
        longest = t->len[r] > longest ? t->len[r] : longest;
    do {
        cddp_status st = exchange_here(run, mine, at, most, take, arg, err);

        if (st == CDDP_OK && t->tcp != NULL)
            st = exchange_multinode(run, at, most, take, arg, err);
        if (st != CDDP_OK)
            return st;
        at += most;
    } while (at < longest);
    return CDDP_OK;
}

/* ----------------------------------------------------------------------------------------------- collectives ---- */

/* t->at: where in out the part of each rank begins. */
static void take_part(void *arg, int from, size_t at, const uint8_t *p, size_t n)
{
    const struct cdi_run *run = arg;

    if (from != run->t->rank)
        memcpy((uint8_t *)run->w->op.out + run->t->at[from] + at, p, n);
}

static cddp_status run_broadcast(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    const struct cdi_coll *op = &run->w->op;

    for (int r = 0; r < t->size; r++) {
        t->len[r] = r == op->root ? op->count * cddp_dtype_size(op->dtype) : 0;
        t->at[r] = 0;
    }
    if (op->root == t->rank && op->in != op->out && t->len[op->root] > 0)
        memcpy(op->out, op->in, t->len[op->root]);
    return cdi_exchange(run, op->out, take_part, run, err);
}

/* In shared memory: each rank copies the blocks of the others out of their arenas. */
static cddp_status gather_direct(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    const struct cdi_coll *op = &run->w->op;
    const struct cdi_cpu_region *region = run->region;
    size_t bytes = op->count * cddp_dtype_size(op->dtype);
    cddp_status st = run->compared_here ? CDDP_OK : cdi_step(run, err);

    if (st != CDDP_OK)
        return st;
    for (int r = 0; r < t->size; r++)
        if (r != t->rank)
            memcpy((uint8_t *)op->out + bytes * (size_t)r,
                   cdi_cpu_region_at(region, r, run->desc.offset + bytes * (size_t)r, bytes), bytes);
    return cdi_step(run, err);
}

/* Every node has one rank: it sends its part to all others at the same time. */
static struct cdi_pairwise_part gathered_part(void *arg, int node)
{
    const struct cdi_run *run = arg;
    const struct cdi_cpu_comm *t = run->t;
    uint8_t *out = run->w->op.out;

    return (struct cdi_pairwise_part){
        .out = out + t->at[t->rank], .in = out + t->at[node], .n_out = t->len[t->rank], .n_in = t->len[node]};
}

static cddp_status run_all_gather(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    const struct cdi_coll *op = &run->w->op;
    size_t size = cddp_dtype_size(op->dtype), at = 0;
    uint8_t *mine;

    if (run->anywhere && op->count * size > CDI_SMALL_BYTES) {
        cddp_status st = cdi_step(run, err);

        if (st != CDDP_OK)
            return st;
    }
    if (run->region != NULL && t->tcp == NULL && op->count * size > CDI_SMALL_BYTES)
        return gather_direct(run, err);
    for (int r = 0; r < t->size; r++) {
        t->len[r] = (op->kind == CDI_ALL_GATHERV ? op->counts[r] : op->count) * size;
        t->at[r] = at;
        at += t->len[r];
    }
    mine = (uint8_t *)op->out + t->at[t->rank];
    if (t->len[t->rank] > 0 && op->in != mine)
        memcpy(mine, op->in, t->len[t->rank]);
    if (t->tcp != NULL && t->tcp->largest == 1 && choose(run) == CDI_BY_SHARDS)
        return cdi_pairwise_run(run, gathered_part, run, err);
    return cdi_exchange(run, mine, take_part, run, err);
}

/* Every node has one rank: each gets its block from this rank's memory, and sends its own one there. */
static struct cdi_pairwise_part block_part(void *arg, int node)
{
    const struct cdi_run *run = arg;
    const struct cdi_coll *op = &run->w->op;
    size_t bytes = op->count * cddp_dtype_size(op->dtype);

    return (struct cdi_pairwise_part){.out = (const uint8_t *)op->in + bytes * (size_t)node,
                                      .in = (uint8_t *)op->out + bytes * (size_t)node,
                                      .n_out = bytes,
                                      .n_in = bytes};
}

/* Every rank offers all its blocks; each rank takes its own ones. */
static void take_block(void *arg, int from, size_t at, const uint8_t *p, size_t n)
{
    const struct cdi_run *run = arg;
    size_t bytes = run->w->op.count * cddp_dtype_size(run->w->op.dtype), block = bytes * (size_t)run->t->rank;
    size_t lo = at > block ? at : block, hi = smaller(at + n, block + bytes);

    if (lo < hi)
        memcpy((uint8_t *)run->w->op.out + bytes * (size_t)from + (lo - block), p + (lo - at), hi - lo);
}

static cddp_status run_all_to_all(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    const struct cdi_coll *op = &run->w->op;
    size_t bytes = op->count * cddp_dtype_size(op->dtype);

    for (int r = 0; r < t->size; r++)
        t->len[r] = bytes * (size_t)t->size;
    if (t->tcp != NULL && choose(run) == CDI_BY_SHARDS) {
        if (t->tcp->largest > 1)
            return cdi_pairwise_all(run, op->in, bytes, take_block, run, err);
        memcpy((uint8_t *)op->out + bytes * (size_t)t->rank, (const uint8_t *)op->in + bytes * (size_t)t->rank, bytes);
        return cdi_pairwise_run(run, block_part, run, err);
    }
    return cdi_exchange(run, op->in, take_block, run, err);
}

/* ------------------------------------------------------------------------------------------------- mailboxes ---- */

static cddp_status mail_wait(struct cdi_run *run, int local, struct cdi_counter *c, uint32_t step,
                             struct cdi_error *err)
{
    return cdi_wait_counter(&run->t->wait, local, c, step, run->on_thread, cdi_run_what, run, err);
}

/*
 * Returns CDDP_E_MISMATCH if `to` sends to this rank while this rank sends `piece` to it: neither would ever receive.
 *
 * No crossing is missed. Both ranks store their own address before they load the other's. All four accesses are
 * sequentially consistent, so at least one of the two loads sees the other rank's store.
 *
 * No correct program is refused. There are three conditions, and each one is final where it holds:
 * 1. The address that was read is (b, this rank): `to` sent its piece b to this rank.
 * 2. `taken` of `to` has not reached b. Only this rank takes piece b, and it is here, so nobody takes b now. What this
 *    rank took before, it sees (coherence). `to` may have sent more pieces to others after b, which they took; `taken`
 *    is then beyond b, so only the order of the two numbers counts, not whether they are equal.
 * 3. `taken` of this rank has not reached `piece`. Whatever `to` took before it began to send b happens before its
 *    store of the address, with which the load in 1 synchronizes. So if the piece was not taken at that load, it was
 *    not taken before b was sent; and `to` takes nothing until this rank has taken b.
 */
static cddp_status check_crossed(const struct cdi_run *run, int to, uint32_t piece, struct cdi_error *err)
{
    struct cdi_shm *s = run->t->shm;
    struct cdi_shm_mail *m = &s->ranks[to].mail;
    uint64_t address = atomic_load(&m->address);
    const int *ranks = run->t->wait.ranks;
    char a[160], b[160];

    if ((uint32_t)address != (uint32_t)s->rank || cdi_counter_reached(&m->taken, (uint32_t)(address >> 32)) ||
        cdi_counter_reached(&s->ranks[s->rank].mail.taken, piece))
        return CDDP_OK;
    cdi_desc_text(to < s->rank ? &m->desc : &run->desc, a, sizeof a);
    cdi_desc_text(to < s->rank ? &run->desc : &m->desc, b, sizeof b);
    return cdi_fail_by(err, cdi_wait_rank_of_job(&run->t->wait, s->first + (to < s->rank ? s->rank : to)),
                       CDDP_E_MISMATCH, "ranks called different operations: %s called %s, %s called %s: %s",
                       cdi_who(ranks, s->first + (to < s->rank ? to : s->rank)).text, a,
                       cdi_who(ranks, s->first + (to < s->rank ? s->rank : to)).text, b,
                       run->w->n_group == 0 ? "one of them has to receive first"
                                            : "both have to receive what the other one sends");
}

static cddp_status mail_send(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_shm *s = run->t->shm;
    struct cdi_shm_mail *m = &s->ranks[s->rank].mail;
    int to = run->w->op.root - s->first;
    const uint8_t *in = run->w->op.in;
    size_t bytes = run->w->op.count * cddp_dtype_size(run->w->op.dtype), at = 0;
    uint32_t piece = atomic_load(&m->sent.value);
    cddp_status st;

    do {
        size_t n = smaller(bytes - at, CDI_SHM_MAIL_BYTES);

        piece++;
        m->desc = run->desc;
        if (n > 0)
            memcpy(cdi_shm_mail_data(s, s->rank), in + at, n);
        atomic_store(&m->address, (uint64_t)piece << 32 | (uint32_t)to);
        cdi_counter_post(&m->sent, piece);
        st = check_crossed(run, to, piece, err);
        if (st == CDDP_OK)
            st = mail_wait(run, to, &m->taken, piece, err);
        at += n;
    } while (st == CDDP_OK && at < bytes);
    return st;
}

/* Waits until the mailbox of rank `from` has a piece for this rank. */
static cddp_status mail_await(struct cdi_run *run, int from, uint32_t *piece, struct cdi_error *err)
{
    struct cdi_shm *s = run->t->shm;
    struct cdi_shm_mail *m = &s->ranks[from].mail;

    for (;;) {
        uint32_t taken = atomic_load(&m->taken.value);
        cddp_status st = mail_wait(run, from, &m->sent, taken + 1, err);

        if (st != CDDP_OK)
            return st;
        if (atomic_load(&m->address) == ((uint64_t)(taken + 1) << 32 | (uint32_t)s->rank)) {
            *piece = taken + 1;
            return CDDP_OK;
        }
        st = mail_wait(run, from, &m->taken, taken + 1,
                       err); /* it is for another rank: wait until that rank has taken it */
        if (st != CDDP_OK)
            return st;
    }
}

static cddp_status mail_compare(const struct cdi_run *run, const struct cdi_shm_desc *sent, struct cdi_error *err)
{
    int higher = run->w->op.root > run->t->rank ? run->w->op.root : run->t->rank;
    char a[160], b[160];

    if (sent->count == run->desc.count && sent->dtype == run->desc.dtype)
        return CDDP_OK;
    cdi_desc_text(sent, a, sizeof a);
    cdi_desc_text(&run->desc, b, sizeof b);
    return cdi_fail_by(err, cdi_wait_rank_of_job(&run->t->wait, higher), CDDP_E_MISMATCH,
                       "ranks called different operations: %s called %s, %s called %s",
                       cdi_who(run->t->wait.ranks, run->w->op.root).text, a,
                       cdi_who(run->t->wait.ranks, run->t->rank).text, b);
}

static cddp_status mail_recv(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_shm *s = run->t->shm;
    int from = run->w->op.root - s->first;
    struct cdi_shm_mail *m = &s->ranks[from].mail;
    uint8_t *out = run->w->op.out;
    size_t bytes = run->w->op.count * cddp_dtype_size(run->w->op.dtype), at = 0;

    do {
        size_t n = smaller(bytes - at, CDI_SHM_MAIL_BYTES);
        uint32_t piece;
        cddp_status st = mail_await(run, from, &piece, err);

        if (st == CDDP_OK)
            st = mail_compare(run, &m->desc, err);
        if (st != CDDP_OK)
            return st;
        if (n > 0)
            memcpy(out + at, cdi_shm_mail_data(s, from), n);
        cdi_counter_post(&m->taken, piece);
        at += n;
    } while (at < bytes);
    return CDDP_OK;
}

static cddp_status run_message(struct cdi_run *run, struct cdi_error *err)
{
    const struct cdi_shm *s = run->t->shm;
    int peer = run->w->op.root;

    if (peer < s->first || peer >= s->first + s->size)
        return cdi_chain_message(run, err);
    return run->w->op.kind == CDI_SEND ? mail_send(run, err) : mail_recv(run, err);
}

cddp_status cdi_run_exchange(struct cdi_run *run, struct cdi_error *err)
{
    switch (run->w->op.kind) {
    case CDI_BROADCAST:
        return run_broadcast(run, err);
    case CDI_ALL_GATHER:
    case CDI_ALL_GATHERV:
        return run_all_gather(run, err);
    case CDI_ALL_TO_ALL:
        return run_all_to_all(run, err);
    case CDI_SEND:
    case CDI_RECV:
        return run_message(run, err);
    case CDI_ALL_REDUCE:
    case CDI_BARRIER:
    case CDI_REDUCE:
    case CDI_REDUCE_SCATTER:
        break;
    }
    return cdi_fail(err, CDDP_E_INVALID, "no such collective");
}
