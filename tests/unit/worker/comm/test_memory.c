/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of all ranks: its allocation, and collectives in it, with any placement on each rank. */
#include "hygiene.h"
#include "world.h"

#include <stdint.h>

CDI_SUITE(memory);

#define N 4       /* ranks */
#define MOST 9000 /* elements of one rank in a collective, so that all paths are taken */
#define ROOM ((size_t)(N + 1) * MOST * 8)

static int world(int (*body)(int rank))
{
    return run_world(N, body);
}

/* The same number on all ranks, or one for each of them. */
static uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)*state * below) >> 32);
}

/* ------------------------------------------------------------------------------------------- alloc, register ---- */

static int give_and_take(int rank)
{
    cddp_comm *comm = NULL;
    float *p = NULL, *q = NULL, *mine = NULL, *host = NULL;
    static float own[100];

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_alloc(comm, 100, 0, (void **)&mine) == CDDP_OK && (uintptr_t)mine % 64 == 0);
    CHECK(cddp_alloc(comm, 100, CDDP_MEM_HOST, (void **)&host) == CDDP_OK && (uintptr_t)host % 64 == 0);
    CHECK(cddp_alloc(comm, 1 << 20, CDDP_MEM_COLLECTIVE, (void **)&p) == CDDP_OK && (uintptr_t)p % 64 == 0);
    CHECK(cddp_alloc(comm, 5, CDDP_MEM_COLLECTIVE | CDDP_MEM_HOST, (void **)&q) == CDDP_OK);
    mine[24] = host[24] = p[(1 << 18) - 1] = (float)rank;
    CHECK(cddp_barrier(comm) == CDDP_OK);
    CHECK(mine[24] == (float)rank && p[(1 << 18) - 1] == (float)rank); /* no other rank writes there */
    cddp_free(comm, q);
    cddp_free(comm, host);
    cddp_free(comm, mine);

    CHECK(cddp_alloc(comm, 8, 4, (void **)&q) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "flags has unknown bits (0x4)") != NULL);
    CHECK(cddp_alloc(comm, rank == 2 ? 64 : 128, CDDP_MEM_COLLECTIVE, (void **)&q) == CDDP_E_MISMATCH);
    CHECK(strcmp(cddp_last_error(),
                 "cddp_alloc: rank 0 requests 128 bytes with flags 1, but rank 2 64 bytes with flags 1: "
                 "request the same on all ranks") == 0);
    CHECK(cddp_alloc(comm, SIZE_MAX / 2, CDDP_MEM_COLLECTIVE, (void **)&q) == CDDP_E_NOMEM);

    CHECK(cddp_register(comm, own, sizeof own, CDDP_MEM_COLLECTIVE) == CDDP_E_UNSUPPORTED);
    CHECK(strstr(cddp_last_error(), "from cddp_alloc with CDDP_MEM_COLLECTIVE") != NULL);
    CHECK(cddp_alloc(comm, 4096, CDDP_MEM_COLLECTIVE, (void **)&q) == CDDP_OK);
    cddp_free(comm, p);
    CHECK(cddp_finalize(comm) == CDDP_OK); /* it frees q */
    return 0;
}

static void one_rank_per_node(int rank)
{
    set_env("LOCAL_RANK", 0);
    set_env("LOCAL_WORLD_SIZE", 1);
    set_env("GROUP_RANK", rank);
    set_env("GROUP_WORLD_SIZE", N);
}

static int register_it(int rank)
{
    cddp_comm *comm = NULL;
    static float own[100];
    float *p = NULL;

    one_rank_per_node(rank);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_alloc(comm, 64, CDDP_MEM_COLLECTIVE, (void **)&p) == CDDP_OK);
    CHECK(cddp_register(comm, own, sizeof own, 0) == CDDP_E_UNSUPPORTED);
    CHECK(cddp_register(comm, own, sizeof own, 7) == CDDP_E_INVALID);
    CHECK(cddp_register(comm, rank == 1 ? NULL : own, sizeof own, CDDP_MEM_COLLECTIVE) == CDDP_E_INVALID);
    CHECK(strcmp(cddp_last_error(),
                 rank == 1 ? "cddp_register: (nil) is not memory of 400 bytes"
                           : "rank 1 could not share memory: cddp_register: (nil) is not memory of 400 bytes") == 0);
    CHECK(cddp_unregister(comm, own) == CDDP_E_INVALID);
    CHECK(cddp_register(comm, own, sizeof own, CDDP_MEM_COLLECTIVE) == CDDP_OK);
    CHECK(cddp_register(comm, own + 99, 4, CDDP_MEM_COLLECTIVE) == CDDP_E_INVALID);
    CHECK(cddp_register(comm, p + 7, 4, CDDP_MEM_COLLECTIVE) == CDDP_E_INVALID);
    CHECK(cddp_unregister(comm, own + 1) == CDDP_E_INVALID && cddp_unregister(comm, p) == CDDP_E_INVALID);
    CHECK(cddp_unregister(comm, own) == CDDP_OK && cddp_unregister(comm, own) == CDDP_E_INVALID);
    CHECK(cddp_register(comm, own, sizeof own, CDDP_MEM_COLLECTIVE) == CDDP_OK);
    CHECK(cddp_finalize(comm) == CDDP_OK); /* it frees p, and unregisters own */
    return 0;
}

