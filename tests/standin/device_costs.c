/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of a step on a GPU for its thread: calls of the driver, and threads that NCCL starts for it. A
 * program that cddprun starts, with two ranks. Every gradient is a separate bucket, too large to start together with
 * others, and the steps with fewer and with more buckets differ by the cost of a bucket.
 *
 * So for each kind of gradients. Then rank 0 makes all calls of a step before rank 1 begins it: none of them may wait
 * for a peer.
 *
 *     device_costs MOST_CALLS MOST_THREADS MOST_PER_STEP    per bucket, two calls more where kernels of ours bring
 *                                             gradients into the arena and out of it; and calls per step beside, one
 *                                             more there; a negative number: any
 *
 * With CDDP_NAN_CHECK=warn a bucket may make one call more.
 *
 * Exit status: 0 all was right, 3 too much, 4 libcddp gave an error.
 */
#include "device.h"
#include "fill_kernel.h"
#include "must.h"

#include <cddp/cddp.h>
#include <stdlib.h>
#include <string.h>

#define N_PARAMS 12
#define COUNT 40000 /* 156 KiB: buckets of up to 64 KiB start together */
#define WARM 50     /* steps, until the order of the buckets is settled, and every slot of the ring has been used */
#define STEPS 5
#define TOO_MUCH 3
#define PEER_MS 60000

/* Kinds of gradients, and the work beside the collective. */
static const struct kind {
    const char *name;
    cddp_dtype dtype, sent_as;
    uint32_t flags;
    bool own;   /* in memory of the program's */
    bool place; /* and reduced there */
} kinds[] = {
    {.name = "float32", .dtype = CDDP_FLOAT32},
    {.name = "float16", .dtype = CDDP_FLOAT16},
    {.name = "bfloat16", .dtype = CDDP_BFLOAT16},
    {.name = "sums of float32", .dtype = CDDP_FLOAT32, .flags = CDDP_DDP_SUM},
    {.name = "float32 sent as bfloat16", .dtype = CDDP_FLOAT32, .sent_as = CDDP_BFLOAT16},
    {.name = "float32 of the program's", .dtype = CDDP_FLOAT32, .own = true},
    {.name = "float32 in place", .dtype = CDDP_FLOAT32, .own = true, .place = true},
};

struct model {
    cddp_comm *comm;
    cddp_ddp *ddp;
    CUstream compute;
    CUdeviceptr data[N_PARAMS], own[N_PARAMS];
    size_t n;
    bool place;
};

static void make_model(struct model *m, cddp_comm *comm, CUstream compute, size_t n, const struct kind *kind)
{
    static const char *const names[N_PARAMS] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"};
    const size_t bytes = COUNT * cddp_dtype_size(kind->dtype);
    cddp_ddp_options opt = {.size = sizeof opt,
                            .bucket_bytes = bytes,
                            .first_bucket_bytes = bytes,
                            .stream = compute,
                            .flags = kind->flags,
                            .comm_dtype = kind->sent_as};
    cddp_param params[N_PARAMS] = {{.name = NULL}};

    *m = (struct model){.comm = comm, .compute = compute, .n = n, .place = kind->place};
    for (size_t i = 0; i < n; i++) {
        m->data[i] = device_floats(COUNT, 0);
        m->own[i] = kind->own ? device_floats(COUNT, 0) : 0;
        if (kind->place)
            DO(cddp_register(comm, (void *)m->own[i], bytes, CDDP_MEM_COLLECTIVE));
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = names[i],
                                 .data = (void *)m->data[i],
                                 .grad = (void *)m->own[i],
                                 .count = COUNT,
                                 .dtype = kind->dtype};
    }
    DO(cddp_ddp_create(&m->ddp, comm, params, n, &opt));
    if (cddp_ddp_bucket_count(m->ddp) == n)
        return;
    fprintf(stderr, "%zu gradients are in %zu buckets\n", n, cddp_ddp_bucket_count(m->ddp));
    exit(FAILED);
}

static void free_model(struct model *m)
{
    CU(cuStreamSynchronize(m->compute));
    cddp_ddp_destroy(m->ddp);
    for (size_t i = 0; i < m->n; i++) {
        CU(cuMemFree(m->data[i]));
        if (m->place)
            DO(cddp_unregister(m->comm, (void *)m->own[i]));
        if (m->own[i] != 0)
            CU(cuMemFree(m->own[i]));
    }
}

