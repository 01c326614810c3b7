/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communication hooks on a GPU, as a user writes them, with kernels: one sends float32 gradients as bfloat16, another
 * starts the sum and scales it afterwards, a third makes a reduce-scatter and an all-gather of an all-reduce. The host
 * waits only after the last step; then the means of every step must be right: whole numbers in every type and order.
 * Started by cddprun, on a GPU or on its stand-in.
 *
 *     hook [own_stream]    own_stream: a wrong hook, whose kernels are not on the stream that it gets
 *
 * Exit status: 0 success, 3 a wrong result, 1 an error (with a message), 77 no GPU.
 */
#include "card_job.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define STEPS 5 /* buckets are launched in another order from the third on */
#define MOST_RANKS 8

#define LAST_COUNT 20000 /* elements of the last parameter */

struct job {
    cddp_comm *comm;
    cddp_ddp *ddp;
    struct card card;
    CUstream compute;
    void *data[LAYERS];
    float *made, *came; /* gradients of all steps, like those of a backward pass; and their results */
    float *early;       /* of the last parameter, which has its own wait */
    void *sent[LAYERS]; /* a bucket in flight, by its number: no more of them than parameters */
    bool own_stream;
};

/* -------------------------------------------------------------------------------------------------- the hooks ---- */

static cddp_status cast(struct job *j, const cddp_bucket *b, void *to, cddp_dtype to_type, const void *from,
                        cddp_dtype from_type)
{
    struct cdi_launch l;
    cddp_status st = cdi_launch_cast(&l, j->card.n_sm, to, to_type, from, from_type, b->count, 1, NULL);

    if (st == CDDP_OK)
        card_launch(&j->card, j->own_stream ? j->compute : (CUstream)b->stream, &l);
    return st;
}

/* The data to send is made on the bucket's stream, so that the collective is ordered after it. */
static cddp_status begin_narrow(void *arg, cddp_comm *comm, const cddp_bucket *b, uint64_t *ticket)
{
    struct job *j = arg;
    cddp_coll_args work = {.size = sizeof work,
                           .coll = CDDP_COLL_ALL_REDUCE,
                           .dtype = CDDP_BFLOAT16,
                           .op = CDDP_AVG,
                           .in = j->sent[b->index],
                           .out = j->sent[b->index],
                           .count = b->count};
    cddp_status st = cast(j, b, j->sent[b->index], CDDP_BFLOAT16, b->data, CDDP_FLOAT32);

    return st == CDDP_OK ? cddp_coll_start(comm, &work, 1, ticket) : st;
}

/* The result is ready for kernels on that stream. */
static cddp_status end_narrow(void *arg, cddp_comm *comm, const cddp_bucket *b)
{
    struct job *j = arg;

    (void)comm;
    return cast(j, b, b->data, CDDP_FLOAT32, j->sent[b->index], CDDP_BFLOAT16);
}

/* Everything in begin: a kernel after the collective reads the sum. It needs no end. */
static cddp_status begin_sum(void *arg, cddp_comm *comm, const cddp_bucket *b, uint64_t *ticket)
{
    struct job *j = arg;
    cddp_coll_args work = {.size = sizeof work,
                           .coll = CDDP_COLL_ALL_REDUCE,
                           .dtype = CDDP_FLOAT32,
                           .op = CDDP_SUM,
                           .in = b->data,
                           .out = b->data,
                           .count = b->count};
    cddp_status st = cddp_coll_start(comm, &work, 1, ticket);
    struct cdi_launch l;

    if (st == CDDP_OK)
        st = cdi_launch_scale(&l, j->card.n_sm, b->data, b->count, CDDP_FLOAT32, 1.0 / cddp_world_size(comm), NULL);
    if (st == CDDP_OK)
        card_launch(&j->card, b->stream, &l);
    return st;
}

/* Collectives in both functions. The remainder of the division by ranks is sent unchanged. */
static cddp_status begin_scatter(void *arg, cddp_comm *comm, const cddp_bucket *b, uint64_t *ticket)
{
    size_t n = (size_t)cddp_world_size(comm), part = b->count / n, rest = part * n;
    cddp_coll_args work = {.size = sizeof work,
                           .coll = CDDP_COLL_REDUCE_SCATTER,
                           .dtype = CDDP_FLOAT32,
                           .op = CDDP_AVG,
                           .in = b->data,
                           .out = (float *)b->data + part * (size_t)cddp_rank(comm),
                           .count = part};
    cddp_coll_args tail = {.size = sizeof tail,
                           .coll = CDDP_COLL_ALL_REDUCE,
                           .dtype = CDDP_FLOAT32,
                           .op = CDDP_AVG,
                           .in = (float *)b->data + rest,
                           .out = (float *)b->data + rest,
                           .count = b->count - rest};
    cddp_status st = cddp_coll_start(comm, &work, 1, ticket);

    (void)arg;
    return st == CDDP_OK ? cddp_coll_start(comm, &tail, 1, ticket) : st;
}

static cddp_status end_scatter(void *arg, cddp_comm *comm, const cddp_bucket *b)
{
    size_t part = b->count / (size_t)cddp_world_size(comm);
    uint64_t ticket;
    cddp_coll_args work = {.size = sizeof work,
                           .coll = CDDP_COLL_ALL_GATHER,
                           .dtype = CDDP_FLOAT32,
                           .in = (float *)b->data + part * (size_t)cddp_rank(comm),
                           .out = b->data,
                           .count = part};

    (void)arg;
    return cddp_coll_start(comm, &work, 1, &ticket); /* it is not joined: the compute stream waits for it */
}

