/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/coll/region.h"

#include "worker/backend/cpu/coll/exchange.h"
#include "worker/backend/cpu/node/shm_bootstrap.h"
#include "worker/backend/who.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void region_free(struct cdi_cpu_region *region)
{
    if (region != NULL) {
        free(region->mapped);
        free(region->part);
    }
    free(region);
}

static struct cdi_cpu_region *region_alloc(struct cdi_cpu_comm *t, size_t bytes)
{
    struct cdi_cpu_region *region = calloc(1, sizeof *region);
    bool many = t->shm != NULL && t->shm->mapped != NULL;

    if (region == NULL)
        return NULL;
    region->part = calloc(t->shm != NULL ? (size_t)t->shm->size : 1, sizeof *region->part);
    if (many)
        region->mapped = calloc((size_t)t->shm->size, cdi_shm_page_words(bytes) * sizeof *region->mapped);
    if (region->part == NULL || (many && region->mapped == NULL)) {
        region_free(region);
        return NULL;
    }
    region->id = ++t->n_regions;
    region->pub.bytes = bytes;
    return region;
}

/* The outcome of a rank. */
struct outcome {
    int32_t status;
    int32_t from;
    char text[CDI_SHM_TEXT];
};

/* The first failure counts for all. */
static void take_outcome(void *arg, int from, size_t at, const uint8_t *p, size_t n)
{
    struct outcome *first = arg, other;

    if (first->status != CDDP_OK || at != 0 || n != sizeof other)
        return;
    memcpy(&other, p, sizeof other);
    other.text[sizeof other.text - 1] = '\0';
    *first = other;
    first->from = from;
}

/* Exchanges the outcomes of all ranks. Sets *agreed to the first failure. */
static cddp_status region_agree(struct cdi_run *run, cddp_status mine, const struct cdi_error *why,
                                struct cdi_error *agreed, struct cdi_error *err)
{
    struct outcome own = {.status = mine}, first = {.status = CDDP_OK};
    cddp_status st;

    (void)snprintf(own.text, sizeof own.text, "%.500s", mine == CDDP_OK ? "" : why->msg);
    for (int r = 0; r < run->t->size; r++)
        run->t->len[r] = sizeof own;
    st = cdi_exchange(run, &own, take_outcome, &first, err);
    agreed->status = CDDP_OK;
    if (st == CDDP_OK && first.status != CDDP_OK)
        (void)cdi_fail_by(agreed, cdi_wait_rank_of_job(&run->t->wait, first.from), (cddp_status)first.status,
                          "cannot share %zu bytes with each rank: %s", run->w->region_bytes, first.text);
    return st;
}

cddp_status cdi_cpu_region_create(struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    const struct cdi_work *w = run->w;
    struct cdi_cpu_region *region;
    struct cdi_error why;
    bool broken = false;
    cddp_status mine, st = cdi_step(run, err);

    if (st != CDDP_OK)
        return st;
    region = region_alloc(t, w->region_bytes);
    if (region == NULL) /* rare enough to abort the communicator, which the peers see */
        return cdi_fail(err, CDDP_E_NOMEM, "%s: out of memory", cdi_who(t->wait.ranks, t->rank).text);
    mine = cdi_shm_bootstrap_parts(&t->wait, w->region_bytes, region->part, &broken, &why);
    if (broken)
        st = cdi_fail_since(err, &why, "creating shared memory: %.900s", why.msg);
    else
        st = region_agree(run, mine, &why, w->region_err, err);
    if (st == CDDP_OK && w->region_err->status == CDDP_OK) {
        region->pub.base = region->part[t->shm->rank];
        *w->region_out = &region->pub;
        return CDDP_OK;
    }
    cdi_cpu_region_destroy(t, &region->pub);
    return st;
}

void cdi_cpu_region_destroy(struct cdi_cpu_comm *t, struct cdi_region *pub)
{
    struct cdi_cpu_region *region = (struct cdi_cpu_region *)pub;

    if (region == NULL)
        return;
    if (t->shm == NULL)
        free(region->part[0]);
    else
        for (int r = 0; r < t->shm->size; r++)
            cdi_shm_unmap(&t->shm->mapper, region->part[r], region->pub.bytes);
    region_free(region);
}

cddp_status cdi_cpu_region_create_alone(struct cdi_cpu_comm *t, const struct cdi_work *w)
{
    struct cdi_cpu_region *region = region_alloc(t, w->region_bytes);
    void *mem = region == NULL ? NULL : aligned_alloc(4096, w->region_bytes);

    if (mem == NULL) {
        region_free(region);
        (void)cdi_fail(w->region_err, CDDP_E_NOMEM, "out of memory for %zu bytes", w->region_bytes);
        return CDDP_OK;
    }
    memset(mem, 0, w->region_bytes);
    region->part[0] = mem;
    region->pub.base = mem;
    *w->region_out = &region->pub;
    w->region_err->status = CDDP_OK;
    return CDDP_OK;
}
