/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects end in any order: a communicator, a part of it, a reducer on each, and an optimizer. Whatever a call needs is
 * gone, it says so; memory of gradients stays until its reducer is destroyed; peers do not wait.
 *
 *     cddprun --standalone --nproc_per_node=2 lifetimes     its ranks join again for each of some orders
 *     lifetimes [STRIDE]     every STRIDE'th of all 120 orders: alone, and as two ranks that it starts itself
 */
#include "by_hand.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

#define N 3
#define LIMIT_S 100

enum what { WHOLE, PART, REDUCER, PART_REDUCER, OPTIM, OBJECTS };

struct objects {
    cddp_comm *whole, *part;
    cddp_ddp *reducer, *part_reducer;
    cddp_optim *optim;
    float *grad[2];    /* of the two reducers */
    float *weights[2]; /* of their models, where the backend works */
    bool gone[OBJECTS];
};

static bool on_device;

/* The order of this number, of 120. */
static void order_of(int number, enum what order[OBJECTS])
{
    enum what left[OBJECTS] = {WHOLE, PART, REDUCER, PART_REDUCER, OPTIM};

    for (int n = OBJECTS; n > 0; n--) {
        int k = number % n;

        number /= n;
        order[OBJECTS - n] = left[k];
        memmove(&left[k], &left[k + 1], (size_t)(n - k - 1) * sizeof left[0]);
    }
}

static cddp_ddp *make_reducer(cddp_comm *comm, float *weights)
{
    const cddp_param p[] = {
        {.size = sizeof(cddp_param), .name = "w", .data = weights, .count = N, .dtype = CDDP_FLOAT32},
        {.size = sizeof(cddp_param), .name = "v", .data = weights + N, .count = N, .dtype = CDDP_FLOAT32}};
    const cddp_ddp_options opt = {.size = sizeof opt, .bucket_bytes = 8, .first_bucket_bytes = 8};
    cddp_ddp *ddp;

    CHECK(cddp_ddp_create(&ddp, comm, p, 2, &opt) == CDDP_OK);
    return ddp;
}

static void make(struct objects *o)
{
    const cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 0.1};

    memset(o, 0, sizeof *o);
    CHECK(cddp_init(&o->whole, NULL) == CDDP_OK);
    on_device = strcmp(cddp_backend_name(o->whole), "nccl") == 0;
    CHECK(cddp_comm_split(&o->part, o->whole, 0, -cddp_rank(o->whole), NULL) == CDDP_OK);
    for (int k = 0; k < 2; k++)
        CHECK(cddp_alloc(o->whole, sizeof(float) * 2 * N, 0, (void **)&o->weights[k]) == CDDP_OK);
    o->reducer = make_reducer(o->whole, o->weights[0]);
    o->part_reducer = make_reducer(o->part, o->weights[1]);
    CHECK(cddp_optim_create(&o->optim, o->reducer, &sgd) == CDDP_OK);
    o->grad[0] = cddp_ddp_grad(o->reducer, 0);
    o->grad[1] = cddp_ddp_grad(o->part_reducer, 0);
    for (size_t i = 0; i < 2; i++) /* not in the order of the buckets: the ranks then agree on another one */
        CHECK(cddp_ddp_grad_ready(o->reducer, i) == CDDP_OK && cddp_ddp_grad_ready(o->part_reducer, i) == CDDP_OK);
    CHECK(cddp_optim_step(o->optim, NULL) == CDDP_OK && cddp_ddp_wait(o->part_reducer) == CDDP_OK);
}

static void end(struct objects *o, enum what what)
{
    switch (what) {
    case WHOLE:
        for (int k = 0; k < 2; k++)
            cddp_free(o->whole, o->weights[k]);
        CHECK(cddp_finalize(o->whole) == CDDP_OK);
        break;
    case PART:
        CHECK(cddp_finalize(o->part) == CDDP_OK);
        break;
    case REDUCER:
        cddp_ddp_destroy(o->reducer);
        break;
    case PART_REDUCER:
        cddp_ddp_destroy(o->part_reducer);
        break;
    case OPTIM:
        cddp_optim_destroy(o->optim);
        break;
    case OBJECTS:
        break;
    }
    o->gone[what] = true;
}

