/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of operations, the collectives that are made of others, and the errors of ranks that disagree about them. */
#include "hygiene.h"
#include "world.h"

#include <stdint.h>
#include <stdlib.h>

CDI_SUITE(coll_group);

#define N 4 /* ranks */

static int world(int (*body)(int rank))
{
    return run_world(N, body);
}

static cddp_coll_args args_of(cddp_coll coll, cddp_dtype dtype, const void *in, void *out, size_t count, int root)
{
    return (cddp_coll_args){.size = sizeof(cddp_coll_args),
                            .coll = coll,
                            .dtype = dtype,
                            .op = CDDP_SUM,
                            .root = root,
                            .in = in,
                            .out = out,
                            .count = count};
}

static cddp_coll_args send_to(const void *in, size_t count, int to)
{
    return args_of(CDDP_COLL_SEND, CDDP_FLOAT64, in, NULL, count, to);
}

static cddp_coll_args recv_from(void *out, size_t count, int from)
{
    return args_of(CDDP_COLL_RECV, CDDP_FLOAT64, NULL, out, count, from);
}

/* ------------------------------------------------------------------------------------------------- new kinds ---- */

static int uneven_sums(int rank)
{
    static const size_t counts[N] = {2, 0, 3, 1}, begin[N] = {0, 2, 2, 5}, apart[N] = {5, 0, 0, 9};
    float in[10] = {0}, out[3] = {0};
    cddp_comm *comm = NULL;
    cddp_coll_args a = args_of(CDDP_COLL_REDUCE_SCATTERV, CDDP_FLOAT32, in, out, 0, 0);

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    a.in_counts = counts;
    for (int pass = 0; pass < 3; pass++) { /* one after another, with offsets, in place */
        const size_t *at = pass == 1 ? apart : begin;

        for (int i = 0; i < 10; i++)
            in[i] = (float)(100 * rank + i);
        a.in_offsets = pass == 1 ? apart : NULL;
        a.out = pass == 2 ? &in[begin[rank]] : out;
        a.op = pass == 0 ? CDDP_SUM : CDDP_AVG;
        CHECK(cddp_coll_run(comm, &a, 1) == CDDP_OK);
        for (size_t k = 0; k < counts[rank]; k++)
            CHECK(((float *)a.out)[k] ==
                  (pass == 0 ? 600.0F + 4 * (float)(at[rank] + k) : 150.0F + (float)(at[rank] + k)));
        CHECK(rank == 3 || in[9] == (float)(100 * rank + 9));
    }
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(coll_group, reduce_scatterv_gives_each_rank_its_part)
{
    cr_assert_eq(world(uneven_sums), 0);
}

static int gather_apart(int rank)
{
    static const size_t counts[N] = {1, 2, 0, 3}, at[N] = {9, 0, 0, 4};
    int16_t unused[1] = {0};
    int32_t own[3] = {100 * rank, 100 * rank + 1, 100 * rank + 2}, all[10];
    cddp_comm *comm = NULL;
    cddp_coll_args a = args_of(CDDP_COLL_ALL_GATHERV, CDDP_INT32, own, all, 0, 0);

    (void)unused;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    a.out_counts = counts;
    a.out_offsets = at;
    memset(all, 0x5a, sizeof all);
    CHECK(cddp_coll_run(comm, &a, 1) == CDDP_OK);
    CHECK(all[9] == 0 && all[0] == 100 && all[1] == 101 && all[4] == 300 && all[6] == 302);
    CHECK(all[2] == 0x5a5a5a5a && all[3] == all[2] && all[7] == all[2] && all[8] == all[2]);
    memset(all, 0x5a, sizeof all);
    memcpy(&all[at[rank]], own, counts[rank] * sizeof own[0]);
    a.in = &all[at[rank]]; /* in place */
    CHECK(cddp_coll_run(comm, &a, 1) == CDDP_OK);
    CHECK(all[9] == 0 && all[0] == 100 && all[1] == 101 && all[4] == 300 && all[6] == 302);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(coll_group, all_gatherv_stores_parts_at_the_offsets)
{
    cr_assert_eq(world(gather_apart), 0);
}

static int from_source(int rank)
{
    enum { LARGE = 100000 };
    cddp_comm *comm = NULL;
    int32_t small = -1, source = 7 + rank, *in = malloc(LARGE * sizeof *in), *out = calloc(LARGE, sizeof *out);
    cddp_coll_args a = args_of(CDDP_COLL_BROADCAST, CDDP_INT32, &source, &small, 1, 2);

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && in != NULL && out != NULL);
    CHECK(cddp_coll_run(comm, &a, 1) == CDDP_OK && small == 9 && source == 7 + rank);
    for (int i = 0; i < LARGE; i++)
        in[i] = i + rank;
    a = args_of(CDDP_COLL_BROADCAST, CDDP_INT32, rank == 1 ? in : NULL, out, LARGE, 1);
    CHECK(cddp_coll_run(comm, &a, 1) == CDDP_OK && out[0] == 1 && out[LARGE - 1] == LARGE);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    free(in);
    free(out);
    return 0;
}

Test(coll_group, broadcast_sends_the_roots_separate_source)
{
    cr_assert_eq(world(from_source), 0);
}

/* ---------------------------------------------------------------------------------------------------- groups ---- */

/* On two ranks left and right are the same: messages match in the order of the array. */
static int pair(int rank)
{
    double first = 10 + rank, second = 20 + rank, own = 30 + rank, got[3] = {0};
    cddp_comm *comm = NULL;
    const cddp_coll_args a[] = {recv_from(&got[0], 1, 1 - rank), send_to(&own, 1, rank),
                                send_to(&first, 1, 1 - rank),    send_to(&second, 1, 1 - rank),
                                recv_from(&got[2], 1, rank),     recv_from(&got[1], 1, 1 - rank)};

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_coll_run(comm, a, 6) == CDDP_OK);
    CHECK(got[0] == 10 + (1 - rank) && got[1] == 20 + (1 - rank) && got[2] == 30 + rank);
    CHECK(cddp_coll_enqueue(comm, a, 6, NULL) == CDDP_OK); /* on the host: done on return */
    CHECK(got[1] == 20 + (1 - rank));
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(coll_group, messages_of_a_pair_match_in_order)
{
    cr_assert_eq(run_world(2, pair), 0);
}

static int collectives(int rank)
{
    static const size_t counts[N] = {1, 2, 1, 0};
    float x[3] = {1, 2, (float)rank}, mean = (float)rank;
    int32_t from_2 = rank == 2 ? 22 : 0, own[2] = {rank, rank}, all[4] = {0}, blocks_of[N];
    cddp_comm *comm = NULL;
    cddp_coll_args a[5] = {args_of(CDDP_COLL_ALL_REDUCE, CDDP_FLOAT32, x, x, 3, 0),
                           args_of(CDDP_COLL_GATHER, CDDP_INT32, own, blocks_of, 1, 3),
                           args_of(CDDP_COLL_BROADCAST, CDDP_INT32, NULL, &from_2, 1, 2),
                           args_of(CDDP_COLL_ALL_GATHERV, CDDP_INT32, own, all, 0, 0),
                           args_of(CDDP_COLL_ALL_REDUCE, CDDP_FLOAT32, &mean, &mean, 1, 0)};
    uint64_t ticket, none;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    a[3].out_counts = counts;
    a[4].op = CDDP_AVG;
    CHECK(cddp_coll_start(comm, a, 5, &ticket) == CDDP_OK && ticket > 0);
    memset(a, 0xff, sizeof a);
    CHECK(cddp_coll_start(comm, NULL, 0, &none) == CDDP_OK && none == 0);
    CHECK(cddp_coll_test(comm, none) == CDDP_OK && cddp_coll_wait(comm, none) == CDDP_OK);
    CHECK(cddp_coll_run(comm, NULL, 0) == CDDP_OK && cddp_coll_enqueue(comm, NULL, 0, NULL) == CDDP_OK);
    CHECK(cddp_coll_wait(comm, ticket) == CDDP_OK && cddp_coll_test(comm, ticket) == CDDP_OK);
    CHECK(x[0] == 4 && x[1] == 8 && x[2] == 6 && mean == 1.5F && from_2 == 22);
    CHECK(all[0] == 0 && all[1] == 1 && all[2] == 1 && all[3] == 2);
    for (int r = 0; r < N && rank == 3; r++)
        CHECK(blocks_of[r] == r);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(coll_group, collectives_of_one_group_have_one_ticket)
{
    cr_assert_eq(world(collectives), 0);
}

/*
 * Rank 0 fills its queue with groups of three operations of the backend, which do not divide the limit: the last one
 * has room for a part of it. Rank 1 takes part later.
 */
static int fill(int rank)
{
    int32_t one = 1, sum = 0, all[2] = {0};
    int64_t n = 0;
    float x = 1;
    const cddp_coll_args group[] = {args_of(CDDP_COLL_ALL_REDUCE, CDDP_FLOAT32, &x, &x, 1, 0),
                                    args_of(CDDP_COLL_GATHER, CDDP_INT32, &rank, all, 1, 0),
                                    args_of(CDDP_COLL_ALL_REDUCE, CDDP_INT32, &one, &sum, 1, 0)};
    const char *key = "full";
    cddp_comm *comm = NULL;
    cddp_status st = CDDP_OK;
    uint64_t ticket = 0;
    size_t len;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    if (rank == 0) {
        while ((st = cddp_coll_start(comm, group, 3, &ticket)) == CDDP_OK)
            n++;
        CHECK(st == CDDP_E_LIMIT && n >= 65536 / 3);
        CHECK(cddp_store_set(cddp_comm_store(comm), key, &n, sizeof n) == CDDP_OK);
    } else {
        CHECK(cddp_store_wait(cddp_comm_store(comm), &key, 1, 0) == CDDP_OK);
        CHECK(cddp_store_get(cddp_comm_store(comm), key, &n, sizeof n, &len, 0) == CDDP_OK && len == sizeof n);
        for (int64_t i = 0; i < n; i++)
            CHECK(cddp_coll_run(comm, group, 3) == CDDP_OK);
    }
    CHECK(cddp_coll_wait(comm, ticket) == CDDP_OK);
    CHECK(cddp_coll_run(comm, group, 3) == CDDP_OK && sum == 2);
    CHECK(rank != 0 || all[1] == 1);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(coll_group, a_full_queue_refuses_a_whole_group)
{
    cr_assert_eq(run_world(2, fill), 0);
}

/* Waits until all ranks are here, and in no operation of comm. */
static bool meet(cddp_comm *comm, const char *key)
{
    char last[40];
    const char *keys[1] = {last};
    int64_t n = 0;

    (void)snprintf(last, sizeof last, "%s/all", key);
    if (cddp_store_add(cddp_comm_store(comm), key, 1, &n) != CDDP_OK ||
        (n == cddp_world_size(comm) && cddp_store_set(cddp_comm_store(comm), last, "", 0) != CDDP_OK))
        return false;
    return cddp_store_wait(cddp_comm_store(comm), keys, 1, 0) == CDDP_OK;
}

/* Rank 0 has not completed it before the others begin, and does not wait for them. */
static int ask(int rank)
{
    double x = rank;
    cddp_coll_args a = args_of(CDDP_COLL_ALL_REDUCE, CDDP_FLOAT64, &x, &x, 1, 0);
    const char *key = "asked";
    cddp_comm *comm = NULL;
    cddp_status st;
    uint64_t ticket;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    if (rank > 0)
        CHECK(cddp_store_wait(cddp_comm_store(comm), &key, 1, 0) == CDDP_OK);
    CHECK(cddp_coll_start(comm, &a, 1, &ticket) == CDDP_OK);
    if (rank == 0) {
        CHECK(cddp_coll_test(comm, ticket) == CDDP_IN_PROGRESS && cddp_coll_test(comm, ticket) == CDDP_IN_PROGRESS);
        CHECK(cddp_store_set(cddp_comm_store(comm), key, "", 0) == CDDP_OK);
    }
    do
        st = cddp_coll_test(comm, ticket);
    while (st == CDDP_IN_PROGRESS);
    CHECK(st == CDDP_OK && x == 6);
    CHECK(cddp_coll_test(comm, ticket + 1) == CDDP_E_INVALID);
    CHECK(cddp_coll_start(comm, &a, 1, NULL) == CDDP_OK); /* no wait for it alone follows */
    CHECK(cddp_barrier(comm) == CDDP_OK && x == 24);
    CHECK(meet(comm, "over"));
    cddp_abort(comm, "enough");
    CHECK(cddp_coll_test(comm, ticket) == CDDP_E_ABORTED && cddp_coll_test(comm, 0) == CDDP_E_ABORTED);
    CHECK(cddp_finalize(comm) == CDDP_E_ABORTED);
    return 0;
}

Test(coll_group, tests_a_ticket_without_a_wait)
{
    cr_assert_eq(world(ask), 0);
}

/* --------------------------------------------------------------------------------------------- disagreements ---- */

/* Expects the error on all four ranks, also on those that have completed their own part, or at the next barrier. */
static int expect_mismatch(cddp_comm *comm, const cddp_coll_args *a, const char *says)
{
    cddp_status st = cddp_coll_run(comm, a, 1);

    if (st == CDDP_OK)
        st = cddp_barrier(comm);
    CHECK(st == CDDP_E_MISMATCH);
    if (strstr(cddp_last_error(), says) == NULL)
        fprintf(stderr, "'%s' is not in '%s'\n", says, cddp_last_error());
    CHECK(strstr(cddp_last_error(), says) != NULL);
    CHECK(cddp_finalize(comm) == CDDP_E_MISMATCH);
    return 0;
}

static int other_root(int rank)
{
    float own[1] = {0}, all[N];
    cddp_coll_args a = args_of(CDDP_COLL_GATHER, CDDP_FLOAT32, own, all, 1, rank == 1 ? 1 : 0);
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    return expect_mismatch(comm, &a,
                           "rank 0 called gather of 1 float32 to rank 0, rank 1 called gather of 1 float32 to rank 1");
}

static int other_count(int rank)
{
    float own[2] = {0}, all[2 * N] = {0};
    cddp_coll_args a = args_of(CDDP_COLL_SCATTER, CDDP_FLOAT32, all, own, rank == 3 ? 2 : 1, 0);
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    return expect_mismatch(comm, &a,
                           "scatter of 1 float32 from rank 0, rank 3 called scatter of 2 float32 from rank 0");
}

static int other_collective(int rank)
{
    float own[1] = {0}, all[N] = {0};
    cddp_coll_args a = args_of(rank == 2 ? CDDP_COLL_SCATTER : CDDP_COLL_GATHER, CDDP_FLOAT32, rank == 2 ? all : own,
                               rank == 2 ? own : all, 1, 0);
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    return expect_mismatch(
        comm, &a, "rank 0 called gather of 1 float32 to rank 0, rank 2 called scatter of 1 float32 from rank 0");
}

/* Rank 1 receives one element more from rank 2 than that sends, which is none. */
static int other_counts(int rank)
{
    size_t give[N] = {1, 0, 1, 0}, take[N];
    float in[2] = {0}, out[N + 1];
    cddp_coll_args a = args_of(CDDP_COLL_ALL_TO_ALLV, CDDP_FLOAT32, in, out, 0, 0);
    cddp_comm *comm = NULL;

    for (int r = 0; r < N; r++)
        take[r] = give[rank];
    take[2] += rank == 1;
    a.in_counts = give;
    a.out_counts = take;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    return expect_mismatch(
        comm, &a,
        "rank 2 called all_to_allv (send of 0 float32 to rank 1), rank 1 called all_to_allv (recv of 1 float32 "
        "from rank 2)");
}

static int other_parts(int rank)
{
    size_t counts[N] = {1, 1, 1, 1};
    float in[5] = {0}, out[2];
    cddp_coll_args a = args_of(CDDP_COLL_REDUCE_SCATTERV, CDDP_FLOAT32, in, out, 0, 0);
    cddp_comm *comm = NULL;

    counts[1] += rank == 2;
    a.in_counts = counts;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    return expect_mismatch(
        comm, &a,
        "rank 0 called reduce_scatterv (reduce(sum) of 1 float32 to rank 1), rank 2 called reduce_scatterv "
        "(reduce(sum) of 2 float32 to rank 1)");
}

static int other_length(int rank)
{
    double in[3] = {0}, out[3];
    const cddp_coll_args a[2] = {send_to(in, rank == 2 ? 3 : 2, (rank + 1) % N), recv_from(out, 2, (rank + N - 1) % N)};
    cddp_comm *comm = NULL;
    cddp_status st;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    st = cddp_coll_run(comm, a, 2);
    if (st == CDDP_OK)
        st = cddp_barrier(comm);
    CHECK(st == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(),
                 "rank 2 called send of 3 float64 to rank 3, rank 3 called recv of 2 float64 from rank 2") != NULL);
    CHECK(cddp_finalize(comm) == CDDP_E_MISMATCH);
    return 0;
}

Test(coll_group, names_two_ranks_that_disagree)
{
    cr_expect_eq(world(other_root), 0);
    cr_expect_eq(world(other_count), 0);
    cr_expect_eq(world(other_collective), 0);
    cr_expect_eq(world(other_counts), 0);
    cr_expect_eq(world(other_parts), 0);
    cr_expect_eq(world(other_length), 0);
}

/* ------------------------------------------------------------------------------------------------- bad input ---- */

Test(coll_group, rejects_bad_groups_before_they_start)
{
    static const size_t one[1] = {1}, two[1] = {2}, huge[1] = {SIZE_MAX}, far[1] = {SIZE_MAX / 2};
    double x[8] = {1};
    uint64_t ticket = 99;
    cddp_comm *comm = NULL;
    const cddp_coll_args barrier = args_of(CDDP_COLL_BARRIER, CDDP_FLOAT64, NULL, NULL, 0, 0), ours = send_to(x, 1, 0),
                         theirs = recv_from(x + 1, 1, 0), longer = recv_from(x + 1, 2, 0);
    const struct {
        cddp_coll_args args[3];
        size_t n;
        const char *says;
    } cases[] = {
        {{ours, theirs, barrier},
         3,
         "args[2]: cddp_barrier, but args[0] is cddp_send: a group has either collectives, or "
         "sends and receives"},
        {{barrier, theirs},
         2,
         "args[1]: cddp_recv, but args[0] is cddp_barrier: a group has either collectives, or sends "
         "and receives"},
        {{ours, theirs, ours}, 3, "args[2]: rank 0 sends itself a message that the group does not receive"},
        {{theirs, theirs, ours}, 3, "args[1]: rank 0 receives of itself a message that the group does not send"},
        {{ours, longer}, 2, "rank 0 sends itself 1 float64 (args[0]), but receives 2 float64 (args[1])"},
        {{ours}, 1, "cddp_send: rank 0 is this rank: a message to itself needs its receive in the same group"},
        {{ours, {.size = sizeof(cddp_coll_args), .coll = 77}},
         2,
         "args[1]: cddp_coll_args.coll is 77, which is not a collective"},
        {{{.size = sizeof(cddp_coll_args), .coll = CDDP_COLL_BARRIER, .flags = 1}},
         1,
         "cddp_coll_args: flags and zero must be 0"},
        {{{.size = sizeof(cddp_coll_args), .coll = CDDP_COLL_BARRIER, .zero = 1}},
         1,
         "cddp_coll_args: flags and zero must be 0"},
        {{{.size = sizeof(cddp_coll_args), .coll = CDDP_COLL_GATHER, .in_counts = one}},
         1,
         "gather: in_counts and in_offsets are not used: they must be NULL"},
        {{{.size = sizeof(cddp_coll_args), .coll = CDDP_COLL_REDUCE_SCATTERV, .out_offsets = one}},
         1,
         "reduce_scatterv: out_counts and out_offsets are not used: they must be NULL"},
        {{{.size = sizeof(cddp_coll_args), .coll = CDDP_COLL_GATHER, .dtype = CDDP_INT8, .root = 1}},
         1,
         "gather: root 1 is not a rank of a world of 1"},
        {{{.size = sizeof(cddp_coll_args), .coll = CDDP_COLL_SCATTER, .dtype = CDDP_INT8, .count = 1, .out = x}},
         1,
         "scatter: in is NULL"},
        {{{.size = sizeof(cddp_coll_args),
           .coll = CDDP_COLL_ALL_TO_ALLV,
           .dtype = CDDP_INT8,
           .in = x,
           .out = x + 1,
           .in_counts = one,
           .out_counts = two}},
         1,
         "all_to_allv: rank 0 sends itself 1 elements, but receives 2"},
        {{{.size = sizeof(cddp_coll_args),
           .coll = CDDP_COLL_ALL_TO_ALLV,
           .dtype = CDDP_FLOAT64,
           .in = x,
           .out = x + 1,
           .in_counts = two,
           .out_counts = two}},
         1,
         "all_to_allv: in and out overlap"},
        {{{.size = sizeof(cddp_coll_args),
           .coll = CDDP_COLL_ALL_TO_ALLV,
           .dtype = CDDP_FLOAT64,
           .in = x,
           .out = x + 1,
           .in_counts = two}},
         1,
         "all_to_allv: out_counts is NULL, but must have the number of elements of each rank"},
        {{{.size = sizeof(cddp_coll_args),
           .coll = CDDP_COLL_REDUCE_SCATTERV,
           .dtype = CDDP_FLOAT64,
           .in = x,
           .out = x + 1,
           .in_counts = two}},
         1,
         "reduce_scatterv: out overlaps in, but is not this rank's part of it"},
        {{{.size = sizeof(cddp_coll_args),
           .coll = CDDP_COLL_REDUCE_SCATTERV,
           .dtype = CDDP_FLOAT64,
           .in = x,
           .out = x,
           .in_offsets = one,
           .in_counts = huge}},
         1,
         "reduce_scatterv: no memory holds all parts of in"},
        {{{.size = sizeof(cddp_coll_args),
           .coll = CDDP_COLL_ALL_GATHERV,
           .dtype = CDDP_FLOAT64,
           .in = x,
           .out = x,
           .out_offsets = far,
           .out_counts = one}},
         1,
         "cddp_all_gatherv: no memory holds 9223372036854775808 elements"},
        {{{.size = sizeof(cddp_coll_args),
           .coll = CDDP_COLL_BROADCAST,
           .dtype = CDDP_FLOAT64,
           .in = x,
           .out = x + 1,
           .count = 2}},
         1,
         "cddp_broadcast: in and out overlap, but are not the same"},
        {{barrier, {.size = 24, .coll = CDDP_COLL_BARRIER}},
         2,
         "cddp_coll_args: size is 24 in element 1, but 88 in element 0: write .size = sizeof(cddp_coll_args) in each"},
    };

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_expect_eq(cddp_coll_start(comm, cases[i].args, cases[i].n, &ticket), CDDP_E_INVALID, "case %zu", i);
        cr_expect_str_eq(cddp_last_error(), cases[i].says);
        cr_expect_eq(cddp_coll_run(comm, cases[i].args, cases[i].n), CDDP_E_INVALID, "case %zu", i);
        cr_expect_eq(cddp_coll_enqueue(comm, cases[i].args, cases[i].n, NULL), CDDP_E_INVALID, "case %zu", i);
    }
    cr_assert_eq(ticket, 99);
    cr_assert_eq(cddp_coll_start(comm, NULL, 1, &ticket), CDDP_E_INVALID);
    cr_assert_str_eq(cddp_last_error(), "cddp_coll_start: args is NULL");
    cr_assert_eq(cddp_coll_run(NULL, &barrier, 1), CDDP_E_INVALID);
    cr_assert_str_eq(cddp_last_error(), "cddp_coll_run: comm is NULL");
    cr_assert_eq(cddp_coll_test(NULL, 0), CDDP_E_INVALID);
    cr_assert_eq(cddp_coll_enqueue(NULL, NULL, 0, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}

/* Parts of three ranks may have any order, but must not overlap. Only rank 0's arguments are checked. */
static int parts_apart(int rank)
{
    static const size_t counts[3] = {2, 2, 2}, good[3] = {4, 0, 2}, bad[3] = {4, 0, 1}, empty[3] = {0, 2, 2};
    int32_t in[8] = {rank, rank + 10}, out[8];
    cddp_comm *comm = NULL;
    cddp_coll_args a = args_of(CDDP_COLL_ALL_GATHERV, CDDP_INT32, in, out, 0, 0);

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    a.out_counts = counts;
    a.out_offsets = bad;
    CHECK(cddp_coll_run(comm, &a, 1) == CDDP_E_INVALID);
    CHECK(strcmp(cddp_last_error(), "cddp_all_gatherv: parts of out overlap") == 0);
    a.out_offsets = good;
    CHECK(cddp_coll_run(comm, &a, 1) == CDDP_OK && out[4] == 0 && out[0] == 1 && out[3] == 12);
    /* `in` is in a gap of out, without a part. */
    a.out_counts = empty;
    a.out_offsets = good;
    memset(out, 0, sizeof out);
    out[4] = rank;
    out[5] = rank + 10;
    a.in = &out[4];
    CHECK(cddp_coll_run(comm, &a, 1) == CDDP_OK && out[0] == 1 && out[3] == 12 && out[4] == rank);
    a.in = &out[1];
    CHECK(rank == 0 || cddp_coll_start(comm, &a, 1, NULL) == CDDP_E_INVALID);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(coll_group, rejects_overlapping_parts)
{
    cr_assert_eq(run_world(3, parts_apart), 0);
}
