/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that looks for numbers that are not finite, with CDDP_NAN_CHECK=error, as a program that cddprun starts:
 * for each way of a gradient to the reduction that gives the kernel other spans, a healthy step makes exactly the
 * expected launches, and a bad number of one rank is found with its parameter.
 */
#include "device.h"
#include "must.h"

#include "numbers.h"

#include <cddp/cddp.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define MOST 400
#define ROOM 80000 /* elements of the largest gradient */

enum memory { ARENA, OWN, MIXED, PLACE }; /* MIXED: every other gradient is in memory of the program's */

static const struct way {
    const char *name;
    cddp_dtype dtype, sent_as;
    enum memory memory;
    size_t n, count, bucket_bytes; /* of parameters; their elements; 0: one bucket for all */
    uint32_t flags;
    bool accumulates;  /* the gradient is made in two parts by the compute stream */
    bool lacks;        /* rank 0 does not make gradient 0, whose place has a NaN */
    uint64_t launches; /* in a step */
} * way;

static struct {
    cddp_comm *comm;
    cddp_ddp *ddp;
    struct device device;
    CUstream compute;
    void *data, *block, *parts;
    char names[MOST][8];
    uint64_t step;
} j;

#define F32 CDDP_FLOAT32
#define F16 CDDP_FLOAT16
#define BF16 CDDP_BFLOAT16
#define F64 CDDP_FLOAT64
/* 120 gradients fit a launch: one for each bucket and each further 120. */
static const struct way ways[] = {
    {"three buckets", F32, 0, ARENA, 3, 1001, 4, 0, .launches = 3},
    {"float64 in the arena", F64, 0, ARENA, 3, 1001, 0, 0, .launches = 1},
    {"many of float16", F16, 0, ARENA, MOST, 33, 0, 0, .launches = 4},
    {"sums of float64 of the program's", F64, 0, OWN, 3, 1001, 0, CDDP_DDP_SUM, .launches = 1},
    {"many of the program's", BF16, 0, OWN, MOST, 33, 0, 0, .launches = 4},
    {"some float16 of the program's", F16, 0, MIXED, 4, 1001, 0, 0, .launches = 1},
    {"float32 sent as float16", F32, F16, ARENA, 3, 1001, 4, 0, .launches = 3},
    {"float16 in place", F16, 0, PLACE, 3, 60000, 0, 0, .launches = 1},
    {"cut, sent as bfloat16", F32, BF16, ARENA, 1, ROOM, 100000, CDDP_DDP_SPLIT, .launches = 4},
    {"accumulated by the program", F32, 0, OWN, 3, 1001, 0, 0, .accumulates = true, .launches = 1},
    {"missing, sent", F32, BF16, ARENA, 3, 1001, 0, CDDP_DDP_FIND_UNUSED, .lacks = true, .launches = 1},
};

static size_t bytes_of_one(void)
{
    return way->count * cddp_dtype_size(way->dtype);
}

static void *own_of(size_t i)
{
    bool own = way->memory == OWN || way->memory == PLACE || (way->memory == MIXED && i % 2 == 1);

    return own ? (char *)j.block + i * bytes_of_one() : NULL;
}

static void open_way(void)
{
    size_t bytes = way->bucket_bytes != 0 ? way->bucket_bytes : (size_t)1 << 24;
    cddp_ddp_options opt = {.size = sizeof opt,
                            .stream = j.compute,
                            .flags = way->flags,
                            .comm_dtype = way->sent_as,
                            .bucket_bytes = bytes,
                            .first_bucket_bytes = bytes};
    static cddp_param params[MOST];

    for (size_t i = 0; i < way->n; i++) {
        (void)snprintf(j.names[i], sizeof j.names[i], "p%zu", i);
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = j.names[i],
                                 .data = j.data,
                                 .grad = own_of(i),
                                 .count = way->count,
                                 .dtype = way->dtype};
    }
    DO(cddp_ddp_create(&j.ddp, j.comm, params, way->n, &opt));
    j.step = 0;
}

/* Every element is the rank plus 1, and `bad` where it says. */
static void make(size_t i, bool bad, size_t at, double value)
{
    static double host[ROOM];
    void *grad = cddp_ddp_grad(j.ddp, i);

    for (size_t k = 0; k < way->count; k++)
        number_put(way->dtype, host, k, cddp_rank(j.comm) + 1);
    if (bad && !way->accumulates)
        number_put(way->dtype, host, at, value);
    DO(cddp_copy(j.comm, grad, host, bytes_of_one()));
    if (way->accumulates) { /* float32: y += 1 * x, on the compute stream */
        float one = 1;
        size_t n = way->count;
        char *x = (char *)j.parts + i * bytes_of_one();
        void *args[] = {&one, &x, &grad, &n};

        memset(host, 0, bytes_of_one());
        if (bad)
            number_put(way->dtype, host, at, value);
        DO(cddp_copy(j.comm, x, host, bytes_of_one()));
        CU(cuLaunchKernel((CUfunction)j.device.axpy, (unsigned)(n + 255) / 256, 1, 1, 256, 1, 1, 0, j.compute, args,
                          NULL));
    }
}

