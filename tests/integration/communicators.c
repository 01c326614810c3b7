/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators of all kinds on a backend: CDDP_BACKEND says which. Without RANK or an MPI's variables it starts its
 * ranks itself.
 *
 *     communicators MODE...
 *
 * beside: parts of the CPU's beside a GPU's; again: joins after they were left; given: jobs that the program describes,
 * beside that of the environment; group: communicators that their members alone make; leave: two that each rank leaves
 * in its own order; outlive: a part of a part that is gone; reset: a connection of live ranks of two nodes breaks;
 * threads: groups in two threads at a time.
 */
#include "by_hand.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#define LIMIT_S 100

static const char *mode;

/* The sum over all ranks of 10^(rank in the world), by memory of the communicator's own kind. */
static int64_t digits_in(cddp_comm *comm, int64_t *there)
{
    int64_t x = 1;

    for (int r = 0; r < cddp_world_rank(comm, cddp_rank(comm)); r++)
        x *= 10;
    CHECK(cddp_copy(comm, there, &x, sizeof x) == CDDP_OK);
    CHECK(cddp_all_reduce(comm, there, there, 1, CDDP_INT64, CDDP_SUM) == CDDP_OK);
    CHECK(cddp_copy(comm, &x, there, sizeof x) == CDDP_OK);
    return x;
}

static int64_t digits_of(cddp_comm *comm)
{
    int64_t x, *there;

    CHECK(cddp_alloc(comm, sizeof x, 0, (void **)&there) == CDDP_OK);
    x = digits_in(comm, there);
    cddp_free(comm, there);
    return x;
}

static int64_t ones(int n)
{
    return n == 0 ? 0 : 10 * ones(n - 1) + 1;
}

/* ---------------------------------------------------------------------------------------------------- beside ---- */

