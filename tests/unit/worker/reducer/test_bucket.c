/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/reducer/layout/bucket.h"

#include <stdint.h>
#include <string.h>

CDI_SUITE(bucket);

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

/* Makes a plan for n gradients of these sizes; dtypes NULL: all of one type. */
static struct cdi_bucket_plan plan_with(const size_t *bytes, const cddp_dtype *dtypes, size_t n,
                                        struct cdi_bucket_caps caps)
{
    struct cdi_bucket_plan p;
    struct cdi_grad *g = calloc(n, sizeof *g);

    for (size_t i = 0; i < n; i++)
        g[i] = (struct cdi_grad){.bytes = bytes[i], .dtype = dtypes == NULL ? CDDP_FLOAT32 : dtypes[i]};
    cr_assert_eq(cdi_bucket_plan_init(&p, g, n, &caps, NULL), CDDP_OK);
    return p;
}

static struct cdi_bucket_plan plan_of(const size_t *bytes, const cddp_dtype *dtypes, size_t n, size_t first, size_t cap)
{
    return plan_with(bytes, dtypes, n, (struct cdi_bucket_caps){.first = first, .cap = cap, .parts = 1});
}

static size_t ready(struct cdi_bucket_plan *p, size_t i)
{
    size_t k;

    cr_assert(cdi_bucket_claim(p, i));
    k = cdi_bucket_grad_ready(p, i);
    for (size_t j = 0; j < k; j++)
        cdi_bucket_launched(p);
    return k;
}

Test(bucket, places_last_parameter_first)
{
    struct cdi_bucket_plan p = plan_of((size_t[]){256, 128, 64}, NULL, 3, MIB, 25 * MIB);

    cr_assert_eq(p.n, 1);
    cr_assert_eq(p.grads[2].offset, 0);
    cr_assert_eq(p.grads[1].offset, 64);
    cr_assert_eq(p.grads[0].offset, 192);
    cr_assert_eq(p.b[0].bytes, 448);
    cdi_bucket_plan_release(&p);
}

Test(bucket, aligns_gradients_to_64_bytes)
{
    struct cdi_bucket_plan p = plan_of((size_t[]){4, 68, 4}, NULL, 3, MIB, 25 * MIB);

    cr_assert_eq(p.grads[2].offset, 0);
    cr_assert_eq(p.grads[1].offset, 64);
    cr_assert_eq(p.grads[0].offset, 192);
    cr_assert_eq(p.b[0].bytes, 196, "padding after the last one is not reduced");
    cr_assert_eq(p.arena_bytes, 256);
    cdi_bucket_plan_release(&p);
}

Test(bucket, closes_bucket_at_or_above_cap)
{
    /* Backward order: 600 KiB, 600 KiB | 20 MiB, 20 MiB | 1 MiB. */
    struct cdi_bucket_plan p =
        plan_of((size_t[]){MIB, 20 * MIB, 20 * MIB, 600 * KIB, 600 * KIB}, NULL, 5, MIB, 25 * MIB);

    cr_assert_eq(p.n, 3);
    cr_assert_eq(p.b[0].bytes, 1200 * KIB, "the first one closes at 1 MiB");
    cr_assert_eq(p.b[1].bytes, 40 * MIB, "20 MiB is below 25, so one more goes in");
    cr_assert_eq(p.b[2].bytes, MIB, "the rest");
    cdi_bucket_plan_release(&p);
}

Test(bucket, closes_bucket_exactly_at_cap)
{
    struct cdi_bucket_plan p = plan_of((size_t[]){64, 64, 64, 64}, NULL, 4, 64, 128);

    cr_assert_eq(p.n, 3);
    cr_assert_eq(p.b[0].n_grads, 1);
    cr_assert_eq(p.b[1].n_grads, 2);
    cr_assert_eq(p.b[2].n_grads, 1);
    cdi_bucket_plan_release(&p);
}

