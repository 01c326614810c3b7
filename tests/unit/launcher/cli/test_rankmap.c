/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/cli/rankmap.h"

#include <stdlib.h>
#include <string.h>

CDI_SUITE(rankmap);

Test(rankmap, map_is_number_or_list_by_rank)
{
    static const char *const good[] = {"0", "3", "0:1", "0:1,12:3", "4095:2"};
    static const char *const bad[] = {"",     "4",    "33",  "0:",   "0:4",    ":1",      "0:1,",
                                      ",0:1", "0:1 ", "x:1", "-1:1", "4096:1", "0:1;1:2", "99999999999999999999:1"};
    struct cdi_error err;

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        cr_expect_eq(rankmap_check(good[i], "--tee", &err), CDDP_OK, "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(rankmap_check(bad[i], "--tee", &err), CDDP_E_INVALID, "%s", bad[i]);
        cr_expect_not_null(strstr(err.msg, "--tee '"), "%s", err.msg);
    }
}

Test(rankmap, map_returns_streams_of_local_rank)
{
    cr_assert_eq(rankmap_streams("3", 77), RANKMAP_STDOUT | RANKMAP_STDERR);
    cr_assert_eq(rankmap_streams("0", 0), 0);
    cr_assert_eq(rankmap_streams("0:1,12:3,2:2", 0), RANKMAP_STDOUT);
    cr_assert_eq(rankmap_streams("0:1,12:3,2:2", 12), RANKMAP_STDOUT | RANKMAP_STDERR);
    cr_assert_eq(rankmap_streams("0:1,12:3,2:2", 2), RANKMAP_STDERR);
    cr_assert_eq(rankmap_streams("0:1,12:3,2:2", 1), 0);
    cr_assert_eq(rankmap_streams("1:1,1:2", 1), RANKMAP_STDERR, "the last one counts");
}

Test(rankmap, set_is_list_and_null_has_all)
{
    struct cdi_error err;

    cr_assert_eq(rankset_check("0", "--local_ranks_filter", &err), CDDP_OK);
    cr_assert_eq(rankset_check("3,10,0", "--local_ranks_filter", &err), CDDP_OK);
    cr_assert_eq(rankset_check("", "--local_ranks_filter", &err), CDDP_E_INVALID);
    cr_assert_eq(rankset_check("1,", "--local_ranks_filter", &err), CDDP_E_INVALID);
    cr_assert_eq(rankset_check("1 2", "--local_ranks_filter", &err), CDDP_E_INVALID);
    cr_assert(rankset_has(NULL, 5));
    cr_assert(rankset_has("3,10,0", 10));
    cr_assert(rankset_has("3,10,0", 0));
    cr_assert_not(rankset_has("3,10,0", 1));
}

/* The words of filters with | between them. */
static const char *cut(const char *filters)
{
    static char words[64];
    unsigned n = rankmap_filters(filters, words);
    char *w = words;

    for (unsigned i = 0; i < n; i++) {
        w += strlen(w);
        *w = i + 1 < n ? '|' : '\0';
    }
    return n == 0 ? "" : words;
}

Test(rankmap, filters_split_at_single_commas)
{
    cr_assert_str_eq(cut("apple,orange"), "apple|orange");
    cr_assert_str_eq(cut("a,,b,c"), "a,b|c");
    cr_assert_str_eq(cut(""), "");
    cr_assert_str_eq(cut(",x,"), "x");
    cr_assert_str_eq(cut("loss = "), "loss = ");
}

Test(rankmap, detects_map_without_streams)
{
    cr_assert_not(rankmap_any("0"));
    cr_assert_not(rankmap_any("0:0,12:0"));
    cr_assert(rankmap_any("3"));
    cr_assert(rankmap_any("0:0,12:2"));
}
