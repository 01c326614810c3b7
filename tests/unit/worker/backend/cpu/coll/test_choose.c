/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm moves an operation between nodes, and the file that changes it. */
#include "hygiene.h"
#include "worker/backend/cpu/coll/choose.h"
#include "worker/backend/cpu/node/shm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

CDI_SUITE(choose);

static enum cdi_algorithm of(const struct cdi_choice_table *t, enum cdi_coll_kind kind, int nodes, size_t bytes)
{
    const struct cdi_choice_of x = {
        .kind = kind, .nodes = nodes, .most_ranks = 1, .bytes = bytes, .total = bytes * (size_t)nodes};

    return cdi_choose(t, &x);
}

static cddp_status parse(const char *text, struct cdi_choice_table *t, struct cdi_error *err)
{
    return cdi_choose_parse(text, strlen(text), t, err);
}

Test(choose, built_in_thresholds)
{
    struct cdi_choice_table t;

    cdi_choose_defaults(&t);
    cr_assert(cdi_choose_valid(&t));
    for (int nodes = 2; nodes <= 64; nodes *= 2) {
        cr_expect_eq(of(&t, CDI_BARRIER, nodes, 0), CDI_BY_ROUNDS);
        cr_expect_eq(of(&t, CDI_ALL_REDUCE, nodes, 4), CDI_BY_ROUNDS);
        cr_expect_eq(of(&t, CDI_ALL_REDUCE, nodes, 4096), CDI_BY_ROUNDS);
        cr_expect_eq(of(&t, CDI_ALL_REDUCE, nodes, 25u << 20), CDI_BY_CHAIN);
        cr_expect_eq(of(&t, CDI_BROADCAST, nodes, 25u << 20), CDI_BY_CHAIN);
        cr_expect_eq(of(&t, CDI_ALL_TO_ALL, nodes, 25u << 20), CDI_BY_SHARDS);
    }
    cr_expect_eq(of(&t, CDI_ALL_REDUCE, 16, 65536), CDI_BY_SHARDS);
}

Test(choose, rounds_only_where_all_data_fit_one_slot)
{
    struct cdi_choice_table t;
    struct cdi_error err;

    cr_assert_eq(parse("all_reduce 2 1000000000 0", &t, &err), CDDP_OK, "%s", err.msg);
    cr_expect_eq(of(&t, CDI_ALL_REDUCE, 4, CDI_SHM_PIECE_BYTES / 4), CDI_BY_ROUNDS);
    cr_expect_eq(of(&t, CDI_ALL_REDUCE, 4, CDI_SHM_PIECE_BYTES / 4 + 1), CDI_BY_CHAIN);
}

Test(choose, row_of_the_most_nodes_that_are_not_too_many_counts)
{
    struct cdi_choice_table t;
    struct cdi_error err;

    cr_assert_eq(
        parse("# comment\nall_reduce 8 100 1000 # more\r\n\n\tall_reduce 2 10 0\nall_reduce 4 50 60", &t, &err),
        CDDP_OK, "%s", err.msg);
    cr_expect_eq(of(&t, CDI_ALL_REDUCE, 3, 10), CDI_BY_ROUNDS);
    cr_expect_eq(of(&t, CDI_ALL_REDUCE, 3, 11), CDI_BY_CHAIN);
    cr_expect_eq(of(&t, CDI_ALL_REDUCE, 7, 60), CDI_BY_SHARDS);
    cr_expect_eq(of(&t, CDI_ALL_REDUCE, 7, 61), CDI_BY_CHAIN);
    cr_expect_eq(of(&t, CDI_ALL_REDUCE, 8, 100), CDI_BY_ROUNDS);
    cr_expect_eq(of(&t, CDI_ALL_REDUCE, 64, 1001), CDI_BY_CHAIN);
    cr_expect_eq(of(&t, CDI_ALL_TO_ALL, 4, 1u << 20), CDI_BY_SHARDS, "a collective without a line keeps its rows");
}

