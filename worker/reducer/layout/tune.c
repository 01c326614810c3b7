/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/layout/tune.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void cdi_tune_init(struct cdi_tune *t, size_t unit)
{
    static const size_t times[CDI_TUNE_SIZES] = {1, 4, 10, 25, 50, 100};

    *t = (struct cdi_tune){.n = CDI_TUNE_SIZES, .usual = 3};
    for (size_t k = 0; k < t->n; k++)
        if (__builtin_mul_overflow(unit, times[k], &t->cap[k]))
            t->cap[k] = SIZE_MAX;
}

void cdi_tune_drop(struct cdi_tune *t, size_t k)
{
    assert(t->n > 1 && k < t->n);
    t->n--;
    memmove(&t->cap[k], &t->cap[k + 1], (t->n - k) * sizeof t->cap[0]);
    if (t->usual >= k && t->usual > 0)
        t->usual--;
}

uint64_t cdi_tune_steps(const struct cdi_tune *t)
{
    return (uint64_t)t->n * CDI_TUNE_ROUNDS;
}

size_t cdi_tune_turn(const struct cdi_tune *t, uint64_t step)
{
    size_t k = (size_t)(step % t->n);

    return step / t->n % 2 == 0 ? k : t->n - 1 - k;
}

void cdi_tune_note(struct cdi_tune *t, size_t k, int64_t ns)
{
    assert(k < t->n);
    if (t->n_ns[k] < CDI_TUNE_ROUNDS)
        t->ns[k][t->n_ns[k]++] = ns;
}

static int tune_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static int64_t median(const struct cdi_tune *t, size_t k)
{
    int64_t sorted[CDI_TUNE_ROUNDS];

    memcpy(sorted, t->ns[k], sizeof sorted);
    qsort(sorted, t->n_ns[k], sizeof sorted[0], tune_compare);
    return sorted[t->n_ns[k] / 2];
}

size_t cdi_tune_best(const struct cdi_tune *t)
{
    bool any = false;
    size_t best = t->usual;

    for (size_t k = 0; k < t->n; k++) {
        if (t->n_ns[k] == 0)
            continue;
        if (!any || median(t, k) <= median(t, best))
            best = k;
        any = true;
    }
    return best;
}
