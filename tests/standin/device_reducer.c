/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcddp's reducer on the stand-in, as a program that cddprun starts: a kernel writes gradients on a compute stream;
 * they are averaged, and another kernel adds them to the parameters. The argument selects a variant:
 *   reuse    the program is wrong: it writes a gradient again before cddp_ddp_wait
 *   missing  rank 1 does not take part in the last step
 *   auto     the bucket size is tuned
 *   own      gradients are in memory of the program: for each bucket one launch copies them in, and one copies them out
 *   place    (also unused_place, static_place and auto_place) gradients are in one block of all ranks, in a separate
 *            order, so that the large one is reduced in place
 *   unused   (or unused_own, which is both) one gradient is ready in the first step alone, and another on rank 1 alone
 *            from the second on, without a longer wait of the host
 *   static   (or static_own) neither is ready elsewhere in the first step, whose end does not wait for the device
 *   skip     like unused, but buckets that no rank has used are left out; no step's end waits for a step without any
 *   asks     the backward pass takes its time; NCCL is always "in progress", and must not be polled often meanwhile
 * The settings of the stand-in plant other faults.
 *
 * Exit status: 0 success, 3 a wrong result, 4 an error of libcddp, 5 NCCL was polled too often, 6 a wrong number of
 * launches, 7 the host has waited.
 */
#include "device.h"
#include "fill_kernel.h"
#include "gate_kernel.h"
#include "must.h"

#include <cddp/cddp.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STEPS 3
#define UNUSED_STEPS 6
#define AUTO_STEPS 20 /* until a bucket size is chosen, of the two that differ, and a few more */
#define N_PARAMS 5
#define OWN_BUCKET_BYTES 24000 /* two gradients, with a gap between them, the large one alone, and two more */
#define ASKED 5
#define LAUNCHES 6
#define WAITED 7
#define NOWHERE 1     /* with "unused": the parameter whose gradient is ready in the first step alone, */
#define SOMEWHERE 3   /* and the one whose gradient is ready on rank 1 alone from then on */
#define MOST_ASKED 60 /* per gradient; a wait for NCCL polls 200 times */

/* Small ones start together; the large one exceeds the limit of a group. */
static const size_t counts[N_PARAMS] = {3000, 2999, 1100000, 3001, 3000};

struct job {
    cddp_comm *comm;
    cddp_ddp *ddp;
    struct device device;
    CUkernel fill, gate;
    CUstream compute;
    CUdeviceptr data[N_PARAMS];
    CUdeviceptr own[N_PARAMS]; /* 0: gradients are in the arena */
    void *block;               /* in which own is; NULL: own is memory of the driver's */
    int steps;
    bool slow;      /* it takes milliseconds to make a gradient */
    bool unused;    /* not all gradients are ready in every step */
    bool fixed;     /* the same ones in each step, with a static graph */
    bool skip;      /* buckets that no rank has used are left out */
    uint64_t waits; /* of the host for the device, from the third step on: before, memory is allocated */
    uint64_t asked; /* polls of NCCL while gradients were reported */
};

/* Whole numbers, whose mean over ranks is one: rank r of n contributes 2 r if the mean is n - 1. */
static float gradient(int rank, int step, size_t i)
{
    return (float)(2 * rank * (step + 1) + (int)i);
}

static bool comes(const struct job *j, int rank, int step, size_t i)
{
    return !j->unused || (step == 0 && !j->fixed) || (i == SOMEWHERE && rank == 1) || (i != SOMEWHERE && i != NOWHERE);
}

static void write_gradient(struct job *j, int step, size_t i)
{
    void *at = cddp_ddp_grad(j->ddp, i);
    float value = gradient(cddp_rank(j->comm), step, i);
    size_t n = counts[i];
    void *args[] = {&at, &n, &value};

    CU(cuLaunchKernel((CUfunction)j->fill, (unsigned)((n + 255) / 256), 1, 1, 256, 1, 1, 0, j->compute, args, NULL));
}

/* Every rank hears which parameters some rank used in this step. */
static void check_used(struct job *j, int step)
{
    for (size_t i = 0; i < N_PARAMS; i++) {
        bool want = false;
        int used = -1;

        for (int rank = 0; rank < cddp_world_size(j->comm); rank++)
            want |= comes(j, rank, step, i);
        DO(cddp_ddp_was_used(j->ddp, i, &used));
        if (used == want)
            continue;
        fprintf(stderr, "rank %d: in step %d parameter %zu has been used: %d, not %d\n", cddp_rank(j->comm), step, i,
                used, want);
        exit(WRONG);
    }
}