static void step(const struct model *m)
{
    for (size_t i = m->n; i-- > 0;)
        DO(cddp_ddp_grad_ready_on(m->ddp, i, m->compute));
    DO(cddp_ddp_wait(m->ddp));
}

struct cost {
    uint64_t calls, threads;
};

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/*
 * The median of STEPS, each with the stream idle before it. The progress of the device decides what has to be done, so
 * that a step occasionally makes one call less.
 */
static struct cost cost_of(const struct model *m)
{
    uint64_t calls[STEPS], threads[STEPS];

    for (int i = 0; i < WARM; i++) {
        step(m);
        CU(cuStreamSynchronize(m->compute)); /* or the ring of operations would grow */
    }
    for (int i = 0; i < STEPS; i++) {
        CU(cuStreamSynchronize(m->compute));
        DO(cddp_barrier(m->comm));
        calls[i] = standin_calls();
        threads[i] = standin_threads();
        step(m);
        calls[i] = standin_calls() - calls[i];
        threads[i] = standin_threads() - threads[i];
    }
    qsort(calls, STEPS, sizeof calls[0], by_size);
    qsort(threads, STEPS, sizeof threads[0], by_size);
    return (struct cost){.calls = calls[STEPS / 2], .threads = threads[STEPS / 2]};
}

static int judge(const char *kind, const char *what, uint64_t few, uint64_t many, double most, double most_beside)
{
    double a_bucket = (double)(many - few) / (N_PARAMS / 2.0), a_step = (double)few - a_bucket * N_PARAMS / 2;

    printf("%s: %s: %.2f per bucket and %.1f per step beside\n", kind, what, a_bucket, a_step);
    if ((most < 0 || a_bucket <= most) && (most_beside < 0 || a_step <= most_beside))
        return 0;
    fprintf(stderr, "%s: %s: %.2f per bucket and %.1f per step beside, of at most %g and %g\n", kind, what, a_bucket,
            a_step, most, most_beside);
    return TOO_MUCH;
}

/* Rank 1 begins a step when rank 0 has made all of its calls. */
static void go_alone(const struct model *m)
{
    for (int i = 0; i < STEPS; i++) {
        char key[32];
        const char *keys[] = {key};

        (void)snprintf(key, sizeof key, "alone/%d", i);
        if (cddp_rank(m->comm) == 1)
            DO(cddp_store_wait(cddp_comm_store(m->comm), keys, 1, PEER_MS));
        step(m);
        if (cddp_rank(m->comm) == 0)
            DO(cddp_store_set(cddp_comm_store(m->comm), key, "1", 1));
    }
}

int main(int argc, char **argv)
{
    cddp_init_options init = {.size = sizeof init, .backend = "nccl"};
    const char *check = getenv("CDDP_NAN_CHECK");
    bool checks = check != NULL && strcmp(check, "off") != 0;
    struct device device;
    struct model m = {.n = 0};
    cddp_comm *comm;
    CUstream compute;
    int rc = 0;

    if (argc != 4)
        return FAILED;
    DO(cddp_init(&comm, &init));
    device_open(&device, cddp_local_rank(comm));
    compute = device_stream();
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        bool moved = (kinds[k].own && !kinds[k].place) || kinds[k].sent_as != CDDP_DTYPE_NONE;
        double most = strtod(argv[1], NULL), calls = most, beside = strtod(argv[3], NULL);
        struct cost few, many;

        if (most >= 0 && moved)
            calls += 2;
        if (beside >= 0 && moved)
            beside += 1;
        if (most >= 0 && checks)
            calls += 1;
        make_model(&m, comm, compute, N_PARAMS / 2, &kinds[k]);
        few = cost_of(&m);
        free_model(&m);
        make_model(&m, comm, compute, N_PARAMS, &kinds[k]);
        many = cost_of(&m);
        if (cddp_rank(comm) == 0)
            rc |= judge(kinds[k].name, "calls of the driver", few.calls, many.calls, calls, beside) |
                  judge(kinds[k].name, "threads", few.threads, many.threads, strtod(argv[2], NULL), -1);
        if (k == 0 && (!checks || strcmp(check, "warn") == 0)) /* "error": each step waits for the ranks */
            go_alone(&m);
        free_model(&m);
    }
    CU(cuStreamDestroy(compute));
    CU(cuLibraryUnload(device.library));
    DO(cddp_finalize(comm));
    return rc;
}