Test(bucket, cuts_recorded_layers_like_torch)
{
    /* Linear(1024, 2048), five times Linear(2048, 2048), Linear(2048, 1000), weights and biases; seen with torch 2.13.
     */
    size_t bytes[14];
    const size_t want[] = {8196000, 33570816, 33570816, 25182208};
    struct cdi_bucket_plan p;

    for (int i = 0; i < 6; i++) {
        bytes[2 * i] = 2048 * 2048 * 4;
        bytes[2 * i + 1] = 2048 * 4;
    }
    bytes[0] = 1024 * 2048 * 4;
    bytes[12] = 1000 * 2048 * 4;
    bytes[13] = 1000 * 4;
    p = plan_of(bytes, NULL, 14, MIB, 25 * MIB);
    cr_assert_eq(p.n, 4);
    for (size_t b = 0; b < 4; b++) {
        size_t payload = 0;

        for (size_t i = 0; i < 14; i++)
            payload += p.grads[i].bucket == b ? bytes[i] : 0;
        cr_assert_eq(payload, want[b], "bucket %zu has %zu bytes", b, payload);
    }
    cdi_bucket_plan_release(&p);
}

Test(bucket, separates_types)
{
    /* Backward order: f64, f32, f64 (closes the f64 bucket), f32. */
    struct cdi_bucket_plan p =
        plan_of((size_t[]){64, 512, 64, 512}, (cddp_dtype[]){CDDP_FLOAT32, CDDP_FLOAT64, CDDP_FLOAT32, CDDP_FLOAT64}, 4,
                1024, 4096);

    cr_assert_eq(p.n, 2);
    cr_assert_eq(p.b[0].dtype, CDDP_FLOAT64, "it reached its cap first");
    cr_assert_eq(p.b[1].dtype, CDDP_FLOAT32, "it never did");
    cr_assert_eq(p.grads[3].bucket, 0);
    cr_assert_eq(p.grads[1].bucket, 0);
    cr_assert_eq(p.grads[2].bucket, 1);
    cr_assert_eq(p.grads[0].bucket, 1);
    cr_assert_eq(p.b[1].offset, 0, "in the arena, types are in the order of their numbers");
    cr_assert_eq(p.b[0].offset, 128);
    cdi_bucket_plan_release(&p);
}

Test(bucket, launches_open_buckets_by_first_gradient)
{
    struct cdi_bucket_plan p =
        plan_of((size_t[]){8, 8, 2}, (cddp_dtype[]){CDDP_FLOAT32, CDDP_FLOAT64, CDDP_BFLOAT16}, 3, MIB, MIB);

    cr_assert_eq(p.n, 3);
    cr_assert_eq(p.b[0].dtype, CDDP_BFLOAT16);
    cr_assert_eq(p.b[1].dtype, CDDP_FLOAT64);
    cr_assert_eq(p.b[2].dtype, CDDP_FLOAT32);
    cdi_bucket_plan_release(&p);
}

Test(bucket, splits_large_gradient_evenly)
{
    /* Backward order: 64 | 1000, in pieces of 384, 384 and 232 | 64 and 128. */
    struct cdi_bucket_plan p = plan_with((size_t[]){128, 64, 1000, 64}, NULL, 4,
                                         (struct cdi_bucket_caps){.first = 400, .cap = 400, .split = true, .parts = 1});
    static const size_t want[] = {64, 384, 384, 232, 192};

    cr_assert_eq(p.n, 5);
    for (size_t b = 0; b < 5; b++)
        cr_assert_eq(p.b[b].bytes, want[b], "bucket %zu has %zu bytes", b, p.b[b].bytes);
    cr_assert(p.grads[2].bucket == 1 && p.grads[2].n_parts == 3 && p.grads[2].offset == 64);
    cr_assert_eq(ready(&p, 2), 0, "all three wait for their turn");
    cr_assert_eq(ready(&p, 3), 4);
    cr_assert_eq(ready(&p, 0), 0);
    cr_assert_eq(ready(&p, 1), 1);
    cdi_bucket_plan_release(&p);
}

Test(bucket, reorder_keeps_pieces_together)
{
    struct cdi_bucket_plan p = plan_with((size_t[]){64, 1000, 64}, NULL, 3,
                                         (struct cdi_bucket_caps){.first = 64, .cap = 400, .split = true, .parts = 1});
    size_t to[5];

    cr_assert_eq(p.n, 5);
    cr_assert_eq(cdi_bucket_reorder(&p, (int32_t[]){0, 1, 2}, 3, to, NULL), CDDP_OK);
    cr_assert(p.grads[0].bucket == 0 && p.grads[1].bucket == 1 && p.grads[2].bucket == 4);
    cr_assert(to[0] == 4 && to[1] == 1 && to[2] == 2 && to[3] == 3 && to[4] == 0);
    cr_assert(p.b[1].offset == 64 && p.b[2].offset == 448 && p.b[3].offset == 832);
    cdi_bucket_plan_release(&p);
}

