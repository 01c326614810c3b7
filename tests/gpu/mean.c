/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Means of gradients in every type, sent in their own type and in another one, inside the arena and in memory of the
 * program, compared with a reference in float64: errors must be within the bounds of cddp.h for the type of the sum.
 * It uses only libcddp, and so runs on a GPU, on its stand-in, and on the host. Started by cddprun.
 *
 * Exit status: 0 success, 3 a wrong result, 1 an error (with a message), 77 no GPU.
 */
#include "worker/math/float16.h"

#include <cddp/cddp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 2
#define N_PARAMS 3
#define MOST 20011 /* elements of the largest */
#define BUCKET_BYTES ((size_t)16 << 10)
#define WRONG 3
#define NO_GPU 77

static const size_t counts[N_PARAMS] = {MOST, 3, 5000};

struct mode {
    cddp_dtype dtype, comm_dtype;
    bool own;
};

static const struct mode modes[] = {
    {CDDP_FLOAT32, CDDP_DTYPE_NONE, false},  {CDDP_FLOAT32, CDDP_DTYPE_NONE, true},
    {CDDP_FLOAT64, CDDP_DTYPE_NONE, false},  {CDDP_FLOAT64, CDDP_DTYPE_NONE, true},
    {CDDP_FLOAT16, CDDP_DTYPE_NONE, false},  {CDDP_FLOAT16, CDDP_DTYPE_NONE, true},
    {CDDP_BFLOAT16, CDDP_DTYPE_NONE, false}, {CDDP_BFLOAT16, CDDP_DTYPE_NONE, true},
    {CDDP_FLOAT16, CDDP_FLOAT32, false},     {CDDP_FLOAT16, CDDP_FLOAT32, true},
    {CDDP_BFLOAT16, CDDP_FLOAT32, false},    {CDDP_BFLOAT16, CDDP_FLOAT32, true},
    {CDDP_FLOAT32, CDDP_FLOAT16, false},     {CDDP_FLOAT32, CDDP_BFLOAT16, true},
};
#define N_MODES (sizeof modes / sizeof modes[0])

struct job {
    cddp_comm *comm;
    cddp_ddp *ddp;
    struct mode mode;
    void *data[N_PARAMS], *own[N_PARAMS];
    void *host; /* as large as the largest gradient */
};

static void must(cddp_status status)
{
    if (status == CDDP_OK)
        return;
    fprintf(stderr, "mean: %s\n", cddp_last_error());
    exit(1);
}

/* Half a unit in the last place, of 1. */
static double half_unit(cddp_dtype dtype)
{
    return dtype == CDDP_FLOAT64 ? 0x1p-53 : dtype == CDDP_FLOAT32 ? 0x1p-24 : dtype == CDDP_FLOAT16 ? 0x1p-11 : 0x1p-8;
}

static void store(void *x, size_t k, cddp_dtype dtype, double value)
{
    if (dtype == CDDP_FLOAT64)
        ((double *)x)[k] = value;
    else if (dtype == CDDP_FLOAT32)
        ((float *)x)[k] = (float)value;
    else
        ((uint16_t *)x)[k] = dtype == CDDP_FLOAT16 ? cdi_f16_of_float((float)value) : cdi_bf16_of_float((float)value);
}

static double load(const void *x, size_t k, cddp_dtype dtype)
{
    if (dtype == CDDP_FLOAT64)
        return ((const double *)x)[k];
    if (dtype == CDDP_FLOAT32)
        return (double)((const float *)x)[k];
    return (double)(dtype == CDDP_FLOAT16 ? cdi_float_of_f16(((const uint16_t *)x)[k])
                                          : cdi_float_of_bf16(((const uint16_t *)x)[k]));
}

/* Large ones whose sum exceeds float16, small ones that a sum of large ones would lose, both signs. */
static double brought(int rank, int step, size_t i, size_t k)
{
    double odd = 1.0 + 0.37 * (double)(rank + 1) + 0.0137 * (double)((k + i) % 101) + 0.5 * step;

    return k % 5 == 0 ? 40000 + 1000 * odd : rank % 2 == 0 ? 100 + odd : -99 - odd;
}

/* Returns the value in the precision of the type. */
static double given(const struct job *j, int rank, int step, size_t i, size_t k)
{
    double x[1];

    store(x, 0, j->mode.dtype, brought(rank, step, i, k));
    return load(x, 0, j->mode.dtype);
}

