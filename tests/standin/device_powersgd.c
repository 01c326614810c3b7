/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PowerSGD, as a program that cddprun starts with the CPU's backend and on a stand-in's GPU: rank 0 writes a hash of
 * every gradient, or parameter, of each step, which must be the same lines (same_lines.py). Covers matrices that lose
 * their directions, gradients that no rank used, checkpoints, and the sharded optimizer after PowerSGD and after
 * `comm_dtype`. On the GPU the compute stream is blocked in one step until the host has called everything: a host that
 * waits there hangs. Arguments: the file to write.
 */
#include "device.h"
#include "gate_kernel.h"
#include "must.h"

#include "items.h"
#include "mean_hook.h"
#include "numbers.h"

#include <cddp/cddp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PARAMS 8
#define MOST 4000
#define STEPS 7
#define START 2
#define UNUSED 3 /* used by some rank only in some steps, and by none in others */

static const size_t shapes[PARAMS][3] = {{40, 30}, {9}, {16, 12, 3}, {64, 5}, {33}, {20, 20}, {24, 24}, {12, 300}};
static const size_t dims[PARAMS] = {2, 1, 3, 2, 1, 2, 2, 2};
static const size_t counts[PARAMS] = {1200, 9, 576, 320, 33, 400, 576, 3600};
static const cddp_dtype types[PARAMS] = {CDDP_FLOAT32, CDDP_FLOAT32, CDDP_FLOAT64, CDDP_FLOAT32,
                                         CDDP_FLOAT16, CDDP_FLOAT64, CDDP_FLOAT32, CDDP_FLOAT32};

static cddp_comm *comm;
static bool on_gpu;
static struct device device;
static CUstream compute;
static CUkernel gate;
static void *data[PARAMS], *made[STEPS][PARAMS]; /* in the memory that the backend uses */
static FILE *out;

/* Exact in every type, and so is the mean. Two stay the same matrix of few directions, or zeros. */
static double gradient(int rank, size_t step, size_t i, size_t k)
{
    size_t v = (size_t)rank * 7919 + step * 104729 + i * 1299709 + k * k * 31 + k * 15485863;

    if (i == 6)
        return 0;
    if (i == 7)
        return (double)(k % 300 % 5) / 4;
    return (double)((int)(v % 65) - 32) / 16;
}

static size_t bytes_of(size_t i)
{
    return counts[i] * cddp_dtype_size(types[i]);
}

static void make_all(void)
{
    static double host[MOST];

    for (size_t i = 0; i < PARAMS; i++)
        DO(cddp_alloc(comm, bytes_of(i), 0, &data[i]));
    for (size_t step = 0; step < STEPS; step++)
        for (size_t i = 0; i < PARAMS; i++) {
            for (size_t k = 0; k < counts[i]; k++)
                number_put(types[i], host, k, gradient(cddp_rank(comm), step, i, k));
            DO(cddp_alloc(comm, bytes_of(i), 0, &made[step][i]));
            DO(cddp_copy(comm, made[step][i], host, bytes_of(i)));
        }
}

static void move(void *to, const void *from, size_t bytes)
{
    if (on_gpu)
        CU(cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, compute));
    else
        memcpy(to, from, bytes);
}

static void backward(cddp_ddp *ddp, size_t step, bool all)
{
    for (size_t i = PARAMS; i-- > 0;) {
        if (!all && i == UNUSED && (step == 4 || (step == 5 && cddp_rank(comm) == 0)))
            continue;
        move(cddp_ddp_grad(ddp, i), made[step][i], bytes_of(i));
        DO(cddp_ddp_grad_ready(ddp, i));
    }
}

static void write_hash(const char *what, size_t step, size_t i, const void *from)
{
    static double host[MOST];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    DO(cddp_copy(comm, host, from, bytes_of(i)));
    for (size_t k = 0; k < bytes_of(i); k++)
        hash = (hash ^ ((uint8_t *)(void *)host)[k]) * UINT64_C(0x100000001b3);
    if (out != NULL)
        (void)fprintf(out, "%s step %d parameter %d: %016llx\n", what, (int)step, (int)i, (unsigned long long)hash);
}

