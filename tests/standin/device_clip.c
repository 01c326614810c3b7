/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The norm of gradients on a GPU, and clipping by it, against plain sums on the host, as a program that cddprun starts.
 * In one step the compute stream stands still until the host has called everything: whoever waits for the GPU there
 * waits for ever. Exit status: 0 all was right, 3 a wrong result, 4 libcddp gave an error.
 */
#include "device.h"
#include "gate_kernel.h"

#include "numbers.h"

#include <cddp/cddp.h>
#include <math.h>
#include <string.h>

#define WRONG 3
#define FAILED 4
#define N_PARAMS 5
#define MOST 40001
#define WARM 3 /* steps until nothing is done for the first time */

static const size_t counts[N_PARAMS] = {MOST, 777, 1025, 33, 5};
static const cddp_dtype types[N_PARAMS] = {CDDP_FLOAT32, CDDP_FLOAT16, CDDP_BFLOAT16, CDDP_FLOAT64, CDDP_FLOAT32};

#define DO(call)                                                   \
    do {                                                           \
        if ((call) != CDDP_OK) {                                   \
            fprintf(stderr, "%s: %s\n", #call, cddp_last_error()); \
            exit(FAILED);                                          \
        }                                                          \
    } while (0)

#define MUST(is, ...)                     \
    do {                                  \
        if (!(is)) {                      \
            fprintf(stderr, __VA_ARGS__); \
            exit(WRONG);                  \
        }                                 \
    } while (0)

struct job {
    cddp_comm *comm;
    cddp_ddp *ddp;
    struct device device;
    CUkernel gate;
    CUstream compute;
    void *data[N_PARAMS], *made[N_PARAMS]; /* made: what the backward pass finds, on the device */
};

static size_t bytes_of(size_t i)
{
    return counts[i] * cddp_dtype_size(types[i]);
}

/* Exact in every type, and so is the mean over 1, 2 or 4 ranks. */
static double gradient(int rank, size_t i, size_t k)
{
    return (double)((int)((k * 7 + i * 3 + (size_t)rank * 5) % 17) - 8) / 4;
}

static double mean(const struct job *j, size_t i, size_t k)
{
    double sum = 0;
    int n = cddp_world_size(j->comm);

    for (int r = 0; r < n; r++)
        sum += gradient(r, i, k);
    return sum / n;
}

static void make(struct job *j, size_t bad_param, double bad)
{
    static double host[MOST];

    for (size_t i = 0; i < N_PARAMS; i++) {
        for (size_t k = 0; k < counts[i]; k++)
            number_put(types[i], host, k, gradient(cddp_rank(j->comm), i, k));
        if (i == bad_param && cddp_rank(j->comm) == 0)
            number_put(types[i], host, counts[i] / 2, bad);
        DO(cddp_copy(j->comm, j->made[i], host, bytes_of(i)));
    }
}

static void backward(struct job *j)
{
    for (size_t i = N_PARAMS; i-- > 0;) {
        CU(cuMemcpyDtoDAsync((CUdeviceptr)cddp_ddp_grad(j->ddp, i), (CUdeviceptr)j->made[i], bytes_of(i), j->compute));
        DO(cddp_ddp_grad_ready(j->ddp, i));
    }
    DO(cddp_ddp_wait(j->ddp));
}

static double plain_norm(const struct job *j, bool largest)
{
    double sum = 0;

    for (size_t i = 0; i < N_PARAMS; i++)
        for (size_t k = 0; k < counts[i]; k++) {
            double g = mean(j, i, k);

            sum = largest ? fmax(sum, fabs(g)) : sum + g * g;
        }
    return largest ? sum : sqrt(sum);
}

static bool close_to(double got, double want, double tolerance)
{
    return fabs(got - want) <= tolerance * fmax(1, fabs(want));
}

/* Is each gradient the mean times factor? */
static void check_gradients(const struct job *j, double factor)
{
    static double host[MOST];

    for (size_t i = 0; i < N_PARAMS; i++) {
        double tolerance = types[i] == CDDP_FLOAT64   ? 1e-12
                           : types[i] == CDDP_FLOAT32 ? 1e-6
                           : types[i] == CDDP_FLOAT16 ? 1e-3
                                                      : 8e-3;

        DO(cddp_copy(j->comm, host, cddp_ddp_grad(j->ddp, i), bytes_of(i)));
        for (size_t k = 0; k < counts[i]; k++) {
            double got = number_get(types[i], host, k), want = mean(j, i, k) * factor;

            MUST(isnan(factor) ? isnan(got) : close_to(got, want, tolerance),
                 "gradient %zu, element %zu is %.17g, not %.17g\n", i, k, got, want);
        }
    }
}

/* No call of a step waits, also in NCCL's own thread's place. */
static void check_waits_for_nobody(struct job *j)
{
    uint64_t waits;

    for (int step = 0; step < WARM; step++) {
        backward(j);
        DO(cddp_ddp_clip_grad_norm(j->ddp, 0.5, 2, 0, NULL));
    }
    CU(cuLaunchKernel((CUfunction)j->gate, 1, 1, 1, 1, 1, 1, 0, j->compute, NULL, NULL));
    waits = standin_waits();
    backward(j);
    DO(cddp_ddp_clip_grad_norm(j->ddp, 0.5, 2, 0, NULL));
    DO(cddp_ddp_clip_grad_norm(j->ddp, 0.25, INFINITY, 0, NULL));
    MUST(standin_waits() == waits, "the host waited %d times\n", (int)(standin_waits() - waits));
    atomic_store(&gate_is_open, true);
    check_gradients(j, 0.5 / (plain_norm(j, false) + 1e-6)); /* which is less than the second one allows */
}

static void check_norms(struct job *j, double tolerance)
{
    double norm = -1, again = -2;

    for (int largest = 0; largest < 2; largest++) {
        const double type = largest ? INFINITY : 2, want = plain_norm(j, largest != 0);

        backward(j);
        DO(cddp_ddp_grad_norm(j->ddp, type, &norm));
        MUST(close_to(norm, want, tolerance), "a norm of type %g is %.17g, not %.17g\n", type, norm, want);
        DO(cddp_ddp_clip_grad_norm(j->ddp, want / 4, type, 1, &again));
        MUST(memcmp(&norm, &again, sizeof norm) == 0, "measured again, %.17g is %.17g\n", norm, again);
        check_gradients(j, want / 4 / (want + 1e-6));
        DO(cddp_ddp_clip_grad_norm(j->ddp, want, type, 1, NULL));
        check_gradients(j, want / 4 / (want + 1e-6));
    }
}

static void check_bad_numbers(struct job *j)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    double norm = 0;

    for (size_t b = 0; b < 3; b++)
        for (size_t i = 0; i < N_PARAMS; i++) {
            make(j, i, bad[b]);
            backward(j);
            DO(cddp_ddp_grad_norm(j->ddp, b == 1 ? 2 : INFINITY, &norm));
            MUST(b == 0 ? isnan(norm) : isinf(norm) && norm > 0, "with %g in gradient %zu the norm is %g\n", bad[b], i,
                 norm);
            MUST(cddp_ddp_clip_grad_norm(j->ddp, 1, 2, 1, NULL) == CDDP_E_STATE, "%g was not refused\n", bad[b]);
        }
    make(j, 2, NAN);
    backward(j);
    DO(cddp_ddp_clip_grad_norm(j->ddp, 1, 2, 0, NULL));
    check_gradients(j, NAN);
    make(j, N_PARAMS, 0);
}

