/* SPDX-License-Identifier: Apache-2.0 */
/* One operation from its beginning to its end: the dispatcher above exchange.c and reduction.c, and regions. */
#include "worker/backend/mpi/state.h"

#include <stdlib.h>
#include <string.h>

#define REGION_ALIGN 4096

/* A region is memory of this rank only: the ranks agree that all have theirs. */
static cddp_status region_create(struct cdi_mpi_run *run, struct cdi_error *err)
{
    const struct cdi_work *w = run->work;
    struct cdi_region *region = calloc(1, sizeof *region);
    void *base = NULL;
    uint8_t able = region != NULL && posix_memalign(&base, REGION_ALIGN, w->region_bytes) == 0;
    cddp_status st;

    if (able)
        memset(base, 0, w->region_bytes);
    st = cdi_mpi_open(run, &able, 1, err);
    for (int r = 0; r < run->b->world.size && st == CDDP_OK && w->region_err->status == CDDP_OK; r++)
        if (!*cdi_mpi_data_of(run->b, r, 1))
            (void)cdi_fail(w->region_err, CDDP_E_NOMEM, "rank %d is out of memory for %zu bytes", r, w->region_bytes);
    if (st != CDDP_OK || w->region_err->status != CDDP_OK || region == NULL) {
        free(base);
        free(region);
        return st;
    }
    *region = (struct cdi_region){.base = base, .bytes = w->region_bytes};
    *w->region_out = region;
    return CDDP_OK;
}

cddp_status cdi_mpi_run(struct cdi_mpi_run *run, struct cdi_error *err)
{
    if (run->work->is_region)
        return region_create(run, err);
    switch (run->op->kind) {
    case CDI_ALL_REDUCE:
    case CDI_REDUCE:
    case CDI_REDUCE_SCATTER:
        return cdi_mpi_reduction(run, err);
    case CDI_BROADCAST:
    case CDI_ALL_GATHER:
    case CDI_ALL_GATHERV:
    case CDI_ALL_TO_ALL:
    case CDI_SEND:
    case CDI_RECV:
        return cdi_mpi_exchange(run, err);
    case CDI_BARRIER:
        return cdi_mpi_open(run, NULL, 0, err);
    }
    return cdi_fail(err, CDDP_E_INVALID, "no such operation");
}
