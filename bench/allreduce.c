/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-reduce by libcddp, timed as measure.h says: "direct" is a bucket of cddp_ddp, which lies in shared memory;
 * "shared" is cddp_all_reduce on such memory, and "private" on the caller's own; "bound" is not an all-reduce, but as
 * much memory traffic as the best one has: each rank reads and writes as many bytes as its buffer holds. Started by
 * allreduce.py, or by hand: cddprun --standalone --nproc_per_node=2 build/bench/allreduce 0.2 4 26214400
 */
#include "measure.h"

#include <cddp/cddp.h>
#include <sys/mman.h>

static void need(cddp_status status)
{
    if (status == CDDP_OK)
        return;
    (void)fprintf(stderr, "allreduce: %s\n", cddp_last_error());
    exit(1);
}

struct place {
    cddp_comm *comm;
    cddp_ddp *ddp;
};

static void reduce_direct(struct subject *s)
{
    struct place *p = s->arg;

    need(cddp_ddp_grad_ready(p->ddp, 0));
    need(cddp_ddp_wait(p->ddp));
}

static void reduce_plainly(struct subject *s)
{
    need(cddp_all_reduce(((struct place *)s->arg)->comm, s->buf, s->buf, s->n, CDDP_FLOAT32, CDDP_SUM));
}

/* Two arrays, each half of the buffer: both become their sum. Nothing is shared and nobody is waited for. */
static void bound(struct subject *s)
{
    size_t half = s->n / 2;
    float *restrict a = s->buf, *restrict b = s->buf + s->n - half;

    for (size_t i = 0; i < half; i++) {
        float sum = a[i] + b[i];

        a[i] = sum;
        b[i] = sum;
    }
    __asm__ volatile("" ::"r"(s->buf) : "memory");
}

static void barrier(struct subject *s)
{
    need(cddp_barrier(((struct place *)s->arg)->comm));
}

static double largest(struct subject *s, double mine)
{
    double most;

    need(cddp_all_reduce(((struct place *)s->arg)->comm, &mine, &most, 1, CDDP_FLOAT64, CDDP_MAX));
    return most;
}

static void one(size_t n, double budget_s, void *arg)
{
    struct place place = {.comm = arg};
    size_t bytes = n * sizeof(float), huge = (size_t)2 << 20;
    float *mine = aligned_alloc(64, (bytes + 63) / 64 * 64),
          *best = aligned_alloc(huge, (bytes + huge - 1) / huge * huge);
    const cddp_param param = {.size = sizeof(cddp_param), .name = "w", .data = mine, .count = n, .dtype = CDDP_FLOAT32};
    const cddp_ddp_options opt = {.size = sizeof opt, .bucket_bytes = bytes, .first_bucket_bytes = bytes};
    struct subject s = {.n = n,
                        .rank = cddp_rank(place.comm),
                        .size = cddp_world_size(place.comm),
                        .arg = &place,
                        .barrier = barrier,
                        .max = largest};
    void *shared;

    if (mine == NULL || best == NULL) {
        (void)fprintf(stderr, "allreduce: out of memory\n");
        exit(1);
    }
    memset(mine, 0, bytes);
    need(cddp_ddp_create(&place.ddp, place.comm, &param, 1, &opt));
    s.name = "direct";
    s.buf = cddp_ddp_grad(place.ddp, 0);
    s.mean = true;
    s.touch = true;
    s.reduce = reduce_direct;
    measure(&s, budget_s);
    cddp_ddp_destroy(place.ddp);

    s.mean = false;
    s.touch = false;
    s.reduce = reduce_plainly;
    need(cddp_alloc(place.comm, bytes, CDDP_MEM_COLLECTIVE, &shared));
    s.name = "shared";
    s.buf = shared;
    measure(&s, budget_s);
    cddp_free(place.comm, shared);

    s.name = "private";
    s.buf = mine;
    measure(&s, budget_s);
    free(mine);

    (void)madvise(best, bytes, MADV_HUGEPAGE); /* as good as memory can be */
    memset(best, 0, bytes);
    s.name = "bound";
    s.buf = best;
    s.reduce = bound;
    measure_variant(&s, BACK_TO_BACK, budget_s);
    measure_variant(&s, FAIR, budget_s);
    free(best);
}

int main(int argc, char **argv)
{
    cddp_comm *comm;
    int rc;

    need(cddp_init(&comm, NULL));
    rc = measure_sizes(argc, argv, one, comm);
    need(cddp_finalize(comm));
    return rc;
}