static void beside(void)
{
    const cddp_split_options cpu = {.size = sizeof cpu, .backend = "cpu", .name = "control"};
    const cddp_split_options named = {.size = sizeof named, .name = "dp"};
    cddp_comm *comm, *control, *dp, *part, *none;
    int rank, size;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    rank = cddp_rank(comm);
    size = cddp_world_size(comm);
    CHECK(cddp_comm_split(&control, comm, 0, -rank, &cpu) == CDDP_OK);
    CHECK(strcmp(cddp_backend_name(control), "cpu") == 0 && cddp_rank(control) == size - 1 - rank);
    CHECK(cddp_world_rank(control, 0) == size - 1 && cddp_local_rank(control) == cddp_local_rank(comm));
    CHECK(digits_of(control) == ones(size) && digits_of(comm) == ones(size));
    /* Rank 0's is the CPU's, the others' that of the whole. */
    CHECK(cddp_comm_split(&part, comm, rank == 0, 0, rank == 0 ? &cpu : &named) == CDDP_OK);
    CHECK(strcmp(cddp_backend_name(part), rank == 0 ? "cpu" : cddp_backend_name(comm)) == 0);
    CHECK(digits_of(part) == (rank == 0 ? 1 : ones(size) - 1));
    CHECK(cddp_comm_split(&none, comm, -1, 0, &cpu) == CDDP_OK && none == NULL);
    if (strcmp(cddp_backend_name(comm), "cpu") != 0) { /* of one color, some the one and some the other */
        CHECK(cddp_comm_split(&none, comm, 3, 0, rank == 0 ? &cpu : NULL) == (size > 1 ? CDDP_E_MISMATCH : CDDP_OK));
        if (size == 1)
            CHECK(cddp_finalize(none) == CDDP_OK);
    }
    CHECK(cddp_comm_error(comm, NULL) == CDDP_OK);
    /* Parts of a part, and errors that are not the whole's. */
    CHECK(cddp_comm_split(&dp, control, 0, 0, &named) == CDDP_OK && digits_of(dp) == ones(size));
    if (rank == 0)
        cddp_abort(dp, "enough");
    CHECK(cddp_barrier(dp) == CDDP_E_ABORTED && strncmp(cddp_last_error(), "communicator 'dp': ", 19) == 0);
    CHECK(cddp_finalize(dp) == CDDP_E_ABORTED && cddp_barrier(control) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    if (rank == 0)
        CHECK(cddp_finalize(part) == CDDP_OK && cddp_finalize(comm) == CDDP_OK && cddp_finalize(control) == CDDP_OK);
    else
        CHECK(cddp_finalize(control) == CDDP_OK && cddp_finalize(comm) == CDDP_OK && cddp_finalize(part) == CDDP_OK);
}

/* ----------------------------------------------------------------------------------------------------- again ---- */

static void again(void)
{
    const cddp_init_options named = {.size = sizeof named, .name = "once more"};

    for (int i = 0; i < 5; i++) {
        cddp_comm *comm, *part;

        CHECK(cddp_init(&comm, i % 2 == 0 ? NULL : &named) == CDDP_OK);
        CHECK(digits_of(comm) == ones(cddp_world_size(comm)));
        CHECK(cddp_comm_split(&part, comm, 0, -cddp_rank(comm), NULL) == CDDP_OK);
        CHECK(digits_of(part) == ones(cddp_world_size(comm)));
        if (i == 3) /* memory of what is over may stay */
            CHECK(cddp_finalize(comm) == CDDP_OK && cddp_finalize(part) == CDDP_OK);
        else
            CHECK(cddp_finalize(part) == CDDP_OK && cddp_finalize(comm) == CDDP_OK);
    }
}

/* ----------------------------------------------------------------------------------------------------- given ---- */

static void given(void)
{
    cddp_init_options opt = {.size = sizeof opt};
    cddp_comm *comm, *by_id, *by_name = NULL, *part;
    const char *where = getenv("MASTER_ADDR");
    cddp_unique_id id = {.bytes = {0}};
    int64_t all;
    bool on_cpu;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    all = ones(cddp_world_size(comm));
    on_cpu = strcmp(cddp_backend_name(comm), "cpu") == 0;
    opt.world_size = cddp_world_size(comm); /* of MPI's ranks none can be another one, and each keeps its GPU */
    opt.rank = on_cpu ? opt.world_size - 1 - cddp_rank(comm) : cddp_rank(comm);
    for (int i = 0; i < 2; i++) {
        bool aborts = i == 0 && strcmp(cddp_backend_name(comm), "mpi") != 0; /* which does not end in peace then */

        if (cddp_rank(comm) == opt.world_size - 1)
            CHECK(cddp_unique_id_create(&id) == CDDP_OK);
        CHECK(cddp_broadcast(comm, id.bytes, sizeof id.bytes, CDDP_UINT8, opt.world_size - 1) == CDDP_OK);
        opt.id = &id;
        opt.name = i == 0 ? NULL : "by id";
        CHECK(cddp_init(&by_id, &opt) == CDDP_OK && cddp_rank(by_id) == opt.rank);
        CHECK(strcmp(cddp_backend_name(by_id), cddp_backend_name(comm)) == 0);
        if (where != NULL) { /* the store of the job of the environment */
            opt.id = NULL;
            opt.host = where;
            opt.port = (int)strtol(getenv("MASTER_PORT"), NULL, 10);
            opt.name = "third";
            CHECK(cddp_init(&by_name, &opt) == CDDP_OK && digits_of(by_name) == all);
            opt.host = NULL;
            opt.port = 0;
        }
        CHECK(cddp_comm_split(&part, by_id, 0, 0, NULL) == CDDP_OK);
        for (int k = 0; k < 10; k++) {
            CHECK(digits_of(comm) == all && digits_of(by_id) == all && digits_of(part) == all);
            CHECK(by_name == NULL || digits_of(by_name) == all);
        }
        if (aborts && opt.rank == 0)
            cddp_abort(by_id, "one of three");
        CHECK(cddp_barrier(by_id) == (aborts ? CDDP_E_ABORTED : CDDP_OK));
        CHECK(cddp_finalize(part) == CDDP_OK && cddp_finalize(by_id) == (aborts ? CDDP_E_ABORTED : CDDP_OK));
        CHECK(digits_of(comm) == all && (by_name == NULL || digits_of(by_name) == all));
        CHECK(cddp_finalize(by_name) == CDDP_OK);
    }
    CHECK(digits_of(comm) == all && cddp_finalize(comm) == CDDP_OK);
}

/* ----------------------------------------------------------------------------------------------------- group ---- */

static void group(void)
{
    const cddp_split_options cpu = {.size = sizeof cpu, .backend = "cpu"},
                             named = {.size = sizeof named, .name = "pair"};
    int rank, size, all[8], pair[2];
    cddp_comm *comm, *turned, *of_two = NULL, *alone, *part;
    int64_t digits = 1;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    rank = cddp_rank(comm);
    size = cddp_world_size(comm);
    CHECK(size <= 8);
    for (int r = 0; r < size; r++)
        all[r] = size - 1 - r;
    for (int i = 0; i < 3; i++) {
        CHECK(cddp_comm_create_group(&turned, comm, all, (size_t)size, 7, i == 1 ? &cpu : NULL) == CDDP_OK);
        CHECK(strcmp(cddp_backend_name(turned), i == 1 ? "cpu" : cddp_backend_name(comm)) == 0);
        CHECK(cddp_rank(turned) == size - 1 - rank && digits_of(turned) == ones(size));
        CHECK(cddp_comm_split(&part, turned, cddp_rank(turned) % 2, 0, &named) == CDDP_OK);
        CHECK(digits_of(part) > 0 && digits_of(comm) == ones(size) && cddp_finalize(part) == CDDP_OK);
        if (i < 2)
            CHECK(cddp_finalize(turned) == CDDP_OK);
    }
    /* The last two ranks, while the others work on in other groups: each one alone. */
    if (rank >= size - 2 && size > 1) {
        pair[0] = size - 1;
        pair[1] = size - 2;
        CHECK(cddp_comm_create_group(&of_two, comm, pair, 2, 7, &named) == CDDP_OK);
        for (int r = 0; r < size - 2; r++)
            digits *= 10;
        CHECK(digits_of(of_two) == 11 * digits);
    }
    CHECK(cddp_comm_create_group(&alone, turned, &all[rank], 1, 8, NULL) == CDDP_OK && cddp_world_size(alone) == 1);
    CHECK(digits_of(alone) > 0 && cddp_world_rank(alone, 0) == rank && digits_of(turned) == ones(size));
    CHECK(cddp_comm_create_group(&part, comm, pair, 0, 8, NULL) == CDDP_E_INVALID);
    if (rank == 0) /* in an order of each rank's own */
        CHECK(cddp_finalize(alone) == CDDP_OK && cddp_finalize(turned) == CDDP_OK && cddp_finalize(of_two) == CDDP_OK);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    if (rank != 0)
        CHECK(cddp_finalize(of_two) == CDDP_OK && cddp_finalize(alone) == CDDP_OK && cddp_finalize(turned) == CDDP_OK);
}

/* --------------------------------------------------------------------------------------------------- threads ---- */

static cddp_comm *shared;

/*
 * CUDA frees memory when all is done that runs on the GPU, the other thread's collective too; on another rank it may be
 * the other way round. So nothing is freed before both threads have ended.
 */
struct maker {
    int tag;
    int64_t *there;
};

/* Makes groups of all ranks under the tag, one after the other, and works in each. */
static void *make_groups(void *arg)
{
    const struct maker *m = arg;
    int tag = m->tag, size = cddp_world_size(shared), all[8];

    for (int r = 0; r < size; r++)
        all[r] = (r + tag) % size;
    for (int i = 0; i < 5; i++) {
        cddp_comm *of_all;

        CHECK(cddp_comm_create_group(&of_all, shared, all, (size_t)size, tag, NULL) == CDDP_OK);
        CHECK(digits_in(of_all, m->there) == ones(size) && digits_in(of_all, m->there) == ones(size));
        CHECK(cddp_finalize(of_all) == CDDP_OK);
    }
    return NULL;
}

static void threads(void)
{
    struct maker makers[2] = {{.tag = 1}, {.tag = 2}};
    pthread_t thread;

    CHECK(cddp_init(&shared, NULL) == CDDP_OK && cddp_world_size(shared) <= 8);
    for (int i = 0; i < 2; i++)
        CHECK(cddp_alloc(shared, sizeof *makers[i].there, 0, (void **)&makers[i].there) == CDDP_OK);
    CHECK(pthread_create(&thread, NULL, make_groups, &makers[cddp_rank(shared) % 2]) == 0);
    (void)make_groups(&makers[1 - cddp_rank(shared) % 2]);
    CHECK(pthread_join(thread, NULL) == 0 && digits_of(shared) == ones(cddp_world_size(shared)));
    for (int i = 0; i < 2; i++)
        cddp_free(shared, makers[i].there);
    CHECK(cddp_finalize(shared) == CDDP_OK);
}

/* ----------------------------------------------------------------------------------------------------- leave ---- */

/* Nobody is waited for: each rank leaves while the others wait for it elsewhere, and before they have left. */
static void leave(void)
{
    const cddp_split_options cpu = {.size = sizeof cpu, .backend = "cpu", .name = "control"};
    cddp_comm *comm, *control, *parts[2];
    int rank, size, all[8];

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_world_size(comm) <= 8);
    rank = cddp_rank(comm);
    size = cddp_world_size(comm);
    for (int r = 0; r < size; r++)
        all[r] = r;
    CHECK(cddp_comm_split(&control, comm, 0, 0, &cpu) == CDDP_OK);
    CHECK(cddp_comm_split(&parts[0], comm, 0, 0, NULL) == CDDP_OK);
    CHECK(cddp_comm_create_group(&parts[1], comm, all, (size_t)size, 1, NULL) == CDDP_OK);
    CHECK(digits_of(parts[0]) == ones(size) && digits_of(parts[1]) == ones(size));
    for (int turn = 0; turn < size; turn++) {
        if (turn == rank)
            CHECK(cddp_finalize(parts[rank % 2]) == CDDP_OK && cddp_finalize(parts[1 - rank % 2]) == CDDP_OK);
        CHECK(cddp_barrier(control) == CDDP_OK);
    }
    CHECK(digits_of(comm) == ones(size));
    CHECK(cddp_finalize(control) == CDDP_OK && cddp_finalize(comm) == CDDP_OK);
}

