/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a whole step of training takes on a GPU beside the forward pass: gradients, clipping and AdamW, divided among
 * the ranks; and what a checkpoint in the background takes of the steps that go on meanwhile. Afterwards the checkpoint
 * is loaded, and must hold what the parameters were when it was begun.
 *
 *     cddprun --standalone --nproc_per_node=gpu gpu_train --dir DIR [--kib N] [--bucket-kib N] [--steps N] [--work N]
 *
 * A step writes every gradient by `work` passes. Its time is that between two events on the compute stream; host time
 * is that spent inside cddp_* calls. Quartiles, in one line of JSON from rank 0. DIR is for the checkpoint.
 */
#include "bench/gpu_program.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARAMS_PER_BUCKET 4
#define WARM 10
#define MOST_STEPS 1000
#define NAME_BYTES 24
#define GRADIENT_BYTE 0x3c /* 0x3c3c3c3c is 0.0115 */

struct job {
    const char *dir;
    size_t bucket_bytes, n_buckets, n_params, param_bytes;
    int steps, work;
    cddp_comm *comm;
    cddp_ddp *ddp;
    cddp_optim *optim;
    cddp_param *params;
    cddp_checkpoint_item *items;
    struct card card;
    CUevent from, to;
};

/* Of `steps` steps. */
struct times {
    double ms[MOST_STEPS];
    double host_us[MOST_STEPS];
};

/* --------------------------------------------------------------------------------------------------- the steps ---- */

static void backward(struct job *j, size_t i)
{
    void *grad = cddp_ddp_grad(j->ddp, i);
    struct cdi_launch l;

    if (cdi_launch_scale(&l, j->card.n_sm, grad, j->params[i].count, CDDP_FLOAT32, 1, NULL) != 0)
        card_die("gpu_train: a kernel was refused");
    CARD(&j->card, cuMemsetD8Async, (CUdeviceptr)(uintptr_t)grad, GRADIENT_BYTE, j->param_bytes, j->card.stream);
    for (int k = 1; k < j->work; k++)
        card_launch(&j->card, j->card.stream, &l);
}

/* Milliseconds of the compute stream. */
static double step(struct job *j, double *host_us)
{
    double start;
    float ms;

    *host_us = 0;
    CARD(&j->card, cuEventRecord, j->from, j->card.stream);
    for (size_t i = j->n_params; i-- > 0;) {
        backward(j, i);
        start = now_us();
        must(cddp_ddp_grad_ready(j->ddp, i));
        *host_us += now_us() - start;
    }
    start = now_us();
    must(cddp_ddp_clip_grad_norm(j->ddp, 1, 2, 0, NULL));
    must(cddp_optim_step(j->optim, NULL));
    *host_us += now_us() - start;
    CARD(&j->card, cuEventRecord, j->to, j->card.stream);
    CARD(&j->card, cuEventSynchronize, j->to);
    CARD(&j->card, cuEventElapsedTime, &ms, j->from, j->to);
    return (double)ms;
}

static void run(struct job *j, struct times *t, int warm)
{
    for (int i = -warm; i < j->steps; i++) {
        const int at = i < 0 ? 0 : i;

        t->ms[at] = step(j, &t->host_us[at]);
    }
}

/* --------------------------------------------------------------------------------------------- the checkpoint ---- */

struct saved {
    double call_ms, wait_ms, load_ms;
};

static void *copy_of(struct job *j, size_t i)
{
    void *copy = get_memory(j->param_bytes);

    must(cddp_copy(j->comm, copy, j->params[i].data, j->param_bytes));
    return copy;
}

static void save_and_load(struct job *j, struct times *during, struct saved *took)
{
    const cddp_checkpoint_options options = {.size = sizeof options, .background = 1};
    const size_t last = j->n_params - 1;
    cddp_checkpoint_info info = {.size = sizeof info};
    void *before = copy_of(j, last), *after, *loaded;
    double start = now_us();

    must(cddp_checkpoint_save(j->comm, j->dir, 1, j->items, j->n_params + 1, &options));
    took->call_ms = (now_us() - start) * 1e-3;
    run(j, during, 0);
    start = now_us();
    must(cddp_checkpoint_wait(j->comm));
    took->wait_ms = (now_us() - start) * 1e-3;
    after = copy_of(j, last);
    start = now_us();
    must(cddp_checkpoint_load(j->comm, j->dir, j->items, j->n_params + 1, &info));
    took->load_ms = (now_us() - start) * 1e-3;
    loaded = copy_of(j, last);
    if (memcmp(before, after, j->param_bytes) == 0)
        card_die("gpu_train: the steps during the save have changed nothing, so it shows nothing");
    if (memcmp(before, loaded, j->param_bytes) != 0)
        card_die("gpu_train: the loaded parameters differ from the saved ones when the save was begun");
    free(before);
    free(after);
    free(loaded);
}

/* -------------------------------------------------------------------------------------------------- the report ---- */

static void show(const char *name, double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
    printf(",\"%s\":[%.6g,%.6g,%.6g]", name, values[n / 4], values[n / 2], values[n * 3 / 4]);
}