/* A step in which gradient i of rank `by` has this value at `at`; by -1: none has. */
static cddp_status step_with(size_t i, int by, size_t at, double value)
{
    for (size_t k = way->n; k-- > 0;) {
        bool lacks = way->lacks && k == 0 && cddp_rank(j.comm) == 0;

        make(k, lacks || (k == i && by == cddp_rank(j.comm)), lacks ? way->count / 3 : at, lacks ? NAN : value);
        if (!lacks)
            DO(cddp_ddp_grad_ready(j.ddp, k));
    }
    j.step++;
    return cddp_ddp_wait(j.ddp);
}

static void check_means(void)
{
    static double host[ROOM];
    int n = cddp_world_size(j.comm);
    double sum = n * (n + 1) / 2.0, want = (way->flags & CDDP_DDP_SUM) != 0 ? sum : sum / n;

    for (size_t i = 0; i < way->n; i += way->n / 3 + (way->n < 3)) {
        double wanted = way->lacks && i == 0 ? want - 1.0 / n : want;

        DO(cddp_copy(j.comm, host, cddp_ddp_grad(j.ddp, i), bytes_of_one()));
        for (size_t k = 0; k < way->count; k++) {
            double got = number_get(way->dtype, host, k);

            MUST(fabs(got - wanted) <= 8e-3 * wanted, "%s: mean %g of gradient %zu, element %zu, and not %g\n",
                 way->name, got, i, k, wanted);
        }
    }
}

static void healthy_step(void)
{
    uint64_t launches, before = standin_launched("cdi_find");

    DO(step_with(0, -1, 0, 0));
    check_means();
    DO(cddp_barrier(j.comm));
    launches = standin_launched("cdi_find") - before;
    MUST(launches == way->launches, "%s: rank %d: %d launches, and not %d\n", way->name, cddp_rank(j.comm),
         (int)launches, (int)way->launches);
}

static void bad_step(size_t i, int by, size_t at, double value)
{
    char head[80], tail[80];
    const char *got;

    (void)snprintf(head, sizeof head, "step %d: the gradient of 'p%zu' (bucket ", (int)j.step, i);
    (void)snprintf(tail, sizeof tail, ") has %s; rank %d brought it", value != value ? "NaN" : "an infinity", by);
    MUST(step_with(i, by, at, value) == CDDP_E_NONFINITE, "%s: gradient %zu, element %zu: it was not found\n",
         way->name, i, at);
    got = cddp_last_error();
    MUST(strncmp(got, head, strlen(head)) == 0 && strlen(got) > strlen(tail) &&
             strcmp(got + strlen(got) - strlen(tail), tail) == 0,
         "%s: '%s', and not '%s...%s'\n", way->name, got, head, tail);
}

static void go(void)
{
    const size_t at[] = {0, way->count / 2, way->count - 1};
    size_t which[] = {0, way->n / 2, way->n - 1};
    int n = cddp_world_size(j.comm);

    which[0] += way->lacks; /* which rank 0 does not make */
    open_way();
    for (int k = 0; k < 3; k++) /* until the order of gradients is settled */
        DO(step_with(0, -1, 0, 0));
    for (int k = 0; k < (way->n == MOST ? 1 : 3); k++) {
        healthy_step();
        bad_step(which[k], k % n, at[k], k == 1 ? -INFINITY : NAN);
        bad_step(which[2 - k], (k + 1) % n, at[2 - k], k == 1 ? NAN : INFINITY);
    }
    healthy_step();
    CU(cuStreamSynchronize(j.compute));
    cddp_ddp_destroy(j.ddp);
}

int main(void)
{
    cddp_init_options init = {.size = sizeof init, .backend = "nccl"};

    DO(cddp_init(&j.comm, &init));
    device_open(&j.device, cddp_local_rank(j.comm));
    j.compute = device_stream();
    DO(cddp_alloc(j.comm, ROOM * 8, 0, &j.data));
    DO(cddp_alloc(j.comm, ROOM * 8, 0, &j.parts));
    for (size_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
        way = &ways[k];
        DO(cddp_alloc(j.comm, MOST * 33 * 8 + (size_t)3 * ROOM * 4, way->memory == PLACE ? CDDP_MEM_COLLECTIVE : 0,
                      &j.block));
        go();
        cddp_free(j.comm, j.block);
    }
    cddp_free(j.comm, j.data);
    cddp_free(j.comm, j.parts);
    CU(cuStreamDestroy(j.compute));
    CU(cuLibraryUnload(j.device.library));
    DO(cddp_finalize(j.comm));
    return 0;
}
