/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/fsdp/across.h"

#include "common/clock.h"
#include "common/crc64.h"
#include "worker/backend/who.h"
#include "worker/comm/agree.h"
#include "worker/reducer/state/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LOOK_US 200  /* between two looks at the group */
#define NEWS_MS 2000 /* from a replica that has left until the group knows the reason */

/* -------------------------------------------------------------------------------------------------- creation ---- */

/* What the replicas of a share compare. */
struct card {
    uint64_t shard_rank, shard_size, leader /* rank 0 of the group, in the job */, model;
};

/* What the ranks of a group compare. */
struct line {
    uint64_t replica, leaders; /* the rank in `replicas`, and a hash of the groups there */
};

static void end_comm(cddp_comm *comm, const struct cdi_error *why)
{
    cdi_comm_ops(comm)->abort(cdi_comm_backend(comm), why);
}

/* A group that has no replicas cannot be asked: it has no communicator with this one. */
static cddp_status say_awaited(struct cdi_error *err)
{
    return cdi_error_wrap(err,
                          "cddp_fsdp_options.replicas: this rank waited for its ranks to call cddp_fsdp_create with "
                          "it, too");
}

/* Waits until all replicas of this share are here, or the group has ended: a rank of it knows that one will not come.
 */
static cddp_status await_replicas(cddp_comm *comm, cddp_comm *replicas, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(replicas);
    const struct cdi_coll barrier = {.kind = CDI_BARRIER, .bucket = -1, .asked = CDI_API_FSDP_CREATE};
    const struct timespec moment = {.tv_nsec = LOOK_US * 1000};
    struct cdi_error why;
    uint64_t ticket;
    cddp_status st = ops->enqueue(cdi_comm_backend(replicas), &barrier, &ticket, err);

    while (st == CDDP_OK && (st = ops->test(cdi_comm_backend(replicas), ticket, err)) == CDDP_IN_PROGRESS) {
        if (ops->peek(cdi_comm_backend(comm), &why) != CDDP_OK)
            end_comm(replicas, &why);
        (void)nanosleep(&moment, NULL);
        st = CDDP_OK;
    }
    if (st != CDDP_E_PEER)
        return st == CDDP_E_TIMEOUT ? say_awaited(err) : st;
    /* It may be the one without replicas, which has ended all that it had. */
    for (int64_t until = cdi_now_ms() + NEWS_MS; cdi_now_ms() < until; (void)nanosleep(&moment, NULL))
        if (ops->peek(cdi_comm_backend(comm), &why) != CDDP_OK) {
            *err = why;
            return why.status;
        }
    return say_awaited(err);
}

cddp_status cdi_across_check(cddp_comm *comm, cddp_comm *replicas, struct cdi_error *err)
{
    const struct cdi_world *w = cdi_comm_world(comm);
    uint64_t has = replicas != NULL;
    int without = -1, with = -1;
    void *cards;
    cddp_status st = cdi_comm_agree(comm, "create its sharded model", &has, sizeof has, &cards, NULL, err);

    for (int r = w->size; st == CDDP_OK && r-- > 0;)
        *(((const uint64_t *)cards)[r] != 0 ? &with : &without) = r;
    free(cards);
    if (st != CDDP_OK || with < 0)
        return st;
    if (without >= 0) {
        st = cdi_fail_by(err, cdi_rank_of_job(w, without), CDDP_E_MISMATCH,
                         "cddp_fsdp_options.replicas: %s has none that can be used, but %s of its group has",
                         cdi_who(w->ranks, without).text, cdi_who(w->ranks, with).text);
        if (replicas != NULL)
            end_comm(replicas, err);
        return st;
    }
    st = await_replicas(comm, replicas, err);
    if (st != CDDP_OK)
        end_comm(comm, err);
    return st;
}

static cddp_status compare_cards(const struct cdi_world *w, const struct card *all, struct cdi_error *err)
{
    for (int r = 0; r < w->size; r++) {
        const char *what = all[r].shard_size != all[0].shard_size ? "its group has another size"
                           : all[r].shard_rank != all[0].shard_rank
                               ? "it has another rank in its group, so another share"
                           : all[r].model != all[0].model ? "it has other units, parameters or cddp_fsdp_options"
                                                          : NULL;

        if (what != NULL)
            return cdi_fail_by(err, cdi_rank_of_job(w, r), CDDP_E_MISMATCH,
                               "%s of cddp_fsdp_options.replicas differs from rank 0 of it: %s",
                               cdi_who(w->ranks, r).text, what);
    }
    return CDDP_OK;
}

