/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common part of programs for norms and optimizers that cddprun starts on the stand-in: parameters of every type,
 * gradients that are exact in each, and a gate in the compute stream. Only one program includes it at a time. Exit
 * status: 0 success, 3 a wrong result, 4 an error of libcddp.
 */
#ifndef DEVICE_JOB_H
#define DEVICE_JOB_H

#include "device.h"
#include "gate_kernel.h"
#include "must.h"

#include "numbers.h"

#include <cddp/cddp.h>
#include <math.h>
#include <string.h>

#define N_PARAMS 5
#define MOST 40001

static const size_t counts[N_PARAMS] = {MOST, 777, 1025, 33, 5};
static const cddp_dtype types[N_PARAMS] = {CDDP_FLOAT32, CDDP_FLOAT16, CDDP_BFLOAT16, CDDP_FLOAT64, CDDP_FLOAT32};

/* Gradients of 16-bit parameters are float32, and have bits that 16 bits cannot hold. */
static bool wide_grads;

struct job {
    cddp_comm *comm;
    cddp_ddp *ddp;
    struct device device;
    CUkernel gate;
    CUstream compute;
    void *data[N_PARAMS], *made[N_PARAMS]; /* made: the gradients of the backward pass, on the device */
};

static size_t bytes_of(size_t i)
{
    return counts[i] * cddp_dtype_size(types[i]);
}

static bool is_long(size_t i)
{
    return wide_grads && cddp_dtype_size(types[i % N_PARAMS]) == 2; /* also of those that are tied to others */
}

static cddp_dtype type_of_grad(size_t i)
{
    return is_long(i) ? CDDP_FLOAT32 : types[i];
}

static size_t bytes_of_grad(size_t i)
{
    return counts[i] * cddp_dtype_size(type_of_grad(i));
}

/* Exact in the gradient's type, and so is the mean over 1, 2 or 4 ranks. */
static double gradient(int rank, size_t i, size_t k)
{
    return (double)((int)((k * 7 + i * 3 + (size_t)rank * 5) % 17) - 8) / 4 + (is_long(i) ? 19.0 / 8192 : 0);
}

static inline double mean(const struct job *j, size_t i, size_t k)
{
    double sum = 0;
    int n = cddp_world_size(j->comm);

    for (int r = 0; r < n; r++)
        sum += gradient(r, i, k);
    return sum / n;
}

/* bad: the parameter with a bad value in the middle of its gradient, on rank 0. N_PARAMS: none. */
static void make(struct job *j, size_t bad_param, double bad)
{
    static double host[MOST];

    for (size_t i = 0; i < N_PARAMS; i++) {
        for (size_t k = 0; k < counts[i]; k++)
            number_put(type_of_grad(i), host, k, gradient(cddp_rank(j->comm), i, k));
        if (i == bad_param && cddp_rank(j->comm) == 0)
            number_put(type_of_grad(i), host, counts[i] / 2, bad);
        DO(cddp_copy(j->comm, j->made[i], host, bytes_of_grad(i)));
    }
}

static inline void backward(struct job *j)
{
    for (size_t i = N_PARAMS; i-- > 0;) {
        CU(cuMemcpyDtoDAsync((CUdeviceptr)cddp_ddp_grad(j->ddp, i), (CUdeviceptr)j->made[i], bytes_of_grad(i),
                             j->compute));
        DO(cddp_ddp_grad_ready(j->ddp, i));
    }
}

/* Blocks the compute stream until gate_is_open. */
static void close_gate(struct job *j)
{
    atomic_store(&gate_is_open, false);
    device_run(j->gate, j->compute, NULL);
}

static inline double tolerance_of(size_t i)
{
    return types[i] == CDDP_FLOAT64 ? 1e-12 : types[i] == CDDP_FLOAT32 ? 1e-6 : types[i] == CDDP_FLOAT16 ? 1e-3 : 8e-3;
}

static inline bool close_to(double got, double want, double tolerance)
{
    return fabs(got - want) <= tolerance * fmax(1, fabs(want));
}

__attribute__((unused)) static void open_ddp(struct job *j, uint32_t flags)
{
    cddp_ddp_options opt = {.size = sizeof opt, .stream = j->compute, .flags = flags, .bucket_bytes = 8000};
    static const char *const names[N_PARAMS] = {"p0", "p1", "p2", "p3", "p4"};
    cddp_param params[N_PARAMS];

    for (size_t i = 0; i < N_PARAMS; i++)
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = names[i],
                                 .data = j->data[i],
                                 .count = counts[i],
                                 .dtype = types[i],
                                 .grad_dtype = type_of_grad(i)};
    DO(cddp_ddp_create(&j->ddp, j->comm, params, N_PARAMS, &opt));
}

static void open_job(struct job *j)
{
    cddp_init_options init = {.size = sizeof init, .backend = "nccl"};
    static const double zeros[MOST];

    DO(cddp_init(&j->comm, &init));
    device_open(&j->device, cddp_local_rank(j->comm));
    j->gate = device_kernel(&j->device, &gate_kernel);
    j->compute = device_stream();
    for (size_t i = 0; i < N_PARAMS; i++) {
        DO(cddp_alloc(j->comm, bytes_of(i), 0, &j->data[i]));
        DO(cddp_alloc(j->comm, counts[i] * sizeof(double), 0, &j->made[i])); /* whatever its type */
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

#endif
