/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libcddp's reducer costs on a GPU over ncclAllReduce called by hand: the same buckets, in the same memory, with
 * the same overlap (an event per bucket, a communication stream of high priority), in turn, in one process per rank.
 *
 *     cddprun --standalone --nproc_per_node=gpu gpu_step [--kib N] [--bucket-kib N] [--pairs N] [--work N]
 *
 * A step passes over the gradients of a bucket `work` times, a kernel each, then has them reduced; its time is that
 * between two events on the compute stream. A kernel is long enough (25 MiB: 18 us on an H100) for the host, which
 * needs 4 us to launch one, to stay ahead of the GPU: otherwise a step measures the host. Host time is that spent
 * inside cddp_* calls, and bare's that spent in the calls that do the same by hand. Then what clipping the gradients
 * takes. One line of JSON from rank 0.
 */
#include "bench/gpu_program.h"

#include <getopt.h>
#include <inttypes.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARAMS_PER_BUCKET 4
#define WARM 10
#define MAX_PAIRS 1000

struct sizes {
    size_t bucket_bytes, n_buckets;
    int pairs, work;
};

struct nccl {
    __typeof__(&ncclGetVersion) version;
    __typeof__(&ncclGetUniqueId) unique_id;
    __typeof__(&ncclCommInitRank) init;
    __typeof__(&ncclAllReduce) all_reduce;
    __typeof__(&ncclCommDestroy) destroy;
    __typeof__(&ncclGetErrorString) error;
};

struct bench {
    struct sizes sizes;
    cddp_comm *comm;
    struct card card;
    struct nccl nccl;
    ncclComm_t bare;
    CUstream side; /* bare's communication stream */
    CUevent from, to, landed, *ready;
    cddp_param *params;
    size_t n_params;
    cddp_ddp *ddp;
    ncclRedOp_t op;
};

/* Of one way to do the step. */
struct times {
    double ms[MAX_PAIRS];
    double host_us[MAX_PAIRS];
};

static void nccl_must(const struct bench *b, ncclResult_t r, const char *what)
{
    if (r != ncclSuccess)
        card_die("gpu_step: %s: %s", what, b->nccl.error(r));
}

/* ---------------------------------------------------------------------------------------------------- set up ---- */

static void open_nccl(struct nccl *n)
{
    void *library = card_library("CDDP_NCCL_LIBRARY", "libnccl.so.2", 77), *symbol;

#define GET(member, name)                \
    symbol = card_symbol(library, name); \
    memcpy(&n->member, &symbol, sizeof symbol)
    GET(version, "ncclGetVersion");
    GET(unique_id, "ncclGetUniqueId");
    GET(init, "ncclCommInitRank");
    GET(all_reduce, "ncclAllReduce");
    GET(destroy, "ncclCommDestroy");
    GET(error, "ncclGetErrorString");
#undef GET
}

/* Our own communicator, beside libcddp's. */
static void join_bare(struct bench *b)
{
    ncclUniqueId id;

    if (cddp_rank(b->comm) == 0)
        nccl_must(b, b->nccl.unique_id(&id), "ncclGetUniqueId");
    must(cddp_broadcast(b->comm, &id, sizeof id, CDDP_UINT8, 0));
    nccl_must(b, b->nccl.init(&b->bare, cddp_world_size(b->comm), id, cddp_rank(b->comm)), "ncclCommInitRank");
}

static void make_params(struct bench *b)
{
    const size_t bytes = b->sizes.bucket_bytes / PARAMS_PER_BUCKET;

    b->n_params = b->sizes.n_buckets * PARAMS_PER_BUCKET;
    b->params = get_memory(b->n_params * sizeof *b->params);
    for (size_t i = 0; i < b->n_params; i++) {
        b->params[i] = (cddp_param){
            .size = sizeof(cddp_param), .name = "p", .count = bytes / sizeof(float), .dtype = CDDP_FLOAT32};
        must(cddp_alloc(b->comm, bytes, 0, &b->params[i].data));
    }
}