Test(bucket, makes_small_last_bucket)
{
    /* Backward order: 300, 300 | 300, 300; of the latter only the last one is in a bucket by itself. */
    static const size_t bytes[] = {256, 256, 256, 256};
    struct cdi_bucket_plan p =
        plan_with(bytes, NULL, 4, (struct cdi_bucket_caps){.first = 512, .cap = 512, .last = 100, .parts = 1});

    cr_assert_eq(p.n, 3);
    cr_assert(p.b[0].n_grads == 2 && p.b[1].n_grads == 1 && p.b[2].n_grads == 1);
    cr_assert_eq(p.grads[0].bucket, 2);
    cdi_bucket_plan_release(&p);
    p = plan_with(bytes, NULL, 4, (struct cdi_bucket_caps){.first = 512, .cap = 512, .last = 5000, .parts = 1});
    cr_assert_eq(p.n, 1, "the whole model is smaller than that");
    cdi_bucket_plan_release(&p);
    p = plan_with((size_t[]){64, 64, 64, 64}, (cddp_dtype[]){CDDP_FLOAT32, CDDP_FLOAT64, CDDP_FLOAT32, CDDP_FLOAT64}, 4,
                  (struct cdi_bucket_caps){.first = MIB, .cap = MIB, .last = 1, .parts = 1});
    cr_assert_eq(p.n, 4, "each type has one");
    cr_assert(p.grads[1].bucket == 2 && p.grads[0].bucket == 3);
    cdi_bucket_plan_release(&p);
}

Test(bucket, frozen_gradients_have_separate_buckets_after_all_others)
{
    static const size_t unit[] = {0, 0, 0, 1, 1};
    struct cdi_grad *g = calloc(5, sizeof *g);
    struct cdi_bucket_caps caps = {.first = MIB, .cap = MIB, .parts = 2, .unit = unit};
    struct cdi_bucket_plan p;

    for (size_t i = 0; i < 5; i++)
        g[i] = (struct cdi_grad){.bytes = 64, .dtype = CDDP_FLOAT32, .frozen = i != 1 && i != 3};
    cr_assert_eq(cdi_bucket_plan_init(&p, g, 5, &caps, NULL), CDDP_OK);
    cr_assert(p.n == 4 && p.ahead == 2 && p.arena_bytes == 4 * 128 && p.made_bytes == 2 * 128);
    cr_assert(g[3].bucket == 0 && g[1].bucket == 1 && g[4].bucket == 2 && g[0].bucket == 3 && g[2].bucket == 3);
    cr_assert(p.b[0].offset == 0 && p.b[1].offset == 128 && p.b[2].offset == 256 && p.b[3].offset == 384);
    for (int step = 0; step < 2; step++) {
        cr_assert_eq(ready(&p, 3), 1);
        cr_assert_not(cdi_bucket_all_launched(&p));
        cr_assert_eq(ready(&p, 1), 1);
        cdi_bucket_next_step(&p);
    }
    cdi_bucket_plan_release(&p);
}

Test(bucket, parameters_of_half_the_bytes_have_a_layout_like_their_gradients)
{
    static const size_t unit[] = {0, 0, 0};
    struct cdi_grad *g = calloc(3, sizeof *g);
    struct cdi_bucket_caps caps = {.first = MIB, .cap = MIB, .parts = 3, .unit = unit};
    struct cdi_bucket_plan p;

    for (size_t i = 0; i < 3; i++)
        g[i] = (struct cdi_grad){.bytes = 100, .dtype = CDDP_FLOAT32, .held = i == 1 ? CDDP_FLOAT32 : CDDP_BFLOAT16};
    cr_assert_eq(cdi_bucket_plan_init(&p, g, 3, &caps, NULL), CDDP_OK);
    cr_assert(p.n == 2 && p.ahead == 2 && g[0].bucket == 0 && g[2].bucket == 0 && g[1].bucket == 1);
    cr_assert(p.b[0].held == CDDP_BFLOAT16 && p.b[0].room == 384 && p.b[0].held_room == 192);
    cr_assert(p.b[1].held == CDDP_FLOAT32 && p.b[1].room == 192 && p.b[1].held_room == 192);
    cr_assert(g[0].offset - p.b[0].offset == 128 && g[2].offset == p.b[0].offset);
    cr_assert(p.arena_bytes == 576 && p.made_bytes == 576 && p.held_bytes == 384);
    cdi_bucket_plan_release(&p);
}

