/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/coll/step.h"

#include "worker/backend/cpu/net/tcp.h"
#include "worker/backend/describe.h"
#include "worker/backend/who.h"
#include "worker/base/dtype.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KIND_REGION = 100,
    /* In desc.kind, above the kind and the flag CDI_DESC_AHEAD: */
    KIND_ANYWHERE = 0x10000, /* a flag: cdi_coll.anywhere */
    MODEL_SHIFT = 17,        /* the model */
    /* In desc.dtype: */
    STEPS_SHIFT = 8, /* steps of the model */
};

cddp_status cdi_cpu_comm_init(struct cdi_cpu_comm *t, struct cdi_error *err)
{
    t->in = calloc((size_t)t->size, sizeof *t->in);
    t->out = calloc((size_t)t->size, sizeof *t->out);
    t->place = calloc((size_t)t->size, sizeof *t->place);
    t->len = calloc((size_t)t->size, sizeof *t->len);
    t->at = calloc((size_t)t->size, sizeof *t->at);
    if (t->in == NULL || t->out == NULL || t->place == NULL || t->len == NULL || t->at == NULL) {
        cdi_cpu_comm_release(t);
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d ranks", t->size);
    }
    return CDDP_OK;
}

void cdi_cpu_comm_release(struct cdi_cpu_comm *t)
{
    free(t->in);
    free(t->out);
    free(t->place);
    free(t->len);
    free(t->at);
    t->in = NULL;
    t->out = NULL;
    t->place = NULL;
    t->len = NULL;
    t->at = NULL;
}

/* ----------------------------------------------------------------------------------------------- descriptors ---- */

static uint64_t hash_counts(const size_t *counts, int n)
{
    uint64_t h = 14695981039346656037u;

    for (int i = 0; i < n; i++)
        h = (h ^ counts[i]) * 1099511628211u;
    return h;
}

/* Sets where in the region the buffer of all ranks begins: the whole input or output. */
static void desc_set_place(struct cdi_shm_desc *d, const struct cdi_coll *op)
{
    const uint8_t *whole = op->kind == CDI_REDUCE_SCATTER ? op->in : op->out;

    if (op->region == NULL)
        return;
    d->region = ((const struct cdi_cpu_region *)op->region)->id;
    d->offset = (uint64_t)(whole - (const uint8_t *)op->region->base);
}

static struct cdi_shm_desc desc_make(const struct cdi_cpu_comm *t, const struct cdi_work *w)
{
    const struct cdi_coll *op = &w->op;
    /* Next to the operation, for messages: the function that called it, and the bucket. */
    uint32_t bucket = op->bucket >= 0 && op->bucket < UINT16_MAX ? (uint32_t)op->bucket + 1 : 0;
    struct cdi_shm_desc d = {.kind = (uint32_t)op->kind | op->of.model << MODEL_SHIFT,
                             .dtype = op->of.steps << STEPS_SHIFT,
                             .op = bucket << 16 | (uint32_t)op->asked << 8};

    if (w->is_region)
        return (struct cdi_shm_desc){.kind = KIND_REGION, .count = w->region_bytes};
    d.count = op->count;
    switch (op->kind) {
    case CDI_ALL_REDUCE:
    case CDI_REDUCE_SCATTER:
        d.op |= (uint32_t)op->op;
        desc_set_place(&d, op);
        break;
    case CDI_REDUCE:
        d.op |= (uint32_t)op->op;
        d.root = op->root;
        break;
    case CDI_BROADCAST:
    case CDI_SEND:
    case CDI_RECV:
        d.root = op->root;
        break;
    case CDI_ALL_GATHERV:
        d.count = 0;
        for (int r = 0; r < t->size; r++)
            d.count += op->counts[r];
        d.offset = hash_counts(op->counts, t->size);
        break;
    case CDI_ALL_GATHER:
        desc_set_place(&d, op);
        break;
    case CDI_ALL_TO_ALL:
        break;
    case CDI_BARRIER:
        if (!cdi_api_call_is_coll(op->asked))
            return d;
        d.root = op->root; /* of a gather or a scatter */
        break;
    }
    d.dtype |= (uint32_t)op->dtype;
    return d;
}

