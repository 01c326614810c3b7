/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients that are reduced in the user's own memory. This needs memory that all ranks have (cddp_alloc with
 * CDDP_MEM_COLLECTIVE, cddp_register), with all ranks' gradients at the same offsets, which they compare when the
 * reducer is made. To the rest of the reducer such a gradient is part of the arena that happens to be elsewhere.
 *
 * A bucket then is no longer one stretch of memory. Gradients that are adjacent in memory form one stretch, whatever
 * the order of the parameters, and become one operation. Each operation costs as much as copying some ten thousand
 * bytes. So small gradients without neighbours in their bucket are copied into the arena as usual, and form its other
 * stretch; so do those that are sent in another type. If a feature needs buckets in one piece (hooks, PowerSGD, an
 * optimizer), the whole arena is allocated then, and all gradients are copied.
 */
#include "worker/reducer/grads/in_place.h"

#include "worker/comm/agree.h"
#include "worker/comm/memory.h"
#include "worker/reducer/grads/user_grads.h"
#include "worker/reducer/state/arena.h"

#include <stdint.h>
#include <stdlib.h>

#define WORTH_IT ((size_t)64 << 10) /* smallest stretch that is reduced in place, in bytes */

/*
 * Finds the memory in which parameter i's gradient may be reduced, in terms that are the same on all ranks. id 0: none.
 */
static cddp_status in_place_find(cddp_ddp *d, size_t i, struct cdi_error *err)
{
    struct cdi_ddp_in_place *p = &d->in_place;
    const cddp_param *q = &d->params[i];
    size_t size = cddp_dtype_size(q->grad_dtype);
    struct cdi_extent e;

    if (q->grad == NULL)
        return CDDP_OK;
    if (cdi_memory_overrun(d->comm, q->grad, q->count * size, &e))
        return cdi_fail(err, CDDP_E_INVALID,
                        "parameter %zu '%.200s': its gradient has %zu bytes and begins at byte %zu of memory of "
                        "cddp_alloc, which has %zu bytes",
                        i, q->name, q->count * size, (size_t)((char *)q->grad - (char *)e.base), e.bytes);
    if ((uintptr_t)q->grad % size != 0 || !cdi_memory_find(d->comm, q->grad, q->count * size, &e))
        return CDDP_OK;
    p->home[i] = (struct cdi_ddp_home){
        .grad = q->grad, .region = e.region, .id = e.id, .at = (size_t)((char *)q->grad - (char *)e.base)};
    return CDDP_OK;
}

cddp_status cdi_in_place_init(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_ddp_in_place *p = &d->in_place;
    size_t n = d->n_params;

    if (!d->has_own || n == 0)
        return CDDP_OK;
    p->home = calloc(n, sizeof *p->home);
    p->sorted = calloc(n, sizeof *p->sorted);
    p->offset = calloc(d->plan.n_grads, sizeof *p->offset);
    if (p->home == NULL || p->sorted == NULL || p->offset == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the places of %zu gradients", n);
    p->hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++) {
        if (in_place_find(d, i, err) != CDDP_OK)
            return err->status;
        p->hash = (p->hash ^ p->home[i].id) * UINT64_C(0x100000001b3);
        p->hash = (p->hash ^ p->home[i].at) * UINT64_C(0x100000001b3);
    }
    return CDDP_OK;
}

void cdi_in_place_release(cddp_ddp *d)
{
    free(d->in_place.home);
    free(d->in_place.sorted);
    free(d->in_place.offset);
    free(d->in_place.stretch);
    if (d->in_place.old_arena != NULL)
        d->ops->region_destroy(d->b, d->in_place.old_arena);
}

/* -------------------------------------------------------------------------------------------- side by side ---- */

static size_t grad_bytes(const cddp_ddp *d, size_t i)
{
    return d->plan.grads[i].bytes;
}

static int in_place_compare(const void *a, const void *b)
{
    const struct cdi_ddp_neighbour *x = a, *y = b;

    if (x->bucket != y->bucket)
        return x->bucket < y->bucket ? -1 : 1;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->param > y->param) - (x->param < y->param);
}

