/* SPDX-License-Identifier: Apache-2.0 */
/* Which unit has which slot, and which is fetched ahead. */
#include "hygiene.h"
#include "worker/fsdp/pool.h"

CDI_SUITE(pool);

/* Uses unit u for a moment. Returns true if it was there. */
static bool use(struct cdi_pool *p, size_t u)
{
    bool was_fresh = p->unit[u].is_fresh;

    cr_assert(cdi_pool_want(p, u));
    cr_assert(was_fresh || cdi_pool_place(p, u, false));
    cr_assert_lt(p->unit[u].slot, SIZE_MAX);
    cr_assert(p->unit[u].is_kept || p->holds[p->unit[u].slot] == u);
    return was_fresh;
}

Test(pool, unused_unit_stays_until_slot_is_needed)
{
    struct cdi_pool p;

    cr_assert(cdi_pool_init(&p, 4, 2));
    cr_assert_not(use(&p, 0));
    cr_assert_not(use(&p, 1));
    cr_assert(use(&p, 0));
    cr_assert_not(use(&p, 2)); /* in place of 1, which was wanted longer ago */
    cr_assert(use(&p, 0));
    cr_assert_not(use(&p, 1));
    cdi_pool_release(&p);
}

Test(pool, unit_in_use_keeps_its_slot)
{
    struct cdi_pool p;

    cr_assert(cdi_pool_init(&p, 3, 2));
    for (size_t u = 0; u < 2; u++) {
        (void)use(&p, u);
        p.unit[u].users = 1;
    }
    cr_assert(cdi_pool_want(&p, 2));
    cr_assert_not(cdi_pool_place(&p, 2, false));
    p.unit[0].users = 0;
    cr_assert(cdi_pool_place(&p, 2, false));
    cr_assert(p.unit[1].is_fresh);
    cr_assert_not(p.unit[0].is_fresh);
    cdi_pool_release(&p);
}

Test(pool, step_is_the_forecast_for_the_next_one)
{
    static const size_t order[] = {0, 1, 2, 2, 1, 0};
    struct cdi_pool p;

    cr_assert(cdi_pool_init(&p, 3, 2));
    for (size_t k = 0; k < 6; k++) {
        cr_assert_eq(cdi_pool_forecast(&p, 0), CDI_POOL_NONE);
        (void)use(&p, order[k]);
    }
    for (int step = 0; step < 3; step++) {
        cdi_pool_next_step(&p);
        for (size_t k = 0; k < 6; k++) {
            (void)use(&p, order[k]);
            cr_assert_eq(cdi_pool_forecast(&p, 0), k < 5 ? order[k + 1] : CDI_POOL_NONE);
            cr_assert_eq(cdi_pool_forecast(&p, 9), CDI_POOL_NONE);
        }
    }
    cdi_pool_release(&p);
}

Test(pool, unit_that_is_wanted_last_goes_first)
{
    static const size_t order[] = {0, 1, 2, 1, 0};
    struct cdi_pool p;

    cr_assert(cdi_pool_init(&p, 3, 2));
    for (size_t k = 0; k < 5; k++)
        (void)use(&p, order[k]);
    cdi_pool_next_step(&p);
    (void)use(&p, 0);
    p.unit[0].users = 1;
    cr_assert(cdi_pool_place(&p, 1, true));     /* an empty slot */
    cr_assert_not(cdi_pool_place(&p, 2, true)); /* 0 is in use, and 1 is wanted before */
    p.unit[0].users = 0;
    cr_assert(use(&p, 1));
    p.unit[1].users = 1;
    cr_assert(cdi_pool_place(&p, 2, true)); /* 0 is wanted after 2 */
    p.unit[1].users = 0;
    cr_assert(use(&p, 2));
    cr_assert(use(&p, 1));
    cr_assert_not(use(&p, 0));
    cdi_pool_release(&p);
}

Test(pool, step_of_another_order_becomes_the_forecast)
{
    struct cdi_pool p;

    cr_assert(cdi_pool_init(&p, 3, 3));
    for (size_t u = 0; u < 3; u++)
        (void)use(&p, u);
    cdi_pool_next_step(&p);
    (void)use(&p, 0);
    cr_assert_eq(cdi_pool_forecast(&p, 0), 1);
    (void)use(&p, 2);
    cr_assert_eq(cdi_pool_forecast(&p, 0), CDI_POOL_NONE);
    (void)use(&p, 1);
    (void)use(&p, 1);
    cdi_pool_next_step(&p);
    (void)use(&p, 0);
    cr_assert_eq(cdi_pool_forecast(&p, 0), 2);
    cr_assert_eq(cdi_pool_forecast(&p, 1), 1);
    cr_assert_eq(cdi_pool_forecast(&p, 2), 1);
    cr_assert_eq(cdi_pool_forecast(&p, 3), CDI_POOL_NONE);
    cdi_pool_release(&p);
}

/* Wants each unit in turn, releases it at once, and begins the next ones. Returns how many were not begun ahead. */
static int pass(struct cdi_pool *p, const size_t *order, size_t n)
{
    int late = 0;

    for (size_t k = 0; k < n; k++) {
        late += !use(p, order[k]);
        for (size_t i = 0, u; (u = cdi_pool_forecast(p, i)) != CDI_POOL_NONE; i++)
            if (!p->unit[u].is_fresh && !cdi_pool_place(p, u, true))
                break;
    }
    return late;
}

/* Evaluations come before the first step, whose order they become a part of, and then between steps. */
static void check_evaluations(const size_t *order, size_t n, size_t forward)
{
    struct cdi_pool p;

    for (int before = 0; before < 3; before++) {
        cr_assert(cdi_pool_init(&p, 5, 3));
        for (int k = 0; k < before; k++)
            (void)pass(&p, order, forward);
        (void)pass(&p, order, n);
        for (int step = 1; step < 5; step++) {
            cdi_pool_next_step(&p);
            for (int k = 1; k < step; k++)
                cr_assert_leq(pass(&p, order, forward), 1, "%d before, %d in step %d", before, k, step);
            cr_assert_leq(pass(&p, order, n), before > 0 && step == 1 ? 2 : 1, "%d before, step %d", before, step);
            cr_assert(before > 0 || p.n_order == n);
        }
        cdi_pool_next_step(&p);
        (void)pass(&p, order, n);
        cr_assert_eq(p.n_order, n, "%d before", before);
        cdi_pool_release(&p);
    }
}

Test(pool, evaluations_leave_the_forecast_of_steps)
{
    static const size_t plain[] = {0, 1, 2, 3, 4, 4, 3, 2, 1, 0};
    static const size_t tied[] = {0, 1, 2, 3, 4, 0, 0, 4, 3, 2, 1, 0}; /* 0 is also the output layer */

    check_evaluations(plain, 10, 5);
    check_evaluations(tied, 12, 6);
}

Test(pool, no_parameters_are_left_from_step_to_step)
{
    struct cdi_pool p;

    cr_assert(cdi_pool_init(&p, 3, 2));
    cdi_pool_keep(&p, 1, 2);
    cr_assert_not(use(&p, 0));
    cr_assert_not(use(&p, 1));
    cr_assert_not(use(&p, 2));
    cr_assert(use(&p, 0));
    cdi_pool_next_step(&p);
    cr_assert_eq(p.unit[1].slot, 2); /* its own */
    for (size_t u = 0; u < 3; u++)
        cr_assert_not(use(&p, u));
    cdi_pool_release(&p);
}
