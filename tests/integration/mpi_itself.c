/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that has begun MPI itself, for a level of threads (argv), and then uses libcddp over it: its own calls work
 * before, between and after, and libcddp does not finalise what it has not begun. A call from a
 * second thread fails if its level forbids it. "communicators": jobs on its own communicators, beside that of all
 * ranks.
 */
#include <cddp/cddp.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(cond)                                                                                   \
    do {                                                                                             \
        if (!(cond)) {                                                                               \
            (void)fprintf(stderr, "%s:%d: %s [%s]\n", __FILE__, __LINE__, #cond, cddp_last_error()); \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

static void own_sum(int rank, int size)
{
    int sum = 0;

    (void)MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    NEED(sum == size * (size - 1) / 2);
}

static void *from_a_thread(void *arg)
{
    float x = 1;
    cddp_status st = cddp_all_reduce(arg, &x, &x, 1, CDDP_FLOAT32, CDDP_SUM);

    if (st != CDDP_OK)
        NEED(st == CDDP_E_INVALID && strstr(cddp_last_error(), "MPI for one thread only") != NULL);
    return (void *)(size_t)(st == CDDP_OK);
}

static void step(cddp_comm *comm)
{
    float data[1000] = {0};
    const cddp_param param = {
        .size = sizeof(cddp_param), .name = "w", .data = data, .count = 1000, .dtype = CDDP_FLOAT32};
    float *grad;
    cddp_ddp *ddp;

    NEED(cddp_ddp_create(&ddp, comm, &param, 1, NULL) == CDDP_OK);
    grad = cddp_ddp_grad(ddp, 0);
    for (int k = 0; k < 10; k++) {
        for (int i = 0; i < 1000; i++)
            grad[i] = (float)(cddp_rank(comm) + k);
        NEED(cddp_ddp_grad_ready(ddp, 0) == CDDP_OK);
        NEED(cddp_ddp_wait(ddp) == CDDP_OK);
        NEED(grad[999] == (float)(cddp_world_size(comm) - 1) / 2 + (float)k);
    }
    cddp_ddp_destroy(ddp);
}

/* A job of the ranks of `of`, which connect by an id. */
static cddp_status join(cddp_comm **out, MPI_Comm *of, int turn)
{
    cddp_init_options opt = {.size = sizeof opt, .mpi_comm = of, .backend = "mpi", .join_timeout_ms = 20000};
    cddp_unique_id id = {.bytes = {0}};

    (void)MPI_Comm_rank(*of, &opt.rank);
    (void)MPI_Comm_size(*of, &opt.world_size);
    if (opt.rank == 0)
        NEED(cddp_unique_id_create(&id) == CDDP_OK);
    (void)MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, *of);
    opt.id = &id;
    opt.rank = (opt.rank + turn) % opt.world_size;
    return cddp_init(out, &opt);
}

static void on_communicators(cddp_comm *all, int rank, int size)
{
    cddp_init_options opt = {.size = sizeof opt, .backend = "mpi", .world_size = 1};
    MPI_Comm none = MPI_COMM_NULL, self = MPI_COMM_SELF;
    cddp_comm *comm = NULL, *part, *kept = NULL;
    int sub_size, sub_rank;

    for (int i = 0; i < 4; i++) { /* the last ones beside one that is still there, on the same ranks */
        MPI_Comm sub;

        NEED(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &sub) == MPI_SUCCESS);
        (void)MPI_Comm_rank(sub, &sub_rank);
        (void)MPI_Comm_size(sub, &sub_size);
        NEED(join(&comm, &sub, 0) == CDDP_OK);
        (void)MPI_Comm_free(&sub);
        NEED(cddp_rank(comm) == sub_rank && cddp_world_size(comm) == sub_size);
        step(comm);
        NEED(cddp_comm_split(&part, comm, 0, 0, NULL) == CDDP_OK);
        step(part);
        step(all);
        if (kept != NULL)
            step(kept);
        NEED(cddp_finalize(part) == CDDP_OK);
        if (i == 1) {
            kept = comm;
            continue;
        }
        NEED(cddp_finalize(comm) == CDDP_OK);
        own_sum(rank, size);
    }
    NEED(cddp_finalize(kept) == CDDP_OK);
    /* Invalid arguments. */
    opt.mpi_comm = &none;
    NEED(cddp_init(&comm, &opt) == CDDP_E_INVALID && strstr(cddp_last_error(), "MPI_COMM_NULL") != NULL);
    opt.mpi_comm = &self;
    opt.backend = "cpu";
    NEED(cddp_init(&comm, &opt) == CDDP_E_INVALID && strstr(cddp_last_error(), "this is \"cpu\"") != NULL);
    opt.backend = "mpi";
    NEED(cddp_init(&comm, &opt) == CDDP_OK);
    step(comm);
    NEED(cddp_finalize(comm) == CDDP_OK);
    if (size > 1) {
        MPI_Comm world = MPI_COMM_WORLD;

        NEED(join(&comm, &world, 1) == CDDP_E_INVALID);
        NEED(strstr(cddp_last_error(), "of cddp_init_options.mpi_comm: give world_size and rank") != NULL);
    }
    step(all);
}

int main(int argc, char **argv)
{
    const char *level = argc > 1 ? argv[1] : "";
    int want = strcmp(level, "multiple") == 0 || strcmp(level, "communicators") == 0 ? MPI_THREAD_MULTIPLE
               : strcmp(level, "serialized") == 0                                    ? MPI_THREAD_SERIALIZED
                                                                                     : MPI_THREAD_SINGLE;
    int got, rank, size, finalised = 1;
    cddp_comm *comm, *part;
    pthread_t thread;
    void *could;

    NEED(MPI_Init_thread(&argc, &argv, want, &got) == MPI_SUCCESS && got >= want);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
    own_sum(rank, size);
    NEED(cddp_init(&comm, NULL) == CDDP_OK);
    NEED(strcmp(cddp_backend_name(comm), "mpi") == 0 && cddp_rank(comm) == rank);
    step(comm);
    own_sum(rank, size);
    if (strcmp(level, "communicators") == 0)
        on_communicators(comm, rank, size);
    NEED(cddp_comm_split(&part, comm, rank % 2, 0, NULL) == CDDP_OK &&
         cddp_world_size(part) == (size + 1 - rank % 2) / 2);
    NEED(cddp_finalize(part) == CDDP_OK);
    NEED(pthread_create(&thread, NULL, from_a_thread, comm) == 0 && pthread_join(thread, &could) == 0);
    NEED((could != NULL) == (got >= MPI_THREAD_SERIALIZED));
    if (could != NULL)
        NEED(cddp_barrier(comm) == CDDP_OK);
    (void)cddp_finalize(comm);
    NEED(MPI_Finalized(&finalised) == MPI_SUCCESS && !finalised);
    own_sum(rank, size);
    (void)MPI_Finalize();
    (void)printf("fine\n");
    return 0;
}