static void write_hashes(const char *what, cddp_ddp *ddp, size_t step)
{
    for (size_t i = 0; i < PARAMS; i++)
        write_hash(what, step, i, ddp != NULL ? cddp_ddp_grad(ddp, i) : data[i]);
}

static cddp_ddp *open_ddp(uint32_t flags, cddp_dtype comm_dtype, const cddp_powersgd_options *psgd)
{
    static double host[MOST];
    cddp_ddp_options opt = {
        .size = sizeof opt, .stream = compute, .flags = flags, .bucket_bytes = 6000, .comm_dtype = comm_dtype};
    cddp_param params[PARAMS];
    cddp_ddp *ddp;

    for (size_t i = 0; i < PARAMS; i++) {
        for (size_t k = 0; k < counts[i]; k++)
            number_put(types[i], host, k, (double)(k % 9) / 8);
        DO(cddp_copy(comm, data[i], host, bytes_of(i)));
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = "p",
                                 .data = data[i],
                                 .count = counts[i],
                                 .dtype = types[i],
                                 .shape = shapes[i],
                                 .n_dims = dims[i]};
    }
    DO(cddp_ddp_create(&ddp, comm, params, PARAMS, &opt));
    if (psgd != NULL)
        DO(cddp_ddp_set_powersgd(ddp, psgd));
    return ddp;
}

static cddp_powersgd_options options(size_t rank, uint32_t flags, double epsilon)
{
    return (cddp_powersgd_options){.size = sizeof(cddp_powersgd_options),
                                   .matrix_rank = rank,
                                   .start_step = START,
                                   .min_compression_rate = 0.1,
                                   .orthogonalization_epsilon = epsilon,
                                   .seed = 5,
                                   .flags = flags};
}

static void plain(const char *what, const cddp_powersgd_options *opt, uint32_t flags)
{
    cddp_ddp *ddp = open_ddp(flags, CDDP_DTYPE_NONE, opt);

    for (size_t step = 0; step < STEPS; step++) {
        backward(ddp, step, flags == 0);
        DO(cddp_ddp_wait(ddp));
        write_hashes(what, ddp, step);
    }
    cddp_ddp_destroy(ddp);
}

/* Saves in the middle; another reducer goes on, with the same lines. */
static void saved(const cddp_powersgd_options *opt)
{
    char folder[] = "/tmp/device_powersgd.XXXXXX", command[64];
    cddp_ddp *ddp = open_ddp(0, CDDP_DTYPE_NONE, opt);
    cddp_checkpoint_item item;

    if (cddp_rank(comm) == 0 && mkdtemp(folder) == NULL)
        exit(FAILED);
    DO(cddp_broadcast(comm, folder, sizeof folder, CDDP_UINT8, 0));
    for (size_t step = 0; step < STEPS; step++) {
        backward(ddp, step, true);
        DO(cddp_ddp_wait(ddp));
        write_hashes("saved", ddp, step);
        if (step != 4)
            continue;
        item = item_of(CDDP_ITEM_DDP, "ddp", ddp);
        DO(cddp_checkpoint_save(comm, folder, step, &item, 1, NULL));
        cddp_ddp_destroy(ddp);
        ddp = open_ddp(0, CDDP_DTYPE_NONE, opt);
        item.data = ddp;
        DO(cddp_checkpoint_load(comm, folder, &item, 1, NULL));
    }
    cddp_ddp_destroy(ddp);
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    if (cddp_rank(comm) == 0 && system(command) != 0) /* NOLINT(cert-env33-c,concurrency-mt-unsafe) */
        exit(FAILED);
}

/*
 * Parameters of an optimizer that has a share of them; of a reducer without PowerSGD whose hook sends gradients
 * unchanged.
 */
