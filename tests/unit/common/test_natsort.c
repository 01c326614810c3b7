/* SPDX-License-Identifier: Apache-2.0 */
/* Natural sort order: ordered pairs, and the laws of an order over all of them. */
#include "common/natsort.h"
#include "hygiene.h"

CDI_SUITE(natural);

/* In order. */
static const char *const names[] = {"",
                                    "0",
                                    "7",
                                    "10",
                                    "a",
                                    "a0",
                                    "a00",
                                    "a01",
                                    "a1",
                                    "a1-2",
                                    "a1-10",
                                    "a1b",
                                    "a2",
                                    "a10",
                                    "a10b3",
                                    "a10b20",
                                    "a9999999999999999999999",
                                    "a10000000000000000000000",
                                    "ab",
                                    "node2",
                                    "node10",
                                    "node10.rack3",
                                    "node10.rack12",
                                    "\xc3\xa9"};
#define N (sizeof names / sizeof names[0])

static int sign(int n)
{
    return (n > 0) - (n < 0);
}

Test(natural, compares_digits_as_numbers)
{
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < N; k++)
            cr_assert_eq(sign(cdi_natsort_cmp(names[i], names[k])), (i > k) - (i < k), "'%s' and '%s'", names[i],
                         names[k]);
}
