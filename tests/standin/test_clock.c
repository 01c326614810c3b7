/* SPDX-License-Identifier: Apache-2.0 */
#include "clock.h"
#include "hygiene.h"

CDI_SUITE(clock);

static struct si_access use(size_t begin, size_t end, bool write, unsigned actor, uint64_t time)
{
    return (struct si_access){.begin = begin, .end = end, .write = write, .actor = actor, .time = time};
}

/* Adds a use by an actor that knows only itself, and `other` up to `known`. */
static bool add(struct si_history *h, struct si_access a, unsigned other, uint64_t known)
{
    struct si_clock now = {0};
    struct si_access with;

    now.t[a.actor] = a.time;
    now.t[other] = known;
    return si_history_add(h, &a, &now, &with);
}

Test(clock, join_takes_the_later_clock)
{
    struct si_clock a = {.t = {1, 5, 0}}, b = {.t = {2, 4, 7}};

    si_clock_join(&a, &b);
    cr_assert_eq(a.t[0], 2);
    cr_assert_eq(a.t[1], 5);
    cr_assert_eq(a.t[2], 7);
}

Test(clock, read_after_unordered_write_conflicts)
{
    struct si_history h = {0};

    cr_assert_not(add(&h, use(0, 10, true, 1, 3), 2, 0));
    cr_assert(add(&h, use(9, 20, false, 2, 1), 1, 2), "write 3 of actor 1 is not known to be done");
    si_history_release(&h);
}

Test(clock, ordered_or_disjoint_writes_do_not_conflict)
{
    struct si_history h = {0};

    cr_assert_not(add(&h, use(0, 10, true, 1, 3), 2, 0));
    cr_assert_not(add(&h, use(0, 10, false, 2, 1), 1, 3));
    cr_assert_not(add(&h, use(10, 20, true, 3, 1), 1, 0));
    si_history_release(&h);
}

Test(clock, write_conflicts_with_each_read)
{
    struct si_history h = {0};

    cr_assert_not(add(&h, use(0, 10, false, 1, 1), 2, 0));
    cr_assert_not(add(&h, use(0, 10, false, 2, 1), 1, 0));
    cr_assert(add(&h, use(5, 6, true, 3, 1), 1, 1), "the read of actor 2 is not known to be done");
    si_history_release(&h);
}

Test(clock, write_replaces_covered_records_only)
{
    struct si_history h = {0};

    cr_assert_not(add(&h, use(0, 30, true, 1, 1), 2, 0));
    cr_assert_not(add(&h, use(10, 20, true, 1, 2), 2, 0));
    cr_assert_eq(h.n, 3, "[0,10) and [20,30) of the first, [10,20) of the second");
    cr_assert_not(add(&h, use(20, 30, false, 2, 1), 1, 1), "the first is known to be done");
    cr_assert(add(&h, use(15, 16, false, 2, 2), 1, 1), "the second is not");
    si_history_release(&h);
}

Test(clock, loop_does_not_grow_history)
{
    struct si_history h = {0};

    for (uint64_t i = 1; i < 1000; i++) {
        cr_assert_not(add(&h, use(0, 64, true, 1, i), 2, i - 1));
        cr_assert_not(add(&h, use(0, 32, false, 2, i), 1, i));
        cr_assert_not(add(&h, use(32, 64, false, 2, i), 1, i));
    }
    cr_assert_leq(h.n, 3);
    si_history_release(&h);
}