Test(memory, all_ranks_register_memory_or_none)
{
    cr_assert_eq(world(register_it), 0);
}

Test(memory, all_ranks_get_memory_or_none)
{
    cr_assert_eq(world(give_and_take), 0);
}

static int one_without(int rank)
{
    cddp_comm *comm = NULL;
    void *p = NULL;
    float x = 1;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    if (rank == 3)
        CHECK(cddp_all_reduce(comm, &x, &x, 1, CDDP_FLOAT32, CDDP_SUM) == CDDP_E_MISMATCH);
    else
        CHECK(cddp_alloc(comm, 64, CDDP_MEM_COLLECTIVE, &p) == CDDP_E_MISMATCH && p == NULL);
    CHECK(strstr(cddp_last_error(), "rank 0 called cddp_alloc (") != NULL);
    CHECK(cddp_finalize(comm) == CDDP_E_MISMATCH);
    return 0;
}

Test(memory, mismatched_calls_name_the_function)
{
    cr_assert_eq(world(one_without), 0);
}

static int alone(int rank)
{
    cddp_comm *comm = NULL;
    float *p = NULL, *q = NULL;

    (void)rank;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_alloc(comm, 40000, CDDP_MEM_COLLECTIVE, (void **)&p) == CDDP_OK);
    CHECK(cddp_alloc(comm, 0, CDDP_MEM_COLLECTIVE, (void **)&q) == CDDP_OK && q != NULL);
    p[9999] = 3;
    CHECK(cddp_all_reduce(comm, p, p, 10000, CDDP_FLOAT32, CDDP_AVG) == CDDP_OK && p[9999] == 3);
    cddp_free(comm, p);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(memory, works_in_a_world_of_one)
{
    cr_assert_eq(run_world(1, alone), 0);
}

/* ----------------------------------------------------------------------------------------------- collectives ---- */

/* The memory of a rank in one collective. */
struct place {
    uint8_t *in, *out;
    bool is_private; /* to be freed */
};

enum { SAME, ELSEWHERE, OTHER_REGION, APART, PRIVATE, WAYS };

/*
 * `whole` bytes of which `part` are this rank's own input (all_gather) or output (reduce_scatter); all_reduce has one
 * size. All ranks share the place of SAME, and draw the others.
 */
static struct place choose(uint8_t *const region[2], int way, size_t same_at, uint32_t *own, cddp_coll coll,
                           size_t whole, size_t part)
{
    size_t at = way == SAME ? same_at : draw(own, 100) * 8;
    uint8_t *base = way == PRIVATE ? malloc(whole + 1024) : region[way == OTHER_REGION];
    struct place p = {.is_private = way == PRIVATE};

    base += way == PRIVATE ? 0 : at;
    p.in = p.out = base;
    if (coll == CDDP_COLL_ALL_GATHER)
        p.in = base + part;
    if (coll == CDDP_COLL_REDUCE_SCATTER)
        p.out = base + part;
    if (way == APART && coll != CDDP_COLL_REDUCE_SCATTER)
        p.in = region[1] + at;
    else if (way == APART)
        p.out = region[1] + at;
    return p;
}

static int64_t value(int rank, size_t i, int round)
{
    return (int64_t)(rank + 1) * 1000 + (int64_t)(i % 97) * 7 + round;
}