/* Sorts the gradients that may be (chosen: are) reduced in place, by bucket and address. Returns their number. */
static size_t in_place_sort(cddp_ddp *d, bool chosen)
{
    struct cdi_ddp_in_place *p = &d->in_place;
    size_t n = 0;

    for (size_t i = 0; i < d->n_params; i++) {
        const struct cdi_ddp_home *h = &p->home[i];
        size_t b = d->plan.grads[i].bucket;

        if (h->id != 0 && (chosen ? h->chosen : !d->flight[b].compressed))
            p->sorted[n++] = (struct cdi_ddp_neighbour){.bucket = b, .id = h->id, .at = h->at, .param = i};
    }
    qsort(p->sorted, n, sizeof *p->sorted, in_place_compare);
    return n;
}

/* Returns how many of the n at s are adjacent, and their size in *bytes. */
static size_t adjacent_run(const cddp_ddp *d, const struct cdi_ddp_neighbour *s, size_t n, size_t *bytes)
{
    size_t k = 1;

    *bytes = grad_bytes(d, s[0].param);
    while (k < n && s[k].bucket == s[0].bucket && s[k].id == s[0].id && s[k].at == s[0].at + *bytes)
        *bytes += grad_bytes(d, s[k++].param);
    return k;
}

/* Assigns a place in the arena to each gradient that stays there, in the order of the plan. */
static void compact_arena(cddp_ddp *d)
{
    struct cdi_ddp_in_place *p = &d->in_place;
    size_t n = 0, at = 0;

    for (size_t k = 0; k < d->plan.n_grads; k++) {
        size_t i = d->plan.place[k];

        if (i < d->n_params && p->home[i].chosen)
            continue;
        p->offset[i] = at;
        at += (d->plan.grads[i].bytes + CDI_GRAD_ALIGN - 1) / CDI_GRAD_ALIGN * CDI_GRAD_ALIGN;
        n++;
    }
    p->arena_bytes = n == 0 ? 0 : at;
}

void cdi_in_place_choose(cddp_ddp *d)
{
    struct cdi_ddp_in_place *p = &d->in_place;
    size_t n, k, bytes;

    if (p->home == NULL)
        return;
    n = in_place_sort(d, false);
    for (size_t at = 0; at < n; at += k) {
        k = adjacent_run(d, &p->sorted[at], n - at, &bytes);
        for (size_t j = at; j < at + k && bytes >= WORTH_IT; j++) {
            p->home[p->sorted[j].param].chosen = true;
            d->params[p->sorted[j].param].grad = NULL; /* so that it is not copied */
            p->any = true;
        }
    }
    if (!p->any)
        return;
    d->own.everywhere = false; /* only copied gradients are scaled on the way */
    compact_arena(d);
    cdi_user_grads_list(d);
    cdi_in_place_list(d);
}

/* ------------------------------------------------------------------------------------------------- stretches ---- */

/* Finds the part of bucket b that is in the arena, also of the n_parts pieces of a gradient that was cut. */
static bool arena_stretch(const cddp_ddp *d, size_t b, struct cdi_ddp_stretch *out)
{
    const struct cdi_ddp_in_place *p = &d->in_place;
    size_t begin = SIZE_MAX, end = 0;

    for (size_t k = 0; k < d->plan.b[b].n_grads; k++) {
        size_t i = cdi_bucket_grad(&d->plan, b, k);
        const struct cdi_grad *g = &d->plan.grads[i];
        size_t part = b - g->bucket, at = p->offset[i] + part * g->piece, rest;

        if (i < d->n_params && p->home[i].chosen)
            continue;
        rest = g->bytes - part * g->piece;
        begin = at < begin ? at : begin;
        end = at + (rest < g->piece ? rest : g->piece) > end ? at + (rest < g->piece ? rest : g->piece) : end;
    }
    *out = (struct cdi_ddp_stretch){.offset = begin, .bytes = end - begin};
    return end > 0;
}

