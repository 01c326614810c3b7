/* SPDX-License-Identifier: Apache-2.0 */
/* Public collectives on parts of a world, and the errors for bad arguments; tests/stress/mix runs each collective. */
#include "hygiene.h"
#include "world.h"

#include <stdint.h>

CDI_SUITE(collective);

#define N 4 /* ranks */

static int world(int (*body)(int rank))
{
    return run_world(N, body);
}

/* Two ranks that send to each other first would wait for ever. */
static int send_first(int rank)
{
    int32_t x[2] = {rank, rank};
    cddp_comm *comm = NULL;
    cddp_status st;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    st = rank < 2 ? cddp_send(comm, x, 2, CDDP_INT32, 1 - rank) : cddp_barrier(comm);
    CHECK(st == CDDP_E_MISMATCH);
    CHECK(strcmp(cddp_last_error(),
                 "ranks called different operations: rank 0 called send of 2 int32 to rank 1, rank 1 "
                 "called send of 2 int32 to rank 0: one of them has to receive first") == 0);
    CHECK(cddp_finalize(comm) == CDDP_E_MISMATCH);
    return 0;
}

Test(collective, detects_two_ranks_that_send_to_each_other)
{
    for (int i = 0; i < 5; i++)
        cr_assert_eq(world(send_first), 0);
}

/* --------------------------------------------------------------------------------------------- non-blocking ---- */

/* The others begin only after rank 0 has signalled that it is about to copy the result of the reduction. */
static int copy_after(int rank)
{
    double x = rank, y = -1;
    cddp_coll_args work = {.size = sizeof work,
                           .coll = CDDP_COLL_ALL_REDUCE,
                           .dtype = CDDP_FLOAT64,
                           .op = CDDP_SUM,
                           .in = &x,
                           .out = &x,
                           .count = 1};
    const char *key = "copying";
    cddp_comm *comm = NULL;
    uint64_t ticket;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    if (rank == 0) {
        CHECK(cddp_coll_start(comm, &work, 1, &ticket) == CDDP_OK);
        CHECK(cddp_store_set(cddp_comm_store(comm), key, "", 0) == CDDP_OK);
        CHECK(cddp_copy(comm, &y, &x, sizeof y) == CDDP_OK && y == 6);
    } else {
        CHECK(cddp_store_wait(cddp_comm_store(comm), &key, 1, 0) == CDDP_OK);
        CHECK(cddp_coll_start(comm, &work, 1, &ticket) == CDDP_OK);
    }
    CHECK(cddp_coll_wait(comm, ticket) == CDDP_OK && x == 6);
    cddp_abort(comm, "enough");
    CHECK(cddp_copy(comm, &y, &x, sizeof y) == CDDP_E_ABORTED);
    CHECK(cddp_finalize(comm) == CDDP_E_ABORTED);
    return 0;
}

Test(collective, copy_follows_operations_that_were_started_before)
{
    cr_assert_eq(world(copy_after), 0);
}

/* ----------------------------------------------------------------------------------------------------- parts ---- */

