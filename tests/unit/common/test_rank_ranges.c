/* SPDX-License-Identifier: Apache-2.0 */
#include "common/rank_ranges.h"
#include "hygiene.h"

#include <limits.h>
#include <string.h>

CDI_SUITE(rank_ranges);

static char text[64];

static const char *of(const char *bits, size_t cap, unsigned most)
{
    struct cdi_rank_ranges g;

    cdi_rank_ranges_begin(&g, text, cap, most);
    for (uint32_t i = 0; bits[i] != '\0'; i++)
        if (bits[i] == 'x')
            cdi_rank_ranges_add(&g, i);
    cr_assert_eq(cdi_rank_ranges_end(&g), strlen(text));
    return text;
}

Test(rank_ranges, three_and_more_are_a_range)
{
    cr_assert_str_eq(of("", sizeof text, UINT_MAX), "");
    cr_assert_str_eq(of("...x", sizeof text, UINT_MAX), "3");
    cr_assert_str_eq(of("xx.xxx", sizeof text, UINT_MAX), "0, 1, 3-5");
}

Test(rank_ranges, ranks_keep_their_order_and_count_once)
{
    const uint32_t ranks[] = {7, 3, 4, 4, 5, 0};
    struct cdi_rank_ranges g;

    cdi_rank_ranges_begin(&g, text, sizeof text, UINT_MAX);
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++)
        cdi_rank_ranges_add(&g, ranks[i]);
    (void)cdi_rank_ranges_end(&g);
    cr_assert_str_eq(text, "7, 3-5, 0");
}

Test(rank_ranges, those_without_room_are_counted)
{
    cr_assert_str_eq(of("x.x.x.xxx", sizeof text, 2), "0, 2 and 4 more");
    cr_assert_str_eq(of("x.x.x.x.x.x", 32, UINT_MAX), "0, 2, 4, 6 and 2 more");
    cr_assert_lt(strlen(text), 32);
}

Test(rank_ranges, the_largest_numbers_fit)
{
    struct cdi_rank_ranges g;

    cdi_rank_ranges_begin(&g, text, sizeof text, UINT_MAX);
    cdi_rank_ranges_add(&g, UINT32_MAX - 1);
    cdi_rank_ranges_add(&g, UINT32_MAX);
    (void)cdi_rank_ranges_end(&g);
    cr_assert_str_eq(text, "4294967294, 4294967295");
}