/* The mean in float64, and the bound for the error of a sum in this mode. */
static double mean(const struct job *j, int step, size_t i, size_t k, double *off)
{
    int n = cddp_world_size(j->comm);
    cddp_dtype sent = j->mode.comm_dtype != CDDP_DTYPE_NONE ? j->mode.comm_dtype : j->mode.dtype;
    double sum = 0, all = 0;

    for (int rank = 0; rank < n; rank++) {
        double x = given(j, rank, step, i, k);

        sum += x;
        all += x < 0 ? -x : x;
    }
    /* Each value is rounded when it is cast or multiplied, and once at every rank; the result is rounded once. */
    *off = all / n * half_unit(sent) * (n + 2) + (sum < 0 ? -sum : sum) / n * half_unit(j->mode.dtype);
    return sum / n;
}

static void *memory(struct job *j, size_t bytes)
{
    void *p;

    must(cddp_alloc(j->comm, bytes, 0, &p));
    must(cddp_copy(j->comm, p, j->host, bytes));
    return p;
}

static void open_mode(struct job *j)
{
    static const char *const names[N_PARAMS] = {"a", "b", "c"};
    const cddp_ddp_options opt = {.size = sizeof opt,
                                  .bucket_bytes = BUCKET_BYTES,
                                  .first_bucket_bytes = BUCKET_BYTES,
                                  .comm_dtype = j->mode.comm_dtype};
    cddp_param params[N_PARAMS];

    memset(params, 0, sizeof params);
    memset(j->host, 0, MOST * sizeof(double));
    for (size_t i = 0; i < N_PARAMS; i++) {
        size_t bytes = counts[i] * cddp_dtype_size(j->mode.dtype);

        j->data[i] = memory(j, bytes);
        j->own[i] = j->mode.own ? memory(j, bytes) : NULL;
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = names[i],
                                 .data = j->data[i],
                                 .count = counts[i],
                                 .dtype = j->mode.dtype,
                                 .grad = j->own[i]};
    }
    must(cddp_ddp_create(&j->ddp, j->comm, params, N_PARAMS, &opt));
}

static void close_mode(struct job *j)
{
    cddp_ddp_destroy(j->ddp);
    for (size_t i = 0; i < N_PARAMS; i++) {
        cddp_free(j->comm, j->data[i]);
        cddp_free(j->comm, j->own[i]);
    }
}

/* The largest error of a mean, as a part of its bound; above 1 it is wrong. */
static double check_param(struct job *j, int step, size_t i)
{
    double worst = 0;

    must(cddp_copy(j->comm, j->host, cddp_ddp_grad(j->ddp, i), counts[i] * cddp_dtype_size(j->mode.dtype)));
    for (size_t k = 0; k < counts[i]; k++) {
        double allowed, want = mean(j, step, i, k, &allowed), got = load(j->host, k, j->mode.dtype);
        double off = got < want ? want - got : got - want;

        if (off <= allowed) { /* not so for a NaN */
            worst = off / allowed > worst ? off / allowed : worst;
            continue;
        }
        fprintf(stderr,
                "rank %d: wrong result: type %d sent as %d, step %d, parameter %zu, element %zu: %.9g, not %.9g\n",
                cddp_rank(j->comm), (int)j->mode.dtype, (int)j->mode.comm_dtype, step, i, k, got, want);
        exit(WRONG);
    }
    return worst;
}

static double train(struct job *j)
{
    double worst = 0;

    for (int step = 0; step < STEPS; step++) {
        for (size_t i = N_PARAMS; i-- > 0;) {
            for (size_t k = 0; k < counts[i]; k++)
                store(j->host, k, j->mode.dtype, brought(cddp_rank(j->comm), step, i, k));
            must(cddp_copy(j->comm, cddp_ddp_grad(j->ddp, i), j->host, counts[i] * cddp_dtype_size(j->mode.dtype)));
            must(cddp_ddp_grad_ready(j->ddp, i));
        }
        must(cddp_ddp_wait(j->ddp));
        for (size_t i = 0; i < N_PARAMS; i++) {
            double w = check_param(j, step, i);

            worst = w > worst ? w : worst;
        }
    }
    return worst;
}

int main(void)
{
    static struct job j;
    double worst = 0;
    cddp_status st = cddp_init(&j.comm, NULL);

    if (st == CDDP_E_NOT_FOUND) {
        fprintf(stderr, "mean: %s\n", cddp_last_error());
        return NO_GPU;
    }
    must(st);
    j.host = malloc(MOST * sizeof(double));
    if (j.host == NULL)
        return 1;
    for (size_t m = 0; m < N_MODES; m++) {
        double w;

        j.mode = modes[m];
        open_mode(&j);
        w = train(&j);
        worst = w > worst ? w : worst;
        close_mode(&j);
    }
    if (cddp_rank(j.comm) == 0)
        printf("{\"means\": %zu, \"ranks\": %d, \"worst\": %.3f}\n", N_MODES, cddp_world_size(j.comm), worst);
    must(cddp_finalize(j.comm));
    free(j.host);
    return 0;
}