static void open_bench(struct bench *b)
{
    cddp_device_info info = {.size = sizeof info};

    must(cddp_init(&b->comm, NULL));
    must(cddp_get_device_info(b->comm, &info));
    if (info.device < 0) {
        (void)fprintf(stderr, "gpu_step: libcddp found no GPU to reduce on; its backend is %s\n",
                      cddp_backend_name(b->comm));
        exit(77);
    }
    card_open(&b->card, info.device);
    open_nccl(&b->nccl);
    join_bare(b);
    CARD(&b->card, cuStreamCreateWithPriority, &b->side, CU_STREAM_NON_BLOCKING, -5);
    CARD(&b->card, cuEventCreate, &b->from, CU_EVENT_DEFAULT);
    CARD(&b->card, cuEventCreate, &b->to, CU_EVENT_DEFAULT);
    CARD(&b->card, cuEventCreate, &b->landed, CU_EVENT_DISABLE_TIMING);
    b->ready = get_memory(b->sizes.n_buckets * sizeof(CUevent));
    for (size_t i = 0; i < b->sizes.n_buckets; i++)
        CARD(&b->card, cuEventCreate, &b->ready[i], CU_EVENT_DISABLE_TIMING);
    make_params(b);
}

static void close_bench(struct bench *b)
{
    for (size_t i = 0; i < b->n_params; i++)
        cddp_free(b->comm, b->params[i].data);
    for (size_t i = 0; i < b->sizes.n_buckets; i++)
        CARD(&b->card, cuEventDestroy, b->ready[i]);
    CARD(&b->card, cuEventDestroy, b->from);
    CARD(&b->card, cuEventDestroy, b->to);
    CARD(&b->card, cuEventDestroy, b->landed);
    CARD(&b->card, cuStreamDestroy, b->side);
    nccl_must(b, b->nccl.destroy(b->bare), "ncclCommDestroy");
    free(b->ready);
    free(b->params);
    card_close(&b->card);
    must(cddp_finalize(b->comm));
}

/* ------------------------------------------------------------------------------------------------- the steps ---- */

/* Where bucket k, in the order of launching, begins: its parameters lie side by side. */
static void *bucket_base(const struct bench *b, size_t k)
{
    const size_t last = b->n_params - 1 - k * PARAMS_PER_BUCKET;
    uint8_t *low = NULL, *high = NULL;

    for (size_t i = 0; i < PARAMS_PER_BUCKET; i++) {
        uint8_t *p = cddp_ddp_grad(b->ddp, last - i);

        low = low == NULL || p < low ? p : low;
        high = p > high ? p : high;
    }
    if ((size_t)(high - low) + b->sizes.bucket_bytes / PARAMS_PER_BUCKET != b->sizes.bucket_bytes)
        card_die("gpu_step: the parameters of bucket %zu do not lie side by side", k);
    return low;
}

/* The backward pass of one bucket: `work` passes over its gradients, which keep their values. */
static void backward(struct bench *b, void *base, int work)
{
    struct cdi_launch l;

    if (cdi_launch_scale(&l, b->card.n_sm, base, b->sizes.bucket_bytes / sizeof(float), CDDP_FLOAT32, 1, NULL) != 0)
        card_die("gpu_step: a kernel was refused");
    for (int k = 0; k < work; k++)
        card_launch(&b->card, b->card.stream, &l);
}

/* Returns what the host spent in cddp_* calls, in microseconds. */
static double reducer_step(struct bench *b, int work)
{
    double host = 0, start;
    cddp_status status = CDDP_OK;

    for (size_t k = 0; k < b->sizes.n_buckets; k++) {
        backward(b, bucket_base(b, k), work);
        start = now_us();
        for (size_t i = 0; i < PARAMS_PER_BUCKET && status == CDDP_OK; i++)
            status = cddp_ddp_grad_ready(b->ddp, b->n_params - 1 - k * PARAMS_PER_BUCKET - i);
        host += now_us() - start;
        must(status);
    }
    start = now_us();
    status = cddp_ddp_wait(b->ddp);
    host += now_us() - start;
    must(status);
    return host;
}

