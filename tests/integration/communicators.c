/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators of all kinds on a backend: CDDP_BACKEND says which. Without RANK or an MPI's variables it starts its
 * ranks itself.
 *
 *     communicators MODE...     beside: a part of the CPU's beside one for GPUs
 */
#include "by_hand.h"

#include <stdbool.h>
#include <string.h>

#define LIMIT_S 100

static const char *mode;

/* The sum over all ranks of 10^(rank in the world), by memory of the communicator's own kind. */
static int64_t digits_of(cddp_comm *comm)
{
    int64_t x = 1, *there;

    for (int r = 0; r < cddp_world_rank(comm, cddp_rank(comm)); r++)
        x *= 10;
    CHECK(cddp_alloc(comm, sizeof x, (void **)&there) == CDDP_OK && cddp_copy(comm, there, &x, sizeof x) == CDDP_OK);
    CHECK(cddp_all_reduce(comm, there, there, 1, CDDP_INT64, CDDP_SUM) == CDDP_OK);
    CHECK(cddp_copy(comm, &x, there, sizeof x) == CDDP_OK);
    cddp_free(comm, there);
    return x;
}

static int64_t ones(int n)
{
    return n == 0 ? 0 : 10 * ones(n - 1) + 1;
}

/* ---------------------------------------------------------------------------------------------------- beside ---- */

static void beside(void)
{
    const cddp_split_options cpu = {.size = sizeof cpu, .backend = "cpu", .name = "control"};
    const cddp_split_options named = {.size = sizeof named, .name = "dp"};
    cddp_comm *comm, *control, *dp, *part, *none;
    int rank, size;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    rank = cddp_rank(comm);
    size = cddp_world_size(comm);
    CHECK(cddp_comm_split(&control, comm, 0, -rank, &cpu) == CDDP_OK);
    CHECK(strcmp(cddp_backend_name(control), "cpu") == 0 && cddp_rank(control) == size - 1 - rank);
    CHECK(cddp_world_rank(control, 0) == size - 1 && cddp_local_rank(control) == cddp_local_rank(comm));
    CHECK(digits_of(control) == ones(size) && digits_of(comm) == ones(size));
    /* Rank 0's is the CPU's, the others' that of the whole. */
    CHECK(cddp_comm_split(&part, comm, rank == 0, 0, rank == 0 ? &cpu : &named) == CDDP_OK);
    CHECK(strcmp(cddp_backend_name(part), rank == 0 ? "cpu" : cddp_backend_name(comm)) == 0);
    CHECK(digits_of(part) == (rank == 0 ? 1 : ones(size) - 1));
    CHECK(cddp_comm_split(&none, comm, -1, 0, &cpu) == CDDP_OK && none == NULL);
    if (strcmp(cddp_backend_name(comm), "cpu") != 0) { /* of one color, some the one and some the other */
        CHECK(cddp_comm_split(&none, comm, 3, 0, rank == 0 ? &cpu : NULL) == (size > 1 ? CDDP_E_MISMATCH : CDDP_OK));
        if (size == 1)
            CHECK(cddp_finalize(none) == CDDP_OK);
    }
    CHECK(cddp_comm_error(comm, NULL) == CDDP_OK);
    /* Parts of a part, and errors that are not the whole's. */
    CHECK(cddp_comm_split(&dp, control, 0, 0, &named) == CDDP_OK && digits_of(dp) == ones(size));
    if (rank == 0)
        cddp_abort(dp, "enough");
    CHECK(cddp_barrier(dp) == CDDP_E_ABORTED && strncmp(cddp_last_error(), "communicator 'dp': ", 19) == 0);
    CHECK(cddp_finalize(dp) == CDDP_E_ABORTED && cddp_barrier(control) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    if (rank == 0)
        CHECK(cddp_finalize(part) == CDDP_OK && cddp_finalize(comm) == CDDP_OK && cddp_finalize(control) == CDDP_OK);
    else
        CHECK(cddp_finalize(control) == CDDP_OK && cddp_finalize(comm) == CDDP_OK && cddp_finalize(part) == CDDP_OK);
}

/* ------------------------------------------------------------------------------------------------------ main ---- */

static int as_a_rank(int rank)
{
    (void)rank;
    (void)alarm(LIMIT_S);
    if (strcmp(mode, "beside") == 0)
        beside();
    else
        CHECK(!"a mode");
    return 0;
}

int main(int argc, char **argv)
{
    bool started = getenv("RANK") != NULL || getenv("OMPI_COMM_WORLD_RANK") != NULL || getenv("PMI_RANK") != NULL;
    int bad = 0;

    CHECK(argc > 1);
    for (int i = 1; i < argc && bad == 0; i++) {
        mode = argv[i];
        if (started) {
            bad = as_a_rank(0);
            continue;
        }
        by_hand_start(by_hand_port(), as_a_rank);
        bad = by_hand_wait();
        if (bad != 0)
            fprintf(stderr, "in mode %s\n", mode);
    }
    return bad;
}
