/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which share of the communication a step hides, on a machine without the wire: after the all-reduce of each bucket,
 * on libcddp's communication stream, a kernel takes the time that a ring of N ranks with links of B GB/s would take for
 * it, 2 (N - 1) / N * bytes / B. The kernel has 8 blocks of one thread, as many blocks as NCCL has channels at such
 * sizes: they take room that the backward pass could use, but none of its memory bandwidth.
 *
 *     cddprun --standalone --nproc_per_node=1 gpu_wire [--kib N] [--bucket-kib N] [--steps N] [--ranks N] [--gb-s N]
 * [--plain]
 *
 * A step writes every gradient by as many passes as make its backward pass a quarter longer than the wire; told are the
 * time of the backward pass alone, that of the whole step, both between two events on the compute stream, and the
 * host's in cddp_* calls: quartiles, in one line of JSON from rank 0.
 *
 * --plain: without the wire, only what the ranks have to send. Told beside are the mean time that a step takes longer
 * than its backward pass, and what cddp_ddp_get_stats() reports as exposed and as communicated: means of the same
 * steps.
 */
#include "bench/gpu_delay.h"
#include "bench/gpu_program.h"

#include <cddp/experimental/ddp.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PARAMS_PER_BUCKET 4
#define WARM 10
#define WIRE_BLOCKS 8
#define MOST_STEPS 1000
#define LONGER 1.25 /* backward pass by wire */
#define MOST_PASSES 1000
#define KNOWN_NS 100000000 /* for the library to know the times of the last step */

extern const unsigned char bench_delay_image[];

struct wire {
    size_t bucket_bytes, n_buckets, n_params;
    int steps, ranks, passes;
    bool plain;
    double gb_s;
    cddp_comm *comm;
    cddp_ddp *ddp;
    cddp_param *params;
    struct card card;
    CUlibrary image;
    CUfunction delay;
    struct gpu_delay_args args;
    CUevent from, to;
};

/* ---------------------------------------------------------------------------------------------------- the wire ---- */

/* The hook's begin: the mean, and after it on the same stream the modelled wire. */
static cddp_status send_bucket(void *arg, cddp_comm *comm, const cddp_bucket *bucket, uint64_t *ticket)
{
    struct wire *w = arg;
    cddp_coll_args work = {.size = sizeof work,
                           .coll = CDDP_COLL_ALL_REDUCE,
                           .dtype = bucket->dtype,
                           .op = CDDP_AVG,
                           .in = bucket->data,
                           .out = bucket->data,
                           .count = bucket->count};
    cddp_status status = cddp_coll_start(comm, &work, 1, ticket);
    void *params[] = {&w->args};

    if (status == CDDP_OK)
        CARD(&w->card, cuLaunchKernel, w->delay, WIRE_BLOCKS, 1, 1, 1, 1, 1, 0, bucket->stream, params, NULL);
    return status;
}

static double wire_us(const struct wire *w)
{
    return 2.0 * (w->ranks - 1) / w->ranks * (double)w->bucket_bytes / (w->gb_s * 1e3);
}

/* --------------------------------------------------------------------------------------------------- the step ---- */

static void backward(struct wire *w, size_t i)
{
    struct cdi_launch l;

    if (cdi_launch_scale(&l, w->card.n_sm, cddp_ddp_grad(w->ddp, i), w->params[i].count, CDDP_FLOAT32, 1, NULL) != 0)
        card_die("gpu_wire: a kernel was refused");
    for (int k = 0; k < w->passes; k++)
        card_launch(&w->card, w->card.stream, &l);
}

/* Milliseconds of the compute stream; *host_us (may be NULL): in cddp_* calls. */
static double step(struct wire *w, bool reduce, double *host_us)
{
    double host = 0, start;
    float ms;

    CARD(&w->card, cuEventRecord, w->from, w->card.stream);
    for (size_t i = w->n_params; i-- > 0;) {
        backward(w, i);
        start = now_us();
        if (reduce)
            must(cddp_ddp_grad_ready(w->ddp, i));
        host += now_us() - start;
    }
    start = now_us();
    if (reduce)
        must(cddp_ddp_wait(w->ddp));
    host += now_us() - start;
    CARD(&w->card, cuEventRecord, w->to, w->card.stream);
    CARD(&w->card, cuEventSynchronize, w->to);
    CARD(&w->card, cuEventElapsedTime, &ms, w->from, w->to);
    if (host_us != NULL)
        *host_us = host;
    return (double)ms;
}