/* Returns the low bits of its origin: 15 of the model, 24 of the steps. */
static struct cdi_origin desc_origin(const struct cdi_shm_desc *d)
{
    return (struct cdi_origin){.model = d->kind >> MODEL_SHIFT, .steps = d->dtype >> STEPS_SHIFT};
}

/* Returns it without what is beside the operation in kind and dtype. */
static struct cdi_shm_desc desc_strip(const struct cdi_shm_desc *desc)
{
    struct cdi_shm_desc d = *desc;

    d.kind &= CDI_DESC_AHEAD - 1;
    d.dtype &= (1u << STEPS_SHIFT) - 1;
    return d;
}

/* Writes the operation itself, without the function that called it. */
static void desc_plain_text(const struct cdi_shm_desc *d, char *buf, size_t cap)
{
    char op[24] = "", tail[80] = "";
    const char *name, *root;
    uint32_t kind = d->kind;

    if (d->kind == KIND_REGION) {
        (void)snprintf(buf, cap, "shared memory of %" PRIu64 " bytes", d->count);
        return;
    }
    name = cdi_coll_name(kind);
    if (kind == CDI_BARRIER || name == NULL) {
        (void)snprintf(buf, cap, "%s", name != NULL ? name : "an unknown operation");
        return;
    }
    root = cdi_coll_root_word((enum cdi_coll_kind)kind);
    if (cdi_coll_reduces((enum cdi_coll_kind)kind))
        (void)snprintf(op, sizeof op, "(%s)", cdi_redop_name((cddp_redop)(d->op & 0xff)));
    if (root != NULL)
        (void)snprintf(tail, sizeof tail, " %s rank %d", root, (int)d->root);
    else if (kind == CDI_ALL_GATHERV)
        (void)snprintf(tail, sizeof tail, " in all (parts %08" PRIx32 ")", (uint32_t)d->offset);
    (void)snprintf(buf, cap, "%s%s of %" PRIu64 " %s%s", name, op, d->count, cdi_dtype_name((cddp_dtype)d->dtype),
                   tail);
}

/* names: of the parameters in the bucket, "" if they are not known. */
static void desc_text(const struct cdi_shm_desc *desc, const char *names, char *buf, size_t cap)
{
    const struct cdi_shm_desc plain_desc = desc_strip(desc), *d = &plain_desc;
    uint32_t asked = d->kind == KIND_REGION ? CDI_API_DDP_CREATE : d->op >> 8 & 0xff;
    char bucket[128] = "", plain[160];

    if (d->kind == CDI_BARRIER && cdi_api_call_is_coll(d->op >> 8 & 0xff)) {
        const struct cdi_coll op = {.kind = CDI_BARRIER,
                                    .count = d->count,
                                    .dtype = (cddp_dtype)d->dtype,
                                    .root = (int)d->root,
                                    .bucket = -1,
                                    .asked = (enum cdi_api_call)(d->op >> 8 & 0xff)};

        cdi_coll_text(&op, buf, cap);
        return;
    }
    desc_plain_text(d, plain, sizeof plain);
    if (d->op >> 16 != 0)
        (void)snprintf(bucket, sizeof bucket, " (bucket %" PRIu32 "%s%s)", (d->op >> 16) - 1,
                       names[0] != '\0' ? ": " : "", names);
    if (cdi_api_call_name(asked) != NULL)
        cdi_api_call_text(asked, (int)(d->op >> 16) - 1, names, plain, buf, cap);
    else
        (void)snprintf(buf, cap, "%s%s", plain, bucket);
}

