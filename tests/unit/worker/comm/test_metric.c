/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "world.h"

#include <math.h>

CDI_SUITE(metric);

/* Like an evaluation: each rank has its own samples, and rank 3 has none. */
static int evaluate(int rank)
{
    cddp_metric loss = {0}, right = {0}, of_all[2], of_ranks[4 * 2];
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (int batch = 0; batch < 2 && rank < 3; batch++) {
        cddp_metric_add(&loss, rank + batch * 0.5, 8 - batch * 4); /* the mean of a batch of 8, then of 4 */
        cddp_metric_add(&right, batch, 1);
    }
    CHECK(cddp_metric_reduce(comm, (cddp_metric[]){loss, right}, of_all, 2, of_ranks) == CDDP_OK);
    CHECK(cddp_metric_mean(&of_all[0]) == (0 * 8 + 0.5 * 4 + 1 * 8 + 1.5 * 4 + 2 * 8 + 2.5 * 4) / 36);
    CHECK(of_all[0].weight == 36 && of_all[0].min == 0 && of_all[0].max == 2.5 && of_all[0].n == 6);
    CHECK(of_all[1].sum == 3 && cddp_metric_mean(&of_all[1]) == 0.5);
    CHECK(of_ranks[2 * 2].min == 2 && of_ranks[3 * 2].n == 0 && isnan(cddp_metric_mean(&of_ranks[3 * 2])));
    CHECK(cddp_metric_reduce(comm, &loss, &loss, 1, NULL) == CDDP_OK && loss.n == 6); /* in place */
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(metric, combines_the_values_of_all_ranks)
{
    cr_assert_eq(run_world(4, evaluate), 0);
}

Test(metric, nan_stays_in_sum_minimum_and_maximum)
{
    cddp_metric m = {0};

    cddp_metric_add(&m, 1, 1);
    cddp_metric_add(&m, NAN, 1);
    cddp_metric_add(&m, -7, 1);
    cr_assert(isnan(m.min) && isnan(m.max) && isnan(cddp_metric_mean(&m)));
    cr_assert_eq(m.n, 3);
}

Test(metric, negative_values_have_a_negative_maximum)
{
    cddp_metric m = {0}, none = {0};

    cddp_metric_add(&m, -3, 1);
    cddp_metric_add(&m, -2, 3);
    cr_assert(m.min == -3 && m.max == -2 && cddp_metric_mean(&m) == -2.25);
    cr_assert(isnan(cddp_metric_mean(&none)) && isnan(cddp_metric_mean(NULL)));
    cddp_metric_add(NULL, 1, 1);
}

Test(metric, rejects_missing_arguments_by_name)
{
    cddp_metric m = {0}, all;
    cddp_comm *comm = NULL;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(cddp_metric_reduce(NULL, &m, &all, 1, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_metric_reduce(comm, NULL, &all, 1, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_metric_reduce(comm, &m, NULL, 1, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_metric_reduce(comm, &m, &all, SIZE_MAX / 2, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_metric_reduce(comm, NULL, NULL, 0, NULL), CDDP_OK);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}

static int disagree(int rank)
{
    cddp_metric m[3] = {0};
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_metric_reduce(comm, m, m, rank == 1 ? 2 : 3, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "rank 0 called cddp_metric_reduce (all_gather of 15 uint64), rank 1 called "
                                    "cddp_metric_reduce (all_gather of 10 uint64)") != NULL);
    CHECK(cddp_finalize(comm) == CDDP_E_MISMATCH);
    return 0;
}

Test(metric, names_ranks_with_different_numbers_of_metrics)
{
    cr_assert_eq(run_world(2, disagree), 0);
}