static void train(struct job *j, bool reuse, bool missing)
{
    for (int step = 0; step < j->steps; step++) {
        /* The calls return on the host before their work has begun. */
        bool gated = step == 0 && (j->fixed || j->skip);
        uint64_t waits = standin_waits();

        if (missing && step == j->steps - 1 && cddp_rank(j->comm) == 1)
            (void)pause(); /* until cddprun ends it */
        if (gated)
            device_run(j->gate, j->compute, NULL);
        for (size_t i = N_PARAMS; i-- > 0;) {
            const struct timespec work = {.tv_nsec = 10000000};
            uint64_t before = standin_asked();

            if (!comes(j, cddp_rank(j->comm), step, i))
                continue;
            write_gradient(j, step, i);
            DO(cddp_ddp_grad_ready_on(j->ddp, i, j->compute));
            j->asked += standin_asked() - before;
            if (j->slow)
                (void)nanosleep(&work, NULL);
        }
        if (reuse)
            write_gradient(j, step + 1, 2);
        DO(cddp_ddp_wait(j->ddp));
        if (gated)
            atomic_store(&gate_is_open, true);
        j->waits += step >= 2 ? standin_waits() - waits : 0;
        for (size_t i = 0; i < N_PARAMS; i++)
            device_axpy(&j->device, 1, (CUdeviceptr)cddp_ddp_grad(j->ddp, i), j->data[i], counts[i], j->compute);
        if (j->unused) /* the next step needs new memory while that of this step is in use */
            CU(cuStreamSynchronize(j->compute));
        check_used(j, step);
    }
}

/* The sum added to parameter i: the means of all steps; the mean of an unused gradient is that of the step before. */
static float sum_of_means(const struct job *j, size_t i)
{
    int n = cddp_world_size(j->comm);
    float sum = 0, mean = 0;

    for (int step = 0; step < j->steps; step++) {
        float all = 0;
        bool nowhere = true;

        for (int rank = 0; rank < n; rank++)
            if (comes(j, rank, step, i)) {
                all += gradient(rank, step, i);
                nowhere = false;
            }
        mean = nowhere ? mean : all / (float)n;
        sum += mean;
    }
    return sum;
}

static int check(struct job *j)
{
    static float x[1100000];

    for (size_t i = 0; i < N_PARAMS; i++) {
        float want = sum_of_means(j, i);

        CU(cuMemcpyDtoH(x, j->data[i], counts[i] * sizeof x[0]));
        for (size_t k = 0; k < counts[i]; k++) {
            if (x[k] == want)
                continue;
            fprintf(stderr, "rank %d: wrong result: parameter %zu, element %zu is %g, not %g\n", cddp_rank(j->comm), i,
                    k, (double)x[k], (double)want);
            return WRONG;
        }
    }
    return 0;
}

/*
 * Each step, one launch for each bucket in each direction, whatever the number of gradients in it; and none for the
 * mean, which is made on the way in.
 */
static int count_launches(const struct job *j, uint64_t packed, uint64_t unpacked, uint64_t scaled)
{
    uint64_t want = (uint64_t)j->steps * cddp_ddp_bucket_count(j->ddp);

    if (packed == want && unpacked == want && scaled == 0)
        return 0;
    fprintf(
        stderr,
        "%d steps of %zu buckets took %llu launches to bring gradients in, %llu to bring means out and %llu beside\n",
        j->steps, cddp_ddp_bucket_count(j->ddp), (unsigned long long)packed, (unsigned long long)unpacked,
        (unsigned long long)scaled);
    return LAUNCHES;
}

/* Gradients side by side in one block, the large one first. */
static void lay_block(struct job *j)
{
    static const size_t order[N_PARAMS] = {2, 0, 4, 1, 3};
    CUdeviceptr at;

    DO(cddp_alloc(j->comm, sizeof(float) * (1100000 + 4 * 3001), CDDP_MEM_COLLECTIVE, &j->block));
    at = (CUdeviceptr)j->block;
    for (int n = 0; n < N_PARAMS; n++) {
        j->own[order[n]] = at;
        at += counts[order[n]] * sizeof(float);
    }
    CU(cuMemsetD8Async((CUdeviceptr)j->block, 0, sizeof(float) * (1100000 + 4 * 3001), j->compute));
    CU(cuStreamSynchronize(j->compute));
}

