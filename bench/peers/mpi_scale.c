/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of MPI, checked and timed as scale.h says. Compiled by scale.py with Open MPI's mpicc. */
#include "../scale.h"

#include <mpi.h>

/* MPI's default error handler ends the job. */
static void barrier(struct fabric *f)
{
    (void)f;
    (void)MPI_Barrier(MPI_COMM_WORLD);
}

static void all_reduce(struct fabric *f, float *buf, size_t n)
{
    (void)f;
    (void)MPI_Allreduce(MPI_IN_PLACE, buf, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_to_all(struct fabric *f, const uint32_t *in, uint32_t *out, size_t n)
{
    (void)f;
    (void)MPI_Alltoall(in, (int)n, MPI_UINT32_T, out, (int)n, MPI_UINT32_T, MPI_COMM_WORLD);
}

static double largest(struct fabric *f, double mine)
{
    double most = 0;

    (void)f;
    (void)MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

int main(int argc, char **argv)
{
    struct fabric f = {.barrier = barrier, .all_reduce = all_reduce, .all_to_all = all_to_all, .max = largest};
    int rc;

    (void)MPI_Init(&argc, &argv);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &f.rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &f.size);
    rc = scale_main(argc, argv, &f);
    (void)MPI_Finalize();
    return rc;
}
