/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sharded checkpoint beside the disk's own time: the ranks save a divided model with AdamW, and in turn write the
 * same bytes themselves, each to a file: in pieces of 1 MiB, with fsync, and a rename over the last one. Started by
 * bench/checkpoint.py.
 *
 *     checkpoint DIR MIB ROUNDS
 *
 * MIB: of the checkpoint. Prints a line of JSON per round; times are in seconds, until the slowest rank is done. Before
 * reading, the files leave the page cache.
 */
#include <cddp/cddp.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define UNITS 64
#define PER_PARAM 3 /* the parameter, and AdamW's two averages */
#define PIECE ((size_t)1 << 20)

static cddp_comm *comm;
static cddp_fsdp *fsdp;
static cddp_optim *optim;
static const char *dir;
static uint64_t step;

static void check(bool ok, const char *what)
{
    if (ok)
        return;
    (void)fprintf(stderr, "checkpoint: %s: %s\n", what, cddp_last_error());
    exit(1);
}

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Waits for all ranks, and returns the time since `began`. */
static double all_done(double began)
{
    check(cddp_barrier(comm) == CDDP_OK, "barrier");
    return now_s() - began;
}

static void make_model(size_t bytes)
{
    cddp_param params[UNITS];
    cddp_fsdp_unit units[UNITS];
    char names[UNITS][16];
    cddp_optim_options rule;
    uint32_t x = 1 + (uint32_t)cddp_rank(comm);

    for (size_t u = 0; u < UNITS; u++) {
        (void)snprintf(names[u], sizeof names[u], "layer.%zu", u);
        params[u] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = names[u],
                                 .count = bytes / UNITS / PER_PARAM / sizeof(float),
                                 .dtype = CDDP_FLOAT32};
        units[u] =
            (cddp_fsdp_unit){.size = sizeof(cddp_fsdp_unit), .name = names[u], .params = &params[u], .n_params = 1};
    }
    check(cddp_fsdp_create(&fsdp, comm, units, UNITS, NULL) == CDDP_OK, "model");
    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_ADAMW);
    check(cddp_optim_create_sharded(&optim, fsdp, &rule) == CDDP_OK, "optimizer");
    /* Numbers that no disk makes smaller. */
    for (size_t u = 0; u < UNITS; u++) {
        float *grad = cddp_fsdp_grad(fsdp, u, 0);

        check(grad != NULL, "gradient");
        for (size_t i = 0; i < params[u].count; i++)
            grad[i] = (float)(int32_t)(x = x * 1664525 + 1013904223) / 1e9F;
        check(cddp_fsdp_grads_ready(fsdp, u) == CDDP_OK, "gradients");
    }
    check(cddp_optim_step(optim, NULL) == CDDP_OK, "step");
}

/* Writes as many bytes of this rank's part of the model as the checkpoint has of it. */
static double write_plain(void)
{
    char tmp[4096], path[4096];
    double began;
    int fd;

    (void)snprintf(tmp, sizeof tmp, "%s/plain-%d.tmp", dir, cddp_rank(comm));
    (void)snprintf(path, sizeof path, "%s/plain-%d", dir, cddp_rank(comm));
    (void)all_done(0);
    began = now_s();
    fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    check(fd >= 0, tmp);
    for (size_t k = 0; k < (size_t)UNITS * PER_PARAM; k++) {
        cddp_fsdp_shard_info shard = {.size = sizeof shard};

        check(cddp_fsdp_shard(fsdp, k % UNITS, 0, &shard) == CDDP_OK, "shard");
        for (size_t done = 0, n; done < shard.count * sizeof(float); done += n) {
            n = shard.count * sizeof(float) - done;
            n = n < PIECE ? n : PIECE;
            check(write(fd, (const char *)shard.param + done, n) == (ssize_t)n, tmp);
        }
    }
    check(fsync(fd) == 0 && close(fd) == 0 && rename(tmp, path) == 0, path);
    return all_done(began);
}

static void leave_cache(const char *path)
{
    int fd = open(path, O_RDONLY);

    check(fd >= 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 && close(fd) == 0, path);
}

static double read_plain(void)
{
    static char piece[PIECE];
    char path[4096];
    double began;
    ssize_t n;
    int fd;

    (void)snprintf(path, sizeof path, "%s/plain-%d", dir, cddp_rank(comm));
    leave_cache(path);
    (void)all_done(0);
    began = now_s();
    fd = open(path, O_RDONLY);
    while ((n = read(fd, piece, sizeof piece)) > 0)
        ;
    check(n == 0 && close(fd) == 0, path);
    return all_done(began);
}

static double save(const cddp_checkpoint_item *items, bool background, double *call)
{
    const cddp_checkpoint_options opt = {.size = sizeof opt, .keep = 1, .background = background};
    double began;

    (void)all_done(0);
    began = now_s();
    check(cddp_checkpoint_save(comm, dir, ++step, items, 2, &opt) == CDDP_OK, "save");
    *call = now_s() - began;
    check(cddp_checkpoint_wait(comm) == CDDP_OK, "save");
    return all_done(began);
}

static double load(const cddp_checkpoint_item *items)
{
    char path[4096];
    double began;

    (void)snprintf(path, sizeof path, "%s/checkpoint-%020" PRIu64 ".cddp/shard-%d-of-%d", dir, step, cddp_rank(comm),
                   cddp_world_size(comm));
    leave_cache(path);
    (void)all_done(0);
    began = now_s();
    check(cddp_checkpoint_load(comm, dir, items, 2, NULL) == CDDP_OK, "load");
    return all_done(began);
}

int main(int argc, char **argv)
{
    int rounds = argc == 4 ? atoi(argv[3]) : 0;
    cddp_checkpoint_item items[2] = {{.size = sizeof items[0], .name = "", .kind = CDDP_ITEM_FSDP},
                                     {.size = sizeof items[1], .name = "adam", .kind = CDDP_ITEM_OPTIM}};

    if (rounds < 1) {
        (void)fprintf(stderr, "usage: checkpoint DIR MIB ROUNDS\n");
        return 2;
    }
    dir = argv[1];
    check(cddp_init(&comm, NULL) == CDDP_OK, "init");
    make_model((size_t)strtoul(argv[2], NULL, 10) << 20);
    items[0].data = fsdp;
    items[1].data = optim;
    for (int k = -1; k < rounds; k++) { /* the first is not counted */
        double plain = 0, waited = 0, whole = 0, call = 0, ignored, read, loaded;

        for (int turn = 0; turn < 3; turn++) {
            if ((k + 1 + turn) % 3 == 0)
                plain = write_plain();
            else if ((k + 1 + turn) % 3 == 1)
                waited = save(items, false, &ignored);
            else
                whole = save(items, true, &call);
        }
        read = k % 2 == 0 ? read_plain() : 0;
        loaded = load(items);
        read = k % 2 == 0 ? read : read_plain();
        if (cddp_rank(comm) == 0 && k >= 0)
            (void)printf("{\"plain\": %.4f, \"save\": %.4f, \"background\": %.4f, \"call\": %.4f, \"read\": %.4f, "
                         "\"load\": %.4f}\n",
                         plain, waited, whole, call, read, loaded),
                (void)fflush(stdout);
    }
    cddp_optim_destroy(optim);
    cddp_fsdp_destroy(fsdp);
    check(cddp_finalize(comm) == CDDP_OK, "finalize");
    return 0;
}
