/* SPDX-License-Identifier: Apache-2.0 */
/* A reducer of random shape, used from several threads, for a few steps. stress_reducer.c has all its options. */
#include "mix.h"
#include "mix_value.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define PARAMS 12
#define COUNT 4000
#define THREADS 3
#define STEPS 3

struct model {
    struct mix_lane *lane;
    cddp_ddp *ddp;
    cddp_param params[PARAMS];
    char names[PARAMS][24];
    double data[PARAMS][COUNT]; /* not used */
    size_t n;
    _Atomic size_t next;
    _Atomic bool failed;
};

static struct mix_source source_of(const struct model *m, size_t i)
{
    return (struct mix_source){
        .seed = m->lane->seed, .nr = m->lane->nr * PARAMS + i, .dtype = m->params[i].dtype, .op = CDDP_AVG};
}

static void *backward(void *arg)
{
    struct model *m = arg;
    size_t k;

    while ((k = atomic_fetch_add(&m->next, 1)) < m->n) {
        size_t i = m->n - 1 - (k + mix_own_dice(m->lane, 60, m->n)) % m->n;
        struct mix_source s = source_of(m, i);

        mix_fill(&s, m->lane->rank, 0, cddp_ddp_grad(m->ddp, i), m->params[i].count);
        if (mix_own_dice(m->lane, 61 + i, 8) == 0)
            (void)usleep((useconds_t)mix_own_dice(m->lane, 80 + i, 500));
        if (cddp_ddp_grad_ready(m->ddp, i) != CDDP_OK)
            atomic_store(&m->failed, true);
    }
    return NULL;
}

static bool step(struct model *m)
{
    pthread_t thread[THREADS];
    size_t at;

    atomic_store(&m->next, 0);
    for (int t = 1; t < THREADS; t++)
        if (pthread_create(&thread[t], NULL, backward, m) != 0)
            return mix_failed(m->lane, "no thread");
    (void)backward(m);
    for (int t = 1; t < THREADS; t++)
        (void)pthread_join(thread[t], NULL);
    if (atomic_load(&m->failed) || cddp_ddp_wait(m->ddp) != CDDP_OK)
        return mix_failed(m->lane, "a step of a reducer: %s", cddp_last_error());
    for (size_t i = 0; i < m->n; i++) {
        struct mix_source s = source_of(m, i);

        if (!mix_is(&s, -1, m->lane->size, 0, cddp_ddp_grad(m->ddp, i), m->params[i].count, &at))
            return mix_failed(m->lane, "element %zu of gradient %zu is wrong", at, i);
    }
    return true;
}

bool mix_reducer(struct mix_lane *l)
{
    struct model m = {.lane = l, .n = 1 + mix_dice(l, 62, PARAMS)};
    cddp_ddp_options opt = {.size = sizeof opt,
                            .bucket_bytes = 64 + mix_dice(l, 63, 40000),
                            .first_bucket_bytes = 64 + mix_dice(l, 64, 10000)};
    bool ok = true;

    for (size_t i = 0; i < m.n; i++) {
        (void)snprintf(m.names[i], sizeof m.names[i], "p%zu", i);
        m.params[i] = (cddp_param){.size = sizeof(cddp_param),
                                   .name = m.names[i],
                                   .data = m.data[i],
                                   .count = 1 + mix_dice(l, 100 + i, COUNT),
                                   .dtype = mix_dice(l, 120 + i, 4) != 0 ? CDDP_FLOAT32 : CDDP_FLOAT64};
    }
    if (cddp_ddp_create(&m.ddp, l->comm, m.params, m.n, &opt) != CDDP_OK)
        return mix_failed(l, "cddp_ddp_create: %s", cddp_last_error());
    for (int i = 0; i < STEPS && ok; i++, l->nr++)
        ok = step(&m);
    if (ok)
        cddp_ddp_destroy(m.ddp);
    return ok;
}
