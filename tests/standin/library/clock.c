/* SPDX-License-Identifier: Apache-2.0 */
#include "clock.h"

#include <stdlib.h>

void si_clock_join(struct si_clock *to, const struct si_clock *from)
{
    for (size_t i = 0; i < SI_ACTORS; i++)
        if (from->t[i] > to->t[i])
            to->t[i] = from->t[i];
}

static bool clock_overlap(const struct si_access *a, const struct si_access *b)
{
    return a->begin < b->end && b->begin < a->end;
}

static bool clock_push(struct si_history *h, const struct si_access *a)
{
    if (h->n == h->cap) {
        size_t cap = h->cap == 0 ? 8 : 2 * h->cap;
        struct si_access *use = malloc(cap * sizeof *use);

        if (use == NULL)
            return false;
        for (size_t i = 0; i < h->n; i++)
            use[i] = h->use[i];
        free(h->use);
        h->use = use;
        h->cap = cap;
    }
    h->use[h->n++] = *a;
    return true;
}

/* Take the bytes of `a` out of record i, which may leave two pieces. Returns true if record i is gone. */
static bool clock_cut(struct si_history *h, size_t i, const struct si_access *a)
{
    struct si_access old = h->use[i], piece = old;

    if (old.begin < a->begin) {
        h->use[i].end = a->begin;
        piece.begin = a->end;
        if (a->end < old.end)
            (void)clock_push(h, &piece);
        return false;
    }
    if (a->end < old.end) {
        h->use[i].begin = a->end;
        return false;
    }
    h->use[i] = h->use[--h->n];
    return true;
}

bool si_history_add(struct si_history *h, const struct si_access *a, const struct si_clock *now, struct si_access *with)
{
    bool conflict = false;

    for (size_t i = 0; i < h->n;) {
        const struct si_access *old = &h->use[i];
        bool ordered = old->time <= now->t[old->actor];

        if (!clock_overlap(old, a) || (ordered && !a->write && (old->write || old->actor != a->actor))) {
            i++;
            continue;
        }
        if (!ordered && (old->write || a->write) && !conflict) {
            conflict = true;
            *with = *old;
        }
        /* What the new use is ordered after and covers can conflict with nothing that the new use would not. */
        if (ordered && (a->write || old->actor == a->actor) && clock_cut(h, i, a))
            continue;
        i++;
    }
    (void)clock_push(h, a);
    return conflict;
}

void si_history_release(struct si_history *h)
{
    free(h->use);
    h->use = NULL;
    h->n = h->cap = 0;
}
