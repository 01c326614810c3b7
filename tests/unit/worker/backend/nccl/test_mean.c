/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/mean.h"

#include "hygiene.h"

CDI_SUITE(mean);

static char memory[2];

static struct cdi_coll mean(enum cdi_coll_kind kind, cddp_dtype dtype)
{
    return (struct cdi_coll){.kind = kind, .in = memory, .out = memory, .count = 1, .dtype = dtype, .op = CDDP_AVG};
}

static const struct cdi_mean_facts best = {.nccl_code = 23003, .n_ranks = 8, .n_nodes = 1, .window = true};

static void expect(enum cdi_mean want, struct cdi_coll op, struct cdi_mean_facts facts)
{
    cr_assert_eq((int)cdi_mean_of(&op, &facts), (int)want, "type %d, kind %d, NCCL %d: %d", (int)op.dtype, (int)op.kind,
                 facts.nccl_code, (int)cdi_mean_of(&op, &facts));
}

Test(mean, ncclavg_only_for_symmetric_kernels)
{
    struct cdi_mean_facts facts = best;

    expect(CDI_MEAN_BY_NCCL, mean(CDI_REDUCE_SCATTER, CDDP_FLOAT32), facts);
    expect(CDI_MEAN_BY_NCCL, mean(CDI_REDUCE_SCATTER, CDDP_BFLOAT16), facts);
    facts.nccl_code = 22907;
    expect(CDI_MEAN_AFTER, mean(CDI_REDUCE_SCATTER, CDDP_FLOAT32), facts);
    facts = best;
    facts.n_nodes = 2;
    expect(CDI_MEAN_AFTER, mean(CDI_REDUCE_SCATTER, CDDP_BFLOAT16), facts);
    facts = best;
    facts.window = false;
    expect(CDI_MEAN_AFTER, mean(CDI_REDUCE_SCATTER, CDDP_FLOAT32), facts);
}

/* Not for 2, 4 or 8 ranks either: of tiny and of large numbers a half before the sum gives another mean than after it.
 */
Test(mean, ring_and_tree_do_not_multiply_before_the_sum)
{
    struct cdi_mean_facts facts = best;

    facts.window = false;
    facts.nccl_code = 22809;
    for (facts.n_ranks = 2; facts.n_ranks <= 8; facts.n_ranks *= 2) {
        expect(CDI_MEAN_AFTER, mean(CDI_ALL_REDUCE, CDDP_FLOAT32), facts);
        expect(CDI_MEAN_AFTER, mean(CDI_ALL_REDUCE, CDDP_BFLOAT16), facts);
        expect(CDI_MEAN_AFTER, mean(CDI_REDUCE, CDDP_FLOAT32), facts);
        expect(CDI_MEAN_AFTER, mean(CDI_REDUCE_SCATTER, CDDP_BFLOAT16), facts);
    }
}

/* NCCL has no such kernel, and does not check that before the launch. */
Test(mean, no_ncclavg_for_all_reduce_in_a_window)
{
    struct cdi_coll halves = mean(CDI_ALL_REDUCE, CDDP_FLOAT16);

    expect(CDI_MEAN_AFTER, mean(CDI_ALL_REDUCE, CDDP_FLOAT32), best);
    expect(CDI_MEAN_AFTER, mean(CDI_ALL_REDUCE, CDDP_BFLOAT16), best);
    expect(CDI_MEAN_BEFORE, halves, best);
    halves.bucket = -1;
    expect(CDI_MEAN_BEFORE, halves, best);
    halves.out = memory + 1;
    expect(CDI_MEAN_BEFORE, halves, best);
}

/* NCCL_SYM_NOWIN_ENABLE=1 has symmetric kernels without any. */
Test(mean, no_ncclavg_if_symmetric_kernels_may_run)
{
    struct cdi_mean_facts facts = best;
    struct cdi_coll op = mean(CDI_ALL_REDUCE, CDDP_FLOAT16);

    facts.window = false;
    op.bucket = -1;
    expect(CDI_MEAN_BEFORE, op, facts);
    op.out = memory + 1;
    expect(CDI_MEAN_BEFORE, op, facts);
    facts.n_nodes = 2;
    expect(CDI_MEAN_BY_NCCL, op, facts);
}

/* One rank may reduce in place while another does not, and NCCL needs the same reduction on both. */
Test(mean, float16_in_place_or_not_is_divided_alike)
{
    struct cdi_mean_facts facts = best;
    struct cdi_coll op = mean(CDI_ALL_REDUCE, CDDP_FLOAT16);

    facts.nccl_code = 22907;
    facts.window = false;
    op.bucket = -1;
    expect(CDI_MEAN_BY_NCCL, op, facts);
    op.out = memory + 1;
    expect(CDI_MEAN_BY_NCCL, op, facts);
}

Test(mean, doubles_have_no_symmetric_kernel)
{
    expect(CDI_MEAN_AFTER, mean(CDI_ALL_REDUCE, CDDP_FLOAT64), best);
}

Test(mean, float16_is_divided_before_the_sum)
{
    struct cdi_mean_facts facts = best;
    struct cdi_coll apart = mean(CDI_ALL_REDUCE, CDDP_FLOAT16);

    facts.nccl_code = 22809;
    expect(CDI_MEAN_BEFORE, mean(CDI_ALL_REDUCE, CDDP_FLOAT16), facts);
    apart.out = memory + 1; /* in belongs to the caller, and does not change */
    expect(CDI_MEAN_BY_NCCL, apart, facts);
    expect(CDI_MEAN_BY_NCCL, mean(CDI_REDUCE, CDDP_FLOAT16), facts);
    expect(CDI_MEAN_BY_NCCL, mean(CDI_REDUCE_SCATTER, CDDP_FLOAT16), facts);
    expect(CDI_MEAN_BEFORE, mean(CDI_REDUCE_SCATTER, CDDP_FLOAT16), best);
}

Test(mean, integers_are_divided_by_nccl)
{
    struct cdi_mean_facts facts = best;

    facts.nccl_code = 21903;
    facts.window = false;
    expect(CDI_MEAN_BY_NCCL, mean(CDI_ALL_REDUCE, CDDP_INT32), facts);
}

Test(mean, one_rank_and_other_operations_have_no_mean)
{
    struct cdi_mean_facts facts = best;
    struct cdi_coll sum = mean(CDI_ALL_REDUCE, CDDP_FLOAT32);

    sum.op = CDDP_SUM;
    expect(CDI_MEAN_NONE, sum, best);
    expect(CDI_MEAN_NONE, mean(CDI_ALL_GATHER, CDDP_FLOAT32), best);
    facts.n_ranks = 1;
    expect(CDI_MEAN_NONE, mean(CDI_ALL_REDUCE, CDDP_FLOAT32), facts);
}
