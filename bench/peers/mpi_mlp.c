/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The MLP of mlp.h with MPI, as somebody would write it by hand: one MPI_Iallreduce for each bucket, begun while the
 * backward pass goes on, and MPI_Testall whenever a layer is done, which lets MPI move those that are under way.
 *
 *     mpi_mlp BATCH STEPS BUCKET_MIB [thread]
 *
 * Every second step does not synchronise, like those of "mlp_train alternate". With "thread" one more thread waits in
 * MPI, for progress meanwhile. Compiled by ddp_step.py with each mpicc that there is.
 */
#include "../mlp_train.h"

#include <mpi.h>
#include <pthread.h>

struct bucket {
    float *grads;
    int count;
    size_t params, left; /* how many are in it, and how many of them are not ready */
};

static struct bucket buckets[MLP_PARAMS];
static size_t n_buckets, bucket_of[MLP_PARAMS];
static MPI_Request requests[MLP_PARAMS];
static int n_begun;

/* The last layer comes first, and each bucket is one piece of memory. */
static void make_buckets(struct trainer *t, size_t most_bytes)
{
    size_t all = 0, at = 0;
    float *grads;

    for (size_t i = 0; i < MLP_PARAMS; i++)
        all += mlp_param_count(i);
    grads = memory(all, sizeof *grads);
    for (size_t i = MLP_PARAMS; i-- > 0;) {
        size_t count = mlp_param_count(i);
        struct bucket *b = &buckets[n_buckets];

        if (b->params > 0 && ((size_t)b->count + count) * sizeof(float) > most_bytes)
            b = &buckets[++n_buckets];
        if (b->params++ == 0)
            b->grads = grads + at;
        t->grads[i] = grads + at;
        b->count += (int)count;
        bucket_of[i] = n_buckets;
        at += count;
    }
    n_buckets++;
}

/* MPI's default error handler ends the job. */
static void ready(void *arg, size_t i)
{
    struct bucket *b = &buckets[bucket_of[i]];
    int done;

    (void)arg;
    if (--b->left == 0)
        (void)MPI_Iallreduce(MPI_IN_PLACE, b->grads, b->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                             &requests[n_begun++]);
    (void)MPI_Testall(n_begun, requests, &done, MPI_STATUSES_IGNORE);
}

static void note(struct times *times, double grads, double step)
{
    double two[2] = {grads, step};

    (void)MPI_Allreduce(MPI_IN_PLACE, two, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    times->grads[times->n] = two[0];
    times->step[times->n++] = two[1];
}

/* Waits for a message that comes at the end: a thread that waits in MPI lets it move everything. */
static void *progress(void *comm)
{
    (void)MPI_Recv(NULL, 0, MPI_BYTE, 0, 0, *(MPI_Comm *)comm, MPI_STATUS_IGNORE);
    return NULL;
}

static double train(size_t batch, long steps, size_t most_bytes, struct times *times)
{
    struct trainer t = {0};
    int rank, n;
    double loss = 0;

    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &n);
    trainer_init(&t, batch);
    own_params(&t);
    make_buckets(&t, most_bytes);
    for (long step = 0; step < steps; step++) {
        bool sync = step % 2 == 0;
        double began, grads;

        load(&t, step, rank, n);
        n_begun = 0;
        for (size_t b = 0; b < n_buckets; b++)
            buckets[b].left = buckets[b].params;
        (void)MPI_Barrier(MPI_COMM_WORLD);
        began = now_ms();
        loss = pass(&t, sync ? ready : NULL, NULL);
        (void)MPI_Waitall(n_begun, requests, MPI_STATUSES_IGNORE);
        grads = now_ms();
        if (sync)
            sgd(&t, RATE / (float)n); /* of sums, which spares dividing them */
        note(times, grads - began, now_ms() - began);
    }
    (void)MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        print("alternate", n, batch, times, loss / n);
    return loss;
}

int main(int argc, char **argv)
{
    static struct times times;
    long batch = argc > 1 ? strtol(argv[1], NULL, 10) : 0, steps = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
    long mib = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    bool threaded = argc == 5 && strcmp(argv[4], "thread") == 0;
    int wanted = threaded ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, given;
    MPI_Comm self;
    pthread_t thread;

    if (batch < 1 || batch > 100000 || steps < 4 || steps > MAX_STEPS || mib < 1 || mib > 1024 ||
        (argc != 4 && !threaded)) {
        (void)fprintf(stderr, "usage: mpi_mlp BATCH STEPS BUCKET_MIB [thread]\n");
        return 2;
    }
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 0);
    (void)MPI_Init_thread(&argc, &argv, wanted, &given);
    if (given < wanted)
        die("this MPI has no threads");
    (void)MPI_Comm_dup(MPI_COMM_SELF, &self);
    if (threaded && pthread_create(&thread, NULL, progress, &self) != 0)
        die("cannot start a thread");
    (void)train((size_t)batch, steps, (size_t)mib << 20, &times);
    if (threaded) {
        (void)MPI_Send(NULL, 0, MPI_BYTE, 0, 0, self);
        (void)pthread_join(thread, NULL);
    }
    (void)MPI_Comm_free(&self);
    (void)MPI_Finalize();
    return 0;
}