static void measure(struct job *j)
{
    static struct times alone, during;
    struct saved took;

    run(j, &alone, WARM);
    save_and_load(j, &during, &took);
    if (cddp_rank(j->comm) != 0)
        return;
    printf(
        "{\"trained\":\"%s\",\"ranks\":%d,\"buckets\":%zu,\"bucket_bytes\":%zu,\"params\":%zu,\"work\":%d,\"steps\":%d,"
        "\"state_bytes\":%zu,\"save_call_ms\":%.6g,\"save_wait_ms\":%.6g,\"load_ms\":%.6g",
        j->card.name, cddp_world_size(j->comm), j->n_buckets, j->bucket_bytes, j->n_params, j->work, j->steps,
        cddp_optim_state_bytes(j->optim), took.call_ms, took.wait_ms, took.load_ms);
    show("step_ms", alone.ms, j->steps);
    show("host_us", alone.host_us, j->steps);
    show("step_ms_during_save", during.ms, j->steps);
    printf("}\n");
}

/* ------------------------------------------------------------------------------------------- set up, arguments ---- */

static void make_params(struct job *j)
{
    j->n_params = j->n_buckets * PARAMS_PER_BUCKET;
    j->param_bytes = j->bucket_bytes / PARAMS_PER_BUCKET;
    j->params = get_memory(j->n_params * sizeof *j->params);
    j->items = get_memory((j->n_params + 1) * sizeof *j->items);
    for (size_t i = 0; i < j->n_params; i++) {
        char *name = get_memory(NAME_BYTES);

        (void)snprintf(name, NAME_BYTES, "p%zu", i);
        j->params[i] = (cddp_param){
            .size = sizeof(cddp_param), .name = name, .count = j->param_bytes / sizeof(float), .dtype = CDDP_FLOAT32};
        must(cddp_alloc(j->comm, j->param_bytes, 0, &j->params[i].data));
        CARD(&j->card, cuMemsetD8Async, (CUdeviceptr)(uintptr_t)j->params[i].data, 0, j->param_bytes, j->card.stream);
        j->items[i] = (cddp_checkpoint_item){
            .size = sizeof(cddp_checkpoint_item), .name = name, .data = j->params[i].data, .bytes = j->param_bytes};
    }
    CARD(&j->card, cuStreamSynchronize, j->card.stream);
}

static void open_job(struct job *j)
{
    cddp_device_info info = {.size = sizeof info};
    cddp_ddp_options options = {
        .size = sizeof options, .bucket_bytes = j->bucket_bytes, .first_bucket_bytes = j->bucket_bytes};
    cddp_optim_options adamw;

    cddp_optim_defaults(&adamw, sizeof adamw, CDDP_OPTIM_ADAMW);
    must(cddp_init(&j->comm, NULL));
    must(cddp_get_device_info(j->comm, &info));
    if (info.device < 0) {
        (void)fprintf(stderr, "gpu_train: libcddp found no GPU to reduce on; its backend is %s\n",
                      cddp_backend_name(j->comm));
        exit(77);
    }
    card_open(&j->card, info.device);
    CARD(&j->card, cuEventCreate, &j->from, CU_EVENT_DEFAULT);
    CARD(&j->card, cuEventCreate, &j->to, CU_EVENT_DEFAULT);
    make_params(j);
    options.stream = j->card.stream;
    must(cddp_ddp_create(&j->ddp, j->comm, j->params, j->n_params, &options));
    must(cddp_optim_create(&j->optim, j->ddp, &adamw));
    j->items[j->n_params] = (cddp_checkpoint_item){
        .size = sizeof(cddp_checkpoint_item), .name = "adamw", .data = j->optim, .kind = CDDP_ITEM_OPTIM};
}

static void close_job(struct job *j)
{
    cddp_optim_destroy(j->optim);
    cddp_ddp_destroy(j->ddp);
    for (size_t i = 0; i < j->n_params; i++) {
        cddp_free(j->comm, j->params[i].data);
        free((void *)(uintptr_t)j->params[i].name);
    }
    free(j->params);
    free(j->items);
    CARD(&j->card, cuEventDestroy, j->from);
    CARD(&j->card, cuEventDestroy, j->to);
    card_close(&j->card);
    must(cddp_finalize(j->comm));
}

static void read_arguments(struct job *j, int argc, char **argv)
{
    static const struct option flags[] = {
        {"dir", required_argument, NULL, 'd'},   {"kib", required_argument, NULL, 'k'},
        {"work", required_argument, NULL, 'w'},  {"bucket-kib", required_argument, NULL, 'b'},
        {"steps", required_argument, NULL, 's'}, {NULL, 0, NULL, 0}};
    long kib = 256000, bucket = 25600;
    int c;

    j->steps = 50;
    j->work = 8;
    while ((c = getopt_long(argc, argv, "", flags, NULL)) != -1) {
        if (c == 'd')
            j->dir = optarg;
        else if (c == 'k')
            kib = number(optarg, 1, 1L << 30);
        else if (c == 'b')
            bucket = number(optarg, 1, 1L << 24);
        else if (c == 's')
            j->steps = (int)number(optarg, 1, MOST_STEPS);
        else if (c == 'w')
            j->work = (int)number(optarg, 1, 1000);
        else
            exit(2);
    }
    if (optind != argc || kib < bucket || j->dir == NULL)
        card_die("usage: gpu_train --dir DIR [--kib N] [--bucket-kib N] [--steps N] [--work N]");
    j->bucket_bytes = (size_t)bucket << 10;
    j->n_buckets = (size_t)(kib / bucket);
}

int main(int argc, char **argv)
{
    static struct job j;

    read_arguments(&j, argc, argv);
    open_job(&j);
    measure(&j);
    close_job(&j);
    return 0;
}