static void divided(const char *what, const cddp_powersgd_options *opt, cddp_dtype comm_dtype, uint32_t flags)
{
    const cddp_hook hook = {.size = sizeof hook, .begin = mean_hook_begin};
    const cddp_optim_options sgd = {
        .size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 0.125, .momentum = 0.5, .weight_decay = 0.25};
    cddp_ddp *ddp = open_ddp(flags, comm_dtype, opt);
    cddp_optim *optim;

    DO(cddp_optim_create(&optim, ddp, &sgd));
    if (opt == NULL && comm_dtype == CDDP_DTYPE_NONE)
        DO(cddp_ddp_set_hook(ddp, &hook));
    for (size_t step = 0; step < STEPS; step++) {
        backward(ddp, step, flags == 0);
        if (step == 3)
            DO(cddp_optim_skip(optim));
        else
            DO(cddp_optim_step(optim, NULL));
        write_hashes(what, NULL, step);
    }
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
}

/* On the GPU: PowerSGD, clipping and an update after a blocked compute stream, without a wait. */
static void waits_for_nobody(const cddp_powersgd_options *opt)
{
    const cddp_optim_step_args clip = {.size = sizeof clip, .max_norm = 0.5};
    cddp_optim_options adam;
    cddp_ddp *ddp = open_ddp(0, CDDP_DTYPE_NONE, opt);
    cddp_optim *optim;
    uint64_t waits = 0;

    cddp_optim_defaults(&adam, sizeof adam, CDDP_OPTIM_ADAMW);
    DO(cddp_optim_create(&optim, ddp, &adam));
    for (size_t step = 0; step < STEPS; step++) {
        /* PowerSGD's first step, and one with a residual; the last ones together. */
        bool closed = step == START || step == START + 2;

        waits = standin_waits();
        if (closed) {
            atomic_store(&gate_is_open, false);
            device_run(gate, compute, NULL);
        }
        backward(ddp, step, true);
        DO(cddp_optim_step(optim, &clip));
        if (closed && standin_waits() != waits) {
            fprintf(stderr, "the host waited %d times\n", (int)(standin_waits() - waits));
            exit(WRONG);
        }
        if (closed)
            atomic_store(&gate_is_open, true);
    }
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
    if (standin_launched("cdi_basis") == 0 || standin_launched("cdi_product") == 0) {
        fprintf(stderr, "PowerSGD was not on the GPU\n");
        exit(WRONG);
    }
}

static void open_all(const char *path)
{
    DO(cddp_init(&comm, NULL));
    on_gpu = strcmp(cddp_backend_name(comm), "nccl") == 0;
    if (on_gpu) {
        device_open(&device, cddp_local_rank(comm));
        gate = device_kernel(&device, &gate_kernel);
        compute = device_stream();
    }
    if (cddp_rank(comm) == 0) {
        out = fopen(path, "w");
        if (out == NULL)
            exit(FAILED);
    }
    make_all();
}

static int close_all(void)
{
    for (size_t i = 0; i < PARAMS; i++) {
        cddp_free(comm, data[i]);
        for (size_t step = 0; step < STEPS; step++)
            cddp_free(comm, made[step][i]);
    }
    if (on_gpu) {
        CU(cuStreamDestroy(compute));
        CU(cuLibraryUnload(device.library));
    }
    DO(cddp_finalize(comm));
    return out != NULL && fclose(out) != 0 ? FAILED : 0;
}

int main(int argc, char **argv)
{
    const cddp_powersgd_options one = options(1, 0, 0), three = options(3, 0, 1e-8),
                                cold = options(2, CDDP_POWERSGD_NO_WARM_START, 0),
                                forgets = options(2, CDDP_POWERSGD_NO_ERROR_FEEDBACK, 0);

    if (argc != 2)
        return 2;
    open_all(argv[1]);
    plain("rank 1", &one, 0);
    plain("rank 3", &three, 0);
    plain("no warm start", &cold, 0);
    plain("no error feedback", &forgets, 0);
    plain("some unused", &three, CDDP_DDP_FIND_UNUSED);
    saved(&three);
    saved(&cold);
    divided("divided", &three, CDDP_DTYPE_NONE, 0);
    divided("divided, some unused", &one, CDDP_DTYPE_NONE, CDDP_DDP_FIND_UNUSED);
    divided("divided, bfloat16", NULL, CDDP_BFLOAT16, 0);
    divided("divided, by a hook", NULL, CDDP_DTYPE_NONE, 0);
    if (on_gpu)
        waits_for_nobody(&three);
    return close_all();
}
