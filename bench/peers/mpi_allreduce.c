/* SPDX-License-Identifier: Apache-2.0 */
/* MPI_Allreduce, timed as measure.h says. Compiled by allreduce.py with each mpicc that there is. */
#include "../measure.h"

#include <mpi.h>

/* MPI's default error handler ends the job. */
static void reduce(struct subject *s)
{
    (void)MPI_Allreduce(MPI_IN_PLACE, s->buf, (int)s->n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void barrier(struct subject *s)
{
    (void)s;
    (void)MPI_Barrier(MPI_COMM_WORLD);
}

static double largest(struct subject *s, double mine)
{
    double most = 0;

    (void)s;
    (void)MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

static void one(size_t n, double budget_s, void *arg)
{
    struct subject s = {.name = arg, .n = n, .reduce = reduce, .barrier = barrier, .max = largest};

    (void)MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &s.size);
    s.buf = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
    if (s.buf == NULL) {
        (void)fprintf(stderr, "mpi_allreduce: out of memory\n");
        exit(1);
    }
    measure(&s, budget_s);
    free(s.buf);
}

int main(int argc, char **argv)
{
    char name[] = "mpi";
    int rc;

    (void)MPI_Init(&argc, &argv);
    rc = measure_sizes(argc, argv, one, name);
    (void)MPI_Finalize();
    return rc;
}