/* -------------------------------------------------------------------------------------------------- training ---- */

/* Whole numbers, like the mean; below 256, so that bfloat16 holds them and their sums too. */
static float gradient(int rank, int step, size_t i)
{
    return (float)(2 * rank * (step % 3 + 1) + (int)i);
}

static float mean(int n, int step, size_t i)
{
    return (float)((n - 1) * (step % 3 + 1) + (int)i);
}

/* Returns the place of a step's gradient among those of all steps. */
static size_t place(int step, size_t i)
{
    size_t at = (size_t)step * LAYERS_ALL;

    for (size_t k = 0; k < i; k++)
        at += layer_counts[k];
    return at;
}

/* Enqueues the work of the device for all steps, without a wait. */
static void train(struct job *j)
{
    for (int step = 0; step < STEPS; step++) {
        for (size_t i = LAYERS; i-- > 0;) {
            card_copy(&j->card, cddp_ddp_grad(j->ddp, i), j->made + place(step, i), layer_counts[i]);
            must(cddp_ddp_grad_ready(j->ddp, i));
        }
        must(cddp_ddp_wait_param(j->ddp, 3));
        card_copy(&j->card, j->early + step * LAST_COUNT, cddp_ddp_grad(j->ddp, 3), LAST_COUNT);
        must(cddp_ddp_wait(j->ddp));
        for (size_t i = 0; i < LAYERS; i++)
            card_copy(&j->card, j->came + place(step, i), cddp_ddp_grad(j->ddp, i), layer_counts[i]);
    }
    CARD(&j->card, cuStreamSynchronize, j->compute);
}

static void compare(struct job *j, const char *what, const float *x, int step, size_t i)
{
    const int n = cddp_world_size(j->comm);
    const float want = mean(n, step, i), slack = (n & (n - 1)) != 0 ? want / 64 : 0; /* bfloat16 has no 1/3 */

    for (size_t k = 0; k < layer_counts[i]; k++) {
        if (x[k] >= want - slack && x[k] <= want + slack)
            continue;
        (void)fprintf(stderr, "rank %d: %s: wrong result: step %d, parameter %zu, element %zu is %g, not %g\n",
                      cddp_rank(j->comm), what, step, i, k, (double)x[k], (double)want);
        exit(WRONG);
    }
}

static void run(struct job *j, const char *what, const cddp_hook *hook)
{
    static float came[STEPS * LAYERS_ALL], early[STEPS * LAST_COUNT];

    must(cddp_ddp_set_hook(j->ddp, hook));
    train(j);
    must(cddp_copy(j->comm, came, j->came, sizeof came));
    must(cddp_copy(j->comm, early, j->early, sizeof early));
    for (int step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < LAYERS; i++)
            compare(j, what, came + place(step, i), step, i);
        compare(j, what, early + step * LAST_COUNT, step, LAYERS - 1);
    }
}

static void make_gradients(struct job *j)
{
    static float x[STEPS * LAYERS_ALL];

    for (int step = 0; step < STEPS; step++)
        for (size_t i = 0; i < LAYERS; i++)
            for (size_t k = 0; k < layer_counts[i]; k++)
                x[place(step, i) + k] = gradient(cddp_rank(j->comm), step, i);
    j->made = memory(j->comm, sizeof x);
    j->came = memory(j->comm, sizeof x);
    j->early = memory(j->comm, STEPS * LAST_COUNT * sizeof x[0]);
    must(cddp_copy(j->comm, j->made, x, sizeof x));
}

static void open_job(struct job *j)
{
    card_join(&j->comm, &j->card);
    if (cddp_world_size(j->comm) > MOST_RANKS)
        card_die("hook: at most %d ranks, or sums are no longer whole numbers in bfloat16", MOST_RANKS);
    j->compute = j->card.stream;
    make_gradients(j);
    j->ddp = card_layers(j->comm, &j->card, j->data);
    for (size_t b = 0; b < cddp_ddp_bucket_count(j->ddp); b++)
        j->sent[b] = memory(j->comm, (LAYERS_ALL + LAYERS * 16) * sizeof(uint16_t)); /* room for any bucket */
}

static void close_job(struct job *j)
{
    cddp_ddp_destroy(j->ddp);
    for (size_t i = 0; i < LAYERS; i++) {
        cddp_free(j->comm, j->data[i]);
        cddp_free(j->comm, j->sent[i]);
    }
    cddp_free(j->comm, j->made);
    cddp_free(j->comm, j->came);
    cddp_free(j->comm, j->early);
    card_close(&j->card);
    must(cddp_finalize(j->comm));
}

int main(int argc, char **argv)
{
    static struct job j;
    const cddp_hook narrow = {.size = sizeof narrow, .begin = begin_narrow, .end = end_narrow, .arg = &j};
    const cddp_hook sum = {.size = sizeof sum, .begin = begin_sum, .arg = &j};
    const cddp_hook scatter = {.size = sizeof scatter, .begin = begin_scatter, .end = end_scatter, .arg = &j};

    j.own_stream = argc > 1 && strcmp(argv[1], "own_stream") == 0;
    open_job(&j);
    run(&j, "sent as bfloat16", &narrow);
    run(&j, "without a hook", NULL);
    run(&j, "summed and scaled", &sum);
    run(&j, "scattered and gathered", &scatter);
    if (cddp_rank(j.comm) == 0)
        printf("{\"hooks\":3,\"steps\":%d,\"buckets\":%zu,\"ranks\":%d}\n", STEPS, cddp_ddp_bucket_count(j.ddp),
               cddp_world_size(j.comm));
    close_job(&j);
    return 0;
}