Test(bucket, launches_in_order)
{
    struct cdi_bucket_plan p = plan_of((size_t[]){64, 64, 64}, NULL, 3, 128, 64);

    /* Bucket 0 holds gradients 2 and 1, bucket 1 gradient 0. */
    cr_assert_eq(ready(&p, 2), 0);
    cr_assert_eq(ready(&p, 0), 0, "bucket 1 is full, but bucket 0 is not");
    cr_assert_eq(p.b[1].state, CDI_BUCKET_READY);
    cr_assert_not(cdi_bucket_all_launched(&p));
    cr_assert_eq(ready(&p, 1), 2, "now both may fly, 0 first");
    cr_assert_eq(p.b[0].state, CDI_BUCKET_FLYING);
    cr_assert(cdi_bucket_all_launched(&p));
    cdi_bucket_plan_release(&p);
}

Test(bucket, claims_gradient_once_per_step)
{
    struct cdi_bucket_plan p = plan_of((size_t[]){64, 64}, NULL, 2, MIB, MIB);

    cr_assert(cdi_bucket_claim(&p, 1));
    cr_assert_not(cdi_bucket_claim(&p, 1));
    (void)cdi_bucket_grad_ready(&p, 1);
    cr_assert_eq(ready(&p, 0), 1);
    cdi_bucket_next_step(&p);
    cr_assert_eq(ready(&p, 1), 0);
    cr_assert_eq(ready(&p, 0), 1, "the next step is as the first");
    cdi_bucket_plan_release(&p);
}

Test(bucket, rejects_sizes_beyond_address_space)
{
    struct cdi_grad g[3] = {{.bytes = SIZE_MAX / 4, .dtype = CDDP_FLOAT32},
                            {.bytes = SIZE_MAX / 4, .dtype = CDDP_FLOAT32},
                            {.bytes = 64, .dtype = CDDP_FLOAT32}};
    struct cdi_bucket_caps caps = {.first = MIB, .cap = MIB, .parts = 1};
    struct cdi_bucket_plan p;
    struct cdi_error err;

    cr_assert_eq(cdi_bucket_plan_init(&p, g, 3, &caps, &err), CDDP_E_NOMEM);
    cr_assert(strstr(err.msg, "3 gradients") != NULL);
    g[0].bytes = SIZE_MAX;
    cr_assert_eq(cdi_bucket_plan_init(&p, g, 1, &caps, &err), CDDP_E_NOMEM);
    caps.parts = SIZE_MAX / 2;
    cr_assert_eq(cdi_bucket_plan_init(&p, g + 2, 1, &caps, &err), CDDP_E_NOMEM);
}

/* ------------------------------------------------------------------------------------------------ properties ---- */

static uint64_t seed;

static size_t dice(size_t n) /* 0 .. n-1; xorshift64* */
{
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (size_t)((seed * UINT64_C(2685821657736338717)) >> 33) % n;
}

static struct cdi_bucket_plan random_plan(size_t *bytes, cddp_dtype *dtypes, size_t n, size_t parts)
{
    static const cddp_dtype types[] = {CDDP_FLOAT32, CDDP_FLOAT64, CDDP_BFLOAT16};
    size_t n_types = 1 + dice(3);
    struct cdi_bucket_caps caps = {.first = 1 + dice(4000), .cap = 1 + dice(20000), .split = dice(2) == 0};

    caps.last = dice(2) == 0 ? 0 : dice(10000);

    for (size_t i = 0; i < n; i++) {
        dtypes[i] = types[dice(n_types)];
        bytes[i] = (1 + dice(dice(4) == 0 ? 3000 : 40)) * cddp_dtype_size(dtypes[i]);
    }
    caps.parts = caps.split ? 1 : parts;
    return plan_with(bytes, dtypes, n, caps);
}

/* Each bucket lists exactly its gradients, in the order of the arena. */
static void expect_lists(const struct cdi_bucket_plan *p)
{
    for (size_t b = 0; b < p->n; b++) {
        size_t n = 0;

        for (size_t i = 0; i < p->n_grads; i++)
            n += b >= p->grads[i].bucket && b < p->grads[i].bucket + p->grads[i].n_parts;
        cr_assert_eq(p->b[b].n_grads, n);
        for (size_t k = 0; k < n; k++) {
            const struct cdi_grad *g = &p->grads[cdi_bucket_grad(p, b, k)];

            cr_assert(b >= g->bucket && b < g->bucket + g->n_parts, "bucket %zu, gradient %zu of it", b, k);
            cr_assert(k == 0 || g->offset > p->grads[cdi_bucket_grad(p, b, k - 1)].offset);
        }
    }
}