static void open_job(struct job *j, bool automatic, bool own, bool place)
{
    static const char *const names[N_PARAMS] = {"a", "b", "c", "d", "e"};
    cddp_init_options init = {.size = sizeof init, .backend = "nccl"};
    cddp_ddp_options opt = {.size = sizeof opt, .bucket_bytes = 8000, .first_bucket_bytes = 8000};
    cddp_param params[N_PARAMS];

    j->steps = automatic ? AUTO_STEPS : j->unused ? UNUSED_STEPS : STEPS;
    if (j->unused)
        opt.flags = (j->fixed ? CDDP_DDP_STATIC_GRAPH : CDDP_DDP_FIND_UNUSED) | (j->skip ? CDDP_DDP_SKIP_UNUSED : 0);
    if (automatic) {
        opt.flags |= CDDP_DDP_TUNE;
        opt.bucket_bytes = 0;
    }
    if (own)
        opt.bucket_bytes = opt.first_bucket_bytes = OWN_BUCKET_BYTES;
    DO(cddp_init(&j->comm, &init));
    device_open(&j->device, cddp_local_rank(j->comm));
    standin_kernel_register(&fill_kernel);
    j->gate = device_kernel(&j->device, &gate_kernel);
    CU(cuLibraryGetKernel(&j->fill, j->device.library, "fill"));
    j->compute = device_stream();
    memset(params, 0, sizeof params);
    if (place)
        lay_block(j);
    for (size_t i = 0; i < N_PARAMS; i++) {
        j->data[i] = device_floats(counts[i], 0);
        params[i].size = sizeof params[i];
        params[i].name = names[i];
        params[i].data = (void *)j->data[i];
        params[i].count = counts[i];
        params[i].dtype = CDDP_FLOAT32;
        if (own)
            j->own[i] = device_floats(counts[i], 0);
        params[i].grad = (void *)j->own[i];
    }
    opt.stream = j->compute;
    DO(cddp_ddp_create(&j->ddp, j->comm, params, N_PARAMS, &opt));
}

static void close_job(struct job *j)
{
    cddp_ddp_destroy(j->ddp);
    for (size_t i = 0; i < N_PARAMS; i++)
        CU(cuMemFree(j->data[i]));
    for (size_t i = 0; i < N_PARAMS && j->own[i] != 0 && j->block == NULL; i++)
        CU(cuMemFree(j->own[i]));
    cddp_free(j->comm, j->block);
    CU(cuStreamDestroy(j->compute));
    CU(cuLibraryUnload(j->device.library));
    DO(cddp_finalize(j->comm));
}

int main(int argc, char **argv)
{
    static struct job j;
    bool own = argc > 1 && strcmp(argv[1], "own") == 0, place = argc > 1 && strstr(argv[1], "place") != NULL;
    uint64_t packed, unpacked;
    int rc;

    j.slow = argc > 1 && strcmp(argv[1], "asks") == 0;
    j.fixed = argc > 1 && strncmp(argv[1], "static", 6) == 0;
    j.skip = argc > 1 && strcmp(argv[1], "skip") == 0;
    j.unused = j.fixed || j.skip || (argc > 1 && strncmp(argv[1], "unused", 6) == 0);
    own |= argc > 1 && strstr(argv[1], "_own") != NULL;
    open_job(&j, argc > 1 && strncmp(argv[1], "auto", 4) == 0, own, place);
    packed = standin_launched("cdi_pack");
    unpacked = standin_launched("cdi_unpack");
    train(&j, argc > 1 && strcmp(argv[1], "reuse") == 0, argc > 1 && strcmp(argv[1], "missing") == 0);
    CU(cuStreamSynchronize(j.compute)); /* also if a peer is missing: then the communicator is aborted in time */
    DO(cddp_barrier(j.comm));
    rc = check(&j);
    if (j.unused && rc == 0 && j.waits > 0) {
        fprintf(stderr, "the host has waited %llu times for the device in a step\n", (unsigned long long)j.waits);
        rc = WAITED;
    } else if (strcmp(j.block != NULL ? argv[1] : "", "place") == 0 && rc == 0) {
        /* The large one, which is a bucket, is not copied. */
        uint64_t want = (uint64_t)j.steps * (cddp_ddp_bucket_count(j.ddp) - 1);

        rc = standin_launched("cdi_pack") - packed == want && standin_launched("cdi_unpack") - unpacked == want
                 ? 0
                 : LAUNCHES;
    } else if (own && !j.unused && rc == 0)
        rc = count_launches(&j, standin_launched("cdi_pack") - packed, standin_launched("cdi_unpack") - unpacked,
                            standin_launched("cdi_scale"));
    if (cddp_ddp_bucket_cap(j.ddp) == 0) {
        fprintf(stderr, "no bucket size is chosen after %d steps\n", j.steps);
        rc = WRONG;
    }
    if (j.slow)
        printf("rank %d asked NCCL %.1f times per gradient\n", cddp_rank(j.comm), (double)j.asked / (STEPS * N_PARAMS));
    if (j.slow && rc == 0 && j.asked > (uint64_t)MOST_ASKED * STEPS * N_PARAMS)
        rc = ASKED;
    close_job(&j);
    return rc;
}