static void open_ddp(struct job *j, uint32_t flags)
{
    cddp_ddp_options opt = {.size = sizeof opt, .stream = j->compute, .flags = flags, .bucket_bytes = 8000};
    cddp_param params[N_PARAMS];

    for (size_t i = 0; i < N_PARAMS; i++)
        params[i] = (cddp_param){.name = "p", .data = j->data[i], .count = counts[i], .dtype = types[i]};
    DO(cddp_ddp_create(&j->ddp, j->comm, params, N_PARAMS, &opt));
}

static void open_job(struct job *j)
{
    cddp_init_options init = {.size = sizeof init, .backend = "nccl"};
    static const double zeros[MOST];

    DO(cddp_init(&j->comm, &init));
    device_open(&j->device, cddp_local_rank(j->comm));
    standin_kernel_register(&gate_kernel);
    CU(cuLibraryGetKernel(&j->gate, j->device.library, "gate"));
    j->compute = device_stream();
    for (size_t i = 0; i < N_PARAMS; i++) {
        DO(cddp_alloc(j->comm, bytes_of(i), &j->data[i]));
        DO(cddp_alloc(j->comm, bytes_of(i), &j->made[i]));
        DO(cddp_copy(j->comm, j->data[i], zeros, bytes_of(i)));
    }
    make(j, N_PARAMS, 0);
}

static void close_job(struct job *j)
{
    for (size_t i = 0; i < N_PARAMS; i++) {
        cddp_free(j->comm, j->data[i]);
        cddp_free(j->comm, j->made[i]);
    }
    CU(cuStreamDestroy(j->compute));
    CU(cuLibraryUnload(j->device.library));
    DO(cddp_finalize(j->comm));
}

int main(void)
{
    static struct job j;

    open_job(&j);
    open_ddp(&j, 0);
    check_waits_for_nobody(&j);
    check_norms(&j, 1e-14);
    check_bad_numbers(&j);
    cddp_ddp_destroy(j.ddp);
    open_ddp(&j, CDDP_DDP_JOIN);
    check_norms(&j, 1e-14);
    cddp_ddp_destroy(j.ddp);
    close_job(&j);
    return 0;
}
