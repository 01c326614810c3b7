/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/replicas.h"

#include "common/env.h"
#include "worker/backend/who.h"
#include "worker/math/hash64.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PERIOD_ENV "CDDP_CHECK_REPLICAS"
#define GATHER_BYTES ((size_t)1 << 20) /* for hashes of single parameters, of all ranks together */
#define TEXT_BYTES 400
#define WHO_BYTES (TEXT_BYTES / 2 + sizeof(struct cdi_who) + 8)

struct cdi_replicas {
    uint64_t period;
    uint64_t *hash;  /* by parameter */
    uint64_t *there; /* on a device: sums of the parameters. NULL: on the host */
    bool checked;    /* at least once, */
    uint64_t before; /* after this number of steps, and all were equal */
};

cddp_status cdi_replicas_init(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_replicas *r;
    void *there = NULL;
    int64_t period;
    cddp_status st = cdi_env_int_or(PERIOD_ENV, 0, INT32_MAX, 0, &period, err);

    if (st != CDDP_OK || period == 0)
        return st;
    d->replicas = r = calloc(1, sizeof *r);
    if (r != NULL)
        r->hash = calloc(d->n_params, sizeof *r->hash);
    if (r == NULL || r->hash == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for " PERIOD_ENV);
    r->period = (uint64_t)period;
    if (d->ops->on_device)
        st = d->ops->alloc(d->b, d->n_params * sizeof *r->there, &there, err);
    r->there = there;
    return st;
}

void cdi_replicas_release(cddp_ddp *d)
{
    if (d->replicas == NULL)
        return;
    if (d->replicas->there != NULL)
        d->ops->release(d->b, d->replicas->there);
    free(d->replicas->hash);
    free(d->replicas);
    d->replicas = NULL;
}

uint64_t cdi_replicas_period(const cddp_ddp *d)
{
    return d->replicas != NULL ? d->replicas->period : 0;
}

/* Returns the communicator of the ranks that have the same parameters, or the same shares of them. */
static cddp_comm *replicas_comm(const cddp_ddp *d)
{
    return cdi_ddp_is_divided(d) ? d->across.comm : d->comm;
}

/* ------------------------------------------------------------------------------------------------- comparing ----- */

static bool differs(const struct cdi_replica *a, const struct cdi_replica *b)
{
    return a->holds != 0 && b->holds != 0 && a->hash != b->hash;
}

bool cdi_replicas_agree(const struct cdi_replica *of, int n)
{
    int first = 0;
    bool same = true;

    while (first < n && of[first].holds == 0)
        first++;
    for (int r = first; r < n; r++)
        same &= !differs(&of[r], &of[first]);
    return same;
}

/* Returns the lowest rank of those whose values most ranks have. */
static int most_common(const struct cdi_replica *of, int n)
{
    int best = 0, most = 0;

    for (int a = 0; a < n; a++) {
        int equal = 0;

        for (int b = a; of[a].holds != 0 && b < n; b++)
            equal += of[b].holds != 0 && of[b].hash == of[a].hash;
        if (equal > most) {
            most = equal;
            best = a;
        }
    }
    return best;
}

/*
 * Writes "rank 3" or "ranks 0 to 2, 5", and in a part their ranks of the job: those that are, or are not, equal to rank
 * `like`. Returns their number.
 */
static int put_ranks(char *buf, size_t cap, const struct cdi_replica *of, int n, int like, bool equal, const int *ranks)
{
    struct cdi_rank_list list = {0};
    char text[TEXT_BYTES / 2] = "";
    int count = 0;
    size_t at = 0;

    for (int r = 0, end; r < n; r = end) {
        end = r + 1;
        if (of[r].holds == 0 || (of[r].hash == of[like].hash) != equal)
            continue;
        while (end < n && of[end].holds != 0 && (of[end].hash == of[like].hash) == equal)
            end++;
        if (at + 40 < sizeof text) {
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%d", count > 0 ? ", " : "", r);
            if (end - r > 1)
                at += (size_t)snprintf(text + at, sizeof text - at, end - r > 2 ? " to %d" : ", %d", end - 1);
        } else if (text[at - 1] != '.') {
            at += (size_t)snprintf(text + at, sizeof text - at, ", ...");
        }
        count += end - r;
        for (int k = r; k < end; k++)
            cdi_rank_list_add(&list, k);
    }
    (void)snprintf(buf, cap, "rank%s %s%s", count == 1 ? "" : "s", text, cdi_who_of_job(ranks, &list).text);
    return count;
}

void cdi_replicas_name(const struct cdi_replica *of, int n, const int *ranks, char *buf, size_t cap, int *odd)
{
    int like = most_common(of, n);
    char others[WHO_BYTES], most[WHO_BYTES];
    int count = put_ranks(others, sizeof others, of, n, like, false, ranks);

    (void)put_ranks(most, sizeof most, of, n, like, true, ranks);
    (void)snprintf(buf, cap, "%s %s other values than %s", others, count == 1 ? "has" : "have", most);
    *odd = 0;
    while (*odd < n && !differs(&of[*odd], &of[like]))
        (*odd)++;
}

/* --------------------------------------------------------------------------------------------------- hashing ----- */

/* Makes the sum of each parameter, on a device by its kernel: the parameters stay there. */
static cddp_status sum_all(cddp_ddp *d, uint64_t *sum, struct cdi_error *err)
{
    uint64_t *there = d->replicas->there;
    cddp_status st;

    for (size_t i = 0; there == NULL && i < d->n_params; i++)
        sum[i] = cdi_hash64_sum(d->slices[i].data, d->slices[i].bytes, 0);
    if (there == NULL)
        return CDDP_OK;
    st = cdi_ddp_follow(d, d->stream, err);
    if (st == CDDP_OK)
        st = d->ops->hash(d->b, d->slices, d->n_params, there, err);
    return st == CDDP_OK ? d->ops->copy(d->b, sum, there, d->n_params * sizeof *there, err) : st;
}

/* Hashes all parameters of this rank. */
static cddp_status hash_all(cddp_ddp *d, struct cdi_replica *mine, struct cdi_error *err)
{
    uint64_t *hash = d->replicas->hash;
    size_t bytes = d->n_params * sizeof *hash;
    cddp_status st = d->shadow ? CDDP_OK : sum_all(d, hash, err);

    *mine = (struct cdi_replica){.holds = !d->shadow};
    for (size_t i = 0; i < d->n_params && st == CDDP_OK && !d->shadow; i++)
        hash[i] = cdi_hash64(i, d->slices[i].bytes, hash[i]);
    mine->hash = cdi_hash64(0, bytes, cdi_hash64_sum(hash, bytes, 0));
    return st;
}

/* -------------------------------------------------------------------------------------------------- the check ---- */

static void describe(const cddp_ddp *d, size_t i, const struct cdi_replica *of, int n, struct cdi_error *bad)
{
    const struct cdi_replicas *r = d->replicas;
    char who[2 * WHO_BYTES], since[64] = "";
    int odd;

    cdi_replicas_name(of, n, cdi_comm_world(replicas_comm(d))->ranks, who, sizeof who, &odd);
    if (r->checked)
        (void)snprintf(since, sizeof since, "; all were equal after %" PRIu64 " step%s", r->before,
                       r->before == 1 ? "" : "s");
    (void)cdi_fail_by(bad, cdi_rank_of_job(cdi_comm_world(replicas_comm(d)), odd), CDDP_E_MISMATCH,
                      "after %" PRIu64 " step%s: the parameter '%.200s' differs: %s%s", d->step,
                      d->step == 1 ? "" : "s", d->params[i].name, who, since);
    if (d->name != NULL)
        (void)cdi_error_wrap(bad, "model '%.64s'", d->name);
}

/* Finds the first parameter that differs: all ranks exchange the same hashes, and decide by the same ones. */
static cddp_status find_param(cddp_ddp *d, struct cdi_error *bad, struct cdi_error *err)
{
    size_t size = (size_t)cdi_comm_world(replicas_comm(d))->size,
           most = GATHER_BYTES / (size * sizeof(struct cdi_replica));
    size_t chunk = most < 1 ? 1 : most < d->n_params ? most : d->n_params;
    struct cdi_replica *mine = calloc(chunk, sizeof *mine), *all = calloc(size * chunk, sizeof *all),
                       *of = calloc(size, sizeof *of);
    cddp_status st = CDDP_OK;

    if (mine == NULL || all == NULL || of == NULL)
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory for %zu ranks", size);
    for (size_t at = 0; at < d->n_params && st == CDDP_OK && bad->status == CDDP_OK; at += chunk) {
        size_t n = d->n_params - at < chunk ? d->n_params - at : chunk;

        for (size_t k = 0; k < n; k++)
            mine[k] = (struct cdi_replica){d->replicas->hash[at + k], !d->shadow};
        st = cdi_ddp_all_gather(d, replicas_comm(d), mine, all, 2 * n, CDDP_UINT64, err);
        for (size_t k = 0; k < n && st == CDDP_OK && bad->status == CDDP_OK; k++) {
            for (size_t r = 0; r < size; r++)
                of[r] = all[r * n + k];
            if (!cdi_replicas_agree(of, (int)size))
                describe(d, at + k, of, (int)size, bad);
        }
    }
    free(mine);
    free(all);
    free(of);
    return st;
}

static cddp_status compare(cddp_ddp *d, struct cdi_error *bad, struct cdi_error *err)
{
    int size = cdi_comm_world(replicas_comm(d))->size;
    struct cdi_replica mine, *all = calloc((size_t)size, sizeof *all);
    cddp_status st = all != NULL ? CDDP_OK : cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d ranks", size);

    if (st == CDDP_OK)
        st = hash_all(d, &mine, err);
    if (st == CDDP_OK)
        st = cdi_ddp_all_gather(d, replicas_comm(d), &mine, all, 2, CDDP_UINT64, err);
    if (st == CDDP_OK && !cdi_replicas_agree(all, size))
        st = find_param(d, bad, err);
    free(all);
    return st;
}

/* The verdict on a share, and the rank of the job that differs, plus 1. */
struct told {
    int32_t status, blamed;
};

/* Tells the ranks of a group about a share that differs: all of them leave out the step. */
static cddp_status tell_group(cddp_ddp *d, struct cdi_error *bad, struct cdi_error *err)
{
    const struct cdi_world *w = cdi_comm_world(d->comm);
    const struct told mine = {bad->status, bad->blamed};
    struct told *all = calloc((size_t)w->size, sizeof *all);
    cddp_status st = all != NULL ? cdi_ddp_all_gather(d, d->comm, &mine, all, 2, CDDP_INT32, err)
                                 : cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d ranks", w->size);
    int whose = 0;

    while (st == CDDP_OK && whose < w->size && all[whose].status == CDDP_OK)
        whose++;
    if (st == CDDP_OK && whose < w->size && bad->status == CDDP_OK)
        (void)cdi_fail_by(bad, all[whose].blamed - 1, CDDP_E_MISMATCH,
                          "after %" PRIu64 " step%s: the shares of %s differ between replicas, which its message "
                          "names",
                          d->step, d->step == 1 ? "" : "s", cdi_who(w->ranks, whose).text);
    free(all);
    return st;
}

cddp_status cdi_replicas_check(cddp_ddp *d, struct cdi_error *bad)
{
    enum cdi_api_call before;
    struct cdi_error err;
    cddp_status st;

    if (d->replicas == NULL || d->step % d->replicas->period != 0 || replicas_comm(d) == NULL ||
        cdi_comm_world(replicas_comm(d))->size == 1)
        return CDDP_OK;
    before = cdi_api_enter(CDI_API_CHECK_REPLICAS);
    (void)pthread_mutex_unlock(&d->lock);
    st = compare(d, bad, &err);
    if (st == CDDP_OK && cdi_ddp_is_divided(d))
        st = tell_group(d, bad, &err);
    (void)pthread_mutex_lock(&d->lock);
    (void)cdi_api_enter(before);
    d->replicas->checked |= bad->status == CDDP_OK;
    if (bad->status == CDDP_OK)
        d->replicas->before = d->step;
    return st == CDDP_OK ? st : cdi_ddp_fail_misuse(d, &err); /* the others wait for this rank */
}