static void expect_sound_layout(const struct cdi_bucket_plan *p, const size_t *bytes, const cddp_dtype *dtypes)
{
    size_t sum = 0, *in_bucket = calloc(p->n, sizeof *in_bucket);
    uint8_t *used = calloc(p->arena_bytes, 1), *reduced = calloc(p->arena_bytes, 1);

    for (size_t i = 0; i < p->n_grads; i++) {
        const struct cdi_grad *g = &p->grads[i];
        const struct cdi_bucket *b = &p->b[g->bucket];

        cr_assert_eq(g->bytes, bytes[i]);
        cr_assert_eq(g->offset % CDI_GRAD_ALIGN, 0, "gradient %zu is not aligned", i);
        cr_assert_eq(b->dtype, dtypes[i]);
        cr_assert(g->offset >= b->offset, "gradient %zu", i);
        for (size_t k = 1; k < g->n_parts; k++)
            cr_assert_eq(b[k - 1].offset + b[k - 1].bytes, b[k].offset, "its pieces follow one another");
        cr_assert(g->offset + g->bytes <= b[g->n_parts - 1].offset + b[g->n_parts - 1].bytes, "gradient %zu", i);
        for (size_t k = 0; k < g->bytes; k++)
            cr_assert_eq(used[g->offset + k]++, 0, "gradient %zu overlaps another", i);
        for (size_t k = 0; k < g->n_parts; k++)
            in_bucket[g->bucket + k]++;
    }
    for (size_t b = 0; b < p->n; b++) {
        for (size_t k = 0; k < p->b[b].bytes; k++)
            cr_assert_eq(reduced[p->b[b].offset + k]++, 0, "bucket %zu overlaps another", b);
        cr_assert_eq(p->b[b].bytes % cddp_dtype_size(p->b[b].dtype), 0, "whole elements");
        cr_assert_eq(in_bucket[b], p->b[b].n_grads);
        cr_assert_gt(in_bucket[b], 0);
        cr_assert_eq(p->b[b].room % (p->parts * CDI_GRAD_ALIGN), 0, "equal, aligned parts");
        cr_assert(p->b[b].room >= p->b[b].bytes && p->b[b].room < p->b[b].bytes + p->parts * CDI_GRAD_ALIGN);
        sum += p->b[b].room;
    }
    cr_assert_eq(sum, p->arena_bytes, "buckets leave no gap but padding");
    for (size_t k = 0; k < p->arena_bytes; k++)
        cr_assert(!used[k] || reduced[k], "byte %zu is of a gradient, and of no bucket", k);
    free(used);
    free(reduced);
    free(in_bucket);
}

Test(bucket, random_layouts_are_aligned_and_disjoint)
{
    size_t bytes[60];
    cddp_dtype dtypes[60];

    for (uint64_t round = 1; round <= 300; round++) {
        struct cdi_bucket_plan p;
        size_t n;

        seed = round * UINT64_C(0x9e3779b97f4a7c15);
        n = 1 + dice(60);
        p = random_plan(bytes, dtypes, n, 1 + dice(5));
        expect_sound_layout(&p, bytes, dtypes);
        expect_lists(&p);
        cdi_bucket_plan_release(&p);
    }
}

Test(bucket, random_ready_orders_launch_in_order)
{
    size_t bytes[40], order[40];
    cddp_dtype dtypes[40];

    for (uint64_t round = 1; round <= 300; round++) {
        struct cdi_bucket_plan p;
        size_t n, launched = 0;

        seed = round * UINT64_C(0xd1342543de82ef95);
        n = 1 + dice(40);
        p = random_plan(bytes, dtypes, n, 1 + dice(5));
        for (size_t i = 0; i < n; i++) {
            size_t j = dice(i + 1);

            order[i] = order[j];
            order[j] = i;
        }
        for (size_t i = 0; i < n; i++) {
            cr_assert_eq(p.next, launched);
            launched += ready(&p, order[i]);
            for (size_t b = 0; b < p.n; b++)
                cr_assert_eq(p.b[b].state == CDI_BUCKET_FLYING, b < launched, "a gap in front of bucket %zu", b);
        }
        cr_assert_eq(launched, p.n);
        cdi_bucket_plan_release(&p);
    }
}

