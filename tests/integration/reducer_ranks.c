/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reducer over real ranks; started by cddprun, every rank checks for itself and exits 0 if all was as it should be.
 * Memory is where the backend has it, so the same program runs on a GPU.
 *   mean      many gradients of several types and owners, ready in another order on each rank, from two threads:
 *             every element is the mean in rank order, to the last bit, in every step
 *   late      rank 1 waits for a step only after rank 0 has returned from its wait for the same step
 *   missing   rank 1 omits a gradient: its error names it, and those of its peers name rank 1
 *   abort     rank 0 aborts from another thread while all others wait
 *   twice     two threads of rank 0 end the same step: one of them gets an error, without other effects
 */
#include "rank_check.h"

#include <cddp/cddp.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_PARAMS 40
#define STEPS 12

static cddp_comm *comm;
static cddp_ddp *the_ddp; /* of check_twice */
static int rank, n_ranks;
static bool on_device; /* then sums are made in NCCL's order, and errors come with the call after the next */

/* --------------------------------------------------------------------------------------------------- a model ---- */

static cddp_param params[N_PARAMS];

/* Any function of these that has no pattern: splitmix64. */
static uint64_t mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t z = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu + d + 1;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t bytes_of(const cddp_param *p)
{
    return p->count * cddp_dtype_size(p->dtype);
}

/* Zeroed. */
static void *memory(const cddp_param *p)
{
    void *zero = calloc(p->count, cddp_dtype_size(p->dtype)), *m = NULL;

    CHECK(cddp_alloc(comm, bytes_of(p), 0, &m) == CDDP_OK && cddp_copy(comm, m, zero, bytes_of(p)) == CDDP_OK,
          "memory");
    free(zero);
    return m;
}

static void make_model(void)
{
    static const cddp_dtype types[] = {CDDP_FLOAT32, CDDP_FLOAT32, CDDP_FLOAT64, CDDP_BFLOAT16};

    for (size_t i = 0; i < N_PARAMS; i++) {
        char name[16];
        cddp_param *p = &params[i];

        (void)snprintf(name, sizeof name, "layer%zu", i);
        p->size = sizeof *p;
        p->name = strdup(name);
        p->dtype = types[mix(1, i, 0, 0) % 4];
        p->count = 1 + mix(2, i, 0, 0) % (i % 7 == 0 ? 30000 : 500);
        p->data = memory(p);
        p->grad = i % 5 == 2 ? memory(p) : NULL;
    }
}

static void free_model(void)
{
    for (size_t i = 0; i < N_PARAMS; i++) {
        free((void *)(uintptr_t)params[i].name);
        cddp_free(comm, params[i].data);
        cddp_free(comm, params[i].grad);
    }
}

static float from_bf16(uint16_t h)
{
    uint32_t word = (uint32_t)h << 16;
    float f;

    memcpy(&f, &word, sizeof f);
    return f;
}

