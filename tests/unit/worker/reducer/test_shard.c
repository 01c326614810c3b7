/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/reducer/layout/shard.h"

#include <stdlib.h>

CDI_SUITE(shard);

static struct cdi_bucket_plan plan_of(const size_t *counts, const cddp_dtype *dtypes, size_t n, size_t cap,
                                      size_t ranks)
{
    struct cdi_bucket_plan p;
    struct cdi_grad *g = calloc(n, sizeof *g);

    for (size_t i = 0; i < n; i++)
        g[i] = (struct cdi_grad){.bytes = counts[i] * cddp_dtype_size(dtypes[i]), .dtype = dtypes[i]};
    cr_assert_eq(
        cdi_bucket_plan_init(&p, g, n, &(struct cdi_bucket_caps){.first = cap, .cap = cap, .parts = ranks}, NULL),
        CDDP_OK);
    return p;
}

/* Checks that every element has one owner, in the order of the ranks. Returns the bytes of state of all ranks. */
static size_t expect_sound(const struct cdi_bucket_plan *p, const size_t *counts, size_t n)
{
    size_t *next = calloc(n, sizeof *next), sum = 0;
    struct cdi_shard *s = calloc(n, sizeof *s);

    for (int r = 0; r < (int)p->parts; r++) {
        struct cdi_shard_sizes sizes = cdi_shard_all(s, p, NULL, NULL, n, r);
        size_t state_end = 0;

        for (size_t i = 0; i < n; i++) {
            if (s[i].count == 0)
                continue;
            cr_assert_eq(s[i].lo, next[i], "rank %d of %zu: parameter %zu", r, p->parts, i);
            next[i] += s[i].count;
            /* No rank's part cuts a line of the norm (norm.c). */
            cr_assert_eq(s[i].lo * cddp_dtype_size(p->grads[i].dtype) % CDI_GRAD_ALIGN, 0);
            cr_assert_eq(s[i].state_at % CDI_GRAD_ALIGN, 0);
            cr_assert_geq(s[i].state_at, state_end);
            state_end = s[i].state_at + s[i].count * cdi_shard_state_size(p->grads[i].dtype);
            if (cdi_shard_has_master(p->grads[i].dtype))
                cr_assert_leq(s[i].master_at + s[i].count * sizeof(float), sizes.master);
        }
        cr_assert_leq(state_end, sizes.state);
        sum += sizes.state;
    }
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(next[i], counts[i], "parameter %zu of %zu ranks", i, p->parts);
    free(next);
    free(s);
    return sum;
}

Test(shard, every_element_has_one_owner)
{
    static const cddp_dtype types[] = {CDDP_FLOAT32, CDDP_FLOAT64, CDDP_BFLOAT16, CDDP_FLOAT16};
    size_t counts[12];
    cddp_dtype dtypes[12];
    unsigned dice = 7;

    for (int round = 0; round < 300; round++) {
        size_t n = 1 + (size_t)round % 12, ranks = 1 + (size_t)round % 9;
        struct cdi_bucket_plan p;

        for (size_t i = 0; i < n; i++) {
            dice = dice * 1103515245u + 12345u;
            counts[i] = 1 + (dice >> 16) % (round % 3 == 0 ? 5 : 3000);
            dtypes[i] = types[(dice >> 8) % 4];
        }
        p = plan_of(counts, dtypes, n, (size_t)round * 40 + 1, ranks);
        (void)expect_sound(&p, counts, n);
        cdi_bucket_plan_release(&p);
    }
}

Test(shard, large_world_has_ranks_without_elements)
{
    struct cdi_bucket_plan p = plan_of((size_t[]){3}, (cddp_dtype[]){CDDP_FLOAT64}, 1, 1, 8);
    struct cdi_shard s;

    cr_assert_eq(cdi_shard_all(&s, &p, NULL, NULL, 1, 0).state, 64);
    cr_assert_eq(s.count, 3);
    for (int r = 1; r < 8; r++) {
        cr_assert_eq(cdi_shard_all(&s, &p, NULL, NULL, 1, r).state, 0);
        cr_assert_eq(s.count, 0);
    }
    cdi_bucket_plan_release(&p);
}

Test(shard, shares_are_equal_except_for_padding)
{
    struct cdi_bucket_plan p =
        plan_of((size_t[]){1000003, 77}, (cddp_dtype[]){CDDP_FLOAT32, CDDP_FLOAT32}, 2, 1 << 20, 4);
    struct cdi_shard s[2];

    for (int r = 0; r < 4; r++) {
        size_t mine = cdi_shard_all(s, &p, NULL, NULL, 2, r).state;

        cr_assert(mine + 512 >= 1000080 && mine <= 1000080 + 512, "rank %d has %zu bytes", r, mine);
    }
    cdi_bucket_plan_release(&p);
}

Test(shard, independent_of_launch_order)
{
    size_t counts[] = {100, 200, 300}, to[3];
    cddp_dtype dtypes[] = {CDDP_FLOAT32, CDDP_FLOAT32, CDDP_FLOAT32};
    struct cdi_bucket_plan p = plan_of(counts, dtypes, 3, 1, 3);
    struct cdi_shard before[3], after[3];

    (void)cdi_shard_all(before, &p, NULL, NULL, 3, 1);
    cr_assert_eq(cdi_bucket_reorder(&p, (int32_t[]){0, 2, 1}, 3, to, NULL), CDDP_OK);
    (void)cdi_shard_all(after, &p, NULL, NULL, 3, 1);
    for (int i = 0; i < 3; i++)
        cr_assert(before[i].lo == after[i].lo && before[i].count == after[i].count &&
                  before[i].state_at == after[i].state_at);
    (void)expect_sound(&p, counts, 3);
    cdi_bucket_plan_release(&p);
}