static void sort(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
}

/* How many passes make the backward pass as long as it is to be; the same on every rank. */
static void choose_passes(struct wire *w)
{
    double ms[WARM], wanted;
    int32_t passes;

    w->passes = 1;
    for (int i = 0; i < WARM; i++)
        ms[i] = step(w, false, NULL);
    sort(ms, WARM);
    wanted = LONGER * wire_us(w) * 1e-3 * (double)w->n_buckets / ms[WARM / 2];
    passes = wanted > MOST_PASSES ? MOST_PASSES : wanted < 1 ? 1 : (int32_t)(wanted + 0.5);
    must(cddp_broadcast(w->comm, &passes, 1, CDDP_INT32, 0));
    w->passes = passes;
}

static void show(const char *name, double *values, int n)
{
    sort(values, n);
    printf(",\"%s\":[%.6g,%.6g,%.6g]", name, values[n / 4], values[n / 2], values[n * 3 / 4]);
}

static cddp_ddp_stats sums(const struct wire *w)
{
    const struct timespec nap = {.tv_nsec = KNOWN_NS};
    cddp_ddp_stats s = {.size = sizeof s};

    (void)nanosleep(&nap, NULL);
    must(cddp_ddp_get_stats(w->ddp, &s));
    return s;
}

/* Prints what the library says of the steps since `before`, beside the difference of times. */
static void show_library(const struct wire *w, const cddp_ddp_stats *before, const double *alone, const double *whole)
{
    const cddp_ddp_stats now = sums(w);
    double longer = 0, counted = (double)(now.steps - before->steps), n = counted > 0 ? counted : 1;

    for (int i = 0; i < w->steps; i++)
        longer += (whole[i] - alone[i]) / w->steps;
    printf(",\"longer_ms\":%.6g,\"counted_steps\":%.0f,\"exposed_ms\":%.6g,\"comm_ms\":%.6g", longer, counted,
           (double)(now.exposed_ns - before->exposed_ns) * 1e-6 / n,
           (double)(now.comm_ns - before->comm_ns) * 1e-6 / n);
}

static void measure(struct wire *w)
{
    static double alone[MOST_STEPS], whole[MOST_STEPS], host[MOST_STEPS];
    cddp_ddp_stats before = {.size = sizeof before};

    for (int i = -WARM; i < w->steps; i++) {
        const int at = i < 0 ? 0 : i;

        if (i == 0)
            before = sums(w);
        alone[at] = step(w, false, NULL);
        whole[at] = step(w, true, &host[at]);
    }
    if (cddp_rank(w->comm) != 0)
        return;
    printf("{\"card\":\"%s\",\"ranks\":%d,\"buckets\":%zu,\"bucket_bytes\":%zu,\"modelled_ranks\":%d,"
           "\"modelled_gb_s\":%g,\"wire_us_per_bucket\":%.6g,\"wire_blocks\":%d,\"passes\":%d,\"steps\":%d",
           w->card.name, cddp_world_size(w->comm), w->n_buckets, w->bucket_bytes, w->ranks, w->gb_s, wire_us(w),
           WIRE_BLOCKS, w->passes, w->steps);
    if (w->plain)
        show_library(w, &before, alone, whole);
    show("compute_ms", alone, w->steps);
    show("step_ms", whole, w->steps);
    show("host_us", host, w->steps);
    printf("}\n");
}

/* ------------------------------------------------------------------------------------------- set up, arguments ---- */

