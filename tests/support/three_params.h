/* SPDX-License-Identifier: Apache-2.0 */
/* A model of three parameters for programs that compare kinds of reducers: its memory, and its end. */
#ifndef CDI_TEST_THREE_PARAMS_H
#define CDI_TEST_THREE_PARAMS_H

#include "rank_check.h"

#include <cddp/cddp.h>
#include <stdlib.h>

#define PARAMS 3
#define LARGEST 17000 /* 68 kB: it is reduced in place where it can be */

enum place { ARENA, OWN, SHARED };

struct kind;

struct model {
    const struct kind *kind;
    cddp_ddp *ddp;
    cddp_optim *optim;
    void *data[PARAMS], *grad[PARAMS], *block;
};

static const size_t counts[PARAMS] = {1000, LARGEST, 77};
static cddp_comm *comm;
static int rank, n_ranks;

static void *allocate(size_t bytes, uint32_t flags)
{
    void *zeros = calloc(1, bytes), *p = NULL;

    CHECK(zeros != NULL && cddp_alloc(comm, bytes, flags, &p) == CDDP_OK && cddp_copy(comm, p, zeros, bytes) == CDDP_OK,
          "%s", cddp_last_error());
    free(zeros);
    return p;
}

/* Allocates the parameters, and the gradients where `place` says. */
static void place_params(struct model *m, enum place place, cddp_dtype dtype, cddp_param p[PARAMS])
{
    size_t size = cddp_dtype_size(dtype), at = 0;

    if (place == SHARED)
        m->block = allocate((counts[0] + counts[1] + counts[2]) * size, CDDP_MEM_COLLECTIVE);
    for (size_t i = 0; i < PARAMS; i++) {
        m->data[i] = allocate(counts[i] * size, 0);
        if (place == OWN)
            m->grad[i] = allocate(counts[i] * size, 0);
        else if (place == SHARED)
            m->grad[i] = (char *)m->block + at;
        at += counts[i] * size;
        p[i] = (cddp_param){.size = sizeof p[i],
                            .name = "p",
                            .data = m->data[i],
                            .count = counts[i],
                            .dtype = dtype,
                            .grad = m->grad[i]};
    }
}

static void free_model(struct model *m)
{
    cddp_optim_destroy(m->optim);
    cddp_ddp_destroy(m->ddp);
    for (size_t i = 0; i < PARAMS; i++) {
        cddp_free(comm, m->data[i]);
        if (m->block == NULL)
            cddp_free(comm, m->grad[i]);
    }
    cddp_free(comm, m->block);
}

#endif
