/* SPDX-License-Identifier: Apache-2.0 */
/* The offset of the server's clock from simulated round trips: delays in both directions, drift, a suspended node. */
#include "watch/trace/clock_align.h"

#include "hygiene.h"

#include <stdlib.h>

CDI_SUITE(clock_align);

#define US 1000LL
#define MS 1000000LL
#define S 1000000000LL

/* Two clocks; the server's runs drift_ppm faster. */
struct world {
    int64_t now_ns, offset_ns, drift_ppm;
};

static int64_t true_offset(const struct world *w)
{
    return w->offset_ns + w->now_ns / 1000000 * w->drift_ppm;
}

/* A round trip with these delays of the question, and of the answer. */
static void round_trip(struct world *w, struct clock_align *c, int64_t there_ns, int64_t back_ns)
{
    int64_t asked = w->now_ns, time;

    w->now_ns += there_ns;
    time = w->now_ns + true_offset(w);
    w->now_ns += back_ns;
    clock_align_add(c, 1, asked, time, w->now_ns);
}

/* The true offset is within the bound. Returns the bound. */
static int64_t check(const struct world *w, const struct clock_align *c)
{
    int64_t offset, bound;

    cr_assert(clock_align_get(c, w->now_ns, &offset, &bound));
    cr_assert_leq(llabs(offset - true_offset(w)), bound, "offset %lld instead of %lld, bound %lld", (long long)offset,
                  (long long)true_offset(w), (long long)bound);
    return bound;
}

Test(clock_align, nothing_is_known_at_first)
{
    struct clock_align c = {0};
    int64_t offset, bound;

    cr_assert_not(clock_align_get(&c, 5, &offset, &bound));
    clock_align_add(&c, 1, 10, 7, 9); /* ends before it begins */
    clock_align_add(&c, 0, 9, 7, 10); /* of no clock */
    cr_assert_not(clock_align_get(&c, 5, &offset, &bound));
}

Test(clock_align, one_round_trip_is_known_to_half_of_its_time)
{
    struct world w = {.now_ns = 50 * S, .offset_ns = 1000 * S};
    struct clock_align c = {0};

    round_trip(&w, &c, 100 * US, 100 * US);
    cr_assert_leq(check(&w, &c), 100 * US + 10);
}

Test(clock_align, all_delay_in_one_direction_is_within_the_bound)
{
    for (int way = 0; way < 2; way++) {
        struct world w = {.now_ns = 50 * S, .offset_ns = -3 * S};
        struct clock_align c = {0};

        for (int i = 0; i < 20; i++) {
            round_trip(&w, &c, way == 0 ? 9 * MS : 0, way == 0 ? 0 : 9 * MS);
            (void)check(&w, &c);
            w.now_ns += S;
        }
    }
}

Test(clock_align, delays_in_either_direction_narrow_the_interval)
{
    struct world w = {.now_ns = 50 * S, .offset_ns = 7 * S};
    struct clock_align c = {0};

    round_trip(&w, &c, 10 * MS, 20 * US);
    round_trip(&w, &c, 20 * US, 10 * MS);
    cr_assert_leq(check(&w, &c), 25 * US, "each round trip alone would leave 5 ms");
}

Test(clock_align, the_best_of_many_counts)
{
    struct world w = {.now_ns = 50 * S, .offset_ns = 7 * S};
    struct clock_align c = {0};

    for (int i = 0; i < 10; i++)
        round_trip(&w, &c, i == 4 ? 30 * US : (3 + i % 3) * MS, i == 4 ? 30 * US : (5 + i % 4) * MS);
    cr_assert_leq(check(&w, &c), 40 * US);
}

Test(clock_align, drift_stays_within_the_bound)
{
    for (int64_t ppm = -CLOCK_ALIGN_DRIFT_PPM; ppm <= CLOCK_ALIGN_DRIFT_PPM; ppm += 10) {
        struct world w = {.now_ns = 50 * S, .offset_ns = 7 * S, .drift_ppm = ppm};
        struct clock_align c = {0};

        for (int i = 0; i < 300; i++) {
            round_trip(&w, &c, (100 + i * 37 % 900) * US, (100 + i * 53 % 700) * US);
            cr_assert_lt(check(&w, &c), 2 * MS);
            w.now_ns += S;
            (void)check(&w, &c);
        }
        cr_assert_eq(c.n_resets, 0);
    }
}

Test(clock_align, drift_beyond_the_assumed_one_is_noticed)
{
    struct world w = {.now_ns = 50 * S, .offset_ns = 7 * S, .drift_ppm = 500};
    struct clock_align c = {0};

    for (int i = 0; i < 300; i++) {
        round_trip(&w, &c, 50 * US, 50 * US);
        w.now_ns += S;
    }
    cr_assert_gt(c.n_resets, 50);
    round_trip(&w, &c, 50 * US, 50 * US);
    cr_assert_lt(check(&w, &c), 1 * MS);
}

/* CLOCK_MONOTONIC stands still while a node is suspended. */
Test(clock_align, suspended_node_is_aligned_again)
{
    struct world w = {.now_ns = 50 * S, .offset_ns = 7 * S};
    struct clock_align c = {0};

    round_trip(&w, &c, 50 * US, 50 * US);
    w.offset_ns += 3600 * S;
    round_trip(&w, &c, 50 * US, 50 * US);
    cr_assert_eq(c.n_resets, 1);
    cr_assert_leq(check(&w, &c), 60 * US);
}

Test(clock_align, another_server_begins_anew)
{
    struct world w = {.now_ns = 50 * S, .offset_ns = 7 * S};
    struct clock_align c = {0};
    int64_t offset, bound;

    round_trip(&w, &c, 50 * US, 50 * US);
    clock_align_add(&c, 2, w.now_ns, 20 * S, w.now_ns + 2 * MS);
    cr_assert(clock_align_get(&c, w.now_ns + 2 * MS, &offset, &bound));
    cr_assert(c.of == 2 && bound >= MS && bound < MS + 10 && c.n_resets == 0);
}