/* ----------------------------------------------------------------------------------------------------- reset ---- */

/* Resets the first connection that is not the store's: the data of the only link. */
static void reset_data(void)
{
    const struct sockaddr none = {.sa_family = AF_UNSPEC};
    const char *store = getenv("MASTER_PORT");
    int reset = -1;

    for (int fd = 3; fd < 256 && reset < 0; fd++) {
        struct sockaddr_in peer;
        socklen_t len = sizeof peer;

        if (getpeername(fd, (struct sockaddr *)&peer, &len) != 0 || peer.sin_family != AF_INET ||
            (store != NULL && ntohs(peer.sin_port) == atoi(store)))
            continue;
        CHECK(connect(fd, &none, sizeof none) == 0);
        reset = fd;
    }
    CHECK(reset >= 0); /* a connection with the other node */
}

static void reset(void)
{
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    if (cddp_rank(comm) == 1)
        reset_data();
    while (cddp_barrier(comm) == CDDP_OK)
        ;
    (void)cddp_finalize(comm);
    exit(1);
}

/* --------------------------------------------------------------------------------------------------- outlive ---- */

/* Messages whose links are made when the communicator of which this one is a part is gone. */
static void outlive(void)
{
    cddp_comm *comm, *group, *part;
    int rank, size, all[8];
    int64_t mine, got = -1, *there;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_world_size(comm) <= 8);
    rank = cddp_rank(comm);
    size = cddp_world_size(comm);
    for (int r = 0; r < size; r++)
        all[r] = r;
    CHECK(cddp_comm_create_group(&group, comm, all, (size_t)size, 1, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&part, group, 0, rank, NULL) == CDDP_OK);
    CHECK(cddp_finalize(group) == CDDP_OK);
    CHECK(cddp_alloc(part, 2 * sizeof *there, 0, (void **)&there) == CDDP_OK);
    mine = 100 + rank;
    CHECK(cddp_copy(part, there, &mine, sizeof mine) == CDDP_OK);
    CHECK(cddp_coll_run(part,
                        (cddp_coll_args[]){{.size = sizeof(cddp_coll_args),
                                            .coll = CDDP_COLL_SEND,
                                            .dtype = CDDP_INT64,
                                            .in = there,
                                            .count = 1,
                                            .root = (rank + 1) % size},
                                           {.size = sizeof(cddp_coll_args),
                                            .coll = CDDP_COLL_RECV,
                                            .dtype = CDDP_INT64,
                                            .out = there + 1,
                                            .count = 1,
                                            .root = (rank + size - 1) % size}},
                        2) == CDDP_OK);
    CHECK(cddp_copy(part, &got, there + 1, sizeof got) == CDDP_OK && got == 100 + (rank + size - 1) % size);
    cddp_free(part, there);
    CHECK(cddp_comm_split(&group, part, 0, rank, NULL) == CDDP_OK && cddp_finalize(part) == CDDP_OK);
    CHECK(digits_of(group) == ones(size));
    CHECK(cddp_finalize(group) == CDDP_OK && cddp_finalize(comm) == CDDP_OK);
}

/* ------------------------------------------------------------------------------------------------------ main ---- */

static int as_a_rank(int rank)
{
    (void)rank;
    (void)alarm(LIMIT_S);
    if (strcmp(mode, "beside") == 0)
        beside();
    else if (strcmp(mode, "again") == 0)
        again();
    else if (strcmp(mode, "group") == 0)
        group();
    else if (strcmp(mode, "leave") == 0)
        leave();
    else if (strcmp(mode, "outlive") == 0)
        outlive();
    else if (strcmp(mode, "reset") == 0)
        reset();
    else if (strcmp(mode, "threads") == 0)
        threads();
    else
        given();
    return 0;
}

int main(int argc, char **argv)
{
    bool started = getenv("RANK") != NULL || getenv("OMPI_COMM_WORLD_RANK") != NULL || getenv("PMI_RANK") != NULL;
    int bad = 0;

    CHECK(argc > 1);
    for (int i = 1; i < argc && bad == 0; i++) {
        mode = argv[i];
        if (started) {
            bad = as_a_rank(0);
            continue;
        }
        by_hand_start(free_port(), as_a_rank);
        bad = by_hand_wait();
        if (bad != 0)
            fprintf(stderr, "in mode %s\n", mode);
    }
    return bad;
}