/* Remaining objects work; if an object that they need was destroyed, every call returns an error. */
static void look(const struct objects *o)
{
    cddp_error_info info = {.size = sizeof info};
    double norm;

    for (int k = 0; k < 2 && !on_device; k++)
        for (int i = 0; i < N && !o->gone[k == 0 ? REDUCER : PART_REDUCER]; i++)
            o->grad[k][i] += 1;
    if (!o->gone[REDUCER] && o->gone[WHOLE]) {
        CHECK(cddp_ddp_grad_ready(o->reducer, 0) == CDDP_E_STATE && cddp_ddp_wait(o->reducer) == CDDP_E_STATE);
        CHECK(strstr(cddp_last_error(), "cddp_finalize") != NULL);
        CHECK(cddp_ddp_grad_norm(o->reducer, 2, &norm) == CDDP_E_STATE);
        CHECK(cddp_ddp_grad(o->reducer, 0) == o->grad[0] && cddp_ddp_grad(o->reducer, 2) == NULL);
        CHECK(cddp_ddp_bucket_count(o->reducer) == 2 && cddp_ddp_grad_scale(o->reducer) == 1);
    }
    if (!o->gone[PART_REDUCER] && (o->gone[WHOLE] || o->gone[PART]))
        CHECK(cddp_ddp_grad_ready(o->part_reducer, 0) == CDDP_E_STATE &&
              cddp_ddp_sync_buffers(o->part_reducer) == CDDP_E_STATE &&
              cddp_ddp_grad(o->part_reducer, 0) == o->grad[1]);
    if (!o->gone[PART] && o->gone[WHOLE]) {
        CHECK(cddp_barrier(o->part) == CDDP_E_STATE && strstr(cddp_last_error(), "it is a part of") != NULL);
        CHECK(cddp_comm_error(o->part, &info) == CDDP_E_STATE && cddp_comm_store(o->part) == NULL);
        CHECK(cddp_world_size(o->part) >= 1 && cddp_stop_requested(o->part) == 0);
        cddp_abort(o->part, "it is over, so this does nothing");
    }
    if (!o->gone[OPTIM]) {
        bool works = !o->gone[REDUCER] && !o->gone[WHOLE];

        CHECK(cddp_optim_set_lr(o->optim, 0.2) == (works ? CDDP_OK : CDDP_E_STATE));
        if (!works)
            CHECK(cddp_optim_step(o->optim, NULL) == CDDP_E_STATE && cddp_optim_skip(o->optim) == CDDP_E_STATE);
    }
    if (!o->gone[WHOLE])
        CHECK(cddp_comm_error(o->whole, NULL) == CDDP_OK);
}

/* Makes all objects, and ends them in the order of that number. */
static void live(int number)
{
    enum what order[OBJECTS];
    struct objects o;

    order_of(number, order);
    make(&o);
    for (int i = 0; i < OBJECTS; i++) {
        end(&o, order[i]);
        look(&o);
    }
}

static int of_rank_0; /* the number of its order */

/* The two ranks have different orders, and neither waits for the other. */
static int as_a_rank(int rank)
{
    live(rank == 0 ? of_rank_0 : (of_rank_0 * 7 + 60) % 120);
    return 0;
}

/*
 * Rank 1 gives up in the middle of a step, as a program that unwinds an exception: there is no peer with which its
 * buckets could end, and it does not wait for that. Rank 0 hears of it in its wait.
 */
static int one_unwinds(int rank)
{
    static float weights[2 * N];
    const struct timespec second = {.tv_sec = 1};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm;
    cddp_ddp *ddp;
    time_t begun;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    ddp = make_reducer(comm, weights);
    if (rank == 0)
        (void)nanosleep(&second, NULL);
    CHECK(cddp_ddp_grad_ready(ddp, 1) == CDDP_OK);
    if (rank == 1) {
        begun = time(NULL);
        cddp_ddp_destroy(ddp);
        CHECK(cddp_finalize(comm) == CDDP_OK && time(NULL) - begun < LIMIT_S / 2);
        return 0;
    }
    (void)cddp_ddp_grad_ready(ddp, 0); /* which may hear of it first, as the thread that reduces has */
    CHECK(cddp_ddp_wait(ddp) != CDDP_OK);
    cddp_last_error_info(&info);
    CHECK(info.rank == 1 && (info.status == CDDP_E_PEER || info.status == CDDP_E_ABORTED));
    cddp_ddp_destroy(ddp);
    CHECK(cddp_finalize(comm) == info.status);
    return 0;
}

static bool wants_gpu(void)
{
    const char *backend = getenv("CDDP_BACKEND");

    return backend != NULL && strcmp(backend, "nccl") == 0;
}

int main(int argc, char **argv)
{
    long stride = argc > 1 ? strtol(argv[1], NULL, 10) : 1;

    CHECK(stride > 0);
    (void)alarm(LIMIT_S);
    /* The pairs first: a child of a process that has used a GPU cannot use it. */
    for (of_rank_0 = 0; of_rank_0 < 120 && getenv("RANK") == NULL; of_rank_0 += (int)stride) {
        by_hand_start(free_port(), as_a_rank);
        if (by_hand_wait() != 0) {
            fprintf(stderr, "with order %d\n", of_rank_0);
            return 1;
        }
        port_release();
    }
    if (getenv("RANK") == NULL && !wants_gpu()) { /* there it waits for the GPU */
        by_hand_start(free_port(), one_unwinds);
        if (by_hand_wait() != 0)
            return 1;
    }
    for (int number = 0; number < 120; number += (int)stride)
        live(number);
    return 0;
}
