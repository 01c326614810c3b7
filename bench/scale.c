/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of libcddp, checked and timed as scale.h says. Started by scale.py. */
#include "scale.h"

#include <cddp/cddp.h>

static void need(cddp_status status)
{
    if (status == CDDP_OK)
        return;
    (void)fprintf(stderr, "scale: %s\n", cddp_last_error());
    exit(1);
}

static void barrier(struct fabric *f)
{
    need(cddp_barrier(f->arg));
}

static void all_reduce(struct fabric *f, float *buf, size_t n)
{
    need(cddp_all_reduce(f->arg, buf, buf, n, CDDP_FLOAT32, CDDP_SUM));
}

static void all_to_all(struct fabric *f, const uint32_t *in, uint32_t *out, size_t n)
{
    need(cddp_all_to_all(f->arg, in, out, n, CDDP_INT32));
}

static double largest(struct fabric *f, double mine)
{
    double most;

    need(cddp_all_reduce(f->arg, &mine, &most, 1, CDDP_FLOAT64, CDDP_MAX));
    return most;
}

int main(int argc, char **argv)
{
    struct fabric f = {
        .in_order = true, .barrier = barrier, .all_reduce = all_reduce, .all_to_all = all_to_all, .max = largest};
    cddp_comm *comm;
    int rc;

    need(cddp_init(&comm, NULL));
    f.arg = comm;
    f.rank = cddp_rank(comm);
    f.size = cddp_world_size(comm);
    rc = scale_main(argc, argv, &f);
    need(cddp_finalize(comm));
    return rc;
}