/* Heap's algorithm, so that all 5040 orders are tested. */
Test(bucket, all_ready_orders_of_seven_launch_in_order)
{
    size_t a[7] = {0, 1, 2, 3, 4, 5, 6}, c[7] = {0}, i = 0, n_orders = 0;
    struct cdi_bucket_plan p = plan_of((size_t[]){64, 64, 128, 64, 64, 64, 256}, NULL, 7, 64, 128);

    cr_assert_eq(p.n, 4);
    while (i < 7) {
        if (n_orders == 0 || c[i] < i) {
            size_t launched = 0;

            if (n_orders > 0) {
                size_t j = i % 2 == 0 ? 0 : c[i], t = a[j];

                a[j] = a[i];
                a[i] = t;
                c[i]++;
                i = 0;
            }
            n_orders++;
            for (size_t k = 0; k < 7; k++) {
                launched += ready(&p, a[k]);
                cr_assert_eq(p.next, launched);
            }
            cr_assert(cdi_bucket_all_launched(&p));
            cdi_bucket_next_step(&p);
        } else {
            c[i++] = 0;
        }
    }
    cr_assert_eq(n_orders, 5040);
    cdi_bucket_plan_release(&p);
}

Test(bucket, reorder_keeps_arena_layout)
{
    /* Buckets: {3}, {2}, {1, 0}. */
    struct cdi_bucket_plan p = plan_of((size_t[]){32, 32, 64, 64}, NULL, 4, 64, 64);
    size_t offsets[4], to[3];

    cr_assert_eq(p.n, 3);
    for (size_t i = 0; i < 4; i++)
        offsets[i] = p.grads[i].offset;
    /* The second bucket is complete first; the last one before the first. */
    cr_assert_eq(cdi_bucket_reorder(&p, (int32_t[]){1, 2, 0, 3}, 4, to, NULL), CDDP_OK);
    cr_assert(to[0] == 2 && to[1] == 0 && to[2] == 1);
    for (size_t i = 0; i < 4; i++)
        cr_assert_eq(p.grads[i].offset, offsets[i]);
    cr_assert(p.grads[2].bucket == 0 && p.grads[0].bucket == 1 && p.grads[1].bucket == 1 && p.grads[3].bucket == 2);
    cr_assert_eq(p.b[0].offset, offsets[2]);
    expect_lists(&p);
    cr_assert_eq(ready(&p, 2), 1);
    cr_assert_eq(ready(&p, 3), 0, "its turn is last now");
    cr_assert_eq(ready(&p, 1), 0);
    cr_assert_eq(ready(&p, 0), 2);
    cdi_bucket_plan_release(&p);
}

Test(bucket, rejects_order_with_invalid_gradient)
{
    struct cdi_bucket_plan p = plan_of((size_t[]){64, 64}, NULL, 2, 64, 64);
    struct cdi_error err;
    size_t to[2];

    cr_assert_eq(cdi_bucket_reorder(&p, (int32_t[]){0, 2}, 2, to, &err), CDDP_E_PROTOCOL);
    cr_assert_str_eq(err.msg, "rank 0's order of gradients names gradient 2 of 2");
    cr_assert_eq(cdi_bucket_reorder(&p, (int32_t[]){-1, 1}, 2, to, &err), CDDP_E_PROTOCOL);
    cr_assert_eq(p.grads[1].bucket, 0);
    cdi_bucket_plan_release(&p);
}

Test(bucket, layout_is_independent_of_caps)
{
    size_t bytes[40], offsets[40];
    cddp_dtype dtypes[40];

    for (uint64_t round = 1; round <= 100; round++) {
        struct cdi_bucket_plan p;

        seed = round * UINT64_C(0x9e3779b97f4a7c15);
        p = random_plan(bytes, dtypes, 40, 1);
        for (size_t i = 0; i < 40; i++)
            offsets[i] = p.grads[i].offset;
        cdi_bucket_plan_release(&p);
        p = plan_of(bytes, dtypes, 40, MIB, MIB);
        for (size_t i = 0; i < 40; i++)
            cr_assert_eq(p.grads[i].offset, offsets[i]);
        cdi_bucket_plan_release(&p);
    }
}