/* Returns what the host spent on communication, as reducer_step does. */
static double bare_step(struct bench *b, int work)
{
    double host = 0, start;

    for (size_t k = 0; k < b->sizes.n_buckets; k++) {
        void *base = bucket_base(b, k);

        backward(b, base, work);
        start = now_us();
        CARD(&b->card, cuEventRecord, b->ready[k], b->card.stream);
        CARD(&b->card, cuStreamWaitEvent, b->side, b->ready[k], 0);
        nccl_must(b,
                  b->nccl.all_reduce(base, base, b->sizes.bucket_bytes / sizeof(float), ncclFloat, b->op, b->bare,
                                     (cudaStream_t)b->side),
                  "ncclAllReduce");
        host += now_us() - start;
    }
    start = now_us();
    CARD(&b->card, cuEventRecord, b->landed, b->side);
    CARD(&b->card, cuStreamWaitEvent, b->card.stream, b->landed, 0);
    return host + now_us() - start;
}

static double timed(struct bench *b, bool bare, int work, double *host_us)
{
    float ms;

    CARD(&b->card, cuEventRecord, b->from, b->card.stream);
    *host_us = bare ? bare_step(b, work) : reducer_step(b, work);
    CARD(&b->card, cuEventRecord, b->to, b->card.stream);
    CARD(&b->card, cuEventSynchronize, b->to);
    CARD(&b->card, cuEventElapsedTime, &ms, b->from, b->to);
    return (double)ms;
}

/* ------------------------------------------------------------------------------------------------- the report ---- */

/* "name":[first quartile, median, third quartile] */
static void show(const char *name, const double *values, int n)
{
    double sorted[MAX_PAIRS];

    memcpy(sorted, values, (size_t)n * sizeof sorted[0]);
    qsort(sorted, (size_t)n, sizeof sorted[0], ascending);
    printf("\"%s\":[%.6g,%.6g,%.6g]", name, sorted[n / 4], sorted[n / 2], sorted[n * 3 / 4]);
}

static void measure(struct bench *b, const char *op, int work, bool first)
{
    static struct times ours, theirs;
    static double ratio[MAX_PAIRS];

    for (int i = -WARM; i < b->sizes.pairs; i++) {
        const int at = i < 0 ? 0 : i;

        /* Which one goes first changes from pair to pair. */
        if (at % 2 != 0)
            theirs.ms[at] = timed(b, true, work, &theirs.host_us[at]);
        ours.ms[at] = timed(b, false, work, &ours.host_us[at]);
        if (at % 2 == 0)
            theirs.ms[at] = timed(b, true, work, &theirs.host_us[at]);
        ratio[at] = ours.ms[at] / theirs.ms[at];
    }
    if (cddp_rank(b->comm) != 0)
        return;
    printf("%s{\"op\":\"%s\",\"work\":%d,", first ? "" : ",", op, work);
    show("reducer_ms", ours.ms, b->sizes.pairs);
    printf(",");
    show("bare_ms", theirs.ms, b->sizes.pairs);
    printf(",");
    show("ratio", ratio, b->sizes.pairs);
    printf(",");
    show("host_us", ours.host_us, b->sizes.pairs);
    printf(",");
    show("bare_host_us", theirs.host_us, b->sizes.pairs);
    printf("}");
}

/* The cost of clipping after a step, of the GPU and of the host, which is not to wait: by a norm that clips nothing. */
static void measure_clip(struct bench *b)
{
    static struct times t;
    double unused;

    for (int i = -WARM; i < b->sizes.pairs; i++) {
        const int at = i < 0 ? 0 : i;
        double start;
        float ms;

        (void)timed(b, false, 1, &unused);
        CARD(&b->card, cuEventRecord, b->from, b->card.stream);
        start = now_us();
        must(cddp_ddp_clip_grad_norm(b->ddp, 1e30, 2, 0, NULL));
        t.host_us[at] = now_us() - start;
        CARD(&b->card, cuEventRecord, b->to, b->card.stream);
        CARD(&b->card, cuEventSynchronize, b->to);
        CARD(&b->card, cuEventElapsedTime, &ms, b->from, b->to);
        t.ms[at] = (double)ms;
    }
    if (cddp_rank(b->comm) != 0)
        return;
    printf("],\"clip\":{");
    show("ms", t.ms, b->sizes.pairs);
    printf(",");
    show("host_us", t.host_us, b->sizes.pairs);
    printf("}}\n");
}