Test(choose, error_names_line_and_reason)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"all_reduce 2 1 1\nall_reduce 3 1", "line 2: a line is COLLECTIVE"},
        {"all_reduce 2 1 1 1", "line 1: a line is COLLECTIVE"},
        {"\n\nbarrier 2 1 1", "line 3: 'barrier' is not a collective"},
        {"all_reduce 1 1 1", "line 1: '1' is not a number of nodes"},
        {"all_reduce 2 -1 1", "line 1: '-1' is not a number of bytes"},
        {"all_reduce 2 1 9223372036854775808", "line 1: '9223372036854775808' is not a number of bytes"},
        {"reduce 2 1 1\n#\nreduce 2 3 4", "line 3: a second line for reduce with 2 nodes"},
        {"all_reduce_with_a_name_that_no_collective_has 2 1 1", "line 1: a line is"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cdi_choice_table t = {.n = 7};
        struct cdi_error err;

        cr_assert_eq(parse(cases[i].text, &t, &err), CDDP_E_INVALID, "case %zu", i);
        cr_expect(strstr(err.msg, cases[i].want) != NULL, "case %zu: %s", i, err.msg);
        cr_expect_eq(t.n, 7, "an error leaves the table as it was");
    }
}

Test(choose, too_many_lines_are_an_error)
{
    char text[8192] = "";
    struct cdi_choice_table t;
    struct cdi_error err;
    size_t used = 0;

    for (int i = 0; i <= CDI_CHOICE_ROWS; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "all_reduce %d 1 1\n", i + 2);
    cr_assert_eq(parse(text, &t, &err), CDDP_E_INVALID);
    cr_expect(strstr(err.msg, "more than") != NULL, "%s", err.msg);
}

Test(choose, loads_the_file_of_the_variable)
{
    char path[] = "/tmp/coll-table-XXXXXX";
    int fd = mkstemp(path);
    struct cdi_choice_table t;
    struct cdi_error err;

    cr_assert(fd >= 0 && write(fd, "all_reduce 2 7 7\n", 17) == 17);
    cr_assert_eq(setenv(CDI_COLL_TABLE_ENV, path, 1), 0);
    cr_assert_eq(cdi_choose_load(&t, &err), CDDP_OK, "%s", err.msg);
    cr_expect_eq(of(&t, CDI_ALL_REDUCE, 2, 8), CDI_BY_CHAIN);
    cr_assert_eq(write(fd, "oops", 4), 4);
    cr_assert_eq(cdi_choose_load(&t, &err), CDDP_E_INVALID);
    cr_expect(strstr(err.msg, "CDDP_COLL_TABLE") != NULL && strstr(err.msg, path) != NULL &&
                  strstr(err.msg, "line 2") != NULL,
              "%s", err.msg);
    (void)close(fd);
    (void)unlink(path);
    cr_assert_eq(cdi_choose_load(&t, &err), CDDP_E_INVALID);
    cr_expect(strstr(err.msg, "No such file") != NULL, "%s", err.msg);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(cdi_choose_load(&t, &err), CDDP_E_INVALID);
    cr_expect(strstr(err.msg, "not a regular file") != NULL, "%s", err.msg);
    (void)unlink(path);
    cr_assert_eq(unsetenv(CDI_COLL_TABLE_ENV), 0);
    cr_assert_eq(cdi_choose_load(&t, &err), CDDP_OK);
}

Test(choose, pieces_are_smaller_on_longer_chains)
{
    size_t last = CDI_SHM_PIECE_BYTES;

    for (int nodes = 2; nodes <= 1024; nodes *= 2) {
        size_t piece = cdi_choose_piece(25u << 20, nodes);

        cr_expect(piece <= last && piece >= 16384 && piece % 64 == 0, "%d nodes: %zu", nodes, piece);
        last = piece;
    }
    cr_expect_eq(cdi_choose_piece(25u << 20, 2), CDI_SHM_PIECE_BYTES);
    cr_expect_lt(last, CDI_SHM_PIECE_BYTES / 4);
    cr_expect_eq(cdi_choose_piece(0, 2), 16384);
}
