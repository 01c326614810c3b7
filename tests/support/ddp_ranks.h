/* SPDX-License-Identifier: Apache-2.0 */
/* Four ranks as processes, each with a reducer for three small parameters in separate buckets. */
#ifndef CDI_TEST_DDP_RANKS_H
#define CDI_TEST_DDP_RANKS_H

#include "comm_ranks.h"
#include "rdzv_child.h"

#define DDP_RANKS 4
#define DDP_PARAMS 3
#define DDP_COUNT 100

struct ddp_rank {
    cddp_comm *comm;
    cddp_ddp *ddp;
    float w[DDP_PARAMS][DDP_COUNT];
    float own[DDP_COUNT]; /* the gradient of parameter 1, where asked for */
};

static inline int ddp_world(int (*body)(int rank))
{
    struct rdzv_child server;
    int bad;

    rdzv_child_start(&server);
    bad = run_ranks(server.port, DDP_RANKS, DDP_RANKS, body);
    rdzv_child_stop(&server);
    return bad;
}

/* 0: it is open. */
static inline int ddp_open_with(struct ddp_rank *r, const cddp_ddp_options *opt, bool own)
{
    static const char *const names[DDP_PARAMS] = {"first", "second", "third"};
    cddp_param p[DDP_PARAMS];

    for (int i = 0; i < DDP_PARAMS; i++)
        p[i] = (cddp_param){.size = sizeof(cddp_param),
                            .name = names[i],
                            .data = r->w[i],
                            .count = DDP_COUNT,
                            .dtype = CDDP_FLOAT32,
                            .grad = own && i == 1 ? r->own : NULL,
                            .user = r->w[i]};
    CHECK(cddp_init(&r->comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&r->ddp, r->comm, p, DDP_PARAMS, opt) == CDDP_OK);
    return 0;
}

static inline int ddp_open(struct ddp_rank *r, uint32_t flags, cddp_dtype comm_dtype, bool own)
{
    cddp_ddp_options opt = {
        .size = sizeof opt, .bucket_bytes = 64, .first_bucket_bytes = 64, .flags = flags, .comm_dtype = comm_dtype};

    return ddp_open_with(r, &opt, own);
}

static inline int ddp_close(struct ddp_rank *r, cddp_status st)
{
    cddp_ddp_destroy(r->ddp);
    CHECK(cddp_finalize(r->comm) == st);
    return 0;
}

/* Every element of gradient i is `value`, and is reported ready. */
static inline int ddp_give(struct ddp_rank *r, size_t i, float value)
{
    float *g = cddp_ddp_grad(r->ddp, i);

    for (int k = 0; k < DDP_COUNT; k++)
        g[k] = value;
    CHECK(cddp_ddp_grad_ready(r->ddp, i) == CDDP_OK);
    return 0;
}

static inline int ddp_is(struct ddp_rank *r, size_t i, float value)
{
    const float *g = cddp_ddp_grad(r->ddp, i);

    for (int k = 0; k < DDP_COUNT; k++)
        if (g[k] != value) {
            fprintf(stderr, "gradient %zu: element %d is %.9g, not %.9g\n", i, k, (double)g[k], (double)value);
            return 1;
        }
    return 0;
}

#endif
