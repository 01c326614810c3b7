/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/fsdp/pool.h"

#include <stdlib.h>
#include <string.h>

bool cdi_pool_init(struct cdi_pool *p, size_t n_units, size_t n_slots)
{
    *p = (struct cdi_pool){.unit = calloc(n_units, sizeof *p->unit),
                           .holds = calloc(n_slots + 1, sizeof *p->holds),
                           .n_units = n_units,
                           .n_slots = n_slots};
    if (p->unit == NULL || p->holds == NULL)
        return false;
    for (size_t u = 0; u < n_units; u++)
        p->unit[u].slot = CDI_POOL_NONE;
    for (size_t s = 0; s < n_slots; s++)
        p->holds[s] = CDI_POOL_NONE;
    return true;
}

void cdi_pool_release(struct cdi_pool *p)
{
    free(p->unit);
    free(p->holds);
    free(p->order);
    *p = (struct cdi_pool){0};
}

void cdi_pool_keep(struct cdi_pool *p, size_t u, size_t slot)
{
    p->unit[u].slot = slot;
    p->unit[u].is_kept = true;
}

/*
 * Moves to another place of the forecast at which u is expected: after a second occurrence of the unit used last, or at
 * the beginning. So an evaluation, a forward pass without a backward pass, does not replace the forecast of a step.
 * Units that are passed over leave the forecast.
 */
static bool follow_elsewhere(struct cdi_pool *p, size_t u)
{
    size_t k = 1;

    if (!p->follows || p->at == 0)
        return false;
    while (k < p->n_order && (p->order[k - 1] != p->order[p->at - 1] || p->order[k] != u))
        k++;
    if (k >= p->n_order && p->order[0] != u)
        return false;
    k = k < p->n_order ? k : 0;
    if (k > p->at) {
        memmove(p->order + p->at, p->order + k, (p->n_order - k) * sizeof *p->order);
        p->n_order -= k - p->at;
        k = p->at;
    }
    p->at = k + 1;
    return true;
}

bool cdi_pool_want(struct cdi_pool *p, size_t u)
{
    p->unit[u].asked = ++p->calls;
    if (p->follows && p->at < p->n_order && p->order[p->at] == u) {
        p->at++;
        return true;
    }
    if (follow_elsewhere(p, u))
        return true;
    /* What this step has wanted so far becomes the beginning of the next forecast. */
    p->follows = false;
    p->n_order = p->at;
    if (p->n_order == p->room) {
        size_t room = p->room * 2 + 16, *order = realloc(p->order, room * sizeof *order);

        if (order == NULL)
            return false;
        p->order = order;
        p->room = room;
    }
    p->order[p->n_order++] = u;
    p->at = p->n_order;
    return true;
}

/* Returns when unit u is wanted next, as a place in the forecast; SIZE_MAX: not in this step. */
static size_t next_use(const struct cdi_pool *p, size_t u)
{
    for (size_t k = p->at; p->follows && k < p->n_order; k++)
        if (p->order[k] == u)
            return k;
    return SIZE_MAX;
}

/* Is unit a a better one to lose its slot than b? */
static bool goes_first(const struct cdi_pool *p, size_t a, size_t b)
{
    size_t use_a = next_use(p, a), use_b = next_use(p, b);

    return use_a != use_b ? use_a > use_b : p->unit[a].asked < p->unit[b].asked;
}

bool cdi_pool_place(struct cdi_pool *p, size_t u, bool ahead)
{
    size_t best = CDI_POOL_NONE;

    for (size_t s = 0; s < p->n_slots && p->unit[u].slot == CDI_POOL_NONE; s++) {
        size_t v = p->holds[s];

        if (v == CDI_POOL_NONE) {
            best = s;
            break;
        }
        if (p->unit[v].users == 0 && (best == CDI_POOL_NONE || goes_first(p, v, p->holds[best])))
            best = s;
    }
    if (p->unit[u].slot == CDI_POOL_NONE) {
        size_t v = best == CDI_POOL_NONE ? CDI_POOL_NONE : p->holds[best];

        if (best == CDI_POOL_NONE || (ahead && v != CDI_POOL_NONE && next_use(p, v) <= next_use(p, u)))
            return false;
        if (v != CDI_POOL_NONE) {
            p->unit[v].slot = CDI_POOL_NONE;
            p->unit[v].is_fresh = false;
        }
        p->holds[best] = u;
        p->unit[u].slot = best;
    }
    p->unit[u].is_fresh = true;
    return true;
}

size_t cdi_pool_forecast(const struct cdi_pool *p, size_t k)
{
    return p->follows && k < p->n_order - p->at ? p->order[p->at + k] : CDI_POOL_NONE;
}

void cdi_pool_next_step(struct cdi_pool *p)
{
    for (size_t u = 0; u < p->n_units; u++) {
        p->unit[u].is_fresh = false;
        if (!p->unit[u].is_kept && p->unit[u].users == 0)
            p->unit[u].slot = CDI_POOL_NONE;
    }
    for (size_t s = 0; s < p->n_slots; s++)
        if (p->holds[s] != CDI_POOL_NONE && p->unit[p->holds[s]].slot != s)
            p->holds[s] = CDI_POOL_NONE;
    if (p->at > 0) { /* a shorter step: it did not use the rest of the forecast */
        p->n_order = p->at;
        p->follows = true;
    }
    p->at = 0;
}
