/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that has begun MPI itself, for a level of threads (argv), and then uses libcddp over it: its own calls work
 * before, between and after, and libcddp does not finalise what it has not begun. Of a second thread's call it is told,
 * where its level forbids it.
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
        NEED(st == CDDP_E_INVALID && strstr(cddp_last_error(), "begun MPI for one thread alone") != NULL);
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

int main(int argc, char **argv)
{
    const char *level = argc > 1 ? argv[1] : "";
    int want = strcmp(level, "multiple") == 0     ? MPI_THREAD_MULTIPLE
               : strcmp(level, "serialized") == 0 ? MPI_THREAD_SERIALIZED
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