static int parts(int rank)
{
    cddp_comm *comm = NULL, *half = NULL, *none = NULL, *quarter = NULL;
    int32_t x = rank;
    float w = (float)rank;
    cddp_param p = {.size = sizeof(cddp_param), .name = "w", .data = &w, .count = 1, .dtype = CDDP_FLOAT32};
    cddp_ddp *ddp;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    /* Even and odd ranks, in reverse. */
    CHECK(cddp_comm_split(&half, comm, rank % 2, -rank, NULL) == CDDP_OK);
    CHECK(cddp_world_size(half) == 2 && cddp_rank(half) == (rank < 2 ? 1 : 0) && cddp_local_rank(half) == rank);
    CHECK(cddp_all_reduce(half, &x, &x, 1, CDDP_INT32, CDDP_SUM) == CDDP_OK && x == 2 + 2 * (rank % 2));
    x = rank;
    CHECK(cddp_broadcast(half, &x, 1, CDDP_INT32, 0) == CDDP_OK && x == 2 + rank % 2);
    CHECK(cddp_ddp_create(&ddp, half, &p, 1, NULL) == CDDP_OK && w == (float)(2 + rank % 2));
    *(float *)cddp_ddp_grad(ddp, 0) = (float)rank;
    CHECK(cddp_ddp_grad_ready(ddp, 0) == CDDP_OK && cddp_ddp_wait(ddp) == CDDP_OK);
    CHECK(*(float *)cddp_ddp_grad(ddp, 0) == (float)(1 + rank % 2));
    cddp_ddp_destroy(ddp);
    CHECK(cddp_comm_split(&quarter, half, cddp_rank(half), 0, NULL) == CDDP_OK && cddp_world_size(quarter) == 1);
    CHECK(cddp_stop_requested(half) == 0 && cddp_stop_requested(quarter) == 0);
    CHECK(cddp_finalize(quarter) == CDDP_OK);
    CHECK(cddp_comm_split(&none, comm, rank == 3 ? -1 : 0, 0, NULL) == CDDP_OK);
    CHECK((none == NULL) == (rank == 3));
    CHECK(none == NULL || cddp_world_size(none) == 3);
    CHECK(cddp_finalize(none) == CDDP_OK);
    /* An error of one part is not an error of the whole. */
    if (rank == 0)
        cddp_abort(half, "enough");
    if (rank % 2 == 0)
        CHECK(cddp_barrier(half) == CDDP_E_ABORTED && cddp_finalize(half) == CDDP_E_ABORTED);
    else
        CHECK(cddp_barrier(half) == CDDP_OK && cddp_finalize(half) == CDDP_OK);
    CHECK(cddp_barrier(comm) == CDDP_OK);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(collective, parts_have_their_own_ranks_reducers_and_errors)
{
    cr_assert_eq(world(parts), 0);
}

/* ------------------------------------------------------------------------------------------------- bad input ---- */

Test(collective, rejects_bad_arguments_by_name)
{
    static const size_t one[1] = {1}, huge[1] = {SIZE_MAX};
    float x[8] = {1};
    uint64_t ticket;
    cddp_comm *comm = NULL, *part = NULL;
    const struct {
        cddp_coll_args work;
        const char *says;
    } cases[] = {
        {{.coll = 0}, "cddp_coll_args.coll is 0, which is not a collective"},
        {{.coll = CDDP_COLL_REDUCE_SCATTERV + 1}, "cddp_coll_args.coll is 15, which is not a collective"},
        {{.coll = CDDP_COLL_REDUCE, .dtype = CDDP_FLOAT32, .root = 1, .in = x, .out = x, .count = 1},
         "cddp_reduce: root 1 is not a rank of a world of 1"},
        {{.coll = CDDP_COLL_SEND, .dtype = CDDP_FLOAT32, .root = -1, .in = x, .count = 1},
         "cddp_send: peer -1 is not a rank of a world of 1"},
        {{.coll = CDDP_COLL_RECV, .dtype = CDDP_FLOAT32, .root = 0, .out = x, .count = 1},
         "cddp_recv: rank 0 is this rank: a message to itself needs its receive in the same group"},
        {{.coll = CDDP_COLL_ALL_TO_ALL, .dtype = CDDP_FLOAT32, .in = x, .out = x, .count = 1},
         "cddp_all_to_all: in and out overlap"},
        {{.coll = CDDP_COLL_REDUCE_SCATTER, .dtype = CDDP_INT32, .op = CDDP_AVG, .in = x, .out = x, .count = 1},
         "cddp_reduce_scatter: a mean of int32 is not defined, use a floating-point type"},
        {{.coll = CDDP_COLL_REDUCE_SCATTER, .dtype = CDDP_FLOAT32, .op = CDDP_SUM, .in = x, .out = x + 1, .count = 2},
         "cddp_reduce_scatter: out overlaps in, but is not this rank's part of it"},
        {{.coll = CDDP_COLL_ALL_GATHERV, .dtype = CDDP_FLOAT32, .in = x, .out = x},
         "cddp_all_gatherv: out_counts is NULL, but must have the number of elements of each rank"},
        {{.coll = CDDP_COLL_ALL_GATHERV, .dtype = CDDP_FLOAT32, .in = x, .out = x, .out_counts = huge},
         "cddp_all_gatherv: no memory holds 18446744073709551615 elements"},
        {{.coll = CDDP_COLL_ALL_GATHERV, .dtype = CDDP_FLOAT32, .in = NULL, .out = x, .out_counts = one},
         "cddp_all_gatherv: in is NULL"},
        {{.coll = CDDP_COLL_ALL_TO_ALL, .dtype = CDDP_FLOAT64, .in = x, .out = x, .count = SIZE_MAX / 4},
         "cddp_all_to_all: no memory holds 4611686018427387903 elements"},
    };

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_coll_args work = cases[i].work;

        work.size = sizeof work;
        cr_assert_eq(cddp_coll_start(comm, &work, 1, &ticket), CDDP_E_INVALID, "case %zu", i);
        cr_assert_str_eq(cddp_last_error(), cases[i].says);
    }
    cr_assert_eq(cddp_coll_start(comm, &(cddp_coll_args){.size = 8, .coll = CDDP_COLL_BARRIER}, 1, &ticket),
                 CDDP_E_INVALID);
    cr_assert_eq(cddp_coll_start(comm, NULL, 1, &ticket), CDDP_E_INVALID);
    cr_assert_eq(cddp_coll_wait(NULL, 1), CDDP_E_INVALID);
    cr_assert_eq(cddp_comm_split(NULL, comm, 0, 0, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_comm_split(&part, comm, 0, 0, NULL), CDDP_OK);
    cr_assert_eq(cddp_world_size(part), 1);
    cr_assert_eq(cddp_finalize(part), CDDP_OK);
    cr_assert_eq(cddp_barrier(comm), CDDP_OK);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}

/* ----------------------------------------------------------------------------------------------------- types ---- */

static int every_type(int rank)
{
    const struct {
        cddp_dtype dtype;
        cddp_redop op;
        cddp_status status;
        const char *says;
    } cases[] = {
        {CDDP_DTYPE_NONE, CDDP_SUM, CDDP_E_INVALID, "cddp_all_reduce: 0 is not a cddp_dtype"},
        {(cddp_dtype)13, CDDP_SUM, CDDP_E_INVALID, "cddp_all_reduce: 13 is not a cddp_dtype"},
        {(cddp_dtype)63, CDDP_SUM, CDDP_E_INVALID, "cddp_all_reduce: 63 is not a cddp_dtype"},
        {(cddp_dtype)66, CDDP_SUM, CDDP_E_INVALID, "cddp_all_reduce: 66 is not a cddp_dtype"},
        {CDDP_INT16, (cddp_redop)5, CDDP_E_INVALID, "cddp_all_reduce: 5 is not a cddp_redop"},
        {CDDP_INT16, (cddp_redop)63, CDDP_E_INVALID, "cddp_all_reduce: 63 is not a cddp_redop"},
        {CDDP_INT16, (cddp_redop)67, CDDP_E_INVALID, "cddp_all_reduce: 67 is not a cddp_redop"},
        {CDDP_INT16, CDDP_AVG, CDDP_E_INVALID,
         "cddp_all_reduce: a mean of int16 is not defined, use a floating-point type"},
        {CDDP_FLOAT64, CDDP_BOR, CDDP_E_INVALID,
         "cddp_all_reduce: a bitwise or of float64 is not defined, use an integer type"},
        {CDDP_FLOAT8_E5M2, CDDP_BXOR, CDDP_E_INVALID,
         "cddp_all_reduce: a bitwise xor of float8_e5m2 is not defined, use an integer type"},
        {CDDP_FLOAT8_E4M3, CDDP_MAX, CDDP_E_UNSUPPORTED,
         "all_reduce(max) of 1 float8_e4m3: the host does not compute with float8_e4m3: convert it to float32 or "
         "bfloat16, reduce that, and convert the result"},
    };
    int16_t x[2] = {(int16_t)(rank - 2), (int16_t)(20000 + rank)}, sum[2];
    uint16_t bits = (uint16_t)(0x8001u << rank), all;
    uint8_t small[N] = {0}, mine = (uint8_t)(0x30 + rank);
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK(cddp_all_reduce(comm, x, sum, 1, cases[i].dtype, cases[i].op) == cases[i].status);
        CHECK(strcmp(cddp_last_error(), cases[i].says) == 0);
    }
    CHECK(cddp_all_reduce(comm, x, sum, 2, CDDP_INT16, CDDP_SUM) == CDDP_OK);
    CHECK(sum[0] == -2 && sum[1] == (int16_t)(uint16_t)80006); /* wraps around */
    CHECK(cddp_reduce(comm, x, rank == 2 ? sum : NULL, 2, CDDP_INT16, CDDP_MAX, 2) == CDDP_OK &&
          (rank != 2 || sum[0] == 1));
    CHECK(cddp_all_reduce(comm, &bits, &all, 1, CDDP_UINT16, CDDP_BOR) == CDDP_OK && all == 0x800f);
    CHECK(cddp_all_reduce(comm, &bits, &all, 1, CDDP_UINT16, CDDP_BXOR) == CDDP_OK && all == 0x800f);
    CHECK(cddp_all_reduce(comm, &bits, &all, 1, CDDP_UINT16, CDDP_BAND) == CDDP_OK && all == 0);
    CHECK(cddp_all_gather(comm, &mine, small, 1, CDDP_FLOAT8_E4M3) == CDDP_OK);
    for (int r = 0; r < N; r++)
        CHECK(small[r] == 0x30 + r);
    CHECK(cddp_dtype_size(CDDP_FLOAT8_E5M2) == 1 && cddp_dtype_size(CDDP_UINT16) == 2);
    CHECK(cddp_dtype_size((cddp_dtype)40) == 0 && cddp_dtype_size((cddp_dtype)-1) == 0);
    return cddp_finalize(comm) != CDDP_OK;
}

Test(collective, accepts_or_rejects_every_type_by_name)
{
    cr_assert_eq(world(every_type), 0);
}