/* Adds a stretch of gradients that are reduced in place: a piece of one, or a run of whole ones. */
static void in_place_add_stretch(cddp_ddp *d, size_t b, const struct cdi_ddp_neighbour *s, size_t skip, size_t bytes)
{
    const struct cdi_ddp_home *h = &d->in_place.home[s->param];
    struct cdi_ddp_flight *f = &d->flight[b];

    d->in_place.stretch[f->stretch + f->n_stretches++] =
        (struct cdi_ddp_stretch){.at = (char *)h->grad + skip, .region = h->region, .bytes = bytes};
}

/* Returns the largest possible number of stretches: each gradient, or piece of one, and one per bucket in the arena. */
static size_t most_stretches(const cddp_ddp *d)
{
    size_t most = d->plan.n;

    for (size_t i = 0; i < d->n_params; i++)
        most += d->plan.grads[i].n_parts;
    return most;
}

cddp_status cdi_in_place_reserve(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_ddp_in_place *p = &d->in_place;
    size_t most = most_stretches(d);
    struct cdi_ddp_stretch *stretch;

    if (p->home == NULL || most <= p->room)
        return CDDP_OK;
    stretch = realloc(p->stretch, most * sizeof *stretch);
    if (stretch == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu stretches of gradients", most);
    p->stretch = stretch;
    p->room = most;
    return CDDP_OK;
}

void cdi_in_place_list(cddp_ddp *d)
{
    struct cdi_ddp_in_place *p = &d->in_place;
    size_t n, next = 0, k = 0, bytes, room = 0;

    if (!p->any)
        return;
    n = in_place_sort(d, true);
    for (size_t b = 0; b < d->plan.n; b++) {
        struct cdi_ddp_flight *f = &d->flight[b];
        struct cdi_ddp_stretch in_arena;

        f->stretch = room;
        f->n_stretches = 0;
        if (arena_stretch(d, b, &in_arena))
            p->stretch[f->stretch + f->n_stretches++] = in_arena;
        for (; next < n && p->sorted[next].bucket == b && d->plan.grads[p->sorted[next].param].n_parts == 1;
             next += k) {
            k = adjacent_run(d, &p->sorted[next], n - next, &bytes);
            in_place_add_stretch(d, b, &p->sorted[next], 0, bytes);
        }
        room += f->n_stretches;
        if (next == n || p->sorted[next].bucket != b)
            continue;
        /* A cut gradient has separate buckets, this one and those that follow. */
        for (const struct cdi_grad *g = &d->plan.grads[p->sorted[next].param]; b < g->bucket + g->n_parts; b++) {
            size_t skip = (b - g->bucket) * g->piece, rest = g->bytes - skip;

            d->flight[b].stretch = room++;
            d->flight[b].n_stretches = 0;
            in_place_add_stretch(d, b, &p->sorted[next], skip, rest < g->piece ? rest : g->piece);
        }
        b--;
        next++;
    }
}

/* ------------------------------------------------------------------------------------------------- and back ---- */

cddp_status cdi_in_place_disable(cddp_ddp *d, const char *what, cddp_status alone, struct cdi_error *err)
{
    struct cdi_ddp_in_place *p = &d->in_place;
    struct cdi_region *whole;
    cddp_status st;

    if (!p->any)
        return alone;
    st = cdi_comm_agree(d->comm, what, NULL, 0, NULL, alone == CDDP_OK ? NULL : err, err);
    if (st == CDDP_OK)
        st = d->ops->region_create(d->b, d->plan.arena_bytes, &whole, err);
    if (st != CDDP_OK)
        return st;
    /*
     * The program continues to read and write all gradients at their addresses, so those of the old arena are copied,
     * too.
     */
    for (size_t i = 0; i < d->n_params; i++)
        if (d->params[i].grad == NULL)
            d->params[i].grad = cdi_arena_grad(d, i);
    p->old_arena = d->region;
    d->region = whole;
    p->any = false;
    cdi_user_grads_list(d);
    return CDDP_OK;
}