/* The mean, which may cost NCCL a pass, and the sum, which on one rank costs it nothing. */
static void measure_op(struct bench *b, const char *op, uint32_t flags, bool first)
{
    cddp_ddp_options options = {.size = sizeof options,
                                .bucket_bytes = b->sizes.bucket_bytes,
                                .first_bucket_bytes = b->sizes.bucket_bytes,
                                .flags = flags,
                                .stream = b->card.stream};

    b->op = flags == CDDP_DDP_SUM ? ncclSum : ncclAvg;
    must(cddp_ddp_create(&b->ddp, b->comm, b->params, b->n_params, &options));
    if (cddp_ddp_bucket_count(b->ddp) != b->sizes.n_buckets)
        card_die("gpu_step: %zu buckets, not %zu", cddp_ddp_bucket_count(b->ddp), b->sizes.n_buckets);
    for (size_t k = 0; k < b->sizes.n_buckets; k++)
        if (cddp_ddp_bucket_bytes(b->ddp, k) != b->sizes.bucket_bytes)
            card_die("gpu_step: bucket %zu has %zu bytes", k, cddp_ddp_bucket_bytes(b->ddp, k));
    measure(b, op, 0, first);
    measure(b, op, b->sizes.work, false);
    if (flags == CDDP_DDP_SUM) /* the last one */
        measure_clip(b);
    cddp_ddp_destroy(b->ddp);
}

static struct sizes read_arguments(int argc, char **argv)
{
    static const struct option flags[] = {{"kib", required_argument, NULL, 'k'},
                                          {"bucket-kib", required_argument, NULL, 'b'},
                                          {"pairs", required_argument, NULL, 'p'},
                                          {"work", required_argument, NULL, 'w'},
                                          {NULL, 0, NULL, 0}};
    long kib = 1024000, bucket = 25600;
    struct sizes s = {.pairs = 50, .work = 8};
    int c;

    while ((c = getopt_long(argc, argv, "", flags, NULL)) != -1) {
        if (c == 'k')
            kib = number(optarg, 1, 1L << 30);
        else if (c == 'b')
            bucket = number(optarg, 1, 1L << 24);
        else if (c == 'p')
            s.pairs = (int)number(optarg, 1, MAX_PAIRS);
        else if (c == 'w')
            s.work = (int)number(optarg, 1, 1000);
        else
            exit(2);
    }
    if (optind != argc || kib < bucket)
        card_die("usage: gpu_step [--kib N] [--bucket-kib N] [--pairs N] [--work N]");
    s.bucket_bytes = (size_t)bucket << 10;
    s.n_buckets = (size_t)(kib / bucket);
    return s;
}

int main(int argc, char **argv)
{
    static struct bench b;
    int version = 0;

    b.sizes = read_arguments(argc, argv);
    open_bench(&b);
    nccl_must(&b, b.nccl.version(&version), "ncclGetVersion");
    if (cddp_rank(b.comm) == 0)
        printf("{\"card\":\"%s\",\"driver\":%d,\"nccl\":%d,\"ranks\":%d,\"buckets\":%zu,\"bucket_bytes\":%zu,"
               "\"params\":%zu,\"pairs\":%d,\"runs\":[",
               b.card.name, b.card.driver_version, version, cddp_world_size(b.comm), b.sizes.n_buckets,
               b.sizes.bucket_bytes, b.n_params, b.sizes.pairs);
    measure_op(&b, "mean", 0, true);
    measure_op(&b, "sum", CDDP_DDP_SUM, false);
    close_bench(&b);
    return 0;
}