void cdi_desc_text(const struct cdi_shm_desc *d, char *buf, size_t cap)
{
    size_t len;

    desc_text(d, "", buf, cap);
    len = strlen(buf);
    if ((d->kind & CDI_DESC_AHEAD) != 0)
        (void)snprintf(buf + len, cap - len, " ahead of the program");
}

cddp_status cdi_run_mismatch(const struct cdi_run *run, int a, const struct cdi_shm_desc *da, int b,
                             const struct cdi_shm_desc *db, const char *what, struct cdi_error *err)
{
    struct cdi_origin oa = desc_origin(da), ob = desc_origin(db);
    bool ahead = ((da->kind | db->kind) & CDI_DESC_AHEAD) != 0;
    bool other_cause = oa.model != 0 && ob.model != 0 && (oa.model != ob.model || oa.steps != ob.steps);
    const struct cdi_who wa = cdi_who(run->t->wait.ranks, a), wb = cdi_who(run->t->wait.ranks, b);
    char ta[160], tb[160], of[300];

    cdi_desc_text(da, ta, sizeof ta);
    cdi_desc_text(db, tb, sizeof tb);
    cdi_origins_text(wa.text, &oa, wb.text, &ob, of, sizeof of);
    return cdi_fail_by(err, cdi_wait_rank_of_job(&run->t->wait, a > b ? a : b), CDDP_E_MISMATCH,
                       "ranks called different %s: %s called %s, %s called %s%s%s", what, wa.text, ta, wb.text, tb, of,
                       !ahead || other_cause ? ""
                                             : "; units are gathered ahead in the order of the last step: in that step "
                                               "or in this one the order of units differs between the ranks");
}

void cdi_run_what(const void *arg, char *buf, size_t cap)
{
    const struct cdi_run *run = arg;
    const struct cdi_coll *op = &run->w->op;
    char names[96] = "";

    if (op->bucket >= 0 && op->name_bucket != NULL && !run->w->is_region)
        op->name_bucket(op->ddp, op->bucket, names, sizeof names);
    desc_text(&run->desc, names, buf, cap);
}

/*
 * Descriptors that differ in one word have different hashes: folding a word and multiplying by an odd number are both
 * invertible. The products do not depend on one another.
 */
static uint64_t hash_desc(const struct cdi_shm_desc *d)
{
    static const uint64_t factors[] = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu,
                                       0xd6e8feb86659fd93u, 0xc2b2ae3d27d4eb4fu};
    const struct cdi_shm_desc compared = cdi_desc_compared(d);
    uint64_t words[sizeof *d / 8], h = 0;

    _Static_assert(sizeof words == sizeof factors, "a factor for each word");
    memcpy(words, &compared, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        h += (words[i] ^ words[i] >> 32) * factors[i];
    return h;
}

/* Are both equal, except for the place of the memory, which may differ? */
static bool desc_alike(const struct cdi_shm_desc *a, const struct cdi_shm_desc *b)
{
    struct cdi_shm_desc x = cdi_desc_compared(a), y = cdi_desc_compared(b);

    if ((x.kind & KIND_ANYWHERE) != 0) {
        x.region = y.region;
        x.offset = y.offset;
    }
    return memcmp(&x, &y, sizeof x) == 0;
}

/* Every rank compares the same descriptors, and so returns the same error message. */
static cddp_status desc_compare(struct cdi_run *run, struct cdi_error *err)
{
    const struct cdi_cpu_comm *t = run->t;
    const struct cdi_shm_desc *first = &t->shm->ranks[0].desc[t->step & 1u];
    bool differ = false;

    for (int r = 0; r < t->shm->size; r++)
        differ = differ || cdi_shm_post(t->shm, r, t->step)->hash != run->hash;
    for (int r = 1; r < t->shm->size && differ; r++) {
        const struct cdi_shm_desc *other = &t->shm->ranks[r].desc[t->step & 1u];

        if (hash_desc(first) == hash_desc(other))
            continue;
        if (desc_alike(first, other)) {
            run->region = NULL;
            continue;
        }
        return cdi_run_mismatch(run, t->shm->first, first, t->shm->first + r, other, "collectives", err);
    }
    return CDDP_OK;
}