/* Runs one collective with random placement on each rank, and compares it with a plain computation. */
static int one(cddp_comm *comm, uint8_t *const region[2], uint32_t *state, uint32_t *own, int round)
{
    static const cddp_coll colls[] = {CDDP_COLL_ALL_REDUCE, CDDP_COLL_ALL_GATHER, CDDP_COLL_REDUCE_SCATTER};
    int rank = cddp_rank(comm), size = cddp_world_size(comm);
    cddp_coll coll = colls[draw(state, 3)];
    size_t count = 1 + draw(state, draw(state, 2) == 0 ? 100 : MOST), same_at = draw(state, 64) * 8;
    bool all_same = draw(state, 3) == 0;
    int way = all_same ? SAME : (int)draw(own, WAYS);
    size_t whole = count * 8 * (coll == CDDP_COLL_ALL_REDUCE ? 1 : (size_t)size), part = count * 8 * (size_t)rank;
    struct place p = choose(region, way, same_at, own, coll, whole, part);
    const cddp_coll_args args = {.size = sizeof args,
                                 .coll = coll,
                                 .dtype = CDDP_INT64,
                                 .op = CDDP_SUM,
                                 .in = p.in,
                                 .out = p.out,
                                 .count = count};
    size_t n_in = coll == CDDP_COLL_REDUCE_SCATTER ? count * (size_t)size : count;
    size_t n_out = coll == CDDP_COLL_ALL_GATHER ? count * (size_t)size : count;
    uint64_t ticket;

    for (size_t i = 0; i < n_in; i++)
        ((int64_t *)p.in)[i] = value(rank, i, round);
    CHECK(cddp_coll_start(comm, &args, 1, &ticket) == CDDP_OK && cddp_coll_wait(comm, ticket) == CDDP_OK);
    for (size_t i = 0; i < n_out; i++) {
        int64_t want = 0;

        if (coll == CDDP_COLL_ALL_GATHER)
            want = value((int)(i / count), i % count, round);
        for (int r = 0; r < size && coll != CDDP_COLL_ALL_GATHER; r++)
            want += value(r, coll == CDDP_COLL_ALL_REDUCE ? i : i + count * (size_t)rank, round);
        if (((int64_t *)p.out)[i] != want) {
            fprintf(stderr, "rank %d, round %d: collective %d of %zu, way %d: element %zu\n", rank, round, (int)coll,
                    count, way, i);
            return 1;
        }
    }
    if (p.is_private)
        free(coll == CDDP_COLL_ALL_GATHER ? p.out : p.in);
    return 0;
}

static int many(int rank)
{
    cddp_comm *comm = NULL;
    uint8_t *region[2] = {NULL, NULL};
    uint32_t state = 7, own = (uint32_t)rank * 77u + 5;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (int i = 0; i < 2; i++)
        CHECK(cddp_alloc(comm, ROOM, CDDP_MEM_COLLECTIVE, (void **)&region[i]) == CDDP_OK);
    for (int round = 0; round < 150; round++)
        if (one(comm, region, &state, &own, round) != 0)
            return 1;
    for (int i = 0; i < 2; i++)
        cddp_free(comm, region[i]);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(memory, collectives_work_with_any_placement)
{
    cr_assert_eq(world(many), 0);
}

static int many_on_two_nodes(int rank)
{
    set_env("LOCAL_RANK", rank % 2);
    set_env("LOCAL_WORLD_SIZE", 2);
    set_env("GROUP_RANK", rank / 2);
    set_env("GROUP_WORLD_SIZE", 2);
    return many(rank);
}

Test(memory, collectives_work_on_two_nodes)
{
    cr_assert_eq(world(many_on_two_nodes), 0);
}

/* Two reducers whose steps have another order on one rank are still detected: their arenas may not differ. */
static int crossed(int rank)
{
    static float w[2][4000];
    cddp_comm *comm = NULL;
    cddp_ddp *d[2] = {NULL, NULL};
    cddp_status st = CDDP_OK;
    void *p;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_alloc(comm, 100000, CDDP_MEM_COLLECTIVE, &p) == CDDP_OK);
    for (int i = 0; i < 2; i++) {
        cddp_param q = {.size = sizeof q, .name = "w", .data = w[i], .count = 4000, .dtype = CDDP_FLOAT32};

        CHECK(cddp_ddp_create(&d[i], comm, &q, 1, NULL) == CDDP_OK);
    }
    for (int i = 0; i < 2 && st == CDDP_OK; i++) {
        cddp_ddp *now = d[i ^ (rank == 1)];

        (void)cddp_ddp_grad_ready(now, 0);
        st = cddp_ddp_wait(now);
    }
    CHECK(st == CDDP_E_MISMATCH);
    cddp_ddp_destroy(d[0]);
    cddp_ddp_destroy(d[1]);
    CHECK(cddp_finalize(comm) == CDDP_E_MISMATCH);
    return 0;
}

Test(memory, detects_reducers_in_another_order)
{
    cr_assert_eq(world(crossed), 0);
}