/* The groups are the same for all ranks of this group, and in the same order. */
static cddp_status compare_lines(const struct cdi_world *w, const struct line *all, struct cdi_error *err)
{
    for (int r = 0; r < w->size; r++)
        if (all[r].replica != all[0].replica || all[r].leaders != all[0].leaders)
            return cdi_fail_by(err, cdi_rank_of_job(w, r), CDDP_E_MISMATCH,
                               "cddp_fsdp_options.replicas of %s leads to other groups than that of rank 0, or in "
                               "another order",
                               cdi_who(w->ranks, r).text);
    return CDDP_OK;
}

cddp_status cdi_across_meet(cddp_comm *comm, cddp_comm *replicas, uint64_t model, cddp_status alone, bool *goes_on,
                            struct cdi_error *err)
{
    const struct cdi_world *group = cdi_comm_world(comm), *w = cdi_comm_world(replicas);
    const struct card mine = {.shard_rank = (uint64_t)group->rank,
                              .shard_size = (uint64_t)group->size,
                              .leader = (uint64_t)cdi_rank_of_job(group, 0),
                              .model = model};
    struct line line = {.replica = (uint64_t)w->rank};
    const struct card *card;
    void *cards, *lines;
    cddp_status st = cdi_comm_agree(replicas, "create its replica of the model", &mine, sizeof mine, &cards,
                                    alone == CDDP_OK ? NULL : err, err);

    card = cards;
    if (st == CDDP_OK)
        st = compare_cards(w, card, err);
    *goes_on = st == CDDP_OK;
    for (int r = 0; r < w->size && card != NULL; r++)
        line.leaders = cdi_crc64(line.leaders, &card[r].leader, sizeof card[r].leader);
    free(cards);
    if (alone != CDDP_OK)
        return alone;
    st = cdi_comm_agree(comm, "create its replica of the model", &line, sizeof line, &lines, st == CDDP_OK ? NULL : err,
                        err);
    if (st == CDDP_OK)
        st = compare_lines(group, lines, err);
    free(lines);
    return st;
}

/* On a device: makes what follows in one communicator begin after what is now in the other one. */
static cddp_status follow(struct cdi_across *a, bool group_follows, struct cdi_error *err)
{
    cddp_ddp *d = a->ddp;
    struct cdi_backend *other = cdi_comm_backend(a->comm);
    void *stream;
    cddp_status st;

    if (!d->ops->on_device)
        return CDDP_OK;
    st = d->ops->stream_acquire(d->b, &stream, err);
    if (st != CDDP_OK)
        return st;
    st = group_follows ? d->ops->stream_wait(other, 0, stream, err) : d->ops->wait_stream(other, stream, false, err);
    d->ops->stream_release(d->b);
    return st;
}

cddp_status cdi_across_share(struct cdi_across *a, cddp_comm *replicas, cddp_ddp *d, cddp_status alone,
                             struct cdi_error *err)
{
    cddp_status st;

    if (alone == CDDP_OK && (a->bucket = calloc(d->plan.n + 1, sizeof *a->bucket)) == NULL)
        alone = cdi_fail(err, CDDP_E_NOMEM, "no memory for the replicas of %zu buckets", d->plan.n);
    st = cdi_comm_agree(replicas, "create its replica of the model", NULL, 0, NULL, alone == CDDP_OK ? NULL : err, err);
    if (alone != CDDP_OK || st != CDDP_OK)
        return alone != CDDP_OK ? alone : st;
    a->comm = replicas;
    a->ddp = d;
    cdi_comm_hold(replicas);
    d->across = (struct cdi_ddp_across){
        .comm = replicas, .number = cdi_comm_number_model(replicas), .settle = cdi_across_settle, .arg = a};
    st = follow(a, false, err);
    if (st == CDDP_OK)
        st = cdi_comm_broadcast(replicas, d->shares.params, cdi_arena_share_bytes(d), CDDP_UINT8, 0, err);
    return st == CDDP_OK ? follow(a, true, err) : st;
}