void cdi_run_describe(struct cdi_run *run)
{
    const struct cdi_cpu_comm *t = run->t;
    const struct cdi_work *work = run->w;

    run->desc = desc_make(t, work);
    run->desc.kind |= work->op.ahead ? CDI_DESC_AHEAD : 0;
    run->region = (const struct cdi_cpu_region *)work->op.region;
    if (work->op.anywhere && t->tcp != NULL) { /* nodes compare operations only with their neighbours */
        run->region = NULL;
        run->desc.region = run->desc.offset = 0;
    } else if (work->op.anywhere && t->n_regions > 0) { /* equal on all ranks, since operations have one order */
        run->anywhere = true;
        run->desc.kind |= KIND_ANYWHERE;
    }
}

/* ----------------------------------------------------------------------------------------------------- steps ---- */

static void tell_queue(struct cdi_run *run, int rank, int64_t ns)
{
    run->late = rank;
    cdi_queue_arrived(run->t->queue, cdi_wait_rank_of_job(&run->t->wait, rank), ns);
}

int64_t cdi_run_arrived(struct cdi_run *run, int rank, bool is_short)
{
    int64_t ns = 0;

    if (run->t->queue == NULL)
        return 0;
    if (!is_short)
        ns = cdi_queue_now(run->t->queue);
    tell_queue(run, rank, ns);
    return ns;
}

/* After the first step of an operation: who of the node arrived last? If nodes follow, their exchange decides. */
static void step_note_late(struct cdi_run *run)
{
    const struct cdi_cpu_comm *t = run->t;
    const struct cdi_coll *op = &run->w->op;

    (void)cdi_run_arrived(run, t->shm->first + t->wait.late,
                          t->tcp == NULL && op->count * cddp_dtype_size(op->dtype) <= CDI_SHM_INLINE_BYTES);
}

cddp_status cdi_step(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    uint32_t s = t->step + 1;
    struct cdi_counter *post = cdi_shm_post(t->shm, t->shm->rank, s);
    cddp_status st;

    if (!run->compared_here) {
        t->shm->ranks[t->shm->rank].desc[s & 1u] = run->desc;
        run->hash = post->hash = hash_desc(&run->desc);
    }
    (void)cdi_shm_tell_cpu(t->shm);
    cdi_counter_set(post, s);
    t->step = s;
    st = cdi_wait_all(&t->wait, post, s, run->on_thread, cdi_run_what, run, err);
    if (st == CDDP_OK && !run->compared_here) {
        run->compared_here = true;
        step_note_late(run);
        st = desc_compare(run, err);
    }
    cdi_counter_fetch(cdi_shm_post(t->shm, t->shm->rank, s + 1));
    return st;
}

/* A rank that exchanges nothing with other nodes takes what the first rank of its node has seen there. */
static void take_late(struct cdi_run *run)
{
    const struct cdi_cpu_comm *t = run->t;
    const struct cdi_shm_rank *first = &t->shm->ranks[0];
    int64_t ns = atomic_load_explicit(&first->arrived_ns, memory_order_relaxed);

    if (ns != 0 && t->queue != NULL && !run->met_nodes)
        tell_queue(run, atomic_load_explicit(&first->late, memory_order_relaxed), ns);
}

cddp_status cdi_step_after_network(struct cdi_run *run, struct cdi_error *err)
{
    cddp_status st;

    run->t->wait.slack_ms = CDI_TCP_SLACK_NODE_MS;
    st = cdi_step(run, err);
    run->t->wait.slack_ms = 0;
    if (st == CDDP_OK)
        take_late(run);
    return st;
}