static uint16_t to_bf16(float f) /* to nearest, ties to even; no NaN here */
{
    uint32_t word;

    memcpy(&word, &f, sizeof f);
    return (uint16_t)((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
}

/* Rank r's gradient in a step, as that rank would have made it: from -1 to 1. */
static double made(int r, int step, size_t i, size_t k)
{
    return (double)(int64_t)mix((uint64_t)r * 1000 + (uint64_t)step, i, k, 7) / 9223372036854775808.0;
}

static void write_grad(const cddp_param *p, void *to, int step, size_t i)
{
    void *grad = malloc(bytes_of(p));

    for (size_t k = 0; k < p->count; k++) {
        double v = made(rank, step, i, k);

        if (p->dtype == CDDP_FLOAT32)
            ((float *)grad)[k] = (float)v;
        else if (p->dtype == CDDP_FLOAT64)
            ((double *)grad)[k] = v;
        else
            ((uint16_t *)grad)[k] = to_bf16((float)v);
    }
    CHECK(cddp_copy(comm, to, grad, bytes_of(p)) == CDDP_OK, "copy");
    free(grad);
}

/* To the last bit; on a device as near as its order and its rounding of narrow types let it be. */
static bool same(double got, double want, double slack)
{
    double off = got > want ? got - want : want - got;

    return on_device ? off <= slack : got == want;
}

static void check_grad(const cddp_param *p, const void *from, int step, size_t i)
{
    void *grad = malloc(bytes_of(p));

    CHECK(cddp_copy(comm, grad, from, bytes_of(p)) == CDDP_OK, "copy");
    for (size_t k = 0; k < p->count; k++) {
        double sum64 = made(0, step, i, k);
        float sum32 = (float)sum64, sum16 = from_bf16(to_bf16((float)sum64));

        for (int r = 1; r < n_ranks; r++) {
            double v = made(r, step, i, k);

            sum64 += v;
            sum32 += (float)v;
            sum16 += from_bf16(to_bf16((float)v));
        }
        if (p->dtype == CDDP_FLOAT32)
            CHECK(same((double)((const float *)grad)[k], (double)(sum32 * (1.0f / (float)n_ranks)), 1e-6),
                  "step %d, '%s'[%zu]", step, p->name, k);
        else if (p->dtype == CDDP_FLOAT64)
            CHECK(same(((const double *)grad)[k], sum64 * (1.0 / n_ranks), 1e-14), "step %d, '%s'[%zu]", step, p->name,
                  k);
        else
            CHECK(same((double)from_bf16(((const uint16_t *)grad)[k]),
                       (double)from_bf16(to_bf16(sum16 * (1.0f / (float)n_ranks))), 1.0 / 64),
                  "step %d, '%s'[%zu]", step, p->name, k);
    }
    free(grad);
}

/* ------------------------------------------------------------------------------------------------------ mean ---- */

struct crew {
    cddp_ddp *ddp;
    int step;
    size_t order[N_PARAMS];
    _Atomic size_t next;
};

static void *hand_over(void *arg)
{
    struct crew *c = arg;
    size_t at;

    while ((at = atomic_fetch_add(&c->next, 1)) < N_PARAMS) {
        size_t i = c->order[at];

        write_grad(&params[i], cddp_ddp_grad(c->ddp, i), c->step, i);
        CHECK(cddp_ddp_grad_ready(c->ddp, i) == CDDP_OK, "step %d, parameter %zu", c->step, i);
    }
    return NULL;
}

static void shuffle(struct crew *c)
{
    for (size_t i = 0; i < N_PARAMS; i++) {
        size_t j = mix((uint64_t)rank, (uint64_t)c->step, i, 3) % (i + 1);

        c->order[i] = c->order[j];
        c->order[j] = i;
    }
}

static void mean(const cddp_ddp_options *opt)
{
    struct crew c = {.next = 0};
    void *before[N_PARAMS];

    CHECK(cddp_ddp_create(&c.ddp, comm, params, N_PARAMS, opt) == CDDP_OK, "create");
    for (size_t i = 0; i < N_PARAMS; i++)
        before[i] = cddp_ddp_grad(c.ddp, i);
    for (c.step = 0; c.step < STEPS; c.step++) {
        pthread_t other;

        shuffle(&c);
        c.next = 0;
        CHECK(pthread_create(&other, NULL, hand_over, &c) == 0, "thread");
        (void)hand_over(&c);
        (void)pthread_join(other, NULL);
        CHECK(cddp_ddp_wait(c.ddp) == CDDP_OK, "step %d", c.step);
        for (size_t i = 0; i < N_PARAMS; i++) {
            CHECK(cddp_ddp_grad(c.ddp, i) == before[i], "gradient %zu moved", i);
            check_grad(&params[i], before[i], c.step, i);
        }
    }
    cddp_ddp_destroy(c.ddp);
}

static void check_means(void)
{
    const cddp_ddp_options cuts[] = {
        {.size = sizeof cuts[0]},
        {.size = sizeof cuts[0], .first_bucket_bytes = 1, .bucket_bytes = 1},
        {.size = sizeof cuts[0], .first_bucket_bytes = 5000, .bucket_bytes = 40000},
    };

    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++)
        mean(&cuts[i]);
}

/*
 * Steps in which rank 1 is late alternate with others, and follow one another: a late rank delays no other, whether its
 * lateness was to be expected or not.
 */
static void late(size_t n, const cddp_ddp_options *opt)
{
    static const bool is_late[] = {true, false, false, true, true, true, false, true};
    static int run;
    cddp_store *store = cddp_comm_store(comm);
    cddp_ddp *ddp;

    run++;
    CHECK(cddp_ddp_create(&ddp, comm, params, n, opt) == CDDP_OK, "create");
    for (size_t step = 0; step < sizeof is_late / sizeof is_late[0]; step++) {
        char key[32], value[8];
        size_t len;

        (void)snprintf(key, sizeof key, "late/%d/%zu", run, step);
        for (size_t i = n; i-- > 0;)
            CHECK(cddp_ddp_grad_ready(ddp, i) == CDDP_OK, "step %zu", step);
        if (rank == 1 && is_late[step])
            CHECK(cddp_store_get(store, key, value, sizeof value, &len, 20000) == CDDP_OK,
                  "step %zu of %zu buckets: rank 0 waits for a thread of this rank", step, cddp_ddp_bucket_count(ddp));
        CHECK(cddp_ddp_wait(ddp) == CDDP_OK, "step %zu", step);
        if (rank == 0 && is_late[step])
            CHECK(cddp_store_set(store, key, "1", 1) == CDDP_OK, "store");
    }
    cddp_ddp_destroy(ddp);
}

static void check_late(void)
{
    const cddp_ddp_options small = {.size = sizeof small, .first_bucket_bytes = 5000, .bucket_bytes = 40000};

    late(1, NULL); /* one bucket */
    late(N_PARAMS, &small);
}

/* -------------------------------------------------------------------------------------------------- failures ---- */

static void check_missing(void)
{
    cddp_ddp *ddp;
    cddp_status status = CDDP_OK;

    CHECK(cddp_ddp_create(&ddp, comm, params, N_PARAMS, NULL) == CDDP_OK, "create");
    for (int step = 0; step < 4 && status == CDDP_OK; step++) {
        for (size_t i = N_PARAMS; i-- > 0;)
            if (rank != 1 || step != 3 || i != 17)
                (void)cddp_ddp_grad_ready(ddp, i);
        status = cddp_ddp_wait(ddp);
    }
    if (on_device && status == CDDP_OK) /* where the host does not wait in a step */
        status = cddp_barrier(comm);
    if (rank == 1) {
        CHECK(status == CDDP_E_STATE, "%s", cddp_status_name(status));
        CHECK(strstr(cddp_last_error(), "1 of 40 gradients are missing in step 3: 'layer17'") != NULL, "error message");
    } else {
        CHECK(status == CDDP_E_ABORTED, "%s", cddp_status_name(status));
        CHECK(strstr(cddp_last_error(), "rank 1") != NULL && strstr(cddp_last_error(), "'layer17'") != NULL,
              "error message");
    }
    CHECK(cddp_ddp_grad_ready(ddp, 0) == status, "errors are sticky");
    cddp_ddp_destroy(ddp);
}

static void *abort_now(void *arg)
{
    (void)arg;
    cddp_abort(comm, "changed my mind");
    return NULL;
}

static void check_abort(void)
{
    cddp_ddp *ddp;
    pthread_t other;
    cddp_status status;

    status = cddp_ddp_create(&ddp, comm, params, N_PARAMS, NULL);
    if (on_device && status == CDDP_E_ABORTED) { /* rank 0 was through with it, and this one was not yet */
        CHECK(strstr(cddp_last_error(), "changed my mind") != NULL, "error message");
        return;
    }
    CHECK(status == CDDP_OK, "create");
    if (rank == 0) { /* never enters the step that the others wait for */
        CHECK(pthread_create(&other, NULL, abort_now, NULL) == 0, "thread");
        (void)pthread_join(other, NULL);
    }
    for (size_t i = N_PARAMS; i-- > 0;)
        (void)cddp_ddp_grad_ready(ddp, i);
    status = cddp_ddp_wait(ddp);
    if (on_device && status == CDDP_OK)
        status = cddp_barrier(comm);
    CHECK(status == CDDP_E_ABORTED, "wait");
    CHECK(strstr(cddp_last_error(), "changed my mind") != NULL, "error message");
    cddp_ddp_destroy(ddp);
}

/* One of the two waits for the other ranks, which wait for the other one to be refused. */
static void *wait_or_be_refused(void *arg)
{
    cddp_status *status = arg;

    *status = cddp_ddp_wait(the_ddp);
    if (*status == CDDP_E_STATE) {
        CHECK(strstr(cddp_last_error(), "another thread is ending this step") != NULL, "message");
        CHECK(cddp_store_set(cddp_comm_store(comm), "refused", "", 0) == CDDP_OK, "store");
    }
    return NULL;
}

static void check_twice(void)
{
    const char *const key = "refused";
    cddp_status status[2];
    pthread_t other[2];

    CHECK(cddp_ddp_create(&the_ddp, comm, params, N_PARAMS, NULL) == CDDP_OK, "create");
    CHECK(rank == 0 || cddp_store_wait(cddp_comm_store(comm), &key, 1, 30000) == CDDP_OK, "no thread was refused");
    for (int step = 0; step < 2; step++) {
        for (size_t i = 0; i < N_PARAMS; i++)
            write_grad(&params[i], cddp_ddp_grad(the_ddp, i), step, i);
        for (size_t i = N_PARAMS; i-- > 0;)
            CHECK(cddp_ddp_grad_ready(the_ddp, i) == CDDP_OK, "ready");
        if (rank == 0 && step == 0) {
            for (int t = 0; t < 2; t++)
                CHECK(pthread_create(&other[t], NULL, wait_or_be_refused, &status[t]) == 0, "thread");
            for (int t = 0; t < 2; t++)
                (void)pthread_join(other[t], NULL);
            CHECK((status[0] == CDDP_OK) != (status[1] == CDDP_OK), "%d and %d", (int)status[0], (int)status[1]);
        } else {
            CHECK(cddp_ddp_wait(the_ddp) == CDDP_OK, "wait");
        }
        for (size_t i = 0; i < N_PARAMS; i++)
            check_grad(&params[i], cddp_ddp_grad(the_ddp, i), step, i);
    }
    cddp_ddp_destroy(the_ddp);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "mean";

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK, "init");
    rank = cddp_rank(comm);
    n_ranks = cddp_world_size(comm);
    on_device = strcmp(cddp_backend_name(comm), "nccl") == 0;
    make_model();
    if (strcmp(mode, "mean") == 0)
        check_means();
    else if (strcmp(mode, "late") == 0)
        check_late();
    else if (strcmp(mode, "missing") == 0)
        check_missing();
    else if (strcmp(mode, "twice") == 0)
        check_twice();
    else
        check_abort();
    free_model();
    (void)cddp_finalize(comm);
    return 0;
}
