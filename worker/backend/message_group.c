/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/message_group.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------- order ---- */

/*
 * Returns the sort key of an operation: the first criterion is in the highest bits, the place in the array in the
 * lowest.
 */
struct place {
    uint32_t round;  /* 0: before all messages; UINT32_MAX: of this rank to itself */
    uint32_t second; /* the order of the two directions of a pair */
    size_t at;
};

static struct place group_place_of(const struct cdi_coll *op, size_t at, int rank, int size)
{
    bool sends = op->kind == CDI_SEND;

    if (!cdi_group_is_message(op))
        return (struct place){.at = at};
    if (op->root == rank)
        return (struct place){.round = UINT32_MAX, .at = at};
    return (struct place){
        .round = (uint32_t)((rank + op->root) % size) + 1, .second = sends != (rank < op->root), .at = at};
}

static int group_compare(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->round != y->round)
        return x->round < y->round ? -1 : 1;
    if (x->second != y->second)
        return x->second < y->second ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static bool put_in_order(struct cdi_coll *to, const struct cdi_coll *ops, size_t n, int rank, int size)
{
    struct place *places = malloc(n * sizeof *places);

    if (places == NULL)
        return false;
    for (size_t i = 0; i < n; i++)
        places[i] = group_place_of(&ops[i], i, rank, size);
    qsort(places, n, sizeof *places, group_compare);
    for (size_t i = 0; i < n; i++)
        to[i] = ops[places[i].at];
    free(places);
    return true;
}

/* ---------------------------------------------------------------------------------------------------- creation ---- */

static size_t n_with_counts(const struct cdi_coll *ops, size_t n)
{
    size_t k = 0;

    for (size_t i = 0; i < n; i++)
        k += ops[i].kind == CDI_ALL_GATHERV;
    return k;
}

cddp_status cdi_group_make(struct cdi_work *w, const struct cdi_coll *ops, size_t n, int rank, int size,
                           struct cdi_error *err)
{
    size_t each = (size_t)size * sizeof *ops->counts, bytes = n_with_counts(ops, n) * each;
    struct cdi_coll *group =
        n > 0 && n <= (PTRDIFF_MAX - bytes) / sizeof *group ? malloc(n * sizeof *group + bytes) : NULL;
    size_t *counts;

    if (group == NULL || !put_in_order(group, ops, n, rank, size)) {
        free(group);
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a group of %zu operations", n);
    }
    counts = (size_t *)(group + n);
    for (size_t i = 0; i < n; i++) {
        if (group[i].kind != CDI_ALL_GATHERV)
            continue;
        memcpy(counts, group[i].counts, each);
        group[i].counts = counts;
        counts += size;
    }
    *w = (struct cdi_work){.op = ops[0], .group = group, .n_group = n};
    w->op.counts = NULL;
    w->op.bucket = n == 1 ? ops[0].bucket : -1;
    return CDDP_OK;
}

/* --------------------------------------------------------------------------------------------------- running ---- */

/* Matches the k-th send of this rank to itself with its k-th receive. */
size_t cdi_group_copy_own(const struct cdi_work *w, int rank)
{
    const struct cdi_coll *ops = w->group;
    size_t first = w->n_group, s;

    while (first > 0 && cdi_group_is_message(&ops[first - 1]) && ops[first - 1].root == rank)
        first--;
    s = first;
    for (size_t i = first; i < w->n_group; i++) {
        size_t bytes = ops[i].count * cddp_dtype_size(ops[i].dtype);

        if (ops[i].kind != CDI_RECV)
            continue;
        while (s < w->n_group && ops[s].kind != CDI_SEND)
            s++;
        if (s < w->n_group && bytes > 0)
            memmove(ops[i].out, ops[s].in, bytes);
        s++;
    }
    return first;
}

cddp_status cdi_group_run(cdi_run_fn run, void *arg, const struct cdi_work *w, int rank, bool on_thread,
                          struct cdi_error *err)
{
    size_t n = cdi_group_copy_own(w, rank);
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < n && st == CDDP_OK; i++) {
        const struct cdi_work one = {.op = w->group[i], .n_group = w->n_group};

        st = run(arg, &one, on_thread, err);
    }
    return st;
}