void cdi_across_release(struct cdi_across *a)
{
    struct cdi_error err;

    if (a->comm != NULL) {
        if (!cdi_comm_is_over(a->comm) && a->ticket != 0)
            (void)a->ddp->ops->join(cdi_comm_backend(a->comm), a->ticket, &err);
        cdi_comm_let_go(a->comm);
    }
    free(a->bucket);
}

/* --------------------------------------------------------------------------------------------------- a step ---- */

void cdi_across_note(struct cdi_across *a, size_t bucket)
{
    if (a->comm != NULL)
        a->bucket[a->n++] = bucket;
}

/* The group hears of it, too: it would wait for this rank. */
static cddp_status across_fail(struct cdi_across *a, const struct cdi_error *err)
{
    struct cdi_error why = *err;

    (void)cdi_error_wrap(&why, "replicas of its shares");
    return cdi_ddp_fail_misuse(a->ddp, &why);
}

static cddp_status check_over(const struct cdi_across *a, struct cdi_error *err)
{
    return cdi_comm_own("cddp_fsdp_options.replicas", a->comm, err);
}

/* Begins the next mean over the groups. */
static cddp_status begin_one(struct cdi_across *a, struct cdi_error *err)
{
    cddp_ddp *d = a->ddp;
    size_t b = a->bucket[a->begun++], u;
    char *share = d->shares.grads + cdi_arena_share_at(d, b);
    struct cdi_coll op = {.kind = CDI_ALL_REDUCE,
                          .in = share,
                          .out = share,
                          .count = d->plan.b[b].room / d->plan.parts / cddp_dtype_size(d->plan.b[b].dtype),
                          .dtype = d->plan.b[b].dtype,
                          .op = CDDP_AVG,
                          .known = true,
                          .asked = CDI_API_FSDP_READY,
                          .of = cdi_ddp_origin(d, a->comm)};

    (void)d->shares.unit_of(d->shares.model, cdi_bucket_grad(&d->plan, b, 0), &u);
    cdi_ddp_name_after_unit(d, &op, u);
    return d->ops->enqueue(cdi_comm_backend(a->comm), &op, &a->ticket, err);
}

cddp_status cdi_across_advance(struct cdi_across *a)
{
    cddp_ddp *d = a->ddp;
    struct cdi_error err;
    cddp_status st = CDDP_OK;

    if (a->begun == a->n)
        return CDDP_OK;
    st = check_over(a, &err);
    if (st == CDDP_OK)
        st = follow(a, false, &err);
    while (st == CDDP_OK && a->begun < a->n) {
        if (!d->ops->on_device &&
            (d->ops->test == NULL || d->ops->test(d->b, d->flight[a->bucket[a->begun]].ticket, NULL) != CDDP_OK))
            break; /* an error comes up where the group waits */
        st = begin_one(a, &err);
    }
    return st == CDDP_OK ? st : across_fail(a, &err);
}

/* On the host. Waits for the rest of the step. */
static cddp_status wait_for_all(struct cdi_across *a)
{
    cddp_ddp *d = a->ddp;
    struct cdi_error err;
    cddp_status st = CDDP_OK;

    while (a->begun < a->n && st == CDDP_OK) {
        st = cdi_ddp_join_ticket(d, d->flight[a->bucket[a->begun]].ticket);
        if (st == CDDP_OK && begin_one(a, &err) != CDDP_OK)
            return across_fail(a, &err);
    }
    if (st != CDDP_OK)
        return st;
    (void)pthread_mutex_unlock(&d->lock);
    st = d->ops->join(cdi_comm_backend(a->comm), a->ticket, &err);
    (void)pthread_mutex_lock(&d->lock);
    return st == CDDP_OK ? st : across_fail(a, &err);
}

static cddp_status settle(struct cdi_across *a)
{
    struct cdi_error err;

    if (a->ddp->sticky.status != CDDP_OK || a->n == 0)
        return a->ddp->sticky.status;
    if (check_over(a, &err) != CDDP_OK)
        return across_fail(a, &err);
    if (!a->ddp->ops->on_device)
        return wait_for_all(a);
    return follow(a, true, &err) == CDDP_OK ? CDDP_OK : across_fail(a, &err);
}

cddp_status cdi_across_settle(void *across)
{
    struct cdi_across *a = across;
    cddp_status st = settle(a);

    a->n = a->begun = 0;
    return st;
}