static void open_wire(struct wire *w)
{
    cddp_device_info info = {.size = sizeof info};
    cddp_ddp_options options = {
        .size = sizeof options, .bucket_bytes = w->bucket_bytes, .first_bucket_bytes = w->bucket_bytes};
    cddp_hook hook = {.size = sizeof hook, .begin = send_bucket, .arg = w};
    const size_t bytes = w->bucket_bytes / PARAMS_PER_BUCKET;
    CUkernel kernel;

    must(cddp_init(&w->comm, NULL));
    must(cddp_get_device_info(w->comm, &info));
    if (info.device < 0) {
        (void)fprintf(stderr, "gpu_wire: libcddp found no GPU to reduce on; its backend is %s\n",
                      cddp_backend_name(w->comm));
        exit(77);
    }
    card_open(&w->card, info.device);
    CARD(&w->card, cuLibraryLoadData, &w->image, bench_delay_image, NULL, NULL, 0, NULL, NULL, 0);
    CARD(&w->card, cuLibraryGetKernel, &kernel, w->image, GPU_DELAY_KERNEL);
    CARD(&w->card, cuKernelGetFunction, &w->delay, kernel);
    w->args.ns = (uint64_t)(wire_us(w) * 1e3);
    CARD(&w->card, cuEventCreate, &w->from, CU_EVENT_DEFAULT);
    CARD(&w->card, cuEventCreate, &w->to, CU_EVENT_DEFAULT);
    w->n_params = w->n_buckets * PARAMS_PER_BUCKET;
    w->params = calloc(w->n_params, sizeof *w->params);
    if (w->params == NULL)
        card_die("gpu_wire: out of memory");
    for (size_t i = 0; i < w->n_params; i++) {
        w->params[i] = (cddp_param){
            .size = sizeof(cddp_param), .name = "p", .count = bytes / sizeof(float), .dtype = CDDP_FLOAT32};
        must(cddp_alloc(w->comm, bytes, 0, &w->params[i].data));
    }
    options.stream = w->card.stream;
    must(cddp_ddp_create(&w->ddp, w->comm, w->params, w->n_params, &options));
    if (cddp_ddp_bucket_count(w->ddp) != w->n_buckets)
        card_die("gpu_wire: %zu buckets, not %zu", cddp_ddp_bucket_count(w->ddp), w->n_buckets);
    if (!w->plain)
        must(cddp_ddp_set_hook(w->ddp, &hook));
}

static void close_wire(struct wire *w)
{
    cddp_ddp_destroy(w->ddp);
    for (size_t i = 0; i < w->n_params; i++)
        cddp_free(w->comm, w->params[i].data);
    free(w->params);
    CARD(&w->card, cuEventDestroy, w->from);
    CARD(&w->card, cuEventDestroy, w->to);
    CARD(&w->card, cuLibraryUnload, w->image);
    card_close(&w->card);
    must(cddp_finalize(w->comm));
}

static void read_arguments(struct wire *w, int argc, char **argv)
{
    static const struct option flags[] = {{"kib", required_argument, NULL, 'k'},
                                          {"bucket-kib", required_argument, NULL, 'b'},
                                          {"steps", required_argument, NULL, 's'},
                                          {"ranks", required_argument, NULL, 'r'},
                                          {"gb-s", required_argument, NULL, 'g'},
                                          {"plain", no_argument, NULL, 'p'},
                                          {NULL, 0, NULL, 0}};
    long kib = 512000, bucket = 25600;
    int c;

    w->steps = 50;
    w->ranks = 8;
    w->gb_s = 50;
    while ((c = getopt_long(argc, argv, "", flags, NULL)) != -1) {
        if (c == 'k')
            kib = number(optarg, 1, 1L << 30);
        else if (c == 'b')
            bucket = number(optarg, 1, 1L << 24);
        else if (c == 's')
            w->steps = (int)number(optarg, 1, MOST_STEPS);
        else if (c == 'r')
            w->ranks = (int)number(optarg, 2, 1L << 20);
        else if (c == 'g')
            w->gb_s = (double)number(optarg, 1, 1L << 20);
        else if (c == 'p')
            w->plain = true;
        else
            exit(2);
    }
    if (optind != argc || kib < bucket)
        card_die("usage: gpu_wire [--kib N] [--bucket-kib N] [--steps N] [--ranks N] [--gb-s N] [--plain]");
    w->bucket_bytes = (size_t)bucket << 10;
    w->n_buckets = (size_t)(kib / bucket);
}

int main(int argc, char **argv)
{
    static struct wire w;

    read_arguments(&w, argc, argv);
    open_wire(&w);
    choose_passes(&w);
    measure(&w);
    close_wire(&w);
    return 0;
}
